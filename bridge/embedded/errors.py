"""Errors of the embedded Pulsar: each message says what happened and what to do, for the person at the terminal."""

from pathlib import Path


class EmbeddedError(Exception):
    """The embedded Pulsar cannot be had or cannot run; the base of this package's errors."""


class JavaNotFoundError(EmbeddedError):
    """No runnable Java was found. `looked_at` lists the places tried, with what was wrong there."""

    def __init__(self, needed: int, looked_at: list[str]) -> None:
        self.needed = needed
        self.looked_at = looked_at
        places = "; ".join(looked_at)
        super().__init__(
            f"Java {needed} or newer is needed and none was found ({places}). Install one or set JAVA_HOME."
        )


class JavaTooOldError(EmbeddedError):
    """Java was found, but only versions below `needed`; `found` maps each executable to its major version."""

    def __init__(self, needed: int, found: dict[Path, int]) -> None:
        self.needed = needed
        self.found = found
        listed = ", ".join(f"{path} is version {version}" for path, version in found.items())
        super().__init__(f"Java {needed} or newer is needed: {listed}. Install a newer one or set JAVA_HOME to it.")


class DistributionError(EmbeddedError):
    """The Pulsar distribution is missing, broken, or cannot be fetched."""


class StartError(EmbeddedError):
    """The broker did not become ready. `log_tail` holds the last lines of its log, also part of the message."""

    def __init__(self, reason: str, log_tail: str = "") -> None:
        self.reason = reason
        self.log_tail = log_tail
        super().__init__(f"{reason}\nLast lines of the broker's log:\n{log_tail}" if log_tail else reason)


class PortInUseError(StartError):
    """A port the broker was told to use belongs to another process."""

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(f"port {port} is in use by another process: choose another, or 0 for any free one")
