"""One history of commands, told of any broker: what it answered, with its ledgers numbered as they are first named.

The simulated broker is a model. `tests/broker/test_simulated_broker.py` has a real one live the same history.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from bridge.broker.admin import AdminClient, AdminError
from bridge.protocol import commands
from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    KeySharedMeta,
    KeySharedMode,
    ServerError,
)
from tests.helpers import wait_until_async
from tests.raw_client import RawClient

Place = tuple[int, int]
QUIET_S = 0.3
"""How long nothing may come when nothing should."""
BEFORE_ALL = (2**64 - 1, 2**64 - 1)
BEHIND_ALL = (2**63 - 1, 2**63 - 1)
FAR_MS = 3_600_000
_PLACE = re.compile(r"(\d+):(-?\d+)")


class Site(Protocol):
    """A broker, and what an operator does to it."""

    admin: AdminClient
    topic: str

    async def connect(self) -> RawClient:
        """A connection that has shaken hands."""

    def now_ms(self) -> int:
        """Its clock."""

    async def unload(self) -> None:
        """Close the topic in order."""

    async def expire(self, subscription: str, seconds: int) -> None:
        """Skip what was published so long ago."""

    async def delete(self) -> None:
        """Delete the topic by force."""


class Told:
    """What was said, line by line."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.lines: list[str] = []
        self._ledgers: dict[int, str] = {}

    def note(self, what: str, *answers: object) -> None:
        """A line."""
        self.lines.append(f"{what}: " + "; ".join(map(str, answers)))

    def place(self, ledger: int, entry: int) -> str:
        """A position, by the ordinal of its ledger."""
        if ledger >= 2**63 - 1 or ledger < 0:
            return "nowhere"
        name = self._ledgers.setdefault(ledger, f"L{len(self._ledgers) + 1}")
        return f"{name}:{entry - 2**64 if entry >= 2**63 else entry}"

    def ranges(self, text: str) -> str:
        """Positions in a text."""
        return _PLACE.sub(lambda found: self.place(int(found[1]), int(found[2])), text)

    def answer(self, command: BaseCommand) -> str:
        """Of a request."""
        kind = BaseCommand.Type.Name(command.type)
        if command.type == BaseCommand.ERROR:
            return f"{kind} {ServerError.Name(command.error.error)}"
        if command.type == BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE:
            last, mark = (
                command.getLastMessageIdResponse.last_message_id,
                command.getLastMessageIdResponse.consumer_mark_delete_position,
            )
            return f"last {self.place(last.ledgerId, last.entryId)} cursor {self.place(mark.ledgerId, mark.entryId)}"
        return kind


def sticky(hashes: tuple[int, int]) -> KeySharedMeta:
    """What a consumer says that wants a range of hashes, both ends included."""
    asked = KeySharedMeta(keySharedMode=KeySharedMode.STICKY)
    asked.hashRanges.add(start=hashes[0], end=hashes[1])
    return asked


class History:
    """Of one topic."""

    def __init__(self, site: Site) -> None:
        """Nothing has happened."""
        self.told = Told()
        self._site = site
        self._places: list[Place] = []
        self._times: list[int] = []
        self._sequence = 0
        self._producer: RawClient

    async def live(self) -> list[str]:
        """All of it; returns what was told."""
        self._producer = await self._site.connect()
        client, other = await self._site.connect(), await self._site.connect()
        for chapter in (
            self._empty,
            self._subscribing,
            self._reading,
            self._acks,
            self._seeks,
            self._failover,
            self._sharing_keys,
            self._unloaded,
            self._expiry,
            self._leaving,
            self._deleted,
        ):
            self.told.lines.append(f"-- {chapter.__name__[1:]}")
            await chapter(client, other)
        for each in (self._producer, client, other):
            await each.close()
        return self.told.lines

    # -- chapters

    async def _empty(self, client: RawClient, other: RawClient) -> None:
        await self._producer.produce(self._site.topic)
        await self._state()
        position = await self._site.admin.last_position(self._site.topic)
        self.told.note("last position", self.told.place(*position))
        await self._subscribe(other, "keep", 9)  # which keeps all ledgers
        await self._last(other, 9)

    async def _subscribing(self, client: RawClient, other: RawClient) -> None:
        await self._subscribe(client, "s", 1)
        await self._subscribe(client, "s", 1)  # once more, with the same id
        await self._subscribe(other, "s", 2, CommandSubscribe.Exclusive)
        await self._subscribe(other, "s", 3, CommandSubscribe.Failover)
        await self._subscribe(client, "alone", 4, CommandSubscribe.Exclusive)
        await self._subscribe(other, "alone", 5, CommandSubscribe.Exclusive)
        nobody = f"{self._site.topic}-nobody"
        await other.lookup(nobody)
        answer = await other.subscribe(nobody, "s", 6, force_topic_creation=False)
        self.told.note("a topic that is not there", self.told.answer(answer))
        await self._connected()
        self.told.note("closed", self.told.answer(await client.close_consumer(4)))
        await self._connected()

    async def _reading(self, client: RawClient, other: RawClient) -> None:
        for messages in (1, 1, 3, 1, 1, 1, 1):
            await self._publish(messages, delayed=len(self._places) == 4)
        await self._state()
        await self._last(client, 1)
        first, third, last = self._places[0], self._places[2], self._places[-1]
        await self._read(other, 11, third, (2, 1, 4))
        await self._read(other, 12, last, (5,))
        await self._read(other, 13, (first[0], last[1] + 5), (5,))
        await self._read(other, 14, (0, 0), (2, 20))

    async def _acks(self, client: RawClient, other: RawClient) -> None:
        one = self._places
        await self._ack(client, 1, [one[2]])
        await self._ack(client, 1, [one[4], one[0]])
        await self._ack(client, 1, [one[0]])
        await self._ack(client, 1, [one[5], (one[0][0], 99), one[6]])
        await self._ack(client, 1, [(one[0][0], 2**64 - 1)])
        await self._ack(client, 1, [(0, 0), one[6]])
        await self._publish(3)
        await self._publish(3)
        await self._ack(client, 1, [one[7]], ack_set=(0b110,))
        await self._ack(client, 1, [one[7]], ack_set=(0,))
        await self._ack(client, 1, [one[3]], cumulative=True)
        client.redeliver(one[1], one[8])
        await self._ack(client, 1, [one[1]])
        await self._ack(client, 77, [one[3]])  # nobody's id
        self.told.note("came", client.messages.qsize())
        await self._last(client, 1)

    async def _seeks(self, client: RawClient, other: RawClient) -> None:
        one, ledger = self._places, self._places[0][0]
        for to in (one[3], (ledger, 99), BEFORE_ALL, BEHIND_ALL, (0, 0), (ledger, 2**64 - 1), one[5]):
            await self._seek(client, 1, place=to)
        for publish_ms in (0, self._times[4], self._times[6] + 1, self._site.now_ms() + FAR_MS, self._times[2]):
            await self._seek(client, 1, publish_ms=publish_ms)
        await self._ack(client, 1, [one[0]])  # below the cursor
        await self._ack(client, 1, [one[6], one[2]])
        answer = await self._ask_seek(other, 88, one[0])
        self.told.note("seek of nobody", self.told.answer(answer))

    async def _failover(self, client: RawClient, other: RawClient) -> None:
        candidates = {"a": client, "b": other}
        for name, each in candidates.items():
            await self._subscribe(each, "f", 21, CommandSubscribe.Failover, name=name)
        active, passive = await self._elected(candidates)
        await self._ack(active, 21, [self._places[1]], cumulative=True, properties={"x": 7})
        await self._ack(passive, 21, [self._places[3]], cumulative=True, properties={"y": 2**62})
        await self._ack(active, 21, [self._places[5]])
        await self._ack(active, 21, [self._places[4]])
        await self._ack(active, 21, [self._places[2]], cumulative=True, properties={"z": 1}, late=True)
        command = commands.unsubscribe(21, request_id := active.next_request_id())
        self.told.note("unsubscribe beside another", self.told.answer(await active.request(command, request_id)))
        self.told.note("closed", self.told.answer(await active.close_consumer(21)))
        news = await passive.event(BaseCommand.ACTIVE_CONSUMER_CHANGE)
        self.told.note("the other is told", news.active_consumer_change.is_active)
        known = await self._site.admin.candidates(self._site.topic, "f")
        self.told.note("candidates", len(known.all), known.active in candidates)
        self.told.note("closed", self.told.answer(await passive.close_consumer(21)))
        await self._state("f")

    async def _sharing_keys(self, client: RawClient, other: RawClient) -> None:
        """Who is let in beside whom, and that a cursor follows single acks only."""
        low, split = sticky((0, 32_767)), KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT)
        any_order = KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT, allowOutOfOrderDelivery=True)
        for each, consumer_id, asked in (
            (client, 23, low),
            (other, 24, sticky((32_768, 65_535))),
            (other, 25, sticky((30_000, 40_000))),
            (other, 26, split),
        ):
            await self._share(each, consumer_id, asked)
        await self._subscribe(other, "k", 27, CommandSubscribe.Shared)
        await self._ack(client, 23, [self._places[2]], cumulative=True)
        await self._ack(client, 23, [self._places[1]])
        await self._state("k")
        for each, consumer_id in ((client, 23), (other, 24)):
            self.told.note("closed", self.told.answer(await each.close_consumer(consumer_id)))
        for each, consumer_id, asked in ((client, 28, split), (other, 29, any_order), (other, 30, split)):
            await self._share(each, consumer_id, asked)
        await self._subscribe(other, "s", 31, CommandSubscribe.Key_Shared)
        await self._unsubscribe(client, 28)
        self.told.note("closed", self.told.answer(await other.close_consumer(30)))
        await self._unsubscribe(client, 28)

    async def _share(self, client: RawClient, consumer_id: int, asked: KeySharedMeta) -> None:
        kind = CommandSubscribe.Key_Shared
        answer = await client.subscribe(self._site.topic, "k", consumer_id, subType=kind, keySharedMeta=asked)
        self.told.note("share keys", self.told.answer(answer))

    async def _unloaded(self, client: RawClient, other: RawClient) -> None:
        client.events.clear()
        await self._site.unload()
        await self._closed(client, BaseCommand.CLOSE_CONSUMER)
        await self._closed(self._producer, BaseCommand.CLOSE_PRODUCER)
        await self._ack(client, 1, [self._places[4]])  # of a consumer that was closed
        await self._again(client, other)
        await self._state()
        await self._last(client, 1)
        for _ in range(3):
            await self._publish()
        await self._last(client, 1)
        one = self._places
        await self._ack(client, 1, [one[8], one[9], one[11]])
        await self._read(other, 15, one[7], (4, 1))
        await self._read(other, 16, (one[0][0], one[8][1] + 1), (5,))
        await self._seek(client, 1, place=(one[0][0], one[8][1] + 1))
        await self._ack(client, 1, [one[10]])
        await self._ack(client, 1, [one[9]])

    async def _expiry(self, client: RawClient, other: RawClient) -> None:
        await self._seek(client, 1, place=self._places[0])
        alone = CommandSubscribe.Exclusive
        await self._subscribe(other, "e", 31, alone)
        await self._ack(other, 31, [self._places[1]], cumulative=True, properties={"mark": 5})
        await self._ack(other, 31, [self._places[4], self._places[10]])
        await asyncio.sleep(2.1)
        await self._publish()
        await self._site.expire("e", 2)
        await wait_until_async(self._has_expired, "the cursor is moved")
        await self._state("e")

    async def _shows(self, properties: Mapping[str, int]) -> bool:
        state = await self._site.admin.internal_stats(self._site.topic)
        return any(cursor.properties == properties for cursor in state.cursors.values())

    async def _has_expired(self) -> bool:
        """Up to the last entry but one: a broker takes whole ledgers first."""
        state = await self._site.admin.internal_stats(self._site.topic)
        return state.cursors["e"].mark_delete_position >= self._places[-2]

    async def _leaving(self, client: RawClient, other: RawClient) -> None:
        await self._unsubscribe(other, 31)
        await self._subscribe(other, "s", 32)
        await self._unsubscribe(client, 1)
        self.told.note("closed", self.told.answer(await other.close_consumer(32)))
        await self._unsubscribe(client, 1)
        await self._unsubscribe(client, 1)
        await self._subscribe(client, "s", 1, latest=True)
        await self._state()
        await self._connected()

    async def _deleted(self, client: RawClient, other: RawClient) -> None:
        for each in (client, self._producer):
            each.events.clear()
        await self._site.delete()
        await self._closed(client, BaseCommand.CLOSE_CONSUMER)
        await self._closed(self._producer, BaseCommand.CLOSE_PRODUCER)
        try:
            await self._site.admin.internal_stats(self._site.topic)
        except AdminError as error:
            self.told.note("statistics", error.status)
        await client.lookup(self._site.topic)
        answer = await client.subscribe(self._site.topic, "s", 1, force_topic_creation=False)
        self.told.note("subscribe", self.told.answer(answer))
        await self._producer.produce(self._site.topic)
        self._places.clear()
        await self._publish()
        await self._subscribe(client, "s", 1)
        await self._state()

    # -- what is done, and told

    async def _publish(self, messages: int = 1, delayed: bool = False) -> None:
        await asyncio.sleep(0.01)  # times of their own
        now_ms = self._site.now_ms()
        self._sequence += 1
        place = await self._producer.publish(
            b"x",
            now_ms + FAR_MS if delayed else None,
            messages=None if messages == 1 else messages,
            sequence_id=self._sequence,
            publish_ms=now_ms,
        )
        self._places.append(place)
        self._times.append(now_ms)

    async def _subscribe(
        self,
        client: RawClient,
        subscription: str,
        consumer_id: int,
        kind: CommandSubscribe.SubType = CommandSubscribe.Shared,
        latest: bool = False,
        name: str | None = None,
    ) -> None:
        await client.lookup(self._site.topic)
        begin = CommandSubscribe.Latest if latest else CommandSubscribe.Earliest
        more = {"subType": kind, "initialPosition": begin, "consumer_name": name or f"c-{consumer_id}"}
        answer = await client.subscribe(self._site.topic, subscription, consumer_id, **more)
        self.told.note(f"subscribe {subscription} {consumer_id}", self.told.answer(answer))

    async def _again(self, client: RawClient, other: RawClient) -> None:
        """Everybody comes back."""
        await self._producer.produce(self._site.topic)
        await self._subscribe(client, "s", 1)
        await self._subscribe(other, "keep", 9)

    async def _ack(
        self,
        client: RawClient,
        consumer_id: int,
        places: Sequence[Place],
        *,
        cumulative: bool = False,
        ack_set: tuple[int, ...] = (),
        properties: Mapping[str, int] | None = None,
        late: bool = False,
    ) -> None:
        """`late`: it is acked already, and its properties do not count."""
        command = commands.ack(consumer_id, places, request_id := client.next_request_id())
        if cumulative:
            command.ack.ack_type = CommandAck.Cumulative
        for key, value in (properties or {}).items():
            command.ack.properties.add(key=key, value=value)
        command.ack.message_id[0].ack_set.extend(ack_set)
        try:
            answer = self.told.answer(await client.request(command, request_id, timeout_s=1.0))
            if properties is not None and not late:  # a cursor that has no ledger yet is slow to show them
                await wait_until_async(lambda: self._shows(properties), "the properties")
        except TimeoutError:
            answer = "no answer"
        self.told.note(f"ack {[self.told.place(*each) for each in places]}", answer)
        await self._state("s", "f", "e")

    async def _seek(
        self, client: RawClient, consumer_id: int, place: Place | None = None, publish_ms: int | None = None
    ) -> None:
        client.events.clear()
        answer = await self._ask_seek(client, consumer_id, place, publish_ms)
        closed = [each.close_consumer.consumer_id for each in client.events if each.type == BaseCommand.CLOSE_CONSUMER]
        to = f"time {publish_ms is not None}" if place is None else self.told.place(*place)
        self.told.note(f"seek {to}", self.told.answer(answer), f"closed before {closed}")
        await self._state("s")
        await self._subscribe(client, "s", consumer_id)
        await self._last(client, consumer_id)

    async def _ask_seek(
        self, client: RawClient, consumer_id: int, place: Place | None = None, publish_ms: int | None = None
    ) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.SEEK)
        command.seek.consumer_id, command.seek.request_id = consumer_id, client.next_request_id()
        if place is not None:
            command.seek.message_id.ledgerId, command.seek.message_id.entryId = place
        if publish_ms is not None:
            command.seek.message_publish_time = publish_ms
        return await client.request(command, command.seek.request_id)

    async def _read(self, client: RawClient, consumer_id: int, start: Place, permits: Sequence[int]) -> None:
        """A reader: what comes for each grant of permits."""
        command = commands.subscribe_reader(
            self._site.topic, f"r-{consumer_id}", consumer_id, request_id := client.next_request_id(), start
        )
        answers = [self.told.answer(await client.request(command, request_id))]
        for number in permits:
            client.flow(number, consumer_id)
            await asyncio.sleep(QUIET_S)
            came = [client.messages.get_nowait().position for _ in range(client.messages.qsize())]
            answers.append(f"{number} permits {[self.told.place(*each) for each in came]}")
        answers.append(self.told.answer(await client.close_consumer(consumer_id)))
        self.told.note(f"read from {self.told.place(*start)}", *answers)

    async def _unsubscribe(self, client: RawClient, consumer_id: int) -> None:
        command = commands.unsubscribe(consumer_id, request_id := client.next_request_id())
        self.told.note(f"unsubscribe {consumer_id}", self.told.answer(await client.request(command, request_id)))
        await self._state()

    async def _elected(self, candidates: Mapping[str, RawClient]) -> tuple[RawClient, RawClient]:
        """Whoever it is: one is active, the other is told that it is not."""

        def last_news(client: RawClient) -> bool | None:
            news = [each for each in client.events if each.type == BaseCommand.ACTIVE_CONSUMER_CHANGE]
            return news[-1].active_consumer_change.is_active if news else None

        def settled() -> bool:
            return sorted(map(str, map(last_news, candidates.values()))) == ["False", "True"]

        await wait_until_async(settled, "an election")
        known = await self._site.admin.candidates(self._site.topic, "f")
        assert known.active is not None
        active = candidates[known.active]
        self.told.note("elected", sorted(each.name for each in known.all), last_news(active))
        for each in candidates.values():
            each.events.clear()
        return active, next(each for each in candidates.values() if each is not active)

    async def _closed(self, client: RawClient, kind: BaseCommand.Type) -> None:
        """What the broker closes."""
        await client.event(kind)
        await asyncio.sleep(QUIET_S)
        kinds = {BaseCommand.CLOSE_CONSUMER: "close_consumer", BaseCommand.CLOSE_PRODUCER: "close_producer"}
        others = [f"{kinds[each.type]} {getattr(each, kinds[each.type]).request_id}" for each in client.events]
        client.events.clear()
        self.told.note(f"closed by the broker: {kinds[kind]}", sorted(others))

    async def _last(self, client: RawClient, consumer_id: int) -> None:
        command = commands.last_message_id(consumer_id, request_id := client.next_request_id())
        self.told.note("last message id", self.told.answer(await client.request(command, request_id)))

    async def _connected(self) -> None:
        stats = await self._site.admin.topic_stats(self._site.topic)
        self.told.note("connected", stats.publishers, dict(sorted(stats.consumers.items())))

    async def _state(self, *subscriptions: str) -> None:
        """What a bridge reads of ledgers and cursors."""
        state = await self._site.admin.internal_stats(self._site.topic)
        ledgers = [f"{self.told.place(ledger, size)}" for ledger, size in sorted(state.ledger_sizes.items())]
        if not subscriptions:
            self.told.note("ledgers", ledgers, f"last {self.told.place(*state.last_confirmed_entry)}")
        for name, cursor in sorted(state.cursors.items()):
            if name in subscriptions or not subscriptions:
                mark, ranges = cursor.mark_delete_position, self.told.ranges(cursor.individually_deleted)
                properties = dict(sorted(cursor.properties.items()))
                self.told.note(f"  cursor {name}", self.told.place(*mark), ranges, properties)
