"""Which bookie is asked for what, and what is made of its answers: pure. Who drives it does the input and output.

A driver sends what each `Ask` says to its bookie, and gives back as many answers as that has requests, or the
BookieError that came between; a connection on which one came is of no use any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple

from bridge.ledgers.bookies.digests import Digest
from bridge.ledgers.bookies.errors import BookieError
from bridge.ledgers.bookies.layout import Bookie, LedgerLayout
from bridge.ledgers.bookies.wire import (
    BATCH_READ_ENTRY,
    READ_ENTRY,
    Answer,
    batch_request,
    check,
    entries_in,
    entry_in,
    read_request,
)


class Ask(NamedTuple):
    """What a bookie is asked at a time: so many requests, whose answers come in any order."""

    bookie: Bookie
    requests: bytes
    answers: int


Told = list[Answer] | BookieError
Reads = Generator[Ask, Told, list[bytes]]


class EntryReads:
    """What one reader asks, one thing after the other; it remembers which bookies know batches."""

    def __init__(self, batch_entries: int, batch_bytes: int, single_reads: int) -> None:
        """`batch_entries`, `batch_bytes`: of one batch at most; `single_reads`: asked for at a time otherwise."""
        self._batch_entries = batch_entries
        self._batch_bytes = batch_bytes
        self._single_reads = single_reads
        self._in_batches: Bookie | None = None
        self._without_batches: set[Bookie] = set()

    def read(self, layout: LedgerLayout, ledger: int, first: int, last: int) -> Reads:
        """Return entries from `first` on, without gaps: at least one, at most up to `last`, as clients get them.

        Raises BookieError when no bookie gives the first one.
        """
        end = layout.end_of(first)
        if end is not None:
            last = min(last, end - 1)
        if not layout.is_striped(first):
            # Who has given a batch before comes first: its connection is there.
            for bookie in sorted(layout.bookies_of(first), key=lambda each: each != self._in_batches):
                entries = yield from self._batch(bookie, layout, ledger, first, last)
                if entries:
                    self._in_batches = bookie
                    return entries
        return (yield from self._one_by_one(layout, ledger, first, min(last, first + self._single_reads - 1)))

    def _batch(self, bookie: Bookie, layout: LedgerLayout, ledger: int, first: int, last: int) -> Reads:
        """Nothing when this bookie has not what is wanted, or cannot give it in a batch."""
        if bookie in self._without_batches:
            return []
        count = min(last - first + 1, self._batch_entries)
        told = yield Ask(bookie, batch_request(ledger, first, count, self._batch_bytes), 1)
        try:
            if isinstance(told, BookieError):
                raise told
            check(told[0], BATCH_READ_ENTRY, ledger, first)
            # It may give more than was asked for: nobody is to be told of that twice.
            return entries_in(told[0], layout.digest)[:count]
        except BookieError:
            # Those before 4.17 refuse it or close the connection. Whatever it was: entry by entry it shows.
            self._without_batches.add(bookie)
            return []

    def _one_by_one(self, layout: LedgerLayout, ledger: int, first: int, last: int) -> Reads:
        """Many reads at a time, of all bookies that have some of them; who lacks one is passed over for the next."""
        found: dict[int, bytes] = {}
        reason = BookieError(f"no bookie has {ledger}:{first}")
        for place in range(layout.write_quorum):
            missing = [entry for entry in range(first, last + 1) if entry not in found]
            for bookie, entries in _wanted(layout, place, missing):
                told = yield Ask(bookie, b"".join([read_request(ledger, each) for each in entries]), len(entries))
                some, error = _singles(told, layout.digest, ledger, entries)
                found |= some
                if error is not None and entries[0] == first and first not in found:
                    reason = BookieError(f"the bookie {bookie}: {error}")
        whole = [found[entry] for entry in _unbroken(found, first)]
        if not whole:
            raise reason
        return whole


def _singles(
    told: Told, digest: Digest, ledger: int, entries: list[int]
) -> tuple[dict[int, bytes], BookieError | None]:
    """Return what there is in the answers, and why the first of those that are missing is."""
    if isinstance(told, BookieError):
        return {}, told
    found: dict[int, bytes] = {}
    reason: BookieError | None = None
    wanted = set(entries)
    for answer in sorted(told, key=lambda each: each.entry):
        try:
            if answer.entry not in wanted:
                raise BookieError(f"it answered {answer.ledger}:{answer.entry}, which was not asked for")
            check(answer, READ_ENTRY, ledger, answer.entry)
            found[answer.entry] = entry_in(answer, digest)
        except BookieError as error:
            reason = reason or error
    return found, reason


def _wanted(layout: LedgerLayout, place: int, entries: Iterable[int]) -> Iterable[tuple[Bookie, list[int]]]:
    """Return who is to be asked for what: each entry's bookie at a place of its order."""
    wanted: defaultdict[Bookie, list[int]] = defaultdict(list)
    for entry in entries:
        bookies = layout.bookies_of(entry)
        if place < len(bookies):
            wanted[bookies[place]].append(entry)
    return wanted.items()


def _unbroken(found: dict[int, bytes], first: int) -> Iterator[int]:
    while first in found:
        yield first
        first += 1
