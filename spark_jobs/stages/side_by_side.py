"""Several ranges read at the same time: what a task waits for is the broker, not itself."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

from spark_jobs import limits
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.range_reader import LedgerEntry, read_range
from spark_jobs.ledgers.stats import LedgerRange

Read = tuple[int, list[LedgerEntry]]


def read_ranges(access: ClusterAccess, topic: str, ranges: Sequence[LedgerRange]) -> Iterator[Read]:
    """Yield (place of the range, some of its entries); an empty list when the range is through.

    The entries of one range come in order. Raises what reading any of them raises, and stops the others.
    """
    waiting: queue.Queue[Read | BaseException] = queue.Queue(limits.QUEUE_BATCHES * len(ranges))
    ended = threading.Event()

    def put(item: Read | BaseException) -> bool:
        while not ended.is_set():
            try:
                waiting.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def read(place: int, wanted: LedgerRange) -> None:
        try:
            for entries in read_range(access, topic, wanted):
                if not put((place, entries)):
                    return
            put((place, []))
        except BaseException as error:
            put(error)

    threads = [threading.Thread(target=read, args=each, daemon=True) for each in enumerate(ranges)]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            item = waiting.get()
            if isinstance(item, BaseException):
                raise item
            left -= not item[1]
            yield item
    finally:
        ended.set()
        for thread in threads:
            thread.join(limits.REQUEST_TIMEOUT_S)
