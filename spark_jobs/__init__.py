"""Spark jobs that read ledgers in parallel."""
