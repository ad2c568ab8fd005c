"""Everything that a client may ask in the binary protocol, and what it is told, in a form that can be compared."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict

from bridge.protocol.answers import ANSWER_OF, FIELD_OF
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, MessageIdData
from tests.bridge_process import now_ms
from tests.helpers import NotInTimeError, wait_until_async
from tests.raw_client import RawClient, raw_client
from tests.secured import NAMESPACE, TENANT, token_of
from tests.transactions import begin, connect_coordinator

Told = str | tuple[Any, ...]
Said = list[tuple[str, Told]]
"""What was asked, and what was answered, in order."""

Differences = dict[str, tuple[list[Told], list[Told]]]
"""By what was asked: what each of both places said to it."""

NOW, LATER = ("now 0", "now 1", "now 2"), ("later 0", "later 1")
PRODUCED = "of the role itself"
LATER_MS = 600_000
ANSWER_S = 20.0
SHARED_TYPES = (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)
_VOLATILE = {
    *("requestId", "consumerId", "producerName", "messageId", "lastMessageId", "consumerMarkDeletePosition"),
    *("address", "connectedSince", "protocolVersion", "brokerServiceUrl", "brokerServiceUrlTls", "consumerName"),
    *("proxyThroughServiceUrl", "txnidLeastBits", "topicsHash", "lastSequenceId", "serverVersion", "msgRateOut"),
    *("msgThroughputOut", "msgRateRedeliver", "msgRateExpired", "blockedConsumerOnUnackedMsgs"),
}
"""Fields that are different each time, or name who was asked."""


class Asking:
    """One role at one place: a client that starts over when it is disconnected, and what it was told so far."""

    def __init__(self, url: str, topic: str, connect: dict[str, Any]) -> None:
        """`connect`: fields of CONNECT."""
        self.url, self.topic = url, topic
        self.said: Said = []
        self.received: list[str] = []
        self.answer = BaseCommand()
        """The last one to a request."""
        self._connect = connect
        self._client: RawClient | None = None
        self._once = False

    @property
    def client(self) -> RawClient:
        assert self._client is not None
        return self._client

    async def connected(self) -> bool:
        """Connect, unless it is; False where the role is not let in."""
        if self._once and self.client.lost.done():
            return False
        if self._client is None or self._client.lost.done():
            self._client = await raw_client(self.url, handshake=False)
            try:
                answer = await self._client.handshake(**self._connect)
            except ConnectionError:
                self.said.append(("CONNECT", "closed"))
                return False
            if answer.type != BaseCommand.CONNECTED:
                self.said.append(("CONNECT", self.told(answer)))
                await self._client.closed_by_peer()
                self.said.append(("CONNECT", "closed"))
                return False
        return True

    async def begin(self, first: BaseCommand, *then: BaseCommand) -> None:
        """Connect with a frame of the caller's in place of CONNECT, once and never again; others follow CONNECTED."""
        client = self._client = await raw_client(self.url, handshake=False)
        client.send(first)

        def heard() -> BaseCommand | None:
            kinds = (BaseCommand.CONNECTED, BaseCommand.ERROR)
            return next((each for each in client.events if each.type in kinds), None)

        await wait_until_async(lambda: heard() or client.lost.done(), "an answer, or the end", interval=0.005)
        answer = heard()
        self.note("CONNECT", "closed" if answer is None else self.told(answer))
        self._once = True
        if answer is None or answer.type == BaseCommand.ERROR:
            await client.closed_by_peer()
        for frame in then:
            client.send(frame)

    async def close(self) -> None:
        if self._client is not None and not self._client.lost.done():
            await self._client.close()
        self._take()

    def note(self, what: str, told: Told) -> Told:
        self.said.append((what, told))
        return told

    async def ask(self, what: str, kind: BaseCommand.Type, fill: Callable[[Any], None] | None = None) -> bool:
        """A request with an id; returns whether it was agreed to."""
        if not await self.connected():
            return False
        command = BaseCommand(type=kind)
        body = getattr(command, FIELD_OF[kind])
        body.request_id = request_id = self.client.next_request_id()
        if fill is not None:
            fill(body)
        try:
            answer = self.answer = await self.client.request(command, request_id, ANSWER_S)
        except asyncio.CancelledError:
            if not self.client.lost.done():
                raise
            self.note(what, "closed")
            return False
        except TimeoutError:
            self.note(what, "silence")
            return False
        told = self.told(answer)
        self.note(what, told)
        refused = {"error", "error_code"} & {each.name for each, _ in _body(answer).ListFields()}
        return answer.type == ANSWER_OF.get(kind, BaseCommand.ACK_RESPONSE) and not refused

    async def barrier(self, what: str) -> None:
        """What has no answer of its own: the broker still answers a PING after it, or has closed the connection."""
        if self.client.lost.done():
            self.note(what, "closed")
            return
        self.client.send(BaseCommand(type=BaseCommand.PING, ping={}))

        def heard() -> str:
            events = self.client.events
            pong = next((each for each in events if each.type == BaseCommand.PONG), None)
            if pong is not None:
                events.remove(pong)
            return "goes on" if pong else "closed" if self.client.lost.done() else ""

        self.note(what, await wait_until_async(heard, f"an answer to PING after {what}"))

    async def messages(self, what: str, expected: int) -> None:
        """Wait for so many, which is a guess: fewer or more make the difference."""
        taken: list[str] = []

        def enough() -> bool:
            taken.extend(self._take())
            return len(taken) >= expected

        with contextlib.suppress(NotInTimeError):
            await wait_until_async(enough, "messages", timeout=ANSWER_S)
        self.note(what, tuple(sorted(taken)))

    def _take(self) -> list[str]:
        found = []
        while self._client is not None and not self._client.messages.empty():
            found.append(self._client.messages.get_nowait().payload.decode())
        self.received.extend(found)
        return found

    def told(self, answer: BaseCommand) -> Told:
        """The type of an answer and what it says, less what is different each time."""
        body = _body(answer)
        said = MessageToDict(body)
        for name in _VOLATILE:
            said.pop(name, None)
        return BaseCommand.Type.Name(answer.type), tuple(sorted((k, plain(v, self.topic)) for k, v in said.items()))


def plain(value: object, topic: str) -> str:
    """What was said about a topic, less what is different each time."""
    text = str(value).replace(topic.removeprefix("persistent://"), "TOPIC").replace(topic, "TOPIC")
    text = re.sub(rf"{NAMESPACE}/t-[0-9a-f]{{10}}", "ANOTHER", text)
    text = re.sub(r"\d+:\d+(:-?\d+)*", "POSITION", text)
    text = re.sub(r"\(\d+,\d+\)", "TRANSACTION", text)
    text = re.sub(r"reqId = \d+, |remote address.*|\[id: 0x.*|consumerId: \d+", "", text)
    return re.sub(r"(?:/?127\.0\.0\.1|localhost)[:/]\S*", "ADDRESS", text)


def _body(answer: BaseCommand) -> Any:
    return getattr(answer, FIELD_OF[answer.type])


class Holder:
    """Another role, which was at the topic before: it has a consumer, a producer and a transaction, all with id 1."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.transaction = (0, 0)
        self._clients: list[RawClient] = []

    async def prepare(self, url: str, topic: str) -> None:
        """Make the topic what it is to be.

        `new`: nobody has consumed; `left`: messages are known, and the consumer is gone; `held`: it is still there.
        """
        producer = await self._connect(url, "producer")
        await producer.produce(topic)
        consumer = await self._connect(url, "consumer")
        if self.state != "new":
            await consumer.consume(topic)
        due = now_ms() + LATER_MS
        for number, (text, at) in enumerate([(text, None) for text in NOW] + [(text, due) for text in LATER]):
            await producer.publish(text.encode(), at, sequence_id=number)
        if self.state != "new":
            consumer.flow(1)
            first = await consumer.message(ANSWER_S)
            assert first.payload == NOW[0].encode()
            if self.state == "left":
                consumer.ack(first.position)
                await consumer.close_consumer()
                await consumer.close()
        coordinator = await self._connect(url, "admin")
        await connect_coordinator(coordinator)
        self.transaction = await begin(coordinator, topic)

    async def _connect(self, url: str, role: str) -> RawClient:
        client = await raw_client(url, handshake=False)
        await client.handshake(auth_method_name="token", auth_data=token_of(role).encode())
        self._clients.append(client)
        return client

    @property
    def unacked(self) -> int:
        """Of the messages without a delay: those of `s` that nobody holds."""
        return len(NOW) - (self.state != "new")

    async def close(self) -> None:
        for client in self._clients:
            if not client.lost.done():
                await client.close()


async def probe_connection(asking: Asking, *frames: BaseCommand) -> None:
    """What becomes of a connection that begins with these frames, and what it may do."""
    await asking.begin(*frames)
    await asking.ask("LOOKUP", BaseCommand.LOOKUP, _filled(topic=asking.topic))
    if await asking.ask("SUBSCRIBE", BaseCommand.SUBSCRIBE, _subscribing(asking, "s", 1)):
        asking.client.flow(100)
        await asking.messages("messages", len(NOW))
    await asking.close()


async def probe(asking: Asking, holder: Holder) -> None:
    """All of it. Afterwards `asking.said` and `asking.received` tell."""
    for part in (_look_up, _strangers, _produce, _schemas, _lists, _subscribe_anew, _subscribe_there, _transactions):
        if not await asking.connected():
            break
        await part(asking, holder)
    await asking.close()


async def _look_up(asking: Asking, holder: Holder) -> None:
    # Also of what there is not: a topic of another namespace, a namespace and a tenant.
    other = [f"persistent://{where}/t" for where in (f"{TENANT}/other", f"{TENANT}/nowhere", "nobody/nowhere")]
    for topic, name in [(asking.topic, "topic"), *((each, each) for each in other)]:
        for kind in (BaseCommand.PARTITIONED_METADATA, BaseCommand.LOOKUP):
            await asking.ask(f"{BaseCommand.Type.Name(kind)} {name}", kind, _filled(topic=topic))


async def _strangers(asking: Asking, holder: Holder) -> None:
    """Commands about a consumer and a producer that another connection has with these ids, and not this one."""
    await _of_a_consumer(asking, "a stranger's", 1)
    await _send(asking, "a stranger's", 1)
    await asking.ask("close a stranger's producer", BaseCommand.CLOSE_PRODUCER, _filled(producer_id=1))


async def _of_a_consumer(asking: Asking, whose: str, consumer_id: int) -> None:
    """Each command that names a consumer, but for the one that ends it."""

    fill = partial(_filled, consumer_id=consumer_id)

    for kind in (BaseCommand.CONSUMER_STATS, BaseCommand.GET_LAST_MESSAGE_ID, BaseCommand.CLOSE_CONSUMER):
        name = f"{BaseCommand.Type.Name(kind)} {whose}"
        if kind != BaseCommand.CLOSE_CONSUMER:
            await asking.ask(name, kind, fill())
    for what in ("FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES"):
        if not await asking.connected():
            return
        if what == "FLOW":
            asking.client.flow(10, consumer_id)
        elif what == "ACK":
            asking.client.ack((0, 0), consumer_id=consumer_id)
        else:
            asking.client.redeliver(consumer_id=consumer_id)
        await asking.barrier(f"{what} {whose}")
    if whose == "a stranger's":
        await asking.ask(f"SEEK {whose}", BaseCommand.SEEK, fill(message_id=MessageIdData(ledgerId=0, entryId=0)))
        await asking.ask(f"UNSUBSCRIBE {whose}", BaseCommand.UNSUBSCRIBE, fill())
        await asking.ask(f"CLOSE_CONSUMER {whose}", BaseCommand.CLOSE_CONSUMER, fill())


async def _produce(asking: Asking, holder: Holder) -> None:
    agreed = await asking.ask("PRODUCER", BaseCommand.PRODUCER, _filled(producer_id=7, topic=asking.topic))
    if agreed:
        await asking.client.publish(PRODUCED.encode(), producer_id=7)
        asking.note("SEND", "stored")
    else:
        await _send(asking, "refused", 7)


async def _send(asking: Asking, whose: str, producer_id: int) -> None:
    """There is no such producer: nothing may be stored."""
    if await asking.connected():
        stored = asyncio.ensure_future(asking.client.publish(b"smuggled", producer_id=producer_id))
        await asyncio.sleep(0)
        await asking.barrier(f"SEND {whose}")
        asking.note(f"SEND {whose}", "stored" if stored.done() and not stored.cancelled() else "not stored")
        stored.cancel()
        await asyncio.gather(stored, return_exceptions=True)


async def _schemas(asking: Asking, holder: Holder) -> None:
    def create(body: Any) -> None:
        body.topic = asking.topic
        body.schema.name = "s"
        body.schema.schema_data = b""
        body.schema.type = 1  # String

    await asking.ask("GET_SCHEMA", BaseCommand.GET_SCHEMA, _filled(topic=asking.topic))
    await asking.ask("GET_OR_CREATE_SCHEMA", BaseCommand.GET_OR_CREATE_SCHEMA, create)
    await asking.ask("GET_SCHEMA then", BaseCommand.GET_SCHEMA, _filled(topic=asking.topic))


async def _lists(asking: Asking, holder: Holder) -> None:
    # A pattern that one topic alone matches: others come and go.
    pattern = f"{asking.topic}.*"
    for namespace in (NAMESPACE, f"{TENANT}/nowhere"):
        await asking.ask(
            f"GET_TOPICS_OF_NAMESPACE {namespace}",
            BaseCommand.GET_TOPICS_OF_NAMESPACE,
            _filled(namespace=namespace, topics_pattern=pattern),
        )
        await asking.ask(
            f"WATCH_TOPIC_LIST {namespace}",
            BaseCommand.WATCH_TOPIC_LIST,
            _filled(namespace=namespace, topics_pattern=pattern, watcher_id=len(namespace)),
        )
    await asking.ask(
        "WATCH_TOPIC_LIST_CLOSE",
        BaseCommand.WATCH_TOPIC_LIST_CLOSE,
        _filled(watcher_id=len(NAMESPACE)),
    )


def _subscribing(asking: Asking, subscription: str, consumer_id: int, **fields: Any) -> Callable[[Any], None]:
    def fill(body: Any) -> None:
        _set(body, topic=asking.topic, subscription=subscription, consumer_id=consumer_id, consumer_name="x")
        _set(body, initialPosition=CommandSubscribe.Earliest, **{"subType": CommandSubscribe.Shared, **fields})

    return fill


def _without_delay(asking: Asking) -> int:
    return len(NOW) + (("SEND", "stored") in asking.said)


async def _subscribe_anew(asking: Asking, holder: Holder) -> None:
    """Every type, durable and not, with subscriptions that there are not yet; and names that mean something."""
    kinds = [(kind, durable) for kind in CommandSubscribe.SubType.values() for durable in (True, False)]
    for number, (kind, durable) in enumerate(kinds, start=20):
        name = f"{CommandSubscribe.SubType.Name(kind)} {'durable' if durable else 'not durable'}"
        start = {} if durable else {"start_message_id": MessageIdData(ledgerId=0, entryId=0)}
        fill = _subscribing(asking, f"anew-{number}", number, subType=kind, durable=durable, **start)
        if await asking.ask(f"SUBSCRIBE {name}", BaseCommand.SUBSCRIBE, fill):
            asking.client.flow(100, number)
            expected = _without_delay(asking) + (0 if kind in SHARED_TYPES else len(LATER))
            await asking.messages(f"messages {name}", expected)
            await asking.ask(f"CLOSE_CONSUMER {name}", BaseCommand.CLOSE_CONSUMER, _filled(consumer_id=number))
        elif await asking.connected():
            asking.client.flow(100, number)
            await asking.barrier(f"FLOW {name}")
    for number, name in enumerate(("granted", HIDDEN_SUBSCRIPTION), start=40):
        for kind in (CommandSubscribe.Failover, CommandSubscribe.Shared):
            what = f"{name} {CommandSubscribe.SubType.Name(kind)}"
            if await asking.ask(
                f"SUBSCRIBE {what}", BaseCommand.SUBSCRIBE, _subscribing(asking, name, number, subType=kind)
            ):
                asking.client.flow(100, number)
                expected = _without_delay(asking) + (len(LATER) if kind == CommandSubscribe.Failover else 0)
                await asking.messages(f"messages {what}", expected)
                await asking.ask(f"UNSUBSCRIBE {what}", BaseCommand.UNSUBSCRIBE, _filled(consumer_id=number))


async def _subscribe_there(asking: Asking, holder: Holder) -> None:
    """The subscription of the other role, all that can be done with it, and its end."""
    there = holder.unacked + (("SEND", "stored") in asking.said)
    agreed = await asking.ask("SUBSCRIBE s", BaseCommand.SUBSCRIBE, _subscribing(asking, "s", 60))
    await asking.ask(
        "SUBSCRIBE s alone",
        BaseCommand.SUBSCRIBE,
        _subscribing(asking, "s", 61, subType=CommandSubscribe.Exclusive),
    )
    if await asking.connected():
        asking.client.flow(100, 60)
        await (asking.messages("messages s", there) if agreed else asking.barrier("FLOW s"))
    await _of_a_consumer(asking, "s", 60)
    if not await asking.connected():
        return
    if agreed:
        await asking.messages("messages s once more", there)
    await asking.ask("SEEK s", BaseCommand.SEEK, _filled(consumer_id=60, message_publish_time=0))
    if agreed:
        await asking.client.event(BaseCommand.CLOSE_CONSUMER, ANSWER_S)
    if await asking.ask("SUBSCRIBE s again", BaseCommand.SUBSCRIBE, _subscribing(asking, "s", 62)):
        asking.client.flow(100, 62)
        await asking.messages("messages s again", _without_delay(asking))
    await asking.ask("UNSUBSCRIBE s", BaseCommand.UNSUBSCRIBE, _filled(consumer_id=62))


async def _transactions(asking: Asking, holder: Holder) -> None:
    """The other role's, and one of its own."""
    await asking.ask("TC_CLIENT_CONNECT_REQUEST", BaseCommand.TC_CLIENT_CONNECT_REQUEST, _filled(tc_id=0))
    await _of_a_transaction(asking, "a stranger's", holder.transaction)
    if await asking.ask("NEW_TXN", BaseCommand.NEW_TXN, _filled(tc_id=0, txn_ttl_seconds=60_000)):
        new = asking.answer.newTxnResponse
        await _of_a_transaction(asking, "its own", (new.txnid_most_bits, new.txnid_least_bits))


async def _of_a_transaction(asking: Asking, whose: str, transaction: tuple[int, int]) -> None:
    fill = partial(_filled, txnid_most_bits=transaction[0], txnid_least_bits=transaction[1])

    def subscription(body: Any) -> None:
        fill()(body)
        body.subscription.add(topic=asking.topic, subscription="s")

    def on_subscription(body: Any) -> None:
        fill()(body)
        body.subscription.topic, body.subscription.subscription = asking.topic, "s"

    for kind, what in (
        (BaseCommand.ADD_PARTITION_TO_TXN, fill(partitions=[asking.topic])),
        (BaseCommand.ADD_SUBSCRIPTION_TO_TXN, subscription),
        (BaseCommand.END_TXN_ON_PARTITION, fill(topic=asking.topic, txn_action=1)),
        (BaseCommand.END_TXN_ON_SUBSCRIPTION, on_subscription),
        (BaseCommand.END_TXN, fill(txn_action=1)),
        (BaseCommand.END_TXN, fill(txn_action=0)),
    ):
        await asking.ask(f"{BaseCommand.Type.Name(kind)} {whose}", kind, what)


def _filled(**fields: Any) -> Callable[[Any], None]:
    """What fills a command's body in."""
    return partial(_set, **fields)


def _set(body: Any, **fields: Any) -> None:
    for name, value in fields.items():
        if isinstance(value, MessageIdData):
            getattr(body, name).CopyFrom(value)
        elif isinstance(value, list):
            getattr(body, name).extend(value)
        else:
            setattr(body, name, value)


def differences(broker: Said, bridge: Said) -> Differences:
    """By what was asked: what each of both said to it, where that differs."""
    names = dict.fromkeys(name for name, _ in [*broker, *bridge])
    each = {name: [[told for asked, told in said if asked == name] for said in (broker, bridge)] for name in names}
    return {name: (one, other) for name, (one, other) in each.items() if one != other}
