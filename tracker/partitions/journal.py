"""The stored partition counters: pages written now and then, and a journal of the writes since.

A write of 500 entries may touch 500 time partitions; storing their counters each time would cost more than the entries
do. So a write only stores the keys of its position records in the journal: with them the counters can be derived again.
Pages are stored in rounds, some at a time; when a round is through, the journal before it is cleared. Opening reads the
pages and applies what the journal holds beyond them, which is bounded by the length of a round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracker.limits import IndexLimits
from tracker.partitions.page import PartitionPage
from tracker.partitions.positions import RECORD_KEY_LENGTH, DamagedRecord, PlacedEntry, PositionIndex
from tracker.partitions.table import PartitionTable
from tracker.store.records import TopicKeys, TopicRecord, number_of
from tracker.store.store import Store


class Journal:
    """Stores a partition table; `TopicIndex` writes its journal records along with the entries."""

    def __init__(self, store: Store, keys: TopicKeys, table: PartitionTable, limits: IndexLimits) -> None:
        """Use `load` on what is stored."""
        self._store = store
        self._keys = keys
        self._table = table
        self._limits = limits
        self.damaged: list[bytes] = []
        """Keys of position records that `load` could not read: what they speak of is not counted."""
        self._entries = 0
        self._writes = 0
        self._round: list[int] = []
        self._round_end: int | None = None

    @property
    def is_long(self) -> bool:
        """Whether it is time for a round, or one is under way."""
        if self._round_end is not None:
            return True
        return self._entries >= self._limits.journal_entries or self._writes >= self._limits.journal_writes

    def load(self, record: TopicRecord, positions: PositionIndex) -> None:
        """Fill the table from pages and journal."""
        table = self._table
        table.dropped_number = record.dropped_number
        for key, page in self._store.records(self._keys.pages):
            table.load(PartitionPage.decode(number_of(key), page))
        for key, written in self._store.records(self._keys.journal):
            number = number_of(key)
            record_keys = [written[at : at + RECORD_KEY_LENGTH] for at in range(0, len(written), RECORD_KEY_LENGTH)]
            placed: list[PlacedEntry] = []
            for record_key in record_keys:
                try:
                    placed += positions.record(record_key)
                except DamagedRecord:
                    self.damaged.append(record_key)
            table.add(placed, number)
            self.written(len(placed))

    def stage(self, batch: Any, number: int, record_keys: list[bytes]) -> None:
        """Put the journal record of a write into its batch."""
        batch.put(self._keys.write(number), b"".join(record_keys))

    def written(self, entries: int) -> None:
        """Note that a staged record was written."""
        self._entries += entries
        self._writes += 1

    def stage_pages(self, batch: Any, numbers: list[int], as_of: int) -> None:
        """Put pages into a batch; call `stored_pages` once it is written."""
        for number in numbers:
            page = self._table.page(number)
            if page is not None:
                batch.put(self._keys.page(number), page.encode(as_of))

    def stored_pages(self, numbers: list[int], as_of: int) -> None:
        """Note that staged pages were written."""
        for number in numbers:
            page = self._table.page(number)
            if page is not None:
                page.as_of = as_of
        self._table.dirty.difference_update(numbers)

    def store_all(self, record: TopicRecord) -> TopicRecord:
        """Store every page, so that the journal holds nothing; return the topic's record. Raises StoreError."""
        if self._round_end is not None:
            record = self.store_some(record, len(self._round))
        return self.store_some(record, len(self._table.dirty))

    def store_some(self, record: TopicRecord, limit: int) -> TopicRecord:
        """Store at most `limit` pages of a round; return the topic's record, changed when the round is through.

        Raises StoreError; the same pages are stored by the next call then.
        """
        if self._round_end is None:
            self._round, self._round_end = sorted(self._table.dirty), record.written
            self._entries = self._writes = 0
        batch, numbers = self._store.new_batch(), self._round[:limit]
        self.stage_pages(batch, numbers, record.written)
        through = len(numbers) == len(self._round)
        gone: list[int] = []
        if through:
            record = replace(record, stored=self._round_end)
            gone = self._table.empty_pages(self._round_end)
            for number in gone:
                batch.delete(self._keys.page(number))
            batch.delete_range(self._keys.journal, self._keys.write(self._round_end + 1))
            batch.put(self._keys.topic, record.encode())
        self._store.write(batch)
        self.stored_pages(numbers, record.written)
        self._round = self._round[limit:]
        if through:
            self._round_end = None
            self._table.forget(gone)
        return record
