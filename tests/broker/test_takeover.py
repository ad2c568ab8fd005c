"""Two bridges in front of one broker: one dispatches, the other takes over when it is gone."""

import time
from typing import Any

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory, InProcessFactory
from tests.clients import Clients, admin, backlog, drain, publish, rest_path, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until, wait_until_async
from tests.raw_client import raw_client
from tracker import Position

MISSED = 10_000
PENDING = 1_000


def test_a_client_of_the_wrong_bridge_is_led_to_the_owner(
    private_bridge: BridgeFactory, clients: Clients, topic: str
) -> None:
    """Its consumer works, though only the owner dispatches, and no message comes twice."""
    first, second = private_bridge(), private_bridge()
    ours = shared(clients.connect(first.service_url), topic, "ours")
    producer = clients.connect(first.service_url).create_producer(topic)
    producer.send(b"before")
    assert texts(drain(ours, 1)) == ["before"]
    theirs = shared(clients.connect(second.service_url), topic, "theirs")
    producer.send(b"after")
    assert texts(drain(theirs, 2)) == ["before", "after"]
    assert texts(drain(ours, 1)) == ["after"]
    # Two that stand at the same moment are for the broker to choose from.
    wait_until(
        lambda: sorted((_role(first, topic), _role(second, topic))) == ["owner", "standby"], "one owner, one standby"
    )


def test_each_bridge_is_one_candidate(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    """Also the one that was deposed: what it left behind would be elected with nobody listening."""
    bridges = [private_bridge() for _ in range(3)]
    for number, bridge in enumerate(bridges):
        shared(clients.connect(bridge.service_url), topic, f"s-{number}").close()

    def candidates() -> list[str]:
        found = admin(pulsar, "GET", f"{rest_path(topic)}/stats")["subscriptions"]["__delay-bridge"]["consumers"]
        return sorted(each["consumerName"] for each in found)

    def settled() -> bool:
        return sorted(_role(bridge, topic) or "" for bridge in bridges) == ["owner", "standby", "standby"]

    wait_until(settled, "one owner, two standbys", timeout=60)
    wait_until(lambda: candidates() == sorted(bridge.service_url for bridge in bridges), "a candidate each")


def test_the_other_bridge_takes_over(private_bridge: BridgeFactory, clients: Clients, topic: str) -> None:
    """What the killed owner had not delivered comes from the other bridge, once, and not early."""
    first, second = private_bridge(), private_bridge()
    both = clients.connect(f"{first.service_url},{second.service_url.removeprefix('pulsar://')}")
    consumer = shared(both, topic)
    producer = both.create_producer(topic)
    wait_until(lambda: "owner" in (_role(first, topic), _role(second, topic)), "a bridge owns the topic")
    owner, other = (first, second) if _role(first, topic) == "owner" else (second, first)
    due = {str(number): int(time.time() * 1000) + 5_000 + 10 * number for number in range(200)}
    for text, deliver_at in due.items():
        producer.send(text.encode(), deliver_at=deliver_at)
    owner.kill()
    received = drain(consumer, len(due))
    assert sorted(texts(received)) == sorted(due)
    assert all(each.at_ms >= due[each.text] for each in received)
    wait_until(lambda: _role(other, topic) == "owner", "the other one is the owner")


def test_a_standby_takes_over_without_reading(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    """What was published before it stood by, and after, is in its index when the owner is killed; acks are too."""
    first, second = private_bridge(), private_bridge(limits={"standby_follow_s": 1.0})
    client = clients.connect(first.service_url)
    consumer = shared(client, topic)
    producer = clients.connect(pulsar.service_url).create_producer(topic, max_pending_messages=PENDING)
    due = now_ms() + 15_000
    publish(producer, [f"before-{number}" for number in range(PENDING)], deliver_at=due)
    wait_until(lambda: first.topic(topic).get("entries") == PENDING, "harvested")
    publish(producer, ["at once"])
    assert texts(drain(consumer, 1)) == ["at once"]
    elsewhere = clients.connect(second.service_url)
    shared(elsewhere, topic)
    wait_until(lambda: "standby" in (_role(first, topic), _role(second, topic)), "one stands by")
    last = publish(producer, [f"after-{number}" for number in range(100)], deliver_at=due)[-1]

    def has_read_everything(standby: BridgeProcess) -> bool:
        return bool(standby.topic(topic).get("standbyPosition") == f"{last.ledger_id()}:{last.entry_id()}")

    # Which one it is the broker may have chosen, if both stood at the same moment.
    standby = wait_until(lambda: next(filter(has_read_everything, (first, second)), None), "a standby is ready")
    assert standby is not None
    owner = second if standby is first else first
    client.close()
    elsewhere.close()
    owner.kill()
    wait_until(lambda: _role(standby, topic) == "owner", "it is the owner")
    assert standby.topic(topic)["entries"] == PENDING + 100
    assert standby.topic(topic)["rebuild"] is None, "nothing was read again"
    received = drain(shared(clients.connect(standby.service_url), topic), PENDING + 100)
    assert len(set(texts(received))) == PENDING + 100
    assert all(each.at_ms >= due for each in received)


def test_a_former_owner_catches_up_behind_live_traffic(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    """It comes back with an old index: new messages do not wait until all that was published meanwhile is read."""
    bridge = private_bridge(limits={"checkpoint_interval_s": 4.0})  # by then what was left out begins to be read
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    producer = clients.connect(pulsar.service_url).create_producer(topic, max_pending_messages=MISSED)
    publish(producer, ["before"])
    assert texts(drain(consumer, 1)) == ["before"]
    wait_until(lambda: backlog(pulsar, topic) == 0, "ack")
    client.close()
    bridge.stop()
    missed = [str(number) for number in range(MISSED)]
    due = now_ms() + 10_000
    publish(producer, missed, deliver_at=due)
    bridge.start()
    publish(producer, ["live"])
    consumer = shared(clients.connect(bridge.service_url), topic)
    assert texts(drain(consumer, 1)) == ["live"]
    assert bridge.topic(topic)["entries"] < MISSED
    wait_until(lambda: bridge.topic(topic)["entries"] == MISSED, "all of them in the index", timeout=30)
    assert bridge.stats(topic)["damagedPartitions"] == 0
    assert "damaged" not in bridge.log()
    received = drain(consumer, MISSED)
    assert sorted(texts(received)) == sorted(missed)
    assert all(each.at_ms >= due for each in received)


def _role(bridge: BridgeProcess, topic: str) -> Any:
    return bridge.topic(topic).get("role")


async def test_what_was_left_out_is_read_by_who_lost_the_topic_meanwhile(
    bridge_here: InProcessFactory, topic: str
) -> None:
    """It lost the topic at the very moment in which it began to read."""
    here = await bridge_here()
    client = await raw_client(f"pulsar://127.0.0.1:{here.port}")
    await client.produce(topic)
    await client.consume(topic)
    assert here.topics is not None
    tracked: Any = here.topics.get(topic)
    await client.publish(b"one", sequence_id=1)
    await wait_until_async(
        lambda: tracked.tenure and tracked.tenure.durability.kept, "a first checkpoint, and what follows it"
    )
    position = await client.publish(b"two", sequence_id=2)
    await wait_until_async(lambda: tracked.tenure.durability.kept[0] == position, "another one")
    tracked.index.damage.stage_left_out(
        tracked._context.store.new_batch(), Position(position[0], -1), Position(*position)
    )()
    tracked._give_up("as if the topic was unloaded")
    await wait_until_async(lambda: tracked.role != "owner", "the topic is given up")
    await wait_until_async(lambda: tracked.role == "owner", "the topic is served again")
    await wait_until_async(lambda: not tracked.index.damage.missing, "everything is read", timeout=5)
