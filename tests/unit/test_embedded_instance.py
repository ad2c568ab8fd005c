import socket
from pathlib import Path

import pytest

from bridge.embedded import EmbeddedError
from bridge.embedded.instance import Instance, Ports, override
from bridge.embedded.java import Java
from bridge.embedded.ports import free_ports, is_free


def test_settings_replace_or_extend_the_template() -> None:
    template = "# a=0\na=1\nb=\nlast=x"  # Pulsar's file does not end in a newline
    assert override(template, {"a": "2", "b": "y", "new": "z"}) == "# a=0\na=2\nb=y\nlast=x\nnew=z\n"


def test_everything_is_written_below_the_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "standalone.conf").write_text("brokerServicePort=6650\nwebServicePort=8080\n")
    instance = Instance(home, tmp_path / "data")
    ports = Ports(1, 2, 3)
    instance.write(ports, {"webServicePort": "9", "maxConsumersPerTopic": "7"})
    written = (tmp_path / "data" / "standalone.conf").read_text().splitlines()
    assert {"brokerServicePort=1", "webServicePort=9", "maxConsumersPerTopic=7"} <= set(written)
    folders = [part for part in instance.command(ports) if part.startswith("/")][1:]
    assert all(Path(folder).is_relative_to(tmp_path / "data") for folder in folders)
    base = {"PULSAR_LOG_DIR": "/elsewhere", "PULSAR_CLASSPATH": "/x", "OPTS": "-Dx", "HOME": "/home/me", "PATH": "/bin"}
    env = instance.environment(Java(None, Path("/opt/java/bin/java"), 17), base, "-Xmx1m")
    assert env["PULSAR_LOG_DIR"] == str(tmp_path / "data" / "logs")
    assert (env["HOME"], env["PATH"], env["PULSAR_MEM"]) == ("/home/me", "/opt/java/bin:/bin", "-Xmx1m")
    assert not {"PULSAR_CLASSPATH", "OPTS"} & set(env)


def test_white_space_in_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="white space"):
        Instance(tmp_path, tmp_path / "my data").check_paths()


def test_log_tail_gives_the_last_lines(tmp_path: Path) -> None:
    instance = Instance(tmp_path, tmp_path)
    assert instance.log_tail(3) == ""
    instance.log.parent.mkdir()
    instance.log.write_text("".join(f"line {n} {'x' * 200}\n" for n in range(10_000)))
    assert [line.split()[1] for line in instance.log_tail(3).splitlines()] == ["9997", "9998", "9999"]


def test_bookie_port_is_read_from_an_earlier_run(tmp_path: Path) -> None:
    instance = Instance(tmp_path, tmp_path)
    assert instance.recorded_bookie_port() is None
    cookie = tmp_path / "bookkeeper" / "current" / "VERSION"
    cookie.parent.mkdir(parents=True)
    cookie.write_text('5\nbookieHost: "127.0.0.1:20181"\njournalDir: "/x"\n')
    assert instance.recorded_bookie_port() == 20181


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_port_of_a_server_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])
