"""The text that Prometheus scrapes, read back by the official library."""

from prometheus_client.parser import text_string_to_metric_families

from bridge.web.metrics.exposition import Exposition, Family, labels_text

FAMILIES = (
    Family("depth", "gauge", "How deep.", ("topic",)),
    Family("done_total", "counter", "How many.", ("topic",)),
    Family("late_seconds", "histogram", "How late.", ("topic",), ("0.001", "1.0")),
    Family("unused", "gauge", "Nothing of it.", ()),
)


def test_what_is_written_is_what_is_read() -> None:
    told = Exposition("x_", FAMILIES)
    strange = 'a"b\\c\nd 100 %s'
    for topic in ("plain", strange):
        labels = labels_text({"topic": topic})
        told.add("depth", labels, 1.5)
        told.add("done_total", labels, 7)
        told.add_histogram("late_seconds", labels, [2, 3, 4], 2.25)
    families = {family.name: family for family in text_string_to_metric_families(told.text().decode())}
    assert set(families) == {"x_depth", "x_done", "x_late_seconds"}
    assert families["x_depth"].documentation == "How deep."
    assert {family.name: family.type for family in families.values()} == {
        "x_depth": "gauge",
        "x_done": "counter",
        "x_late_seconds": "histogram",
    }
    values = {
        (sample.name, sample.labels["topic"], sample.labels.get("le")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    for topic in ("plain", strange):
        assert values["x_depth", topic, None] == 1.5
        assert values["x_done_total", topic, None] == 7
        assert values["x_late_seconds_bucket", topic, "1.0"] == 3
        assert values["x_late_seconds_bucket", topic, "+Inf"] == values["x_late_seconds_count", topic, None] == 4
        assert values["x_late_seconds_sum", topic, None] == 2.25
