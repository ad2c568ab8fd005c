"""The time as owner, a piece at a time."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.ledgers.cursor_history import UNKNOWN
from bridge.topics.tenure import Tenure


class Owner:
    """As much of a tenure as asks for a cursor to be read."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._to_repair: set[str] = set()
        limits = SimpleNamespace(dispatch=SimpleNamespace(ack_settle_s=0.0))
        self._context = SimpleNamespace(limits=limits)

    def spawn(self, work: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def load(self, subscription: Any) -> None:
        self.loaded.append(subscription.name)

    def _repair(self, subscription: Any) -> Any:
        return Tenure._repair(cast(Any, self), subscription)

    async def cut_off(self, subscription: Any, times: int = 1) -> list[str]:
        for _ in range(times):
            Tenure.repair_soon(cast(Any, self), subscription)
        await asyncio.gather(*self.tasks)
        return self.loaded


def subscription(**changes: Any) -> Any:
    values = {"name": "s", "view": SimpleNamespace(history=7), "has_consumers": True, "dispatching": True}
    return SimpleNamespace(**values | changes)


async def test_what_clients_took_along_is_looked_for_once_for_all_of_them() -> None:
    owner = Owner()
    assert await owner.cut_off(subscription(), times=3) == ["s"]
    assert await owner.cut_off(subscription()) == ["s", "s"], "and again after the next"


@pytest.mark.parametrize(
    "changes",
    [
        {"view": None},
        {"view": SimpleNamespace(history=UNKNOWN)},
        {"has_consumers": False},
        {"dispatching": False},
    ],
)
async def test_a_cursor_is_left_alone_where_reading_it_helps_nobody(changes: dict[str, Any]) -> None:
    """Without a mark the broker's word holds, and acks that it does not have would be void."""
    assert await Owner().cut_off(subscription(**changes)) == []
