"""A broker, two bridges that know each other, and the wires between them, clients and broker."""

import contextlib
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bridge.embedded import EmbeddedPulsar
from bridge.protocol.names import TopicName
from tests.bridge_process import BridgeProcess
from tests.clients import admin, backlog, rest_path, some_topic
from tests.fault_run.account import Account
from tests.fault_run.history import Happened, History
from tests.fault_run.traffic import Load, Publisher, Subscriber, connect
from tests.fault_run.wire import Network, Wire
from tests.helpers import NotInTimeError, wait_until

HOLES_STORED = 50_000
"""What a cursor has more is gone with a broker's memory. Several times what is pending, as docs/operating.md says."""
HOLES_NOTED = HOLES_STORED * 9 // 10
HOLES_LOOKED_EVERY_S = 2.0
BROKER = {
    # Who is silent is dropped after one or two of these, by default after 30 s: a frozen bridge is to be succeeded.
    "keepAliveIntervalSeconds": "6",
    # As brokers have it by themselves; standalone's own setting is once in ten seconds.
    "managedLedgerDefaultMarkDeleteRateLimit": "1.0",
    # What is sought again has to be there.
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "managedLedgerMaxUnackedRangesToPersist": str(HOLES_STORED),
}
LIMITS = {"confirm_every_s": 1.0, "confirmed_s": 4.0}
"""Less than the broker's interval, see decision 39."""
CONSUMERS = 2
"""Of each topic, each on a client, so a connection, of its own."""
READY_S = 90.0


class Reached(NamedTuple):
    """A broker, by way of a wire."""

    service_url: str
    web_url: str


class Node:
    """A bridge, with a wire to its broker, and one from its clients, whom it tells the address of that."""

    def __init__(self, broker: EmbeddedPulsar, network: Network, folder: Path, number: int, **others: Any) -> None:
        """`others`: limits and settings."""
        host, _, port = broker.service_url.removeprefix("pulsar://").rpartition(":")
        self.name = "ab"[number]
        self.to_broker = network.wire((host, 0), (host, int(port)))
        advertised = f"127.0.0.{2 + number}"
        reached = Reached(self.to_broker.url, broker.web_url)
        self.bridge = BridgeProcess(
            reached, folder / self.name, own_clock=True, advertised_address=advertised, **others
        )
        self.bridge.start()
        self.from_clients = network.wire((advertised, self.bridge.port), ("127.0.0.1", self.bridge.port))
        self.frozen = False

    @property
    def wires(self) -> tuple[Wire, Wire]:
        return self.to_broker, self.from_clients

    def freeze(self) -> None:
        self.frozen = True
        self.bridge.freeze()

    def thaw(self) -> None:
        """May be called again."""
        if self.frozen:
            self.bridge.thaw()
            self.frozen = False

    def owned(self) -> set[str]:
        """Topics."""
        if not self.bridge.running or self.frozen:
            return set()
        status, found = self.bridge.get("/admin/v2/delayed/owned")
        return {str(each["topic"]) for each in found["topics"]} if status == 200 else set()

    def ready(self) -> bool:
        return self.bridge.ready()[0] == 200

    def limit_files(self, size: int | None) -> None:
        """No file of the bridge may grow beyond, as if its disk was full; None lifts that."""
        hard = resource.prlimit(self.bridge.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.bridge.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


class Stage:
    """Everything that runs; `close` ends it."""

    def __init__(self, folder: Path, load: Load, seed: int, limits: dict[str, Any]) -> None:
        self.history = History()
        self._ends = contextlib.ExitStack()
        try:
            self._start(folder, load, seed, LIMITS | limits)
        except BaseException:
            self.close()
            raise

    def _start(self, folder: Path, load: Load, seed: int, limits: dict[str, Any]) -> None:
        self.broker = self._ends.enter_context(EmbeddedPulsar(folder / "pulsar", config=BROKER, progress=False))
        self.network = Network()
        self._ends.callback(self.network.close)
        others = {"limits": limits, "members_topic": some_topic("fault-run-members")}
        self.nodes: list[Node] = []
        for number in range(2):
            self.nodes.append(Node(self.broker, self.network, folder, number, **others))
            self._ends.callback(self._end_bridge, self.nodes[-1])
        self.accounts = [
            Account(some_topic(f"fault-run-{seed}-{number}"), self.history) for number in range(load.topics)
        ]
        urls = ",".join(node.from_clients.url.removeprefix("pulsar://") for node in self.nodes)
        self.subscribers: list[Subscriber] = []
        for number in range(CONSUMERS):
            client = connect(f"pulsar://{urls}", operation_timeout_seconds=10, connection_timeout_ms=3_000)
            self._ends.callback(client.close)
            for at, account in enumerate(self.accounts):
                name, drawn = f"{at}-{number}", seed * 100 + at * CONSUMERS + number
                self.subscribers.append(Subscriber(client, name, account, self.history, drawn))
                self._ends.callback(self.subscribers[-1].close)
        self._over = threading.Event()
        watch = threading.Thread(target=self._watch_holes, daemon=True)
        watch.start()
        self._ends.callback(watch.join)
        self._ends.callback(self._over.set)
        self.publisher = Publisher(self.broker.service_url, self.accounts, load, seed)
        self._ends.callback(self.publisher.stop)

    def _watch_holes(self) -> None:
        while not self._over.wait(HOLES_LOOKED_EVERY_S):
            for account in self.accounts:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    stats = admin(self.broker, "GET", f"{rest_path(account.topic)}/stats")
                    count, now = stats["subscriptions"]["s"]["nonContiguousDeletedMessagesRanges"], time.monotonic()
                    if account.holes and account.holes[-1].ended == float("inf"):
                        account.holes[-1].ended = now if count < HOLES_NOTED else float("inf")
                    elif count >= HOLES_NOTED:
                        account.holes.append(Happened("holes", now - HOLES_LOOKED_EVERY_S))

    def close(self) -> None:
        self._ends.close()

    @staticmethod
    def _end_bridge(node: Node) -> None:
        node.thaw()
        node.bridge.kill()

    # -- who is who

    def owner(self, chance: random.Random) -> Node:
        """Of a topic chosen at random; any bridge, where nobody owns it at the moment."""
        topic = chance.choice(self.accounts).topic
        spare = chance.choice(self.nodes)
        return next((node for node in self.nodes if topic in node.owned()), spare)

    @contextlib.contextmanager
    def guests(self, node: Node, topics: set[str], until: float) -> Iterator[bool]:
        """Once a bridge owns one of these topics: consumers that connect to it anew; whether it did in time (s)."""
        while not (owned := node.owned() & topics) and time.monotonic() < until:
            time.sleep(0.1)
        with contextlib.ExitStack() as ends:
            for account in self.accounts if owned else ():
                if account.topic in owned:
                    client = connect(node.from_clients.url, operation_timeout_seconds=10)
                    ends.callback(client.close)
                    name = f"guest-{len(self.history.away)}"
                    ends.callback(Subscriber(client, name, account, self.history, len(name)).close)
            yield bool(owned)

    def start_bridges(self) -> None:
        """Those that do not run; returns when all are ready."""
        for node in self.nodes:
            if not node.bridge.running:
                node.bridge.start(ready=False)
        wait_until(lambda: all(node.ready() for node in self.nodes), "bridges are ready", timeout=READY_S, interval=0.1)

    # -- the end

    def drain(self, patience_s: float) -> None:
        """Nothing more is published; returns when everything came and was acked, or nothing came for so long."""
        self.publisher.stop()
        for each in self.subscribers:
            each.tired = False
        came, came_at = -1, time.monotonic()
        while any(each.owed() for each in self.accounts) and time.monotonic() < came_at + patience_s:
            received = sum(each.received for each in self.accounts)
            if received > came:
                came, came_at = received, time.monotonic()
            time.sleep(1.0)
        time.sleep(3.0)  # whatever comes that should not

    def books(self, account: Account, patience_s: float) -> dict[str, Any]:
        """Of a topic's subscription, entry by entry: as they close with everything acked, or the last that was seen."""
        seen: dict[str, Any] = {}
        path = f"/admin/v2/delayed/{TopicName.parse(account.topic).rest_path}/subscription/s/books?positions=true"

        def closed() -> bool:
            for node in self.nodes:
                if account.topic in node.owned():
                    seen.clear()
                    seen.update(node.bridge.get(path)[1])
            return is_closed(seen)

        with contextlib.suppress(NotInTimeError):
            wait_until(closed, timeout=patience_s, interval=0.5)
        return seen

    def note_owners(self, account: Account) -> None:
        """When a bridge became the owner of a topic, or was it no more, as the logs say."""
        shift = time.monotonic() - time.time()
        for node in self.nodes:
            for line in node.bridge.log().splitlines():
                if account.topic in line and "owner of topic " in line:
                    at = datetime.fromisoformat(line[:26]).timestamp() + shift
                    # The former owner's consumers are sent on then; who comes to the next one later is not concerned.
                    ends = "no longer" in line
                    account.taken_over.append(Happened("taken over", at - (not ends), at + ends))
                    if not ends:
                        account.owners.append((at, node.name))
        account.owners.sort()

    def backlog(self, account: Account) -> int:
        """What the broker says is not acked, once that is nothing or after a while."""

        def left() -> int:
            return backlog(self.broker, account.topic)

        with contextlib.suppress(NotInTimeError):
            wait_until(lambda: left() == 0, timeout=30, interval=0.5)
        return left()


def is_closed(books: dict[str, Any]) -> bool:
    """Each entry is in one place, and that is that of the acked ones (or of those that are for nobody)."""
    if not books or books.get("unknown") is not None or not books.get("places"):
        return False
    places = {name: count for name, count in books["places"].items() if count}
    is_done = places.get("published", 0) == places.get("acked", 0) + places.get("withheld", 0)
    differs = books["difference"] or books["differenceByCounters"] or books["missing"] or books["twice"]
    return is_done and not differs


def told(work: Callable[[], object]) -> str | None:
    """The error of a call that may fail, None where it did not."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return None


def call(stage: Stage, method: str, topic: str, path: str) -> str | None:
    """A call of the broker's admin interface; its error, if any."""
    return told(lambda: admin(stage.broker, method, f"{rest_path(topic)}/{path}"))
