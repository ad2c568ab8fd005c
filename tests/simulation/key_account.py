"""Whose turn it was: what is promised of keys, held against what the consumers of a Key_Shared subscription get.

A key is with one consumer at a time, and what is new of it comes in order. Both are promised of one dispatch: as long
as the same bridge dispatches, and has not forgotten what it has handed out because the cursor was set anew. Whoever
takes over knows nothing of what the one before has handed out, and begins where the cursor is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.messages import SETTLED_S, Broken, Message, Place

ON_ITS_WAY_S = 2.0
"""By then a client has what was sent to it, also that its consumer was closed, unless the line is dead."""


@dataclass(eq=False)
class Stay:
    """From when a consumer subscribes until it is gone; `over` and `unheard` are told by the client.

    `unheard`: its line swallows what is said, so the two sides need not agree on whether it is there.
    """

    consumer: str
    over: bool = False
    unheard: Callable[[], bool] = lambda: False

    @property
    def is_certain(self) -> bool:
        """Whether the bridge has to take it for connected."""
        return not self.over and not self.unheard()


class Dispatch(NamedTuple):
    """What promises about keys are made of; `known_since`: true seconds."""

    token: Hashable
    known_since: float


@dataclass
class Had:
    """An entry that a consumer got and has not acked."""

    message: Message
    stay: Stay
    dispatch: Dispatch
    at: float

    def settled_by_others(self) -> bool:
        """Whether the bridge may have been told that it is acked: by who had it before, or by the broker."""
        message = self.message
        acked = bool(message.acked) and message.acked[-1] >= self.at - SETTLED_S
        return acked or message.expired_at is not None


@dataclass
class _Progress:
    """Of one dispatch: what came for the first time, and how far each order is."""

    seen: set[Place] = field(default_factory=set)
    last: dict[tuple[str, int | None], Message] = field(default_factory=dict)


class KeyAccount:
    """Of one Key_Shared subscription."""

    def __init__(self, now_s: Callable[[], float], token_of: Callable[[str], Hashable]) -> None:
        """`token_of`: another one whenever the bridge of this name begins to dispatch anew; None: it does not."""
        self._now_s = now_s
        self._token_of = token_of
        self._dispatches: dict[str, Dispatch] = {}
        self._progress: dict[Hashable, _Progress] = {}
        self._had: dict[str, dict[Place, Had]] = {}
        self._suspicions: list[tuple[float, Stay, Stay, str]] = []

    # -- what happens

    def received(self, message: Message, stay: Stay, sender: str) -> None:
        """A consumer got it. Raises Broken when it came before one of its key that was published before."""
        assert message.place is not None
        dispatch = self._dispatch(sender)
        of_key = self._had.setdefault(message.key, {})
        if dispatch is None:
            of_key.pop(message.place, None)
            return
        seen = self._progress.setdefault(dispatch.token, _Progress()).seen
        if self._is_of(dispatch):
            self._suspect(message, stay, dispatch)
            if message.place not in seen:
                self._check_order(message, dispatch)
            of_key[message.place] = Had(message, stay, dispatch, self._now_s())
        else:
            of_key.pop(message.place, None)
        seen.add(message.place)

    def given_up(self, message: Message) -> None:
        """Its consumer has acked it, or does not want it."""
        assert message.place is not None
        self._had.get(message.key, {}).pop(message.place, None)

    def check(self) -> None:
        """Raise Broken for a key with two consumers of which both have known for a while that they are there."""
        for name in list(self._dispatches):
            self._dispatch(name)
        while self._suspicions and self._suspicions[0][0] < self._now_s() - ON_ITS_WAY_S:
            _, had, got, what = self._suspicions.pop(0)
            # Who was let go of gets all the same what was on its way, and others have it by then.
            if had.is_certain and got.is_certain:
                raise Broken(what)

    # -- the promises

    def _dispatch(self, sender: str) -> Dispatch | None:
        """As who dispatches stands now; None when nobody does."""
        token, now = self._token_of(sender), self._now_s()
        known = self._dispatches.get(sender)
        if known is None or known.token != token:
            if known is not None:
                self._progress.pop(known.token, None)
            known = self._dispatches[sender] = Dispatch(token, now)
        return None if token is None else known

    def _is_of(self, dispatch: Dispatch) -> bool:
        """Whether what comes now is of this dispatch for certain, and not of the one before."""
        return self._now_s() - dispatch.known_since >= ON_ITS_WAY_S

    def _suspect(self, message: Message, stay: Stay, dispatch: Dispatch) -> None:
        now = self._now_s()
        for had in self._had.get(message.key, {}).values():
            if had.stay is stay or had.dispatch != dispatch or had.settled_by_others():
                continue
            if had.stay.is_certain:
                who = f"{stay.consumer} got {message.text} while {had.stay.consumer} had {had.message.text}"
                self._suspicions.append((now, had.stay, stay, f"{who}, both of key {message.key}"))

    def _check_order(self, message: Message, dispatch: Dispatch) -> None:
        """What is immediate is in the order of positions, and so is what is due at one time.

        What was there before is read again behind new traffic, if it is delayed: it has to be newer than the dispatch.
        """
        stored_at = -math.inf if message.stored_at is None else message.stored_at
        if message.deliver_at_ms is not None and stored_at < dispatch.known_since:
            return
        last = self._progress[dispatch.token].last
        before = last.get((message.key, message.deliver_at_ms))
        assert message.place is not None
        if before is not None and before.place is not None and before.place > message.place:
            raise Broken(f"{message.text} at {message.place} came after {before.text} at {before.place} of its key")
        last[message.key, message.deliver_at_ms] = message
