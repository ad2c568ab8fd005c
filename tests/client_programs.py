"""The programs in `tests/programs`: built or installed once, each with one version of an official client, and run."""

import functools
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bridge.embedded.distribution import VERSION, ensure_distribution
from bridge.embedded.java import find_java

ROOT = Path(__file__).parent.parent
SOURCES = Path(__file__).parent / "programs"
BUILD_SECONDS = 900
RUN_SECONDS = 240


class MissingTools(Exception):
    """A client cannot be had on this machine: a tool is missing, or a registry does not give what is needed."""


class Service(NamedTuple):
    """Where a program goes, and what it shows; `prefix`: of all its topics, namespace included."""

    url: str
    prefix: str
    ca: str | None = None
    token: str | None = None

    def arguments(self) -> list[str]:
        given = {"url": self.url, "prefix": self.prefix, "ca": self.ca, "token": self.token}
        return [part for name, value in given.items() if value for part in (f"--{name}", value)]


class Outcome(NamedTuple):
    """Of one check; `seen`: what may depend on the broker, and not on the way to it."""

    ok: bool
    seen: str
    reason: str


class Run:
    """A program that runs; several may run side by side."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True)
        self._output, self._errors = folder / "output", folder / "errors"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self._process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=ROOT, env=environment)
        self._ends_at = time.monotonic() + RUN_SECONDS

    def outcomes(self) -> dict[str, Outcome]:
        """By check, once it has ended. Raises AssertionError when it ends otherwise, or not in time."""
        try:
            code = self._process.wait(max(0.0, self._ends_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.stop()
        found = [json.loads(line) for line in self._output.read_text().splitlines() if line.startswith("{")]
        outcomes = {
            each["check"]: Outcome(each["ok"], each.get("seen", ""), each.get("reason", ""))
            for each in found
            if "check" in each
        }
        assert code == 0, (code, sorted(outcomes), self._errors.read_text()[-2000:])
        return outcomes

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Program(NamedTuple):
    """What to call, arguments to follow."""

    command: Sequence[str]

    def start(self, folder: Path, service: Service, type_: str, checks: Sequence[str] = ()) -> Run:
        """`type_`: Shared or Key_Shared; `checks`: all there are, unless some are named."""
        only = ["--checks", ",".join(checks)] if checks else []
        return Run([*self.command, "--type", type_, *service.arguments(), *only], folder)


def build(client: str, folder: Path) -> Program:
    """One of CLIENTS, in a new folder. Raises MissingTools."""
    folder.mkdir(parents=True)
    return CLIENTS[client](folder)


def _installed_python(folder: Path) -> Program:
    return Program([sys.executable, "-m", "tests.programs.python"])


def _python(folder: Path, version: str) -> Program:
    venv.create(folder, with_pip=True, symlinks=True)
    python = str(folder / "bin" / "python")
    wanted = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"pulsar-client=={version}"]
    _done([python, *wanted], folder)
    return Program([python, "-m", "tests.programs.python"])


def _go(folder: Path, version: str) -> Program:
    go, source = _tool("go"), folder / "source"
    shutil.copytree(SOURCES / "go", source)
    library = f"github.com/apache/pulsar-client-go@v{version}"
    if library.replace("@", " ") not in (source / "go.mod").read_text():
        _done([go, "get", library], source)
        _done([go, "mod", "tidy"], source)
    _done([go, "build", "-o", str(folder / "checks"), "."], source)
    return Program([str(folder / "checks")])


def _java_of_the_distribution(folder: Path) -> Program:
    """The client that comes with the broker that the tests start."""
    return _compiled(folder, f"{ensure_distribution(progress=False)}/lib/*", VERSION)


def _java(folder: Path, version: str) -> Program:
    jars, maven = folder / "jars", [_tool("mvn"), "-q", "-B", f"-Dpulsar.version={version}"]
    project = ["-f", str(SOURCES / "java" / "pom.xml")]
    _done([*maven, *project, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], folder)
    return _compiled(folder, f"{jars}/*", version)


def _compiled(folder: Path, jars: str, version: str) -> Program:
    java = find_java()
    compiler, classes = java.executable.parent / "javac", folder / "classes"
    if not compiler.exists():
        raise MissingTools("this Java has no compiler")
    sources = sorted(map(str, (SOURCES / "java" / "src").glob("*.java")))
    _done([str(compiler), "-nowarn", "-cp", jars, "-d", str(classes), *sources], folder)
    told = f"-Dclient.version={version}"
    return Program([str(java.executable), "-Xmx512m", told, "-cp", f"{classes}:{jars}", "Main"])


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingTools(f"there is no {name}")
    return found


def _done(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, env=_quiet()
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise MissingTools(f"{Path(command[0]).name} {command[1]} failed: {' / '.join(said[-3:])}"[:600])


def _quiet() -> Mapping[str, str]:
    return {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}


CLIENTS: dict[str, Callable[[Path], Program]] = {
    "python": _installed_python,
    "java-4.0.8": _java_of_the_distribution,
    **{f"python-{each}": functools.partial(_python, version=each) for each in ("3.6.1", "3.12.0")},
    **{f"java-{each}": functools.partial(_java, version=each) for each in ("4.1.3", "4.2.4")},
    **{f"go-{each}": functools.partial(_go, version=each) for each in ("0.18.0", "0.19.0")},
}
"""By name and version. `python` is the one that the tests themselves use."""
QUICK = ("python", "java-4.0.8")
"""Those that take no download and no minute to build."""
