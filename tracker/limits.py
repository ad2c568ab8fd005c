"""Every number of the tracker in one place, with its unit and its reason."""

PARTITION_WIDTH_MS = 300_000
"""Due time covered by one time partition."""

HORIZON_PARTITIONS = 2
"""The near term reaches this many partition widths past now."""

NEAR_TERM_BYTES = 32 * 1024 * 1024
"""Memory for the near-term window of one topic partition."""

NEAR_TERM_FILL = 0.75
"""Reading ahead stops at this share of the budget: the rest is headroom for entries that arrive due soon, so that
an arriving entry does not push one out that the next read would bring straight back."""

WINDOW_ENTRY_OVERHEAD = 40
"""Bytes a window entry costs beside its stored value: key and offset take 28, the rest is the growing room of the
buffers that take entries in and a share of the block's objects. Values beyond a kilobyte add up to 1 % of their
length."""

WINDOW_BLOCK_ENTRIES = 512
"""Entries that may wait in a block of the window before they are sorted in; a block of more than twice as many is
split. Sorting one, the longest thing a call does, then stays below a millisecond."""

WINDOW_BLOCK_BYTES = 512 * 1024
"""A block whose stored values are longer than twice this is split: sorting copies them."""

WINDOW_TAIL_BYTES = 128 * 1024
"""Bytes of stored values that may wait in a block before they are sorted in: the buffer they wait in has up to an
eighth of room to grow, which must stay small beside the block."""

WINDOW_READ_ENTRIES = 128
"""Entries built at a time for a reader, who may want no more than the first."""

RELEASE_FACTOR = 4
"""Reading n entries ahead lets go of at most this many times n passed ones, so that a call after a burst is short."""

SCAN_FACTOR = 4
"""A call that may return n entries looks at no more than this many times n, however many of them are acked."""

FIRST_WAITING_LOOKS = 500
"""Keys looked at for the first one that waits: half a millisecond."""

LATE_KEYS_MAX = 100_000
"""Keys a view remembers behind its cursor; beyond that the cursor moves back and reads them again."""

DUE_BYTES = 1024 * 1024
"""What one call hands out at most, by default; a single larger entry is handed out all the same."""

SETTLE_BLOCKS = 64
"""Blocks of positions a view looks up in one go to count acks: about 2 ms."""

JOURNAL_ENTRIES = 100_000
"""Entries written until partition counters are stored again: so many, and those of one round, are counted at open."""

JOURNAL_PAGES = 32
"""Pages of partition counters stored per write during a round."""

BULK_FILE_BYTES = 256 * 1024 * 1024
"""Key and value bytes after which a file of a bulk load ends with its time partition, and its group with it. Taking in
a file holds the thread for 2 to 4 ms, whatever its size: few large ones are better."""

BULK_FILE_MAX_BYTES = 2 * BULK_FILE_BYTES
"""Key and value bytes of the largest file: a time partition that is larger has several."""

BULK_WRITE_ENTRIES = 1_000
"""Entries written into a file at a time; only then is its size looked at."""

BULK_GROUP_PARTITIONS = 2_048
"""Time partitions of one group of a bulk load: counting them in takes less than taking in a file, 3 ms."""

VERIFY_BYTES = 64 * 1024
"""Read of a file before the thread that verifies lets others run: 0.05 ms, for which one that delivers may have to wait
on a busy machine."""

VERIFY_AHEAD_BYTES = 4 * 1024 * 1024
"""Read from the disk ahead of that, at most twice as much."""

BULK_STEP_PARTITIONS = 512
"""Time partitions of a group that are counted in at a time: 1 ms."""

BULK_SHORT_S = 0.002
"""A step of a bulk load that holds the thread no longer makes deliveries late by no more than they are anyway."""

BULK_SHARE = 1 / 250
"""Share of the time that longer steps of a bulk load hold the thread that delivers: what comes due then is late by so
much, which at less than a hundredth stays outside of the P99."""

BULK_MAX_REST_S = 1.0
"""However long a step took: one that waited seconds for a disk is rare, and must not stop the load for minutes."""

JOURNAL_WRITES = 20_000
"""Writes until partition counters are stored again."""

AUDIT_KEYS = 1_000
"""Keys read in one go for an audit: 1 ms."""

AUDIT_LOOKUPS = 100
"""Keys looked up in one go for an audit: 1 ms."""

AUDIT_HELD_MAX = 10_000
"""Time partitions that have passed, or soon will, and are compared one by one: the oldest; later ones are left out."""

EXPEDITED_MAX = 10_000
"""Entries of a subscription that are to be delivered without regard to their due time and are not acked yet."""

MOVE_ENTRIES = 500
"""Entries moved out of a damaged column family in one write."""

RECLAIM_BYTES = 32 * 1024 * 1024
"""Dropped key and value bytes for which it is worth having RocksDB rewrite the files they are in."""

DROP_EXAMINED_MAX = 1_000
"""Time partitions looked at by one call that drops the consumed ones."""

BLOCK_CACHE_BYTES = 32 * 1024 * 1024
"""Block cache shared by all topics of a store."""

WRITE_BUFFER_BYTES = 16 * 1024 * 1024
"""Write buffer of one topic before it becomes a file."""

FRESH_FILES = 8
"""Written-out buffers of one topic before they are merged with the rest: fewer make writing dearer, more reading."""

WRITE_BUFFERS = 4
"""Write buffers of one topic, those being written out included: with fewer, a burst waits for the disk."""

DB_WRITE_BUFFER_BYTES = 64 * 1024 * 1024
"""Write buffers of all topics together."""

MAX_WAL_BYTES = 64 * 1024 * 1024
"""Size of the write-ahead log at which the topic holding the oldest part is flushed: what an open has to read."""

PROBE_BYTES = 8 * 1024 * 1024
"""Written to see whether a disk that failed takes data again: more than one batch of entries, quick to sync."""

TABLE_FORMAT = 6
"""RocksDB's version of table files, readable since 8.5: a block that was put in the wrong place is noticed."""

BLOCK_BYTES = 16 * 1024
"""Entries are compressed in blocks of this size: smaller ones compress worse, larger ones make look-ups slower."""

MAX_OPEN_FILES = 512
"""File handles RocksDB may hold."""

INFO_LOG_BYTES = 1024 * 1024
"""Size of one of RocksDB's own text logs."""

INFO_LOG_FILES = 3
"""How many of RocksDB's own text logs are kept."""
