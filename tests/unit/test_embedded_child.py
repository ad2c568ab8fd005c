"""The child process and its watchdog, with shell commands in Pulsar's place."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bridge.embedded.child import ChildProcess
from bridge.embedded.errors import EmbeddedError
from tests.helpers import wait_until

# A command that starts a process of its own and ignores orderly ends.
STUBBORN = ["sh", "-c", "trap '' TERM; sleep 600 & echo $!; while :; do sleep 0.1; done"]
OWNER = """
import os, signal, sys, time
from pathlib import Path
from bridge.embedded.child import ChildProcess
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
folder = Path(sys.argv[1])
child = ChildProcess(sys.argv[2:], os.environ, folder / "log", remove=folder)
folder.mkdir()
pid = child.start()
if os.fork() == 0:  # a copy of the owner that outlives it, holding the watchdog's pipe open
    os.closerange(0, 3)
    time.sleep(5)
    os._exit(0)
print(pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def child_of(tmp_path: Path, *command: str, remove: Path | None = None) -> ChildProcess:
    return ChildProcess(command, os.environ, tmp_path / "log", remove=remove)


def test_output_and_exit_code_are_kept(tmp_path: Path) -> None:
    child = child_of(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 3")
    child.start()
    assert child.wait(10)
    assert child.exit_code == 3
    assert (tmp_path / "log").read_text() == "out\nerr\n"
    child.close()


def test_it_can_be_started_again_after_a_kill(tmp_path: Path) -> None:
    child = child_of(tmp_path, "sleep", "600")
    first = child.start()
    child.kill()
    assert not child.running()
    assert not psutil.pid_exists(first)
    assert child.exit_code == -signal.SIGKILL
    second = child.start()
    assert child.running()
    child.close()
    assert not psutil.pid_exists(second)
    child.close()


def test_terminate_tells_whether_it_ended(tmp_path: Path) -> None:
    child = child_of(tmp_path, *STUBBORN)
    child.start()
    grandchild = int(wait_until(lambda: (tmp_path / "log").read_text(), "the command runs"))
    assert not child.terminate(0.5)
    child.kill()
    wait_until(lambda: not alive(grandchild), "the whole process group ended")
    child.close()


def test_a_command_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    child = child_of(tmp_path, "/nowhere/pulsar")
    with pytest.raises(EmbeddedError):
        child.start()
    child.close()
    assert "cannot run /nowhere/pulsar" in (tmp_path / "log").read_text()


def test_close_removes_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    child = ChildProcess(["sleep", "600"], os.environ, folder / "log", remove=folder)
    folder.mkdir()
    child.start()
    child.close()
    assert not folder.exists()


def test_a_killed_watchdog_takes_the_command_along(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs the parent-death signal of Linux")
    child = child_of(tmp_path, "sleep", "600")
    pid = child.start()
    psutil.Process(pid).parent().kill()  # type: ignore[union-attr]
    wait_until(lambda: not alive(pid), "the command ended")
    wait_until(lambda: not child.running(), "the owner noticed")
    with pytest.raises(EmbeddedError):
        child.start()
    child.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_owner_dies(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "instance"
    arguments = [sys.executable, "-c", OWNER, str(folder), *STUBBORN]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        try:
            pid = int(owner.stdout.readline())
            watchdog = psutil.Process(pid).ppid()
            grandchild = int(wait_until(lambda: (folder / "log").read_text(), "the command runs"))
            owner.send_signal(number)
            owner.wait(10)
        finally:
            owner.kill()
    processes = {pid, grandchild, watchdog}
    wait_until(lambda: not any(alive(process) for process in processes), f"{processes} ended", timeout=4)
    assert not folder.exists()
