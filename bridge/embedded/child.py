"""A child process that never outlives its owner: the owner's side of `watchdog.py`."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bridge.embedded.errors import EmbeddedError

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_ANSWER_SECONDS = 20.0
_CLOSE_SECONDS = 30.0


class ChildProcess:
    """One command, run in a process group of its own, startable again after it ended.

    When this process closes it or dies, even by SIGKILL, a watchdog ends the command and removes the folder `remove`.
    The watchdog exists from the constructor on, so make that folder afterwards. Not for concurrent use.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        remove: Path | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        """`log` gets the command's output, appended. `keep_open` are descriptors the watchdog holds until its end."""
        self.pid: int | None = None
        self.exit_code: int | None = None
        self._started: int | None = None  # stays when the command has ended at once
        self._received = b""
        self._lost = False  # the watchdog is gone, and the command with it
        arguments = [str(os.getpid()), "-" if remove is None else str(remove), str(log), *command]
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WATCHDOG), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(env),
            bufsize=0,
            pass_fds=tuple(keep_open),
            # A session of its own: Ctrl-C in the terminal is for the owner, who decides what ends when.
            start_new_session=True,
        )

    def start(self) -> int:
        """Starts the command; returns its process id. Raises EmbeddedError when it cannot be run."""
        self._order_start()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self._lost and not self._listen(0.1) and time.monotonic() < deadline:
            pass
        if self._started is None:
            raise EmbeddedError("the child process could not be started")
        return self._started

    def running(self) -> bool:
        """Whether the command runs, as far as its watchdog has noticed (it looks five times a second)."""
        while self._listen(0):
            pass
        return self.pid is not None

    def terminate(self, timeout: float) -> bool:
        """Asks the command to end; True when it did within `timeout` seconds."""
        self._order(b"t")
        return self.wait(timeout)

    def kill(self) -> None:
        """Ends the command's process group with SIGKILL and waits for that."""
        self._order(b"k")
        if not self.wait(_ANSWER_SECONDS):
            raise EmbeddedError(f"process {self.pid} did not end when killed")

    def wait(self, timeout: float) -> bool:
        """True when the command ended within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.running():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._listen(min(left, 0.5))
        return True

    def close(self) -> None:
        """Ends the command if it runs, removes the folder, ends the watchdog. Safe to call again."""
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
        try:
            self._watchdog.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()
        if self._watchdog.stdout is not None:
            self._watchdog.stdout.close()
        self.pid = None

    def _order_start(self) -> None:
        self.exit_code = self._started = None
        self._order(b"s")

    def _order(self, order: bytes) -> None:
        assert self._watchdog.stdin is not None
        try:
            self._watchdog.stdin.write(order)
        except (OSError, ValueError):
            self.pid, self._lost = None, True

    def _listen(self, timeout: float) -> bool:
        """Takes in what the watchdog tells within `timeout` seconds; False when it told nothing."""
        stream = self._watchdog.stdout
        if stream is None or stream.closed or not select.select([stream], [], [], timeout)[0]:
            return False
        data = os.read(stream.fileno(), 4096)
        if not data:
            self.pid, self._lost = None, True
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            word, number = line.split()
            if word == b"pid":
                self.pid = self._started = int(number)
            else:
                self.pid, self.exit_code = None, int(number)
        return True
