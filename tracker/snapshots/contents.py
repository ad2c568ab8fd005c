"""What a snapshot says: which files it consists of, what they are complete for, and how far subscriptions were.

Its tables are those of a bulk load. Its views are the index's own as of its end, for the entries that were dropped
before are acked in them, and nowhere else.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from pathlib import PurePath
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tracker.bulk.files import BulkError, Manifest, TableFile
from tracker.position import Position
from tracker.views.ack_set import AckSet

SNAPSHOT_FORMAT: Final = 1
LOAD_PREFIX: Final = "snapshot-"
"""What the ids of their bulk loads begin with, so that nobody takes them for another's."""


class ViewCopy(NamedTuple):
    """A subscription's view: all that acks of dropped entries are known by."""

    name: str
    covered: bool
    history: int
    acks: AckSet


class _StoredView(BaseModel):
    name: str
    covered: bool
    history: int
    mark_delete: tuple[int, int]
    acks: list[tuple[int, str]]


_VIEWS = TypeAdapter(list[_StoredView])


class Snapshot(BaseModel):
    """Complete for positions above `load.after` up to `load.upto`, but for what everybody in `views` had acked."""

    model_config = ConfigDict(frozen=True)

    format: int = SNAPSHOT_FORMAT
    identity: int
    made_at_ms: int
    dropped_number: int
    views: TableFile
    load: Manifest

    @property
    def upto(self) -> Position:
        """The harvested position of the index when it was begun."""
        return Position(*self.load.upto)

    @property
    def after(self) -> Position:
        """The index's floor."""
        return Position(*self.load.after)

    @property
    def entries(self) -> int:
        """How many entries there are, some of them acked by everybody."""
        return self.load.entries

    @property
    def files(self) -> list[TableFile]:
        """All of them but the manifest itself."""
        load = self.load
        return [
            self.views,
            *load.positions,
            *(file for group in load.groups for file in (group.partitions, *group.files)),
        ]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    def encode(self) -> bytes:
        """Return the manifest: a checksum, then JSON."""
        body = self.model_dump_json().encode()
        return b"%08x\n" % zlib.crc32(body) + body

    @classmethod
    def decode(cls, data: bytes) -> Snapshot:
        """Read what `encode` returned; raises BulkError saying what is wrong."""
        head, _, body = data.partition(b"\n")
        if head != b"%08x" % zlib.crc32(body):
            raise BulkError("the manifest of the snapshot is damaged")
        try:
            told = json.loads(body).get("format")
            if told != SNAPSHOT_FORMAT:
                raise BulkError(f"the snapshot has format {told}, this version reads {SNAPSHOT_FORMAT}")
            snapshot = cls.model_validate_json(body)
        except (ValidationError, ValueError, AttributeError) as error:
            raise BulkError(f"not the manifest of a snapshot: {error}") from error
        for file in snapshot.files:
            if PurePath(file.name).name != file.name:
                raise BulkError(f"the snapshot names a file outside of its folder: {file.name!r}")
        if not snapshot.load.id.startswith(LOAD_PREFIX):
            raise BulkError(f"not the load of a snapshot: {snapshot.load.id!r}")
        return snapshot


def encode_views(views: list[ViewCopy]) -> bytes:
    """Return the stored form of views."""
    stored = [
        _StoredView(
            name=view.name,
            covered=view.covered,
            history=view.history,
            mark_delete=view.acks.mark_delete_position,
            acks=[(ledger, b64encode(record).decode()) for ledger, record in view.acks.records()],
        )
        for view in views
    ]
    return _VIEWS.dump_json(stored)


def decode_views(data: bytes) -> list[ViewCopy]:
    """Read what `encode_views` returned; raises BulkError."""
    try:
        return [
            ViewCopy(
                one.name,
                one.covered,
                one.history,
                AckSet.load(Position(*one.mark_delete), [(ledger, b64decode(record)) for ledger, record in one.acks]),
            )
            for one in _VIEWS.validate_json(data)
        ]
    except (ValidationError, ValueError) as error:
        raise BulkError(f"not the views of a snapshot: {error}") from error
