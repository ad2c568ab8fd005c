"""Limits: they fit each other, and what tests change of them."""

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from bridge.limits import Limits
from tests.changed_limits import changed
from tracker.limits import BulkFileLimits


def test_limits_do_not_change() -> None:
    limits: Any = Limits()
    with pytest.raises(FrozenInstanceError):
        limits.dispatch.max_timer_ms = 1
    with pytest.raises(FrozenInstanceError):
        limits.retry_backoff_s = ()


MISFITS = {
    "of one group": {"max_unacked_per_consumer": 10, "max_unacked_per_subscription": 9},
    "of a buffer": {"client_write_high_water": 1024 * 1024},
    "of another buffer": {"server_write_low_water": 4 * 1024 * 1024},
    "what a client leaves unread": {"client_unread": 5 * 1024 * 1024},
    "a reader and its reads": {"range_stall_s": 8.1},
    "syncs and checkpoints": {"sync_interval_s": 0.5},
    "pauses and recovery": {"retry_backoff_s": (0.1, 10.0)},
    "acts": {"actions_page_max": 10_001},
    "searches": {"search_scan": 199},
    "answers": {"access_answer_lasts_s": 60.0},
    "write buffers": {"write_buffer_bytes": 65 * 1024 * 1024},
    "a share": {"near_term_fill": 1.1},
    "slices and turns": {"round_robin_batch": 301},
    "slices and permits": {"harvest_permits": 299},
    "feeds": {"feed_permits": 2_001},
    "queues and buffers": {"tail_buffer_entries": 1_999},
    "what feeds remember": {"feed_taken_max": 399_999},
}


@pytest.mark.parametrize("values", MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        changed(**values)


def test_changes_by_name() -> None:
    usual = Limits()
    assert changed() == usual
    found = changed(max_timer_ms=5, feed_retry_s=0.5, retry_backoff_s=[1.0, 2.0])
    assert found == replace(
        usual,
        dispatch=replace(usual.dispatch, max_timer_ms=5),
        intake=replace(usual.intake, feed_retry_s=0.5),
        retry_backoff_s=(1.0, 2.0),
    )
    with pytest.raises(KeyError):
        changed(no_such_limit=1)


def test_every_limit_is_a_number_of_something() -> None:
    """Nothing is switched off by 0, and what is told in seconds may be a part of one."""
    limits = Limits()
    for group in (getattr(limits, each.name) for each in fields(limits) if each.name != "retry_backoff_s"):
        for each in fields(group):
            value = getattr(group, each.name)
            assert value > 0, each.name
            if each.name.endswith("_s") and not each.name.endswith("_per_s"):
                assert isinstance(value, float), each.name


def test_files_of_a_bulk_load_have_room_for_what_they_hold() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        BulkFileLimits(bulk_file_bytes=2, bulk_file_max_bytes=1)
