"""What tests/conftest.py promises: one cluster for all workers, no tasks left behind, no blocking calls."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import SharedCluster, given_cluster
from tests.helpers import NotInTimeError, wait_until, wait_until_async

CONFTEST = "from tests.conftest import _no_task_left, _rules_for_async_tests\n"
WORKER = """
import os, sys, time
from pathlib import Path
from tests.cluster import PulsarCluster, SharedCluster
from tests.helpers import wait_until
folder, workers = Path(sys.argv[1]), int(sys.argv[2])
def note(word):
    with (folder / "events").open("a") as events:
        events.write(word + " ")
def start():
    note("start")
    time.sleep(0.2)  # the others come meanwhile, or later
    return PulsarCluster("pulsar://x", "http://x"), lambda: note("stop")
shared = SharedCluster(folder, start)
assert shared.join() == PulsarCluster("pulsar://x", "http://x")
(folder / f"joined-{os.getpid()}").touch()
wait_until(lambda: len(list(folder.glob("joined-*"))) == workers, timeout=30)
note("leave")
shared.leave()
"""
CROSSED = """
import sys
from pathlib import Path
from tests.cluster import PulsarCluster, SharedClusters
from tests.helpers import wait_until
folder, own, other = Path(sys.argv[1]), *sys.argv[2:]
def start():
    return PulsarCluster("pulsar://x", "http://x"), stop
def stop():
    with (folder / "events").open("a") as events:
        events.write(f"stop-{own} ")
shared = SharedClusters()
shared.join(folder, own, start)
wait_until((folder / f"{other}.json").exists, timeout=30)
shared.join(folder, other, lambda: sys.exit("it runs already"))
(folder / f"joined-{own}").touch()
wait_until(lambda: len(list(folder.glob("joined-*"))) == 2, timeout=30)
shared.leave()
"""


@pytest.fixture
def inner_run(tmp_path: Path) -> "InnerRun":
    return InnerRun(tmp_path)


class InnerRun:
    """Runs tests written to a folder under this project's rules for asynchronous tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")

    def output(self, source: str) -> str:
        (self._folder / "test_inner.py").write_text(source)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(self._folder)]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        env.pop("PYTEST_XDIST_WORKER", None)
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=self._folder, check=False)
        return done.stdout + done.stderr


def test_a_task_left_behind_fails_the_test_by_name(inner_run: InnerRun) -> None:
    output = inner_run.output(
        "import asyncio\n"
        "async def test_leak():\n    asyncio.create_task(asyncio.sleep(60), name='forgotten')\n"
        "async def test_clean():\n    task = asyncio.create_task(asyncio.sleep(60))\n    task.cancel()\n"
        "def test_sync():\n    pass\n"
    )
    assert "1 asyncio tasks left behind" in output
    assert "forgotten" in output
    assert "3 passed, 1 error" in output


@pytest.mark.slow  # it asks for Java
def test_a_blocking_call_below_the_bridge_fails_the_test(inner_run: InnerRun) -> None:
    output = inner_run.output(
        "import asyncio, time\nfrom bridge.embedded import find_java\n"
        "async def test_blocking():\n    find_java()\n"
        "async def test_in_thread():\n    await asyncio.to_thread(find_java)\n"
        "async def test_own_sleep():\n    time.sleep(0.001)\n"
        "def test_sync():\n    find_java()\n"
    )
    assert "BlockingError: Blocking call to" in output
    assert "1 failed, 3 passed" in output


def test_workers_share_one_cluster_and_the_last_one_out_ends_it(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), "3"]) for _ in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert (tmp_path / "events").read_text().split() == ["start", "leave", "leave", "leave", "stop"]


def test_a_cluster_of_a_crashed_worker_is_replaced(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as gone:
        pass
    (tmp_path / "pulsar.json").write_text(json.dumps({"owner": gone.pid, "urls": ["pulsar://old", "http://old"]}))
    subprocess.run([sys.executable, "-c", WORKER, str(tmp_path), "1"], check=True, timeout=30)
    assert (tmp_path / "events").read_text().split() == ["start", "leave", "stop"]
    assert not (tmp_path / "pulsar.json").exists()


def test_processes_that_each_started_a_cluster_of_the_other_do_not_wait_for_each_other(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-c", CROSSED, str(tmp_path), *names]) for names in (("a", "b"), ("b", "a"))
    ]
    try:
        assert [worker.wait(60) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    assert sorted((tmp_path / "events").read_text().split()) == ["stop-a", "stop-b"]


def test_given_cluster_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELAY_BRIDGE_TEST_WEB_URL", raising=False)
    monkeypatch.setenv("DELAY_BRIDGE_TEST_SERVICE_URL", "pulsar://h:1")
    assert given_cluster() is None
    monkeypatch.setenv("DELAY_BRIDGE_TEST_WEB_URL", "http://h:2/")
    assert given_cluster() == ("pulsar://h:1", "http://h:2")


def test_leaving_a_cluster_of_others_does_not_wait(tmp_path: Path) -> None:
    SharedCluster(tmp_path, lambda: pytest.fail("never started")).leave()


def test_wait_until_returns_what_held_or_says_what_did_not() -> None:
    values = iter([0, 0, 7])
    assert wait_until(lambda: next(values)) == 7
    started = time.monotonic()
    with pytest.raises(NotInTimeError, match=r"not within 0\.05 s: the moon is full; last seen: \[\]"):
        wait_until(list, "the moon is full", timeout=0.05)
    assert time.monotonic() - started < 1
    with pytest.raises(NotInTimeError, match=r"lambda> \(.*test_embedded_fixtures\.py:\d+\)"):
        wait_until(lambda: False, timeout=0)


async def test_wait_until_async_takes_both_kinds_of_predicate() -> None:
    values = iter([0, 0, 7, 0, 8])

    async def following() -> int:
        return next(values)

    assert await wait_until_async(lambda: next(values)) == 7
    assert await wait_until_async(following) == 8
    with pytest.raises(NotInTimeError, match="nothing"):
        await wait_until_async(lambda: None, "nothing", timeout=0.03)
