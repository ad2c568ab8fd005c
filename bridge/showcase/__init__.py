"""The demo, and the bridge side by side with the broker's own tracker."""
