"""What operators do to single entries, on a real broker: found, cancelled, delivered now, and told the truth of it."""

import asyncio
import base64
import os
import random
import threading
import urllib.parse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar
import pytest

from bridge.protocol.pulsar_pb2 import KeyValue
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.broker.test_faults import wait_for_acks_to_be_kept
from tests.clients import Clients, assert_quiet, drain, drain_all, publish, receive, rest_path, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tests.raw_client import raw_client

HOUR_MS = 3_600_000
RACES = 10_000 if os.environ.get("DELAY_BRIDGE_LONG") == "1" else 600
CALLERS = 24


def pending(bridge: BridgeProcess, topic: str, subscription: str = "s", **query: Any) -> list[dict[str, Any]]:
    """All pages of a search."""
    found: list[dict[str, Any]] = []
    while True:
        status, page = bridge.get(f"{path_of(topic, subscription)}/pending?{urllib.parse.urlencode(query, True)}")
        assert status == 200, page
        found += page["entries"]
        if page["cursor"] is None:
            return found
        query["cursor"] = page["cursor"]


def numbers(found: list[dict[str, Any]]) -> list[str]:
    return [each["properties"]["n"] for each in found]


def joined(bridge: BridgeProcess, client: Any, topic: str, subscription: str = "s", **arguments: Any) -> Any:
    """A consumer that is dispatched to."""
    consumer = shared(client, topic, subscription, **arguments)
    wait_until(lambda: is_dispatched(bridge, topic, subscription), "dispatch", timeout=60)
    return consumer


def is_dispatched(bridge: BridgeProcess, topic: str, subscription: str) -> bool:
    status, answer = bridge.get(f"/admin/v2/delayed/{rest_path(topic)}/stats")
    return status == 200 and bool(answer["subscriptions"].get(subscription, {}).get("dispatching"))


def path_of(topic: str, subscription: str = "s") -> str:
    return f"/admin/v2/delayed/{rest_path(topic)}/subscription/{urllib.parse.quote(subscription, '')}"


def position(message_id: Any) -> str:
    return f"{message_id.ledger_id()}:{message_id.entry_id()}"


def cancel(bridge: BridgeProcess, topic: str, at: str, subscription: str = "s") -> str:
    status, answer = bridge.ask("DELETE", f"{path_of(topic, subscription)}/pending/{at}")
    assert status == 200, answer
    return str(answer["outcome"])


def deliver_now(bridge: BridgeProcess, topic: str, at: str, subscription: str = "s") -> str:
    status, answer = bridge.ask("POST", f"{path_of(topic, subscription)}/pending/{at}/deliver-now")
    assert status == 200, answer
    return str(answer["outcome"])


def stats(bridge: BridgeProcess, topic: str, subscription: str = "s") -> dict[str, Any]:
    status, answer = bridge.get(f"/admin/v2/delayed/{rest_path(topic)}/stats")
    assert status == 200, answer
    found: dict[str, Any] = answer["subscriptions"][subscription]
    return found


def test_search_finds_by_position_key_property_and_time(bridge: BridgeProcess, client: Any, topic: str) -> None:
    consumer = joined(bridge, client, topic)
    producer = client.create_producer(topic, compression_type=pulsar.CompressionType.ZLib)
    due = now_ms() + HOUR_MS
    ids = []
    for number in range(30):
        ids += publish(
            producer,
            [f"text {number}"],
            deliver_at=due + number,
            partition_key=f"key {number % 3}",
            properties={"colour": "red" if number % 5 == 0 else "blue", "n": str(number)},
        )
    wait_until(lambda: len(pending(bridge, topic)) == 30, "30 pending entries")
    every = pending(bridge, topic, limit=7)
    assert [each["deliverAt"] for each in every] == [due + number for number in range(30)], "in due order, page by page"
    assert {each["state"] for each in every} == {"pending"}
    one = pending(bridge, topic, messageId=position(ids[4]), payload="true")
    assert [(each["position"], each["key"], each["properties"]["n"]) for each in one] == [
        (position(ids[4]), "key 1", "4")
    ]
    assert base64.b64decode(one[0]["payload"]) == b"text 4"
    assert [each["properties"]["n"] for each in pending(bridge, topic, key="key 2", property="colour=red")] == [
        "5",
        "20",
    ]
    assert pending(bridge, topic, property=["colour=red", "n=1"]) == []
    found = pending(bridge, topic, dueFrom=due + 10, dueTo=due + 12)
    assert numbers(found) == ["10", "11"]
    assert_quiet(consumer, quiet_ms=100)


def test_what_is_cancelled_never_comes(bridge: BridgeProcess, client: Any, topic: str, pulsar: PulsarCluster) -> None:
    consumers = {name: joined(bridge, client, topic, name) for name in ("a", "b")}
    due = now_ms() + 2_500
    ids = publish(client.create_producer(topic), [str(number) for number in range(6)], deliver_at=due)
    # At once: what was just published is waited for.
    assert cancel(bridge, topic, position(ids[0]), "a") == "cancelled"
    assert cancel(bridge, topic, position(ids[0]), "a") == "already-acked"
    status, answer = bridge.ask(
        "POST",
        f"{path_of(topic, 'a')}/cancel",
        {"messageIds": [position(one) for one in [*ids[:3], ids[2]]] + ["999999999:9"]},
    )
    assert status == 200
    assert answer["outcomes"] == {"already-acked": 1, "cancelled": 2, "unknown": 1}
    assert answer["entries"][position(ids[1])] == "cancelled"
    assert texts(drain(consumers["a"], 3, 6_000)) == ["3", "4", "5"]
    assert texts(drain(consumers["b"], 6, 6_000)) == [str(number) for number in range(6)]
    assert_quiet(*consumers.values())
    assert cancel(bridge, topic, position(ids[4]), "a") == "already-acked"
    assert stats(bridge, topic, "a")["cancelled"] == 3
    wait_for_acks_to_be_kept(pulsar, topic, 0, "a")


def test_an_id_of_no_delayed_entry_is_unknown(bridge: BridgeProcess, client: Any, topic: str) -> None:
    """Also below the mark-delete position, where all is acked: the message meant goes out all the same."""
    consumer = joined(bridge, client, topic)
    producer = client.create_producer(topic)
    immediate = publish(producer, ["a", "b"])
    assert texts(drain(consumer, 2)) == ["a", "b"]
    wait_until(lambda: stats(bridge, topic)["markDeletePosition"] == position(immediate[1]), "both acked")
    meant = publish(producer, ["meant"], deliver_at=now_ms() + 2_500)
    first = immediate[0].ledger_id()
    for wrong in (position(immediate[0]), f"{first}:500", f"{first - 1}:0", "0:0", f"{first + 1}:0"):
        assert (cancel(bridge, topic, wrong), deliver_now(bridge, topic, wrong)) == ("unknown", "unknown"), wrong
    assert receive(consumer).text == "meant"
    wait_until(lambda: cancel(bridge, topic, position(meant[0])) == "already-acked", "there was something to ack")


def test_ids_are_taken_as_clients_print_them(bridge: BridgeProcess, client: Any, topic: str) -> None:
    joined(bridge, client, topic)
    ids = publish(client.create_producer(topic), ["0", "1", "2", "3"], deliver_at=now_ms() + HOUR_MS)
    at = [position(one) for one in ids]
    listed = [str(ids[0]), f"{at[1]}:-1", f"{at[2]}:-1:-1"]
    status, answer = bridge.ask("POST", f"{path_of(topic)}/cancel", {"messageIds": listed})
    assert (status, answer["entries"]) == (200, dict.fromkeys(at[:3], "cancelled"))
    assert [each["position"] for each in pending(bridge, topic, messageId=str(ids[3]))] == [at[3]]
    for wrong, said in ((f"{at[3]}:-1:0", f"{at[3]} is all of it"), (f"{at[3]}:2", "is a message of partition 2")):
        status, answer = bridge.ask("DELETE", f"{path_of(topic)}/pending/{wrong}")
        assert (status, said in answer["reason"]) == (400, True), answer


def test_what_a_consumer_has_is_not_cancelled(bridge: BridgeProcess, client: Any, topic: str) -> None:
    consumer = joined(bridge, client, topic, negative_ack_redelivery_delay_ms=500)
    ids = publish(client.create_producer(topic), ["one"], deliver_at=now_ms() + 300)
    first = receive(consumer, ack=False)
    assert cancel(bridge, topic, position(ids[0])) == "already-dispatched"
    assert deliver_now(bridge, topic, position(ids[0])) == "already-dispatched"
    consumer.negative_acknowledge(first.message)
    assert receive(consumer).redelivery_count == 1


def test_what_waits_for_permits_is_cancelled(bridge: BridgeProcess, client: Any, topic: str) -> None:
    """It is due, and not out yet: the consumer's queue holds one message."""
    consumer = joined(bridge, client, topic, receiver_queue_size=1)
    ids = publish(client.create_producer(topic), [str(number) for number in range(4)], deliver_at=now_ms() + 300)
    wait_until(lambda: stats(bridge, topic)["delivered"] == 1, "a delivery")
    wait_until(lambda: now_ms() > ids_due(bridge, topic), "the due time")
    outcomes = [cancel(bridge, topic, position(one)) for one in ids]
    assert outcomes == ["already-dispatched", "cancelled", "cancelled", "cancelled"]
    assert texts(drain_all(consumer)) == ["0"]


def ids_due(bridge: BridgeProcess, topic: str) -> int:
    return max(int(each["deliverAt"]) for each in pending(bridge, topic))


def test_delivered_now(bridge: BridgeProcess, client: Any, topic: str) -> None:
    consumer = joined(bridge, client, topic)
    due = now_ms() + HOUR_MS
    ids = publish(client.create_producer(topic), [str(number) for number in range(5)], deliver_at=due)
    assert deliver_now(bridge, topic, position(ids[3])) == "expedited"
    message = receive(consumer, ack=False)
    assert message.text == "3"
    # Long before it is due it is redelivered like any other.
    consumer.negative_acknowledge(message.message)
    assert receive(consumer).redelivery_count == 1
    assert_quiet(consumer)
    found = stats(bridge, topic)
    assert (found["early"], found["expedited"], found["pending"]) == (0, 1, 4)
    assert deliver_now(bridge, topic, position(ids[3])) == "already-acked"


def test_without_consumers_and_after_a_restart(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    bridge = private_bridge()
    client = clients.connect(bridge.service_url)
    consumer = joined(bridge, client, topic)
    producer = client.create_producer(topic)
    out = publish(producer, ["out"], deliver_at=now_ms() + 100)
    assert receive(consumer, ack=False).text == "out"
    due = now_ms() + 8_000
    ids = publish(producer, [str(number) for number in range(6)], deliver_at=due)
    assert cancel(bridge, topic, position(ids[0])) == "cancelled"
    clients.close()
    assert cancel(bridge, topic, position(ids[1])) == "cancelled"
    assert deliver_now(bridge, topic, position(ids[5])) == "expedited"
    bridge.kill()
    bridge.start()
    wait_until(lambda: bridge.topic(topic).get("role") == "owner", "ownership", timeout=60)
    assert cancel(bridge, topic, position(ids[1])) == "already-acked"
    assert cancel(bridge, topic, position(ids[2])) == "cancelled"
    assert cancel(bridge, topic, position(out[0])) == "already-dispatched", "the bridge before this one delivered it"
    consumer = shared(clients.connect(bridge.service_url), topic)
    got = drain(consumer, 4, 12_000)
    assert texts(got)[:2] in (["out", "5"], ["5", "out"])
    assert texts(got)[2:] == ["3", "4"]
    assert all(each.at_ms >= due for each in got[2:])
    assert_quiet(consumer)


@pytest.mark.timeout(600)
def test_cancel_races_the_due_time(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    """Cancels fall around the due time: what is cancelled is never delivered, and all else is, once.

    DELAY_BRIDGE_LONG=1 makes it ten thousand of them.
    """
    count = RACES
    consumer = joined(bridge, clients.connect(bridge.service_url), topic)
    producer = clients.connect(bridge.service_url).create_producer(topic, block_if_queue_full=True)
    span_ms = count * 8
    start = now_ms() + 3_000 + count * 2
    choose = random.Random(3)
    due = [start + choose.randrange(span_ms) for _ in range(count)]
    ids: dict[int, Any] = {}
    for number in range(count):
        producer.send_async(
            str(number).encode(), lambda _, at, number=number: ids.update({number: at}), deliver_at=due[number]
        )
    producer.flush()
    wait_until(lambda: len(ids) == count, "all stored", timeout=30)
    assert now_ms() < start, "publishing took too long for this test"
    delivered: list[str] = []
    ended = threading.Event()

    def consume() -> None:
        while not ended.is_set():
            delivered.extend(texts(drain_all(consumer, 200)))

    def try_to(number: int) -> str:
        at = due[number] + choose.randrange(-6, 7)
        wait_until(lambda: now_ms() >= at, "the time to cancel", timeout=60 + span_ms / 1000, interval=0.0005)
        return cancel(bridge, topic, position(ids[number]))

    with ThreadPoolExecutor(CALLERS + 1) as threads:
        consuming = threads.submit(consume)
        outcomes = list(threads.map(try_to, sorted(range(count), key=due.__getitem__)))
        ordered = sorted(range(count), key=due.__getitem__)
        cancelled = {str(number) for number, outcome in zip(ordered, outcomes, strict=True) if outcome == "cancelled"}
        wait_until(lambda: len(delivered) >= count - len(cancelled), "what was not cancelled")
        ended.set()
        consuming.result()
    assert_quiet(consumer)
    counted = Counter(outcomes)
    assert set(counted) <= {"cancelled", "already-dispatched", "already-acked"}, counted
    assert not cancelled & {*delivered}
    assert sorted(delivered) == sorted({str(number) for number in range(count)} - cancelled), "the others, once"
    assert len(cancelled) > count // 20, counted
    assert len(delivered) > count // 20, counted


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("DELETE", "/pending/17", None, 400, "not a message id: '17'"),
        ("DELETE", "/pending/3:x", None, 400, "not a message id: '3:x'"),
        ("POST", "/cancel", {"ids": []}, 400, 'expected a body like {"messageIds"'),
        ("POST", "/cancel", {"messageIds": []}, 400, "a list of 1 to 1000 positions"),
        ("POST", "/cancel", {"messageIds": ["3:1"] * 1_001}, 400, "a list of 1 to 1000 positions"),
        ("GET", "/pending?limit=0", None, 400, "limit: not a number: '0' (expected 1 to 1000)"),
        ("GET", f"/pending?limit={'9' * 5_000}", None, 400, "limit: not a number: '9999"),
        ("GET", "/pending?dueFrom=soon", None, 400, "dueFrom: not a time: 'soon'"),
        ("GET", "/pending?cursor=zz", None, 400, "not a cursor: 'zz'"),
        ("GET", "/pending?property=red", None, 400, "property: not NAME=VALUE: 'red'"),
        ("GET", "/pending?messageId=1", None, 400, "not a message id: '1'"),
        ("GET", "/pending?payload=yes", None, 400, "payload: neither true nor false: 'yes'"),
        ("GET", "/histogram?step=1ms", None, 400, "step: not a duration: '1ms' (expected at least 1000 ms)"),
        ("GET", "/histogram?step=999", None, 400, "step: not a duration in ms: '999' (expected 1000 to "),
        ("GET", f"/histogram?step={'9' * 400}d", None, 400, "step: not a duration: '9999"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(
    bridge: BridgeProcess, client: Any, topic: str, method: str, path: str, body: Any, status: int, said: str
) -> None:
    joined(bridge, client, topic)
    answered, answer = bridge.ask(method, path_of(topic) + path, body)
    assert (answered, said in answer["reason"]) == (status, True), answer


def test_what_is_not_tracked(bridge: BridgeProcess, client: Any, topic: str) -> None:
    joined(bridge, client, topic)
    for method, path in (("GET", "/pending"), ("DELETE", "/pending/1:1"), ("POST", "/pending/1:1/deliver-now")):
        status, answer = bridge.ask(method, path_of(topic, "nobody's") + path)
        assert (status, answer["reason"]) == (404, f'{topic} has no tracked subscription "nobody\'s"')


async def test_text_of_any_bytes_is_shown(bridge: BridgeProcess, client: Any, topic: str) -> None:
    """Keys and properties are bytes in clients of some languages; what is no UTF-8 is shown as Java reads it."""
    await asyncio.to_thread(joined, bridge, client, topic)
    producer = await raw_client(bridge.service_url)
    await producer.produce(topic)
    properties = [KeyValue(key="kkkk", value="kkkk")]
    changed = b"kkkk", b"\xffk\xc3("
    await producer.publish(b"1", now_ms() + HOUR_MS, key="kkkk", changed=changed, properties=properties)
    await producer.close()
    await asyncio.to_thread(wait_until, lambda: pending(bridge, topic), "the message is listed")
    (found,) = await asyncio.to_thread(pending, bridge, topic)
    shown = "\ufffdk\ufffd("
    assert (found["key"], found["properties"]) == (shown, {shown: shown})
    assert await asyncio.to_thread(pending, bridge, topic, property=f"{shown}={shown}") == [found]
