"""The views of a topic and their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tracker.errors import StoreError
from tracker.keys import KEY_LENGTH
from tracker.partitions.table import PartitionTable
from tracker.store.records import StoredView, TopicKeys, number_of
from tracker.store.store import Store
from tracker.views.ack_set import AckSet
from tracker.views.view import SubscriptionView


class ViewRecords:
    """Views by subscription, loaded from the store and written back when they changed."""

    def __init__(self, store: Store, keys: TopicKeys, table: PartitionTable, late_keys_max: int) -> None:
        """Load what is stored."""
        self.by_name: dict[str, SubscriptionView] = {}
        self._store = store
        self._keys = keys
        self._width = table.width_ms
        self._late_keys_max = late_keys_max
        self._stored: dict[str, bytes] = {}
        self._expedited: dict[str, bytes] = {}
        for key, record in store.records(keys.views):
            name = key[len(keys.views) :].decode()
            self.by_name[name] = self._load(name, record, table)
            self._stored[name] = record

    def get_or_create(self, subscription: str) -> SubscriptionView:
        """Return a view, storing it when it is new."""
        known = self.by_name.get(subscription)
        if known is not None:
            return known
        view = SubscriptionView(subscription, self._width, AckSet(), self._late_keys_max)
        record = _record(view)
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
        batch.delete(self._keys.expedited(subscription))
        for prefix in (self._keys.acks(subscription), self._keys.counts(subscription)):
            # A number follows the prefix, eight bytes of which the first is below 0x80.
            batch.delete_range(prefix, prefix + b"\xff")
        self._store.write(batch)
        del self.by_name[subscription]
        del self._stored[subscription]
        self._expedited.pop(subscription, None)

    def persist(self, views: Iterable[SubscriptionView]) -> int:
        """Write what changed in views since the last call, in one batch; return the number of records."""
        batch = self._store.new_batch()
        changed: dict[str, bytes] = {}
        staged: list[tuple[SubscriptionView, list[int], set[int], bytes]] = []
        for view in views:
            name, record = view.name, _record(view)
            if record != self._stored[name]:
                changed[name] = record
                batch.put(self._keys.view(name), record)
            staged.append(
                (
                    view,
                    self._stage_acks(batch, view),
                    self._stage_counts(batch, view),
                    self._stage_expedited(batch, view),
                )
            )
        count = len(batch)
        if count:
            try:
                self._store.write(batch)
            except StoreError:
                for view, ledgers, _, _ in staged:
                    view.acks.mark_dirty(ledgers)
                raise
            self._stored.update(changed)
            for view, _, pages, expedited in staged:
                view.was_reset = False
                view.counter.dirty -= pages
                self._expedited[view.name] = expedited
        return count

    def note_dispatching(self, view: SubscriptionView, until_ms: int) -> None:
        """Store that a view's entries may be handed to consumers up to a time. Raises StoreError."""
        record = StoredView.decode(self._stored[view.name])._replace(dispatched_until_ms=until_ms).encode()
        view.dispatched_until_ms = until_ms
        batch = self._store.new_batch()
        batch.put(self._keys.view(view.name), record)
        self._store.write(batch)
        self._stored[view.name] = record

    def stage_uncounted(self, batch: Any, views: Iterable[SubscriptionView]) -> dict[str, bytes]:
        """Note in a batch that what is stored of the views' counters does not include all acked entries any more.

        Returns what to pass to `staged_uncounted` once the batch is written.
        """
        changed: dict[str, bytes] = {}
        for view in views:
            stored = StoredView.decode(self._stored[view.name])
            if stored.counted:
                changed[view.name] = stored._replace(counted=False).encode()
                batch.put(self._keys.view(view.name), changed[view.name])
        return changed

    def staged_uncounted(self, changed: dict[str, bytes]) -> None:
        """Take over what `stage_uncounted` put in a batch that is written now."""
        self._stored.update(changed)

    def _load(self, name: str, record: bytes, table: PartitionTable) -> SubscriptionView:
        stored = StoredView.decode(record)
        acks = AckSet.load(stored.mark_delete, self._numbered_records(self._keys.acks(name)))
        view = SubscriptionView(name, self._width, acks, self._late_keys_max, stored.covered)
        view.dispatched_until_ms = stored.dispatched_until_ms
        view.history = stored.history
        for page_number, counts in self._numbered_records(self._keys.counts(name)):
            view.counter.load(page_number, counts, table)
        if not stored.counted:
            view.counter.recount(acks)
        expedited = dict(self._store.records(self._keys.expedited(name))).get(self._keys.expedited(name), b"")
        for at in range(0, len(expedited), KEY_LENGTH):
            view.expedite(expedited[at : at + KEY_LENGTH])
        self._expedited[name] = expedited
        return view

    def _stage_expedited(self, batch: Any, view: SubscriptionView) -> bytes:
        expedited = b"".join(view.expedited)
        if expedited != self._expedited.get(view.name, b""):
            batch.put(self._keys.expedited(view.name), expedited)
        return expedited

    def _stage_counts(self, batch: Any, view: SubscriptionView) -> set[int]:
        counter = view.counter
        if not counter.settled:
            return set()
        pages = set(counter.dirty)
        for page_number in pages:
            key, record = self._keys.count(view.name, page_number), counter.record(page_number)
            if record is None:
                batch.delete(key)
            else:
                batch.put(key, record)
        return pages

    def _stage_acks(self, batch: Any, view: SubscriptionView) -> list[int]:
        records = view.acks.take_dirty()
        for ledger, record in records:
            key = self._keys.ack(view.name, ledger)
            if record is None:
                batch.delete(key)
            else:
                batch.put(key, record)
        return [ledger for ledger, _ in records]

    def _numbered_records(self, prefix: bytes) -> Iterator[tuple[int, bytes]]:
        for key, record in self._store.records(prefix):
            yield number_of(key), record


def _record(view: SubscriptionView) -> bytes:
    settled, until_ms = view.counter.settled, view.dispatched_until_ms
    return StoredView(view.covered, view.mark_delete_position, settled, until_ms, view.history).encode()
