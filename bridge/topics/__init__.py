"""Whose a topic partition is, for how long, and what stands on it meanwhile."""
