"""Transports, with no word of Pulsar in it."""
