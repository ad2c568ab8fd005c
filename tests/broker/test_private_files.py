"""What the bridge stores is for its user alone."""

import os
import stat
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from bridge.embedded.ports import free_ports
from tests.broker.test_cli import await_ready, client_of, command, subscribe
from tests.cluster import PulsarCluster


def test_nobody_else_may_read_what_a_bridge_wrote(pulsar: PulsarCluster, tmp_path: Path, topic: str) -> None:
    """Whatever the umask it was started with, and whatever was there before."""
    data = tmp_path / "data"
    (data / "rebuilds").mkdir(parents=True)
    data.chmod(0o755)
    (data / "bridge.lock").touch(0o644)
    (data / "rebuilds" / "spec.json").write_text("{}")
    port, web_port = free_ports(2)
    options = {
        "broker-service-url": pulsar.service_url,
        "broker-web-url": pulsar.web_url,
        "data-dir": str(data),
        "host": "127.0.0.1",
        "port": str(port),
        "web-port": str(web_port),
    }
    before = os.umask(0o022)
    try:
        with command(tmp_path, "serve", *(f"--{name}={value}" for name, value in options.items())) as process:
            await_ready(process, web_port)
            with closing(client_of(port)) as client:
                subscribe(client, topic)
                stored = client.create_producer(topic).send(b"secret", deliver_after=timedelta(hours=1))
                steer = [sys.executable, "-m", "bridge", "cancel", f"--admin-url=http://127.0.0.1:{web_port}", topic]
                named = ["--subscription=sub", f"--message-id={stored.ledger_id()}:{stored.entry_id()}"]
                subprocess.run([*steer, *named], capture_output=True, check=True)
            process.terminate()
            assert process.wait(timeout=30) == 0
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (data, *data.rglob("*"))}
    assert data / "actions.log" in found
    assert any(path.suffix == ".log" and path.name != "actions.log" for path in found), "the database's"
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}
