"""The status page: what it says to whom, and the order of the list of topics."""

from typing import cast

import pytest

from bridge import answers
from bridge.web.pages.rendering import ENVIRONMENT
from bridge.web.pages.status_page import status_values
from bridge.web.rest.topic_list import sort_rows
from tests.unit.test_web_pages import NOW, OVERVIEW, Text

STATUS: answers.Overview = {**OVERVIEW, "diskTotal": 4 << 30}


def shown(broker: str | None = "pulsar://b:6650", **changes: object) -> str:
    values = status_values(cast(answers.Overview, {**STATUS, **changes}), broker, NOW)
    return Text(ENVIRONMENT.get_template("status.html").render(**values)).text


def test_ready_with_counts() -> None:
    text = shown()
    for said in ("Ready", "1.2.3", "2023-11-14 21:13:20, 1 h", "pulsar://b:6650", "50 B of 4 GB free", "123,456,789"):
        assert said in text, said


def test_not_ready_says_why() -> None:
    assert "Not ready" in shown(ready=False, notReadyReason="no broker")
    assert "This bridge does not serve clients: no broker" in shown(ready=False, notReadyReason="no broker")


def test_who_has_to_log_in_for_the_rest_is_told_less() -> None:
    text = shown(None)
    assert "1.2.3" in text
    assert "123,456,789" not in text
    assert "Topics" not in text


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (None, "not compared"),
        (0, "agrees"),
        (2_500, "at least 2.5 s behind the broker's"),
        (-61_000, "at least 1 min 1 s ahead of the broker's"),
    ],
)
def test_the_clock(offset: int | None, says: str) -> None:
    assert says in shown(clockOffsetMs=offset)


def test_a_store_that_cannot_be_written() -> None:
    assert "nothing can be stored: disk full" in shown(storageFailure="disk full")


def test_rows_are_sorted_and_those_without_a_value_come_last() -> None:
    rows = [{"topic": topic, "n": n} for topic, n in (("c", 1), ("a", None), ("b", 1), ("d", 2))]
    assert [row["topic"] for row in sort_rows(rows, "n", descending=False)] == ["b", "c", "d", "a"]
    assert [row["topic"] for row in sort_rows(rows, "n", descending=True)] == ["d", "b", "c", "a"]
