"""Frames and commands of the Pulsar binary protocol: bytes in, objects out."""
