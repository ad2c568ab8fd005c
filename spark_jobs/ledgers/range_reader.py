"""Reading one range of a ledger from the broker, to its end, whatever the broker does meanwhile."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing

from bridge.protocol import commands
from bridge.protocol.frames import Frame
from bridge.protocol.permits import Permits
from bridge.protocol.pulsar_pb2 import BaseCommand
from spark_jobs import limits
from spark_jobs.errors import LedgerReadError, NotYet
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.admin import topic_state
from spark_jobs.ledgers.connection import Connection, connect_to_owner
from spark_jobs.ledgers.entry import LedgerEntry, batch_size, ledger_entry
from spark_jobs.ledgers.stats import LedgerRange
from tracker import EARLIEST, Position

READER_NAME_PREFIX = "__delay-bridge-rebuild-"
_CONSUMER_ID = 1


def read_range(access: ClusterAccess, topic: str, wanted: LedgerRange) -> Iterator[list[LedgerEntry]]:
    """Yield the entries of a range in order, some at a time.

    Entries that are gone, because the ledger was trimmed, are left out, as are records of the broker's own. A topic
    that moves is followed. Raises LedgerReadError when it cannot be read, or nothing came for GIVE_UP_S.
    """
    after = Position(wanted.ledger, wanted.first - 1)
    last = Position(wanted.ledger, wanted.last)
    deadline = time.monotonic() + limits.GIVE_UP_S
    while after < last:
        try:
            with closing(_read_on(access, topic, after, last)) as reads:
                for entries in reads:
                    if not entries:
                        return
                    after = Position(entries[-1].ledger, entries[-1].entry)
                    deadline = time.monotonic() + limits.GIVE_UP_S
                    if inside := [one for one in entries if (one.ledger, one.entry) <= last]:
                        yield inside
                    if after >= last:
                        return
        except NotYet as error:
            if time.monotonic() > deadline:
                message = f"{topic}: nothing read behind {after} for {limits.GIVE_UP_S:g} s: {error}"
                raise LedgerReadError(message) from error
            time.sleep(limits.RETRY_S)


def check_may_read(access: ClusterAccess, topic: str) -> None:
    """Have the broker say whether this role may read a topic: who reads its ledgers elsewhere is not asked there.

    Raises LedgerReadError when it may not.
    """
    deadline = time.monotonic() + limits.GIVE_UP_S
    while True:
        try:
            with connect_to_owner(access, topic) as connection:
                _open(connection, topic, EARLIEST)
                return
        except NotYet as error:
            if time.monotonic() > deadline:
                raise LedgerReadError(f"{topic}: {error}") from error
        time.sleep(limits.RETRY_S)


def _open(connection: Connection, topic: str, after: Position) -> str:
    """Open a reader, which is given nothing yet; return the name of its subscription."""
    subscription = f"{READER_NAME_PREFIX}{uuid.uuid4().hex}"
    request_id = connection.next_request_id()
    # What lies before comes too, as the start is inclusive, and is dropped.
    connection.request(commands.subscribe_reader(topic, subscription, _CONSUMER_ID, request_id, after), request_id)
    return subscription


def _read_on(
    access: ClusterAccess, topic: str, after: Position, last: Position
) -> Generator[list[LedgerEntry], None, None]:
    """Yield what one reader gives behind a position; an empty list when there is nothing left. Raises NotYet."""
    with connect_to_owner(access, topic) as connection:
        subscription = _open(connection, topic, after)
        permits = Permits()
        _grant(connection, permits.top_up(limits.READ_PERMITS))
        while True:
            frames = connection.receive(limits.STALL_S)
            if not frames:
                if _is_past(access, topic, subscription, last):
                    yield []
                raise NotYet(f"{topic}: nothing came behind {after} for {limits.STALL_S:g} s")
            entries = []
            for frame in frames:
                if frame.type == BaseCommand.CLOSE_CONSUMER:
                    raise NotYet(f"{topic}: the broker closed the reader")
                if frame.type == BaseCommand.MESSAGE:
                    entry = _entry(frame)
                    permits.use(batch_size(entry))
                    if (entry.ledger, entry.entry) > after:
                        entries.append(entry)
            if entries:
                yield entries
                after = Position(entries[-1].ledger, entries[-1].entry)
            if permits.count <= limits.READ_PERMITS // 2:
                _grant(connection, permits.top_up(limits.READ_PERMITS))


def _is_past(access: ClusterAccess, topic: str, subscription: str, last: Position) -> bool:
    """Tell whether the broker has nothing left up to a position: it keeps its own records to itself."""
    read = topic_state(access, topic).read_positions.get(subscription)
    return read is not None and read > last


def _grant(connection: Connection, grants: list[int]) -> None:
    for permits in grants:
        connection.send(commands.flow(_CONSUMER_ID, permits))


def _entry(frame: Frame) -> LedgerEntry:
    message_id = frame.command().message.message_id
    return ledger_entry(message_id.ledgerId, message_id.entryId, frame.entry())
