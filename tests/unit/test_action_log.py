"""The log of operators' acts: what a crash, a full file and a full disk leave of it."""

import asyncio
import json
import re
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.limits import OperatorLimits
from bridge.operate.action_log import NAME, ActionLog

LIMITS = OperatorLimits()
TOPIC = "persistent://public/default/orders"


async def note(log: ActionLog, text: str, **more: Any) -> None:
    await log.note("ops", "10.0.0.1", text, TOPIC, **more)


async def actions_in(log: ActionLog, limit: int = 1_000, before: int | None = None) -> list[str]:
    return [record["action"] for record in await log.latest(limit, before)]


async def test_an_act_is_told_as_it_was_noted(tmp_path: Path) -> None:
    log = ActionLog(tmp_path, LIMITS)
    assert await log.latest(10) == []
    await note(log, "cancel", subscription="s", positions=["1:2", "1:3"], outcomes={"cancelled": 1, "unknown": 1})
    [record] = await log.latest(10)
    assert re.fullmatch(r"\S{10}T\S+Z", record["time"])
    assert record == {
        "id": 1,
        "time": record["time"],
        "actor": "ops",
        "peer": "10.0.0.1",
        "action": "cancel",
        "topic": TOPIC,
        "subscription": "s",
        "positions": ["1:2", "1:3"],
        "outcomes": {"cancelled": 1, "unknown": 1},
    }
    file = tmp_path / NAME
    assert await asyncio.to_thread(file.stat)
    assert (await asyncio.to_thread(file.stat)).st_mode & 0o777 == 0o600


async def test_of_many_positions_it_keeps_the_number(tmp_path: Path) -> None:
    log = ActionLog(tmp_path, LIMITS)
    for count in (LIMITS.action_positions_max, LIMITS.action_positions_max + 1):
        await note(log, "cancel", positions=[f"1:{number}" for number in range(count)])
    many, listed = await log.latest(2)
    assert many["positions"] == LIMITS.action_positions_max + 1
    assert isinstance(listed["positions"], list)
    assert len(listed["positions"]) == LIMITS.action_positions_max


async def test_pages_go_back_from_the_newest_also_after_a_restart(tmp_path: Path) -> None:
    for start in (0, 25):
        log = ActionLog(tmp_path, LIMITS)
        for number in range(start, start + 25):
            await note(log, str(number))
    found: list[str] = []
    before = None
    while page := await log.latest(7, before):
        found += [record["action"] for record in page]
        before = page[-1]["id"]
    assert found == [str(number) for number in reversed(range(50))]


async def test_acts_noted_at_the_same_time_are_all_there_once(tmp_path: Path) -> None:
    log = ActionLog(tmp_path, LIMITS)
    await asyncio.gather(*(note(log, str(number)) for number in range(100)))
    records = await log.latest(1_000)
    assert [record["id"] for record in records] == list(range(100, 0, -1))
    assert {record["action"] for record in records} == {str(number) for number in range(100)}


@pytest.mark.parametrize("left", [b'{"id": 4, "ti', b"\xff\xfe", b'{"id": 4}x', b"[1]", b"null"])
async def test_what_a_crash_left_of_the_last_line_is_passed_over(tmp_path: Path, left: bytes) -> None:
    log = ActionLog(tmp_path, LIMITS)
    for text in ("a", "b", "c"):
        await note(log, text)
    file = tmp_path / NAME

    def damage() -> None:
        with file.open("ab") as opened:
            opened.write(left)

    await asyncio.to_thread(damage)
    log = ActionLog(tmp_path, LIMITS)
    assert await actions_in(log) == ["c", "b", "a"]
    await note(log, "d")
    assert await actions_in(log) == ["d", "c", "b", "a"]
    assert (await log.latest(1))[0]["id"] == 4


async def test_full_files_are_put_aside_and_the_oldest_go(tmp_path: Path) -> None:
    log = ActionLog(tmp_path, OperatorLimits(action_log_bytes=2_000, action_log_files=3))
    for number in range(60):
        await note(log, str(number))
    sizes = await asyncio.to_thread(lambda: {each.name: each.stat().st_size for each in tmp_path.iterdir()})
    assert set(sizes) == {NAME, f"{NAME}.1", f"{NAME}.2"}
    assert max(sizes.values()) <= 2_000
    found = await actions_in(ActionLog(tmp_path, LIMITS))
    assert found == [str(number) for number in range(59, 59 - len(found), -1)]
    assert 20 <= len(found) < 60


async def test_lines_longer_than_a_block_are_read(tmp_path: Path) -> None:
    log = ActionLog(tmp_path, LIMITS)
    long = ["9" * 300] * LIMITS.action_positions_max
    for number in range(5):
        await note(log, str(number), positions=long)
    assert await actions_in(log) == ["4", "3", "2", "1", "0"]
    assert all(record["positions"] == long for record in await log.latest(5))


@pytest.fixture
def little_room() -> Iterator[int]:
    """No file of this process may grow beyond this size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = 1_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    yield size
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_what_cannot_be_noted_is_logged_and_half_a_line_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_room: int
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "bridge.operate.action_log.log.error", lambda event, **more: said.append({"event": event, **more})
    )
    log = ActionLog(tmp_path, LIMITS)
    noted = 0
    while not log.failure:
        await note(log, "x" * 100)
        noted += 1
    assert 3 <= noted <= little_room // 100
    assert f"cannot write {tmp_path / NAME}: File too large" in log.failure
    assert said[0]["event"] == "an act could not be noted"
    assert (said[0]["actor"], said[0]["topic"]) == ("ops", TOPIC)
    text = await asyncio.to_thread((tmp_path / NAME).read_text)
    assert [json.loads(line)["id"] for line in text.splitlines()] == list(range(1, noted))
    assert text.endswith("\n")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await note(log, "room again")
    assert [record["id"] for record in await log.latest(1)] == [noted]
    assert not log.failure


async def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "nowhere", LIMITS)
    await note(log, "x")
    assert log.failure is not None
    assert "No such file" in log.failure
    assert await log.latest(1) == []


async def test_it_writes_and_reads_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr("bridge.operate.action_log.sync_folder", lambda _: threads.append(threading.current_thread()))
    await note(ActionLog(tmp_path, LIMITS), "x")
    assert threads
    assert threading.main_thread() not in threads
