"""What a killed broker still holds in its metadata: locks and registrations that end with the session.

A cluster's metadata service lets a session expire; the file of a standalone broker knows of no time, and says that its
bookie and its broker are still there. A broker that starts then takes these locks over from itself, and when its own
word of that comes late, it takes them over again and again (seen with 4.0.8, after two of eight kills): its bookie
comes and goes a hundred times a second, and no ledger can be made ("Not enough non-faulty bookies"), for seconds or
for ever.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, BlockBasedOptions, Options, Rdict

_HEADER = 41
"""Bytes before a node's value: their number, the format's version, the node's version, owner, two times, and a flag."""
_EPHEMERAL = 40
_READABLE = 5
"""Format of RocksDB's files that the RocksDB of Pulsar 4.0 reads."""


def forget_sessions(metadata: Path) -> int:
    """Remove what belongs to the sessions of a broker that has ended; returns how many nodes that were.

    `metadata`: the folder of a standalone broker's metadata; it may not be there. Raises whatever RocksDB says of it.
    """
    if not (metadata / "CURRENT").exists():
        return 0
    with _opened(metadata, AccessType.read_only()) as database:
        ended = [node for node, value in database.items() if is_ephemeral(bytes(value))]
    if ended:  # otherwise nothing is written: it ended in order
        with _opened(metadata, AccessType.read_write()) as database:
            for node in ended:
                del database[node]
            database.flush_wal(sync=True)
    return len(ended)


def is_ephemeral(value: bytes) -> bool:
    """Whether a node, as the broker stores it, ends with the session of whoever made it."""
    return int.from_bytes(value[:4], "big") == _HEADER and len(value) >= _HEADER and value[_EPHEMERAL] == 1


@contextlib.contextmanager
def _opened(metadata: Path, access: AccessType) -> Iterator[Rdict]:
    options = Options(raw_mode=True)
    tables = BlockBasedOptions()
    tables.set_format_version(_READABLE)
    options.set_block_based_table_factory(tables)
    database = Rdict(str(metadata), options, access_type=access)
    try:
        yield database
    finally:
        database.close()
