"""The invariants of a topic index, derived again from the disk. For tests: everything is read."""

from __future__ import annotations

from tracker.care.damage import DamagedRange
from tracker.index_core import IndexCore
from tracker.keys import FIRST_KEY, KEY_LENGTH, decode_key, time_bound
from tracker.position import EARLIEST, Position
from tracker.views.view import SubscriptionView

_END = time_bound(2**64 - 1)


def check_index(core: IndexCore, damaged: list[DamagedRange]) -> None:
    """Raise AssertionError when counters, window or views disagree with what is stored."""
    pairs = _everything(core)
    keys = [key for key, _ in pairs]
    if not core.families.damaged:
        _check_positions(core, keys)
    assert keys == sorted(set(keys)), "keys out of order"
    _check_counters(core, pairs)
    _check_window(core, keys)
    for view in core.views.by_name.values():
        _check_view(core, view, keys, damaged)


def _everything(core: IndexCore) -> list[tuple[bytes, bytes]]:
    if core.families.damaged:
        return list(core.reader.pairs(FIRST_KEY, _END))
    # Not along the partition table: an entry outside every known partition must show.
    iterator = core.reader.iterate(core.families.main)
    iterator.seek(FIRST_KEY)
    pairs = []
    while iterator.valid() and len(key := iterator.key()) == KEY_LENGTH:
        pairs.append((key, iterator.value()))
        iterator.next()
    iterator.status()
    return pairs


def _check_counters(core: IndexCore, pairs: list[tuple[bytes, bytes]]) -> None:
    counted: dict[int, list[tuple[int, Position]]] = {}
    for key, value in pairs:
        deliver_at, ledger, entry = decode_key(key)
        number = deliver_at // core.partition_width_ms
        counted.setdefault(number, []).append((len(key) + len(value), Position(ledger, entry)))
    expected = [
        (number, len(found), sum(size for size, _ in found), min(at for _, at in found), max(at for _, at in found))
        for number, found in sorted(counted.items())
    ]
    kept = [(known.number, known.entries, known.size, known.lowest, known.highest) for known in core.table]
    assert kept == expected, f"partitions {kept} differ from {expected}"
    assert core.table.entries == len(pairs), f"{core.table.entries} entries counted, {len(pairs)} stored"
    assert core.table.size == sum(size for _, _, size, _, _ in expected), "bytes differ"


def _check_positions(core: IndexCore, keys: list[bytes]) -> None:
    noted = {
        (ledger, entry): deliver_at
        for ledger, times in core.positions.blocks(EARLIEST, Position(2**62, 0))
        for entry, deliver_at in times.items()
    }
    for key in keys:
        deliver_at, ledger, entry = decode_key(key)
        assert noted.get((ledger, entry)) == deliver_at, f"{ledger}:{entry} is not found by its position"


def _check_counter(core: IndexCore, view: SubscriptionView, keys: list[bytes]) -> None:
    counted: dict[int, int] = {}
    for key in keys:
        deliver_at, ledger, entry = decode_key(key)
        if view.acks.contains(ledger, entry) and not view.counter.is_waiting(ledger, entry):
            number = deliver_at // core.partition_width_ms
            counted[number] = counted.get(number, 0) + 1
    kept = dict(view.counter.pages())
    if view.counter.held:  # entries that came past `add` may have been acked before
        counted = {number: min(kept[number], counted.get(number, 0)) for number in kept}
    assert kept == counted, f"{view.name}: acked {kept} differ from {counted}"
    assert view.counter.total == sum(counted.values()), f"{view.name}: total of acked differs"


def _check_window(core: IndexCore, keys: list[bytes]) -> None:
    window = core.window
    window.check()
    held = [due.key for due in window.slice(FIRST_KEY, _END)]
    expected = [key for key in keys if window.covers(key)]
    assert held == expected, f"window holds {len(held)} entries, its range {len(expected)}"
    assert window.bytes_held <= window.budget_bytes or len(window) <= 1, "window over its budget"
    for key in held:
        assert window.get(key) == core.reader.get(key), "window and disk differ"


def _check_view(core: IndexCore, view: SubscriptionView, keys: list[bytes], damaged: list[DamagedRange]) -> None:
    view.acks.check()
    if not core.families.damaged and not damaged:
        _check_counter(core, view, keys)
    stored = set(keys)
    lost = {known.start_ms // core.partition_width_ms for known in damaged}
    late = set(view.late_keys())
    held: dict[int, int] = {}
    for position, key in view.outstanding.items():
        number = decode_key(key)[0] // core.partition_width_ms
        assert key in stored or number in lost, f"{view.name}: outstanding {position} is not stored"
        assert decode_key(key)[1:] == position, f"{view.name}: wrong key of {position}"
        assert not view.acks.contains(*position), f"{view.name}: {position} is acked and outstanding"
    for key in late:
        assert key in stored, f"{view.name}: a late key is not stored"
        assert key < view.cursor, f"{view.name}: a late key lies ahead"
    for key in [*view.outstanding.values(), *late]:
        number = decode_key(key)[0] // core.partition_width_ms
        held[number] = held.get(number, 0) + 1
    assert held == view.held(), f"{view.name}: holds {view.held()}, should hold {held}"
    for key in keys:
        _, ledger, entry = decode_key(key)
        ways = (key in late) + ((ledger, entry) in view.outstanding) + view.acks.contains(ledger, entry)
        assert ways <= 1, f"{view.name}: {ledger}:{entry} counted {ways} times"
        assert ways == 1 or key >= view.cursor, f"{view.name}: {ledger}:{entry} was passed over"
