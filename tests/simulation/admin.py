"""The admin interface of a simulated cluster: answers as text, late, wrong for a while, or never."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.clocks import ClockComparison
from bridge.protocol.pulsar_pb2 import CommandSubscribe
from tests.simulation.cluster import Cluster
from tests.simulation.ledgers import Cursor, Topic
from tests.simulation.small import SMALL

SILENCE_S = 30.0
"""So long a client waits for an answer."""


class SimulatedAdmin(AdminClient):
    """In the place of HTTP."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        """Nothing is opened."""
        self._web_url = "http://simulated"
        self._limits = SMALL.connections
        self.clocks = ClockComparison()
        self.failures = 0
        self._cluster = cluster
        self._chance = chance
        self.latency_s = (0.0005, 0.01)
        self.mood = "well"
        """Or `down`, `silent`, `slow`, `html`: of a proxy in between."""

    async def close(self) -> None:
        """Nothing is open."""

    async def _call(self, method: str, path: str, body: object = None) -> tuple[str, Mapping[str, str]]:
        return await self._call_text(method, path, body), {}

    async def _call_text(self, method: str, path: str, body: object = None) -> str:
        await asyncio.sleep(self._chance.uniform(*self.latency_s))
        if self.mood == "silent":
            await asyncio.sleep(SILENCE_S)
            raise AdminError(f"{method} {path}: timed out")
        if self.mood == "down" or not any(node.alive for node in self._cluster.nodes):
            raise AdminError(f"{method} {path}: connection refused")
        if self.mood == "html":
            return "<html><body>Please come back later</body></html>"
        text = self._answer(method, path)
        # What is answered was so at some moment in between.
        await asyncio.sleep(self._chance.uniform(*self.latency_s) * (200 if self.mood == "slow" else 1))
        return text

    def _answer(self, method: str, path: str) -> str:
        if path == "/admin/v2/brokers/version":
            return self._cluster.version
        parts = path.partition("?")[0].split("/")
        if parts[3] == "namespaces":
            return ""
        if parts[3] == "transactions":
            return json.dumps({"state": "None", "ongoingTxnSize": 0})
        topic = "persistent://" + "/".join(unquote(part) for part in parts[4:7])
        what = parts[7]
        known = self._cluster.topics.get(topic)
        if known is None:
            raise AdminError(f"{method} {path}: 404 Topic {topic} not found", 404)
        self._cluster.node_of(topic)
        if what == "internalStats":
            return json.dumps(internal_stats(known))
        if what == "stats":
            return json.dumps(self._stats(topic, known))
        if what == "lastMessageId":
            ledger, entry = known.place_of(known.end - 1)
            return json.dumps({"ledgerId": ledger, "entryId": entry})
        if what == "subscription" and method == "PUT":
            name = unquote(parts[8])
            if name in known.cursors:
                raise AdminError(f"{method} {path}: 409 Subscription already exists", 409)
            known.cursors[name] = Cursor(known.trimmed)
        return ""

    def _stats(self, topic: str, known: Topic) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in known.cursors:
            consumers = self._cluster.consumers.get((topic, name), [])
            found[name] = {
                "consumers": [
                    {
                        "consumerName": each.name,
                        "metadata": each.metadata,
                        "connectedSince": datetime.fromtimestamp(each.connected_ms / 1000, UTC).isoformat(),
                    }
                    for each in consumers
                ],
                "backlogSize": 0,
            }
            elected = self._cluster.elected.get((topic, name))
            if consumers and consumers[0].kind == CommandSubscribe.Failover and elected is not None:
                found[name]["activeConsumerName"] = elected.name
        for reader in self._cluster.readers.get(topic, []):
            found[reader.subscription] = {"consumers": [{"consumerName": reader.name, "metadata": {}}]}
        return {"subscriptions": found, "publishers": [{}] * len(self._cluster.producers.get(topic, []))}


def internal_stats(topic: Topic) -> dict[str, Any]:
    """As a broker words it: the open ledger is listed with 0 entries, names of cursors are encoded."""
    ledger, entry = topic.place_of(topic.end - 1)
    sizes = topic.sizes()
    return {
        "lastConfirmedEntry": f"{ledger}:{entry}",
        "ledgers": [{"ledgerId": each, "entries": size} for each, size in sizes[:-1]]
        + [{"ledgerId": sizes[-1][0], "entries": 0}],
        "currentLedgerEntries": sizes[-1][1],
        "cursors": {
            quote(name, ""): {
                "markDeletePosition": "{}:{}".format(*topic.place_of(cursor.state.first - 1)),
                "readPosition": "{}:{} (ackSet is null)".format(*topic.place_of(cursor.state.first)),
                "individuallyDeletedMessages": topic.ranges_of(cursor),
                "properties": dict(cursor.state.properties),
            }
            for name, cursor in topic.cursors.items()
        },
    }
