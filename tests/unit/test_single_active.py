"""Exclusive and Failover subscriptions: which are taken over, who gets what, in which order, what acks cover."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from bridge.dispatch.acks.pending_acks import PendingAcks
from bridge.dispatch.dispatcher import Again, Offer
from bridge.dispatch.single.cumulative_acks import entry_by_entry
from bridge.dispatch.single.single_dispatcher import SingleDispatcher
from bridge.dispatch.single.single_queues import OrderedReadyQueue
from bridge.dispatch.unacked_limits import UnackedLimits
from bridge.gateway.client_commands import Tracking
from bridge.limits import DispatchLimits
from bridge.protocol.pulsar_pb2 import CommandAck, CommandSubscribe
from bridge.protocol.single_active import DELAYS_PROPERTY
from tracker import encode_key

LIMITS = DispatchLimits()
Names = SingleDispatcher[str]


def immediate(*entries: int) -> list[Offer]:
    return [Offer(1, entry, 1, None, b"raw") for entry in entries]


def delayed(*entries: int) -> list[Offer]:
    return [Offer(1, entry, 1, encode_key(5, 1, entry), b"raw") for entry in entries]


def dispatcher_of(*names: str, permits: int = 100) -> Names:
    """The first is active."""
    dispatcher: Names = SingleDispatcher(LIMITS)
    for name in names:
        dispatcher.add_consumer(name, 0)
        dispatcher.flow(name, permits, True)
    dispatcher.activate(names[0])
    return dispatcher


def give(dispatcher: Names, offers: Iterable[Offer]) -> dict[str, list[int]]:
    assigned, _ = dispatcher.assign(list(offers))
    dispatcher.check()
    return {name: [offer.entry for offer in batch] for name, batch in assigned}


def give_again(dispatcher: Names) -> list[tuple[int, int]]:
    """What waits to be delivered again, and how often it is said to have been."""
    offers = [each.offer(position, b"raw") for position, each in dispatcher.replay.items()]
    dispatcher.replay.clear()
    assigned, _ = dispatcher.assign(offers)
    return [(offer.entry, offer.redelivery_count) for _, batch in assigned for offer in batch]


def covered(dispatcher: Names, name: str, entry: int, *, whole: bool = True, for_good: bool = True) -> list[int]:
    """By an ack up to an entry; they are acked."""
    found = dispatcher.ack_up_to(name, (1, entry), whole=whole, for_good=for_good)
    for position in found:
        dispatcher.ack(*position)
    dispatcher.check()
    return [position[1] for position in found]


# -- what is taken over


def subscribe(**fields: object) -> CommandSubscribe:
    command = CommandSubscribe(
        topic="t", subscription="s", subType=CommandSubscribe.Failover, consumer_id=1, request_id=1
    )
    for name, value in fields.items():
        setattr(command, name, value)
    return command


@pytest.mark.parametrize(
    ("setting", "fields", "taken"),
    [
        ("", {}, False),
        ("public/default", {}, True),
        ("other/ns public/*", {}, True),
        ("public/def", {}, False),
        ("persistent://public/default/t", {}, True),
        ("persistent://public/default/t", {"topic": "persistent://public/default/t-partition-3"}, True),
        ("persistent://public/default/o*", {}, False),
        ("public/default", {"durable": False}, False),
        ("public/default", {"read_compacted": True}, False),
        ("public/default", {"topic": "non-persistent://public/default/t"}, False),
    ],
)
@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Failover])
def test_the_setting_says_where(
    setting: str, fields: dict[str, object], taken: bool, kind: CommandSubscribe.SubType
) -> None:
    assert Tracking(setting.split()).takes(subscribe(subType=kind, **fields)) == taken


@pytest.mark.parametrize("where", ["subscription_properties", "metadata"])
@pytest.mark.parametrize(("said", "taken"), [("true", True), ("False", False), ("yes", None)])
@pytest.mark.parametrize("setting", ["", "public/default"])
def test_the_property_goes_first(where: str, said: str, taken: bool | None, setting: str) -> None:
    command = subscribe()
    getattr(command, where).add(key=DELAYS_PROPERTY, value=said)
    assert Tracking(setting.split()).takes(command) == (bool(setting) if taken is None else taken)


def test_who_is_not_told_that_it_is_active_is_left_to_the_broker() -> None:
    tracking = Tracking(["public/default"])
    assert not tracking.takes(subscribe(), 11)
    assert tracking.takes(subscribe(subType=CommandSubscribe.Exclusive), 11)


# -- who gets what


def test_the_active_one_gets_everything_as_far_as_its_permits_go() -> None:
    dispatcher = dispatcher_of("a", "b", permits=3)
    assert give(dispatcher, immediate(0, 1, 2, 3, 4)) == {"a": [0, 1, 2]}
    assert dispatcher.capacity() == 0
    dispatcher.deactivate("b")
    dispatcher.flow("a", 1, True)
    assert dispatcher.capacity() == 1
    dispatcher.deactivate("a")
    assert dispatcher.capacity() == 0
    assert give(dispatcher, immediate(3)) == {}


def test_whoever_becomes_active_gets_what_is_not_acked() -> None:
    dispatcher = dispatcher_of("a", "b")
    give(dispatcher, immediate(0, 1, 2))
    dispatcher.deactivate("a")
    dispatcher.ack(1, 1)
    assert not dispatcher.replay, "it may still ack"
    dispatcher.activate("b")
    waiting = [(position[1], each.again) for position, each in dispatcher.replay.items()]
    assert waiting == [(0, Again.consumer_gone), (2, Again.consumer_gone)]
    dispatcher.check()
    dispatcher.activate("a")
    assert give_again(dispatcher) == [(0, 0), (2, 0)]
    dispatcher.remove_consumer("a")
    assert dispatcher.active is None
    dispatcher.check()


def test_all_comes_again_uncounted_and_only_for_the_active_one() -> None:
    dispatcher = dispatcher_of("a", "b")
    give(dispatcher, immediate(0, 1, 2))
    assert dispatcher.redeliver("b", None) == 0
    assert dispatcher.redeliver("a", [(1, 1)]) == 3
    assert give_again(dispatcher) == [(0, 0), (1, 0), (2, 0)]


def test_policies_about_unacked_messages_do_not_count() -> None:
    dispatcher = dispatcher_of("a")
    dispatcher.set_unacked_limits(UnackedLimits(1, 1))
    assert give(dispatcher, immediate(0, 1, 2)) == {"a": [0, 1, 2]}
    assert dispatcher.room_for_new() == float("inf")


# -- acks up to a position


def test_what_is_immediate_is_covered() -> None:
    dispatcher = dispatcher_of("a")
    give(dispatcher, immediate(0, 1, 2, 3))
    assert covered(dispatcher, "a", 2) == [0, 1, 2]
    assert covered(dispatcher, "a", 1) == []
    assert dispatcher.acked_up_to == (1, 2)


def test_what_was_given_before_is_covered_though_delayed() -> None:
    dispatcher = dispatcher_of("a")
    give(dispatcher, [*delayed(1), *immediate(2), *delayed(0), *immediate(3)])
    assert covered(dispatcher, "a", 3) == [0, 1, 2, 3]


def test_what_was_given_later_is_covered_by_itself_alone() -> None:
    dispatcher = dispatcher_of("a")
    give(dispatcher, [*immediate(2), *delayed(0, 1), *immediate(3)])
    assert covered(dispatcher, "a", 2) == [2]
    assert covered(dispatcher, "a", 3) == [3]
    assert covered(dispatcher, "a", 1) == [1]
    assert list(dispatcher.unacked) == [(1, 0)]


def test_what_was_overtaken_before_this_bridge_came_is_covered_by_itself_alone() -> None:
    dispatcher = dispatcher_of("a")
    dispatcher.overtake((1, 5))
    give(dispatcher, [*delayed(3), *immediate(4, 6)])
    assert covered(dispatcher, "a", 6) == [4, 6]
    assert covered(dispatcher, "a", 3) == [3]


def test_an_ack_speaks_of_what_its_sender_was_given() -> None:
    dispatcher = dispatcher_of("a", "b")
    give(dispatcher, [*immediate(2), *delayed(1)])
    dispatcher.activate("b")
    give_again(dispatcher)
    assert covered(dispatcher, "a", 2) == [2]
    assert list(dispatcher.unacked) == [(1, 1)]


def test_what_waits_to_be_delivered_again_is_covered_if_it_was_delivered() -> None:
    dispatcher = dispatcher_of("a")
    give(dispatcher, [*immediate(0, 1), *delayed(2)])
    dispatcher.redeliver("a", None)
    assert covered(dispatcher, "a", 3) == [0, 1]
    assert list(dispatcher.replay) == [(1, 2)]
    assert covered(dispatcher, "a", 2) == [2]


def test_part_of_a_batch_and_transactions_leave_what_is_to_come() -> None:
    dispatcher = dispatcher_of("a")
    give(dispatcher, immediate(0, 1, 2))
    assert covered(dispatcher, "a", 1, for_good=False) == [0, 1]
    assert dispatcher.acked_up_to == (-1, -1)
    assert covered(dispatcher, "a", 2, whole=False) == [2]
    assert dispatcher.acked_up_to == (1, 1)
    dispatcher.clear()
    assert dispatcher.acked_up_to == (-1, -1)


def test_an_ack_may_be_of_the_first_copy() -> None:
    """The consumer asked for all again while it had 2; 1 was sent since, and is before 2 among what is sent again."""
    dispatcher = dispatcher_of("a")
    give(dispatcher, [*immediate(2), *delayed(1)])
    dispatcher.redeliver("a", None)
    assert give_again(dispatcher) == [(1, 0), (2, 0)]
    assert covered(dispatcher, "a", 2) == [2]
    assert list(dispatcher.unacked) == [(1, 1)]


def test_what_was_overtaken_stays_so_but_for_a_seek() -> None:
    """Whatever becomes of what was handed out: a client that connects anew goes on ignoring it."""
    dispatcher = dispatcher_of("a")
    give(dispatcher, immediate(5))
    assert covered(dispatcher, "a", 5) == [5]
    dispatcher.clear()
    give(dispatcher, [*delayed(1), *immediate(6)])
    assert covered(dispatcher, "a", 6) == [6]
    dispatcher.clear()
    dispatcher.begin_anew()
    give(dispatcher, [*delayed(1), *immediate(6)])
    assert covered(dispatcher, "a", 6) == [1, 6]


# -- order


class Feeding:
    """Where the immediate entries are."""

    at = -1

    def is_past(self, position: tuple[int, int]) -> bool:
        return position[1] <= self.at


def numbers(offers: Iterable[Offer]) -> list[int]:
    return [offer.entry for offer in offers]


def test_what_is_due_waits_for_what_is_immediate_before_it() -> None:
    feeding = Feeding()
    queue = OrderedReadyQueue(feeding.is_past, LIMITS)
    queue.add(delayed(7, 3))
    assert queue.take(10) == []
    queue.add(immediate(1, 5))
    assert numbers(queue.take(10)) == [1, 3, 5]
    assert len(queue) == 1
    feeding.at = 7
    assert numbers(queue.take(10)) == [7]


def test_what_did_not_go_out_is_put_in_its_place() -> None:
    queue = OrderedReadyQueue(lambda _: True, LIMITS)
    queue.add([*immediate(1, 2, 5), *delayed(4)])
    taken = queue.take(10)
    queue.put_first(taken[1:])
    queue.add([*delayed(3), *immediate(6)])
    assert numbers(queue.take(10)) == [2, 3, 4, 5, 6]


def test_no_more_of_what_is_due_waits_than_a_slice_and_its_bytes() -> None:
    queue = OrderedReadyQueue(lambda _: False, DispatchLimits(dispatch_slice=20, look_ahead_bytes=30))
    assert (queue.lacks(5), queue.lacks_new(5)) == (20, 5)
    queue.add(delayed(*range(9)))
    assert (queue.lacks(5), queue.has_room) == (11, True)
    queue.add(delayed(9))
    assert (queue.lacks(5), queue.has_room) == (0, False)
    assert numbers(queue.take_out(lambda offer: offer.entry % 2 == 0)) == [0, 2, 4, 6, 8]
    assert (queue.lacks(5), len(queue)) == (15, 5)


def test_what_operators_hold_comes_in_its_place() -> None:
    queue = OrderedReadyQueue(lambda _: True, LIMITS)
    queue.add(delayed(1, 2, 3))
    queue.hold((1, 2))
    assert numbers(queue.without_held(queue.take(2))) == [1]
    queue.let_go((1, 2))
    assert queue.find((1, 2)) is not None
    assert queue.oldest_due_ms() == 5
    assert numbers(queue.take(10)) == [2, 3]
    queue.add(delayed(4))
    queue.drop_all(lambda offer: offer.entry == 4)
    assert len(queue) == 0


# -- as the broker is told


def told(dispatcher: Names, entry: int, *, ledger: int = 1, exists: bool = True) -> list[tuple[int, int]]:
    ack = CommandAck(consumer_id=1, ack_type=CommandAck.Cumulative, request_id=7)
    ack.message_id.add(ledgerId=ledger % (1 << 64), entryId=entry % (1 << 64))
    pending: PendingAcks[str] = PendingAcks(dispatcher, LIMITS)
    found = entry_by_entry(cast(Any, dispatcher), cast(Any, pending), cast(Any, "a"), ack, lambda _: exists)
    assert (found.ack_type, found.request_id) == (CommandAck.Individual, 7)
    return [(each.ledgerId, each.entryId) for each in found.message_id]


def test_nothing_lies_before_the_first_entry_of_a_ledger() -> None:
    """So clients ack what is before a batch of which they ack a part."""
    dispatcher = dispatcher_of("a")
    give(dispatcher, immediate(0, 1))
    assert told(dispatcher, -1) == []
    assert told(dispatcher, -1, ledger=-1) == []
    assert dispatcher.acked_up_to == (1, -1)
    assert told(dispatcher, 0) == [(1, 0)]


def test_what_nobody_knows_of_says_nothing_of_what_is_to_come() -> None:
    dispatcher = dispatcher_of("a")
    give(dispatcher, immediate(0, 1))
    assert told(dispatcher, 1 << 40, exists=False) == [(1, 0), (1, 1)]
    assert dispatcher.acked_up_to == (-1, -1)


def test_nothing_is_acked_for_those_who_come_when_nobody_is_here() -> None:
    dispatcher = dispatcher_of("a")
    give(dispatcher, immediate(0, 1))
    assert told(dispatcher, 1) == [(1, 0), (1, 1)]
    dispatcher.remove_consumer("a")
    assert dispatcher.acked_up_to == (-1, -1)
