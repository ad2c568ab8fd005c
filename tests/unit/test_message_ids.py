"""Message ids as clients print them."""

import pytest

from bridge.notation.message_ids import MessageId
from tracker import Position

TOPIC = "persistent://public/default/orders"
AT = Position(13, 5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("13:5", MessageId(AT)),
        (" 13:5\n", MessageId(AT)),
        ("13:5:-1", MessageId(AT)),
        ("13:5:2", MessageId(AT, 2)),
        ("13:5:-1:0", MessageId(AT, -1, 0)),
        ("13:5:-1:0:10", MessageId(AT, -1, 0)),
        ("(13,5,-1,-1)", MessageId(AT)),
        ("(13, 5, 2, 3)", MessageId(AT, 2, 3)),
        ("13,5", MessageId(AT)),
    ],
)
def test_what_clients_print(text: str, expected: MessageId) -> None:
    assert MessageId.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "13", "13:", "13:x", "-1:5", "13:-1", "(13,5", "13:5:-1:0:1:1", "13:5;13:6", "1" * 30 + ":1", "१:५", "13::5"],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a message id") as caught:
        MessageId.parse(text)
    assert repr(text) in str(caught.value)


def test_a_long_text_is_cut() -> None:
    with pytest.raises(ValueError, match="not a message id") as caught:
        MessageId.parse("1:" * 100_000)
    assert len(str(caught.value)) < 300


def test_which_entry_it_is_of_a_topic() -> None:
    assert MessageId(AT).entry_on(TOPIC) == AT
    assert MessageId(AT).entry_on(f"{TOPIC}-partition-2") == AT
    assert MessageId(AT, 2).entry_on(f"{TOPIC}-partition-2") == AT
    for topic in (TOPIC, f"{TOPIC}-partition-1", f"{TOPIC}-partition-x"):
        with pytest.raises(ValueError, match=f"13:5:2 is a message of partition 2, not of {topic}"):
            MessageId(AT, 2).entry_on(topic)
    with pytest.raises(ValueError, match=r"13:5:-1:0 is one message of a batch, .*13:5 is all of it"):
        MessageId(AT, -1, 0).entry_on(TOPIC)
