"""Snapshots of indexes in a folder that all bridges of a cluster reach."""
