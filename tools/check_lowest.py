"""Whether the declared lower bounds of the dependencies are true: run by `make lowest`.

In an environment of its own, with each direct dependency, those of extras too, at its lowest declared version, the
installed wheel has to show its help, serve and render its pages, and the unit tests have to pass.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tools.installed import build_wheel, run, serve, uv

ROOT = Path(__file__).parent.parent
NOT_FOR_TESTS = {"coverage", "grpcio-tools", "mypy", "playwright", "ruff", "uv"}
"""Of the development group what builds or checks, rather than runs, tests."""
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
        uv("venv", "--python", sys.executable, folder / "venv")
        compiled = ("pip", "compile", "--resolution", "lowest-direct", "--no-header", "--all-extras")
        uv(*compiled, ROOT / "pyproject.toml", "-o", lowest)
        uv("pip", "install", "--python", python, "-r", lowest)
        uv("pip", "install", "--python", python, "--no-deps", build_wheel(folder))
        command = folder / "venv" / "bin" / "delay-bridge"
        run(command, "--help", cwd=folder, stdout=subprocess.DEVNULL)
        serve(command, folder)
        uv("pip", "install", "--python", python, "--constraints", lowest, *_test_requirements())
        # Deprecations of old releases are not ours to mend.
        pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=", "tests/unit")
        run(*pytest, *(f"--ignore={each}" for each in LEFT_OUT), cwd=ROOT)
        print("the lowest declared versions will do:")
        print(*(line for line in lowest.read_text().splitlines() if line and line[0] not in "# "), sep="\n")


def _test_requirements() -> list[str]:
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    return [each for each in group if not (each.startswith("types-") or _name(each) in NOT_FOR_TESTS)]


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    main()
