"""Finds a Java runtime that Pulsar and Spark can run on."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.embedded.errors import JavaNotFoundError, JavaTooOldError

NEEDED_VERSION = 17
_PROBE_SECONDS = 30
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True)
class Java:
    """A runnable Java: its JAVA_HOME (None when found on PATH), the executable, the major version (17, 21, ...)."""

    home: Path | None
    executable: Path
    version: int

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """A copy of `base` in which scripts that look for JAVA_HOME, then PATH, find this Java."""
        env = {name: value for name, value in base.items() if name != "JAVA_HOME"}
        if self.home is not None:
            env["JAVA_HOME"] = str(self.home)
        env["PATH"] = os.pathsep.join([str(self.executable.parent), env.get("PATH", os.defpath)])
        return env


def parse_version(output: str) -> int | None:
    """The major version in what `java -version` printed: 8 for "1.8.0_402", 17 for "17.0.15"; None when absent."""
    match = _VERSION.search(output)
    if match is None:
        return None
    major, minor = int(match[1]), match[2]
    return int(minor) if major == 1 and minor else major


def find_java(env: Mapping[str, str] | None = None) -> Java:
    """The first Java >= 17 of JAVA_HOME, then PATH (of `env`, by default this process's environment).

    Raises JavaTooOldError when only older ones were found, JavaNotFoundError when there is none at all.
    """
    too_old: dict[Path, int] = {}
    looked_at: list[str] = []
    for home, executable, place in _candidates(os.environ if env is None else env):
        version = _probe(executable) if executable is not None else None
        if executable is None or version is None:
            looked_at.append(f"{place} has no working java")
        elif version < NEEDED_VERSION:
            too_old[executable] = version
        else:
            return Java(home, executable, version)
    if too_old:
        raise JavaTooOldError(NEEDED_VERSION, too_old)
    raise JavaNotFoundError(NEEDED_VERSION, looked_at)


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[Path | None, Path | None, str]]:
    """(home, executable, name of the place) in the order to try; executable None when the place has none."""
    if home := env.get("JAVA_HOME"):
        executable = Path(home) / "bin" / "java"
        yield Path(home), executable if os.access(executable, os.X_OK) else None, f"JAVA_HOME ({home})"
    found = shutil.which("java", path=env.get("PATH", os.defpath))
    yield None, Path(found) if found else None, "PATH"


def _probe(executable: Path) -> int | None:
    """The major version of `executable`; None when it does not run (macOS has a stub that only prints a hint)."""
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else None
