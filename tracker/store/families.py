"""Which column family a time partition's entries are in: one as long as all is well, two while damage is dealt with.

A file that cannot be read any more stays where it is: RocksDB offers no way to take it out of a column family, and
rewriting it in the background would fail again and again. So a damaged family is left as it is: what is new goes to the
other family, what can be read is moved there, a time partition at a time, and when nothing is left the damaged family
is dropped whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracker.store.database import TopicFamily
from tracker.store.records import TopicKeys, number_of
from tracker.store.store import Store


class EntryFamilies:
    """The column families of one topic."""

    def __init__(self, store: Store, topic: str, keys: TopicKeys, second: bool) -> None:
        """Open the one in use, `second` or not, and the other if the one in use is damaged. Raises StoreError."""
        self.second = second
        self._store = store
        self._topic = topic
        self._keys = keys
        self.main = store.open_family(topic, second)
        self.other: TopicFamily | None = None
        self._in_other: set[int] = set()
        if store.is_damaged(topic, second):
            self.other = store.open_family(topic, not second)
            self.load()

    @property
    def damaged(self) -> bool:
        """Whether the family in use is being left."""
        return self.other is not None

    def load(self) -> None:
        """Read again which partitions are in the other family."""
        self._in_other = {number_of(key) for key, _ in self._store.records(self._keys.moved)}

    def all(self) -> Iterator[TopicFamily]:
        """Iterate over the families in use."""
        yield self.main
        if self.other is not None:
            yield self.other

    def of(self, number: int) -> TopicFamily:
        """Return the family of a time partition's entries."""
        return self.other if self.other is not None and number in self._in_other else self.main

    def is_moved(self, number: int) -> bool:
        """Tell whether a partition is out of the damaged family."""
        return number in self._in_other

    def leave_main(self) -> None:
        """Stop changing the family in use: it is damaged. Raises StoreError."""
        if self.other is None:
            # What is there from an earlier time is not of this one.
            self._store.drop_family(self._topic, not self.second)
            other = self._store.open_family(self._topic, not self.second)
            self._store.set_damaged(self._topic, self.second)
            self.other = other

    def stage_moves(self, batch: Any, numbers: set[int]) -> None:
        """Put into a batch that partitions are in the other family; call `moved` once it is written."""
        for number in numbers:
            batch.put(self._keys.move(number), b"")

    def moved(self, numbers: set[int]) -> None:
        """Take over what `stage_moves` put in a batch that is written now."""
        self._in_other |= numbers

    def stage_switch(self, batch: Any) -> None:
        """Put into a batch that the other family is the one in use; call `switched` once it is written."""
        batch.delete_range(self._keys.moved, self._keys.moved + b"\xff")

    def switched(self) -> None:
        """Drop the damaged family: nothing is left in it. Raises StoreError; it is dropped at the next open then."""
        assert self.other is not None
        self.main, self.other = self.other, None
        self._in_other.clear()
        self.second = not self.second
        self._store.drop_family(self._topic, not self.second)
