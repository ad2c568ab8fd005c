"""The views of a topic and their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracker.ack_set import AckSet
from tracker.records import TopicKeys, decode_view, encode_view, number_of
from tracker.store import Store, StoreError
from tracker.view import SubscriptionView


class ViewRecords:
    """Views by subscription, loaded from the store and written back when they changed."""

    def __init__(self, store: Store, keys: TopicKeys, partition_width_ms: int) -> None:
        """Load what is stored."""
        self.by_name: dict[str, SubscriptionView] = {}
        self._store = store
        self._keys = keys
        self._width = partition_width_ms
        self._stored: dict[str, bytes] = {}
        for key, record in store.records(keys.views):
            name = key[len(keys.views) :].decode()
            covered, mark_delete = decode_view(record)
            acks = AckSet.load(mark_delete, self._ack_records(name))
            self.by_name[name] = SubscriptionView(name, partition_width_ms, acks, covered)
            self._stored[name] = record

    def get_or_create(self, subscription: str) -> SubscriptionView:
        """Return a view, storing it when it is new."""
        known = self.by_name.get(subscription)
        if known is not None:
            return known
        view = SubscriptionView(subscription, self._width, AckSet())
        record = encode_view(view.covered, view.mark_delete_position)
        batch = self._store.new_batch()
        batch.put(self._keys.view(subscription), record)
        self._store.write(batch)
        self.by_name[subscription] = view
        self._stored[subscription] = record
        return view

    def remove(self, subscription: str) -> None:
        """Forget a view and its acks."""
        if subscription not in self.by_name:
            return
        batch = self._store.new_batch()
        batch.delete(self._keys.view(subscription))
        prefix = self._keys.acks(subscription)
        # A ledger follows the prefix, eight bytes of which the first is below 0x80.
        batch.delete_range(prefix, prefix + b"\xff")
        self._store.write(batch)
        del self.by_name[subscription]
        del self._stored[subscription]

    def persist(self) -> int:
        """Write what changed since the last call, in one batch; return the number of records."""
        batch = self._store.new_batch()
        changed: dict[str, bytes] = {}
        dirty: list[tuple[AckSet, list[int]]] = []
        for name, view in self.by_name.items():
            record = encode_view(view.covered, view.mark_delete_position)
            if record != self._stored[name]:
                changed[name] = record
                batch.put(self._keys.view(name), record)
            dirty.append((view.acks, self._stage_acks(batch, view)))
        count = len(batch)
        if count:
            try:
                self._store.write(batch)
            except StoreError:
                for acks, ledgers in dirty:
                    acks.mark_dirty(ledgers)
                raise
            self._stored.update(changed)
        return count

    def _stage_acks(self, batch: Any, view: SubscriptionView) -> list[int]:
        records = view.acks.take_dirty()
        for ledger, record in records:
            key = self._keys.ack(view.name, ledger)
            if record is None:
                batch.delete(key)
            else:
                batch.put(key, record)
        return [ledger for ledger, _ in records]

    def _ack_records(self, subscription: str) -> Iterator[tuple[int, bytes]]:
        for key, record in self._store.records(self._keys.acks(subscription)):
            yield number_of(key), record
