"""Which entries a topic has, and reading ranges of them."""
