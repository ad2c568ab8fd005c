"""The watch over a client, looked at in quick time."""

import asyncio

import pytest

from bridge.gateway.keep_alive import KeepAlive
from tests.helpers import wait_until_async


async def test_a_sign_of_life_after_the_ping_is_enough() -> None:
    pings: list[int] = []
    gone: list[int] = []

    def answered() -> None:
        pings.append(1)
        watch.heard()

    watch = KeepAlive(answered, lambda: gone.append(1), lambda: None, 0.02)
    watch.start()
    await wait_until_async(lambda: len(pings) > 5, "pings")
    watch.stop()
    assert not gone


async def test_silence_is_asked_about_once_and_then_ends() -> None:
    said: list[str] = []
    watch = KeepAlive(lambda: said.append("ping"), lambda: said.append("gone"), lambda: None, 0.02)
    watch.start()
    await wait_until_async(lambda: "gone" in said, "gone")
    await asyncio.sleep(0.05)
    assert said == ["ping", "gone"]


async def test_time_in_which_nobody_could_be_heard_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stood still for a minute finds its clients alive."""
    said: list[str] = []
    watch = KeepAlive(lambda: said.append("ping"), lambda: said.append("gone"), lambda: None, 0.1)
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + ahead[0])
    watch.start()
    ahead[0] = 60.0
    await wait_until_async(lambda: said, "asked")
    assert said == ["ping"]
    watch.heard()
    watch.stop()


async def test_started_twice_it_stops_at_once() -> None:
    said: list[str] = []
    looks: list[int] = []
    watch = KeepAlive(lambda: said.append("ping"), lambda: said.append("gone"), lambda: looks.append(1), 0.02)
    watch.start()
    watch.start()
    await wait_until_async(lambda: "ping" in said, "asked")
    watch.stop()
    seen = len(looks)
    await asyncio.sleep(0.05)
    assert len(looks) == seen
    assert said == ["ping"]
