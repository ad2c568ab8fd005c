"""Defences taken away, one at a time: a simulation that does not notice is of no use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bridge.broker.connection import BrokerConnection
from bridge.dispatch.dispatcher import Dispatcher, Offer
from bridge.dispatch.keyed.key_order import KeyOrder
from bridge.dispatch.pump import Pump
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.intake.harvester import Harvester
from bridge.intake.tail_buffer import TailBuffer
from bridge.ledgers import cursor_history
from bridge.protocol.entries import StoredEntry
from bridge.refill.gaps import GapFiller
from bridge.topics import cursor_loader
from bridge.topics.checkpoints import Checkpoint
from bridge.topics.durability import Durability
from bridge.topics.standing import standby
from bridge.topics.standing.ownership import Ownership
from bridge.topics.tracked_topic import TrackedTopic
from tests.simulation.disk import Disk
from tracker import Position, SubscriptionView, TopicIndex
from tracker.care.damage import Damage
from tracker.near.window import NearTermWindow


class Mutation(NamedTuple):
    """`promise`: the number of the invariant that it breaks. `quick`: nearly any seed shows it.

    `crowded`: it takes two rare things at once, so lives are longer and have more faults. `keyed`: keys are shared.
    """

    promise: int
    apply: Callable[[], None]
    quick: bool = False
    crowded: bool = False
    keyed: bool = False


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Put `make(what was there)` in the place of an attribute."""

    def apply() -> None:
        setattr(owner, name, make(getattr(owner, name)))

    return apply


def never(owner: Any, name: str, result: Any = None) -> Callable[[], None]:
    """Have a function do nothing."""
    return replaced(owner, name, lambda _: lambda *_args, **_named: result)


def _early(due: Any) -> Any:
    return lambda self, view, now_ms, *rest: due(self, view, now_ms + 3, *rest)


def _forget_some(push: Any) -> Any:
    return lambda self, entries: push(self, [each for each in entries if each.entry % 40 != 39])


def _stores_nothing(harvester: Any) -> Any:
    class StoresNothing(harvester):  # type: ignore[misc]
        def _store(self, entries: list[StoredEntry]) -> None:
            self._index.add([], Position(*entries[-1][:2]))

    return StoresNothing


def _misses_nothing(gap_filler: Any) -> Any:
    class MissesNothing(gap_filler):  # type: ignore[misc]
        def find(self, view: SubscriptionView) -> None:
            view.covered = True

    return MissesNothing


def _last_one_lost(number_after: Any) -> Any:
    return lambda self, position: min(number_after(self, position) + 1, self.end)


def _endless(init: Any) -> Any:
    return lambda self, start, *_: init(self, start, 10**9, 10**9)


def _boundless(init: Any) -> Any:
    return lambda self, _, *rest: init(self, 1 << 30, *rest)


def _forward_only(init: Any) -> Any:
    def mutated(self: Pump, subscriptions: Any, now_ms: Callable[[], int], *rest: Any) -> None:
        latest = 0

        def highest() -> int:
            nonlocal latest
            latest = max(latest, now_ms())
            return latest

        init(self, subscriptions, highest, *rest)

    return mutated


def _all_that_is_harvested(checkpoint: Any) -> Any:
    async def mutated(self: Durability) -> None:
        self._synced = self._index.harvested_position
        await checkpoint(self)

    return mutated


def _not_deposed(on_active: Any) -> Any:
    return lambda self, active: on_active(self, active) if active else None


def _believes_old_news(on_active: Any) -> Any:
    def mutated(self: Ownership, active: bool) -> None:
        before = self._news
        on_active(self, active)
        self._news = before

    return mutated


async def _stays(self: Ownership) -> bool:
    return True


async def _nothing(*_: object, **__: object) -> None:
    return None


def _gone_with_consumer(remove: Any) -> Any:
    def mutated(self: Dispatcher[Any], consumer: Any) -> int:
        left: int = remove(self, consumer)
        self.replay.clear()
        return left

    return mutated


def _free_permits(flow: Any) -> Any:
    return lambda self, consumer, permits, writable: flow(self, consumer, permits * 2, writable)


def _wakes_late(call_later: Any) -> Any:
    return lambda self, wait_s: call_later(self, wait_s + 3.0)


def _overtakes(wait: Any) -> Any:
    def mutated(self: KeyOrder[Any], offer: Offer) -> None:
        wait(self, offer)
        offers = self._new[offer.sticky_hash]
        offers.insert(0, offers.pop())

    return mutated


def _free_at_once(let_go: Any) -> Any:
    def mutated(self: KeyOrder[Any], sticky_hash: int) -> Any:
        self._more_held.pop(sticky_hash, None)
        return let_go(self, sticky_hash)

    return mutated


MUTATIONS: dict[str, Mutation] = {
    "due 3 ms too soon": Mutation(1, replaced(TopicIndex, "due", _early), quick=True),
    "the clock is taken to go forward only": Mutation(1, replaced(Pump, "__init__", _forward_only)),
    "the tail buffer loses entries": Mutation(2, replaced(TailBuffer, "push", _forget_some), quick=True),
    "a feed joins the tail behind the next entry": Mutation(
        2, replaced(TailBuffer, "number_after", _last_one_lost), quick=True
    ),
    "what lies below the floor is not read": Mutation(2, never(GapFiller, "find"), quick=True),
    "what was left out is not noted": Mutation(2, never(Damage, "stage_left_out", lambda: None)),
    "late entries are not noted": Mutation(2, never(SubscriptionView, "note_late"), quick=True),
    "what a consumer leaves behind is forgotten": Mutation(
        2, replaced(Dispatcher, "remove_consumer", _gone_with_consumer)
    ),
    "a standby stores nothing of what it reads": Mutation(2, replaced(standby, "Harvester", _stores_nothing)),
    "a standby thinks that nothing is missing": Mutation(2, replaced(standby, "GapFiller", _misses_nothing)),
    "every checkpoint holds": Mutation(2, never(Checkpoint, "holds", True)),
    "acks from before a seek are believed": Mutation(2, never(cursor_history, "takes_back", False), quick=True),
    "a reader that is stuck stays": Mutation(2, replaced(Harvester, "check", lambda _: _nothing)),
    "acks that a broker forgot are not given again": Mutation(3, replaced(cursor_loader, "repair", lambda _: _nothing)),
    "acks of a former life are never believed": Mutation(3, never(cursor_history, "takes_back", True)),
    "acks are not noted": Mutation(3, never(TrackedSubscription, "_note_acks"), quick=True),
    "the broker is told of what is not synced": Mutation(
        4, replaced(Durability, "checkpoint", _all_that_is_harvested), quick=True
    ),
    "a sync does nothing": Mutation(4, never(Disk, "sync"), quick=True),
    "a deposed owner goes on": Mutation(5, replaced(Ownership, "on_active", _not_deposed), quick=True),
    "an owner whose broker does not hear it goes on": Mutation(
        5, replaced(BrokerConnection, "is_confirmed", lambda _: property(lambda _: True))
    ),
    "an election is decided by old statistics": Mutation(
        5, replaced(Ownership, "on_active", _believes_old_news), crowded=True
    ),
    "what the broker skips is not followed": Mutation(6, never(TrackedSubscription, "_on_mark_delete")),
    "acks leave what is pending as it is": Mutation(6, never(SubscriptionView, "ack"), quick=True),
    "the tail buffer keeps everything": Mutation(7, replaced(TailBuffer, "__init__", _endless)),
    "consumers get twice what they ask for": Mutation(7, replaced(Dispatcher, "flow", _free_permits)),
    "the near term is not bounded": Mutation(7, replaced(NearTermWindow, "__init__", _boundless)),
    "nothing wakes the pump in time": Mutation(8, replaced(Pump, "_call_later", _wakes_late), quick=True),
    "a broker that is silent is waited for": Mutation(8, never(BrokerConnection, "_schedule_keep_alive")),
    "a resigned bridge stays in the election": Mutation(8, replaced(Ownership, "_unsubscribe", lambda _: _stays)),
    "a store that failed is never opened anew": Mutation(
        8, replaced(TrackedTopic, "_until_stored", lambda _: _nothing)
    ),
    "who has entries of a key does not matter": Mutation(9, never(KeyOrder, "hold"), quick=True, keyed=True),
    "a key is free with the first ack": Mutation(9, replaced(KeyOrder, "let_go", _free_at_once), keyed=True),
    "what waits of a key is overtaken": Mutation(9, replaced(KeyOrder, "wait", _overtakes), quick=True, keyed=True),
}
