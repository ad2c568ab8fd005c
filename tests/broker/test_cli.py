"""The commands as processes, with a real Pulsar."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pulsar as pulsar_client
import pytest

from bridge.embedded import ensure_distribution
from bridge.embedded.ports import free_ports
from tests.cluster import PulsarCluster
from tests.helpers import wait_until

READY_S = 90.0


def environment(folder: Path) -> dict[str, str]:
    """This process's, without another bridge's settings, and with `folder` for temporary files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DELAY_BRIDGE_")}
    # Wherever this run found Pulsar, the command finds it too.
    return kept | {"TMPDIR": str(folder), "DELAY_BRIDGE_PULSAR_HOME": str(ensure_distribution(progress=False))}


@contextmanager
def command(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`delay-bridge` with these arguments; stderr goes to the file `log` in `folder`."""
    (folder / "tmp").mkdir(exist_ok=True)
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bridge", *arguments],
            env=environment(folder / "tmp"),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # A test run in the background of a shell ignores Ctrl-C, and its children would inherit that.
            preexec_fn=_listen_to_interrupts,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _listen_to_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def await_ready(process: subprocess.Popen[str], web_port: int) -> None:
    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            assert process.poll() is None
            return False

    wait_until(answers, "the bridge is ready", timeout=READY_S, interval=0.1)


def client_of(port: int) -> Any:
    return pulsar_client.Client(
        f"pulsar://127.0.0.1:{port}", logger=pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Error)
    )


def subscribe(client: Any, topic: str) -> Any:
    return client.subscribe(topic, "sub", consumer_type=pulsar_client.ConsumerType.Shared)


def test_demo(tmp_path: Path) -> None:
    with command(tmp_path, "demo", "--messages", "300", "--min-delay", "500ms", "--max-delay", "1500ms") as process:
        out, _ = process.communicate(timeout=READY_S)
    said = (tmp_path / "log").read_text()
    assert process.returncode == 0, said + out
    for name in ("early", "lost", "duplicates"):
        assert re.search(rf"^{name} +0$", out, re.MULTILINE), out
    assert re.search(r"^p99 +[\d,.]+ ms$", out, re.MULTILINE), out
    assert "300 of 300 messages delivered" in out
    assert "published 300  pending 0  delivered 300" in said
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_interrupted_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with command(tmp_path, "demo", "--messages", "50", "--min-delay", "60s", "--max-delay", "60s") as process:
        log = tmp_path / "log"
        wait_until(lambda: "published 50" in log.read_text() or process.poll() is not None, timeout=READY_S)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4, "watchdogs, broker and bridge"
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in log.read_text()
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_serve_and_topics(pulsar: PulsarCluster, tmp_path: Path, topic: str) -> None:
    port, web_port = free_ports(2)
    options = {
        "broker-service-url": pulsar.service_url,
        "broker-web-url": pulsar.web_url,
        "data-dir": str(tmp_path / "data"),
        "host": "127.0.0.1",
        "port": str(port),
        "web-port": str(web_port),
    }
    with command(tmp_path, "serve", *(f"--{name}={value}" for name, value in options.items())) as process:
        await_ready(process, web_port)
        with closing(client_of(port)) as client:
            consumer = subscribe(client, topic)
            due = time.time() + 0.8
            client.create_producer(topic).send(b"later", deliver_at=int(due * 1000))
            message = consumer.receive(timeout_millis=10_000)
            assert message.data() == b"later"
            assert time.time() >= due - 0.001
            consumer.acknowledge(message)
            asked = [
                sys.executable,
                "-m",
                "bridge",
                "topics",
                f"--admin-url=http://127.0.0.1:{web_port}",
                "--output=json",
            ]
            done = subprocess.run(asked, capture_output=True, text=True, check=True)
        [row] = [row for row in json.loads(done.stdout) if row["topic"] == topic]
        assert (row["role"], row["owner"]) == ("owner", f"pulsar://127.0.0.1:{port}")
        process.terminate()
        assert process.wait(timeout=30) == 0, (tmp_path / "log").read_text()


def test_standalone_goes_on_where_it_stopped(tmp_path: Path) -> None:
    ports = dict(zip(("port", "web-port", "broker-port", "broker-web-port"), map(str, free_ports(4)), strict=True))
    arguments = ["standalone", f"--data-dir={tmp_path / 'data'}", *(f"--{name}={port}" for name, port in ports.items())]
    port, web_port = int(ports["port"]), int(ports["web-port"])
    with command(tmp_path, *arguments) as process:
        await_ready(process, web_port)
        with closing(client_of(port)) as client:
            subscribe(client, "orders")
            client.create_producer("orders").send(b"kept", deliver_after=timedelta(seconds=5))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, (tmp_path / "log").read_text()
    assert f"pulsar://127.0.0.1:{port}\n" in out
    assert f"http://127.0.0.1:{ports['broker-web-port']}\n" in out
    with command(tmp_path, *arguments) as process:
        await_ready(process, web_port)
        with closing(client_of(port)) as client:
            assert subscribe(client, "orders").receive(timeout_millis=30_000).data() == b"kept"
        process.terminate()
        assert process.wait(timeout=60) == 0, (tmp_path / "log").read_text()
