"""What REST answers."""
