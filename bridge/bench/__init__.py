"""Benchmarks that users can run: the bridge beside the broker's own delay tracker."""
