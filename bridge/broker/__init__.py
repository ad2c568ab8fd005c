"""The side that the broker sees."""
