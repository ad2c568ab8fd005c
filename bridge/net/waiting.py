"""Waiting for something, but not for ever."""

import asyncio


async def is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until an event is set, `timeout_s` at most; False when it is not by then."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
