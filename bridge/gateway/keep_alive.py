"""Watches over a client, and over the brokers that it is connected to: each may have vanished without a word.

The broker does that for its own clients, but what the bridge asks for itself on a client's upstream connection counts
there as a sign of life of the client. And a client that waits for messages does not see its broker fall silent.
"""

import asyncio
from collections.abc import Callable

TICKS_PER_INTERVAL = 2
ASK_AFTER = TICKS_PER_INTERVAL
"""Looks at a silent peer until it is asked for a sign of life."""


class KeepAlive:
    """Asks for a sign of life after an interval of silence, and gives up after two of them.

    It counts how often it has looked rather than seconds: while this process stood still, nobody could be heard.
    """

    def __init__(
        self, ping: Callable[[], None], gone: Callable[[], None], look: Callable[[], None], interval_s: float
    ) -> None:
        """Nothing is watched before `start`. `look`: called twice in an interval, to look at others in turn."""
        self._look_on = look
        self._ping = ping
        self._gone = gone
        self._wait_s = interval_s / TICKS_PER_INTERVAL
        self._silent = 0  # looks since something was heard
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch from now on, also when it does already: a broker may say CONNECTED twice."""
        self.stop()
        self._silent = 0
        self._schedule()

    def heard(self) -> None:
        """The client said something, or could not have been heard."""
        self._silent = 0

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._look)

    def _look(self) -> None:
        self._schedule()
        self._silent += 1
        if self._silent == ASK_AFTER:
            self._ping()
        elif self._silent > 2 * TICKS_PER_INTERVAL:
            self.stop()
            self._gone()
            return
        self._look_on()
