"""The files, settings and environment of one embedded Pulsar: everything it writes lies in its own folder."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from bridge.embedded.errors import EmbeddedError
from bridge.embedded.java import Java

HOST = "127.0.0.1"
DEFAULT_MEMORY = "-Xms256m -Xmx768m -XX:MaxDirectMemorySize=768m"
_SETTING = re.compile(r"^([A-Za-z]\w*)=")
_COOKIE_PORT = re.compile(r'bookieHost: "[^"]*:(\d+)"')
# What a user's shell may hold for another Pulsar must not reach this one.
_FOREIGN = ("PULSAR_", "BOOKIE_", "BK_", "OPTS")


@dataclass(frozen=True)
class Ports:
    """The three TCP ports of one instance, all on loopback: binary protocol, admin and HTTP, bookie."""

    broker: int
    web: int
    bookie: int


@dataclass(frozen=True)
class Instance:
    """One data folder (absolute) run by one distribution folder."""

    home: Path
    folder: Path

    @property
    def log(self) -> Path:
        """Everything the broker prints."""
        return self.folder / "logs" / "pulsar.log"

    @property
    def lock(self) -> Path:
        """Held for as long as a broker may run on this folder."""
        return self.folder / "lock"

    @property
    def metadata(self) -> Path:
        """The broker's metadata, a RocksDB."""
        return self.folder / "metadata"

    def check_paths(self) -> None:
        """Raises EmbeddedError when a path holds white space: Pulsar's start script cannot quote it."""
        for path in (self.home, self.folder):
            if re.search(r"\s", str(path)):
                raise EmbeddedError(f"Pulsar's start script cannot handle white space in a path: {path!r}")

    def write(self, ports: Ports, config: Mapping[str, str]) -> None:
        """Creates the folders and writes the broker's settings; `config` wins over everything set here."""
        for name in ("logs", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        settings = {
            "brokerServicePort": str(ports.broker),
            "webServicePort": str(ports.web),
            "bindAddress": HOST,
            "advertisedAddress": HOST,
            # Without this the bookie ignores the port it is given and takes one itself.
            "allowEphemeralPorts": "true",
            "allowLoopback": "true",
            "listeningInterface": loopback_interface(),
            **config,
        }
        template = (self.home / "conf" / "standalone.conf").read_text()
        (self.folder / "standalone.conf").write_text(override(template, settings))

    def command(self, ports: Ports) -> list[str]:
        """The command line: a broker and a bookie in one process, without functions and stream storage."""
        command = [str(self.home / "bin" / "pulsar"), "standalone", "-nfw", "-nss", "-a", HOST]
        command += ["--metadata-dir", str(self.metadata)]
        command += ["--bookkeeper-dir", str(self.folder / "bookkeeper"), "--bookkeeper-port", str(ports.bookie)]
        return command

    def environment(self, java: Java, base: Mapping[str, str], memory: str) -> dict[str, str]:
        """`base` without another Pulsar's variables, with those of this instance; `memory` are JVM options."""
        env = {name: value for name, value in java.environment(base).items() if not name.startswith(_FOREIGN)}
        return env | {
            "PULSAR_STANDALONE_CONF": str(self.folder / "standalone.conf"),
            "PULSAR_STANDALONE_USE_ZOOKEEPER": "0",
            "PULSAR_LOG_DIR": str(self.folder / "logs"),
            "PULSAR_GC_LOG": "-Xlog:disable -Xlog:all=warning:stderr",
            "PULSAR_MEM": memory,
            # Native libraries and crash reports go into the folder too, or they would outlive a kill.
            "PULSAR_EXTRA_OPTS": f"-Djava.io.tmpdir={self.folder}/tmp -XX:ErrorFile={self.folder}/logs/crash-%p.log"
            " -Dpulsar.allocator.exit_on_oom=true -Dio.netty.recycler.maxCapacityPerThread=4096",
        }

    def recorded_bookie_port(self) -> int | None:
        """The bookie's port of an earlier run on this folder; it is part of the ledgers' metadata and must stay."""
        try:
            cookie = (self.folder / "bookkeeper" / "current" / "VERSION").read_text()
        except OSError:
            return None
        match = _COOKIE_PORT.search(cookie)
        return int(match[1]) if match else None

    def log_tail(self, lines: int) -> str:
        """The last `lines` lines of the log; empty when there is none yet."""
        try:
            with self.log.open("rb") as log:
                size = log.seek(0, 2)
                log.seek(max(0, size - 400 * lines))
                text = log.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def override(template: str, settings: Mapping[str, str]) -> str:
    """`template` (lines of key=value) with `settings` put in place of its values, or appended when it has none."""
    left = dict(settings)
    lines = []
    for line in template.splitlines():
        match = _SETTING.match(line)
        lines.append(f"{match[1]}={left.pop(match[1])}" if match and match[1] in left else line)
    lines += [f"{key}={value}" for key, value in left.items()]
    return "\n".join(lines) + "\n"


def loopback_interface() -> str:
    """The name of the network interface that has HOST."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.family == socket.AF_INET and address.address == HOST for address in addresses):
            return name
    return "lo"
