"""The tools of the official distribution, and programs against its client."""

import os
import subprocess
from pathlib import Path

import pytest

from bridge.embedded.distribution import ensure_distribution
from bridge.embedded.java import find_java


class Tools:
    """Runs a tool of `bin/`, its output in a file."""

    def __init__(self, folder: Path) -> None:
        self._home = ensure_distribution(progress=False)
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        output = self._folder / f"{name}-{len(self._running)}.log"
        memory = "-Xms64m -Xmx256m -XX:TieredStopAtLevel=1"  # they live for seconds: nothing that compiles for long
        own = {"PULSAR_MEM": memory, "PULSAR_GC": "-XX:+UseSerialGC", "PULSAR_LOG_DIR": str(self._folder)}
        told = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")  # of which Java tells, where the tool's answer is looked for
        environment = {name: value for name, value in os.environ.items() if name not in told} | own
        with output.open("wb") as file:
            process = subprocess.Popen(
                [str(self._home / "bin" / name), *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self._folder,
            )
        self._running.append(process)
        return process, output

    def run(self, name: str, *arguments: str) -> str:
        process, output = self.start(name, *arguments)
        assert process.wait(90) == 0, output.read_text()
        return output.read_text()

    def run_source(self, source: Path, *arguments: str) -> str:
        """Compile and run a single file against the distribution's client; returns what it printed."""
        java = find_java().executable
        modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True).stdout
        if "jdk.compiler" not in modules:
            pytest.skip("this Java has no compiler")
        command = [str(java), "-Xmx256m", "-cp", str(self._home / "lib" / "*"), str(source), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=self._folder, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
