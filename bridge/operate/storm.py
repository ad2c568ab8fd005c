"""How much comes due when within a day, and how far behind its consumers would be at the rate they have shown.

Time partitions are counted without reading them; a burst within one is seen only second by second. In memory that costs
little; the largest ones on disk are looked into now and then (`SecondsOnDisk`).
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from bridge import answers
from bridge.limits import OperatorLimits
from tracker import StoreError, SubscriptionView, TopicIndex
from tracker.keys import key_time, successor, time_bound

FORECAST_MS = 86_400_000
SECONDS_AHEAD = 600
"""In memory the highest rate is looked for second by second, so far ahead."""
STORM_ENTRIES = 1_000
"""Time partitions with less are not looked into, and consumers that would be behind by less are no storm."""
CATCH_UP_WARNING_S = 60
UNKNOWN_STORM_PER_SECOND = 1_000
"""From here on it is said when nobody knows what the consumers can take."""
LARGEST = 3
"""So many time partitions on disk are looked into."""


class Forecast(NamedTuple):
    """The highest rate of deliveries ahead, and how far consumers would be behind at the rate they have shown.

    `catch_up_s`: None when they have shown nothing yet; `behind_entries`: how many would wait then at most.
    """

    peak_per_second: float
    peak_at_ms: int
    shown_per_second: float
    catch_up_s: float | None
    behind_entries: int = 0

    def answer(self) -> answers.Forecast:
        """Return what REST says."""
        return {
            "peakPerSecond": round(self.peak_per_second, 1),
            "peakAt": self.peak_at_ms,
            "shownPerSecond": round(self.shown_per_second, 1),
            "catchUpSeconds": None if self.catch_up_s is None else round(self.catch_up_s, 1),
        }

    @property
    def warning(self) -> str | None:
        """What there is to be said of it, None for nothing."""
        due = f"{self.peak_per_second:,.0f} messages a second come due"
        if self.catch_up_s is None:
            unknown = f"{due}, what its consumers can take is not known: they have shown nothing yet"
            return unknown if self.peak_per_second >= UNKNOWN_STORM_PER_SECOND else None
        if self.catch_up_s <= CATCH_UP_WARNING_S or self.behind_entries < STORM_ENTRIES:
            return None
        shown = f"its consumers have shown {self.shown_per_second:,.0f}"
        return f"{due}, {shown}: up to {self.catch_up_s:,.0f} s late"


class Looked(NamedTuple):
    """A time partition that was looked into: entries then, and how many come due in each second (in s)."""

    entries: int
    seconds: Mapping[int, int]


class _Stretch(NamedTuple):
    start_ms: int
    seconds: float
    pending: float


def forecast(
    index: TopicIndex, view: SubscriptionView, now_ms: int, shown: float, looked: Mapping[int, Looked] | None = None
) -> Forecast | None:
    """Look for the busiest time within a day; None when nothing comes due. `shown`: messages a second."""
    peak, at, behind, most, until_ms = 0.0, now_ms, 0.0, 0.0, now_ms
    for start, seconds, pending in _ahead(index, view, now_ms, looked or {}):
        if pending / seconds > peak:
            peak, at = pending / seconds, start
        behind = max(behind - shown * max(start - until_ms, 0) / 1000, 0) + pending
        behind = max(behind - shown * seconds, 0)
        most, until_ms = max(most, behind), start + round(seconds * 1000)
    if not peak:
        return None
    return Forecast(peak, at, shown, most / shown if shown > 0 else None, round(most))


def _ahead(index: TopicIndex, view: SubscriptionView, now_ms: int, looked: Mapping[int, Looked]) -> Iterator[_Stretch]:
    """Yield what comes due when, in order: seconds where they are known, else whole time partitions."""
    width, first = index.partition_width_ms, now_ms // index.partition_width_ms
    for page in index.table.pages_between(first, first + FORECAST_MS // width + 2):
        for slot in page.slots():
            number, entries = page.number * len(page.counts) + slot, page.entries_in(slot)
            pending = entries - view.counter.acked_in(number)
            if number < first or pending <= 0:
                continue
            seconds = dict(_seconds_in_memory(index, number, now_ms))
            if number in looked and not seconds:
                seconds = {second * 1000: count for second, count in looked[number].seconds.items()}
            seconds = {start: count for start, count in seconds.items() if start >= now_ms - 999}
            if seconds:
                share = min(pending / sum(seconds.values()), 1)
                yield from (_Stretch(start, 1, count * share) for start, count in sorted(seconds.items()))
            elif number > first:
                yield _Stretch(number * width, width / 1000, pending)


def _seconds_in_memory(index: TopicIndex, number: int, now_ms: int) -> Iterator[tuple[int, int]]:
    """Yield (start, entries) of the seconds ahead of a time partition that is in memory, if it is worth looking."""
    width, window = index.partition_width_ms, index.window
    low_ms, end_ms = max(number * width, now_ms), (number + 1) * width
    if index.table.entries_in(number) < STORM_ENTRIES or low_ms > now_ms + SECONDS_AHEAD * 1000:
        return
    if not window.covers(time_bound(low_ms)) or time_bound(end_ms) > window.high:
        return
    for start in range(low_ms, end_ms, 1000):
        count = window.count(time_bound(start), time_bound(min(start + 1000, end_ms)))
        if count:
            yield start, count


class SecondsOnDisk:
    """What is known of the largest time partitions of an index within a day, second by second."""

    def __init__(self, limits: OperatorLimits) -> None:
        """Nothing was looked into yet."""
        self._limits = limits
        self.looked: dict[int, Looked] = {}

    async def look(self, index: TopicIndex, now_ms: int) -> None:
        """Look into what is new, or has changed by much; others get their turn in between."""
        found = {}
        for number, entries in self._largest(index, now_ms):
            known = self.looked.get(number)
            if known is None or abs(entries - known.entries) > entries / 10:
                try:
                    known = Looked(entries, await _seconds_of(index, number, self._limits.forecast_slice))
                except StoreError:
                    continue  # who delivers says what is wrong
            found[number] = known
        self.looked = found

    def _largest(self, index: TopicIndex, now_ms: int) -> list[tuple[int, int]]:
        """Return (number, entries), the largest first; what is too large is a storm without a look into it."""
        first = now_ms // index.partition_width_ms
        found = []
        for page in index.table.pages_between(first, first + FORECAST_MS // index.partition_width_ms + 2):
            for slot in page.slots():
                number, entries = page.number * len(page.counts) + slot, page.entries_in(slot)
                if number >= first and STORM_ENTRIES <= entries <= self._limits.forecast_look_entries:
                    found.append((number, entries))
        return sorted(found, key=lambda each: -each[1])[:LARGEST]


async def _seconds_of(index: TopicIndex, number: int, at_a_time: int) -> dict[int, int]:
    """Count a time partition's entries by second. Raises StoreError."""
    start, end = time_bound(number * index.partition_width_ms), time_bound((number + 1) * index.partition_width_ms)
    counted: Counter[int] = Counter()
    while part := list(islice(index.reader.keys(start, end), at_a_time)):
        counted.update([key_time(key) // 1000 for key in part])
        start = successor(part[-1])
        await asyncio.sleep(0)
    return dict(counted)
