"""Free local ports."""

import random
import socket
from pathlib import Path

from bridge.embedded.errors import EmbeddedError

_LOWEST = 10_240
_USUAL_EPHEMERAL_START = 32_768
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        # As servers do: connections of an earlier server that linger in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """`count` different free ports below the range from which outgoing connections take theirs.

    Nothing holds them, so another process may be faster: callers that lose the race ask again.
    """
    end = _ephemeral_start()
    candidates = random.sample(range(_LOWEST, end), min(_TRIES, end - _LOWEST))
    found: list[int] = []
    for port in candidates:
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise EmbeddedError(f"found only {len(found)} of {count} free ports between {_LOWEST} and {end}")


def _ephemeral_start() -> int:
    try:
        start = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        start = _USUAL_EPHEMERAL_START
    # A system that hands out nearly all ports leaves no quiet range: then any will do.
    return start if start > _LOWEST + 1000 else 65_535
