"""How workers divide ports and folders, who looks after them, and how what they say becomes one."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge import answers
from bridge.answers.values import Severity
from bridge.config import ConfigError, Settings, load_settings
from bridge.limits import Limits, WorkerLimits
from bridge.net.listening import StartError
from bridge.web.neighbours.sums import metrics_as_one, overview_as_one, rows_as_one
from bridge.workers.division import ports_of, settings_of, web_ports_of_others
from bridge.workers.place import Place, Ports
from bridge.workers.supervisor import Supervisor
from tests.helpers import wait_until_async
from tests.unit.test_web_pages import OVERVIEW

URLS = {"broker_service_url": "pulsar://broker:6650", "broker_web_url": "http://broker:8080"}
QUICK = Limits(
    workers=WorkerLimits(worker_stop_s=2.0, worker_beat_s=0.1, worker_silent_s=1.0), retry_backoff_s=(0.01, 0.02)
)


def settings(tmp_path: Path, **given: Any) -> Settings:
    return Settings(**{**URLS, "data_dir": tmp_path, "host": "127.0.0.1", "port": 0, **given})


def test_each_worker_has_three_ports_in_a_row_and_the_first_the_common_web_port(tmp_path: Path) -> None:
    given = settings(tmp_path, workers=3, worker_port=20_000, web_port=8081)
    assert ports_of(given) == (
        Ports(20_000, 20_001, 8081),
        Ports(20_003, 20_004, 20_005),
        Ports(20_006, 20_007, 20_008),
    )


def test_free_ports_are_free_and_all_different(tmp_path: Path) -> None:
    found = ports_of(settings(tmp_path, workers=8, worker_port=0, web_port=0))
    flat = [port for ports in found for port in ports]
    assert len(set(flat)) == len(flat) == 24
    with socket.create_server(("127.0.0.1", flat[0])):
        pass


def test_the_first_worker_has_the_index_of_a_single_bridge(tmp_path: Path) -> None:
    given = settings(tmp_path, workers=2, worker_port=20_000, web_port=8081, advertised_web_url="http://all:80")
    first, second = (settings_of(given, Place(number, ports_of(given), 0, None, None)) for number in (0, 1))
    assert (first.port, first.tls_port, first.web_port, first.data_dir) == (20_000, 0, 8081, tmp_path)
    assert (second.port, second.web_port, second.data_dir) == (20_003, 20_005, tmp_path / "workers" / "1")
    assert (first.advertised_web_url, second.advertised_web_url) == ("http://all:80", "")
    places = [Place(number, ports_of(given), 0, None, None) for number in (0, 1)]
    assert [web_ports_of_others(place) for place in places] == [(20_005,), ()]


def test_a_place_is_told_by_the_environment() -> None:
    place = Place(1, (Ports(1, 2, 3), Ports(4, 5, 6)), 7, 8, None)
    assert Place.told(place.environment()) == place
    assert place.files == [7, 8]
    assert Place.told({}) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": 65}, "workers"),
        ({"workers": 2, "members_topic": "off"}, "members_topic has to be set"),
        ({"workers": 30, "worker_port": 65_500}, "ports up to 65589"),
        ({"workers": 2, "worker_port": 6_650}, "port 6650: is one of the workers' own, 6650 to 6655"),
        ({"workers": 2, "worker_port": 8_080}, "web_port 8081: is one of the workers' own"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(None, **URLS, **given)


# -- looking after them

BEGIN = (
    "import os, json, socket, sys, time; place = json.loads(os.environ['_DELAY_BRIDGE_PLACE']); n = place['number']; "
)
TELL = "line = socket.socket(fileno=place['line']); line.sendall(b'up'); "
WAIT = """
line.settimeout(0.1)
while True:
    try:
        line.recv(1)
        break
    except TimeoutError:
        line.send(b'.')
"""


def supervisor(tmp_path: Path, script: str, workers: int = 2) -> Supervisor:
    note = f"open({str(tmp_path)!r} + f'/{{n}}.{{os.getpid()}}', 'w').close(); "
    command = [sys.executable, "-c", BEGIN + note + script]
    return Supervisor(settings(tmp_path, workers=workers, worker_port=0, web_port=0), QUICK, command)


def started(tmp_path: Path, number: int) -> list[int]:
    """The process ids of all that were started in a place."""
    return [int(each.suffix[1:]) for each in tmp_path.glob(f"{number}.*")]


def latest(tmp_path: Path, number: int) -> float:
    """When the last one was started in a place."""
    return max(each.stat().st_mtime for each in tmp_path.glob(f"{number}.*"))


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_worker_that_ends_is_started_again_and_all_end_together(tmp_path: Path) -> None:
    running = asyncio.create_task(supervisor(tmp_path, TELL + WAIT).run())
    await wait_until_async(lambda: started(tmp_path, 0) and started(tmp_path, 1), "two workers")
    first = started(tmp_path, 0)
    await asyncio.sleep(0.2)  # it has said that it is up
    os.kill(first[0], signal.SIGKILL)
    await wait_until_async(lambda: len(started(tmp_path, 0)) == 2, "another one in its place")
    assert len(started(tmp_path, 1)) == 1
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert not any(is_there(pid) for number in (0, 1) for pid in started(tmp_path, number))


async def test_a_worker_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    hangs = f"hangs = n == 0 and len(os.listdir({str(tmp_path)!r})) < 3; " + TELL
    running = asyncio.create_task(supervisor(tmp_path, hangs + "time.sleep(60 if hangs else 0)\n" + WAIT).run())
    await wait_until_async(lambda: len(started(tmp_path, 0)) == 2, "another one in its place")
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert len(started(tmp_path, 1)) == 1


async def test_workers_are_restarted_one_by_one(tmp_path: Path) -> None:
    """The second one is asked to end when another first one is up."""
    ends = "import signal; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); "
    running = asyncio.create_task(supervisor(tmp_path, ends + TELL + WAIT).run())
    await wait_until_async(lambda: started(tmp_path, 0) and started(tmp_path, 1), "two workers")
    await asyncio.sleep(0.2)
    os.kill(os.getpid(), signal.SIGUSR1)
    await wait_until_async(lambda: len(started(tmp_path, 1)) == 2, "both are restarted")
    assert latest(tmp_path, 0) < latest(tmp_path, 1)
    await asyncio.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert [len(started(tmp_path, number)) for number in (0, 1)] == [2, 2]


async def test_a_worker_that_cannot_start_ends_all(tmp_path: Path) -> None:
    script = "sys.exit(3) if n else None; " + TELL + WAIT
    with pytest.raises(StartError, match="worker 1 could not start and ended with code 3"):
        await supervisor(tmp_path, script).run()
    assert not any(is_there(pid) for number in (0, 1) for pid in started(tmp_path, number))


async def test_a_worker_that_does_not_end_is_killed(tmp_path: Path) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    running = asyncio.create_task(supervisor(tmp_path, script, workers=1).run())
    await wait_until_async(lambda: started(tmp_path, 0), "a worker")
    await asyncio.sleep(0.2)  # it ignores the signal by now
    os.kill(os.getpid(), signal.SIGINT)
    await running
    assert not is_there(started(tmp_path, 0)[0])


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = settings(tmp_path, workers=2, worker_port=0, port=port)
        with pytest.raises(StartError, match=f":{port}"):
            await Supervisor(given, QUICK, ["false"]).run()


# -- what they say, as one


def row(topic: str, role: str, entries: int | None = None) -> answers.TopicRow:
    return {"topic": topic, "role": role, "entries": entries}  # type: ignore[typeddict-item]


def test_the_owner_s_row_counts() -> None:
    rows = [row("a", "standby"), row("b", "owner", 1), row("a", "owner", 5), row("b", "standby"), row("c", "standby")]
    found = {each["topic"]: each["role"] for each in rows_as_one(rows)}
    assert found == {"a": "owner", "b": "owner", "c": "standby"}


def test_an_overview_of_all_adds_up_and_names_who_is_silent() -> None:
    low: answers.OperatorWarning = {
        "severity": Severity.warning,
        "code": "disk",
        "topic": None,
        "subscription": None,
        "text": "full",
    }
    other: answers.Overview = {**OVERVIEW, "warnings": [low], "pending": 1, "storageFailure": "no space left"}
    found = overview_as_one({**OVERVIEW, "warnings": [low]}, [other], {"http://127.0.0.1:16655": "refused"})
    assert found["pending"] == OVERVIEW["pending"] + 1
    assert found["entries"] == 2 * OVERVIEW["entries"]
    assert found["dueWithin"] == {"60": 22, "3600": 444, "86400": 6_666}
    assert found["latenessBuckets"] == [10]
    assert found["storageFailure"] == "no space left"
    assert [each["code"] for each in found["warnings"]] == ["worker-silent", "disk"]
    assert "16655" in found["warnings"][0]["text"]


def test_metrics_of_all_say_whose_they_are() -> None:
    one = '# HELP a_total As.\n# TYPE a_total counter\na_total{x="1"} 2\na_total{x="2"} 0.5\n'
    two = (
        '# HELP b B, with # TYPE in it.\n# TYPE b gauge\nb{t="with space {}"} 7\n'
        '# HELP a_total As.\n# TYPE a_total counter\na_total{x="1"} 3\n'
    )
    found = metrics_as_one([one, None, two]).decode().splitlines()
    assert found == [
        "# HELP a_total As.",
        "# TYPE a_total counter",
        'a_total{worker="0",x="1"} 2',
        'a_total{worker="0",x="2"} 0.5',
        'a_total{worker="2",x="1"} 3',
        "# HELP b B, with # TYPE in it.",
        "# TYPE b gauge",
        'b{worker="2",t="with space {}"} 7',
    ]
