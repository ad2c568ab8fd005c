"""What operators did: who, what, when, one JSON object a line, kept in a few files of the data directory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import structlog

from bridge import answers
from bridge.limits import OperatorLimits
from tracker.store.durable_files import sync_folder

log = structlog.get_logger(__name__)

NAME = "actions.log"
_BLOCK_BYTES = 64 * 1024


class ActionLog:
    """`actions.log` is appended to; when it is full it becomes `actions.log.1`, that `actions.log.2`, and so on."""

    def __init__(self, folder: Path, limits: OperatorLimits) -> None:
        """Touch nothing before the first use."""
        self.failure: str | None = None
        """Why the last act could not be noted; None when it was."""
        self._file = folder / NAME
        self._limits = limits
        self._lock = threading.Lock()
        self._next_id: int | None = None

    async def note(
        self,
        actor: str,
        peer: str,
        action: str,
        topic: str | None,
        *,
        subscription: str | None = None,
        positions: Sequence[str] = (),
        outcomes: Mapping[str, int] | None = None,
    ) -> None:
        """Note an act, on disk when this returns. One that cannot be noted was done all the same: that is logged."""
        most = self._limits.action_positions_max
        record: answers.Act = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "actor": actor,
            "peer": peer,
            "action": action,
            "topic": topic,
            "subscription": subscription,
            "positions": list(positions) if len(positions) <= most else len(positions),
            "outcomes": dict(outcomes or {}),
        }
        try:
            await asyncio.to_thread(self._append, record)
        except OSError as error:
            self.failure = f"cannot write {self._file}: {error.strerror or error}"
            log.error("an act could not be noted", reason=self.failure, **record)
        else:
            self.failure = None

    async def latest(self, limit: int, before: int | None = None) -> list[answers.Action]:
        """Return the last acts, newest first; those before the one with an id. Raises OSError."""
        return await asyncio.to_thread(self._latest, limit, before)

    def _append(self, record: answers.Act) -> None:
        with self._lock:
            if self._next_id is None:
                last = next(self._records(), None)
                self._next_id = 1 if last is None else last["id"] + 1
            numbered: answers.Action = {"id": self._next_id, **record}
            line = json.dumps(numbered).encode() + b"\n"
            self._rotate(len(line))
            fresh = not self._file.exists()
            descriptor = os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                _append_line(descriptor, line)
            finally:
                os.close(descriptor)
            if fresh:
                sync_folder(self._file.parent)
            self._next_id += 1

    def _rotate(self, more: int) -> None:
        try:
            size = self._file.stat().st_size
        except FileNotFoundError:
            return
        if size + more <= self._limits.action_log_bytes:
            return
        files = self._files()
        for older, newer in zip(reversed(files[1:]), reversed(files[:-1]), strict=True):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        sync_folder(self._file.parent)

    def _latest(self, limit: int, before: int | None) -> list[answers.Action]:
        found: list[answers.Action] = []
        with self._lock:
            for record in self._records():
                if len(found) >= limit:
                    break
                if before is None or record["id"] < before:
                    found.append(record)
        return found

    def _records(self) -> Iterator[answers.Action]:
        """Newest first, without what is damaged."""
        for file in self._files():
            for line in _lines_backwards(file):
                record = _parse(line)
                if record is not None:
                    yield record

    def _files(self) -> list[Path]:
        """Newest first, whether they are there or not."""
        older = (self._file.with_name(f"{NAME}.{number}") for number in range(1, self._limits.action_log_files))
        return [self._file, *older]


def _parse(line: bytes) -> answers.Action | None:
    try:
        record: Any = json.loads(line)
    except ValueError:
        return None
    return cast(answers.Action, record) if isinstance(record, dict) and isinstance(record.get("id"), int) else None


def _lines_backwards(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        end, rest = file.seek(0, os.SEEK_END), b""
        while end > 0:
            start = max(end - _BLOCK_BYTES, 0)
            file.seek(start)
            first, *lines = (file.read(end - start) + rest).split(b"\n")
            yield from (line for line in reversed(lines) if line)
            end, rest = start, first
        if rest:
            yield rest


def _append_line(descriptor: int, line: bytes) -> None:
    end = os.fstat(descriptor).st_size
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        line = b"\n" + line  # what a crash left of the last one stands by itself
    left = memoryview(line)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        # Half a line is of no use, and would take room that the next one needs.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        raise
