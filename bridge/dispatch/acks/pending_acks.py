"""What was acked in transactions that have not ended: it does not go out until they have. Pure.

As on a broker: an entry acked in a transaction is nobody's, not asked for again, not given to others. A commit acks it,
an abort has it delivered again, its redelivery count one higher
(source: `PendingAckHandleImpl`, `PersistentSubscription.endTxn`).

Whether an ack holds is for the broker to say, for another transaction may have the entry. And a transaction may end
unseen: by its time-out, or through another connection than those that lead through this bridge. So what nobody has
spoken of for a while is asked about (`bridge.topics.transactions`). Of what is pending since before this bridge
dispatched the subscription, nothing is known: as long as there are such transactions, whatever is as old is a suspect,
and asked about before it goes out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from bridge.dispatch.dispatcher import (
    ACK_SET_WORDS_MAX,
    Again,
    Dispatcher,
    Offer,
    PositionKey,
    Redelivery,
    still_unacked,
)
from bridge.limits import DispatchLimits
from bridge.protocol.pulsar_pb2 import CommandAck
from tracker import Position

C = TypeVar("C")

AckSetWords = tuple[int, ...]
"""Which messages of a batch are still unacked, as in `still_unacked`; empty: none of the entry is."""
PartialAck = tuple[PositionKey, AckSetWords]
Contains = Callable[[int, int], bool]


class Transaction(NamedTuple):
    """The id of a transaction; its upper half names the coordinator."""

    most: int
    least: int

    @classmethod
    def of(cls, ack: CommandAck) -> "Transaction | None":
        """The one that an ack belongs to."""
        if not (ack.HasField("txnid_most_bits") and ack.HasField("txnid_least_bits")):
            return None
        return cls(ack.txnid_most_bits, ack.txnid_least_bits)

    @classmethod
    def unknown(cls, position: PositionKey) -> "Transaction":
        """Stands for the one, whichever it is, that an entry was acked in; no coordinator gives such ids."""
        return cls(-1 - position[0], position[1])


def parts_of(ack: CommandAck) -> list[PartialAck]:
    """What is acked by it."""
    return [((each.ledgerId, each.entryId), tuple(each.ack_set)) for each in ack.message_id]


class Committed(NamedTuple):
    """What is acked for good: whole entries, and messages of batches."""

    whole: list[PositionKey]
    partly: list[PartialAck]


@dataclass(slots=True)
class _Mark:
    """An entry that is acked in transactions, of each by these ack sets, and whether the broker has agreed to them.

    `parked`: as it is to be delivered again when they do not count; None while it was not about to go out.
    """

    parts: dict[Transaction, dict[AckSetWords, bool]] = field(default_factory=dict)
    parked: Redelivery | None = None

    def masked(self, ack_set: AckSetWords, message_count: int) -> AckSetWords:
        """What is left of the entry beside what transactions have."""
        for part in self.parts.values():
            for words in part:
                ack_set = still_unacked(ack_set, words or (0,), message_count)
        return ack_set

    def covers(self, ack_set: AckSetWords, message_count: int) -> bool:
        """Whether nothing is left."""
        left = self.masked(ack_set, message_count)
        return any(() in part for part in self.parts.values()) or (bool(left) and not any(left))


@dataclass(slots=True)
class _Open:
    """A transaction that has not ended as far as is known; `heard_s`: when somebody spoke of it last."""

    heard_s: float
    positions: dict[PositionKey, None] = field(default_factory=dict)
    ended: bool = False


class PendingAcks(Generic[C]):
    """Of one subscription; `dispatcher` is the subscription's. Times are of a clock that is never set, in seconds."""

    def __init__(self, dispatcher: Dispatcher[C], limits: DispatchLimits) -> None:
        """Nothing is pending."""
        self._dispatcher = dispatcher
        self._limits = limits
        self._marks: dict[PositionKey, _Mark] = {}
        self._noted = 0  # ack sets in all parts of all marks
        self._open: dict[Transaction, _Open] = {}
        self._unknown: dict[Transaction, None] = {}  # of these
        self._counts: dict[PositionKey, int] = {}  # aborts of what was never handed out
        self._suspect_until: Position | None = None
        self._on_suspects: Callable[[], None] | None = None
        self._suspects: dict[PositionKey, Redelivery] = {}
        self._cleared: set[PositionKey] = set()

    def change(self, dispatcher: Dispatcher[C]) -> None:
        """The subscription is dispatched by another one from now on, as one of another type; nothing is parked."""
        self._dispatcher = dispatcher

    def __bool__(self) -> bool:
        """Whether anything is pending, or may be."""
        return bool(self._marks or self._counts or self._suspect_until is not None)

    def __contains__(self, position: object) -> bool:
        """Whether an entry is acked in a transaction, or part of it."""
        return position in self._marks

    @property
    def positions(self) -> list[PositionKey]:
        """Entries acked in transactions, or parts of them."""
        return list(self._marks)

    @property
    def parked(self) -> list[PositionKey]:
        """Entries that are kept here until their transactions have ended, or the broker has said that none has them."""
        return [*(position for position, mark in self._marks.items() if mark.parked is not None), *self._suspects]

    @property
    def open_transactions(self) -> int:
        """How many are known."""
        return len(self._open)

    # -- acks

    def note(self, transaction: Transaction, acks: Iterable[PartialAck], now_s: float) -> None:
        """They are on their way to the broker. What is too much is not noted, and may be delivered again.

        Too much is what no client needs, who acks what it was handed: in all, of one entry, or of one batch.
        """
        opened = self._open.setdefault(transaction, _Open(now_s))
        opened.heard_s = now_s
        for position, ack_set in acks:
            if self._noted >= self._limits.max_unacked_per_subscription or len(ack_set) > ACK_SET_WORDS_MAX:
                continue
            part = self._marks.setdefault(position, _Mark()).parts.setdefault(transaction, {})
            self._noted += ack_set not in part
            part.setdefault(ack_set, False)
            opened.positions[position] = None
        if not opened.positions:
            del self._open[transaction]

    def answered(self, transaction: Transaction, acks: Iterable[PartialAck], agreed: bool) -> None:
        """The broker agreed to these, or refused all of them: then they count as if they had not been."""
        for position, ack_set in acks:
            part = self._part(transaction, position)
            if part is None or ack_set not in part:
                continue
            if agreed:
                part[ack_set] = True
                self._take(position)
            elif not part[ack_set]:  # the same ack, given twice, is refused the second time
                del part[ack_set]
                self._noted -= 1
                if not part:
                    self._drop_part(transaction, position)
                self._unpark(position, again=None, more=0)

    def ack_partly(self, position: PositionKey, ack_set: Sequence[int]) -> AckSetWords | None:
        """As `Dispatcher.ack_partly`, of an entry that waits here."""
        mark = self._marks.get(position)
        if mark is None or mark.parked is None:
            return None
        mark.parked = mark.parked.acked_partly(ack_set)
        return mark.parked.ack_set

    def discard(self, position: PositionKey) -> None:
        """It is acked for good, in a transaction or without."""
        mark = self._marks.pop(position, None)
        self._suspects.pop(position, None)
        self._counts.pop(position, None)
        for transaction, part in () if mark is None else mark.parts.items():
            self._noted -= len(part)
            self._leave(transaction, position)

    def advance(self, position: Position) -> None:
        """Everything up to there is."""
        for each in [each for known in (self._marks, self._suspects, self._counts) for each in known]:
            if each <= position:
                self.discard(each)

    # -- ends

    def ended(self, transaction: Transaction, committed: bool, *, trusted: bool) -> Committed:
        """The coordinator has ended it; returns what is acked thereby.

        Of acks that the broker did not agree to before (or all, unless `trusted`), it is asked what became of them.
        """
        done = Committed([], [])
        opened = self._open.get(transaction)
        if opened is None:
            for each in self._unknown:  # it may be any of those
                self._open[each].ended = True
        elif not trusted:
            opened.ended = True
        elif committed:
            for position in list(opened.positions):
                self._commit(transaction, position, done)
            opened.ended = True
        else:
            self._abort(transaction, list(opened.positions))
        return done

    def _commit(self, transaction: Transaction, position: PositionKey, done: Committed) -> None:
        part = self._marks[position].parts[transaction]
        if not all(part.values()):
            return
        if () in part:
            done.whole.append(position)
            self.discard(position)
            return
        self._drop_part(transaction, position)
        done.partly.extend((position, ack_set) for ack_set in part)
        self._unpark(position, again=None, more=0, anyway=True)

    def _abort(self, transaction: Transaction, positions: Sequence[PositionKey]) -> None:
        """Have them delivered again, as a broker does at once, to whomever; counted also if nobody had them."""
        for position in positions:
            self._drop_part(transaction, position)
            taken = self._dispatcher.take(position)
            if taken is not None:
                self._put_back(position, taken, Again.requested, 1)
            elif not self._unpark(position, Again.requested, more=1, anyway=True):
                self._counts[position] = self._counts.get(position, 0) + 1
        while len(self._counts) > self._limits.max_unacked_per_subscription:
            del self._counts[next(iter(self._counts))]

    # -- questions

    @property
    def is_suspicious(self) -> bool:
        """Whether there may be transactions from before."""
        return self._suspect_until is not None

    def suspect(self, until: Position | None, on_suspects: Callable[[], None] | None = None) -> None:
        """Up to there entries may be acked in transactions that nobody knows here; None: none are.

        `on_suspects`: there are some to be asked about.
        """
        self._suspect_until, self._on_suspects = until, on_suspects
        self._cleared.clear()

    def to_ask(self, now_s: float) -> list[tuple[Transaction, PositionKey]]:
        """Transactions to be asked about, each with one of its entries."""
        after_s = self._limits.transaction_ask_after_s
        due = (each for each in self._open.items() if each[1].ended or now_s - each[1].heard_s >= after_s)
        most = self._limits.transaction_ask_most
        return [(transaction, next(iter(opened.positions))) for transaction, opened in islice(due, most)]

    def suspects(self) -> list[PositionKey]:
        """Entries to be asked about before they go out."""
        return list(islice(self._suspects, self._limits.transaction_ask_most))

    def is_pending(self, transaction: Transaction, position: PositionKey, now_s: float) -> None:
        """The broker says so."""
        opened = self._open.get(transaction)
        if opened is None or position not in opened.positions:
            return
        opened.heard_s, opened.ended = now_s, False
        part = self._marks[position].parts[transaction]
        part.update(dict.fromkeys(part, True))
        del opened.positions[position]
        opened.positions[position] = None  # another one is asked about next
        self._take(position)

    def is_over(
        self, transaction: Transaction, position: PositionKey, contains: Contains, now_s: float
    ) -> list[PositionKey]:
        """An entry of it is not pending any more; `contains`: of the cursor now. Returns what is acked.

        If the entry is acked by itself, others may still be pending. What is not acked comes again: also parts of
        batches, of which a cursor does not tell.
        """
        opened = self._open.get(transaction)
        if opened is None:
            return []
        acked = [each for each in opened.positions if contains(*each)]
        if not contains(*position):
            self._abort(transaction, [each for each in opened.positions if not contains(*each)])
        else:
            opened.heard_s, opened.ended = now_s, False
        for each in acked:
            self.discard(each)
        return acked

    def suspect_is_pending(self, position: PositionKey, now_s: float) -> None:
        """The broker says so, but not in which transaction."""
        parked = self._suspects.pop(position, None)
        self._cleared.add(position)  # from now on it is a mark that keeps it here
        if parked is not None:
            transaction = Transaction.unknown(position)
            self.note(transaction, [(position, ())], now_s)
            part = self._part(transaction, position)
            if part is not None:
                self._unknown[transaction] = None
                part[()] = True
                self._marks[position].parked = parked
            else:
                self._dispatcher.put_back(position, parked)

    def suspect_is_cleared(self, position: PositionKey) -> None:
        """It may go out."""
        parked = self._suspects.pop(position, None)
        self._cleared.add(position)
        if parked is not None:
            self._dispatcher.put_back(position, parked)
        if len(self._cleared) > self._limits.transaction_suspects_most:
            self.clear_suspects()

    def clear_suspects(self) -> None:
        """There are no transactions from before any more, or too much to ask about: all may go out."""
        self.suspect(None)
        for position, parked in self._suspects.items():
            self._dispatcher.put_back(position, parked)
        self._suspects.clear()

    # -- deliveries

    def sift(self, offers: list[Offer]) -> list[Offer]:
        """Those that may go out; the others wait here."""
        if not self:
            return offers
        found = []
        for offer in offers:
            position = offer[:2]
            mark = self._marks.get(position)
            if mark is not None and mark.covers(offer.ack_set, offer.message_count):
                mark.parked = Redelivery.of(offer)
            elif mark is None and self._is_suspect(position):
                self._suspects[position] = Redelivery.of(offer)
            else:
                more = self._counts.pop(position, 0)
                found.append(offer._replace(redelivery_count=offer.redelivery_count + more) if more else offer)
        if self._suspects and self._on_suspects is not None:
            self._on_suspects()
        return found

    def _is_suspect(self, position: PositionKey) -> bool:
        until = self._suspect_until
        return until is not None and position <= until and position not in self._cleared

    def shown(self, offer: Offer) -> AckSetWords:
        """What the client is told to be unacked: what transactions have is not for it."""
        mark = self._marks.get(offer[:2])
        return offer.ack_set if mark is None else mark.masked(offer.ack_set, offer.message_count)

    def forget_deliveries(self) -> None:
        """All entries come anew from where they came from. What is pending is so nonetheless."""
        self._suspects.clear()
        for mark in self._marks.values():
            mark.parked = None

    def distrust(self) -> None:
        """The cursor was set anew: a commit says nothing of what it acks now, until the broker is asked."""
        for mark in self._marks.values():
            for part in mark.parts.values():
                part.update(dict.fromkeys(part, False))

    def clear(self) -> None:
        """Forget everything: dispatch ends here."""
        self._marks.clear()
        self._noted = 0
        self._open.clear()
        self._unknown.clear()
        self._counts.clear()
        self._suspects.clear()
        self.suspect(None)

    # -- inside

    def _part(self, transaction: Transaction, position: PositionKey) -> dict[AckSetWords, bool] | None:
        mark = self._marks.get(position)
        return None if mark is None else mark.parts.get(transaction)

    def _take(self, position: PositionKey) -> None:
        """It is nobody's any more, if nothing of it is left."""
        mark, unacked = self._marks[position], self._dispatcher.unacked.get(position)
        if unacked is not None and mark.covers(unacked.ack_set, unacked.message_count):
            mark.parked = self._dispatcher.take(position)

    def _drop_part(self, transaction: Transaction, position: PositionKey) -> None:
        """The mark stays as long as something is parked in it."""
        mark = self._marks[position]
        self._noted -= len(mark.parts.pop(transaction, ()))
        if not mark.parts and mark.parked is None:
            del self._marks[position]
        self._leave(transaction, position)

    def _leave(self, transaction: Transaction, position: PositionKey) -> None:
        opened = self._open.get(transaction)
        if opened is not None:
            opened.positions.pop(position, None)
            if not opened.positions:
                del self._open[transaction]
                self._unknown.pop(transaction, None)

    def _unpark(self, position: PositionKey, again: Again | None, more: int, *, anyway: bool = False) -> bool:
        """Have it go out if it waits here, and nothing keeps it (or `anyway`: it may come back)."""
        mark = self._marks.get(position)
        if mark is None or mark.parked is None:
            return False
        parked = mark.parked
        if anyway or not mark.covers(parked.ack_set, parked.message_count):
            mark.parked = None
            if not mark.parts:
                del self._marks[position]
            self._put_back(position, parked, again, more)
        return True

    def _put_back(self, position: PositionKey, redelivery: Redelivery, again: Again | None, more: int) -> None:
        count = redelivery.redelivery_count + more
        self._dispatcher.put_back(
            position, redelivery._replace(redelivery_count=count, again=again or redelivery.again)
        )

    def check(self) -> None:
        """Derive the count of what is noted anew (tests)."""
        assert self._noted == sum(len(part) for mark in self._marks.values() for part in mark.parts.values())
        pairs = {(each, position) for position, mark in self._marks.items() for each in mark.parts}
        assert pairs == {(each, position) for each, opened in self._open.items() for position in opened.positions}
