"""What tests do with a page: open it, wait for what it shows, keep a picture of it."""

from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import ConsoleMessage, Locator, Page, Request

from bridge.protocol.names import TopicName
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import Clients, drain, publish, shared, some_topic
from tests.helpers import wait_until

HOUR_MS = 3_600_000
SOON, LATER, DELIVERED = 60, 40, 5
"""Entries due in two hours, in a day, and delivered already."""


class Looking:
    """A page of the dashboard."""

    def __init__(self, page: Page, url: str, screenshots: Path) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        """Errors and warnings of the console, errors of scripts, requests to others."""
        self._screenshots = screenshots
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", "blob:")):
            self.complaints.append(f"request to {request.url}")

    def open(self, path: str) -> int:
        answer = self.page.goto(self.url + path)
        assert answer is not None
        return answer.status

    def open_topic(self, topic: str, query: str = "") -> None:
        """Open a topic's page and wait for its chart and its list."""
        assert self.open(f"/topic/{TopicName.parse(topic).rest_path.partition('/')[2]}{query}") == 200
        self.until("document.getElementById('pending-stop').hidden", "the list of pending entries")

    def tell(self, script: str) -> Any:
        """What an expression gives in the page."""
        return self.page.evaluate(script)

    def until(self, script: str, what: str, timeout: float = 15.0) -> Any:
        """Wait for an expression to give something true; polled from here, the pages allow no evaluation in them."""
        return wait_until(lambda: self.tell(script), what, timeout=timeout, interval=0.05)

    def see(self, selector: str, text: str, timeout: float = 15.0) -> None:
        """Wait until an element shows a text."""
        wait_until(lambda: text in self.text(selector), f"{text!r} in {selector}", timeout=timeout, interval=0.05)

    def text(self, selector: str) -> str:
        found = self.page.locator(selector)
        return " ".join(found.first.inner_text().split()) if found.count() else ""

    def rows(self) -> Locator:
        """The pending entries shown."""
        return self.page.locator("#pending tbody tr:visible")

    def search(self, expected: int, **fields: str) -> None:
        """Fill in the search form, send it, and wait for as many rows."""
        for name, value in fields.items():
            self.page.locator(f"#search [name={name}]").fill(value)
        self.page.locator("#search button.primary").click()
        wait_until(lambda: self.rows().count() == expected, f"{expected} rows for {fields}", interval=0.05)
        self.until("document.getElementById('pending-stop').hidden", "the end of the search")

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(self.tell("document.documentElement.scrollWidth - window.innerWidth"))

    def keep(self, name: str, *, whole: bool = True) -> None:
        """Keep a picture."""
        self.page.screenshot(path=str(self._screenshots / f"{name}.png"), full_page=whole)


class Published(NamedTuple):
    """A topic with entries, by position, and the consumer of its subscription `s`."""

    topic: str
    soon: list[str]
    later: list[str]
    consumer: Any
    producer: Any
    bridge: BridgeProcess

    @property
    def pending(self) -> int:
        return len(self.soon) + len(self.later)

    def stats(self, subscription: str = "s") -> dict[str, Any]:
        return dict(self.bridge.stats(self.topic)["subscriptions"].get(subscription, {"pending": None}))

    def rest(self, rest: str) -> Any:
        """The answer to a GET below the topic."""
        status, found = self.bridge.get(f"/admin/v2/delayed/{TopicName.parse(self.topic).rest_path}/{rest}")
        assert status == 200, found
        return found


def publish_all(bridge: BridgeProcess, clients: Clients) -> Published:
    """A topic with two subscriptions, entries due in two hours and in a day, and some that were delivered and acked."""
    topic = some_topic("dashboard")
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic, "s")
    shared(client, topic, "other/s").close()
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, [f"delivered {number}" for number in range(DELIVERED)], deliver_at=now_ms() + 200)
    drain(consumer, DELIVERED)
    soon: list[str] = []
    for number in range(SOON):
        key = {"partition_key": f"order-{number}", "properties": {"kind": "odd" if number % 2 else "even"}}
        soon += _positions(publish(producer, [f"Grüße {number}"], deliver_at=now_ms() + 2 * HOUR_MS, **key))
    later = _positions(publish(producer, [f"later {n}" for n in range(LATER)], deliver_at=now_ms() + 24 * HOUR_MS))
    made = Published(topic, soon, later, consumer, producer, bridge)
    wait_until(lambda: made.stats()["pending"] == made.pending, "everything pending", timeout=20)
    others = made.pending + DELIVERED
    wait_until(lambda: made.stats("other/s")["pending"] == others, "everything pending for the other", timeout=20)
    return made


def _positions(message_ids: list[Any]) -> list[str]:
    return [f"{each.ledger_id()}:{each.entry_id()}" for each in message_ids]
