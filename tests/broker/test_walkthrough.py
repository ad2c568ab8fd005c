"""The page a newcomer follows: its commands and its Python are run as they stand, its outputs compared."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from bridge.embedded.ports import free_ports
from tests.broker.test_cli import await_ready, environment
from tests.helpers import wait_until
from tests.walkthrough import Block, Shell, blocks_of, form

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "start.md"
NOT_RUN = {
    "make demo": "it sets a virtual environment up; test_cli.py runs the demo itself",
    'make demo ARGS="--messages 50000 --min-delay 10s --max-delay 30s"': "as above",
    "python3 -m venv /opt/delay-bridge": "it writes outside of the test's folder",
    "/opt/delay-bridge/bin/pip install .": "as above",
    "delay-bridge serve": "there is no cluster pulsar.example.com; test_cli.py runs it in front of one",
}
"""Blocks marked `sh`: nobody else's are left out."""
STEPS = ("topics", "partitions", "pending", "cancel", "deliver-now", "rebuild", "rebuild-status", "audit")
SERVER = "delay-bridge standalone"


class Walk:
    """Somebody with three terminals: a server, a Python, and a shell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port, self._web_port, broker_port, broker_web_port = free_ports(4)
        ports = {"6650": port, "8081": self._web_port, "6660": broker_port, "8080": broker_web_port}
        flags = f"--port {port} --web-port {self._web_port} --broker-port {broker_port}"
        # All that is different here: ports are free ones, two minutes are short, /etc is not written to.
        self._replaced = {
            **{f"127.0.0.1:{old}": f"127.0.0.1:{new}" for old, new in ports.items()},
            SERVER: f"{SERVER} {flags} --broker-web-port {broker_web_port}",
            "minutes=2": "seconds=25",
            "/etc/delay-bridge.toml": str(folder / "delay-bridge.toml"),
        }
        self.names: dict[str, Any] = {}
        """What the Python has defined."""
        self._server: subprocess.Popen[str] | None = None
        self._environment = environment(folder) | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "share"),
            "DELAY_BRIDGE_ADMIN_URL": f"http://127.0.0.1:{self._web_port}",
            "COLUMNS": "500",
        }
        self._shell = Shell(self._environment, ROOT, folder / "shell.log")

    def here(self, text: str) -> str:
        """A text of the page as it is for this test."""
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    def take(self, block: Block) -> str:
        """Do what a block says; returns what is to be seen then."""
        if block.kind == "python":
            return self._python(self.here(block.text))
        if block.kind == "toml":
            (self._folder / "delay-bridge.toml").write_text(block.text)
            return ""
        return "".join(self._command(self.here(command)) for command in block.commands())

    def _command(self, command: str) -> str:
        return self._start(command) if command.startswith(SERVER) else self._shell.run(command)

    def _start(self, command: str) -> str:
        with (self._folder / "server.log").open("w") as log:
            self._server = subprocess.Popen(
                command.split(),
                env=self._environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                executable=Path(sys.executable).parent / "delay-bridge",
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        await_ready(self._server, self._web_port)
        assert self._server.stdout is not None
        return "".join(self._server.stdout.readline() for _ in range(3))

    def _python(self, code: str) -> str:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, PAGE.name, "exec"), self.names)
        return said.getvalue()

    def await_stored(self, count: int) -> None:
        """Wait until the index has as many entries."""

        def stored() -> bool:
            with urllib.request.urlopen(
                self.here("http://127.0.0.1:8081/admin/v2/delayed/overview"), timeout=10
            ) as answer:
                return bool(json.load(answer)["entries"] == count)

        wait_until(stored, f"{count} entries in the index")

    def interrupt(self) -> int:
        """Ctrl-C in the server's terminal; returns its exit code."""
        assert self._server is not None
        self._server.send_signal(signal.SIGINT)
        return self._server.wait(timeout=30)

    def close(self) -> None:
        """Whatever still runs."""
        if "client" in self.names:
            with contextlib.suppress(pulsar.PulsarException):  # closed by the page
                self.names["client"].close()
        self._shell.close()
        if self._server is not None:
            with self._server as server:
                server.kill()


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    made = Walk(tmp_path)
    yield made
    made.close()


def test_a_newcomer_gets_through_the_start(walk: Walk) -> None:
    page = PAGE.read_text()
    blocks = blocks_of(page)
    for number, block in enumerate(blocks):
        if block.kind == "sh":
            assert set(block.commands()) <= NOT_RUN.keys(), block
            continue
        if block.kind == "text":
            continue  # what the Python before it prints
        said = walk.take(block)
        expected = block.output() if block.kind == "console" else ""
        if block.kind == "python" and number + 1 < len(blocks) and blocks[number + 1].kind == "text":
            expected = blocks[number + 1].text
        assert form(said) == form(walk.here(expected)), f"line {block.line} of {PAGE.name}: {said}"
        if "create_producer" in block.text:
            walk.await_stored(block.text.count("\nremind("))
            for url in re.findall(r"<(http:[^>]+)>", page):
                with urllib.request.urlopen(walk.here(url), timeout=10) as answer:
                    assert "<!doctype html>" in answer.read().decode()
    assert walk.interrupt() == 0


def test_the_start_shows_what_it_should() -> None:
    blocks = blocks_of(PAGE.read_text())
    typed = [command for block in blocks if block.kind == "console" for command in block.commands()]
    used = set(re.findall(r"delay-bridge ([a-z-]+)", "\n".join(typed)))
    assert used == {*STEPS, "standalone", "config"}
    assert {block.kind for block in blocks} == {"sh", "console", "python", "text", "toml"}


def test_outputs_differ_by_their_words() -> None:
    shown = "billing  5:1  cancelled  2026-08-01T16:00:00.000Z  1,234 entries, checksum b982a02f01a7e618"
    assert form(shown) == form("billing 17:203 cancelled 2027-01-01T01:02:03.456Z 7 entries, checksum 0123456789abcdef")
    assert form(shown) != form(shown.replace("cancelled", "already-acked"))
    assert form("a 1\na 2\nb 3") == form("a 7\nb 8") != form("b 7\na 8")
