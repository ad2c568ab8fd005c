"""The command line without a broker: usage, configuration, queries, logs."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bridge.cli import main
from bridge.cli.common import plain_table, print_table
from bridge.config import Settings

BROKER = 'broker_service_url = "pulsar://b:6650"\nbroker_web_url = "http://b:8080"\n'
SECRETS = "".join(f'{name} = "very-secret-{name}"\n' for name in ("broker_token", "web_token", "web_read_token"))
TOPIC = {
    "topic": "persistent://public/default/orders",
    "role": "owner",
    "owner": "pulsar://bridge-1:6650",
    "harvestedPosition": "12:34",
    "entries": 12345,
    "storageSize": 67890,
    "pending": 11111,
    "earliestDeliverAt": 1_800_000_000_000,
    "latenessP99Ms": 7,
    "warnings": 0,
}


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*Settings.model_fields, "config", "admin_url", "auth_params"]:
        monkeypatch.delenv(f"DELAY_BRIDGE_{name.upper()}", raising=False)


def run(*arguments: object) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


MEMBERS = {
    "members": [
        {"url": "pulsar://a:6650", "draining": True, "webUrl": "http://a:8081", "owned": 1_200, "load": 1_300.52},
        {"url": "pulsar://b:6650", "draining": False, "webUrl": None, "owned": None, "load": None},
    ],
    "trouble": "for a test",
}


@pytest.fixture
def admin_url() -> Iterator[str]:
    """A REST interface that tracks one topic, and under /broken answers no JSON."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {
                "/admin/v2/delayed/topics": json.dumps([TOPIC]),
                "/admin/v2/delayed/members": json.dumps(MEMBERS),
                "/broken/admin/v2/delayed/topics": "<html>",
            }
            body = known.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nonsense"], "nonsense"),
        (["demo", "--min-delay", "3x"], "'--min-delay': not a duration: '3x'"),
        (["demo", "--min-delay", "20s"], "--min-delay is longer than --max-delay: 20000 ms > 10000 ms"),
        (["demo", "--messages", "0"], "not a number of messages: '0'"),
        (["serve", "--port", "70000"], "70000"),
        (["serve", "--log-format", "xml"], "xml"),
        (["topics", "--output", "yaml"], "yaml"),
        (["standalone", "--port", "http"], "http"),
    ],
)
def test_wrong_usage_exits_2_and_names_the_value(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.count(".") == 2
    assert run("-h") == 0
    assert "Usage: delay-bridge" in capsys.readouterr().out


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "bridge", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: delay-bridge")


def test_topics_as_a_table(capsys: pytest.CaptureFixture[str], admin_url: str) -> None:
    assert run("topics", "--admin-url", admin_url) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["topic", "role", "owner"]
    numbers = ["12,345", "67,890", "11,111", "2027-01-15T08:00:00.000Z", "7", "0"]
    assert row.split() == [TOPIC["topic"], "owner", TOPIC["owner"], *numbers]


def test_tables_break_no_number_on_a_terminal(
    capsys: pytest.CaptureFixture[str], admin_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit 80 columns is printed as a block."""
    monkeypatch.setenv("TERM", "dumb")  # 80 columns, nothing in bold
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("topics", "--admin-url", admin_url) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if line.strip())
    assert (rows["entries"], rows["bytes"], rows["pending"]) == ("12,345", "67,890", "11,111")
    table = plain_table(("name", "bytes", "from"), numbers=("bytes",))
    table.add_row("n" * 90, "7,676,297", "2027-01-15T08:00:00.000Z")
    print_table(table)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "7,676,297" in out
    assert "2027-01-15T08:00:00.000Z" in out


def test_members_as_a_table(capsys: pytest.CaptureFixture[str], admin_url: str) -> None:
    assert run("members", "--admin-url", admin_url) == 0
    told = capsys.readouterr()
    lines = [line.split() for line in told.out.splitlines()]
    assert lines[0] == ["bridge", "REST", "topics", "load"]
    assert lines[-2:] == [
        ["pulsar://a:6650", "http://a:8081", "1,200", "1300.5", "draining"],
        ["pulsar://b:6650", "-", "silent", "-"],
    ]
    assert "the other bridges are not known: for a test" in told.err


def test_members_as_json(capsys: pytest.CaptureFixture[str], admin_url: str) -> None:
    assert run("members", "--admin-url", admin_url, "--output", "json") == 0
    assert json.loads(capsys.readouterr().out) == MEMBERS


def test_topics_as_json(capsys: pytest.CaptureFixture[str], admin_url: str) -> None:
    assert run("topics", "--admin-url", admin_url + "/", "--output", "json") == 0
    assert json.loads(capsys.readouterr().out) == [TOPIC]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "cannot reach the bridge at http://127.0.0.1:1: Connection refused"),
        ("ftp://somewhere", "not a web URL: 'ftp://somewhere' (expected http://host:port)"),
        ("http://[", "not a web URL: 'http://[' (expected http://host:port)"),
        ("{}/other", "GET {}/other/admin/v2/delayed/topics: 404 Not Found"),
        ("{}/broken", "GET {}/broken/admin/v2/delayed/topics: the answer is not JSON"),
    ],
)
def test_topics_that_cannot_be_asked_for(
    capsys: pytest.CaptureFixture[str], admin_url: str, url: str, said: str
) -> None:
    assert run("topics", "--admin-url", url.format(admin_url)) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"delay-bridge: {said.format(admin_url)}\n")


def test_config_show(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(BROKER + SECRETS)
    monkeypatch.setenv("DELAY_BRIDGE_PORT", "7777")
    assert run("config", "show", "--config", file) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert set(Settings.model_fields) < set(rows)
    assert rows["port"] == ["7777", "DELAY_BRIDGE_PORT"]
    assert rows["broker_service_url"] == ["pulsar://b:6650", "file"]
    assert rows["web_port"] == ["8081", "default"]
    assert "very-secret" not in out


def test_config_show_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(BROKER + SECRETS)
    monkeypatch.setenv("DELAY_BRIDGE_CONFIG", str(file))
    assert run("config", "show", "--output", "json") == 0
    out = capsys.readouterr().out
    assert json.loads(out)["broker_web_url"] == {"value": "http://b:8080", "source": "file"}
    assert "very-secret" not in out


def test_config_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(BROKER)
    assert run("config", "check", "--config", file) == 0
    assert capsys.readouterr().out == "the configuration is good\n"
    file.write_text(BROKER + 'prot = 1\nweb_port = "x"\n')
    assert run("config", "check", "--config", file) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["web_port (file)", "prot (file)"]


def test_a_wrong_configuration_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("serve", "--config", tmp_path / "missing.toml") == 1
    assert capsys.readouterr().err == f"delay-bridge: cannot read {tmp_path}/missing.toml: No such file or directory\n"
