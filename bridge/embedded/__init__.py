"""A real Pulsar as a child process."""

from bridge.embedded.distribution import ensure_distribution
from bridge.embedded.errors import (
    DistributionError,
    EmbeddedError,
    JavaNotFoundError,
    JavaTooOldError,
    PortInUseError,
    StartError,
)
from bridge.embedded.java import Java, find_java
from bridge.embedded.pulsar import EmbeddedPulsar

__all__ = [
    "DistributionError",
    "EmbeddedError",
    "EmbeddedPulsar",
    "Java",
    "JavaNotFoundError",
    "JavaTooOldError",
    "PortInUseError",
    "StartError",
    "ensure_distribution",
    "find_java",
]
