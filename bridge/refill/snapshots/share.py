"""What all topic partitions of a bridge share for their snapshots: the setting, threads, and pauses in them.

What is written comes from one thread: topics take turns. Two more read. A folder that does not answer keeps them, and
nothing else: the event loop waits for them with a bound, and deliveries not at all.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from bridge.clock import RandBits
from tracker.snapshots.source import Abandoned

T = TypeVar("T")

ENDS_WITHIN_S = 1.0
"""A thread that is told to end has read a few entries by then; one that waits for a disk is left alone."""
REST_AFTER_S = 0.002
"""Work of a thread before it rests as long as it worked: deliveries have half a processor's time left, on any."""


class Pauses:
    """Of one thread: gives way, rests, and ends it when that is wanted."""

    def __init__(self) -> None:
        """Begin to count."""
        self._ended = threading.Event()
        self._since_s = time.perf_counter()

    def __call__(self) -> None:
        """Let others run. Raises Abandoned."""
        os.sched_yield()
        worked_s = time.perf_counter() - self._since_s
        if worked_s > REST_AFTER_S:
            self._ended.wait(min(worked_s, 0.05))
            self._since_s = time.perf_counter()
        if self._ended.is_set():
            raise Abandoned

    def end(self) -> None:
        """Have the thread end at its next pause."""
        self._ended.set()


class SnapshotShare:
    """One per bridge that is given a folder."""

    def __init__(self, shared: Path, interval_ms: int, local: Path, randbits: RandBits) -> None:
        """`local`: a folder on the disk of the index, for files on their way; what is in it is of an earlier run."""
        self.shared = shared
        self.interval_ms = interval_ms
        self._local = local
        self.turn = asyncio.Lock()
        """Held by the topic partition that writes one: what is begun is not to wait for a thread."""
        self._randbits = randbits
        shutil.rmtree(local, ignore_errors=True)
        self._writing = ThreadPoolExecutor(1, "snapshot-write")
        self._reading = ThreadPoolExecutor(2, "snapshot-read")

    def folder(self) -> Path:
        """A new one for files on their way. Raises OSError."""
        self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=self._local))

    def discard(self, folder: Path) -> None:
        """Have a folder of `folder` removed soon."""
        with contextlib.suppress(RuntimeError):  # closed: the next run does it
            self._reading.submit(shutil.rmtree, folder, True)

    def new_name(self) -> str:
        """As no files begin."""
        return f"{self._randbits(128):032x}"

    async def write(self, work: Callable[[Pauses], T]) -> T:
        """Do something in the thread that writes."""
        return await _in_thread(self._writing, work)

    async def read(self, work: Callable[[Pauses], T]) -> T:
        """Do something in a thread that reads."""
        return await _in_thread(self._reading, work)

    def close(self) -> None:
        """No more is begun."""
        for threads in (self._writing, self._reading):
            threads.shutdown(wait=False, cancel_futures=True)


async def _in_thread(threads: ThreadPoolExecutor, work: Callable[[Pauses], T]) -> T:
    """Cancelled, it has the thread end first, which may be reading from a store that is about to be closed."""
    pauses = Pauses()
    running = asyncio.get_running_loop().run_in_executor(threads, work, pauses)
    running.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, whoever waits
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        pauses.end()
        if not running.cancel():
            await asyncio.wait({running}, timeout=ENDS_WITHIN_S)
        raise
