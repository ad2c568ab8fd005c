"""Worlds in which cursors move and processes end in any order, and an account of what was owed, early, acked before."""

import contextlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pulsar

from tests.bridge_process import Broker, now_ms
from tests.clients import admin, rest_path, shared

SETTLED_S = 1.0
"""An ack counts as the bridge's and the broker's when its consumer stayed connected, and nothing was done, so long."""
KEPT_S = 2.0
"""An ack, and a move, count as kept by a broker that is killed so much later. It stores acks at most once a second, and
clients send them 0.1 s late. A seek is answered before the acks that it takes back are taken back on disk: until the
next ones are stored, a killed broker has them again, with or without a bridge."""
MOST_DELAY_MS = 1_500

Copy = tuple[str, str]
"""A message's text and its id: a producer that gets no answer sends again, and both copies may be stored."""


@dataclass
class Account:
    """What became of the messages of one topic; times in seconds of the monotonic clock."""

    deliver_at: dict[str, int] = field(default_factory=dict)
    stored: dict[str, float] = field(default_factory=dict)
    received: dict[Copy, list[float]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[Copy, list[float]] = field(default_factory=lambda: defaultdict(list))
    nacked: dict[Copy, float] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)
    moved: list[tuple[float, float, bool]] = field(default_factory=list)
    """Began, ended, certain: everything stored before is owed again if it is certain, and may come again if not."""
    disturbed: list[tuple[float, float]] = field(default_factory=list)
    """When something else was done, or the consumer was not connected."""
    crashed: list[float] = field(default_factory=list)
    """When the broker was killed."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by who writes or copies the messages' records: several threads do."""
    refused: list[str] = field(default_factory=list)
    """Why what was to move the cursor may not have."""

    def owed(self) -> set[str]:
        """What is to come still.

        A client sends acks late, a hundred milliseconds or more: those of just before a move may be of after it.
        """
        certain = [
            began for began, ended, certain in self.moved if certain and not self._crash_between(began, ended + KEPT_S)
        ]
        began = max(certain, default=0.0) - SETTLED_S
        with self.lock:
            since = {text for (text, _), times in self.acked.items() if times[-1] >= began}
            return set(self.stored) - since

    def came_again(self) -> dict[str, float]:
        """What was acked for good, and came all the same; with how long ago the ack was, in seconds."""
        found = {}
        for copy, times in self._received().items():
            for at in times:
                before = [ack for ack in self.acked.get(copy, []) if ack < at - SETTLED_S and self._is_settled(ack, at)]
                # Asked for, delivered again for another reason and acked, it comes once more: as without a bridge.
                if before and not before[-1] - SETTLED_S < self.nacked.get(copy, 0.0) < at:
                    found["{} {}".format(*copy)] = at - before[-1]
        return found

    def last_heard(self, texts: list[str]) -> str:
        """When something came last, and what is known of some messages, for those who look for a cause."""
        now = time.monotonic()

        def ago(times: Iterable[float]) -> str:
            return "/".join(f"{now - at:.2f}" for at in times) or "never"

        received = self._received()
        last = max((times[-1] for times in received.values()), default=0.0)
        moves = [f"{ago((began, ended))}{'' if certain else ' perhaps'}" for began, ended, certain in self.moved]
        told = []
        for text in texts[:3]:
            copies = [copy for copy in received if copy[0] == text]
            told += [f"{text} stored {ago([self.stored[text]])}, {len(copies)} copies"] + [
                f"{copy[1]} received {ago(received[copy])} acked {ago(self.acked.get(copy, ()))} "
                f"nacked {ago([self.nacked.get(copy, now)])}"
                for copy in copies
            ]
        disturbed = [ago(each) for each in self.disturbed]
        return f"last message {ago([last])}, moved {moves} {self.refused}, disturbed {disturbed}, {told}"

    def _received(self) -> dict[Copy, list[float]]:
        """As it is now: another thread goes on receiving."""
        with self.lock:
            return {copy: list(times) for copy, times in self.received.items()}

    def _is_settled(self, ack: float, at: float) -> bool:
        if any(began <= at and ended >= ack - SETTLED_S for began, ended, _ in self.moved):
            return False
        if self._crash_between(ack, ack + KEPT_S):
            return False
        return not any(began <= ack + SETTLED_S and ended >= ack - SETTLED_S for began, ended in self.disturbed)

    def _crash_between(self, began: float, ended: float) -> bool:
        return any(began <= crash <= ended for crash in self.crashed)


class World:
    """One topic with a producer at the broker and a consumer at the bridges, each in a thread of its own."""

    def __init__(self, topic: str, broker: Broker, bridges: str, seed: int) -> None:
        """`bridges`: the service URL of all of them."""
        self.topic = topic
        self.account = Account()
        self._broker = broker
        self._random = random.Random(seed)
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._clients = [pulsar.Client(url, logger=logger) for url in (broker.service_url, bridges)]
        self.consumer = shared(self._clients[1], topic, receiver_queue_size=50)
        # A batch comes again as a whole when one of its messages is asked for, so it is either or.
        self._batches = seed % 2 == 1
        self._producer = self._clients[0].create_producer(topic, send_timeout_millis=0, batching_enabled=self._batches)
        self._ended = threading.Event()
        self._publishing = threading.Event()
        self._publishing.set()
        work = (self._publish, self._receive, self._look)
        self._threads = [threading.Thread(target=each, daemon=True) for each in work]
        for thread in self._threads:
            thread.start()

    # -- what is done to it

    def seek(self) -> None:
        self._move(lambda: self.consumer.seek(pulsar.MessageId.earliest))

    def reset(self) -> None:
        path = f"{rest_path(self.topic)}/subscription/s/resetcursor/{now_ms() - 3_600_000}"
        self._move(lambda: admin(self._broker, "POST", path))

    def make_anew(self) -> None:
        """The consumer subscribes again, from the earliest.

        Not by the admin interface: that makes a subscription at the end of the topic, and then sets it back; a
        consumer that comes between is left at the end, and the call fails.
        """
        self._move(lambda: admin(self._broker, "DELETE", f"{rest_path(self.topic)}/subscription/s?force=true"))

    def unload(self) -> None:
        with self.disturbance(), contextlib.suppress(OSError):  # the broker is down
            admin(self._broker, "PUT", f"{rest_path(self.topic)}/unload")

    def disturbance(self) -> "Disturbance":
        return Disturbance(self.account)

    def _move(self, work: Callable[[], object]) -> None:
        began, certain = time.monotonic(), True
        try:
            work()
        except (OSError, pulsar.PulsarException) as error:
            certain = False
            self.account.refused.append(str(error))
        self.account.moved.append((began, time.monotonic(), certain))

    # -- what goes on

    def _publish(self) -> None:
        number = 0
        while not self._ended.wait(0.004):
            if not self._publishing.is_set():
                continue
            text = str(number)
            number += 1
            deliver_at = now_ms() + self._random.randrange(MOST_DELAY_MS) if self._random.random() < 0.5 else None
            if deliver_at is not None:
                self.account.deliver_at[text] = deliver_at

            def stored(result: Any, _: Any, text: str = text) -> None:
                if result == pulsar.Result.Ok:
                    with self.account.lock:
                        self.account.stored[text] = time.monotonic()

            self._producer.send_async(text.encode(), stored, deliver_at=deliver_at)

    def _receive(self) -> None:
        account = self.account
        while not self._ended.is_set():
            try:
                message = self.consumer.receive(timeout_millis=100)
                at_ms, at = now_ms(), time.monotonic()
                text = message.data().decode()
                copy = (text, str(message.message_id()))
                with account.lock:
                    account.received[copy].append(at)
                if account.deliver_at.get(text, 0) > at_ms:
                    account.early.append(text)
                if self._batches or self._random.random() < 0.9 or not self._publishing.is_set():
                    self.consumer.acknowledge(message)
                    with account.lock:
                        account.acked[copy].append(time.monotonic())
                else:
                    self.consumer.negative_acknowledge(message)
                    account.nacked[copy] = time.monotonic()
            except pulsar.PulsarException:
                continue

    def _look(self) -> None:
        began: float | None = None
        while not self._ended.wait(0.02):
            connected = self.consumer.is_connected()
            if connected and began is not None:
                self.account.disturbed.append((began, time.monotonic()))
                began = None
            elif not connected and began is None:
                began = time.monotonic()

    def stop_publishing(self) -> None:
        self._publishing.clear()
        self._producer.flush()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()


class Disturbance:
    """Notes in an account when something was done."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._account.disturbed.append((self._began, time.monotonic()))
