"""Version 2 of the protocol between BookKeeper's clients and bookies, as far as reading goes.

Every frame: its length without these 4 bytes, then a header of version, operation and flags. Nothing is agreed on
before; no flag is set, so no ledger is ever fenced (source: `BookieProtoEncoding`, `BookieProtocol`).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from bridge.ledgers.bookies.digests import Digest, checked_entry
from bridge.ledgers.bookies.errors import BookieError, DamagedEntry

VERSION = 2
READ_ENTRY = 2
BATCH_READ_ENTRY = 7
FRAME_MAX = 16 * 1024 * 1024
"""Bytes. A bookie has entries of 5 MiB at most unless it was set up otherwise, and gives no more in one answer."""

ANSWER_LENGTH = 4
"""Bytes at the start of an answer from which `next_answer` tells how many there will be."""

_LENGTH = Struct(">I")
_READ = Struct(">IIqq")
_BATCH = Struct(">IIqqqiq")
_ANSWER = Struct(">IIqq")
_REQUEST_ID = Struct(">q")

_CODES = {
    1: "no such ledger",
    2: "no such entry",
    100: "bad request",
    101: "input or output failed there",
    102: "not authenticated",
    103: "another version of the protocol",
    104: "fenced",
    105: "read only",
    106: "too many requests",
}


class Answer(NamedTuple):
    """Of one request. `code`: 0 is fine. `data`: entries as stored, what a batch has in front of each included."""

    operation: int
    code: int
    ledger: int
    entry: int
    data: memoryview


def read_request(ledger: int, entry: int) -> bytes:
    """Ask for one entry."""
    return _READ.pack(20, VERSION << 24 | READ_ENTRY << 16, ledger, entry)


def batch_request(ledger: int, first: int, count: int, max_bytes: int) -> bytes:
    """Ask for entries from one on: at most so many, of so many bytes together; at least one comes.

    The request id is of no use here: one batch is asked for at a time.
    """
    return _BATCH.pack(40, VERSION << 24 | BATCH_READ_ENTRY << 16, ledger, first, 0, count, max_bytes)


def next_answer(data: memoryview) -> tuple[Answer | None, int]:
    """Return the first whole answer in `data` and how many bytes it takes; None and how many are needed for it.

    Raises BookieError when that is no answer.
    """
    if len(data) < ANSWER_LENGTH:
        return None, ANSWER_LENGTH
    (length,) = _LENGTH.unpack_from(data)
    if not _ANSWER.size <= length <= FRAME_MAX:
        raise BookieError(f"it answered with a frame of {length} bytes")
    end = 4 + length
    if len(data) < end:
        return None, end
    header, code, ledger, entry = _ANSWER.unpack_from(data, 4)
    return Answer(header >> 16 & 0xFF, code, ledger, entry, data[4 + _ANSWER.size : end]), end


def check(answer: Answer, operation: int, ledger: int, entry: int) -> None:
    """Raise BookieError, with why, unless that is what was asked for."""
    if answer.code:
        raise BookieError(f"{ledger}:{entry}: {_CODES.get(answer.code, f'code {answer.code}')}")
    if (answer.operation, answer.ledger, answer.entry) != (operation, ledger, entry):
        raise BookieError(f"it answered {answer.ledger}:{answer.entry} when asked for {ledger}:{entry}")


def entry_in(answer: Answer, digest: Digest) -> bytes:
    """Return the entry of an answer to `read_request`. Raises DamagedEntry."""
    return checked_entry(bytes(answer.data), answer.ledger, answer.entry, digest)


def entries_in(answer: Answer, digest: Digest) -> list[bytes]:
    """Return the entries of an answer to `batch_request`, one after the other, no gap. Raises DamagedEntry."""
    data = bytes(answer.data)
    ledger, entry, end = answer.ledger, answer.entry, len(data)
    entries: list[bytes] = []
    at = _REQUEST_ID.size
    while at < end:
        if at + 4 > end:
            raise DamagedEntry(f"{ledger}:{entry} ends within its length")
        (size,) = _LENGTH.unpack_from(data, at)
        at += 4
        if at + size > end:
            raise DamagedEntry(f"{ledger}:{entry} ends within its {size} bytes")
        entries.append(checked_entry(data[at : at + size], ledger, entry, digest))
        at += size
        entry += 1
    if not entries:
        raise BookieError(f"{ledger}:{entry}: an answer without entries")
    return entries
