"""Reading ledgers from bookies, as far as it is pure: where entries lie, what is asked, what is made of the answers."""

from __future__ import annotations

import zlib
from struct import Struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.ledgers.bookies.digests import Digest, checked_entry
from bridge.ledgers.bookies.errors import BookieError, DamagedEntry
from bridge.ledgers.bookies.layout import Bookie, LedgerLayout, layouts_in, parse_layout
from bridge.ledgers.bookies.reading import Ask, EntryReads, Told
from bridge.ledgers.bookies.wire import BATCH_READ_ENTRY, READ_ENTRY, VERSION, Answer, next_answer

LEDGER = 17
TEXT = (
    "LedgerMetadata{formatVersion=3, ensembleSize=2, writeQuorumSize=2, ackQuorumSize=2, state=CLOSED, length=990, "
    "lastEntryId=29, digestType=CRC32C, password=OMITTED, "
    "ensembles={0=[10.0.0.1:3181, 10.0.0.2:3181], 20=[10.0.0.1:3181, bookie-3.bookies:3182]}, "
    "customMetadata={component=base64:bWFuYWdlZC1sZWRnZXI=, application=base64:cHVsc2Fy}}"
)
FIRST, SECOND, THIRD = Bookie("10.0.0.1", 3181), Bookie("10.0.0.2", 3181), Bookie("bookie-3.bookies", 3182)


def content(entry: int) -> bytes:
    return b"entry %d" % entry * 3


def stored(entry: int, digest: Digest = Digest.CRC32C, ledger: int = LEDGER) -> bytes:
    header = Struct(">QQQQ").pack(ledger, entry, max(entry - 1, 0), 100 * entry)
    body = content(entry)
    if digest is Digest.CRC32C:
        return header + Struct(">I").pack(google_crc32c.value(header + body)) + body
    return header + (Struct(">Q").pack(zlib.crc32(header + body)) if digest is Digest.CRC32 else b"") + body


class Store:
    """What one bookie has and how it answers: frames in, frames out."""

    def __init__(self, *entries: int, batches: bool = True, digest: Digest = Digest.CRC32C) -> None:
        self.entries = {entry: stored(entry, digest) for entry in entries}
        self.batches = batches
        self.fails = False
        self.asked = 0

    def told(self, ask: Ask) -> Told:
        self.asked += 1
        if self.fails:
            return BookieError("it is gone")
        answers, requests = b"", ask.requests
        while requests:
            end = 4 + Struct(">I").unpack_from(requests)[0]
            answers += self.answer(requests[:end])
            requests = requests[end:]
        return answers_in(answers)

    def answer(self, request: bytes) -> bytes:
        """To one request."""
        _, header, ledger, entry = Struct(">IIqq").unpack_from(request)
        assert header >> 24 == VERSION
        assert not header & 0xFFFF, "a flag: nothing is to be fenced"
        assert ledger == LEDGER
        return self._answer(header >> 16 & 0xFF, entry, request[24:])

    def _answer(self, operation: int, entry: int, rest: bytes) -> bytes:
        if operation == READ_ENTRY:
            found = self.entries.get(entry)
            return framed(operation, 2 if found is None else 0, entry, found or b"")
        if not self.batches:
            return framed(operation, 100, entry, b"")
        request_id, count, max_bytes = Struct(">qiq").unpack(rest)
        data = Struct(">q").pack(request_id)
        held = 0
        while entry + held in self.entries and held < count and (not held or len(data) < max_bytes):
            one = self.entries[entry + held]
            data += Struct(">I").pack(len(one)) + one
            held += 1
        return framed(operation, 0, entry, data) if held else framed(operation, 2, entry, b"")


def framed(operation: int, code: int, entry: int, data: bytes) -> bytes:
    body = Struct(">IIqq").pack(VERSION << 24 | operation << 16, code, LEDGER, entry) + data
    return Struct(">I").pack(len(body)) + body


def answers_in(data: bytes) -> list[Answer]:
    answers, view = [], memoryview(data)
    while view:
        answer, size = next_answer(view)
        assert answer is not None
        answers.append(answer)
        view = view[size:]
    return answers


def read(reads: EntryReads, layout: LedgerLayout, stores: dict[Bookie, Store], first: int, last: int) -> list[bytes]:
    steps = reads.read(layout, LEDGER, first, last)
    try:
        ask = next(steps)
        while True:
            ask = steps.send(stores[ask.bookie].told(ask))
    except StopIteration as done:
        found: list[bytes] = done.value
        return found


def read_all(layout: LedgerLayout, stores: dict[Bookie, Store], last: int, **sizes: int) -> list[bytes]:
    reads = EntryReads(**{"batch_entries": 7, "batch_bytes": 400, "single_reads": 5} | sizes)
    found: list[bytes] = []
    while len(found) <= last:
        found += read(reads, layout, stores, len(found), last)
    return found


def striped(count: int, write_quorum: int) -> LedgerLayout:
    members = ", ".join(f"10.0.0.{number}:3181" for number in range(count))
    return parse_layout(f"writeQuorumSize={write_quorum}, digestType=CRC32C, ensembles={{0=[{members}]}}")


def test_where_entries_lie() -> None:
    layout = parse_layout(TEXT)
    assert layout.digest is Digest.CRC32C
    assert layout.bookies_of(0) == [FIRST, SECOND]
    assert layout.bookies_of(1) == [SECOND, FIRST]
    assert layout.bookies_of(21) == [THIRD, FIRST]
    assert [layout.end_of(entry) for entry in (0, 19, 20, 29)] == [20, 20, None, None]
    assert not layout.is_striped(0)


def test_entries_are_spread_where_the_ensemble_is_wider() -> None:
    layout = striped(3, 2)
    assert layout.is_striped(0)
    assert [[each.host[-1] for each in layout.bookies_of(entry)] for entry in range(4)] == [
        ["0", "1"],
        ["1", "2"],
        ["2", "0"],
        ["0", "1"],
    ]


def test_a_bookie_with_an_ipv6_address() -> None:
    assert parse_layout("writeQuorumSize=1, digestType=DUMMY, ensembles={0=[[::1]:3181]}").bookies_of(5) == [
        Bookie("::1", 3181)
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "the broker does not say where it lies"),
        ("", "the broker does not say where it lies"),
        ("LedgerMetadata{}", "no ensembles in"),
        ("writeQuorumSize=1, digestType=CRC32C, ensembles={}", "do not begin at 0"),
        ("writeQuorumSize=1, digestType=CRC32C, ensembles={3=[a:1]}", "do not begin at 0"),
        ("writeQuorumSize=1, digestType=CRC32C, ensembles={0=[a:1], 9=[a:1], 4=[a:1]}", "in no order"),
        ("digestType=CRC32C, ensembles={0=[a:1]}", "no writeQuorumSize"),
        ("writeQuorumSize=0, digestType=CRC32C, ensembles={0=[a:1]}", "writeQuorumSize is 0"),
        ("writeQuorumSize=1, digestType=HMAC, ensembles={0=[a:1]}", "the digest HMAC cannot be checked"),
        ("writeQuorumSize=1, ensembles={0=[a:1]}", "the digest none cannot be checked"),
        ("writeQuorumSize=1, digestType=CRC32C, ensembles={0=[6b9c2f3e-1c52]}", "named by no address: '6b9c2f3e-1c52'"),
    ],
)
def test_what_is_not_understood_is_said(text: str | None, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_layout(text)


def test_each_ledger_has_a_layout_or_a_reason() -> None:
    body = {
        "ledgers": [
            {"ledgerId": 1, "metadata": TEXT, "offloaded": False},
            {"ledgerId": 2, "metadata": TEXT, "offloaded": True},
            {"ledgerId": 3},
        ]
    }
    layouts = layouts_in(body, "http://broker:8080")
    assert layouts[1] == parse_layout(TEXT)
    assert layouts[2] == "ledger 2 is offloaded"
    assert layouts[3] == "ledger 3: the broker does not say where it lies"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_bookie_on_the_brokers_own_machine(host: str) -> None:
    text = f"writeQuorumSize=1, digestType=CRC32C, ensembles={{0=[10.0.0.1:3181], 5=[{host}:3181]}}"
    body = {"ledgers": [{"ledgerId": 1, "metadata": text}]}
    there = layouts_in(body, "https://broker.example.com")[1]
    assert str(there).startswith("ledger 1: ")
    assert str(there).endswith(":3181 is an address of the broker's own machine")
    for here in ("http://127.0.0.1:8080", "http://localhost:8080", "https://[::1]:8443"):
        assert layouts_in(body, here)[1] == parse_layout(text)


@pytest.mark.parametrize("digest", list(Digest))
def test_digests(digest: Digest) -> None:
    data = stored(4, digest)
    assert checked_entry(data, LEDGER, 4, digest) == content(4)
    with pytest.raises(DamagedEntry, match="17:4 came for 17:5"):
        checked_entry(data, LEDGER, 5, digest)
    if digest is not Digest.DUMMY:
        with pytest.raises(DamagedEntry, match="does not fit its digest"):
            checked_entry(data[:-1] + b"x", LEDGER, 4, digest)
        with pytest.raises(DamagedEntry, match="does not fit its digest"):
            checked_entry(data[:20] + b"xxxx" + data[24:], LEDGER, 4, digest)
    with pytest.raises(DamagedEntry, match="is stored in 31 bytes"):
        checked_entry(data[:31], LEDGER, 4, digest)


def test_batches_come_from_one_bookie_and_end_with_the_ensemble() -> None:
    stores = {FIRST: Store(*range(30)), SECOND: Store(*range(20)), THIRD: Store(*range(20, 30))}
    assert read_all(parse_layout(TEXT), stores, 29) == [content(entry) for entry in range(30)]
    assert stores[SECOND].asked == stores[THIRD].asked == 0


def test_a_bookie_that_knows_no_batches_is_asked_entry_by_entry() -> None:
    stores = {FIRST: Store(*range(30), batches=False), SECOND: Store(*range(20), batches=False)}
    stores[THIRD] = Store(*range(20, 30), batches=False)
    assert read_all(parse_layout(TEXT), stores, 29) == [content(entry) for entry in range(30)]


def test_what_one_bookie_lacks_another_has() -> None:
    stores = {FIRST: Store(0, 1, 4, 5), SECOND: Store(*range(1, 20)), THIRD: Store()}
    assert read_all(parse_layout(TEXT), stores, 19) == [content(entry) for entry in range(20)]


def test_a_damaged_entry_is_read_from_another_bookie() -> None:
    stores = {FIRST: Store(*range(20)), SECOND: Store(*range(20)), THIRD: Store()}
    stores[FIRST].entries[3] = stores[FIRST].entries[3][:-2] + b"xx"
    assert read_all(parse_layout(TEXT), stores, 19) == [content(entry) for entry in range(20)]


def test_a_bookie_that_is_gone_is_passed_over() -> None:
    stores = {FIRST: Store(), SECOND: Store(*range(20)), THIRD: Store()}
    stores[FIRST].fails = True
    assert read_all(parse_layout(TEXT), stores, 19) == [content(entry) for entry in range(20)]


def test_what_no_bookie_has_is_said() -> None:
    layout = parse_layout(TEXT)
    stores = {FIRST: Store(0, 1), SECOND: Store(0, 1), THIRD: Store()}
    reads = EntryReads(7, 400, 5)
    assert read(reads, layout, stores, 0, 19) == [content(0), content(1)]
    with pytest.raises(BookieError, match="17:2: no such entry"):
        read(reads, layout, stores, 2, 19)
    for store in stores.values():
        store.fails = True
    with pytest.raises(BookieError, match="it is gone"):
        read(reads, layout, stores, 2, 19)


def test_an_answer_to_another_request_is_not_taken() -> None:
    layout = striped(1, 1)
    other = answers_in(framed(BATCH_READ_ENTRY, 0, 7, b"\0" * 8 + Struct(">I").pack(len(stored(7))) + stored(7)))
    steps = EntryReads(7, 400, 5).read(layout, LEDGER, 0, 9)
    next(steps)
    ask = steps.send(other)
    assert ask.answers == 5, "it is asked entry by entry then"
    with pytest.raises(BookieError, match="answered 17:7, which was not asked for"):
        steps.send(answers_in(framed(READ_ENTRY, 0, 7, stored(7))))


def test_more_than_was_asked_for_is_not_told() -> None:
    data = b"\0" * 8 + b"".join(Struct(">I").pack(len(stored(entry))) + stored(entry) for entry in range(9))
    steps = EntryReads(7, 400, 5).read(striped(1, 1), LEDGER, 0, 3)
    next(steps)
    with pytest.raises(StopIteration) as done:
        steps.send(answers_in(framed(BATCH_READ_ENTRY, 0, 0, data)))
    assert done.value.value == [content(entry) for entry in range(4)]


@pytest.mark.parametrize("cut", [3, 9, 13, 40])
def test_a_batch_that_ends_early_is_not_taken(cut: int) -> None:
    whole = b"\0" * 8 + b"".join(Struct(">I").pack(len(stored(entry))) + stored(entry) for entry in range(2))
    steps = EntryReads(7, 400, 5).read(striped(1, 1), LEDGER, 0, 3)
    next(steps)
    assert steps.send(answers_in(framed(BATCH_READ_ENTRY, 0, 0, whole[:cut]))).answers == 4


@pytest.mark.parametrize("length", [0, 23, 17 * 1024 * 1024])
def test_what_is_no_answer_is_refused(length: int) -> None:
    with pytest.raises(BookieError, match=f"a frame of {length} bytes"):
        next_answer(memoryview(Struct(">I").pack(length) + b"HTTP"))


@given(st.integers(1, 5), st.integers(1, 5), st.sets(st.tuples(st.integers(0, 4), st.integers(0, 30))), st.booleans())
def test_every_entry_comes_that_any_of_its_bookies_has(
    ensemble: int, write_quorum: int, lost: set[tuple[int, int]], batches: bool
) -> None:
    write_quorum = min(write_quorum, ensemble)
    layout = striped(ensemble, write_quorum)
    stores = {Bookie(f"10.0.0.{number}", 3181): Store(batches=batches) for number in range(ensemble)}
    kept = set()
    for entry in range(31):
        for bookie in layout.bookies_of(entry):
            if (int(bookie.host[-1]), entry) not in lost:
                stores[bookie].entries[entry] = stored(entry)
                kept.add(entry)
    end = next((entry for entry in range(31) if entry not in kept), 31)
    reads = EntryReads(7, 400, 5)
    found: list[bytes] = []
    while len(found) < end:
        found += read(reads, layout, stores, len(found), 30)
    assert found == [content(entry) for entry in range(end)]
    if end < 31:
        with pytest.raises(BookieError, match="no such entry"):
            read(reads, layout, stores, end, 30)
