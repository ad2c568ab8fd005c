"""What was published is in one place for a subscription, whatever becomes of it; and what is not is found."""

from typing import Any

import pulsar

from bridge.app import Bridge
from bridge.operate.balance import Places
from bridge.operate.books import Balance
from bridge.topics.tracked_topic import TrackedTopic
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory, InProcessFactory
from tests.broker.test_steering import cancel, path_of, position
from tests.clients import Clients, admin, drain, publish, rest_path, shared
from tests.cluster import PulsarCluster
from tests.helpers import wait_until, wait_until_async
from tests.raw_client import RawClient, raw_client
from tests.transactions import abort, ack_in, begin, commit, connect_coordinator, produce_in
from tracker import Position

HOUR_MS = 3_600_000


def close(bridge: BridgeProcess, topic: str, **expected: int) -> None:
    """The books come to close so, with nothing in other places, by counters and one by one."""

    last: dict[str, Any] = {}

    def is_so() -> bool:
        for positions in (False, True):
            status, found = bridge.get(f"{path_of(topic)}/books{'?positions=true' if positions else ''}")
            last.update(found)
            if status != 200 or found["unknown"] is not None:
                return False
            assert found["difference"] == 0, found
            assert not found["differenceByCounters"], found
            assert not found["missing"], found
            assert not found["twice"], found
            places = {place: count for place, count in found["places"].items() if count}
            if places != {"published": sum(expected.values()), **expected}:
                return False
        return True

    try:
        wait_until(is_so, f"{expected}", timeout=30)
    except AssertionError as error:
        raise AssertionError(f"{expected}, and is {last}") from error


def test_each_entry_is_in_one_place_at_every_step(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    bridge = private_bridge(limits={"cursor_poll_s": 0.2})
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic, batching_enabled=False)
    later = publish(producer, [f"later {number}" for number in range(20)], deliver_at=now_ms() + HOUR_MS)
    close(bridge, topic, pending=20)
    publish(producer, [f"now {number}" for number in range(6)])
    publish(producer, [f"soon {number}" for number in range(4)], deliver_at=now_ms() + 500)
    together = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1_000)
    publish(together, [f"batch {number}" for number in range(5)])
    received = drain(consumer, 15, ack=False)
    close(bridge, topic, pending=20, inFlight=11)
    for each in received:
        if not each.text.startswith("batch"):
            consumer.acknowledge(each.message)
    close(bridge, topic, pending=20, inFlight=1, acked=10)
    for each in later[:3]:
        assert cancel(bridge, topic, position(each)) == "cancelled"
    close(bridge, topic, pending=17, inFlight=1, acked=10, cancelled=3)
    consumer.close()
    close(bridge, topic, pending=17, toRedeliver=1, acked=10, cancelled=3)
    publish(producer, [f"behind {number}" for number in range(7)])
    close(bridge, topic, pending=17, toRedeliver=1, acked=10, cancelled=3, unread=7)
    consumer = shared(client, topic)
    drain(consumer, 12)
    close(bridge, topic, pending=17, acked=18, cancelled=3)
    # Of the first twenty, those that are pending lie before all that is acked.
    admin(pulsar, "POST", f"{rest_path(topic)}/subscription/s/skip/10")
    close(bridge, topic, pending=7, acked=18, cancelled=3, expired=10)
    bridge.kill()
    other = private_bridge()
    shared(clients.connect(other.service_url), topic)
    close(other, topic, pending=7, acked=31)


def test_why_messages_are_delivered_again(bridge: BridgeProcess, client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    publish(client.create_producer(topic), ["a", "b", "c"], deliver_at=now_ms() + 300)
    received = drain(consumer, 3, ack=False)

    def duplicates() -> dict[str, int]:
        found = bridge.stats(topic)["subscriptions"]["s"]
        assert found["redelivered"] == sum(found["duplicates"].values())
        return {cause: count for cause, count in found["duplicates"].items() if count}

    assert duplicates() == {}
    consumer.negative_acknowledge(received[0].message)
    drain(consumer, 1, ack=False)
    wait_until(lambda: duplicates() == {"requested": 1}, "one was asked for")
    consumer.close()
    consumer = shared(client, topic)
    drain(consumer, 3)
    wait_until(lambda: duplicates() == {"requested": 1, "consumer-gone": 3}, "its consumer had gone")
    wait_until(lambda: bridge.stats(topic)["subscriptions"]["s"]["acked"] == 3, "acks noted")
    consumer.seek(pulsar.MessageId.earliest)
    drain(consumer, 3)
    wait_until(
        lambda: duplicates() == {"requested": 1, "consumer-gone": 3, "cursor-moved": 3}, "the cursor was set back"
    )


# -- what is lost is found


def tracked(bridge: Bridge, topic: str) -> TrackedTopic:
    assert bridge.topics is not None
    found = bridge.topics.get(topic)
    assert found is not None
    return found


async def drawn(topic: TrackedTopic, *, positions: bool = False) -> Balance:
    assert topic.tenure is not None
    return await topic.tenure.books.of("s", positions=positions)


async def pending_for_an_hour(bridge: Bridge, topic: str, count: int) -> tuple[RawClient, list[tuple[int, int]]]:
    client = await raw_client(bridge.advertised_url)
    await client.consume(topic)
    await client.produce(topic)
    due = now_ms() + HOUR_MS
    places = [await client.publish(b"x", sequence_id=number, deliver_at=due) for number in range(count)]

    async def is_read() -> bool:
        index = tracked(bridge, topic).index
        return index is not None and index.entries == count and (await drawn(tracked(bridge, topic))).closes

    await wait_until_async(is_read, "harvested")
    return client, places


async def test_an_entry_that_is_gone_from_the_index_is_named(bridge_here: InProcessFactory, topic: str) -> None:
    bridge = await bridge_here()
    client, places = await pending_for_an_hour(bridge, topic, 10)
    here = tracked(bridge, topic)
    assert here.index is not None
    lost = here.index.search.locate(Position(*places[4]))
    assert lost is not None
    batch = here.index._store.new_batch()
    batch.delete(lost.key, here.index.families.main.handle)
    here.index._store.write(batch)
    balance = await drawn(here, positions=True)
    assert balance.difference == 1
    assert balance.missing == (places[4],)
    assert balance.twice == ()
    await client.close()


async def test_an_entry_that_is_forgotten_is_noticed_by_the_counters(bridge_here: InProcessFactory, topic: str) -> None:
    """And so is one that is in two places."""
    bridge = await bridge_here()
    client, places = await pending_for_an_hour(bridge, topic, 10)
    client.flow(10)
    place = await client.publish(b"x", sequence_id=10)
    await client.message()
    here = tracked(bridge, topic)

    async def closes() -> bool:
        balance = await drawn(here)
        return balance.places == Places(published=11, in_flight=1, pending=10)

    await wait_until_async(closes, "in flight")
    dispatcher = here.subscriptions["s"].dispatcher
    taken = dispatcher.take(place)
    assert taken is not None
    balance = await drawn(here)
    assert (balance.difference, balance.missing) == (1, (place,))
    dispatcher.put_back(place, taken)
    assert (await drawn(here)).closes
    entry = None if here.index is None else here.index.search.locate(Position(*places[4]))
    assert entry is not None
    # Not due for an hour: it stays where it is put.
    dispatcher.put_back(places[4], taken._replace(key=entry.key))
    balance = await drawn(here, positions=True)
    assert (balance.difference, balance.missing, balance.twice) == (0, (), (places[4],))
    assert not balance.closes
    await client.close()


# -- what is for nobody


async def test_what_the_broker_gives_to_nobody_has_its_place_and_is_acked(
    bridge_here: InProcessFactory, configured_broker: PulsarCluster, topic: str
) -> None:
    """Messages of an aborted transaction, and the markers of a committed and of the aborted one."""
    bridge = await bridge_here(configured_broker, limits={"maintenance_interval_s": 3_600.0})
    client = await raw_client(bridge.advertised_url)
    await connect_coordinator(client)
    await client.consume(topic)
    await client.produce(topic)
    await wait_until_async(lambda: bool(looked_at(bridge, topic)), "the only look that is not made here")
    first = await client.publish(b"first", sequence_id=0)
    for end in (commit, abort):
        transaction = await begin(client, topic)
        await produce_in(client, transaction, topic)
        for number in range(3):
            await client.publish(b"x", sequence_id=1 + number, transaction=transaction)
        await end(client, transaction)
    last = await client.publish(b"last", sequence_id=9)
    client.flow(100)
    received = [(await client.message()).position for _ in range(5)]
    assert (received[0], received[-1]) == (first, last)
    here = tracked(bridge, topic)
    assert here.tenure is not None
    for positions in (False, True):
        balance = await drawn(here, positions=positions)
        assert (balance.places, balance.closes) == (Places(published=10, in_flight=5, withheld=5), True), balance
    await here.tenure.books.look()
    assert (await drawn(here)).places == Places(published=10, acked=5, in_flight=5)
    assert not await ack_in(client, None, *received)

    def mark_delete_position() -> str:
        cursor = admin(configured_broker, "GET", f"{rest_path(topic)}/internalStats")["cursors"]["s"]
        return str(cursor["markDeletePosition"])

    # As a broker does when it dispatches: else it would keep the topic from the first of them on, for ever.
    await wait_until_async(lambda: mark_delete_position() == f"{last[0]}:{last[1]}", "all is acked at the broker")
    await client.close()


def looked_at(bridge: Bridge, topic: str) -> bool:
    found = None if bridge.topics is None else bridge.topics.get(topic)
    return found is not None and found.tenure is not None and "s" in found.tenure.books.latest
