"""Several workers behind one port: clients need not know, one port tells of all, and any of them may be killed."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge.protocol.names import TopicName
from tests.bridge_process import now_ms
from tests.clients import Clients, drain, publish, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until

ROOT = Path(__file__).parent.parent.parent
TOPICS = 6
ROOT_PATH = "/admin/v2/delayed"


class Workers:
    """`delay-bridge serve --workers`, and what it started."""

    def __init__(self, broker: PulsarCluster, folder: Path, count: int) -> None:
        self._log = folder / "workers.log"
        members_topic = f"persistent://public/default/members-{uuid.uuid4().hex[:10]}"
        settings = {
            "broker_service_url": broker.service_url,
            "broker_web_url": broker.web_url,
            "workers": count,
            "host": "127.0.0.1",
            "port": 0,
            "worker_port": 0,
            "web_port": 0,
            "data_dir": str(folder / "data"),
            "members_topic": members_topic,
        }
        config = folder / "bridge.toml"
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        command = [sys.executable, "-m", "bridge", "serve", "--config", str(config), "--log-format", "json"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            wait_until(lambda: self.log().count("bridge is up") >= count, "workers that are up", timeout=30.0)
        except BaseException:
            self.end()
            raise AssertionError(f"the workers did not start:\n{self.log()[-4000:]}") from None
        found = re.search(r'"port": (\d+), "web_port": (\d+)', next(self.lines("workers are started")))
        assert found is not None
        self.service_url = f"pulsar://127.0.0.1:{found[1]}"
        self.web_url = f"http://127.0.0.1:{found[2]}"

    def log(self) -> str:
        return self._log.read_text()

    def lines(self, text: str) -> Iterator[str]:
        return (line for line in self.log().splitlines() if text in line)

    @property
    def pids(self) -> list[int]:
        return sorted(child.pid for child in psutil.Process(self.process.pid).children())

    def text(self, path: str) -> str:
        with urllib.request.urlopen(self.web_url + path, timeout=20) as answer:
            assert answer.url == self.web_url + path  # one port answers for all
            return str(answer.read().decode())

    def get(self, path: str) -> Any:
        return json.loads(self.text(path))

    def metric(self, name: str) -> float:
        lines = self.text("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"pulsar_delay_bridge_{name}"))

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def workers(pulsar: PulsarCluster, tmp_path: Path) -> Iterator[Workers]:
    started = Workers(pulsar, tmp_path, 2)
    yield started
    pids = started.pids if started.process.poll() is None else []
    if started.process.poll() is None:
        started.end()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def names() -> list[str]:
    return [f"persistent://public/default/workers-{uuid.uuid4().hex[:10]}-{number}" for number in range(TOPICS)]


def test_workers_share_topics_and_one_may_be_killed(workers: Workers, clients: Clients, pulsar: PulsarCluster) -> None:
    topics = names()
    client = clients.connect(workers.service_url)
    consumers = {name: shared(client, name) for name in topics}
    producers = {name: clients.connect(pulsar.service_url).create_producer(name) for name in topics}

    def owned() -> list[int]:
        return sorted(each["owned"] or 0 for each in workers.get(f"{ROOT_PATH}/members")["members"])

    wait_until(lambda: owned() == [TOPICS // 2, TOPICS // 2], "even shares", timeout=60.0)
    due_ms = now_ms() + 6_000
    for name, producer in producers.items():
        publish(producer, [f"{name}-{number}" for number in range(20)], deliver_at=due_ms)
    wait_until(lambda: workers.get(f"{ROOT_PATH}/overview")["pending"] == 20 * TOPICS, "all of them pending")
    os.kill(workers.pids[-1], signal.SIGKILL)

    found = {name: drain(consumer, 20, timeout_ms=20_000) for name, consumer in consumers.items()}
    for name, received in found.items():
        assert set(texts(received)) == {f"{name}-{number}" for number in range(20)}
        assert min(each.at_ms for each in received) >= due_ms
    wait_until(lambda: len(workers.pids) == 2, "another worker in its place")
    assert any('"code": -9' in line for line in workers.lines("is started again"))
    wait_until(lambda: workers.metric('workers{cluster="pulsar",state="serving"}') == 2, "both say what they serve")
    wait_until(lambda: owned() == [TOPICS // 2, TOPICS // 2], "even shares again", timeout=60.0)
    assert client.create_producer(topics[0]).send(b"more") is not None
    assert texts(drain(consumers[topics[0]], 1)) == ["more"]
    assert workers.end() == 0


def test_workers_are_restarted_and_clients_go_on(workers: Workers, clients: Clients, pulsar: PulsarCluster) -> None:
    topics = names()
    client = clients.connect(workers.service_url)
    consumers = {name: shared(client, name) for name in topics}
    wait_until(
        lambda: {each["owned"] for each in workers.get(f"{ROOT_PATH}/members")["members"]} == {TOPICS // 2},
        "even shares",
        timeout=60.0,
    )
    due_ms = [now_ms() + 200 * each for each in range(50)]
    for name in topics:
        producer = clients.connect(pulsar.service_url).create_producer(name)
        for number, at_ms in enumerate(due_ms):
            publish(producer, [f"{name}-{number}"], deliver_at=at_ms)
    before = workers.pids
    workers.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: list(workers.lines("all workers are restarted")), "all are restarted", timeout=120.0)
    assert set(before).isdisjoint(workers.pids)
    assert not list(workers.lines("owned still"))
    for name, consumer in consumers.items():
        found = drain(consumer, len(due_ms), timeout_ms=20_000)
        assert set(texts(found)) >= {f"{name}-{number}" for number in range(len(due_ms))}
        assert all(each.at_ms >= due_ms[int(each.text.rpartition("-")[2])] for each in found)


def test_one_port_tells_of_all(workers: Workers, clients: Clients) -> None:
    topics = names()
    client = clients.connect(workers.service_url)
    consumers = [shared(client, name) for name in topics]
    wait_until(
        lambda: {each["owned"] for each in workers.get(f"{ROOT_PATH}/members")["members"]} == {TOPICS // 2},
        "even shares",
        timeout=60.0,
    )
    for name in topics:
        publish(client.create_producer(name), ["a", "b", "c"], deliver_at=now_ms() + 500)
    for consumer in consumers:
        drain(consumer, 3)
    rows = workers.get(f"{ROOT_PATH}/topics")
    assert [(each["topic"], each["role"]) for each in rows] == [(name, "owner") for name in sorted(topics)]
    assert len({each["owner"] for each in rows}) == 2
    for name in topics:
        stats = workers.get(f"{ROOT_PATH}/{TopicName.parse(name).rest_path}/stats")
        assert stats["role"] == "owner"
        assert stats["subscriptions"]["s"]["delivered"] >= 3
        page = workers.text(f"/topic/{TopicName.parse(name).rest_path.removeprefix('persistent/')}")
        assert "owner" in page
    overview = workers.get(f"{ROOT_PATH}/overview")
    assert (overview["topics"], overview["owned"]) == (TOPICS, TOPICS)
    assert overview["lateness"]["count"] >= 3 * TOPICS
    assert workers.metric("delivered_total") >= 3 * TOPICS
    assert workers.metric("early_deliveries_total") == 0
    assert all(name.rpartition("/")[2] in workers.text("/") for name in topics)

    frozen = next(pid for pid in workers.pids if not _answers(pid, workers))
    os.kill(frozen, signal.SIGSTOP)
    try:
        warnings = wait_until(lambda: workers.get(f"{ROOT_PATH}/overview")["warnings"], "a warning", timeout=30.0)
        assert [each["code"] for each in warnings if each["code"] == "worker-silent"]
    finally:
        os.kill(frozen, signal.SIGCONT)


def _answers(pid: int, workers: Workers) -> bool:
    """Whether it is the one that answers for all."""
    port = int(workers.web_url.rpartition(":")[2])
    return any(each.laddr.port == port for each in psutil.Process(pid).net_connections() if each.status == "LISTEN")


def test_workers_do_not_outlive_who_looks_after_them(workers: Workers) -> None:
    pids = workers.pids
    workers.process.kill()
    workers.process.wait()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the end of all workers", timeout=30.0)
    assert workers.log().count("bridge is down") == 2
