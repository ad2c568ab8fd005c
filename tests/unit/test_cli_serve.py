"""`serve` as a process, in front of a broker that is not there: signals, and what keeps it from starting."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.embedded.ports import free_ports
from tests.authority import Authority
from tests.helpers import wait_until
from tracker import Store

pytestmark = pytest.mark.slow
ENV = {name: value for name, value in os.environ.items() if not name.startswith("DELAY_BRIDGE_")}


class Serving:
    """A bridge started by the command."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.port, self.web_port = free_ports(2)
        self.log = folder / "log"
        given = {
            "broker-service-url": "pulsar://127.0.0.1:1",
            "broker-web-url": "http://127.0.0.1:1",
            "data-dir": str(folder / "data"),
            "host": "127.0.0.1",
            "port": str(self.port),
            "web-port": str(self.web_port),
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        command = [sys.executable, "-m", "bridge", "serve", *(f"--{name}={value}" for name, value in given.items())]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=log, text=True)

    def get(self, path: str) -> tuple[int, dict[str, str]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    def await_up(self) -> None:
        wait_until(lambda: self.get("/healthz")[0] == 200 or self.process.poll() is not None, timeout=30)
        assert self.process.poll() is None, self.log.read_text()

    def ended(self) -> tuple[int, str]:
        """Exit code and what was said on stderr; stdout has to be empty."""
        out, _ = self.process.communicate(timeout=30)
        assert out == ""
        return self.process.returncode, self.log.read_text()


@pytest.fixture
def processes() -> Iterator[list[Serving]]:
    """Put a bridge here, and it does not outlive the test."""
    running: list[Serving] = []
    yield running
    for serving in running:
        serving.process.kill()
        serving.process.communicate()


def started(processes: list[Serving], folder: Path, **options: str) -> Serving:
    folder.mkdir(exist_ok=True)
    serving = Serving(folder, **options)
    processes.append(serving)
    return serving


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_a_broker_it_waits_says_so_and_stops_cleanly(
    processes: list[Serving], tmp_path: Path, number: signal.Signals
) -> None:
    serving = started(processes, tmp_path)
    serving.await_up()
    wait_until(lambda: "cannot reach pulsar://127.0.0.1:1" in serving.get("/readyz")[1].get("reason", ""))
    assert serving.get("/readyz")[0] == 503
    serving.process.send_signal(number)
    code, said = serving.ended()
    assert code == 0, said
    assert "waiting for the broker" in said
    assert f"stopping [bridge.cli.running] signal={number.name}" in said
    assert said.rstrip().endswith("bridge is down [bridge.app]")
    # The data directory is free again.
    Store.open(tmp_path / "data").close()


def test_certificates_are_read_again_when_asked(processes: list[Serving], tmp_path: Path) -> None:
    """By SIGHUP, long before they would be looked at anyway; a pair that does not fit leaves the former one."""
    authority = Authority(tmp_path)
    pair, [tls_port] = authority.issue(), free_ports(1)
    options = {"tls_certificate_file_path": str(pair.certificate), "tls_key_file_path": str(pair.key)}
    serving = started(processes, tmp_path, **options, config=str(_file(tmp_path, f"web_tls_port = {tls_port}")))
    serving.await_up()
    context = ssl.create_default_context(cafile=str(authority.certificate))

    def shown() -> bool:
        url = f"https://localhost:{tls_port}/healthz"
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            assert answer.status == 200
        certificate = ssl.get_server_certificate(("127.0.0.1", tls_port))
        return certificate == pair.certificate.read_text()

    assert shown()
    pair.replace_by(authority.issue())
    assert not shown()
    serving.process.send_signal(signal.SIGHUP)
    wait_until(shown, "the new certificate is shown")
    pair.key.write_text("none")
    serving.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "cannot be used, the former ones stay" in serving.log.read_text(), "it is told")
    assert shown()


def _file(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def test_logs_as_json(processes: list[Serving], tmp_path: Path) -> None:
    serving = started(processes, tmp_path, log_format="json")
    serving.await_up()
    serving.process.terminate()
    code, said = serving.ended()
    assert code == 0
    assert "bridge is up" in [json.loads(line)["event"] for line in said.splitlines()]


def test_ports_that_are_taken(processes: list[Serving], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        for option in ("port", "web_port"):
            code, said = started(processes, tmp_path, **{option: number}).ended()
            assert code == 1
            assert said.splitlines()[-1] == (
                f"delay-bridge: cannot listen on 127.0.0.1:{number}: Address already in use"
            )
            assert "Traceback" not in said


def test_other_machines_are_not_let_in_by_accident(processes: list[Serving], tmp_path: Path) -> None:
    code, said = started(processes, tmp_path, web_host="0.0.0.0").ended()
    assert (code, said.splitlines()) == (
        1,
        ["delay-bridge: access: has to be set to token, pulsar or off, for web_host '0.0.0.0' lets other machines in"],
    )
    assert not (tmp_path / "data").exists()


def test_a_data_directory_in_use(processes: list[Serving], tmp_path: Path) -> None:
    first = started(processes, tmp_path / "one")
    first.await_up()
    folder = str(tmp_path / "one" / "data")
    code, said = started(processes, tmp_path / "two", data_dir=folder).ended()
    assert code == 1
    assert said.splitlines()[-1] == f"delay-bridge: the data directory {folder} is in use by another process"
    assert "Traceback" not in said
    assert first.process.poll() is None


def test_a_data_directory_of_a_newer_version(
    processes: list[Serving], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracker.store.store.DATA_FORMAT", 99)
    Store.open(tmp_path / "data").close()
    code, said = started(processes, tmp_path).ended()
    assert code == 1
    assert said.splitlines()[-1].startswith(f"delay-bridge: the data directory {tmp_path}/data has format 99,")
    assert "Traceback" not in said


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    # A bridge whose stop takes for ever, in the process of the command itself.
    script = """
import asyncio, sys
from bridge.app import Bridge
async def stop(self):
    await asyncio.sleep(600)
Bridge.stop = stop
sys.argv = ["delay-bridge", "serve", "--data-dir", sys.argv[1], "--port", "0", "--web-port", "0",
    "--broker-service-url", "pulsar://127.0.0.1:1", "--broker-web-url", "http://127.0.0.1:1"]
from bridge.cli import main
main()
"""
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    with subprocess.Popen(command, env=ENV, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            assert any("bridge is up" in line for line in lines)
            process.terminate()
            assert any("stopping" in line for line in lines)
            process.terminate()
            assert process.wait(timeout=5) == 1
        finally:
            process.kill()
