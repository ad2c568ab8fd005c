"""The overview, the status page, and what a page says when the bridge is away."""

import re
from collections.abc import Callable

import pytest

from tests.bridge_process import BridgeProcess, now_ms
from tests.browser.looking import HOUR_MS, Looking, Published
from tests.clients import publish
from tests.cluster import PulsarCluster
from tests.helpers import wait_until


def test_totals_topics_filter_and_order(looking: Looking, published: Published) -> None:
    _, overview = published.bridge.get("/admin/v2/delayed/overview")
    looking.open("/")
    assert looking.page.locator("#total-pending").get_attribute("title") == f"{overview['pending']:,}"
    short = published.topic.rpartition("/")[2]
    looking.page.locator("#filter").fill(short.upper())
    wait_until(lambda: f"filter={short.upper()}" in looking.tell("location.href"), "the filter in the address")
    wait_until(lambda: looking.page.locator("#topics tbody tr").count() == 1, "one topic left by the filter")
    cells = looking.text("#topics tbody tr")
    row = published.bridge.topic(published.topic)
    # The other subscription has no consumer: what it should have got is due already.
    assert re.match(rf"{short} owner {row['entries']:,} {row['pending']:,} (now|\d+ s ago) ", cells), cells
    looking.keep("overview")
    looking.page.locator("#filter").fill("no such topic")
    looking.see("#live-topics", "has “no such topic” in its name")
    looking.keep("overview-nothing-found")
    looking.page.get_by_role("link", name="Show all").click()
    looking.page.get_by_role("link", name="Pending").click()
    assert "sort=pending&order=desc" in looking.page.url
    assert looking.page.locator("th[aria-sort=descending]").inner_text().startswith("Pending")
    looking.page.get_by_role("link", name=short).click()
    looking.see("h1", short)


def test_the_overview_follows_without_reloading(looking: Looking, published: Published) -> None:
    looking.open("/")
    looking.tell("window.kept = true")  # gone after a reload
    short = published.topic.rpartition("/")[2]
    looking.page.locator("#filter").fill(short)
    wait_until(lambda: looking.page.locator("#topics tbody tr").count() == 1, "one topic left by the filter")
    before = published.bridge.topic(published.topic)["entries"]
    publish(published.producer, ["one more"], deliver_at=now_ms() + HOUR_MS)
    looking.see("#topics tbody tr", f"owner {before + 1}")
    assert looking.tell("window.kept") is True
    assert looking.tell("document.activeElement.id") == "filter"


def test_status_page_and_unknown_topics(looking: Looking, bridge: BridgeProcess) -> None:
    assert looking.open("/status.html") == 200
    assert looking.text("h1") == "Ready"
    assert "Up since" in looking.text(".facts")
    looking.keep("status")
    page = looking.page.request.get(f"{bridge.web_url}/topic/public/default/nobody-knows-it")
    assert page.status == 404
    assert "persistent://public/default/nobody-knows-it is not tracked" in page.text()


def test_an_empty_bridge_says_why_and_one_that_is_gone_too(
    pulsar: PulsarCluster,
    tmp_path_factory: pytest.TempPathFactory,
    open_window: Callable[..., Looking],
) -> None:
    token = "a-token-of-this-test"
    fresh = BridgeProcess(pulsar, tmp_path_factory.mktemp("fresh"), access="token", web_token=token).start()
    try:
        window = open_window(fresh)
        window.open("/")
        window.keep("login")
        window.page.locator("#token").fill(token)
        window.page.keyboard.press("Enter")
        window.see("#live-topics", "No topic is tracked yet")
        assert window.page.get_by_role("button", name="Log out").is_visible()
        assert not window.complaints
        window.keep("overview-empty")
        fresh.kill()
        window.see("#trouble", "The bridge does not answer. What you see is as of before; trying again.")
        window.keep("overview-gone")
        fresh.start()
        window.see("#trouble", "You are not logged in any more")
        # Who has to log in is told less by the page that is open to all.
        assert window.open("/status.html") == 200
        assert pulsar.service_url not in window.text("main")
    finally:
        fresh.stop()
