"""Where entries of a ledger are read."""

from enum import StrEnum


class ReadFrom(StrEnum):
    """auto: from the bookies as far as they can be reached and give them, the rest through the broker."""

    auto = "auto"
    bookies = "bookies"
    broker = "broker"
