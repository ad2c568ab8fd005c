"""A bridge whose index knows nothing of a topic partition begins with a snapshot of its former owner's.

It starts at the end of the topic, as any bridge does: new traffic first. Then the snapshot's files are taken in,
nearest due first, with rests in between. What came since the snapshot is left out, and read behind live traffic.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from bridge.ledgers.cursor_history import UNKNOWN
from bridge.refill.snapshots.folder import SnapshotFolder
from bridge.refill.snapshots.share import Pauses, SnapshotShare
from tracker import TopicIndex
from tracker.bulk.files import BulkError, TableFile
from tracker.bulk.load import BulkLoad
from tracker.snapshots.contents import Snapshot, ViewCopy, decode_views
from tracker.snapshots.source import Abandoned

log = structlog.get_logger(__name__)

FOUND_WITHIN_S = 2.0
"""A folder that does not say by then what it has is left alone: the topic is waiting to be served."""


class Found(NamedTuple):
    """A snapshot that can be begun with."""

    snapshot: Snapshot
    views: list[ViewCopy]
    folder: SnapshotFolder


async def find(share: SnapshotShare | None, topic: str, identity: int) -> Found | None:
    """The newest snapshot of a topic of this identity; None without one, or where it is not to be used."""
    if share is None or identity == UNKNOWN:
        return None
    folder = SnapshotFolder(share.shared, topic, identity)

    def look(_: Pauses) -> Found | None:
        snapshot = folder.newest()
        return None if snapshot is None else Found(snapshot, decode_views(folder.read(snapshot.views)), folder)

    try:
        async with asyncio.timeout(FOUND_WITHIN_S):
            return await share.read(look)
    except TimeoutError:
        reason = f"the folder does not answer within {FOUND_WITHIN_S:.0f} s"
    except (OSError, BulkError) as error:
        reason = str(error)
    log.warning("the snapshot of the index is not used", topic=topic, reason=reason)
    return None


class Restore:
    """Of one snapshot into one index that has begun with it."""

    def __init__(
        self,
        topic: str,
        index: TopicIndex,
        share: SnapshotShare,
        found: Found,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Nothing is loaded yet; `rest`: so many seconds, between steps that hold the thread."""
        self._topic = topic
        self._index = index
        self._share = share
        self._found = found
        self._rest = rest

    async def run(self, on_loaded: Callable[[], None]) -> bool:
        """Load it; return whether the index has all of it. Whatever is in stays. Raises StoreError."""
        began_s = time.perf_counter()
        snapshot = self._found.snapshot
        local = await self._share.read(lambda _: self._share.folder())
        try:
            await self._load(local, on_loaded)
        except (OSError, BulkError, Abandoned) as error:
            log.warning("the snapshot of the index is not used", topic=self._topic, reason=str(error))
            self._index.bulk.abandon(snapshot.load.id)
            return False
        finally:
            self._share.discard(local)
        log.info(
            "the index is loaded from a snapshot, only the rest is read",
            topic=self._topic,
            entries=snapshot.entries,
            made_at_ms=snapshot.made_at_ms,
            harvested_position=str(snapshot.upto),
            seconds=round(time.perf_counter() - began_s, 1),
        )
        return True

    async def _load(self, local: Path, on_loaded: Callable[[], None]) -> None:
        snapshot, views, _ = self._found
        await self._share.read(lambda _: snapshot.load.write(local))
        loading = await self._share.read(lambda _: BulkLoad(self._index.bulk, local, os.sched_yield))
        await self._fetch(snapshot.load.positions, local)
        await self._share.read(lambda _: loading.verify_positions())
        loading.load_positions()
        for number, group in loading.groups():
            await self._fetch([group.partitions, *group.files], local)
            await self._share.read(lambda _, group=group: loading.verify(group))  # type: ignore[misc]
            for rest_s in loading.load_in_steps(number, group, time.perf_counter):
                await self._rest(rest_s)
            on_loaded()
        self._index.restore.claim(snapshot, views)
        loading.finish()
        on_loaded()

    async def _fetch(self, files: list[TableFile], local: Path) -> None:
        def copy(pauses: Pauses) -> None:
            for file in files:
                self._found.folder.fetch(file, local, pauses)

        await self._share.read(copy)
