"""What can go wrong with one bookie; another one may have what is wanted."""


class BookieError(Exception):
    """It does not give what was asked for; the message says why."""


class DamagedEntry(BookieError):
    """What it gave is not what was written."""
