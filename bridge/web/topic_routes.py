"""REST of what is tracked: topic partitions, their subscriptions and time partitions."""

from aiohttp import web

from bridge.tracked_topic import wall_clock_ms
from bridge.web.access import visible
from bridge.web.requests import BRIDGE, ROOT, TOPIC, tracked_topic
from bridge.web.views import partition_table, topic_stats, topic_summary

routes = web.RouteTableDef()


@routes.get(f"{ROOT}/topics")
async def topics(request: web.Request) -> web.Response:
    """List the tracked topic partitions that the caller may see."""
    known = request.app[BRIDGE].topics
    topics = [] if known is None else await visible(request, known.all())
    return web.json_response([topic_summary(topic) for topic in topics])


@routes.get(f"{TOPIC}/stats")
async def stats(request: web.Request) -> web.Response:
    """Tell of one topic partition and its subscriptions."""
    return web.json_response(topic_stats(tracked_topic(request)))


@routes.get(f"{TOPIC}/partitions")
async def partitions(request: web.Request) -> web.Response:
    """Tell the sizes of the time partitions."""
    text = await partition_table(tracked_topic(request), wall_clock_ms())
    return web.Response(text=text, content_type="application/json")
