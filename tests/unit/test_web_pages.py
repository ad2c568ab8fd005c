"""What the pages are put together from, and that their templates show it, escaped."""

import re
from html.parser import HTMLParser
from typing import Any, cast

import pytest

from bridge import answers
from bridge.answers.values import Engine, Trigger
from bridge.web.pages.overview_page import MAX_ROWS, WARNINGS_SHOWN, TopicsQuery, overview_values, topics_query
from bridge.web.pages.rendering import ENVIRONMENT
from bridge.web.pages.topic_page import topic_values

NOW = 1_700_000_000_000
TOPIC = "persistent://public/default/orders"
NASTY = "<script>alert('x')</script>\"&"

OVERVIEW: answers.Overview = {
    "cluster": "pulsar",
    "version": "1.2.3",
    "ready": True,
    "notReadyReason": None,
    "storageFailure": None,
    "startedAt": NOW - 3_600_000,
    "clockOffsetMs": 0,
    "topics": 3,
    "owned": 2,
    "entries": 1_000,
    "storageSize": 64_000,
    "memoryEntries": 10,
    "memorySize": 640,
    "pending": 123_456_789,
    "dueWithin": {"60": 11, "3600": 222, "86400": 3_333},
    "lateness": {"count": 5, "p50Ms": 1, "p99Ms": 7, "p999Ms": 90, "maxMs": 100},
    "latenessBuckets": [5],
    "warnings": [],
    "clientConnections": 4,
    "diskFree": 50,
    "diskTotal": 1_000,
}
_SUMMARY: answers.TopicSummary = {
    "topic": TOPIC,
    "role": "owner",
    "reason": None,
    "owner": "pulsar://h:6650",
    "ownerWebUrl": None,
    "harvestedPosition": "3:4",
    "standbyPosition": None,
    "entries": 1_000,
    "storageSize": 64_000,
    "memoryEntries": 10,
    "memorySize": 640,
    "pending": 900,
    "earliestDeliverAt": NOW + 60_000,
    "latenessP99Ms": 7,
    "early": 0,
    "rebuild": None,
}
ROW: answers.TopicRow = {**_SUMMARY, "warnings": 0}
SUBSCRIPTION: answers.Subscription = {
    "type": "Shared",
    "dispatching": True,
    "pending": 900,
    "pendingSettled": True,
    "markDeletePosition": "3:1",
    "ackHoles": 0,
    "ready": 0,
    "inFlight": 3,
    "toRedeliver": 0,
    "delivered": 10,
    "acked": 7,
    "cancelled": 0,
    "expedited": 0,
    "redelivered": 0,
    "duplicates": {},
    "books": None,
    "early": 0,
    "acksRepaired": 0,
    "lateness": {"count": 10, "p50Ms": 1, "p99Ms": 2, "p999Ms": 3, "maxMs": 4},
    "latenessCauses": {"permits": 3, "harvest": 1, "rebuild": 0, "bridge": 0},
    "consumers": [
        {
            "consumerName": "worker",
            "address": "10.0.0.1:5",
            "priorityLevel": 0,
            "availablePermits": 500,
            "unackedMessages": 3,
            "blockedOnUnackedMessages": False,
            "delivered": 10,
        }
    ],
    "shownPerSecond": 0.0,
    "forecast": None,
}
BOOKS: answers.Books = {
    "asOf": NOW,
    "upTo": "3:9",
    "unknown": None,
    "places": {
        "published": 12_000,
        "acked": 11_990,
        "cancelled": 0,
        "expired": 0,
        "inFlight": 0,
        "toRedeliver": 0,
        "ready": 0,
        "inTransactions": 0,
        "pending": 7,
        "unread": 0,
        "withheld": 3,
        "toFill": 0,
    },
    "difference": 0,
    "differenceByCounters": 0,
    "missing": None,
    "twice": None,
}
STATS: answers.Stats = {
    **_SUMMARY,
    "timePartitions": 12,
    "latestDeliverAt": NOW + 86_400_000,
    "damagedPartitions": 0,
    "snapshot": {"madeAt": NOW - 60_000, "entries": 12, "size": 4_096, "written": 0, "error": None},
    "warnings": [],
    "subscriptions": {"s": SUBSCRIPTION},
}
REBUILD: answers.Rebuild = {
    "id": "1",
    "state": "running",
    "stage": "reading",
    "trigger": Trigger.operator,
    "engine": Engine.in_process,
    "after": "3:1",
    "to": "3:401",
    "entriesTotal": 400,
    "entriesRead": 100,
    "entriesIndexed": 90,
    "etaMs": 3_000,
    "startedAt": NOW - 1_000,
    "finishedAt": None,
    "error": None,
    "proof": None,
    "sparkError": None,
    "fromBookies": 0,
    "notFromBookies": None,
    "earlier": [],
}
AUDIT: answers.AuditStatus = {
    "state": "succeeded",
    "stage": "done",
    "engine": Engine.spark,
    "entriesTotal": 400,
    "entriesRead": 400,
    "compared": 390,
    "comparedFrom": NOW,
    "checksum": "00000000000000ff",
    "differing": 0,
    "missing": [],
    "unexpected": [],
    "startedAt": NOW - 5_000,
    "finishedAt": NOW - 1_000,
    "error": None,
    "sparkError": None,
    "fromBookies": 0,
    "notFromBookies": None,
}
ACTION: answers.Action = {
    "id": 1,
    "time": "2026-01-02T03:04:05Z",
    "actor": "ops",
    "peer": "127.0.0.1",
    "action": "cancel",
    "topic": TOPIC,
    "subscription": "s",
    "positions": ["3:1", "3:2", "3:3", "3:4"],
    "outcomes": {"cancelled": 3, "already-acked": 1},
}


class Text(HTMLParser):
    """The text of a page as a person reads it, and its tags."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.parts: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.parts))


def overview(**changes: Any) -> Text:
    rows = changes.pop("rows", [ROW])
    total = changes.pop("total", len(rows))
    query = changes.pop("query", TopicsQuery())
    members = changes.pop("members", None)
    values = overview_values(cast(answers.Overview, {**OVERVIEW, **changes}), rows, total, query, NOW, members)
    return Text(ENVIRONMENT.get_template("overview.html").render(**values))


def topic(
    rebuild: answers.Rebuild | None = None,
    audit: answers.AuditStatus | None = None,
    actions: list[answers.Action] | None = None,
    can_steer: bool = True,
    **changes: Any,
) -> Text:
    values = topic_values(cast(answers.Stats, {**STATS, **changes}), rebuild, audit, actions, NOW, can_steer=can_steer)
    return Text(ENVIRONMENT.get_template("topic.html").render(**values))


def subscription(**changes: Any) -> dict[str, Any]:
    return {"s": {**SUBSCRIPTION, **changes}}


def member(name: str, owned: int | None, load: float | None) -> answers.Member:
    url, web_url = f"pulsar://{name}:6650", f"http://{name}:8081"
    return {"url": url, "webUrl": web_url, "draining": False, "owned": owned, "load": load, "clockOffsetMs": 0}


def test_the_overview_has_the_bridges_where_there_are_several() -> None:
    several = [member("a", 3, 3.0), member("b", 1, 1.0), member("c", None, None)]
    page = overview(members={"members": several, "trouble": None})
    assert "75 %" in page.text
    assert "25 %" in page.text
    assert "does not answer" in page.text
    assert ("a", {"href": "http://a:8081/", "id": "member-1"}) in page.tags
    alone: answers.Members = {"members": [member("a", 3, 3.0)], "trouble": None}
    assert "pulsar://a:6650" not in overview(members=alone).text
    assert "not allowed to" in overview(members={"members": [], "trouble": "not allowed to"}).text


def test_the_overview_has_the_totals_and_each_topic() -> None:
    page = overview()
    for shown in ("123 M", "11", "222", "3,333", "7 ms", "90 ms", "in 1 min", "95 % used", "Nothing stands out"):
        assert shown in page.text, shown
    assert ("a", {"href": "/topic/public/default/orders", "id": "topic-1"}) in page.tags


def test_early_deliveries_stand_out() -> None:
    assert ("span", {"class": "good"}) in overview().tags
    assert ("span", {"class": "bad"}) in overview(rows=[ROW | {"early": 1}]).tags


def test_warnings_beyond_a_number_are_folded_away() -> None:
    warned = {"severity": "critical", "code": "c", "topic": TOPIC, "subscription": "s", "text": "trouble"}
    page = overview(warnings=[warned] * (WARNINGS_SHOWN + 3))
    assert page.text.count("trouble") == WARNINGS_SHOWN + 3
    assert "3 more" in page.text
    assert "more" not in overview(warnings=[warned] * WARNINGS_SHOWN).text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"topics": 0}, "No topic is tracked yet"),
        ({"topics": 0, "ready": False}, "does not serve yet"),
        ({"query": TopicsQuery(filter="x")}, "None of the 3 tracked topics has “x” in its name"),
        ({"query": TopicsQuery(offset=50), "total": 3}, "go back to the first page"),
    ],
)
def test_an_empty_list_says_why(changes: dict[str, Any], says: str) -> None:
    page = overview(rows=[], **changes)
    assert says in page.text
    assert "table" not in [tag for tag, _ in page.tags]


def test_pages_of_topics() -> None:
    query = TopicsQuery(filter="a b", sort="pending", order="desc", offset=50)
    page = overview(rows=[ROW] * 50, total=120, query=query)
    assert "51\N{EN DASH}100 of 120" in page.text
    links = {each.get("id"): each.get("href") for tag, each in page.tags if tag == "a"}
    assert links["pager-before"] == "/?filter=a+b&sort=pending&order=desc"
    assert links["pager-after"] == "/?filter=a+b&sort=pending&order=desc&offset=100"
    assert "pager-after" not in {
        each.get("id") for _, each in overview(rows=[ROW] * 20, total=120, query=query._replace(offset=100)).tags
    }


def test_a_click_on_a_heading_sorts_and_another_turns_it() -> None:
    def headings(query: TopicsQuery) -> dict[str, dict[str, Any]]:
        return {each["label"]: each for each in overview_values(OVERVIEW, [ROW], 1, query, NOW)["headings"]}

    usual = headings(TopicsQuery())
    assert usual["Topic"]["sorted"] == "ascending"
    assert usual["Topic"]["address"] == "/?order=desc"
    assert usual["Pending"]["address"] == "/?sort=pending&order=desc"
    assert usual["Next due"]["address"] == "/?sort=earliestDeliverAt"
    turned = headings(TopicsQuery(sort="pending", order="desc", offset=50))
    assert turned["Pending"]["sorted"] == "descending"
    assert turned["Pending"]["address"] == "/?sort=pending"


def test_what_makes_no_sense_in_the_address_is_as_if_not_given() -> None:
    assert topics_query({"sort": "secret", "order": "up", "offset": "-1", "limit": "x"}) == TopicsQuery()
    assert topics_query({"offset": "٣", "limit": "0"}) == TopicsQuery()
    assert topics_query({"offset": "9" * 5_000, "limit": str(MAX_ROWS + 1)}) == TopicsQuery()
    assert topics_query({"limit": str(MAX_ROWS), "filter": " a "}) == TopicsQuery(filter="a", limit=MAX_ROWS)


def test_names_from_outside_are_escaped() -> None:
    nasty_topic = f"persistent://public/default/{NASTY}"
    consumer = SUBSCRIPTION["consumers"][0] | {"consumerName": NASTY}
    changes: dict[str, Any] = {
        "topic": nasty_topic,
        "subscriptions": {NASTY: SUBSCRIPTION | {"consumers": [consumer]}},
        "warnings": [{"severity": "warning", "code": "c", "topic": None, "subscription": NASTY, "text": NASTY}],
    }
    for page in (
        topic(actions=[ACTION | {"actor": NASTY}], **changes),
        overview(rows=[ROW | {"topic": nasty_topic}], query=TopicsQuery(filter=NASTY)),
    ):
        scripts = [each for tag, each in page.tags if tag == "script"]
        assert all(each.get("src") or each.get("type") == "application/json" for each in scripts)
        assert not any(name.startswith("on") for _, each in page.tags for name in each)
        assert NASTY in page.text or NASTY in "".join(page.parts)


def test_a_topic_tells_its_subscriptions() -> None:
    page = topic()
    for shown in ("3:4", "in 1 min", "in 1 d", "worker", "500 permits in all", "P99.9", "Permits 3", "Harvest 1"):
        assert shown in page.text, shown
    assert ("span", {"class": "cause-permits", "style": "width: 75.00%"}) in page.tags


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"consumers": []}, "No consumer is connected: what comes due waits"),
        ({"dispatching": False}, "Its cursor is being read"),
        ({"consumers": [SUBSCRIPTION["consumers"][0] | {"availablePermits": 0}]}, "No consumer has permits"),
        ({"latenessCauses": dict.fromkeys(("permits", "harvest", "rebuild", "bridge"), 0)}, "Nothing was late"),
        ({"lateness": SUBSCRIPTION["lateness"] | {"count": 0}}, "No delayed entry was delivered"),
        ({"forecast": {"peakPerSecond": 90.0, "peakAt": NOW + 60_000, "shownPerSecond": 0}}, "is not known yet"),
        ({"forecast": {"peakPerSecond": 9.0, "peakAt": NOW + 60_000, "shownPerSecond": 30.0}}, "Highest rate ahead"),
        ({"pendingSettled": False}, "being counted"),
        ({"expedited": 4}, "Delivered now 4"),
        ({"books": BOOKS}, "Books: 12,000 published = 11,990 acked + 7 pending + 3 withheld by the broker (closed)"),
        ({"books": BOOKS | {"missing": ["3:7"], "difference": 2}}, "and 2 in no place, or in several 3:7"),
        ({"books": BOOKS | {"differenceByCounters": -4, "twice": ["3:9"]}}, "and 5 in no place, or in several 3:9"),
        ({"books": BOOKS | {"places": None, "unknown": "its cursor is being read"}}, "its cursor is being read."),
    ],
)
def test_how_a_subscription_stands_is_said_in_words(changes: dict[str, Any], says: str) -> None:
    assert says in topic(subscriptions=subscription(**changes)).text
    assert says not in topic().text


def test_of_a_topic_that_nobody_is_connected_to_all_is_shown() -> None:
    assert "nobody is connected to it" in topic(role="idle").text
    assert topic(role="idle").text.count("Pending") == topic(role="owner").text.count("Pending") > 0


def test_a_storm_is_one_where_it_is_warned_of() -> None:
    ahead = {"forecast": {"peakPerSecond": 90.0, "peakAt": NOW + 60_000, "shownPerSecond": 30.0}}
    storm = {"severity": "warning", "code": "storm", "topic": None, "subscription": "s", "text": "s: 90 come due"}
    assert "storm ahead" not in topic(subscriptions=subscription(**ahead)).text
    assert "storm ahead" in topic(subscriptions=subscription(**ahead), warnings=[storm]).text


def test_a_topic_that_another_bridge_owns_leads_there() -> None:
    page = topic(role="standby", owner="pulsar://b:6650", ownerWebUrl="http://b:8081")
    assert ("a", {"href": "http://b:8081/topic/public/default/orders"}) in page.tags
    assert "elsewhere" not in topic().text
    ids = {each.get("id") for _, each in page.tags}
    assert "live-summary" in ids
    assert not ids & {"chart", "search", "rebuild", "confirm"}


def test_a_rebuild_under_way_shows_how_far_it_is() -> None:
    page = topic(REBUILD)
    assert "25 %, 100 of 400 entries" in page.text
    assert "about 3 s left" in page.text
    assert ("button", {"type": "button", "id": "rebuild-stop", "class": "danger"}) in page.tags
    assert topic_values(STATS, REBUILD, None, [], NOW)["busy"]
    assert "Stop the rebuild" not in topic(REBUILD | {"trigger": Trigger.seek}).text
    unknown = topic(REBUILD | {"entriesTotal": 0})
    assert "100 entries read" in unknown.text


def test_a_rebuild_at_its_end_shows_its_proof_or_its_error() -> None:
    done = REBUILD | {"state": "succeeded", "finishedAt": NOW, "proof": {"count": 90, "checksum": "ab", "from": NOW}}
    page = topic(done | {"earlier": [REBUILD | {"state": "failed", "error": "cancelled", "finishedAt": NOW}]})
    assert "topic and index hold the same 90 entries due from 2023-11-14 22:13:20 on" in page.text
    assert "1 before" in page.text
    assert not topic_values(STATS, done, None, [], NOW)["busy"]
    failed = topic(done | {"state": "failed", "proof": None, "error": "no broker", "sparkError": "no Java"})
    assert "no broker" in failed.text
    assert "no Java" in failed.text
    partly = topic(done | {"fromBookies": 60, "notFromBookies": "ledger 7 is offloaded"})
    assert "60 of them from the bookies" in partly.text
    assert "Not all was read from them: ledger 7 is offloaded" in partly.text


def test_an_audit_lists_what_differs() -> None:
    assert "390 entries compared" in topic(audit=AUDIT).text
    differs = AUDIT | {
        "state": "differs",
        "differing": 500,
        "missing": [f"7:{number}" for number in range(150)],
        "unexpected": ["8:1"],
    }
    page = topic(audit=differs)
    assert "500 of 390 entries differ" in page.text
    assert "7:99 " in page.text
    assert "7:100" not in page.text
    assert "399 more are not listed" in page.text


def test_the_latest_acts_of_operators() -> None:
    page = topic(actions=[ACTION, ACTION | {"actor": "", "positions": 2_000, "outcomes": {}, "subscription": None}])
    assert "2026-01-02 03:04:05" in page.text
    assert "1 already-acked , 3 cancelled" in page.text.replace(",", " ,").replace("  ", " ")
    assert "2,000" in page.text
    assert "anonymous" in page.text


def test_who_may_only_look_has_no_buttons() -> None:
    def hidden(can_steer: bool) -> set[str]:
        tags = topic(REBUILD, can_steer=can_steer).tags
        return {each.get("class") or "" for _, each in tags if "hidden" in each} & {"bulk", "controls"}

    assert hidden(False) == {"bulk", "controls"}
    assert hidden(True) == set()
    assert "Stop the rebuild" in topic(REBUILD).text
    assert "Stop the rebuild" not in topic(REBUILD, can_steer=False).text


def test_acts_have_no_place_where_they_are_not_told() -> None:
    assert "What operators did" in topic(actions=[]).text
    assert "What operators did" not in topic().text


def test_who_is_logged_in_can_log_out() -> None:
    template = ENVIRONMENT.get_template("not_found.html")
    assert "Log out" in Text(template.render(reason="gone", actor="admin")).text
    assert "Log out" not in Text(template.render(reason="gone")).text
