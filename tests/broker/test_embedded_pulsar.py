"""The embedded broker itself, on real ones."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pulsar as pulsar_client
import pytest

from bridge.embedded import EmbeddedError, EmbeddedPulsar, PortInUseError, StartError, ensure_distribution
from bridge.embedded.ports import free_ports
from tests.cluster import PulsarCluster, healthy
from tests.conftest import PulsarFactory
from tests.helpers import wait_until

OWNER = """
import time
from bridge.embedded import EmbeddedPulsar
broker = EmbeddedPulsar(progress=False)
broker.start()
print(broker.pid, broker.data_dir, broker.web_url, flush=True)
time.sleep(600)
"""

LONG_FORM = pytest.mark.skipif(os.environ.get("DELAY_BRIDGE_LONG") != "1", reason="part of the long form")


def admin(broker: EmbeddedPulsar | PulsarCluster, path: str) -> Any:
    with urllib.request.urlopen(f"{broker.web_url}/admin/v2/{path}", timeout=10) as answer:
        return json.load(answer)


def send(broker: EmbeddedPulsar | PulsarCluster, topic: str, *payloads: bytes) -> None:
    client = pulsar_client.Client(
        broker.service_url, logger=pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Error)
    )
    try:
        producer = client.create_producer(topic)
        for payload in payloads:
            producer.send(payload)
    finally:
        client.close()


def read(broker: EmbeddedPulsar | PulsarCluster, topic: str, count: int) -> list[bytes]:
    client = pulsar_client.Client(
        broker.service_url, logger=pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Error)
    )
    try:
        reader = client.create_reader(topic, pulsar_client.MessageId.earliest)
        return [reader.read_next(timeout_millis=40_000).data() for _ in range(count)]
    finally:
        client.close()


def files_of(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_shared_cluster_serves_clients(pulsar: PulsarCluster, topic: str) -> None:
    assert healthy(pulsar)
    send(pulsar, topic, b"one", b"two")
    assert read(pulsar, topic, 2) == [b"one", b"two"]


def test_two_run_at_once_and_write_only_into_their_own_folders(
    mortal_pulsar: EmbeddedPulsar, make_pulsar: PulsarFactory
) -> None:
    home = ensure_distribution()
    before = files_of(home)
    first, second = mortal_pulsar, make_pulsar(config={"delayedDeliveryTickTimeMillis": "77"})
    assert first.pid != second.pid
    for broker in (first, second):
        assert admin(broker, "brokers/standalone") == [broker.web_url.removeprefix("http://")]
    assert admin(second, "brokers/configuration/runtime")["delayedDeliveryTickTimeMillis"] == "77"
    assert files_of(home) == before
    listening = [c.laddr for c in psutil.Process(second.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    folder = second.data_dir
    assert folder is not None
    second.stop()
    assert not folder.exists()
    assert second.pid is None
    assert first.pid is not None


def test_killed_broker_comes_back_with_its_data(mortal_pulsar: EmbeddedPulsar, topic: str) -> None:
    urls = (mortal_pulsar.service_url, mortal_pulsar.web_url)
    pid = mortal_pulsar.pid
    assert pid is not None
    send(mortal_pulsar, topic, b"kept")
    mortal_pulsar.kill()
    assert mortal_pulsar.pid is None
    assert not psutil.pid_exists(pid)
    mortal_pulsar.start()
    assert (mortal_pulsar.service_url, mortal_pulsar.web_url) == urls
    assert read(mortal_pulsar, topic, 1) == [b"kept"]
    with pytest.raises(EmbeddedError, match="already running"):
        mortal_pulsar.start()


@LONG_FORM
def test_named_data_folder_is_kept_for_the_next_one(tmp_path: Path, topic: str) -> None:
    with EmbeddedPulsar(tmp_path / "data") as broker:
        send(broker, topic, b"kept")
        with pytest.raises(EmbeddedError, match="another embedded Pulsar uses the data folder"):
            EmbeddedPulsar(tmp_path / "data").start()
    with EmbeddedPulsar(tmp_path / "data") as broker:
        assert read(broker, topic, 1) == [b"kept"]
    assert (tmp_path / "data" / "bookkeeper").is_dir()


def test_failed_start_shows_the_log_and_leaves_nothing() -> None:
    broker = EmbeddedPulsar(config={"managedLedgerDefaultEnsembleSize": "three"})
    with pytest.raises(StartError, match=r"ended while starting, with code 1\n(.|\n)*managedLedgerDefaultEnsembleSize"):
        broker.start()
    assert broker.pid is None
    assert broker.data_dir is None


def test_broker_that_is_never_ready_is_given_up_and_ended() -> None:
    broker = EmbeddedPulsar(start_timeout=1)
    with pytest.raises(StartError, match="not ready after 1 s"):
        broker.start()
    assert broker.pid is None
    assert broker.data_dir is None


def test_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} is in use"):
            EmbeddedPulsar(web_port=port).start()


@pytest.mark.parametrize("lost", [0, pytest.param(2, marks=LONG_FORM)], ids=["broker", "bookie"])
def test_port_lost_to_another_process_is_replaced(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as faster:
        taken = free_ports(3)
        taken[lost] = faster.getsockname()[1]
        choices = iter([taken, free_ports(3)])
        monkeypatch.setattr("bridge.embedded.pulsar.free_ports", lambda _count: next(choices))
        monkeypatch.setattr("bridge.embedded.pulsar.is_free", lambda _port: True)
        with EmbeddedPulsar() as broker:
            assert broker.pid is not None
        assert next(choices, None) is None


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=os.environ, text=True) as owner:
        assert owner.stdout is not None
        try:
            pid, folder, _ = owner.stdout.readline().split()
            watchdog = psutil.Process(int(pid)).ppid()
            assert Path(folder).is_dir()
        finally:
            owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(int(pid)), "the broker ended")
    wait_until(lambda: not Path(folder).exists(), "the temporary folder was removed")
    wait_until(lambda: not psutil.pid_exists(watchdog), "the watchdog ended")
