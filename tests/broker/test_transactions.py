"""Acks in transactions, and messages published in them: the same on the broker and through the bridge."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from bridge.protocol.pulsar_pb2 import BaseCommand
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import QUIET_MS, admin, rest_path
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, RawMessage, raw_client
from tests.transactions import (
    Place,
    abort,
    ack_in,
    begin,
    commit,
    connect_coordinator,
    end,
    produce_in,
)

COUNT = 6
BATCH = 4
EVERYTHING = 100
HOUR_MS = 3_600_000

Connect = Callable[[], Awaitable[RawClient]]


@pytest.fixture(params=["broker", "bridge"])
def url(request: pytest.FixtureRequest, configured_broker: PulsarCluster) -> str:
    """Where the clients connect to."""
    if request.param == "broker":
        return configured_broker.service_url
    return str(request.getfixturevalue("configured_bridge").service_url)


class Setting(NamedTuple):
    """A client with a consumer that has got all messages, and where these are."""

    topic: str
    client: RawClient
    places: list[Place]


@pytest_asyncio.fixture
async def setting(url: str, topic: str) -> AsyncIterator[Setting]:
    client = await raw_client(url)
    await connect_coordinator(client)
    yield await set_up(client, topic)
    await client.close()


async def set_up(client: RawClient, topic: str, messages: int | None = None) -> Setting:
    await client.consume(topic)
    await client.produce(topic)
    places = [await client.publish(b"x", sequence_id=number, messages=messages) for number in range(COUNT)]
    client.flow(EVERYTHING)
    assert [each.position for each in await receive(client, COUNT)] == places
    return Setting(topic, client, places)


async def receive(client: RawClient, count: int) -> list[RawMessage]:
    """In the order of positions: of what one consumer is given that is the order they come in, of two it is not."""
    return sorted([await client.message() for _ in range(count)], key=lambda each: each.position)


async def quiet(client: RawClient) -> None:
    """Nothing comes."""
    with contextlib.suppress(TimeoutError):
        more = await client.message(QUIET_MS / 1000)
        pytest.fail(f"{more.position} came")


def seen(messages: list[RawMessage]) -> list[tuple[Place, int]]:
    """What matters of them: places and redelivery counts."""
    return [(each.position, each.redelivery_count) for each in messages]


async def join(url: str, topic: str, consumer_id: int = 2) -> RawClient:
    """Another client with a consumer."""
    client = await raw_client(url)
    await client.consume(topic, consumer_id=consumer_id)
    client.flow(EVERYTHING, consumer_id)
    return client


def acked(broker: PulsarCluster, topic: str) -> str:
    """What the cursor has beyond its mark-delete position."""
    cursor = admin(broker, "GET", f"{rest_path(topic)}/internalStats")["cursors"]["s"]
    return str(cursor["individuallyDeletedMessages"])


# -- pending


async def test_what_is_pending_is_nobodys_and_comes_again_on_abort(setting: Setting, url: str) -> None:
    """Neither asked for again, nor when its consumer leaves; then to whoever is there, counted once."""
    topic, client, places = setting
    transaction = await begin(client, topic)
    assert not await ack_in(client, transaction, *places[1:3])
    client.redeliver(places[1])
    client.redeliver()
    others = [places[0], *places[3:]]
    assert seen(await receive(client, COUNT - 2)) == [(each, 1) for each in others]
    await quiet(client)
    other = await join(url, topic)
    await client.close_consumer()
    assert [each.position for each in await receive(other, COUNT - 2)] == others
    await quiet(other)
    await abort(client, transaction)
    assert seen(await receive(other, 2)) == [(each, 1) for each in places[1:3]]
    await quiet(other)
    await other.close()


async def test_committed_is_acked(setting: Setting, url: str, configured_broker: PulsarCluster) -> None:
    """For good: it does not come again when whoever acked it leaves."""
    topic, client, places = setting
    transaction = await begin(client, topic)
    assert not await ack_in(client, transaction, *places[1:3])
    await commit(client, transaction)
    ledger = places[0][0]
    assert acked(configured_broker, topic) == f"[({ledger}:0..{ledger}:2]]"
    client.redeliver()
    others = [places[0], *places[3:]]
    assert [each.position for each in await receive(client, COUNT - 2)] == others
    await client.close_consumer()
    other = await join(url, topic)
    assert [each.position for each in await receive(other, COUNT - 2)] == others
    await quiet(other)
    await other.close()


async def test_all_that_is_left_is_acked_in_one(setting: Setting, url: str, configured_broker: PulsarCluster) -> None:
    topic, client, places = setting
    transaction = await begin(client, topic)
    for place in places:
        assert not await ack_in(client, transaction, place)
    await commit(client, transaction)
    client.redeliver()
    later = await client.publish(b"later", sequence_id=COUNT)
    assert seen(await receive(client, 1)) == [(later, 0)]
    await quiet(client)


async def test_without_an_end_it_times_out(setting: Setting) -> None:
    topic, client, places = setting
    # Long enough for the ack to be there in time: one that is too late stays pending for ever, at the broker too.
    transaction = await begin(client, topic, ttl_ms=4_000)
    assert not await ack_in(client, transaction, places[1])
    await quiet(client)
    assert seen(await receive(client, 1)) == [(places[1], 1)]
    await quiet(client)


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
async def test_ended_by_somebody_elsewhere(
    setting: Setting, configured_broker: PulsarCluster, url: str, committed: bool
) -> None:
    """Who takes part in a transaction need not be connected where it ends."""
    topic, client, places = setting
    elsewhere = await raw_client(configured_broker.service_url)
    await connect_coordinator(elsewhere)
    transaction = await begin(elsewhere, topic)
    assert not await ack_in(client, transaction, places[1])
    await end(elsewhere, transaction, commit=committed)
    if committed:
        client.redeliver()
        assert seen(await receive(client, COUNT - 1)) == [(each, 1) for each in places if each != places[1]]
        await asyncio.sleep(3)  # longer than it takes to be asked about
        await client.close_consumer()
        other = await join(url, topic)
        assert len(await receive(other, COUNT - 1)) == COUNT - 1
        await quiet(other)
        await other.close()
    else:
        assert seen(await receive(client, 1)) == [(places[1], 1)]
    await elsewhere.close()


async def test_an_ack_that_is_refused_changes_nothing(
    setting: Setting, url: str, configured_broker: PulsarCluster
) -> None:
    """Of another transaction, together with what could be acked: none of it is.

    A broker gives the rest of such a list to nobody any more, until the topic is loaded anew. The bridge does.
    """
    topic, client, places = setting
    first, second = await begin(client, topic), await begin(client, topic)
    assert not await ack_in(client, first, places[2])
    assert "TransactionConflict" in await ack_in(client, second, places[3], places[2])
    assert "TransactionConflict" in await ack_in(client, first, places[2])
    client.redeliver(places[3], places[2])
    if url != configured_broker.service_url:
        assert seen(await receive(client, 1)) == [(places[3], 1)]
    await abort(client, second)
    await quiet(client)
    await abort(client, first)
    assert seen(await receive(client, 1)) == [(places[2], 1)]


async def test_an_ack_without_transaction_settles_it(setting: Setting) -> None:
    topic, client, places = setting
    transaction = await begin(client, topic)
    assert not await ack_in(client, transaction, *places[1:3])
    assert not await ack_in(client, None, places[1])
    await abort(client, transaction)
    assert seen(await receive(client, 1)) == [(places[2], 1)]
    assert "already acked" in await ack_in(client, await begin(client, topic), places[1])
    await quiet(client)


async def test_acked_before_it_was_delivered(url: str, topic: str) -> None:
    """Whoever has the id may ack; a delayed one never comes early for all that."""
    client = await raw_client(url)
    await connect_coordinator(client)
    await client.consume(topic)
    await client.produce(topic)
    now = await client.publish(b"now")
    due_ms = now_ms() + 1_500
    later = [await client.publish(b"later", due_ms, sequence_id=number) for number in (1, 2)]
    transaction = await begin(client, topic)
    assert not await ack_in(client, transaction, now, later[0])
    client.flow(EVERYTHING)
    first = await receive(client, 1)
    assert seen(first) == [(later[1], 0)]
    await quiet(client)
    await abort(client, transaction)
    assert seen(await receive(client, 2)) == [(now, 1), (later[0], 1)]
    await client.close()


# -- batches


async def test_parts_of_a_batch(url: str, topic: str) -> None:
    """Each transaction has its messages; what none has is delivered."""
    client = await raw_client(url)
    await connect_coordinator(client)
    _, _, places = await set_up(client, topic, messages=BATCH)
    first, second = await begin(client, topic), await begin(client, topic)
    assert not await ack_in(client, first, places[1], ack_set=(0b1110,), batch_size=BATCH)
    client.redeliver()
    again = await receive(client, COUNT)
    assert [each.ack_set for each in again] == [(), (0b1110,), (), (), (), ()]
    for bits in (0b1101, 0b1011, 0b0111):
        assert not await ack_in(client, second, places[1], ack_set=(bits,), batch_size=BATCH)
    client.redeliver()
    assert places[1] not in [each.position for each in await receive(client, COUNT - 1)]
    await quiet(client)
    await abort(client, second)
    (back,) = await receive(client, 1)
    assert (back.position, back.ack_set) == (places[1], (0b1110,))
    await client.close()


async def test_a_batch_acked_message_by_message(url: str, topic: str, configured_broker: PulsarCluster) -> None:
    client = await raw_client(url)
    await connect_coordinator(client)
    _, _, places = await set_up(client, topic, messages=BATCH)
    transaction = await begin(client, topic)
    for bits in (0b1110, 0b1101, 0b1011, 0b0111):
        assert not await ack_in(client, transaction, places[1], ack_set=(bits,), batch_size=BATCH)
    await commit(client, transaction)
    ledger = places[0][0]
    await wait_until_async(
        lambda: acked(configured_broker, topic) == f"[({ledger}:0..{ledger}:1]]", "acked at the broker"
    )
    client.redeliver()
    assert places[1] not in [each.position for each in await receive(client, COUNT - 1)]
    await quiet(client)
    await client.close()


# -- while everything else goes on


async def test_pending_across_a_seek(setting: Setting) -> None:
    """What was acked before it counts by the transaction's end."""
    topic, client, places = setting
    transaction = await begin(client, topic)
    assert not await ack_in(client, transaction, *places[1:3])
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, (request_id := client.next_request_id())
    command.seek.message_id.ledgerId, command.seek.message_id.entryId = places[0]
    assert (await client.request(command, request_id)).type == BaseCommand.SUCCESS
    await client.consume(topic, consumer_id=2)
    client.flow(EVERYTHING, consumer_id=2)
    assert [each.position for each in await receive(client, COUNT - 2)] == [places[0], *places[3:]]
    await quiet(client)
    await abort(client, transaction)
    assert [each.position for each in await receive(client, 2)] == places[1:3]


async def test_pending_across_an_unload(setting: Setting, configured_broker: PulsarCluster) -> None:
    topic, client, places = setting
    given_up, done = await begin(client, topic), await begin(client, topic)
    assert not await ack_in(client, given_up, *places[1:3])
    assert not await ack_in(client, done, places[3])
    admin(configured_broker, "PUT", f"{rest_path(topic)}/unload")
    await client.event(BaseCommand.CLOSE_CONSUMER)
    await client.consume(topic, consumer_id=2)
    client.flow(EVERYTHING, consumer_id=2)
    assert [each.position for each in await receive(client, COUNT - 3)] == [places[0], *places[4:]]
    await quiet(client)
    await abort(client, given_up)
    assert seen(await receive(client, 2)) == [(each, 1) for each in places[1:3]]
    await commit(client, done)
    await client.close_consumer(2)
    await client.consume(topic, consumer_id=3)
    client.flow(EVERYTHING, consumer_id=3)
    assert places[3] not in [each.position for each in await receive(client, COUNT - 1)]
    await quiet(client)


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
async def test_pending_while_the_bridge_is_another(
    configured_broker: PulsarCluster, tmp_path: Path, topic: str, committed: bool
) -> None:
    """One that has lost all it knew asks the broker, and keeps what is pending until the transaction ends."""
    first = BridgeProcess(configured_broker, tmp_path / "first").start()
    client = await raw_client(first.service_url)
    await connect_coordinator(client)
    _, _, places = await set_up(client, topic)
    transaction = await begin(client, topic)
    assert not await ack_in(client, transaction, *places[1:3])
    await client.close()
    await asyncio.to_thread(first.kill)
    second = await asyncio.to_thread(BridgeProcess(configured_broker, tmp_path / "second").start)
    client = await join(second.service_url, topic)
    others = [places[0], *places[3:]]
    assert [each.position for each in await receive(client, COUNT - 2)] == others
    await quiet(client)
    await connect_coordinator(client)
    await end(client, transaction, commit=committed)
    if committed:
        await quiet(client)
        await client.close_consumer(2)
        await client.consume(topic, consumer_id=3)
        client.flow(EVERYTHING, 3)
        assert [each.position for each in await receive(client, COUNT - 2)] == others
        await quiet(client)
    else:
        assert [each.position for each in await receive(client, 2)] == places[1:3]
    await client.close()
    await asyncio.to_thread(second.stop)


# -- messages in transactions


@pytest.mark.parametrize("delay_ms", [0, 500], ids=["immediate", "delayed"])
async def test_messages_of_a_transaction_come_when_it_is_committed(url: str, topic: str, delay_ms: int) -> None:
    """Those of one that is given up never do, and neither does what marks the ends in the topic."""
    client = await raw_client(url)
    await connect_coordinator(client)
    await client.consume(topic)
    await client.produce(topic)
    client.flow(EVERYTHING)
    given_up, done = await begin(client, topic), await begin(client, topic)
    due_ms = now_ms() + delay_ms if delay_ms else None
    wanted = []
    for number, transaction in enumerate([given_up, done, given_up, done]):
        if number < 2:
            await produce_in(client, transaction, topic)
        place = await client.publish(b"x", due_ms, sequence_id=number, transaction=transaction)
        if transaction == done:
            wanted.append(place)
    plain = await client.publish(b"x", due_ms, sequence_id=4)
    await asyncio.sleep(delay_ms / 1000)
    await quiet(client)  # a plain one waits for those before it
    await commit(client, done)
    await quiet(client)
    await abort(client, given_up)
    assert [each.position for each in await receive(client, 3)] == [*wanted, plain]
    await quiet(client)
    client.redeliver()
    assert [each.position for each in await receive(client, 3)] == [*wanted, plain]
    await client.close()
