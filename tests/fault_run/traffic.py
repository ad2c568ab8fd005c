"""Who publishes, and who receives: official clients, in threads, that write down what they do."""

import contextlib
import os
import random
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import pulsar

from tests.bridge_process import now_ms
from tests.clients import shared
from tests.fault_run.account import Account, Copy
from tests.fault_run.history import Happened, History

IMMEDIATE = 0.2
"""So large a share is not delayed."""
ASKED_AGAIN = 0.004
SLOW = 0.03
SLOWEST_S = 1.5
QUEUE = 100
"""What a consumer has asked for and not taken: short, so that what comes is looked at when it comes."""
LOOKED_EVERY_S = 0.01


class Load(NamedTuple):
    """`rate`: messages a second, of all topics together; delays are anything up to `most_delay_ms`."""

    rate: int
    topics: int = 3
    most_delay_ms: int = 20_000


def connect(url: str, **arguments: Any) -> Any:
    """Quiet: a run is full of connections that end. What comes of them is in the account."""
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull), **arguments)


class Publisher:
    """All topics in turn, at the broker, at so many a second; what is not answered the client sends again."""

    def __init__(self, url: str, accounts: list[Account], load: Load, seed: int) -> None:
        self.failed = 0
        self._accounts = accounts
        self._load = load
        self._chance = random.Random(seed)
        self._client = connect(url)
        # A batch comes again as a whole when one of its messages is asked for: none here, an entry is a message.
        options = {"send_timeout_millis": 0, "batching_enabled": False, "max_pending_messages": 50_000}
        self._producers = [
            self._client.create_producer(account.topic, block_if_queue_full=True, **options) for account in accounts
        ]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._over.wait(0.005):
            while sent < (time.monotonic() - began) * self._load.rate and not self._over.is_set():
                self._send(sent % len(self._accounts))
                sent += 1

    def _send(self, topic: int) -> None:
        account, now = self._accounts[topic], now_ms()
        delayed = self._chance.random() >= IMMEDIATE
        deliver_at = now + self._chance.randrange(1, self._load.most_delay_ms) if delayed else 0
        number = account.publish(now, deliver_at)
        message = account.messages[number]

        def answered(result: Any, _: Any) -> None:
            message.stored = result == pulsar.Result.Ok
            self.failed += not message.stored

        self._producers[topic].send_async(str(number).encode(), answered, deliver_at=deliver_at or None)

    def stop(self) -> None:
        """Returns once everything sent was answered; may be called again."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            for producer in self._producers:
                producer.flush()
            self._client.close()


class Subscriber:
    """A consumer that acks most at once, some late, and asks for a few again."""

    def __init__(self, client: Any, name: str, account: Account, history: History, seed: int) -> None:
        self.consumer = shared(client, account.topic, receiver_queue_size=QUEUE, consumer_name=name)
        self.tired = True
        """Whether some is acked late or asked for again."""
        self._name = name
        self.account = account
        self._away = history.away.setdefault(name, [])
        self._chance = random.Random(seed)
        self._late: deque[tuple[float, Any, Copy]] = deque()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._run, self._look)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            while self._late and (self._late[0][0] <= time.monotonic() or not self.tired):
                _, message, copy = self._late.popleft()
                self._ack(message, copy)
            with contextlib.suppress(pulsar.PulsarException):
                self._take(self.consumer.receive(timeout_millis=50))

    def _take(self, message: Any) -> None:
        at, at_ms = time.monotonic(), now_ms()
        place = message.message_id()
        position = f"{place.ledger_id()}:{place.entry_id()}"
        number = int(message.data())
        copy = self.account.receive(number, position, at, at_ms, self._name, message.redelivery_count())
        drawn = self._chance.random() if self.tired else 1.0
        if drawn < ASKED_AGAIN:
            self.consumer.negative_acknowledge(message)
            copy.nacked_at = time.monotonic()
        elif drawn < ASKED_AGAIN + SLOW:
            self._late.append((at + self._chance.random() * SLOWEST_S, message, copy))
        else:
            self._ack(message, copy)

    def _ack(self, message: Any, copy: Copy) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            self.consumer.acknowledge(message)
            copy.acked_at, copy.acked_by = time.monotonic(), self._name

    def _look(self) -> None:
        away: Happened | None = None
        while not self._over.wait(LOOKED_EVERY_S):
            connected = self.consumer.is_connected()
            if connected and away is not None:
                away.ended, away = time.monotonic(), None
            elif not connected and away is None:
                away = Happened("away", time.monotonic() - LOOKED_EVERY_S)
                self._away.append(away)

    def close(self) -> None:
        """What it has is in nobody's hands from now on."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._away.append(Happened("gone", time.monotonic()))
