"""The delayed index: no asyncio, no sockets, no clock reads."""

from tracker.entries import DueEntry, NewEntry
from tracker.errors import DataDirectoryLocked, StoreError, UnsupportedFormat
from tracker.keys import KEY_LENGTH, decode_key, encode_key
from tracker.position import EARLIEST, Position
from tracker.store.store import Store
from tracker.topic_index import TimePartition, TopicIndex
from tracker.views.ack_set import AckedRange, AckSet, iter_ranges, parse_ranges
from tracker.views.view import SubscriptionView

__all__ = [
    "EARLIEST",
    "KEY_LENGTH",
    "AckSet",
    "AckedRange",
    "DataDirectoryLocked",
    "DueEntry",
    "NewEntry",
    "Position",
    "Store",
    "StoreError",
    "SubscriptionView",
    "TimePartition",
    "TopicIndex",
    "UnsupportedFormat",
    "decode_key",
    "encode_key",
    "iter_ranges",
    "parse_ranges",
]
