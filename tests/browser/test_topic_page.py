"""A topic's page: the chart against the index, search, cancel, deliver now, rebuild, audit."""

from datetime import UTC, datetime
from typing import Any

from tests.bridge_process import now_ms
from tests.browser.looking import DELIVERED, HOUR_MS, Looking, Published
from tests.clients import Clients, publish, receive, shared
from tests.helpers import wait_until

CHART = "document.getElementById('chart')"
RANGE = f"{CHART}.layout.xaxis.range"
BARS = f"""{CHART}.data.map(trace => ({{name: trace.name, x: trace.x, y: trace.y}}))"""


def bars(looking: Looking) -> dict[str, dict[int, int]]:
    """What the chart draws: by trace, from start to height."""
    return {
        trace["name"]: {int(x): y for x, y in zip(trace["x"], trace["y"], strict=True) if y is not None}
        for trace in looking.tell(BARS)
    }


def wait_for_bars(looking: Looking, total: int) -> dict[str, dict[int, int]]:
    def drawn() -> dict[str, dict[int, int]] | None:
        if not looking.tell(f"Boolean({CHART}.data)"):
            return None
        found = bars(looking)
        return found if sum(sum(found[name].values()) for name in ("Memory", "Disk")) == total else None

    found = wait_until(drawn, f"bars of {total} in all", timeout=15)
    assert found is not None
    return found


def field(ms: float) -> str:
    """A time as a form's field takes it."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}"


def index_entries(published: Published) -> tuple[dict[int, int], dict[int, int]]:
    """Entries and bytes of the index's own time partitions, by start."""
    partitions = published.rest("partitions")["partitions"]
    return {each["start"]: each["entries"] for each in partitions}, {
        each["start"]: each["bytes"] for each in partitions
    }


def test_the_chart_equals_the_index_and_what_was_published(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic)
    entries, sizes = index_entries(published)
    drawn = wait_for_bars(looking, sum(entries.values()))
    tiers = published.rest("partitions")["partitions"]
    for tier in ("Memory", "Disk"):
        assert sum(drawn[tier].values()) == sum(each["entries"] for each in tiers if each["tier"] == tier.lower())
    assert sum(entries.values()) in (published.pending, published.pending + DELIVERED)
    assert looking.tell(f"{CHART}.querySelectorAll('.bars path').length") > 0
    looking.keep("topic-chart", whole=False)

    span = f"({CHART}.layout.xaxis.range[1] - {CHART}.layout.xaxis.range[0])"
    # Over a day a bar is one time partition: they can be compared one by one.
    looking.page.get_by_role("button", name="1 d").click()
    width = published.rest("partitions")["widthMs"]
    looking.until(f"{CHART}.data && {CHART}.data[0].width === {width} && {span} === 24 * {HOUR_MS}", "a day")
    ahead = {start: number for start, number in entries.items() if now_ms() < start < now_ms() + 12 * HOUR_MS}
    assert sum(ahead.values()) == len(published.soon)
    start = min(ahead)
    drawn = bars(looking)
    assert {each: drawn["Memory"].get(each, 0) + drawn["Disk"].get(each, 0) for each in ahead} == ahead
    looking.page.locator("label", has_text="Bytes").click()
    looking.until(f"{CHART}.data[0].y[0] + {CHART}.data[1].y[0] > 100", "bytes")
    drawn = bars(looking)
    assert {each: drawn["Memory"].get(each, 0) + drawn["Disk"].get(each, 0) for each in ahead} == {
        each: sizes[each] for each in ahead
    }
    looking.page.locator("#chart-details summary").click()
    row = looking.page.locator(
        "#chart-table tr", has_text=f"{datetime.fromtimestamp(start / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    )
    assert row.locator("td").first.inner_text() == str(ahead[start])


def test_the_buttons_of_the_chart(looking: Looking, published: Published) -> None:
    def range_is(of: str, what: str) -> Any:
        return looking.until(f"{CHART}.layout && ({RANGE}) && (([from, to]) => {of})({RANGE}) && {RANGE}", what)

    looking.open_topic(published.topic)
    looking.page.get_by_role("button", name="1 h").click()
    begin, end = range_is(f"to - from === {HOUR_MS}", "an hour")
    looking.page.get_by_role("button", name="Zoom out").click()
    range_is(f"to - from === 2 * {HOUR_MS} && Math.abs(from - {begin - HOUR_MS // 2}) < 10000", "two hours")
    looking.page.get_by_role("button", name="Later").click()
    range_is(f"to - from === 2 * {HOUR_MS} && Math.abs(to - {end + HOUR_MS * 3 // 2}) < 10000", "an hour later")
    looking.page.get_by_role("button", name="Zoom in").click()
    range_is(f"to - from === {HOUR_MS}", "an hour again")
    looking.page.get_by_role("button", name="All", exact=True).click()
    wait_for_bars(looking, sum(index_entries(published)[0].values()))


def test_the_chart_is_live_and_tells_what_is_pending_for_one_subscription(
    looking: Looking, published: Published
) -> None:
    looking.open_topic(published.topic)
    before = sum(index_entries(published)[0].values())
    wait_for_bars(looking, before)
    looking.page.locator("#chart-subscription").select_option("s")
    looking.until(f"{CHART}.data.length === 3", "a line for the subscription")
    assert sum(bars(looking)["Pending for s"].values()) == published.pending
    publish(published.producer, ["one", "two"], deliver_at=now_ms() + 3 * HOUR_MS)
    wait_for_bars(looking, before + 2)
    assert sum(bars(looking)["Pending for s"].values()) == published.pending + 2
    looking.see("#chart-says", f"{published.pending + 2} pending for s")


def test_a_drag_over_the_chart_zooms_and_a_double_click_shows_all(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic)
    total = sum(index_entries(published)[0].values())
    wait_for_bars(looking, total)
    area = looking.page.locator("#chart .nsewdrag").first.bounding_box()
    assert area is not None
    left, middle = area["x"], area["y"] + area["height"] / 2
    looking.page.mouse.move(left + 2, middle)
    looking.page.mouse.down()
    looking.page.mouse.move(left + area["width"] / 2, middle, steps=5)
    looking.page.mouse.up()
    found = wait_for_bars(looking, total - len(published.later))
    assert found
    looking.page.mouse.dblclick(left + area["width"] / 2, middle)
    wait_for_bars(looking, total)


def test_search_finds_by_all_that_the_form_asks(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic)
    looking.page.locator("#search [name=subscription]").select_option("s")
    looking.search(1, key="order-7")
    assert published.soon[7] in looking.text("#pending tbody tr")
    assert "kind=odd" in looking.text("#pending tbody tr")
    looking.search(1, key="", messageId=published.later[3])
    assert published.later[3] in looking.text("#pending tbody tr")
    looking.page.locator("#search [name=limit]").select_option("100")
    looking.search(len(published.soon) // 2, messageId="", property="kind=even")
    looking.search(len(published.later), property="", dueFrom=field(now_ms() + 12 * HOUR_MS))
    looking.search(len(published.soon), dueFrom="", dueTo=field(now_ms() + 12 * HOUR_MS))
    looking.keep("topic-search")
    looking.search(0, key="nobody")
    looking.see("#pending-says", "Nothing that is pending for s matches")
    assert "key=nobody" in looking.tell("location.href")
    looking.page.locator("#search button[type=reset]").click()
    wait_until(lambda: looking.rows().count() == 25, "the first page of all")


def test_pages_of_the_list_and_their_addresses(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic, "?subscription=s&limit=50")
    wait_until(lambda: looking.rows().count() == 50, "a page of 50")
    seen = looking.page.locator("#pending tbody th").all_inner_texts()
    looking.page.locator("#pending-after").click()
    looking.see("#pending-page", "Page 2")
    seen += looking.page.locator("#pending tbody th").all_inner_texts()
    assert sorted(seen) == sorted(published.soon + published.later)
    looking.page.locator("#pending-before").click()
    looking.see("#pending-page", "Page 1")
    assert looking.page.locator("#pending tbody th").all_inner_texts() == seen[:50]


def test_a_payload_is_shown_as_text_or_bytes(looking: Looking, published: Published) -> None:
    payloads = {
        "text": ("Grüße ☂".encode(), "Grüße ☂", "of text"),
        "bytes": (bytes(range(256)), "0010  10 11 12", "shown as bytes"),
        "long": (b"a" * 9_000, "a" * 100, "the first 4 KB of it"),
        "none": (b"", "", "The payload is empty"),
    }
    for key, (payload, _, _) in payloads.items():
        published.producer.send(payload, partition_key=key, deliver_at=now_ms() + 3 * HOUR_MS)
    wait_until(lambda: published.stats()["pending"] == published.pending + len(payloads), "them in the index")
    looking.open_topic(published.topic, "?subscription=s")
    for key, (_, shown, says) in payloads.items():
        looking.search(1, key=key)
        looking.page.get_by_role("button", name="Payload of").click()
        looking.see("#peek-says", says)
        assert shown in looking.page.locator("#peek-payload").inner_text()
        looking.page.keyboard.press("Escape")
        assert not looking.page.locator("#peek").is_visible()


def test_cancel_asks_with_the_number_and_tells_what_came_of_each(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic, "?subscription=s")
    wait_until(lambda: looking.rows().count() == 25, "a page")
    picked = published.soon[:3]
    for position in picked:
        looking.page.get_by_role("checkbox", name=f"Select {position}", exact=True).check()
    looking.see("#selected", "3 entries selected")
    looking.page.locator("#cancel").click()
    assert looking.text("#confirm-title") == "Cancel delivery of 3 entries?"
    looking.page.locator("#confirm-close").click()
    assert published.stats()["pending"] == published.pending
    looking.page.locator("#cancel").click()
    looking.keep("dialog", whole=False)
    looking.page.get_by_role("button", name="Cancel 3 entries").click()
    looking.see("#confirm-says", "3 cancelled")
    assert looking.page.locator("#confirm-outcomes th[scope=row]").all_inner_texts() == picked
    looking.keep("dialog-outcomes", whole=False)
    looking.page.locator("#confirm-close").click()
    wait_until(lambda: published.stats()["pending"] == published.pending - 3, "three less")
    looking.search(0, messageId=picked[0])
    assert published.stats()["cancelled"] == 3
    looking.see("#actions tbody tr", "local 127.0.0.1 cancel s 3")
    looking.see("#actions tbody tr", "3 cancelled")
    # The other subscription still gets them.
    assert published.stats("other/s")["pending"] == published.pending + DELIVERED

    # A second window that still shows one of them is told the truth.
    looking.search(1, messageId=published.soon[4])
    path = f"subscription/s/pending/{published.soon[4]}"
    rest = f"/admin/v2/delayed/{published.topic.replace('://', '/')}/{path}"
    assert published.bridge.ask("DELETE", rest) == (200, {"outcome": "cancelled"})
    looking.rows().first.locator("input").check()
    looking.page.locator("#cancel").click()
    assert looking.text("#confirm-title") == "Cancel delivery of 1 entry?"
    looking.page.locator("#confirm-go").click()
    looking.see("#confirm-says", "1 already-acked")


def test_deliver_now_delivers_at_once(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic, "?subscription=s&limit=100")
    wait_until(lambda: looking.rows().count() == published.pending, "all of it")
    looking.page.locator("#select-all").check()
    looking.see("#selected", f"{published.pending} entries selected")
    looking.page.locator("#select-all").uncheck()
    looking.page.get_by_role("checkbox", name=f"Select {published.later[0]}", exact=True).check()
    looking.page.locator("#deliver-now").click()
    assert looking.text("#confirm-title") == "Deliver 1 entry now?"
    looking.page.locator("#confirm-go").click()
    looking.see("#confirm-says", "1 expedited")
    assert receive(published.consumer).text == "later 0"
    wait_until(lambda: published.stats()["pending"] == published.pending - 1, "one less pending")
    looking.page.locator("#confirm-close").click()
    wait_until(lambda: looking.rows().count() == published.pending - 1, "one less in the list")


def test_subscriptions_lateness_and_consumers(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic)
    cards = looking.page.locator("section.subscription")
    assert [each.locator("h3").inner_text() for each in cards.all()] == ["other/s", "s"]
    stats: dict[str, Any] = published.stats()
    mine = " ".join(cards.nth(1).inner_text().split())
    assert f"Pending {published.pending}" in mine
    assert f"Deliveries {DELIVERED}" in mine
    assert stats["consumers"][0]["consumerName"] in mine
    assert f"{stats['consumers'][0]['availablePermits']:,}" in mine
    assert "No consumer is connected" in cards.nth(0).inner_text()


def test_the_books_stand_in_the_card_of_a_subscription(looking: Looking, published: Published) -> None:
    def closed() -> dict[str, Any] | None:
        found = published.rest("subscription/s/books?positions=true")
        return found["places"] if found["difference"] == 0 else None

    places = wait_until(closed, "closed books")
    assert places is not None
    looking.open_topic(published.topic)
    text = " ".join(looking.page.locator("section.subscription").nth(1).locator(".books").inner_text().split())
    assert text.startswith(f"Books: {places['published']} published = {places['acked']} acked + ")
    assert f"{places['pending']} pending" in text
    assert text.endswith("(closed)")
    looking.keep("books")


def test_a_subscription_that_comes_later_can_be_searched(
    looking: Looking, published: Published, clients: Clients
) -> None:
    looking.open_topic(published.topic)
    consumer = shared(clients.connect(published.bridge.service_url), published.topic, "late")
    looking.until(
        "[...document.querySelector('#search [name=subscription]').options].some(each => each.value === 'late')",
        "the new subscription in the form",
    )
    consumer.close()


def test_rebuild_and_audit_show_their_proof(looking: Looking, published: Published) -> None:
    looking.open_topic(published.topic)
    assert "None since this bridge took the topic over" in looking.text("#live-rebuilds")
    looking.page.locator("#engine").select_option("in-process")
    looking.page.locator("#rebuild").click()
    looking.see("#live-rebuilds", "succeeded started by an operator")
    assert "topic and index hold the same" in looking.text("#proof")
    proof = published.rest("rebuild")["proof"]
    assert f"the same {proof['count']:,} entries" in looking.text("#proof")
    assert proof["checksum"] in looking.text("#proof")
    looking.page.locator("#audit").click()
    looking.see("#audit-state", "equal")
    audit = published.rest("audit")
    assert f"{audit['compared']:,} entries compared" in looking.text("#live-rebuilds")
    looking.keep("topic-rebuilds")
