"""Reading one range of a ledger, from the bookies where that can be done, else through the broker."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import NamedTuple

from bridge.ledgers.bookies.errors import BookieError
from bridge.ledgers.bookies.layout import Layout, LedgerLayout
from bridge.ledgers.bookies.read_from import ReadFrom
from bridge.protocol.entries import is_of_transaction
from spark_jobs import limits
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.admin import topic_state
from spark_jobs.ledgers.bookies import Bookies
from spark_jobs.ledgers.entry import LedgerEntry, ledger_entry
from spark_jobs.ledgers.range_reader import check_may_read, read_range
from spark_jobs.ledgers.stats import LedgerRange, TopicState


class OnlyTheBrokerKnows(Exception):
    """Whether an entry counts: that of a transaction does if it was committed."""


class Portion(NamedTuple):
    """Some entries of a range. `instead`: why the broker gave them, not the bookies; None when that was wanted."""

    entries: list[LedgerEntry]
    from_bookies: bool
    instead: str | None = None


class Rest(NamedTuple):
    """What of a range is left to the broker, and why, if the bookies were wanted."""

    wanted: LedgerRange
    instead: str | None


def state_to_read(access: ClusterAccess, topic: str) -> TopicState:
    """Return what there is to read, and where it lies, for a role that may read it. Raises LedgerReadError."""
    if access.read_from is ReadFrom.broker:
        return topic_state(access, topic)
    state = topic_state(access, topic, layouts=True)
    check_may_read(access, topic)
    return state


def read_from_bookies(
    access: ClusterAccess, topic: str, wanted: LedgerRange, layout: Layout
) -> Generator[Portion, None, Rest | None]:
    """Yield the entries of a range in order, some at a time, as far as they are to be read there and can be.

    Without records of the broker's own. Raises LedgerReadError.
    """
    if access.read_from is ReadFrom.broker:
        return Rest(wanted, None)
    if access.read_from is ReadFrom.bookies:
        yield from _persistently(access, topic, wanted, layout)
        return None
    if isinstance(layout, str):
        return Rest(wanted, layout)
    first = wanted.first
    try:
        with closing(_read(wanted, layout)) as reads:
            for next_one, entries in reads:
                first = next_one
                if entries:
                    yield Portion(entries, from_bookies=True)
    except (BookieError, OnlyTheBrokerKnows) as error:
        return Rest(wanted._replace(first=first), str(error))
    return None


def read_rest(access: ClusterAccess, topic: str, rest: Rest) -> Iterator[Portion]:
    """Yield what is left to the broker. Raises LedgerReadError."""
    if rest.wanted.first <= rest.wanted.last:
        for entries in read_range(access, topic, rest.wanted):
            yield Portion(entries, from_bookies=False, instead=rest.instead)


def _persistently(access: ClusterAccess, topic: str, wanted: LedgerRange, layout: Layout) -> Iterator[Portion]:
    """From the bookies only; one that is gone may come back, or others may have taken its place."""
    first = wanted.first
    deadline = time.monotonic() + limits.GIVE_UP_S
    while True:
        if isinstance(layout, str):
            raise LedgerReadError(f"{topic}: {layout}; read it with another value of read_from")
        try:
            with closing(_read(wanted._replace(first=first), layout)) as reads:
                for next_one, entries in reads:
                    first, deadline = next_one, time.monotonic() + limits.GIVE_UP_S
                    if entries:
                        yield Portion(entries, from_bookies=True)
                return
        except OnlyTheBrokerKnows as error:
            raise LedgerReadError(f"{topic}: {error}; read it with another value of read_from") from error
        except BookieError as error:
            if time.monotonic() > deadline:
                message = f"{topic}: nothing read from {wanted.ledger}:{first} on for {limits.GIVE_UP_S:g} s: {error}"
                raise LedgerReadError(message) from error
        time.sleep(limits.RETRY_S)
        known = topic_state(access, topic, layouts=True).layouts
        if wanted.ledger not in known:
            return  # trimmed
        layout = known[wanted.ledger]


def _read(wanted: LedgerRange, layout: LedgerLayout) -> Generator[tuple[int, list[LedgerEntry]], None, None]:
    """Yield (the entry that comes next, some entries) to the end. Raises BookieError, OnlyTheBrokerKnows."""
    first = wanted.first
    with Bookies() as bookies:
        while first <= wanted.last:
            entries: list[LedgerEntry] = []
            try:
                some = bookies.read(layout, wanted.ledger, first, wanted.last)
                if first + len(some) <= wanted.last:
                    bookies.ask_ahead(layout, wanted.ledger, first + len(some), wanted.last)
                for raw in some:
                    one = ledger_entry(wanted.ledger, first, raw)
                    if _is_delivered(one):
                        entries.append(one)
                    first += 1
            except OnlyTheBrokerKnows:
                yield first, entries
                raise
            yield first, entries


def _is_delivered(entry: LedgerEntry) -> bool:
    """Tell whether it is a message, and not a record of the broker's own. Raises OnlyTheBrokerKnows.

    Source: `Markers.isServerOnlyMarker`, `AbstractBaseDispatcher.filterEntriesForConsumer`.
    """
    metadata = entry.metadata
    if metadata is None:
        return True
    if metadata.HasField("marker_type"):
        return False
    if is_of_transaction(metadata):
        raise OnlyTheBrokerKnows(f"{entry.ledger}:{entry.entry} is of a transaction")
    return True
