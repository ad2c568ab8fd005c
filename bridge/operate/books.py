"""The books of the subscriptions of an owned topic partition: what was published, and where it is.

Two ways to keep them. By counters: what is acked, in hand and still to come is known entry by entry, and of what waits
in the index its number; that costs bitmaps and no read. One by one: every key of the index is looked at too, and what
is in no place, or in two, is listed. Whatever does not close by counters is looked at one by one, and what is found
missing is asked of the broker: markers, and messages of aborted transactions, it gives to nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import structlog

from bridge import answers
from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.connection import BrokerConnection
from bridge.broker.fetch import fetch_entries
from bridge.dispatch.outlet import Hands
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.intake.given import Given
from bridge.ledgers.internal_stats import LedgerState
from bridge.limits import OperatorLimits
from bridge.operate.balance import Found, Index, Places, Snapshot, Taken, by_counters, gaps_below, one_by_one
from bridge.operate.nobodys import Nobodys
from tracker import EARLIEST, Position, StoreError, SubscriptionView, TopicIndex
from tracker.audit import all_keys
from tracker.keys import KEY
from tracker.position_set import PositionSet

log = structlog.get_logger(__name__)

LEDGERS_AT_ONCE = 2
POSITIONS_AT_ONCE = 2_000
"""Some 2 ms each."""


class Unknown(Exception):
    """The books cannot be closed at the moment; says why."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Where the entries of a topic are for a subscription, as of a moment (epoch ms), up to a position.

    `unknown`: why that cannot be said; `missing` and `twice` are None where positions were not looked at.
    """

    as_of_ms: int
    upto: Position | None = None
    places: Places | None = None
    unknown: str | None = None
    by_counters: int | None = None
    """The difference by the counters alone; None where these do not tell."""
    missing: tuple[Position, ...] | None = None
    twice: tuple[Position, ...] | None = None

    @property
    def difference(self) -> int | None:
        """None where it is not known."""
        return None if self.places is None else self.places.difference

    @property
    def differing(self) -> int | None:
        """Entries that are in no place or in several, as far as was looked; None where nothing is known."""
        if self.difference is None:
            return None
        return max(abs(self.difference), abs(self.by_counters or 0)) + len(self.twice or ())

    @property
    def closes(self) -> bool:
        """Whether each entry is in one place, as far as was looked."""
        return self.differing == 0

    def answer(self) -> answers.Books:
        """Return what REST says."""
        places = self.places
        return {
            "asOf": self.as_of_ms,
            "upTo": None if self.upto is None else str(self.upto),
            "unknown": self.unknown,
            "places": None
            if places is None
            else {
                "published": places.published,
                "acked": places.acked,
                "cancelled": places.cancelled,
                "expired": places.expired,
                "inFlight": places.in_flight,
                "toRedeliver": places.to_redeliver,
                "ready": places.ready,
                "inTransactions": places.in_transactions,
                "pending": places.pending,
                "unread": places.unread,
                "withheld": places.withheld,
                "toFill": places.to_fill,
            },
            "difference": self.difference,
            "differenceByCounters": self.by_counters,
            "missing": None if self.missing is None else [str(each) for each in self.missing],
            "twice": None if self.twice is None else [str(each) for each in self.twice],
        }


class Books:
    """One per time as owner of a topic partition."""

    def __init__(
        self,
        topic: str,
        connection: BrokerConnection,
        admin: AdminClient,
        index: TopicIndex,
        given: Given,
        subscriptions: Mapping[str, TrackedSubscription],
        now_ms: Callable[[], int],
        load: Callable[[str], Awaitable[TrackedSubscription | None]],
        limits: OperatorLimits,
    ) -> None:
        """`given`: what the harvester is given; `subscriptions` may change at any time; `load`: as of `Steering`."""
        self.latest: dict[str, Balance] = {}
        """As of the last look at each."""
        self._topic = topic
        self._connection = connection
        self._admin = admin
        self._index = index
        self._given = given
        self._subscriptions = subscriptions
        self._now_ms = now_ms
        self._load = load
        self._limits = limits
        self._state: LedgerState | None = None
        self._nobodys = Nobodys(topic, admin, limits)
        self._withheld = PositionSet()  # what the broker was asked for, and gives to nobody
        self._one_at_a_time = asyncio.Lock()

    async def look(self) -> None:
        """Draw the balance of all subscriptions, and ack what is for nobody; to be called now and then."""
        names = list(self._index.views())
        marks = [view.mark_delete_position for view in self._index.views().values()]
        if marks:
            self._given.forget_below(min(marks))
            self._withheld.forget_below(min(marks).ledger)
            self._nobodys.forget_below(min(marks).ledger)
        for name in names:
            before = self.latest.get(name)
            balance = await self.draw(name, positions=False)
            if balance.differing and (before is None or before.differing != balance.differing):
                listed = [str(each) for each in (*(balance.missing or ()), *(balance.twice or ()))][:10]
                told = {"topic": self._topic, "subscription": name, "entries": balance.differing}
                log.warning("the books do not close", **told, positions=listed)
            if balance.places is not None and balance.places.withheld:
                await self._ack_for_nobody(name)
        self.latest = {name: balance for name, balance in self.latest.items() if name in self._index.views()}

    async def _ack_for_nobody(self, name: str) -> None:
        subscription, state = self._subscriptions.get(name), self._state
        if subscription is not None and state is not None and (view := subscription.view) is not None:
            withheld = self._given.withheld(state.ledger_sizes) | self._withheld
            await self._nobodys.ack(subscription, withheld - withheld.acked(view.acks))

    async def of(self, name: str, *, positions: bool = False) -> Balance:
        """The balance of a subscription now, also where nobody is connected; with `positions` of every entry."""
        await self._load(name)
        return await self.draw(name, positions=positions)

    async def draw(self, name: str, *, positions: bool) -> Balance:
        """The same of one that is dispatched."""
        async with self._one_at_a_time:
            self.latest[name] = balance = await self._draw(name, self.latest.get(name), positions=positions)
        return balance

    async def _draw(self, name: str, before: Balance | None, *, positions: bool) -> Balance:
        as_of_ms, counted = self._now_ms(), None
        try:
            if positions:
                return await self._one_by_one(name, None)
            balance = await self._by_counters(name)
            if balance.closes:
                return balance
            if before is not None and before.missing is not None and before.by_counters == balance.by_counters:
                return replace(balance, missing=before.missing, twice=before.twice)  # was looked at already
            counted = balance.by_counters
            return await self._one_by_one(name, counted)
        except Unknown as reason:
            return Balance(as_of_ms, unknown=str(reason), by_counters=counted)
        except (AdminError, StoreError) as error:
            return Balance(as_of_ms, unknown=f"cannot be told: {error}")

    # -- the two ways

    async def _by_counters(self, name: str) -> Balance:
        state = await self._sizes()
        as_of_ms, subscription, view = self._now_ms(), *self._dispatched(name)
        if not view.counter.settled:
            self._index.settle(self._limits.books_blocks_slice)
        if not view.counter.settled:
            raise Unknown("acks are still being counted: ask again, or for positions")
        if self._index.damage.is_any or not view.covered:
            raise Unknown("the index lacks entries that are being read: ask for positions")
        waiting = self._index.counts.pending(view) - len(view.outstanding)
        moment = _Moment.of(subscription, self._given, self._withheld, self._index, state)
        snapshot = await moment.snapshot()
        noted = PositionSet()
        if snapshot.read_behind is not None:
            noted = await self._noted(snapshot, self._limits.books_blocks_max)
        found = Found(Places(pending=waiting))
        async for part in _parts(snapshot):
            found = found.plus(by_counters(part, noted.within(part.ledger_sizes)))
        difference, twice = found.places.difference, tuple(islice(found.twice, self._limits.books_positions_max))
        return Balance(as_of_ms, snapshot.upto, found.places, by_counters=difference, twice=twice or None)

    async def _one_by_one(self, name: str, counted: int | None) -> Balance:
        if self._index.entries > self._limits.books_scan_max:
            entries, most = self._index.entries, self._limits.books_scan_max
            raise Unknown(f"the index has {entries:,} entries, of more than {most:,} an audit tells what differs")
        for _ in range(self._limits.books_tries):
            state = await self._sizes()
            as_of_ms, subscription, view = self._now_ms(), *self._dispatched(name)
            generation = subscription.generation
            moment = _Moment.of(subscription, self._given, self._withheld, self._index, state)
            gaps = [*((each.lowest, each.highest) for each in self._index.damage.missing)]
            if not view.covered:
                gaps += gaps_below(self._index.floor, view.mark_delete_position)
            snapshot = await moment.snapshot()
            stored, stuck = await self._stored(view)
            noted = await self._noted(snapshot, None)
            index, found = Index(stored - stuck, noted, tuple(gaps)), Found()
            async for part in _parts(snapshot):
                few = list(part.ledger_sizes)
                found = found.plus(one_by_one(part, replace(index, stored=index.stored.within(few))))
            if subscription.generation == generation and subscription.dispatching:
                found = await self._confirmed(found, subscription, view)
                most = self._limits.books_positions_max
                missing, twice = tuple(islice(found.missing, most)), tuple(islice(found.twice, most))
                return Balance(as_of_ms, snapshot.upto, found.places, None, counted, missing, twice)
        raise Unknown("its cursor was moved again and again meanwhile")

    async def _confirmed(self, found: Found, subscription: TrackedSubscription, view: SubscriptionView) -> Found:
        """Without what has only changed places since it was looked at, and what the broker gives to nobody."""
        withheld, most = 0, self._limits.books_positions_max
        missing, several = list(islice(found.missing, most)), list(islice(found.twice, most))
        nowhere = [each async for each, places in self._places_of(missing, subscription, view) if not places]
        twice = [each async for each, places in self._places_of(several, subscription, view) if places > 1]
        for each in missing:
            found.missing.discard(each)
        found.missing.update(nowhere)
        if nowhere:
            patience_s = self._limits.books_patience_s
            fetched = await fetch_entries(self._connection, self._topic, nowhere, patience_s=patience_s)
            if fetched.failed:
                raise Unknown(f"the broker was asked for {len(nowhere)} entries in no place: {fetched.errors[0]}")
            for position in fetched.gone:
                self._withheld.add(position)
                withheld += found.missing.discard(position)
        # Unacked and in no hand: when the snapshot was taken they waited in the index.
        pending = found.places.pending + len(missing) - len(nowhere)
        places = replace(found.places, pending=pending, withheld=found.places.withheld + withheld)
        return Found(places, found.missing, PositionSet(twice))

    async def _places_of(
        self, positions: Sequence[Position], subscription: TrackedSubscription, view: SubscriptionView
    ) -> AsyncIterator[tuple[Position, int]]:
        """In how many places each is now. Raises StoreError."""
        at_once = self._limits.steering_slice
        for start in range(0, len(positions), at_once):
            some = positions[start : start + at_once]
            for position, hands in zip(some, subscription.hands_with(some), strict=True):
                if view.acks.contains(*position):
                    yield position, 1
                    continue
                entry = None if tuple(position) in view.outstanding else self._index.search.locate(position)
                yield position, hands + (entry is not None and view.will_find(entry.key))
            await asyncio.sleep(0)

    # -- what is known

    def _dispatched(self, name: str) -> tuple[TrackedSubscription, SubscriptionView]:
        """Raises Unknown."""
        subscription = self._subscriptions.get(name)
        view = None if subscription is None else subscription.view
        if subscription is None or view is None or not subscription.dispatching:
            raise Unknown("it is not dispatched: nobody was connected yet, or its cursor is being moved or read")
        return subscription, view

    async def _sizes(self) -> LedgerState:
        """The sizes of the topic's ledgers, as far as the index has read them. Raises AdminError, Unknown."""
        for _ in range(self._limits.books_tries):
            state, upto = self._state, self._index.harvested_position or EARLIEST
            if state is not None and state.covers(upto):
                return state
            self._state = await self._admin.internal_stats(self._topic)
        raise Unknown("the broker's answer about its ledgers is older than what was read of them")

    async def _stored(self, view: SubscriptionView) -> tuple[PositionSet, PositionSet]:
        """Where the entries of the index lie, and which of them lie where nobody looks any more. Raises StoreError."""
        stored, stuck = PositionSet(), PositionSet()
        for keys in all_keys(self._index):
            positions = [each[1:] for each in KEY.iter_unpack(b"".join(keys))]
            stored.update(positions)
            cursor = view.cursor
            for key, position in zip(keys, positions, strict=True):
                waits = key < cursor and position not in view.outstanding and not view.acks.contains(*position)
                if waits and not view.will_find(key):
                    stuck.add(position)
            await asyncio.sleep(0)
        return stored, stuck

    async def _noted(self, snapshot: Snapshot, most: int | None) -> PositionSet:
        """Where delayed entries lie, by the notes of positions. Raises StoreError, Unknown if it takes too long."""
        noted, blocks = PositionSet(), 0
        at = snapshot.upto if snapshot.read_behind is None else snapshot.read_behind
        while at < snapshot.upto:
            some = list(islice(self._index.positions.blocks(at, snapshot.upto), self._limits.books_blocks_slice))
            if not some:
                break
            for ledger, times in some:
                noted.update((ledger, entry) for entry in times)
                at = Position(ledger, max(times))
            blocks += len(some)
            if most is not None and blocks > most:
                raise Unknown("it reads far behind the end of the topic: ask for positions")
            await asyncio.sleep(0)
        return noted


@dataclass(frozen=True, slots=True)
class _Moment:
    """What has to be read in one go, so that it fits together."""

    hands: Hands
    to_come: list[tuple[int, int]]
    partial: Snapshot
    """Without what is in hand and to come."""

    @classmethod
    def of(
        cls,
        subscription: TrackedSubscription,
        given: Given,
        for_nobody: PositionSet,
        index: TopicIndex,
        state: LedgerState,
    ) -> "_Moment":
        """Now; `for_nobody`: what is withheld beside what is passed over. Raises Unknown."""
        view, feed, hands = subscription.view, subscription.feed, subscription.hands
        upto = index.harvested_position
        if view is None or feed is None or hands is None or upto is None:
            raise Unknown("it is not dispatched at the moment")
        if not state.covers(upto):
            raise Unknown("a ledger was begun in this moment")
        if given.upto < upto:
            # In a write that failed, and is there after all: what is immediate in it nobody was given.
            raise Unknown("what was stored when the disk failed is being read again")
        sizes = dict(state.ledger_sizes)
        withheld = given.withheld(sizes) | for_nobody
        subscription.gone.settle(sizes, upto, withheld)
        to_come, read_behind = feed.to_come
        nothing = PositionSet()
        partial = Snapshot(
            ledger_sizes=sizes,
            upto=upto,
            acks=view.acks.copy(),
            taken=Taken(nothing, nothing, nothing, nothing),
            to_come=nothing,
            read_behind=read_behind,
            withheld=withheld,
            cancelled=subscription.gone.cancelled.copy(),
            expired=subscription.gone.passed.copy(),
            handed_out=nothing,
        )
        return cls(hands, to_come, partial)

    async def snapshot(self) -> Snapshot:
        """Put together; others get their turn."""
        hands = self.hands
        in_hand = [hands.in_flight, hands.to_redeliver, [*hands.ready, *hands.held], hands.in_transactions]
        taken = Taken(*[await _set_of(each) for each in in_hand])
        to_come, handed_out = await _set_of(self.to_come), await _set_of(hands.handed_out)
        return replace(self.partial, taken=taken, to_come=to_come, handed_out=handed_out)


async def _set_of(positions: list[tuple[int, int]]) -> PositionSet:
    found = PositionSet()
    for start in range(0, len(positions), POSITIONS_AT_ONCE):
        found.update(positions[start : start + POSITIONS_AT_ONCE])
        await asyncio.sleep(0)
    return found


async def _parts(snapshot: Snapshot) -> AsyncIterator[Snapshot]:
    """Some ledgers at a time."""
    ledgers = sorted(snapshot.ledger_sizes)
    for start in range(0, len(ledgers), LEDGERS_AT_ONCE):
        yield snapshot.part(ledgers[start : start + LEDGERS_AT_ONCE])
        await asyncio.sleep(0)
