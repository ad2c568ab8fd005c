"""Limits so small that a few hundred messages reach them. Imported before anything that reads them."""

from __future__ import annotations

from bridge import limits

SMALL = {
    "CATCH_UP_ENTRIES": 15,
    "DISPATCH_SLICE": 30,
    "FEED_PERMITS": 12,
    "FEED_QUEUE_ENTRIES": 12,
    "HARVEST_PERMITS": 40,
    "HARVEST_SLICE": 20,
    "MAX_UNACKED_PER_CONSUMER": 60,
    "MAX_UNACKED_PER_SUBSCRIPTION": 100,
    "PREFETCH_SLICE": 20,
    "REFETCH_BATCH": 10,
    "REPAIR_BATCH": 10,
    "TAIL_BUFFER_ENTRIES": 25,
}

for name, value in SMALL.items():
    assert hasattr(limits, name), name
    setattr(limits, name, value)
