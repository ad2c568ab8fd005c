"""What becomes of unacked messages, and of cursors that are moved: through the bridge as through the broker.

Tests with `any_client` run against the broker as well: there the same must hold, or the expectation is wrong.
"""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pulsar as pulsar_client
import pytest

from bridge.broker.admin import AdminClient
from bridge.limits import ConnectionLimits
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import (
    Clients,
    admin,
    assert_quiet,
    backlog,
    drain,
    drain_all,
    publish,
    receive,
    rest_path,
    shared,
    texts,
)
from tests.cluster import PulsarCluster
from tests.helpers import wait_until

LATER_MS = 500


@pytest.fixture(params=["bridge", "broker"])
def any_client(request: pytest.FixtureRequest) -> Any:
    """A client of the bridge, and one of the broker as the reference."""
    return request.getfixturevalue("client" if request.param == "bridge" else "direct")


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


def publish_both(producer: Any, later_ms: int = LATER_MS) -> list[str]:
    """Five immediate messages and five delayed ones."""
    publish(producer, numbers(5))
    publish(producer, numbers(5, start=5), deliver_at=now_ms() + later_ms)
    return numbers(10)


# -- redelivery


def test_negative_acknowledgement_redelivers_and_counts(any_client: Any, topic: str) -> None:
    consumer = shared(any_client, topic)
    publish_both(any_client.create_producer(topic))
    for turn in range(3):
        received = drain(consumer, 10, ack=False)
        assert sorted(texts(received), key=int) == numbers(10)
        assert {each.redelivery_count for each in received} == {turn}
        for each in received:
            if turn == 2:
                consumer.acknowledge(each.message)
            else:
                consumer.negative_acknowledge(each.message)
    assert_quiet(consumer)


def test_redelivery_of_a_batch(any_client: Any, topic: str) -> None:
    consumer = shared(any_client, topic)
    producer = any_client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=100)
    publish(producer, numbers(10))
    first = drain(consumer, 10, ack=False)
    for each in first[:5]:
        consumer.acknowledge(each.message)
    for each in first[5:]:
        consumer.negative_acknowledge(each.message)
    again = {each.text for each in drain_all(consumer, 700)}
    assert again >= set(numbers(5, start=5))
    assert_quiet(consumer)


def test_batch_index_acknowledgement(client: Any, topic: str) -> None:
    """Off by default in the broker; the bridge tells the client on redelivery which messages are acked all the same."""
    consumer = shared(client, topic, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=100)
    publish(producer, numbers(10))
    first = drain(consumer, 10, ack=False)
    for each in first[:5]:
        consumer.acknowledge(each.message)
    for each in first[5:]:
        consumer.negative_acknowledge(each.message)
    again = drain(consumer, 5)
    assert {each.text for each in again} >= set(numbers(5, start=5))
    drain_all(consumer)


def test_redeliver_unacknowledged_messages(any_client: Any, pulsar: PulsarCluster, topic: str) -> None:
    consumer = shared(any_client, topic)
    publish_both(any_client.create_producer(topic, batching_enabled=False))
    received = drain(consumer, 10, ack=False)
    for each in received[:3]:
        consumer.acknowledge(each.message)
    # The client sends acks late, and asks for the rest at once.
    wait_until(lambda: backlog(pulsar, topic) == 7, "acks")
    consumer.redeliver_unacknowledged_messages()
    again = drain(consumer, 7)
    assert sorted(texts(again)) == sorted(texts(received[3:]))
    assert_quiet(consumer)


def test_dead_letter_policy(any_client: Any, topic: str) -> None:
    dead = shared(any_client, topic + "-dead", "d")
    consumer = shared(
        any_client, topic, dead_letter_policy=pulsar_client.ConsumerDeadLetterPolicy(2, topic + "-dead", "d")
    )
    any_client.create_producer(topic).send(b"poison", deliver_after=timedelta(milliseconds=300))
    counts = []
    for _ in range(3):
        received = receive(consumer, ack=False)
        counts.append(received.redelivery_count)
        consumer.negative_acknowledge(received.message)
    assert counts == [0, 1, 2]
    assert receive(dead).text == "poison"
    assert_quiet(consumer)


def test_a_closing_consumer_hands_its_unacked_to_another(any_client: Any, topic: str) -> None:
    first = shared(any_client, topic)
    publish_both(any_client.create_producer(topic))
    received = drain(first, 10, ack=False)
    for each in received[:2]:
        first.acknowledge(each.message)
    second = shared(any_client, topic)
    first.close()
    again = drain(second, 8)
    assert sorted(texts(again)) == sorted(texts(received[2:]))
    assert {each.redelivery_count for each in again} == {0}
    assert_quiet(second)


def test_unacked_come_again_after_the_client_is_gone(clients: Clients, bridge: BridgeProcess, topic: str) -> None:
    first = clients.connect(bridge.service_url)
    consumer = shared(first, topic)
    publish_both(first.create_producer(topic))
    received = drain(consumer, 10, ack=False)
    for each in received[:4]:
        consumer.acknowledge(each.message)
    first.close()
    again = drain(shared(clients.connect(bridge.service_url), topic), 6)
    assert sorted(texts(again)) == sorted(texts(received[4:]))


def test_the_same_subscription_again_and_again(client: Any, topic: str) -> None:
    """What was acked just before a consumer left does not come to the next one."""
    producer = client.create_producer(topic)
    for turn in range(20):
        consumer = shared(client, topic)
        publish(producer, numbers(10, start=turn * 20))
        publish(producer, numbers(10, start=turn * 20 + 10), deliver_at=now_ms() + 50)
        assert sorted(texts(drain(consumer, 20)), key=int) == numbers(20, start=turn * 20)
        consumer.close()
    assert_quiet(shared(client, topic))


# -- subscriptions come and go


def test_messages_wait_while_nobody_is_subscribed(client: Any, topic: str) -> None:
    shared(client, topic).close()
    publish_both(client.create_producer(topic), later_ms=100)
    time_passes_until(now_ms() + 200)
    consumer = shared(client, topic)
    assert sorted(texts(drain(consumer, 10)), key=int) == numbers(10)
    assert_quiet(consumer)


def time_passes_until(at_ms: int) -> None:
    while (left := at_ms - now_ms()) > 0:
        time.sleep(left / 1_000)


def test_unsubscribe_and_subscribe_from_the_start_again(any_client: Any, topic: str) -> None:
    keeps_the_topic = shared(any_client, topic, "other")
    consumer = shared(any_client, topic)
    publish_both(any_client.create_producer(topic))
    assert len(drain(consumer, 10)) == 10
    consumer.unsubscribe()
    consumer = shared(any_client, topic)
    assert sorted(texts(drain(consumer, 10)), key=int) == numbers(10)
    assert_quiet(consumer)
    keeps_the_topic.close()


def test_unsubscribe_and_subscribe_at_the_end(any_client: Any, topic: str) -> None:
    """The new subscription has nothing to do with what the old one had pending."""
    consumer = shared(any_client, topic)
    producer = any_client.create_producer(topic)
    publish(producer, ["old"], deliver_at=now_ms() + 1_000)
    consumer.unsubscribe()
    consumer = shared(any_client, topic, initial_position=pulsar_client.InitialPosition.Latest)
    publish(producer, ["new"], deliver_at=now_ms() + 1_000)
    assert texts(drain_all(consumer, 2_500)) == ["new"]


def test_new_subscription_from_the_start_of_an_old_topic(client: Any, direct: Any, topic: str) -> None:
    """Most of it was published before the bridge knew the topic."""
    producer = direct.create_producer(topic)
    at = now_ms() + 2_000
    direct.subscribe(topic, "keeper").close()
    publish(producer, numbers(500), deliver_at=at)
    publish(producer, numbers(500, start=500))
    first = shared(client, topic, "first", initial_position=pulsar_client.InitialPosition.Latest)
    publish(producer, numbers(10, start=1_000), deliver_at=at)
    assert sorted(texts(drain(first, 10)), key=int) == numbers(10, start=1_000)
    second = shared(client, topic, "second")
    received = drain(second, 1_010)
    assert sorted(texts(received), key=int) == numbers(1_010)
    assert all(each.at_ms >= at for each in received if not 500 <= int(each.text) < 1_000)
    assert_quiet(first, second)


def test_new_subscription_at_the_end_gets_nothing_old(any_client: Any, topic: str) -> None:
    first = shared(any_client, topic, "first")
    publish(any_client.create_producer(topic), numbers(5), deliver_at=now_ms() + 1_500)
    latest = shared(any_client, topic, "latest", initial_position=pulsar_client.InitialPosition.Latest)
    assert len(drain(first, 5)) == 5
    assert_quiet(latest)


# -- cursors moved


def test_seek_to_the_earliest(any_client: Any, topic: str) -> None:
    consumer = shared(any_client, topic)
    publish_both(any_client.create_producer(topic))
    assert len(drain(consumer, 10)) == 10
    consumer.seek(pulsar_client.MessageId.earliest)
    assert sorted(texts(drain(consumer, 10)), key=int) == numbers(10)
    assert_quiet(consumer)


def test_seek_to_a_message(any_client: Any, topic: str) -> None:
    consumer = shared(any_client, topic, start_message_id_inclusive=True)
    ids = publish(any_client.create_producer(topic), numbers(10))
    assert len(drain(consumer, 10)) == 10
    consumer.seek(ids[6])
    assert texts(drain(consumer, 4)) == numbers(4, start=6)
    consumer.seek(ids[2])
    assert texts(drain(consumer, 8)) == numbers(8, start=2)
    assert_quiet(consumer)


def test_seek_to_a_delayed_message(any_client: Any, topic: str) -> None:
    consumer = shared(any_client, topic, start_message_id_inclusive=True)
    producer = any_client.create_producer(topic)
    ids = publish(producer, numbers(10), deliver_at=now_ms() + 1_500)
    assert len(drain(consumer, 10)) == 10
    consumer.seek(ids[4])
    assert sorted(texts(drain(consumer, 6)), key=int) == numbers(6, start=4)
    assert_quiet(consumer)


def test_seek_forward_skips_what_is_pending(any_client: Any, topic: str) -> None:
    consumer = shared(any_client, topic)
    producer = any_client.create_producer(topic)
    publish(producer, ["skipped"], deliver_at=now_ms() + 2_000)
    consumer.seek(pulsar_client.MessageId.latest)
    publish(producer, ["new"])
    assert texts(drain_all(consumer, 3_500)) == ["new"]


def test_seek_by_time(any_client: Any, topic: str) -> None:
    """By publish time, not by `deliver_at`."""
    consumer = shared(any_client, topic)
    producer = any_client.create_producer(topic)
    publish(producer, numbers(5), deliver_at=now_ms() + 1_500)
    time_passes_until(now_ms() + 50)
    between = now_ms()
    time_passes_until(now_ms() + 50)
    publish(producer, numbers(5, start=5), deliver_at=now_ms() + 1_500)
    assert len(drain(consumer, 10)) == 10
    consumer.seek(between)
    assert sorted(texts(drain(consumer, 5)), key=int) == numbers(5, start=5)
    consumer.seek(between - 10_000)
    assert sorted(texts(drain(consumer, 10)), key=int) == numbers(10)
    assert_quiet(consumer)


def test_seek_with_messages_in_flight(any_client: Any, topic: str) -> None:
    consumer = shared(any_client, topic)
    publish_both(any_client.create_producer(topic), later_ms=1_000)
    unacked = drain(consumer, 5, ack=False)
    consumer.seek(pulsar_client.MessageId.earliest)
    assert sorted(texts(drain(consumer, 10)), key=int) == numbers(10)
    assert len(unacked) == 5
    assert_quiet(consumer)


def test_seek_with_several_consumers(any_client: Any, topic: str) -> None:
    consumers = [shared(any_client, topic) for _ in range(3)]
    publish_both(any_client.create_producer(topic))

    def collect(count: int) -> list[str]:
        found: list[str] = []

        def enough() -> bool:
            for consumer in consumers:
                found.extend(texts(drain_all(consumer, 20)))
            return len(found) >= count

        wait_until(enough, f"{count} messages", timeout=20)
        return sorted(found, key=int)

    assert collect(10) == numbers(10)
    consumers[1].seek(pulsar_client.MessageId.earliest)
    assert collect(10) == numbers(10)
    assert_quiet(*consumers, quiet_ms=200)


def test_seek_below_the_floor_of_the_index(client: Any, direct: Any, topic: str) -> None:
    """Delayed messages from before the bridge knew the topic come back, on time."""
    producer = direct.create_producer(topic)
    direct.subscribe(topic, "keeper").close()
    at = now_ms() + 2_500
    publish(producer, numbers(100), deliver_at=at)
    publish(producer, numbers(100, start=100))
    consumer = shared(client, topic, initial_position=pulsar_client.InitialPosition.Latest)
    publish(producer, ["200"])
    assert receive(consumer).text == "200"
    consumer.seek(pulsar_client.MessageId.earliest)
    received = drain(consumer, 201)
    assert sorted(texts(received), key=int) == numbers(201)
    assert all(each.at_ms >= at for each in received if int(each.text) < 100)
    assert_quiet(consumer)


def test_seek_back_twice(client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    publish_both(client.create_producer(topic), later_ms=200)
    for _ in range(3):
        assert sorted(texts(drain(consumer, 10)), key=int) == numbers(10)
        consumer.seek(pulsar_client.MessageId.earliest)
    assert sorted(texts(drain(consumer, 10)), key=int) == numbers(10)
    assert_quiet(consumer)


def test_seek_back_keeps_later_acks(client: Any, pulsar: PulsarCluster, topic: str) -> None:
    """After a seek back, acks count anew: to the broker's backlog as well."""
    consumer = shared(client, topic)
    publish_both(client.create_producer(topic), later_ms=200)
    assert len(drain(consumer, 10)) == 10
    consumer.seek(pulsar_client.MessageId.earliest)
    assert len(drain(consumer, 10)) == 10
    wait_until(lambda: backlog(pulsar, topic) == 0, "empty backlog")
    consumer.close()
    assert_quiet(shared(client, topic))


def test_cursor_reset_by_the_brokers_admin_interface(client: Any, pulsar: PulsarCluster, topic: str) -> None:
    """Past the bridge: the broker disconnects the consumers, and what is acked is not any more."""
    consumer = shared(client, topic)
    publish_both(client.create_producer(topic))
    before = now_ms() - 60_000
    assert len(drain(consumer, 10)) == 10
    wait_until(lambda: backlog(pulsar, topic) == 0, "empty backlog")
    admin(pulsar, "POST", f"{rest_path(topic)}/subscription/s/resetcursor/{before}")
    assert sorted(texts(drain(consumer, 10, 5_000)), key=int) == numbers(10)
    assert_quiet(consumer)


def test_backlog_cleared_by_the_brokers_admin_interface(client: Any, pulsar: PulsarCluster, topic: str) -> None:
    """Past the bridge: what was pending is acked now."""
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["skipped"], deliver_at=now_ms() + 5_000)
    admin(pulsar, "POST", f"{rest_path(topic)}/subscription/s/skip_all")
    publish(producer, ["new"], deliver_at=now_ms() + 5_000)
    assert texts(drain_all(consumer, 6_500)) == ["new"]


def test_subscription_deleted_by_the_brokers_admin_interface(client: Any, pulsar: PulsarCluster, topic: str) -> None:
    """The client subscribes again by itself: to a new subscription, at the end of the topic."""
    consumer = shared(client, topic, initial_position=pulsar_client.InitialPosition.Latest)
    producer = client.create_producer(topic)
    publish(producer, ["old"], deliver_at=now_ms() + 2_000)
    admin(pulsar, "DELETE", f"{rest_path(topic)}/subscription/s?force=true")
    wait_until(lambda: "s" in admin(pulsar, "GET", f"{rest_path(topic)}/stats")["subscriptions"], "subscribed again")
    publish(producer, ["new"])
    assert texts(drain_all(consumer, 3_000)) == ["new"]


def test_topic_deleted_and_created_anew(client: Any, pulsar: PulsarCluster, topic: str) -> None:
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["old"], deliver_at=now_ms() + 3_000)
    consumer.close()
    producer.close()
    admin(pulsar, "DELETE", f"{rest_path(topic)}?force=true")
    consumer = shared(client, topic)
    publish(client.create_producer(topic), ["new"], deliver_at=now_ms() + 1_000)
    assert receive(consumer).text == "new"
    assert_quiet(consumer, quiet_ms=3_000)


# -- names


@pytest.mark.parametrize("name", ["with space", "plus+sign", "slash/and%percent", "ünïcode"])
async def test_cursors_are_found_by_any_name(direct: Any, pulsar: PulsarCluster, topic: str, name: str) -> None:
    """`internalStats` has them URL-encoded as Java does it: a space becomes a plus."""
    await asyncio.to_thread(lambda: shared(direct, topic, name).close())
    client = AdminClient(pulsar.web_url, ConnectionLimits())
    try:
        assert name in (await client.internal_stats(topic)).cursors
    finally:
        await client.close()
