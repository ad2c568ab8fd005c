"""Topics and cursors as brokers keep them: entries in ledgers, what each subscription has acked, what is stored of it.

Of a cursor two versions are kept, the broker's in memory and the stored one: a broker that is killed forgets what lies
between, and storing cuts off what is beyond a number of ranges of acks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.protocol.frames import entry_metadata

Place = tuple[int, int]
"""Ledger and entry."""


class Entry(NamedTuple):
    """One stored unit."""

    place: Place
    raw: bytes
    messages: int
    publish_ms: int


@dataclass
class CursorState:
    """Everything below the number `first` is acked, and the numbers in `acked`."""

    first: int
    acked: set[int] = field(default_factory=set)
    properties: dict[str, int] = field(default_factory=dict)

    def copy(self, ranges: int | None = None) -> CursorState:
        """What is stored of it: no more than so many ranges."""
        kept = sorted(self.acked)
        if ranges is not None:
            begins = [number for number in kept if number - 1 not in self.acked]
            if len(begins) > ranges:
                kept = [number for number in kept if number < begins[ranges]]
        return CursorState(self.first, set(kept), dict(self.properties))

    def advance(self) -> None:
        """Join what is acked in one piece with what is below."""
        while self.first in self.acked:
            self.acked.remove(self.first)
            self.first += 1


class Cursor:
    """A durable subscription's.

    It has a ledger of its own, made when it first moves after it was loaded. Until then its properties stay as they
    were, and of those that come meanwhile the last count: acks of single entries come with the old ones.
    """

    def __init__(self, first: int) -> None:
        """From an entry on; stored."""
        self.state = CursorState(first)
        self.stored = self.state.copy()
        self.coming: dict[str, int] | None = None
        """Properties that count once the cursor has a ledger; None when none wait for it."""
        self._has_ledger = False

    def ack(self, number: int) -> None:
        """One entry."""
        first = self.state.first
        if number >= first:
            self.state.acked.add(number)
            self.state.advance()
            if self.state.first > first and not self._has_ledger:
                self.coming = dict(self.state.properties)

    def ack_upto(self, number: int, properties: dict[str, int]) -> None:
        """Everything up to an entry; the properties become the cursor's."""
        if number + 1 < self.state.first:
            return
        self.state.first = number + 1
        self.state.acked = {each for each in self.state.acked if each > number}
        if self._has_ledger:
            self.state.properties = dict(properties)
        else:
            self.coming = dict(properties)
        self.state.advance()

    def open(self) -> None:
        """It has its ledger."""
        self._has_ledger = True
        if self.coming is not None:
            self.state.properties, self.coming = self.coming, None

    def reset(self, first: int) -> None:
        """Set anew, and stored at once, without properties: with the single acks above, until it is stored again."""
        self.stored = CursorState(first, {number for number in self.state.acked if number >= first})
        self.state = CursorState(first)
        self.coming, self._has_ledger = None, True

    def store(self, ranges: int) -> None:
        """As brokers do now and then, and when a topic is closed in order."""
        self.open()
        self.stored = self.state.copy(ranges)

    def reload(self) -> tuple[set[int], set[int]]:
        """As it was stored; returns what is not acked any more, and what is acked again."""
        before = self.state
        self.state = self.stored.copy()
        self.state.advance()
        self.coming, self._has_ledger = None, False
        known = before.acked | set(range(self.state.first, before.first))
        forgotten = {number for number in known if number >= self.state.first and number not in self.state.acked}
        stored = self.state.acked | set(range(before.first, self.state.first))
        return forgotten, {number for number in stored if number >= before.first and number not in before.acked}


class Topic:
    """One topic partition. Entries are numbered through; what was trimmed keeps its numbers."""

    def __init__(self, name: str, first_ledger: int) -> None:
        """Empty."""
        self.name = name
        self.entries: list[Entry] = []
        self.ledgers: list[tuple[int, int]] = [(first_ledger, 0)]
        """Ledger, and the number of its first entry; the last one is open."""
        self.cursors: dict[str, Cursor] = {}
        self.trimmed = 0
        """Entries with smaller numbers are gone."""

    @property
    def end(self) -> int:
        """The number that the next entry gets."""
        return len(self.entries)

    def append(self, raw: bytes) -> Entry:
        """Store an entry."""
        ledger, base = self.ledgers[-1]
        metadata = entry_metadata(raw)
        place = (ledger, self.end - base)
        entry = Entry(place, raw, max(metadata.num_messages_in_batch, 1), metadata.publish_time)
        self.entries.append(entry)
        return entry

    def roll(self, ledger: int) -> None:
        """Close the open ledger and begin another."""
        if self.ledgers[-1][1] == self.end:
            self.ledgers[-1] = (ledger, self.end)
        else:
            self.ledgers.append((ledger, self.end))

    def trim(self) -> None:
        """Let go of closed ledgers that every cursor has passed."""
        needed = min((cursor.stored.first for cursor in self.cursors.values()), default=self.end)
        while len(self.ledgers) > 1 and self.ledgers[1][1] <= needed:
            self.trimmed = self.ledgers[1][1]
            del self.ledgers[0]

    def number_of(self, place: Place) -> int | None:
        """The number of a place, one behind the end included; None where there is nothing."""
        for at, (ledger, base) in enumerate(self.ledgers):
            end = self.ledgers[at + 1][1] if at + 1 < len(self.ledgers) else self.end
            if ledger == place[0]:
                return base + place[1] if place[1] <= end - base else None
        return None

    def first_from(self, place: Place) -> int:
        """The number of the first entry at or behind a place."""
        for at, (ledger, base) in enumerate(self.ledgers):
            end = self.ledgers[at + 1][1] if at + 1 < len(self.ledgers) else self.end
            if ledger > place[0]:
                return base
            if ledger == place[0] and place[1] < end - base:
                return base + max(place[1], 0)
        return self.end

    def place_of(self, number: int) -> Place:
        """The place of an entry; that before the first of all is entry -1."""
        if number >= self.trimmed and number < self.end:
            return self.entries[number].place
        ledger, base = next((each for each in reversed(self.ledgers) if each[1] <= number + 1), self.ledgers[0])
        return ledger, number - base if number >= base else -1

    def sizes(self) -> list[tuple[int, int]]:
        """Ledgers and how many entries each has."""
        ends = [base for _, base in self.ledgers[1:]] + [self.end]
        return [(ledger, end - base) for (ledger, base), end in zip(self.ledgers, ends, strict=True)]

    def ranges_of(self, cursor: Cursor) -> str:
        """Single acks as `internalStats` writes them: open below, closed above, within one ledger."""
        found: list[list[Place]] = []
        for number in sorted(cursor.state.acked):
            place = self.place_of(number)
            if found and found[-1][1] == (place[0], place[1] - 1):
                found[-1][1] = place
            else:
                found.append([(place[0], place[1] - 1), place])
        return "[" + ",".join(f"({a}:{b}..{c}:{d}]" for (a, b), (c, d) in found) + "]"
