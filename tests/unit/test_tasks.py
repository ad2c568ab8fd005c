"""Tasks that belong together: none fails without a word, none is left behind."""

import asyncio

import pytest
from structlog.testing import capture_logs

from bridge.net.failures import Failures, Part
from bridge.net.tasks import Tasks, all_of, beside


class Boom(Exception):
    pass


async def boom(after_turns: int = 0) -> None:
    for _ in range(after_turns):
        await asyncio.sleep(0)
    raise Boom


async def forever() -> None:
    await asyncio.Event().wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_error_is_told_once_and_being_cancelled_is_none() -> None:
    told: list[Exception] = []
    tasks = Tasks(told.append)
    tasks.spawn(boom())
    waiting = tasks.spawn(forever())
    assert len(tasks) == 2
    await settle()
    assert [type(each) for each in told] == [Boom]
    assert len(tasks) == 1
    await tasks.end()
    assert waiting.cancelled()
    assert (len(tasks), len(told)) == (0, 1)


async def test_the_end_waits_for_what_a_task_has_to_put_away() -> None:
    put_away = []

    async def careful() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            put_away.append(True)

    tasks = Tasks(put_away.append)  # type: ignore[arg-type]
    tasks.spawn(careful())
    await settle()
    await tasks.end()
    assert put_away == [True]


async def test_a_callback_tells_as_a_task_does() -> None:
    told: list[Exception] = []
    given: list[int] = []

    def take(number: int) -> None:
        given.append(number)
        raise Boom

    asyncio.get_running_loop().call_soon(Tasks(told.append).guarded(take), 7)
    await settle()
    assert given == [7]
    assert [type(each) for each in told] == [Boom]


async def test_work_beside_other_work_ends_with_it() -> None:
    seen: list[str] = []

    async def aside() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def work() -> str:
        await settle()
        return "done"

    assert await beside(work(), aside()) == "done"
    assert seen == ["cancelled"]

    async def short() -> None:
        seen.append("short")

    assert await beside(work(), short()) == "done"
    assert seen[-1] == "short"


async def test_an_error_of_either_ends_both() -> None:
    ended: list[str] = []

    async def waiting(name: str) -> None:
        try:
            await forever()
        finally:
            ended.append(name)

    with pytest.raises(Boom):
        await beside(waiting("work"), boom(3))
    with pytest.raises(Boom):
        await beside(boom(3), waiting("aside"))
    assert ended == ["work", "aside"]


async def test_who_is_cancelled_leaves_neither_behind() -> None:
    ended: list[str] = []

    async def waiting(name: str) -> None:
        try:
            await forever()
        finally:
            ended.append(name)

    both = asyncio.ensure_future(beside(waiting("work"), waiting("aside")))
    await settle()
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert sorted(ended) == ["aside", "work"]


async def test_all_have_ended_before_the_first_error_is_raised() -> None:
    ended: list[int] = []

    async def slow(number: int) -> int:
        await settle()
        ended.append(number)
        return number

    assert await all_of([slow(1), slow(2)]) == [1, 2]
    with pytest.raises(Boom):
        await all_of([slow(3), boom(), slow(4)])
    assert ended == [1, 2, 3, 4]


def test_what_fails_is_logged_in_full_and_counted() -> None:
    failures = Failures()
    with capture_logs() as logged:
        failures.note(Part.topic, "the topic failed", Boom("why"), topic="t")
        failures.note(Part.topic, "the topic failed", Boom("why"), topic="u")
    assert failures.counts[Part.topic] == 2
    assert failures.counts[Part.client] == 0
    assert [(each["log_level"], each["topic"], repr(each["exc_info"])) for each in logged] == [
        ("critical", "t", "Boom('why')"),
        ("critical", "u", "Boom('why')"),
    ]


async def test_what_nobody_has_caught_is_told_too() -> None:
    failures = Failures()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(failures.on_loop_error)

    def fail() -> None:
        raise Boom("in a timer")

    with capture_logs() as logged:
        loop.call_soon(fail)
        await settle()
    loop.set_exception_handler(None)
    assert failures.counts[Part.elsewhere] == 1
    (line,) = logged
    assert (line["log_level"], repr(line["exc_info"])) == ("critical", "Boom('in a timer')")
    assert "fail" in line["handle"]
