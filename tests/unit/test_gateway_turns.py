"""Frames worked off in turns, and log lines that are counted."""

import asyncio

from structlog.testing import capture_logs

from bridge.gateway.turns import Turns
from bridge.limits import ConnectionLimits
from bridge.net.limited_log import LimitedLog
from bridge.protocol.frames import Frame
from tests.helpers import wait_until_async

TURN_S = ConnectionLimits().client_turn_s
QUICK = ConnectionLimits(log_lines_at_once=2, log_pause_s=0.05, log_kinds_max=2)


def frames(*numbers: int) -> list[Frame]:
    return [Frame(number, memoryview(b"")) for number in numbers]


async def test_others_get_their_turn_in_between_and_order_is_kept() -> None:
    done: list[int] = []
    held: list[bool] = []
    turns = Turns(lambda frame: done.append(frame.type), lambda: False, held.append, turn_s=0.0)
    turns.take(frames(1, 2, 3))
    assert done == [1]
    assert held == [True]
    turns.take(frames(4))
    assert done == [1]
    await wait_until_async(lambda: len(done) == 4, "all")
    assert done == [1, 2, 3, 4]
    assert held == [True, False]


async def test_who_has_enough_under_way_waits() -> None:
    done: list[int] = []
    turns = Turns(lambda frame: done.append(frame.type), lambda: len(done) in (1, 2), lambda _: None, TURN_S)
    turns.take(frames(1, 2, 3))
    await asyncio.sleep(0)
    assert done == [1]
    done.clear()
    turns.go_on()
    turns.go_on()
    await wait_until_async(lambda: done == [2], "the next")
    turns.end()
    done.clear()
    turns.go_on()
    await asyncio.sleep(0.01)
    assert not done


async def test_nothing_is_read_while_enough_is_under_way_though_nothing_waits() -> None:
    under_way: list[int] = []
    held: list[bool] = []
    turns = Turns(lambda frame: under_way.append(frame.type), lambda: bool(under_way), held.append, TURN_S)
    turns.take(frames(1))
    assert held == [True]
    under_way.clear()
    turns.go_on()
    await wait_until_async(lambda: held == [True, False], "read on")


async def test_lines_are_counted_by_address_and_kind() -> None:
    log = LimitedLog(QUICK)
    with capture_logs() as logs:
        for number in range(10):
            log.warning("refused", f"10.0.0.1:{number}", "A", "x" * 1_000)
        log.info("refused", "10.0.0.2:1", "A", "x")
        assert len(logs) == 3
        assert len(logs[0]["reason"]) == 500
        await wait_until_async(lambda: len(logs) == 4, "the rest")
        assert (logs[3]["lines"], logs[3]["address"], logs[3]["kind"]) == (8, "10.0.0.1", "A")
        log.warning("refused", "10.0.0.1:1", "A", "again")
        assert len(logs) == 5
    log.close()


async def test_kinds_without_number_are_counted_together() -> None:
    log = LimitedLog(QUICK)
    with capture_logs() as logs:
        for number in range(100):
            log.warning("refused", f"10.0.0.{number}:1", "A", "x")
        assert len(logs) == 2 + 2
        log.close()
        assert logs[-1]["lines"] == 96
