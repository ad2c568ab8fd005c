"""Every limit of the bridge in one place, in bytes, milliseconds or counts, and checked against each other.

Where Pulsar has the same limit, its name and default are given.
"""

from typing import Final

# Connections
HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A client that connects and does not say CONNECT by then is closed."""
MAX_CONNECT_COMMAND_BYTES: Final = 64 * 1024
"""Before CONNECTED a client gets no room for payloads."""
CLIENT_WRITE_HIGH_WATER: Final = 4 * 1024 * 1024
CLIENT_WRITE_LOW_WATER: Final = 1024 * 1024
SERVER_WRITE_HIGH_WATER: Final = 4 * 1024 * 1024
SERVER_WRITE_LOW_WATER: Final = 1024 * 1024
CLIENT_READ_BYTES: Final = 32 * 1024
"""Read from a client in one turn of the event loop: about 1,500 acks."""
SERVER_READ_BYTES: Final = 16 * 1024
"""Read by harvester and feeds in one turn: about 200 small entries, stored within 2 ms."""
KEEP_ALIVE_INTERVAL_S: Final = 30.0
"""Pulsar's `keepAliveIntervalSeconds`: a peer silent for two of these is gone."""
REQUEST_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0
"""A closing connection whose peer does not read is cut after this."""
MAX_CLIENT_CONNECTIONS: Final = 10_000
MAX_BROKERS_PER_SESSION: Final = 64
MAX_LOOKUP_REDIRECTS: Final = 20
"""As the official clients' `maxLookupRedirects`."""
MAX_PENDING_REQUESTS: Final = 50_000
"""Requests of one client that wait for an answer; Pulsar's clients hold `concurrentLookupRequest` = 5,000."""
GATEWAY_REQUEST_ID_BASE: Final = 1 << 62
"""Requests the gateway makes on a client's upstream connection count from here, clients count from 0."""

# Dispatch
ROUND_ROBIN_BATCH: Final = 20
"""Pulsar's `dispatcherMaxRoundRobinBatchSize`: messages to one consumer before the next one's turn."""
MAX_UNACKED_PER_CONSUMER: Final = 50_000
"""Pulsar's `maxUnackedMessagesPerConsumer`."""
MAX_UNACKED_PER_SUBSCRIPTION: Final = 200_000
"""Pulsar's `maxUnackedMessagesPerSubscription`."""
MAX_CHUNKED_MESSAGES: Final = 10_000
"""Chunked messages under way whose consumer is remembered, per subscription; the oldest is forgotten first."""
DISPATCH_SLICE: Final = 300
"""Entries handled before the event loop gets its turn: about 1.5 ms."""
DISPATCH_SLICE_BYTES: Final = 1024 * 1024
"""A slice ends earlier when its entries are large; one entry always goes."""
PREFETCH_SLICE: Final = 1_000
"""Entries read from disk into the near-term window at a time."""
PARTITION_SLICE: Final = 100
"""Time partitions put into an answer before the event loop gets its turn."""
MAX_TIMER_MS: Final = 1_000
"""The wall clock is looked at no later than this: a step forward is noticed in time."""

# Harvest and feed
HARVEST_PERMITS: Final = 4_000
READ_STALL_S: Final = 4.0
"""A reader that has permits, knows of more and gets nothing for so long is opened anew. A broker's count of permits can
go wrong: a batch whose metadata claims 2^31 messages makes it overflow."""
HARVEST_SLICE: Final = 500
"""Entries in one write batch: RocksDB holds the interpreter for less than a millisecond."""
TAIL_BUFFER_BYTES: Final = 16 * 1024 * 1024
"""Immediate entries just read, kept per topic partition for feeds at the tail."""
TAIL_BUFFER_ENTRIES: Final = 50_000
FEED_PERMITS: Final = 1_000
FEED_QUEUE_ENTRIES: Final = 2_000
FEED_QUEUE_BYTES: Final = 8 * 1024 * 1024
FEED_FIRST_GUESS_BYTES: Final = 1024 * 1024
"""What a message is taken to weigh before one was seen: permits are given for what the queue can hold."""
ACK_SETTLE_S: Final = 1.0
"""Acks of a consumer that left are in the broker's cursor by then."""
REPAIR_BATCH: Final = 1_000
"""Acks given to the broker again in one command."""
REPAIR_PAUSE_S: Final = 0.01
REFETCH_BATCH: Final = 100
"""Immediate entries read again from the broker at a time, for redelivery."""

# Operators
STEERING_SLICE: Final = 50
"""Entries looked up on disk before others get their turn: 2 ms."""
STEERING_MAX: Final = 1_000
"""Entries of one request."""
WARNINGS_KEPT_MS: Final = 5_000
"""Warnings are looked at anew after so long, when somebody asks for them."""
POLICIES_KEPT_S: Final = 300.0
"""The broker is asked for its policies so seldom: they are several calls a topic partition."""
TOPICS_SLICE: Final = 20
"""Topics looked at before others get their turn."""
SCRAPE_SLICE: Final = 8
"""Topics told to a scrape before others get their turn: a millisecond."""
CHART_SLICE: Final = 20
"""Bars added up before others get their turn."""
SEARCH_SLICE: Final = 200
"""Entries a search looks at before others get their turn: a millisecond."""
SEARCH_SCAN: Final = 20_000
"""Entries one request looks at."""
SEARCH_PAGE_MAX: Final = 1_000
"""Entries of one page."""
PAYLOAD_PEEK_BYTES: Final = 64 * 1024
"""Of a payload, at most so much is shown."""
RENDER_SLICE: Final = 200
"""Parts of a page rendered before others get their turn: about a millisecond."""
HISTOGRAM_BUCKETS_MAX: Final = 10_000
CHART_BARS_MAX: Final = 1_000
TOPICS_PAGE_MAX: Final = 1_000
HARVEST_WAIT_S: Final = 5.0
"""How long an operator waits for an entry that was just published to be read."""
HARVEST_POLL_S: Final = 0.01
CURSOR_WAIT_S: Final = 10.0
"""How long an operator waits for the cursor of a subscription."""
ACK_TIMEOUT_S: Final = 5.0
"""The broker does not answer acks of a consumer it has closed."""

# Memory
COLLECT_QUIET_S: Final = 60.0
"""Full garbage collections are at least this far apart, and made when nothing is delivered."""
COLLECT_AT_LATEST_S: Final = 3_600.0

# Persistence
DISPATCH_LEASE_MS: Final = 5_000
"""Before entries go out it is stored that they may, for so long: after a crash what was due by then may have been
delivered, what is due later was not."""
SYNC_INTERVAL_S: Final = 0.02
CHECKPOINT_INTERVAL_S: Final = 0.5
"""How often harvested position and checkpoints go to the broker: brokers persist them once a second."""
BROKER_CHECK_S: Final = 1.0
CURSOR_POLL_S: Final = 2.0
"""How often mark-delete positions are asked for while messages are acked; above the broker's second between writes."""
MAINTENANCE_INTERVAL_S: Final = 30.0
"""How often the cursors are read from the broker while all goes well; costly for it with many holes."""
STANDBY_CHECK_S: Final = 0.5
"""How often a bridge that is not the owner looks who is."""
RECOVERY_LASTS_S: Final = 10.0
"""A data directory that fails again sooner is given longer: opening it anew keeps the event loop for up to half a
second."""
AUDIT_BLOCKS_MAX: Final = 100
"""Blocks of 512 positions whose differences an audit lists; of more it tells the number."""
AUDIT_LISTED_MAX: Final = 1_000
"""Positions that differ of which an audit keeps a list."""
AUDIT_LOOKUPS: Final = 100
"""Positions looked up in one go: 1 ms."""
AUDIT_AHEAD_MS: Final = 60_000
AUDIT_ENTRIES_PER_S: Final = 5_000
"""What is due within a minute, and the time that reading takes at this rate, may be delivered, acked and dropped while
it is compared."""
AUDIT_FEW: Final = 20
"""An index with so many times the entries of what is compared is not read as a whole: the entries are looked up."""
JOB_ATTEMPTS: Final = 4
"""How often a Spark job is run that is killed: it goes on where it was. One that fails is not run again."""
REBUILDS_KEPT: Final = 20
"""Rebuilds of a topic partition that are remembered."""
MOVE_REST_S: Final = 0.02
"""Between two slices of 500 entries moved out of damaged files: a hundred million take an hour and a half."""

# Web server
WEB_TOKEN_MIN: Final = 16
"""Characters of a token that nobody guesses."""
ACCESS_ANSWER_LASTS_S: Final = 60.0
"""What the broker allowed is not asked again for so long: a permission that is taken away works until then."""
ACCESS_REFUSAL_LASTS_S: Final = 3.0
"""A permission just given works soon."""
ACCESS_ANSWERS_MAX: Final = 50_000
"""Answers kept, of 400 bytes: 50 callers who look at 500 topics, with two for each."""
ACCESS_QUESTIONS_AT_ONCE: Final = 16
"""Asked of the broker at the same time for all callers together."""
ACCESS_TIMEOUT_S: Final = 5.0
ACCESS_REDIRECTS_MAX: Final = 5
WEB_SESSIONS_MAX: Final = 1_000
"""Browsers that are logged in; the one that came first is logged out first."""
WEB_SESSION_LASTS_S: Final = 12 * 3_600.0
ACTION_LOG_BYTES: Final = 8 * 1024 * 1024
"""Of one file: 20,000 to 40,000 acts."""
ACTION_LOG_FILES: Final = 5
ACTION_POSITIONS_MAX: Final = 500
"""Positions listed of one act; of more it tells the number."""
ACTIONS_PAGE_MAX: Final = 1_000
ACTIONS_SCANNED_MAX: Final = 10_000
"""Acts looked through for those that a caller may see."""

RETRY_BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def retry_delay_s(attempt: int) -> float:
    """The pause after failure number `attempt`, counted from 0."""
    return RETRY_BACKOFF_S[min(attempt, len(RETRY_BACKOFF_S) - 1)]


assert CLIENT_WRITE_LOW_WATER < CLIENT_WRITE_HIGH_WATER
assert SERVER_WRITE_LOW_WATER < SERVER_WRITE_HIGH_WATER
assert ROUND_ROBIN_BATCH <= DISPATCH_SLICE <= HARVEST_PERMITS
assert MAX_UNACKED_PER_CONSUMER <= MAX_UNACKED_PER_SUBSCRIPTION
assert FEED_PERMITS <= FEED_QUEUE_ENTRIES <= TAIL_BUFFER_ENTRIES
assert RETRY_BACKOFF_S[-1] < RECOVERY_LASTS_S
assert ACCESS_REFUSAL_LASTS_S < ACCESS_ANSWER_LASTS_S
assert ACTIONS_PAGE_MAX <= ACTIONS_SCANNED_MAX
assert SYNC_INTERVAL_S < CHECKPOINT_INTERVAL_S
