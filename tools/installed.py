"""The package as it is installed somewhere: how it gets there, and whether it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from bridge.embedded.ports import free_ports

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60
ASKED = (("/healthz", 200), ("/readyz", 503), ("/", 200), ("/metrics", 200), ("/openapi.json", 200))


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into a folder. Raises CalledProcessError."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def serve(command: Path, folder: Path) -> None:
    """Without a broker: it is alive, says why it is not ready, and ends in order. Raises AssertionError."""
    broker, port, web_port = free_ports(3)
    options = {
        "broker-service-url": f"pulsar://127.0.0.1:{broker}",
        "broker-web-url": f"http://127.0.0.1:{broker}",
        "data-dir": str(folder / "data"),
        "host": "127.0.0.1",
        "port": str(port),
        "web-port": str(web_port),
    }
    process = subprocess.Popen([command, "serve", *(f"--{name}={value}" for name, value in options.items())])
    try:
        for path, status in ASKED:
            found = _status(f"http://127.0.0.1:{web_port}{path}", process)
            assert found == status, f"{path}: {found}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()


def _status(url: str, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the bridge does not answer at {url}")


def uv(*arguments: object) -> None:
    """Run uv in the checkout. Raises CalledProcessError."""
    run(sys.executable, "-m", "uv", "--quiet", *arguments, cwd=ROOT)


def run(*command: object, cwd: Path, stdout: int | None = None) -> None:
    """Run a command without the settings of a bridge in its environment. Raises CalledProcessError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAY_BRIDGE_")}
    subprocess.run([str(each) for each in command], check=True, cwd=cwd, stdout=stdout, env=environment)
