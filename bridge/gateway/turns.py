"""The frames of one client, worked off in turns: however many arrive at once, others get theirs in between."""

import asyncio
from collections import deque
from collections.abc import Callable

from bridge.protocol.frames import Frame


class Turns:
    """Frames are handled in order, for `turn_s` at a time, and not while the client has too much under way."""

    def __init__(
        self, handle: Callable[[Frame], None], full: Callable[[], bool], hold: Callable[[bool], None], turn_s: float
    ) -> None:
        """`handle` must not raise. `full`: enough is under way; `hold`: read no more for now, or (False) read on."""
        self._handle = handle
        self._full = full
        self._hold = hold
        self._turn_s = turn_s
        self._waiting: deque[Frame] = deque()
        self._soon: asyncio.Handle | None = None
        self._held = False

    def take(self, frames: list[Frame]) -> None:
        """Handle what came, now or later."""
        if self._waiting:  # read before `hold` took effect
            self._waiting.extend(frames)
        else:
            self._work(frames)

    def go_on(self) -> None:
        """Something that was under way has ended."""
        if self._held and self._soon is None and not self._full():
            self._soon = asyncio.get_running_loop().call_soon(self._next_turn)

    def end(self) -> None:
        """Nothing of what waits is wanted any more."""
        self._waiting.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _next_turn(self) -> None:
        self._soon = None
        frames = list(self._waiting)
        self._waiting.clear()
        self._work(frames)

    def _work(self, frames: list[Frame]) -> None:
        time, full, handle = asyncio.get_running_loop().time, self._full, self._handle
        until = time() + self._turn_s
        for number, frame in enumerate(frames, 1):
            handle(frame)
            if number < len(frames) and (full() or time() > until):
                self._waiting.extend(frames[number:])
                break
        held = bool(self._waiting) or full()
        if held != self._held:
            self._held = held
            self._hold(held)
        self.go_on()
