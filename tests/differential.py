"""One random history of a subscription, told by a seed, played on a broker and through the bridge.

What a history does depends on nothing that brokers decide: who gets which message may differ, so it speaks of messages,
not of who has them, and goes on only when everything that is owed is in somebody's hands. So two players of one seed do
the same, and what they note of it has to be the same. Where keys are shared, whose a key is is decided alike: who gets
which message is noted too, and what is owed of a key waits as long as somebody has messages of it whose it is no more.
"""

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.dispatch.keyed.key_selector import HashRing
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe
from bridge.protocol.sticky_keys import hashed, ring_hash
from tests.bridge_process import BridgeProcess, Broker, now_ms
from tests.clients import admin, rest_path
from tests.helpers import NotInTimeError, wait_until_async
from tests.raw_client import RawClient, RawMessage, raw_client
from tracker import AckSet, Position, iter_ranges

SETTINGS: Final = {"acknowledgmentAtBatchIndexLevelEnabled": "true"}
"""Of the broker: acks of single messages of a batch mean something."""
STEPS: Final = 25
BATCH: Final = 4
_WHOLE: Final = (1 << BATCH) - 1
_PERMITS: Final = 10_000
_CONSUMERS_MOST: Final = 3
_SHORT_MS: Final = (50, 400)
_NEVER_MS: Final = 3_600_000
_PATIENCE_S: Final = 12.0
_QUIET_S: Final = 0.3
_TRIES: Final = 4
_KEYS: Final = ("a", "b", "c", "d", "e")


@dataclass
class Message:
    """An entry of the topic, and what is owed of it; `left`: bits of its messages that are not acked.

    `told`: that it comes next is told by the seed, and does not hang on who had it. `new`: it has not come since the
    cursor was set last.
    """

    number: int
    position: tuple[int, int]
    publish_ms: int
    batched: bool
    never: bool
    delayed: bool
    key: str
    left: int = _WHOLE
    acked: bool = False
    holder: int | None = None
    told: bool = True
    new: bool = True


@dataclass
class Outcome:
    """What a player noted; all of it is the same for every player of the seed."""

    steps: list[str] = field(default_factory=list)
    received: dict[int, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    """By message: the redelivery counts that it came with, how many of its messages were unacked, and to whom where
    keys are shared.

    What came only because who had it has left is not among them.
    """
    orders: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By key, where keys are shared: messages without delay in the order in which they came first; -1: the cursor was
    set anew."""
    unexpected: list[str] = field(default_factory=list)
    """What came though somebody had it, or another of its key, or it was acked, or not due for long."""
    stuck: str = ""
    """What did not come, and after which step."""
    cursors: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """At the ends of subscriptions: up to which message all is acked, and which ones beyond."""
    attempts: int = 1
    """How often it was played until nothing was stuck."""

    def differences(self, other: "Outcome") -> list[str]:
        """Where they are not the same, this one first."""
        found = []
        for name in ("stuck", "unexpected", "cursors", "orders", "steps"):
            if getattr(self, name) != getattr(other, name):
                found.append(f"{name}: {getattr(self, name)!r} / {getattr(other, name)!r}")
        for number in sorted(self.received.keys() | other.received.keys()):
            mine, theirs = self.received.get(number), other.received.get(number)
            if mine != theirs:
                found.append(f"message {number} came as {mine} / {theirs}")
        return found


class Player:
    """Plays the history of a seed at a broker, or at a bridge before it."""

    def __init__(self, seed: int, broker: Broker, bridge: BridgeProcess | None, topic: str, kind: int) -> None:
        """`kind`: the type of the subscription."""
        self._chance = random.Random(seed)
        self._url = broker.service_url if bridge is None else bridge.service_url
        self._broker = broker
        self._bridge = bridge
        self._topic = topic
        self._kind = kind
        self._keyed = kind == CommandSubscribe.Key_Shared
        self._producer: RawClient | None = None
        self._consumers: dict[int, RawClient] = {}
        self._joined = 0
        self._sequence = 0
        self._last_ms = 0
        self._messages: list[Message] = []
        self._by_position: dict[tuple[int, int], Message] = {}
        self._outcome = Outcome()

    async def play(self, steps: int = STEPS) -> Outcome:
        """Returns what was noted."""
        try:
            await self._open_producer()
            await self._join()
            for _ in range(steps):
                await self._step()
            await self._finish()
        except NotInTimeError as error:
            self._outcome.stuck = f"after {self._outcome.steps[-1:]}: {self._missing() or error}"
        finally:
            for client in [self._producer, *self._consumers.values()]:
                if client is not None:
                    await client.close()
        return self._outcome

    # -- steps

    async def _step(self) -> None:
        actions: list[tuple[int, Callable[[], Any]]] = [
            (6, self._publish),
            (5, self._ack),
            (2, self._ack_parts),
            (1, self._ack_undelivered),
            (3, self._nack),
            (1, self._redeliver_all),
            (2, self._join),
            (2, self._leave),
            (1, self._hang_up),
            (1, self._seek),
            (1, self._seek_to_time),
            (1, self._unsubscribe),
        ]
        action = self._chance.choices([each for _, each in actions], [weight for weight, _ in actions])[0]
        self._outcome.steps.append(action.__name__.strip("_"))
        await action()
        await self._settle()

    async def _publish(self) -> None:
        assert self._producer is not None
        for _ in range(self._chance.randint(1, 8)):
            batched = self._chance.random() < 0.3
            delay_ms = self._chance.choice([None, None, None, self._chance.randint(*_SHORT_MS), _NEVER_MS])
            key = self._chance.choice(_KEYS)
            self._last_ms = publish_ms = max(now_ms(), self._last_ms + 1)
            self._sequence += 1
            position = await self._producer.publish(
                b"x",
                None if delay_ms is None else now_ms() + delay_ms,
                sequence_id=self._sequence,
                messages=BATCH if batched else None,
                publish_ms=publish_ms,
                key=key,
            )
            never, delayed = delay_ms == _NEVER_MS, delay_ms is not None
            message = Message(len(self._messages), position, publish_ms, batched, never, delayed, key)
            self._messages.append(message)
            self._by_position[position] = message

    async def _ack(self) -> None:
        for message in self._some(self._held()):
            self._holder(message).ack(message.position, consumer_id=_id(message))
            message.acked, message.holder = True, None

    async def _ack_parts(self) -> None:
        for message in self._some(each for each in self._held() if each.batched):
            # A client that has acked all messages of a batch acks the batch.
            bit = self._chance.choice([1 << bit for bit in range(BATCH) if message.left & 1 << bit])
            if message.left == bit:
                continue
            message.left &= ~bit
            self._holder(message).ack(message.position, consumer_id=_id(message), ack_set=(message.left,))

    async def _ack_undelivered(self) -> None:
        """By id, whoever does it: a delayed one is cancelled thereby."""
        waiting = [each for each in self._messages if each.never and not each.acked]
        if self._consumers and waiting:
            message = self._chance.choice(waiting)
            number, client = next(iter(self._consumers.items()))
            client.ack(message.position, consumer_id=number)
            message.acked = True

    async def _nack(self) -> None:
        for message in self._some(self._held()):
            self._holder(message).redeliver(message.position, consumer_id=_id(message))
            message.holder, message.told = None, True

    async def _redeliver_all(self) -> None:
        """Where there is but one consumer: of several, one might ask for what another has just given back."""
        if len(self._consumers) > 1:
            return
        for number, client in self._consumers.items():
            client.redeliver(consumer_id=number)
            for message in self._held():
                message.holder, message.told = None, True

    async def _join(self) -> None:
        if len(self._consumers) < _CONSUMERS_MOST:
            self._joined += 1
            client = await raw_client(self._url)
            self._consumers[self._joined] = client
            await self._subscribe(self._joined)
            client.flow(_PERMITS, consumer_id=self._joined)

    async def _leave(self) -> None:
        await self._part(hang_up=False)

    async def _hang_up(self) -> None:
        await self._part(hang_up=True)

    async def _seek(self) -> None:
        if self._messages:
            await self._move(self._chance.choice(self._messages), by_time=False)

    async def _seek_to_time(self) -> None:
        if self._messages:
            await self._move(self._chance.choice(self._messages), by_time=True)

    async def _unsubscribe(self) -> None:
        """With all its consumers but one gone; the new one begins at the first message."""
        while len(self._consumers) > 1:
            await self._part(hang_up=False)
        if not self._consumers:
            return
        await self._settle()
        await self._note_cursor()
        ((number, client),) = self._consumers.items()
        command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        command.unsubscribe.consumer_id = number
        command.unsubscribe.request_id = request_id = client.next_request_id()
        answer = await client.request(command, request_id)
        assert answer.type == BaseCommand.SUCCESS, answer
        self._owe_from(0)
        await self._subscribe(number)
        client.flow(_PERMITS, consumer_id=number)

    # -- how

    async def _open_producer(self) -> None:
        self._producer = await raw_client(self._url)
        await self._producer.produce(self._topic)

    async def _subscribe(self, number: int) -> None:
        client = self._consumers[number]

        async def subscribed() -> bool:
            """What was closed may not be gone yet."""
            await client.lookup(self._topic)
            return (await client.subscribe(self._topic, consumer_id=number, subType=self._kind)).type == (
                BaseCommand.SUCCESS
            )

        await wait_until_async(subscribed, "subscribed", interval=0.05)
        if self._keyed and self._bridge is not None:
            # The bridge lets it in once the broker lists it, which is a moment later: until then its keys are others'.
            await wait_until_async(lambda: number in self._let_in(), "let in", interval=0.01)

    async def _part(self, *, hang_up: bool) -> None:
        if not self._consumers:
            return
        number = self._chance.choice(list(self._consumers))
        client = self._consumers.pop(number)
        self._take_in(number, client)
        if hang_up:
            await client.close()
            await wait_until_async(lambda: number not in self._listed(), "gone")
        else:
            await client.close_consumer(number)
            self._take_in(number, client)
            await client.close()
        for message in self._messages:
            if message.holder == number:
                message.holder = None
            message.told |= not self._consumers

    def _listed(self) -> set[int]:
        """The consumers that the broker knows."""
        stats = admin(self._broker, "GET", f"{rest_path(self._topic)}/stats")
        listed = stats["subscriptions"].get("s", {"consumers": []})["consumers"]
        return {int(each["consumerName"].removeprefix("raw-")) for each in listed}

    def _let_in(self) -> set[int]:
        """The consumers that the bridge dispatches to."""
        assert self._bridge is not None
        listed = self._bridge.stats(self._topic)["subscriptions"].get("s", {"consumers": []})["consumers"]
        return {int(each["consumerName"].removeprefix("raw-")) for each in listed}

    async def _move(self, to: Message, *, by_time: bool) -> None:
        """Seek; all consumers are closed, and come back."""
        if not self._consumers:
            return
        number, client = next(iter(self._consumers.items()))
        command = BaseCommand(type=BaseCommand.SEEK)
        command.seek.consumer_id = number
        command.seek.request_id = request_id = client.next_request_id()
        if by_time:
            command.seek.message_publish_time = to.publish_ms
        else:
            command.seek.message_id.ledgerId, command.seek.message_id.entryId = to.position
        answer = await client.request(command, request_id)
        assert answer.type == BaseCommand.SUCCESS, answer
        for each in self._consumers.values():
            await each.event(BaseCommand.CLOSE_CONSUMER)
        for each_number, each in self._consumers.items():
            self._take_in(each_number, each)
        self._owe_from(to.number)
        for each_number, each in self._consumers.items():
            await self._subscribe(each_number)
            if not self._keyed:
                each.flow(_PERMITS, consumer_id=each_number)
        # Whose a key is shows when all are there: what the first one got by then would hold up the others.
        for each_number, each in self._consumers.items() if self._keyed else ():
            each.flow(_PERMITS, consumer_id=each_number)

    def _owe_from(self, number: int) -> None:
        """The cursor is set anew: everything from a message on is owed again."""
        for message in self._messages:
            message.holder, message.told, message.left, message.new = None, True, _WHOLE, True
            message.acked = message.number < number
        for key in _KEYS if self._keyed else ():
            self._outcome.orders[key].append(-1)

    def _held(self) -> list[Message]:
        return [each for each in self._messages if each.holder is not None]

    def _holder(self, message: Message) -> RawClient:
        return self._consumers[_id(message)]

    def _some(self, messages: Iterable[Message]) -> Sequence[Message]:
        """Any of them; of two players with the same messages the same."""
        found = list(messages)
        return self._chance.sample(found, self._chance.randint(0, len(found)))

    # -- what comes

    async def _settle(self) -> None:
        """Wait until all that is owed is in somebody's hands."""
        if not self._consumers:
            return

        def settled() -> bool:
            for number, client in self._consumers.items():
                self._take_in(number, client)
            return not self._missing()

        await wait_until_async(settled, "all that is owed comes", timeout=_PATIENCE_S, interval=0.005)

    def _missing(self) -> list[int]:
        waiting = [each for each in self._messages if each.holder is None and not each.acked and not each.never]
        held_up = self._held_up() if waiting and self._keyed else ()
        return [each.number for each in waiting if each.key not in held_up]

    def _held_up(self) -> set[str]:
        """The keys of which somebody has messages whose they are no more."""
        ring: HashRing[int] = HashRing()
        for number in self._consumers:
            ring.add(number, f"raw-{number}")
        holders = {each.key: each.holder for each in self._held()}
        return {key for key, holder in holders.items() if ring.select(ring_hash(hashed(key.encode()))) != holder}

    def _take_in(self, number: int, client: RawClient) -> None:
        while not client.messages.empty():
            self._note(number, client.messages.get_nowait())

    def _note(self, number: int, got: RawMessage) -> None:
        message = self._by_position[got.position]
        if message.acked or message.never or message.holder is not None:
            state = "acked" if message.acked else "not due" if message.never else "in hand"
            self._outcome.unexpected.append(f"{message.number} {state}, after {len(self._outcome.steps)} steps")
        if self._keyed:
            self._note_key(number, message)
        message.holder = number
        unacked = bin(got.ack_set[0] & _WHOLE).count("1") if got.ack_set else BATCH
        if message.told:
            who = (number,) if self._keyed else ()
            self._outcome.received[message.number].append((got.redelivery_count, unacked, *who))
        message.told = False

    def _note_key(self, number: int, message: Message) -> None:
        others = [each.number for each in self._held() if each.key == message.key and each.holder != number]
        if others:
            self._outcome.unexpected.append(f"{message.number}, and others have {others} of its key")
        if message.new and not message.delayed:
            self._outcome.orders[message.key].append(message.number)
        message.new = False

    # -- the end

    async def _finish(self) -> None:
        """Nothing more comes, and the cursor is where it should be; then with everything acked."""
        self._outcome.steps.append("finish")
        if not self._consumers:
            await self._join()
        await self._settle()
        for number, client in self._consumers.items():
            with contextlib.suppress(TimeoutError):
                self._note(number, await client.message(_QUIET_S))
        await self._note_cursor()
        while held := self._held():
            for message in held:
                self._holder(message).ack(message.position, consumer_id=_id(message))
                message.acked, message.holder = True, None
            await self._settle()  # what was held up
        await self._note_cursor()

    async def _note_cursor(self) -> None:
        """The broker has all acks when its cursor is what it should be, or at the end of patience: then as it is."""
        owed = tuple(each.number for each in self._messages if each.acked)
        seen: list[tuple[int, ...]] = []

        def there() -> bool:
            seen.append(self._acked_at_broker())
            return seen[-1] == owed

        with contextlib.suppress(NotInTimeError):
            await wait_until_async(there, "the cursor", timeout=3)
        acked = seen[-1]
        first = next((number for number in range(len(self._messages)) if number not in set(acked)), len(self._messages))
        self._outcome.cursors.append((first, tuple(number for number in acked if number > first)))

    def _acked_at_broker(self) -> tuple[int, ...]:
        cursor = admin(self._broker, "GET", f"{rest_path(self._topic)}/internalStats")["cursors"]["s"]
        acks = AckSet(Position.parse(cursor["markDeletePosition"]))
        acks.merge_ranges(list(iter_ranges(cursor["individuallyDeletedMessages"])))
        return tuple(each.number for each in self._messages if acks.contains(*each.position))


def _id(message: Message) -> int:
    assert message.holder is not None
    return message.holder


async def compare(
    seed: int,
    bridge: BridgeProcess,
    broker: Broker,
    topic: str,
    kind: int = CommandSubscribe.Shared,
    steps: int = STEPS,
) -> tuple[list[str], Outcome]:
    """The differences between what the broker and the bridge did, and what the broker did.

    A broker (seen of 4.0.8) may leave what was given back of a key, while other keys are held up before it, until
    something else happens: then the seed is played there once more.
    """
    for attempt in range(_TRIES):
        own = await Player(seed, broker, None, f"{topic}-broker-{attempt}", kind).play(steps)
        own.attempts = attempt + 1
        if not own.stuck or kind != CommandSubscribe.Key_Shared:
            break
    through = await Player(seed, broker, bridge, f"{topic}-bridge", kind).play(steps)
    return own.differences(through), own
