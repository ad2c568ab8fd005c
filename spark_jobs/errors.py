"""What can go wrong for good: Spark shows the message of the task that failed."""


class LedgerReadError(Exception):
    """Ledgers cannot be read: the message names the topic and the reason."""


class NotYet(LedgerReadError):
    """What failed may work a moment later: a topic that moves, a broker that starts."""
