"""What goes out next for the first time, in order, and what an operator keeps from going out. Pure."""

from collections import deque
from collections.abc import Callable, Iterable

from bridge.dispatch.dispatcher import Offer, PositionKey
from tracker import decode_key


class ReadyQueue:
    """Entries taken from index and feed that wait for permits."""

    def __init__(self) -> None:
        self._ready: deque[Offer] = deque()
        self._held: dict[PositionKey, Offer | None] = {}  # not to go out for now, and what would have

    def __len__(self) -> int:
        """How many wait for permits."""
        return len(self._ready)

    def lacks(self, limit: int) -> int:
        """How many more may come, so that `limit` can go out."""
        return limit - len(self._ready)

    def lacks_new(self, limit: int) -> int:
        """The same of what is immediate alone."""
        return self.lacks(limit)

    @property
    def has_room(self) -> bool:
        """Whether more may wait: always, they are only as many as there are permits."""
        return True

    def add(self, offers: Iterable[Offer]) -> None:
        """Behind all others."""
        self._ready.extend(offers)

    def take(self, limit: int) -> list[Offer]:
        """The next ones, at most `limit`; they leave the queue."""
        ready = self._ready
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def put_first(self, offers: Iterable[Offer]) -> None:
        """They were taken, and did not go out: ahead of all others, in their order."""
        self._ready.extendleft(reversed(list(offers)))

    def take_out(self, is_early: Callable[[Offer], bool]) -> list[Offer]:
        """Those that must not go out yet; they leave the queue."""
        early = [offer for offer in self._ready if is_early(offer)]
        if early:
            out = {offer[:2] for offer in early}
            self._ready = deque(offer for offer in self._ready if offer[:2] not in out)
        return early

    def find(self, position: PositionKey) -> Offer | None:
        """The entry at a position, if it waits here."""
        return next((offer for offer in self._ready if offer[:2] == position), None)

    def positions(self) -> list[PositionKey]:
        """Of all that wait, those aside that an operator holds."""
        return [offer[:2] for offer in self._ready]

    def held(self) -> list[PositionKey]:
        """Of what would have gone out, and is held."""
        return [position for position, offer in self._held.items() if offer is not None]

    def oldest_due_ms(self) -> int | None:
        """When the delayed entry was due that waits longest."""
        return min((decode_key(offer.key)[0] for offer in self._ready if offer.key is not None), default=None)

    def clear(self) -> None:
        """Forget everything."""
        self._ready.clear()
        self._held.clear()

    def drop_all(self, is_over: Callable[[Offer], bool]) -> None:
        """Those that need not go out any more: here they are dropped when their turn comes, which is soon."""

    # -- what operators want

    def hold(self, position: PositionKey) -> None:
        """Keep an entry from going out, until `let_go` or `drop`."""
        self._held[position] = None

    def let_go(self, position: PositionKey) -> None:
        """Let it go out as if nothing had been."""
        offer = self._held.pop(position, None)
        if offer is not None:
            self._ready.appendleft(offer)

    def drop(self, position: PositionKey) -> None:
        """It is held no more, and does not go out."""
        self._held.pop(position, None)

    def without_held(self, offers: list[Offer]) -> list[Offer]:
        """Those that nobody holds; the others are kept until they are let go."""
        if not self._held:
            return offers
        for offer in offers:
            if offer[:2] in self._held:
                self._held[offer.ledger, offer.entry] = offer
        return [offer for offer in offers if offer[:2] not in self._held]
