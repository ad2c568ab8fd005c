"""A standalone Spark cluster of this machine, started from the installed pyspark: a master and workers."""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pyspark

from bridge.embedded.child import ChildProcess
from bridge.embedded.java import find_java
from bridge.embedded.ports import free_ports
from tests.helpers import wait_until

HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parent.parent


class StandaloneSpark:
    """`start`, then `stop`; each worker has one core. Nothing outlives this process."""

    def __init__(self, folder: Path, workers: int) -> None:
        """`folder`: for logs and what the workers keep."""
        self._folder = folder
        self._workers = workers
        self._port, self._web_port = free_ports(2)
        self._children: list[ChildProcess] = []

    @property
    def url(self) -> str:
        """What `spark_master` is set to."""
        return f"spark://{HOST}:{self._port}"

    def start(self) -> "StandaloneSpark":
        """Returns when the master knows all its workers."""
        ports = ["--port", str(self._port), "--webui-port", str(self._web_port)]
        self._run("master", "org.apache.spark.deploy.master.Master", *ports)
        for number in range(self._workers):
            folder = str(self.work_dir(number))
            arguments = ["--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", folder, self.url]
            self._run(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments)
        wait_until(lambda: self.state().get("aliveworkers") == self._workers, "all workers", timeout=60, interval=0.2)
        return self

    def work_dir(self, number: int) -> Path:
        """Where a worker has a folder for every application, and in it one for every executor."""
        return self._folder / f"work-{number}"

    def state(self) -> dict[str, Any]:
        """What the master says of itself; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=10) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def stop(self) -> None:
        """Ends the workers, then the master, by their process ids."""
        for child in reversed(self._children):
            child.terminate(10)
            child.close()
        self._children.clear()

    def _run(self, name: str, main_class: str, *arguments: str) -> None:
        # Their own Python path: what a worker's Python finds is not what the driver's does.
        environment = {
            "PATH": "/usr/bin:/bin",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "PYTHONPATH": str(ROOT),
        }
        environment |= {name: os.environ[name] for name in ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS") if name in os.environ}
        command = [str(SPARK_HOME / "bin" / "spark-class"), main_class, "--host", HOST, *arguments]
        child = ChildProcess(command, find_java().environment(environment), self._folder / f"{name}.log")
        self._children.append(child)
        child.start()
