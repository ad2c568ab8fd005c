"""Cursors that move: a seek, a reset or a subscription made anew is never taken for forgotten acks, nor they for it.

In each test something falls between two steps of the bridge: another bridge owned the topic meanwhile, it was killed,
it was not there, the broker closed a consumer whose acks were on their way.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from typing import Any

import pulsar as pulsar_client
import pytest

from bridge.app import Bridge
from bridge.broker.admin import AdminClient
from bridge.embedded import EmbeddedPulsar
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.protocol.pulsar_pb2 import BaseCommand
from tests.bridge_process import BridgeProcess, Broker, now_ms
from tests.broker.conftest import BridgeFactory, InProcessFactory
from tests.clients import (
    Clients,
    admin,
    assert_quiet,
    backlog,
    drain,
    drain_all,
    publish,
    rest_path,
    shared,
    some_topic,
    texts,
)
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tests.raw_client import RawClient, raw_client

COUNT = 200
LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
FAR_MS = 3_600_000


def role(bridge: BridgeProcess, topic: str) -> Any:
    return bridge.topic(topic).get("role")


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


def checkpoint_is_kept(broker: Broker, topic: str) -> bool:
    """Whether the broker has a checkpoint of subscription "s" that covers everything harvested."""
    hidden = admin(broker, "GET", f"{rest_path(topic)}/internalStats")["cursors"].get(HIDDEN_SUBSCRIPTION, {})
    properties = hidden.get("properties") or {}
    ledger, entry = hidden.get("markDeletePosition", "-1:-1").split(":")
    return properties.get("ledger:s") == int(ledger) and properties.get("entry:s") == int(entry) + 1


def everything_acked(bridge: BridgeProcess, clients: Clients, broker: Broker, topic: str, count: int) -> Any:
    """A consumer that has acked `count` messages, half of them delayed, and a checkpoint that says so."""
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, numbers(count // 2))
    publish(producer, numbers(count // 2, count // 2), deliver_at=now_ms() + 100)
    assert len(drain(consumer, count)) == count
    wait_until(lambda: backlog(broker, topic) == 0, "acks")
    wait_until(lambda: checkpoint_is_kept(broker, topic), "checkpoint")
    return consumer


def all_come(consumer: Any, expected: set[str]) -> None:
    """Each of the messages comes, and is acked."""
    missing = set(expected)

    def none_missing() -> bool:
        missing.difference_update(texts(drain_all(consumer, 100)))
        return not missing

    try:
        wait_until(none_missing, "all messages", timeout=30)
    except AssertionError:
        some = sorted(missing, key=int)[:20]
        raise AssertionError(f"{len(missing)} of {len(expected)} are missing: {some}") from None


@pytest.mark.parametrize("other_ends", ["stopped", "killed"])
def test_acks_of_a_former_owner_do_not_undo_a_seek(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str, other_ends: str
) -> None:
    """One bridge owns, everything is acked; another one owns, a consumer seeks back; the first one owns again."""
    first = private_bridge()
    client = clients.connect(first.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["pins the mark-delete position"], deliver_at=now_ms() + FAR_MS)
    publish(producer, numbers(COUNT))
    assert len(drain(consumer, COUNT)) == COUNT
    wait_until(lambda: backlog(pulsar, topic) == 1, "acks")
    clients.close()
    first.stop()
    second = private_bridge()
    consumer = shared(clients.connect(second.service_url), topic)
    wait_until(lambda: role(second, topic) == "owner", "the other bridge owns the topic")
    consumer.seek(pulsar_client.MessageId.earliest)
    again = drain(consumer, 20)
    assert len(set(texts(again))) == 20
    clients.close()
    (second.stop if other_ends == "stopped" else second.kill)()
    first.start()
    consumer = shared(clients.connect(first.service_url), topic)
    wait_until(lambda: role(first, topic) == "owner", "the first bridge owns the topic")
    all_come(consumer, set(numbers(COUNT)) - set(texts(again)))


@pytest.mark.parametrize(
    ("moved_by", "bridge_ends", "index"),
    [("seek", "killed", "kept"), ("seek", "stopped", "lost before"), ("reset", "killed", "lost before")],
)
def test_a_bridge_that_ends_right_after_a_seek(
    private_bridge: BridgeFactory,
    clients: Clients,
    pulsar: PulsarCluster,
    topic: str,
    moved_by: str,
    bridge_ends: str,
    index: str,
) -> None:
    """Its checkpoint is of before; without the index what lies before the seek is being read again as it ends."""
    bridge = private_bridge()
    consumer = everything_acked(bridge, clients, pulsar, topic, COUNT)
    if index == "lost before":
        bridge.stop()
        shutil.rmtree(bridge.data_dir)
        bridge.start()
        wait_until(lambda: role(bridge, topic) == "owner" and consumer.is_connected(), "served again", timeout=20)
    if moved_by == "seek":
        consumer.seek(pulsar_client.MessageId.earliest)
    else:
        admin(pulsar, "POST", f"{rest_path(topic)}/subscription/s/resetcursor/{now_ms() - 600_000}")
    (bridge.stop if bridge_ends == "stopped" else bridge.kill)()
    seen = texts(drain_all(consumer, 100))
    clients.close()
    bridge.start()
    consumer = shared(clients.connect(bridge.service_url), topic)
    all_come(consumer, set(numbers(COUNT)) - set(seen))


@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_a_subscription_made_anew_while_no_bridge_runs(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str, disk: str
) -> None:
    bridge = private_bridge()
    everything_acked(bridge, clients, pulsar, topic, COUNT)
    clients.close()
    bridge.stop()
    path = f"{rest_path(topic)}/subscription/s"
    admin(pulsar, "DELETE", path)
    admin(pulsar, "PUT", path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    assert backlog(pulsar, topic) == COUNT
    if disk == "lost":
        shutil.rmtree(bridge.data_dir)
    bridge.start()
    all_come(shared(clients.connect(bridge.service_url), topic), set(numbers(COUNT)))


def test_a_reset_to_behind_the_mark_delete_position_while_no_bridge_runs(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    """A delayed message holds the mark-delete position back; only single acks above it are taken back."""
    bridge = private_bridge()
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["pins"], deliver_at=now_ms() + FAR_MS)
    ids = publish(producer, numbers(COUNT))
    assert len(drain(consumer, COUNT)) == COUNT
    wait_until(lambda: backlog(pulsar, topic) == 1, "acks")
    clients.close()
    bridge.stop()
    middle = COUNT // 2
    place = {"ledgerId": ids[middle].ledger_id(), "entryId": ids[middle].entry_id(), "partitionIndex": -1}
    admin(pulsar, "POST", f"{rest_path(topic)}/subscription/s/resetcursor", place)
    bridge.start()
    consumer = shared(clients.connect(bridge.service_url), topic)
    assert texts(drain(consumer, COUNT - middle)) == numbers(COUNT - middle, middle)


@pytest.mark.skipif(not LONG, reason="two brokers: DELAY_BRIDGE_LONG=1")
def test_an_index_of_another_cluster_is_not_believed(
    make_pulsar: Callable[..., EmbeddedPulsar], private_bridge: BridgeFactory, clients: Clients
) -> None:
    """A cluster set up anew gives the same positions again: neither acks nor messages are those known here."""
    topic = some_topic("set-up-anew")
    pulsar = make_pulsar()
    bridge = private_bridge(pulsar)
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["old"] * 20, deliver_at=now_ms() + FAR_MS)
    publish(producer, ["old"] * 20)
    drain(consumer, 20)
    wait_until(lambda: backlog(pulsar, topic) == 20, "acks")
    wait_until(lambda: bridge.topic(topic)["entries"] == 20, "entries in the index")
    clients.close()
    bridge.stop()
    pulsar.stop()
    other = make_pulsar()
    producer = clients.connect(other.service_url).create_producer(topic)
    publish(producer, numbers(COUNT // 2))
    publish(producer, numbers(COUNT // 2, COUNT // 2), deliver_at=now_ms() + 500)
    again = private_bridge(other, data_dir=str(bridge.data_dir))
    all_come(shared(clients.connect(again.service_url), topic), set(numbers(COUNT)))


def holes(bridge: BridgeProcess, clients: Clients, broker: Broker, topic: str, count: int) -> Any:
    """A consumer that has acked every second of `count` messages, and got all."""
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic, unacked_messages_timeout_ms=None)
    producer = client.create_producer(topic)
    publish(producer, numbers(count))
    for number, received in enumerate(drain(consumer, count, ack=False)):
        assert received.text == str(number)
        if number % 2:
            consumer.acknowledge(received.message)
    wait_until(lambda: backlog(broker, topic) == count // 2, "acks", timeout=20)
    return consumer


@pytest.mark.parametrize("private_pulsar", [{"managedLedgerMaxUnackedRangesToPersist": "50"}], indirect=True)
def test_acks_survive_unloads_with_more_holes_than_the_broker_keeps(
    private_pulsar: EmbeddedPulsar, private_bridge: BridgeFactory, clients: Clients
) -> None:
    """The cursor falls back far, with consumers attached; then the broker is killed, seconds after acks it answered."""
    topic = some_topic("holes")
    bridge = private_bridge(private_pulsar)
    consumer = holes(bridge, clients, private_pulsar, topic, 600)
    even = {str(number) for number in range(0, 600, 2)}
    for _ in range(2):
        admin(private_pulsar, "PUT", f"{rest_path(topic)}/unload")
        again = drain(consumer, 300, ack=False)
        assert set(texts(again)) == even
        assert_quiet(consumer)
        wait_until(lambda: backlog(private_pulsar, topic) == 300, "acks given again", timeout=20)
    for received in again[:200]:
        consumer.acknowledge(received.message)
    left = set(texts(again[200:]))
    wait_until(lambda: backlog(private_pulsar, topic) == 100, "acks", timeout=20)
    later = now_ms() + 4_000
    wait_until(lambda: now_ms() >= later)  # standalone stores a mark-delete position once in ten seconds
    private_pulsar.kill()
    private_pulsar.start()
    found = drain(consumer, 100)
    assert set(texts(found)) == left
    assert_quiet(consumer)
    wait_until(lambda: backlog(private_pulsar, topic) == 0, "everything acked", timeout=20)


async def seek(client: RawClient, consumer_id: int = 1) -> None:
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id = consumer_id
    command.seek.request_id = request_id = client.next_request_id()
    command.seek.message_publish_time = 0
    answer = await client.request(command, request_id)
    assert answer.type == BaseCommand.SUCCESS, answer


@pytest.mark.parametrize("come", ["before the next consumer", "behind the next consumer"])
async def test_acks_on_their_way_when_a_seek_closes_their_consumer(
    bridge: BridgeProcess, topic: str, come: str
) -> None:
    """The broker drops them, so they come again."""
    producer = await raw_client(bridge.service_url)
    await producer.produce(topic)
    late, seeker = await raw_client(bridge.service_url), await raw_client(bridge.service_url)
    await late.consume(topic)
    late.flow(100)
    positions = [await producer.publish(b"x%d" % number, sequence_id=number) for number in range(10)]
    for _ in range(10):
        await late.message()
    await seeker.consume(topic, consumer_id=7)
    await seek(seeker, 7)
    await late.event(BaseCommand.CLOSE_CONSUMER)
    await seeker.event(BaseCommand.CLOSE_CONSUMER)
    if come == "before the next consumer":
        late.ack(*positions)
        await late.lookup(topic)  # answered behind the acks
    await seeker.consume(topic, consumer_id=8)
    if come == "behind the next consumer":
        seeker.flow(1, 8)
        first = await seeker.message()
        late.ack(*positions)
        await late.lookup(topic)
        assert first.position == positions[0]
    seeker.flow(100, 8)
    found = [(await seeker.message()).position for _ in range(10 if come == "before the next consumer" else 9)]
    assert found == positions[-len(found) :]


async def test_a_subscription_deleted_and_made_anew_while_the_bridge_asks(
    bridge_here: InProcessFactory, pulsar: PulsarCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker answered was true when it did."""
    here = await bridge_here()
    client = await raw_client(f"pulsar://127.0.0.1:{here.port}")
    await client.produce(topic)
    await client.consume(topic)
    client.flow(10)
    await client.publish(b"one")
    assert (await client.message()).payload == b"one"
    tracked = tracked_topic(here, topic)
    asked = AdminClient.topic_stats

    async def meanwhile(self: AdminClient, name: str) -> Any:
        """The answer is of the moment between deletion and the new subscription."""
        monkeypatch.setattr(AdminClient, "topic_stats", asked)
        await call(pulsar, "DELETE", f"{rest_path(topic)}/subscription/s?force=true")
        answer = await asked(self, name)
        assert "s" not in answer.consumers
        await client.event(BaseCommand.CLOSE_CONSUMER)
        await client.consume(topic, consumer_id=2)
        return answer

    monkeypatch.setattr(AdminClient, "topic_stats", meanwhile)
    await tracked.tenure.maintain()
    client.flow(10, 2)
    assert (await client.message()).payload == b"one"
    assert "s" in tracked.subscriptions


@pytest.mark.parametrize("odd", ["no mark-delete position", "no last entry", "ranges of another kind", "with ack set"])
async def test_what_the_broker_says_oddly_is_asked_again(
    bridge_here: InProcessFactory, topic: str, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    """A cursor that cannot be read is read later; the topic goes on, and other subscriptions do not wait."""
    here = await bridge_here()
    client = await raw_client(f"pulsar://127.0.0.1:{here.port}")
    await client.produce(topic)
    await client.consume(topic)
    await client.publish(b"one")
    asked = AdminClient._get
    left = 3

    async def oddly(self: AdminClient, path: str) -> Any:
        nonlocal left
        answer = await asked(self, path)
        if path.endswith("internalStats") and left:
            left -= 1
            cursor = answer["cursors"].get("t")
            if odd == "no last entry":
                del answer["lastConfirmedEntry"]
            elif cursor and odd == "no mark-delete position":
                del cursor["markDeletePosition"]
            elif cursor and odd == "ranges of another kind":
                cursor["individuallyDeletedMessages"] = "{}"
            elif cursor:
                cursor["markDeletePosition"] += " (ackSet is null)"
        return answer

    monkeypatch.setattr(AdminClient, "_get", oddly)
    await client.consume(topic, "t", consumer_id=2)
    client.flow(10, 2)
    client.flow(10)
    got = {(await client.message()).consumer_id for _ in range(2)}
    assert got == {1, 2}


def tracked_topic(here: Bridge, topic: str) -> Any:
    assert here.topics is not None
    found = here.topics.get(topic)
    assert found is not None
    return found


async def call(broker: Broker, method: str, path: str) -> None:
    await asyncio.to_thread(admin, broker, method, path)


def test_a_consumer_that_leaves_at_once_leaves_its_subscription_behind(
    client: Any, bridge: BridgeProcess, topic: str
) -> None:
    """Before the bridge has let it in; what its subscription has pending counts all the same."""
    stays = shared(client, topic, "stays")
    shared(client, topic).close()
    publish(client.create_producer(topic), numbers(3), deliver_at=now_ms() + FAR_MS)

    def pending() -> dict[str, int]:
        return {name: each["pending"] for name, each in bridge.stats(topic)["subscriptions"].items()}

    wait_until(lambda: pending() == {"stays": 3, "s": 3}, "three pending for both")
    assert stays.is_connected()
