"""What of the tracker may be larger or smaller, each with its unit and its reason; what is fixed stands where it holds.

A store, an index and the files of a bulk load are each given their own.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Of a data directory."""

    block_cache_bytes: int = 32 * 1024 * 1024
    """Block cache shared by all topics of a store."""
    write_buffer_bytes: int = 16 * 1024 * 1024
    """Write buffer of one topic before it becomes a file."""
    write_buffers: int = 4
    """Write buffers of one topic, those being written out included: with fewer, a burst waits for the disk."""
    fresh_files: int = 8
    """Written-out buffers of one topic before they are merged with the rest: fewer make writing dearer, more
    reading."""
    db_write_buffer_bytes: int = 64 * 1024 * 1024
    """Write buffers of all topics together."""
    max_wal_bytes: int = 64 * 1024 * 1024
    """Size of the write-ahead log at which the topic holding the oldest part is flushed: what an open has to read."""
    max_open_files: int = 512
    """File handles RocksDB may hold."""
    info_log_bytes: int = 1024 * 1024
    """Size of one of RocksDB's own text logs."""
    info_log_files: int = 3
    """How many of RocksDB's own text logs are kept."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _fits(self.write_buffer_bytes <= self.db_write_buffer_bytes, "write_buffer_bytes <= db_write_buffer_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLimits:
    """Of the index of one topic partition."""

    horizon_partitions: int = 2
    """The near term reaches this many partition widths past now."""
    near_term_fill: float = 0.75
    """Reading ahead stops at this share of the budget: the rest is headroom for entries that arrive due soon, so that
    an arriving entry does not push one out that the next read would bring straight back."""
    window_block_entries: int = 512
    """Entries that may wait in a block of the window before they are sorted in; a block of more than twice as many is
    split. Sorting one, the longest thing a call does, then stays below a millisecond."""
    window_block_bytes: int = 512 * 1024
    """A block whose stored values are longer than twice this is split: sorting copies them."""
    window_tail_bytes: int = 128 * 1024
    """Bytes of stored values that may wait in a block before they are sorted in: the buffer they wait in has up to an
    eighth of room to grow, which must stay small beside the block."""
    window_read_entries: int = 128
    """Entries built at a time for a reader, who may want no more than the first."""
    release_factor: int = 4
    """Reading n entries ahead lets go of at most this many times n passed ones, so that a call after a burst is
    short."""
    scan_factor: int = 4
    """A call that may return n entries looks at no more than this many times n in memory, however many are acked."""
    scan_keys: int = 3_000
    """Keys on disk that a call looks at, however many of them are acked: about 2 ms."""
    first_waiting_looks: int = 500
    """Keys looked at for the first one that waits: half a millisecond."""
    late_keys_max: int = 100_000
    """Keys a view remembers behind its cursor; beyond that the cursor moves back and reads them again."""
    settle_blocks: int = 64
    """Blocks of positions a view looks up in one go to count acks: about 2 ms."""
    views_slice: int = 20
    """Views without acks to be counted that are written in one go."""
    journal_entries: int = 100_000
    """Entries written until partition counters are stored again: so many, and those of one round, are counted at
    open."""
    journal_writes: int = 20_000
    """Writes until partition counters are stored again."""
    journal_pages: int = 32
    """Pages of partition counters stored per write during a round."""
    expedited_max: int = 10_000
    """Entries of a subscription that are to be delivered without regard to their due time and are not acked yet."""
    move_entries: int = 500
    """Entries moved out of a damaged column family in one write."""
    reclaim_bytes: int = 32 * 1024 * 1024
    """Dropped key and value bytes for which it is worth having RocksDB rewrite the files they are in."""
    drop_examined_max: int = 1_000
    """Time partitions looked at by one call that drops the consumed ones."""
    bulk_step_partitions: int = 512
    """Time partitions of a group of a bulk load that are counted in at a time: 1 ms."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _fits(0 < self.near_term_fill <= 1, "0 < near_term_fill <= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFileLimits:
    """Of the files of a bulk load, as they are written."""

    bulk_file_bytes: int = 256 * 1024 * 1024
    """Key and value bytes after which a file ends with its time partition, and its group with it. Taking in a file
    holds the thread for 2 to 4 ms, whatever its size: few large ones are better."""
    bulk_file_max_bytes: int = 512 * 1024 * 1024
    """Key and value bytes of the largest file: a time partition that is larger has several."""
    bulk_write_entries: int = 1_000
    """Entries written into a file at a time; only then is its size looked at."""
    bulk_group_partitions: int = 2_048
    """Time partitions of one group: counting them in takes less than taking in a file, 3 ms."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _fits(self.bulk_file_bytes <= self.bulk_file_max_bytes, "bulk_file_bytes <= bulk_file_max_bytes")


def _fits(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"limits that do not fit each other: not {what}")
