"""Sockets that listen."""

import socket


class StartError(Exception):
    """The bridge cannot start; the message says why and names the value at fault."""


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to an address, port 0 for a free one. Raises StartError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listening.setblocking(False)
    return listening
