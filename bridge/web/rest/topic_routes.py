"""REST of what is tracked: topic partitions, their subscriptions and time partitions."""

import asyncio
from itertools import islice

from aiohttp import web

from bridge import answers
from bridge.clock import wall_clock_ms
from bridge.web.request.parameters import (
    ROOT,
    TOPIC,
    duration_in,
    flag_in,
    index_of,
    known_topic,
    not_served,
    number_in,
    refused,
    served_topic,
    time_in,
    tracked_topic,
    view_of,
)
from bridge.web.request.served import limits_of
from bridge.web.rest.answering import Answer
from bridge.web.rest.together import overview_together, rows_together
from bridge.web.rest.views import partition_table, topic_stats
from tracker import StoreError
from tracker.counts import MIN_STEP_MS
from tracker.partitions.page import PAGE_PARTITIONS

routes = web.RouteTableDef()

SORTED_BY = (
    *("topic", "role", "entries", "storageSize", "memorySize", "pending"),
    *("earliestDeliverAt", "latenessP99Ms", "early", "rebuild"),
)
DEFAULT_BARS = 300


@routes.get(f"{ROOT}/overview")
async def overview(request: web.Request) -> Answer[answers.Overview]:
    """Tell of the bridge as a whole, and of the topics that the caller may see added up."""
    return Answer(await overview_together(request))


@routes.get(f"{ROOT}/topics")
async def topics(request: web.Request) -> Answer[list[answers.TopicRow]]:
    """List the tracked topic partitions that the caller may see; X-Total-Count tells how many there are in all."""
    wanted = request.query.get("filter", "")
    rows = await rows_together(request, wanted, _sorted_by(request), descending=_descending(request))
    start = number_in(request, "offset", 0, 0, 10**9)
    most = limits_of(request).topics_page_max
    limit = number_in(request, "limit", most, 1, most)
    return Answer(rows[start : start + limit], headers={"X-Total-Count": str(len(rows))})


@routes.get(f"{TOPIC}/stats")
async def stats(request: web.Request) -> Answer[answers.Stats]:
    """Tell of one topic partition and its subscriptions."""
    return Answer(topic_stats(tracked_topic(request)))


@routes.get(f"{TOPIC}/ready")
async def ready(request: web.Request) -> Answer[answers.Ready]:
    """Tell whether one topic partition is served."""
    topic = known_topic(request)
    if not topic.is_served:
        raise refused(web.HTTPServiceUnavailable, f"{topic.topic} is not served: {not_served(topic)}")
    return Answer({"topic": topic.topic, "role": topic.role, "owner": topic.owner})


@routes.get(f"{TOPIC}/partitions")
async def partitions(request: web.Request) -> Answer[answers.Partitions]:
    """Tell the sizes of the time partitions."""
    topic = tracked_topic(request)
    name = request.query.get("subscription")
    if name is not None:
        view_of(index_of(topic), name)
    return Answer(await partition_table(topic, wall_clock_ms(), limits_of(request).partition_slice, name))


@routes.get(f"{TOPIC}/partitions/chart")
async def chart(request: web.Request) -> Answer[answers.Chart]:
    """Tell the sizes of the time partitions, added up to so few bars that a person can see them."""
    index = index_of(tracked_topic(request))
    name = request.query.get("subscription")
    view = None if name is None else view_of(index, name)
    width, span = index.partition_width_ms, index.table.span()
    start, end = time_in(request, "from"), time_in(request, "to")
    wanted = number_in(request, "bars", DEFAULT_BARS, 1, limits_of(request).chart_bars_max)
    if span is None:
        return Answer({"widthMs": width, "from": start, "to": end, "barMs": width, "bars": []})
    first = span[0] if start is None else start // width
    last = span[1] if end is None else max((end - 1) // width, first)
    first, last = max(first, 0), min(last, max(span[1], first))
    per_bar = -(-(last - first + 1) // wanted)
    if per_bar >= PAGE_PARTITIONS // 2:  # whole pages are added up much faster
        per_bar = -(-per_bar // PAGE_PARTITIONS) * PAGE_PARTITIONS
    first = first // per_bar * per_bar
    bars: list[answers.Bar] = []
    made = index.counts.bars(first, per_bar, -(-(last - first + 1) // per_bar), view)
    while part := list(islice(made, limits_of(request).chart_slice)):
        bars += [
            {
                "start": bar.start_ms,
                "entries": bar.entries,
                "bytes": bar.bytes,
                "memoryEntries": bar.memory_entries,
                "memoryBytes": bar.memory_bytes,
                "diskEntries": bar.entries - bar.memory_entries,
                "diskBytes": bar.bytes - bar.memory_bytes,
                "pending": bar.pending,
            }
            for bar in part
            if bar.entries
        ]
        await asyncio.sleep(0)
    start, end = first * width, (last + 1) * width
    return Answer({"widthMs": width, "from": start, "to": end, "barMs": per_bar * width, "bars": bars})


@routes.get(f"{TOPIC}/subscription/{{subscription}}/histogram")
async def histogram(request: web.Request) -> Answer[answers.Histogram]:
    """Tell what comes due when, for one subscription; a bound within a time partition costs reading that."""
    index = index_of(tracked_topic(request))
    view = view_of(index, request.match_info["subscription"])
    now, width = wall_clock_ms(), index.partition_width_ms
    span = index.table.span()
    start = time_in(request, "from")
    end = time_in(request, "to")
    step = duration_in(request, "step", width, MIN_STEP_MS)
    start = now // width * width if start is None else start
    end = (start if span is None else (span[1] + 1) * width) if end is None else end
    steps = max(-(-(end - start) // step), 0)
    most = limits_of(request).histogram_buckets_max
    if steps > most:
        reason = f"{steps} buckets from {start} to {end} in steps of {step} ms: at most {most}"
        raise refused(web.HTTPBadRequest, reason)
    buckets: list[answers.Bucket] = []
    try:
        for bucket in index.counts.histogram(start, step, steps, view):
            if bucket.entries:
                buckets.append({"start": bucket.start_ms, "count": bucket.entries})
            await asyncio.sleep(0)
    except StoreError as error:
        raise refused(web.HTTPServiceUnavailable, str(error)) from error
    return Answer({"stepMs": step, "buckets": buckets})


@routes.get(f"{TOPIC}/subscription/{{subscription}}/books")
async def books(request: web.Request) -> Answer[answers.Books]:
    """Draw the balance of one subscription."""
    positions = flag_in(request, "positions")
    topic = await served_topic(request)
    name = request.match_info["subscription"]
    view_of(index_of(topic), name)
    if topic.tenure is None:
        raise refused(web.HTTPConflict, f"{topic.topic} is not owned by this bridge: {not_served(topic)}")
    return Answer((await topic.tenure.books.of(name, positions=positions)).answer())


def _sorted_by(request: web.Request) -> str:
    name = request.query.get("sort", "topic")
    if name not in SORTED_BY:
        raise refused(web.HTTPBadRequest, f"sort: no column {name!r}, there are {', '.join(SORTED_BY)}")
    return name


def _descending(request: web.Request) -> bool:
    order = request.query.get("order", "asc")
    if order not in ("asc", "desc"):
        raise refused(web.HTTPBadRequest, f"order: neither asc nor desc: {order!r}")
    return order == "desc"
