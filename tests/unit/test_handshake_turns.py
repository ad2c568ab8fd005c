"""Only so many TLS handshakes have something to do at once, and who is slow takes nobody's place for long."""

import asyncio
import contextlib

from bridge.limits import ConnectionLimits
from bridge.net.tls_listener import Turns


async def waits(turns: Turns) -> asyncio.Task[None]:
    waiting = asyncio.ensure_future(turns.free())
    for _ in range(5):
        await asyncio.sleep(0)
    return waiting


async def test_the_next_one_begins_when_another_one_is_done() -> None:
    turns = Turns(ConnectionLimits(handshakes_at_once=2, handshake_turn_s=60.0))
    with contextlib.ExitStack() as first, turns.taken():
        assert (await waits(turns)).done()
        first.enter_context(turns.taken())
        waiting = await waits(turns)
        assert not waiting.done()
        first.close()
        await waiting


async def test_a_slow_one_that_ends_makes_no_room_a_second_time() -> None:
    turns = Turns(ConnectionLimits(handshakes_at_once=1, handshake_turn_s=0.02))
    with contextlib.ExitStack() as slow:
        slow.enter_context(turns.taken())
        await (await waits(turns))
        with turns.taken():
            slow.close()
            waiting = await waits(turns)
            assert not waiting.done()
        await waiting


async def test_who_says_nothing_keeps_others_waiting_for_a_moment_only() -> None:
    turns = Turns(ConnectionLimits(handshakes_at_once=2, handshake_turn_s=0.02))
    with turns.taken(), turns.taken():
        waiting = await waits(turns)
        assert not waiting.done()
        await waiting
        with turns.taken():
            assert (await waits(turns)).done(), "those that were slow do not count any more"
    assert (await waits(turns)).done()
