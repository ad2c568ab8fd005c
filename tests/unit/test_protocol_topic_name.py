"""Topic names as Pulsar completes and refuses them."""

import pytest

from bridge.protocol.names import TopicName


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("tenant/ns/t", "persistent://tenant/ns/t"),
        ("persistent://tenant/ns/t", "persistent://tenant/ns/t"),
        ("non-persistent://tenant/ns/t", "non-persistent://tenant/ns/t"),
        ("persistent://tenant/ns/a/b", "persistent://tenant/ns/a/b"),
        ("t-partition-3", "persistent://public/default/t-partition-3"),
        ("persistent://public/default/ä ?#%", "persistent://public/default/ä ?#%"),
    ],
)
def test_names_are_completed(text: str, full: str) -> None:
    assert str(TopicName.parse(text)) == full
    assert str(TopicName.parse(full)) == full


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/b", "a/b/", "persistent://", "persistent://a", "persistent://a/b", "persistent://a//c", "x://a/b/c"],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a topic name") as caught:
        TopicName.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        *(("t", -1), ("t-partition-0", 0), ("t-partition-12", 12), ("t-partition-", -1), ("-partition-x", -1)),
        *(("t-partition-01", -1), ("t-partition--1", -1), ("t-partition-1-partition-2", 2), ("t-partition-1\n", -1)),
        *(("t-partition-2147483647", 2**31 - 1), ("t-partition-2147483648", -1), ("-partition-3", 3)),
    ],
)
def test_partitions(text: str, partition: int) -> None:
    assert TopicName.parse(text).partition == partition


def test_only_persistent_topics_are_stored() -> None:
    assert TopicName.parse("t").persistent
    assert not TopicName.parse("non-persistent://public/default/t").persistent


def test_rest_paths_are_encoded() -> None:
    assert TopicName.parse("persistent://a/b/c/d ?").rest_path == "persistent/a/b/c%2Fd%20%3F"
