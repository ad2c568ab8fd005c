"""Whether the declared lower bounds of the dependencies are true: run by `make lowest`.

In an environment of its own, with each direct dependency at its lowest declared version, the installed wheel has to
show its help, serve and render its pages, and the unit tests have to pass.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

from bridge.embedded.ports import free_ports

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60
NOT_FOR_TESTS = {"coverage", "grpcio-tools", "mypy", "playwright", "pytest-xdist", "ruff", "uv"}
"""Of the development group what builds or checks, rather than runs, tests."""
ASKED = (("/healthz", 200), ("/readyz", 503), ("/", 200), ("/metrics", 200), ("/openapi.json", 200))
LEFT_OUT = (
    "tests/unit/test_protocol_generated.py",  # needs the compiler, which needs a newer protobuf
    "tests/unit/test_cli_reference.py",  # of help texts as the locked typer lays them out
)


def main() -> None:
    """Raises CalledProcessError, AssertionError."""
    with tempfile.TemporaryDirectory(prefix="delay-bridge-lowest-") as name:
        folder = Path(name)
        python = folder / "venv" / "bin" / "python"
        lowest = folder / "lowest.txt"
        _uv("venv", "--python", sys.executable, folder / "venv")
        _uv("pip", "compile", "--resolution", "lowest-direct", "--no-header", ROOT / "pyproject.toml", "-o", lowest)
        _uv("pip", "install", "--python", python, "-r", lowest)
        _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
        _uv("pip", "install", "--python", python, "--no-deps", *folder.glob("*.whl"))
        command = folder / "venv" / "bin" / "delay-bridge"
        _run(command, "--help", cwd=folder, stdout=subprocess.DEVNULL)
        _serve(command, folder)
        _uv("pip", "install", "--python", python, "--constraints", lowest, *_test_requirements())
        # Deprecations of old releases are not ours to mend.
        pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=", "tests/unit")
        _run(*pytest, *(f"--ignore={each}" for each in LEFT_OUT), cwd=ROOT)
        print("the lowest declared versions will do:")
        print(*(line for line in lowest.read_text().splitlines() if line and line[0] not in "# "), sep="\n")


def _serve(command: Path, folder: Path) -> None:
    """Without a broker: it is alive, says why it is not ready, and ends in order."""
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
        for path, status in (
            ("/healthz", 200),
            ("/readyz", 503),
            ("/", 200),
            ("/metrics", 200),
            ("/openapi.json", 200),
        ):
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


def _test_requirements() -> list[str]:
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    return [each for each in group if not (each.startswith("types-") or _name(each) in NOT_FOR_TESTS)]


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]


def _uv(*arguments: object) -> None:
    _run(sys.executable, "-m", "uv", "--quiet", *arguments, cwd=ROOT)


def _run(*command: object, cwd: Path, stdout: int | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAY_BRIDGE_")}
    subprocess.run([str(each) for each in command], check=True, cwd=cwd, stdout=stdout, env=environment)


if __name__ == "__main__":
    main()
