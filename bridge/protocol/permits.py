"""How many more messages a broker may send to one consumer, counted the way the broker counts."""

MAX_GRANT = (1 << 31) - 1
"""Of one FLOW: a broker takes a larger number for a negative one."""


class Permits:
    """A signed 32-bit number that wraps around.

    A broker sends whole entries while its count is above zero, and takes off what their metadata calls the size of the
    batch: a batch of 1,000 leaves it deep below zero, and a producer may write anything there. Whoever tops up to what
    it wants, rather than adding what it wants, is never left with a count that stays at or below zero.
    """

    def __init__(self) -> None:
        """A consumer that has granted nothing yet."""
        self.count = 0

    def use(self, batch_size: int) -> None:
        """An entry came; `batch_size` as its producer wrote it, or the sum of several."""
        self.count = (self.count - batch_size + (1 << 31)) % (1 << 32) - (1 << 31)

    def top_up(self, wanted: int) -> list[int]:
        """Bring the count to `wanted`, at least 0; returns what to grant in FLOW commands, nothing if it is there."""
        missing = wanted - self.count
        if missing <= 0:
            return []
        self.count = wanted
        full, rest = divmod(missing, MAX_GRANT)
        return [MAX_GRANT] * full + [rest] * (rest > 0)
