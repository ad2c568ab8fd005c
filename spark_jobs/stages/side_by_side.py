"""Several ranges read by one task: through the broker at the same time, for there a task waits for the broker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence

from bridge.ledgers.bookies.layout import Layout
from spark_jobs import limits
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.sources import Portion, Rest, read_from_bookies, read_rest
from spark_jobs.ledgers.stats import LedgerRange

Read = tuple[int, Portion | None]
_UNKNOWN: Layout = "it is not known where the ledger lies"


def read_ranges(
    access: ClusterAccess, topic: str, ranges: Sequence[LedgerRange], layouts: Mapping[int, Layout]
) -> Iterator[Read]:
    """Yield (place of the range, some of its entries); None when the range is through. `layouts`: of their ledgers.

    The entries of one range come in order. From bookies one range is read after the other: they are faster than what
    is made of the entries, and threads would only wait for each other. What is left to the broker is read side by side.
    Raises what reading any of them raises.
    """
    left: list[tuple[int, Rest]] = []
    for place, wanted in enumerate(ranges):
        reads = read_from_bookies(access, topic, wanted, layouts.get(wanted.ledger, _UNKNOWN))
        rest = yield from _at(place, reads)
        if rest is None:
            yield place, None
        else:
            left.append((place, rest))
    if left:
        yield from _side_by_side(access, topic, left)


def _at(place: int, reads: Generator[Portion, None, Rest | None]) -> Generator[Read, None, Rest | None]:
    while True:
        try:
            portion = next(reads)
        except StopIteration as done:
            rest: Rest | None = done.value
            return rest
        yield place, portion


def _side_by_side(access: ClusterAccess, topic: str, rests: Sequence[tuple[int, Rest]]) -> Iterator[Read]:
    """Read through the broker; what goes wrong with one range stops the others."""
    waiting: queue.Queue[Read | BaseException] = queue.Queue(limits.QUEUE_BATCHES * len(rests))
    ended = threading.Event()

    def put(item: Read | BaseException) -> bool:
        while not ended.is_set():
            try:
                waiting.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def read(place: int, rest: Rest) -> None:
        try:
            for portion in read_rest(access, topic, rest):
                if not put((place, portion)):
                    return
            put((place, None))
        except BaseException as error:
            put(error)

    threads = [threading.Thread(target=read, args=each, daemon=True) for each in rests]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            item = waiting.get()
            if isinstance(item, BaseException):
                raise item
            left -= item[1] is None
            yield item
    finally:
        ended.set()
        for thread in threads:
            thread.join(limits.REQUEST_TIMEOUT_S)
