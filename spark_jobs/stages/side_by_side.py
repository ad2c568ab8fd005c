"""Several ranges read at the same time: what a task waits for is the broker, not itself."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence

from bridge.ledgers.bookies.layout import Layout
from spark_jobs import limits
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.sources import Portion, read_portions
from spark_jobs.ledgers.stats import LedgerRange

Read = tuple[int, Portion | None]
_UNKNOWN: Layout = "it is not known where the ledger lies"


def read_ranges(
    access: ClusterAccess, topic: str, ranges: Sequence[LedgerRange], layouts: Mapping[int, Layout]
) -> Iterator[Read]:
    """Yield (place of the range, some of its entries); None when the range is through. `layouts`: of their ledgers.

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
            for portion in read_portions(access, topic, wanted, layouts.get(wanted.ledger, _UNKNOWN)):
                if not put((place, portion)):
                    return
            put((place, None))
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
            left -= item[1] is None
            yield item
    finally:
        ended.set()
        for thread in threads:
            thread.join(limits.REQUEST_TIMEOUT_S)
