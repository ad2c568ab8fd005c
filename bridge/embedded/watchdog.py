"""Runs one command on behalf of another process (the owner), and cleans up when the owner is gone, however it went.

Executed as a script of its own, never imported by its owner, so it uses the standard library only and starts at once:

    watchdog.py OWNER_PID FOLDER_TO_REMOVE|- LOG_FILE COMMAND...

The owner holds the other end of standard input. Bytes are orders: `s` start the command, `t` ask it to end (SIGTERM),
`k` kill it (SIGKILL). End of file means that the owner let go or died: the command is ended, the folder is removed.
Standard output carries one line for each event: `pid N` after a start, `exit N` after an end.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


class _Watchdog:
    def __init__(self, owner: int, remove: Path | None, log: Path, command: list[str]) -> None:
        self._owner = owner
        self._remove = remove
        self._log = log
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Serves the owner until it is gone, then cleans up."""
        try:
            while self._serve():
                self._notice_exit()
        finally:
            # From here on a second signal must not interrupt the cleaning.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._clean_up()

    def _serve(self) -> bool:
        """Waits shortly for orders and carries them out; False once the owner is gone."""
        if select.select([0], [], [], _POLL_SECONDS)[0]:
            orders = os.read(0, 64)
            for order in orders.decode("ascii", "replace"):
                self._obey(order)
            return bool(orders)
        # A forked copy of the owner may hold the pipe open after its death, so end of file alone is not enough.
        return os.getppid() == self._owner

    def _obey(self, order: str) -> None:
        if order == "s":
            self._start()
        elif order == "t":
            self._signal(signal.SIGTERM)
        elif order == "k":
            self._signal(signal.SIGKILL)
            self._wait()

    def _start(self) -> None:
        if self._child is not None:
            return
        with self._log.open("ab") as log:
            try:
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                )
            except OSError as error:
                log.write(f"cannot run {self._command[0]}: {error}\n".encode())
                _tell("exit 127")
                return
        _tell(f"pid {self._child.pid}")

    def _signal(self, number: signal.Signals) -> None:
        # While the child is not waited for, its id (and its group's) cannot belong to anyone else.
        if self._child is not None and self._child.poll() is None:
            try:
                os.killpg(self._child.pid, number)
            except (ProcessLookupError, PermissionError):
                self._child.send_signal(number)

    def _wait(self, timeout: float | None = None) -> None:
        if self._child is not None:
            try:
                self._child.wait(timeout)
            except subprocess.TimeoutExpired:
                return
        self._notice_exit()

    def _notice_exit(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            code, self._child = self._child.returncode, None
            _tell(f"exit {code}")

    def _clean_up(self) -> None:
        # Data that is kept deserves an orderly end; data that goes away does not need the wait.
        if self._remove is None:
            self._signal(signal.SIGTERM)
            self._wait(_GRACE_SECONDS)
        self._signal(signal.SIGKILL)
        self._wait()
        if self._remove is not None:
            shutil.rmtree(self._remove, ignore_errors=True)


def _die_with_parent() -> None:
    """Linux only: the command is killed by the kernel should this watchdog itself be killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(event: str) -> None:
    with contextlib.suppress(OSError):  # the owner may be gone: then nobody is left to tell
        os.write(1, f"{event}\n".encode())


def _main() -> None:
    owner, remove, log, *command = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Watchdog(int(owner), None if remove == "-" else Path(remove), Path(log), command).run()


if __name__ == "__main__":
    _main()
