"""Every number of the Spark jobs in one place, with its unit and its reason."""

from typing import Final

SPLIT_ENTRIES: Final = 25_600
"""Entries of one range: a second or two of reading, so that little is read twice when a task fails. A multiple of 512,
the positions one record of the index covers: no two files then speak of the same ones."""
RANGES_PER_TASK: Final = 8
"""Ranges one task reads at the same time, each on a connection of its own: the broker serves one reader no faster than
its dispatch loop turns, four together three times as fast, six four times."""
READ_PERMITS: Final = 2_000
"""Messages a broker may send ahead."""
RECEIVE_BYTES: Final = 256 * 1024
"""Taken from a connection at a time."""
QUEUE_BATCHES: Final = 4
"""Batches of one range that wait for the task to take them: with those of the other ranges, what a task holds."""
BATCH_ENTRIES: Final = 2_000
"""Rows of one Arrow batch …"""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""… and the size of their entries at which it ends sooner."""
CONNECT_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 30.0
BOOKIE_BATCH_BYTES: Final = 1024 * 1024
"""Of the entries that a bookie is asked for at a time: a few milliseconds of its work, and of what a task holds."""
BOOKIE_BATCH_ENTRIES: Final = 2_000
"""… and how many these may be."""
BOOKIE_READS: Final = 256
"""Single entries that bookies are asked for at a time, where they know no batches or have only some entries each."""
BOOKIE_CONNECT_TIMEOUT_S: Final = 3.0
BOOKIE_TIMEOUT_S: Final = 10.0
"""A bookie that is silent for so long is passed over."""
BOOKIE_REST_S: Final = 20.0
"""One that cannot be reached is not tried again by the same process for so long."""
STALL_S: Final = 5.0
"""A reader that is given nothing for so long is looked into, and replaced by another one."""
GIVE_UP_S: Final = 120.0
"""Without any progress for so long, a range fails; Spark then tries the task again."""
RETRY_S: Final = 0.5
"""Pause before a connection or a reader is opened again."""

assert SPLIT_ENTRIES % 512 == 0

BUCKET_BYTES: Final = 256 * 1024 * 1024
"""Key and value bytes that one task sorts and writes."""
BUCKET_BYTES_MIN: Final = 1024 * 1024
"""Of fewer no bucket of its own is made so that all processors have something to write."""
SPREAD_POINTS: Final = 500
"""Points by which the due times of a range are remembered to cut buckets."""
NICENESS: Final = 10
"""Of a job that a bridge started: deliveries, and the broker, come first on a machine that is short of processors."""
PROGRESS_S: Final = 1.0
"""How often progress is told."""
