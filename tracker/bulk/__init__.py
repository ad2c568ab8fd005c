"""Entries by the file: written elsewhere, taken in whole."""
