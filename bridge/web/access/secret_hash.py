"""The hash by which tokens and session ids are remembered, compared and looked up."""

import hashlib


def secret_hash(secret: str) -> bytes:
    """32 bytes, whatever the secret's length: no secret stays in memory for being known again, and the time that a
    comparison or look-up takes says nothing about one.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
