"""Moves what is due to consumers: in slices, so that the event loop is never kept long, and when the clock says so."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.limits import DispatchLimits
from tracker import StoreError, TopicIndex

log = structlog.get_logger(__name__)


class Pump:
    """One per time as owner of a topic partition; looks for the first time when woken."""

    def __init__(
        self,
        subscriptions: Mapping[str, TrackedSubscription],
        now_ms: Callable[[], int],
        now_ns: Callable[[], int],
        index: TopicIndex,
        on_failed: Callable[[Exception], None],
        limits: DispatchLimits,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        """`subscriptions` may change at any time; one wall clock in ms, and in ns; `on_failed`: it pumps no more.

        `may_send` is asked before anything is sent: whether this bridge is the owner for certain.
        """
        self._subscriptions = subscriptions
        self._now_ms = now_ms
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        self._index = index
        self._on_failed = on_failed
        self._limits = limits
        self._may_send = may_send
        self.held = False
        """Whether nothing is sent, for this bridge may be the owner no more."""
        self._stopped = False
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self._failing = False

    def stop(self) -> None:
        """Dispatch no more."""
        self._stopped = True
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None

    def wake(self) -> None:
        """Look soon whether something can go out; cheap to call often."""
        if self._soon is None and not self._stopped:
            self._soon = self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._soon = None
        if self._is_held():
            self._call_later(self._limits.held_look_s)
            return
        now_ms = self._now_ms()
        try:
            if self._send_slice(now_ms) or self._index.prefetch(now_ms, self._limits.prefetch_slice):
                self.wake()
            else:
                self._set_timer(now_ms)
            self._failing = False
        except StoreError as error:
            if not self._failing:
                log.error("cannot read what is due, trying again", reason=str(error))
            self._failing = True
            self._call_later(self._limits.max_timer_ms / 1000)
        except Exception as error:
            self.stop()
            self._on_failed(error)

    def _is_held(self) -> bool:
        held = not self._may_send()
        if held != self.held:
            say = log.warning if held else log.info
            say("dispatch is held, the broker does not answer" if held else "dispatch goes on", topic=self._index.topic)
        self.held = held
        return held

    def _send_slice(self, now_ms: int) -> int:
        """Let the subscriptions send, in turn, until a slice is full."""
        subscriptions = list(self._subscriptions.values())
        # Whoever is first gets what little a dispatch rate of the topic allows.
        self._turn += 1
        sent = 0
        for step in range(len(subscriptions)):
            number = (self._turn + step) % len(subscriptions)
            sent += subscriptions[number].pump(now_ms)
            if sent >= self._limits.dispatch_slice:
                self._turn = number
                break
        return sent

    def _set_timer(self, now_ms: int) -> None:
        """Look again when the next entry is due, and at the clock once a second in any case."""
        wait_ms = self._limits.max_timer_ms
        for subscription in self._subscriptions.values():
            due_in_ms = subscription.due_in_ms(now_ms)
            if due_in_ms is not None:
                wait_ms = min(wait_ms, due_in_ms)
        if wait_ms <= 0:
            self.wake()
            return
        # The part of the current millisecond that is gone already counts. A timer that fires early does no harm:
        # nothing is sent before the clock is looked at again.
        passed = self._now_ns() % 1_000_000 / 1e9
        self._call_later(max(wait_ms / 1000 - passed, 0))

    def _call_later(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._stopped:
            self._timer = self._loop.call_later(wait_s, self._run)
