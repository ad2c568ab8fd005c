"""The commands of operators, against a real bridge: entries found by key, cancelled, delivered now."""

import json
from typing import Any

import pytest

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.test_rebuild import run
from tests.broker.test_steering import joined, path_of, position
from tests.clients import assert_quiet, publish, receive
from tests.helpers import wait_until

HOUR_MS = 3_600_000
NOWHERE = "999999999:9"


class Terminal:
    """Runs commands against one bridge."""

    def __init__(self, bridge: BridgeProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = bridge.web_url
        self._capsys = capsys

    def __call__(self, command: str, *arguments: str, status: int = 0) -> str:
        """What a command prints."""
        assert run([command, "--admin-url", self._url, *arguments]) == status
        said = self._capsys.readouterr()
        return said.out if status == 0 else said.err

    def json(self, command: str, *arguments: str) -> Any:
        return json.loads(self(command, "--output", "json", *arguments))


@pytest.fixture
def terminal(bridge: BridgeProcess, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(bridge, capsys)


def test_an_operator_finds_cancels_and_delivers(
    bridge: BridgeProcess, client: Any, topic: str, terminal: Terminal
) -> None:
    consumer = joined(bridge, client, topic)
    producer = client.create_producer(topic)
    due = now_ms() + HOUR_MS
    ids = []
    for number in range(5):
        ids += publish(producer, [f"order {number}"], due + number, partition_key=f"customer-{number}")
    wait_until(lambda: len(terminal.json("pending", "-s", "s", topic)) == 5, "5 pending")

    header, row = terminal("pending", "-s", "s", "--key", "customer-3", "--payload", topic).splitlines()
    assert header.split() == [
        "message",
        "id",
        "due",
        "published",
        "key",
        "properties",
        "bytes",
        "tier",
        "state",
        "payload",
    ]
    assert row.split()[0] == position(ids[3])
    assert row.endswith("order 3")

    rows = terminal("cancel", "-s", "s", "--message-id", str(ids[3]), topic).splitlines()
    assert rows[1].split() == ["s", position(ids[3]), "cancelled"]
    both = [f"--message-id={position(one)}" for one in ids[3:]]
    assert "1 of 2 not done" not in terminal("cancel", "--all-subscriptions", *both, topic)
    assert terminal("cancel", "-s", "s", "--message-id", "999999999:9", topic, status=1).endswith(
        "not done: 999999999:9 unknown\n"
    )
    published = publish(producer, ["not delayed"])
    assert receive(consumer).text == "not delayed"
    wait_until(lambda: terminal.json("stats", topic)["subscriptions"]["s"]["acked"] == 1, "the ack")
    for act in ("cancel", "deliver-now"):
        assert terminal(act, "-s", "s", "--message-id", str(published[0]), topic, status=1).endswith(" unknown\n")

    rows = terminal("deliver-now", "-s", "s", "--message-id", position(ids[1]), topic).splitlines()
    assert rows[1].split()[-1] == "expedited"
    assert receive(consumer).text == "order 1"
    assert_quiet(consumer)
    assert len(terminal.json("pending", "-s", "s", "--due-from", str(due), "--due-to", str(due + 2), topic)) == 1

    shown = terminal("stats", topic)
    assert f"{topic}: owner" in shown
    wait_until(lambda: terminal.json("stats", topic)["subscriptions"]["s"]["acked"] == 2, "the acks")
    assert terminal.json("stats", topic)["subscriptions"]["s"]["cancelled"] == 2
    rows = terminal("partitions", "-s", "s", topic).splitlines()
    assert rows[0].split()[-2:] == ["pending", "s"]
    assert sum(int(row.split()[-1]) for row in rows[1:]) == 2
    acts = [each for each in bridge.get("/admin/v2/delayed/actions")[1] if each["topic"] == topic]
    assert [each["action"] for each in acts] == ["deliver-now", "deliver-now", *["cancel"] * 4]
    assert acts[-1]["outcomes"] == {"cancelled": 1}
    assert acts[-1]["actor"] == "local"


def test_the_books_of_a_subscription(bridge: BridgeProcess, client: Any, topic: str, terminal: Terminal) -> None:
    joined(bridge, client, topic)
    publish(client.create_producer(topic), ["a", "b"], now_ms() + HOUR_MS)

    def are_closed() -> bool:
        _, found = bridge.get(f"{path_of(topic)}/books")
        return bool(found["places"] and found["places"]["pending"] == 2 and found["difference"] == 0)

    wait_until(are_closed, "both pending", timeout=20)
    found = terminal.json("books", topic, "s")
    assert (found["places"]["published"], found["missing"]) == (2, None)
    text = terminal("books", "--positions", topic, "s")
    rows = {line.rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in text.splitlines()}
    assert (rows["published"], rows["pending in the index"], rows["difference"]) == ("2", "2", "0")
    assert "no tracked subscription 'nobody'" in terminal("books", topic, "nobody", status=1)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["cancel", "--message-id", "3", "-s", "s"], 1, "not a message id: '3'"),
        (["cancel", "--message-id", "3:4"], 2, "either --subscription or --all-subscriptions"),
        (["pending", "-s", "s", "--due-from", "now"], 1, "not a time: 'now'"),
        (["pending", "-s", "nobody"], 1, "has no tracked subscription 'nobody'"),
        (["partitions", "-s", "nobody"], 1, "has no tracked subscription 'nobody'"),
    ],
)
def test_what_is_wrong_is_said(
    bridge: BridgeProcess, client: Any, topic: str, terminal: Terminal, arguments: list[str], status: int, said: str
) -> None:
    joined(bridge, client, topic)
    shown = " ".join(terminal(*arguments, topic, status=status).replace("│", " ").split())
    assert said in shown


@pytest.mark.parametrize("command", ["topics", "stats", "partitions", "pending"])
def test_on_a_terminal_no_number_is_broken(
    bridge: BridgeProcess, client: Any, topic: str, monkeypatch: pytest.MonkeyPatch, terminal: Terminal, command: str
) -> None:
    consumer = joined(bridge, client, topic)
    due = now_ms() + HOUR_MS
    publish(client.create_producer(topic), ["x" * 2_000] * 600, due)
    wait_until(lambda: bridge.topic(topic).get("entries") == 600, "harvested", timeout=30)
    monkeypatch.setenv("TERM", "dumb")  # 80 columns, nothing in bold
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    named = {"topics": [], "pending": ["-s", "s", "--limit", "1", topic]}.get(command, [topic])
    out = terminal(command, *named)
    size = bridge.topic(topic)["storageSize"]
    assert {"pending": "T", "partitions": f"{size:,}", "stats": "600"}.get(command, f"{size:,}") in out
    assert max(len(line) for line in out.splitlines()[command == "stats" :]) <= 80
    consumer.close()
