"""Every limit of the bridge, in bytes, milliseconds, seconds or counts, by room, and checked against each other.

One `Limits` is made where the bridge is put together, and each part is given the group it needs. Where Pulsar has the
same limit, its name and default are given.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import le, lt

from tracker.limits import IndexLimits, StoreLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """With clients, and with brokers."""

    handshake_timeout_s: float = 10.0
    """A client that connects and does not say CONNECT by then is closed; so long its TLS handshake may take before."""
    certificate_check_s: float = 30.0
    """Between two looks at whether the files of the TLS port have changed."""
    handshakes_at_once: int = 8
    """TLS handshakes that may have something to do in one turn of the loop: a crowd sends its halves in one go."""
    handshake_turn_s: float = 0.05
    """A handshake that takes longer, for its client is slow, keeps nobody else waiting."""
    accept_pause_s: float = 0.002
    """Between two connections that are accepted: a TLS handshake takes the loop half a millisecond, a connection to the
    broker as much, and those of a crowd that came at once would take it in one go."""
    accept_pause_max_s: float = 0.1
    """Where the loop is behind the pause is twice as long as it is behind, up to so long."""
    accept_again_s: float = 0.5
    """Where no connection can be accepted, for want of file descriptors."""
    max_connect_command_bytes: int = 64 * 1024
    """Before CONNECTED a client gets no room for payloads."""
    client_write_high_water: int = 4 * 1024 * 1024
    client_write_low_water: int = 1024 * 1024
    client_unread: int = 16 * 1024 * 1024
    """A client that leaves so many bytes unread gets no more commands handled; messages end earlier, at the mark
    above."""
    server_write_high_water: int = 4 * 1024 * 1024
    server_write_low_water: int = 1024 * 1024
    client_read_bytes: int = 32 * 1024
    """Read from a client in one turn of the event loop: about 1,500 acks."""
    client_turn_s: float = 0.002
    """So long one client's commands are worked off before others get their turn."""
    client_tasks_at_once: int = 100
    """Lookups, and what needs one, under way for one client; what comes behind waits, in its connection."""
    upstream_read_bytes: int = 32 * 1024
    """Read from a broker for one client in one turn."""
    log_lines_at_once: int = 20
    log_pause_s: float = 10.0
    """Of one kind about one address so many lines are written in so many seconds; of the rest, how many there were."""
    log_kinds_max: int = 1_000
    """Kinds and addresses told apart; of those beyond all lines are counted together."""
    server_read_bytes: int = 16 * 1024
    """Read by harvester and feeds in one turn: about 200 small entries, stored within 2 ms."""
    keep_alive_interval_s: float = 30.0
    """Pulsar's `keepAliveIntervalSeconds`: a peer silent for two of these is gone."""
    confirm_every_s: float = 2.0
    """How often a broker is asked whether it hears the bridge."""
    confirmed_s: float = 8.0
    """An owner of topics that its broker has not heard for so long may be one no more, and dispatches nothing: a broker
    drops who is silent after its `keepAliveIntervalSeconds`, 30 by default, and elects another bridge."""
    request_timeout_s: float = 30.0
    close_timeout_s: float = 5.0
    """A closing connection whose peer does not read is cut after this."""
    ack_timeout_s: float = 5.0
    """The broker does not answer acks of a consumer it has closed."""
    ack_batch: int = 1_000
    """Acks of the bridge's own in one command."""
    max_brokers_per_session: int = 64
    max_pending_requests: int = 50_000
    """Requests of one client that wait for an answer; Pulsar's clients hold `concurrentLookupRequest` = 5,000."""
    stamp_timeout_s: float = 2.0
    """How long a client's SUBSCRIBE waits at most for each step of marking its subscription's cursor."""
    stamp_tries: int = 5
    stamp_pause_s: float = 0.02
    """Another bridge that marks the same cursor is done by then."""
    range_permits: int = 2_000
    """For a reader that reads a range once more."""
    range_stall_s: float = 4.0
    """Such a reader that gives nothing for so long is replaced."""
    range_readers: int = 8
    """Readers at once: what is apart in the topic, or in another ledger, takes a reader of its own."""
    broker_check_s: float = 1.0
    broker_check_retry_s: float = 5.0
    """The same after an error that nobody thought of."""
    admin_check_timeout_s: float = 5.0
    admin_failures: int = 5
    """Checks of the admin interface in a row that fail before a bridge that was ready is not: it may be restarted."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _check(self, lt, "confirm_every_s", "confirmed_s")
        _check(self, lt, "client_write_low_water", "client_write_high_water")
        _check(self, lt, "server_write_low_water", "server_write_high_water")


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """Out: who is let in, what goes to whom, and what is read again for it."""

    unlisted_lasts_s: float = 2.0
    """A consumer that the broker has accepted, and does not list for so long, is closed."""
    held_look_s: float = 0.05
    """How often a bridge that may be the owner no more looks whether it is one again."""
    listed_pause_s: float = 0.02
    """Between two looks at the list: it is long where there are many consumers."""
    early_acks_max: int = 1_000
    """Commands with acks of a consumer that is not listed yet; of those beyond, messages may come again."""
    round_robin_batch: int = 20
    """Pulsar's `dispatcherMaxRoundRobinBatchSize`: entries to one consumer before the next one's turn."""
    max_unacked_per_consumer: int = 50_000
    """Pulsar's `maxUnackedMessagesPerConsumer`: messages, where the broker's policies are not known."""
    max_unacked_per_subscription: int = 200_000
    """Pulsar's `maxUnackedMessagesPerSubscription`: messages, where policies are not known; and entries, whatever they
    say, for each takes memory."""
    look_ahead_per_consumer: int = 2_000
    """Pulsar's `keySharedLookAheadMsgInReplayThresholdPerConsumer`: entries that wait for their key's turn, while what
    lies behind them goes to others; times the consumers of a Key_Shared subscription."""
    look_ahead_per_subscription: int = 20_000
    """Pulsar's `keySharedLookAheadMsgInReplayThresholdPerSubscription`: however many consumers there are."""
    look_ahead_bytes: int = 8 * 1024 * 1024
    """What of them is kept in memory for each subscription."""
    max_chunked_messages: int = 10_000
    """Chunked messages under way whose consumer is remembered, per subscription; the oldest is forgotten first."""
    dispatch_slice: int = 300
    """Entries handled before the event loop gets its turn: about 1.5 ms."""
    dispatch_slice_bytes: int = 1024 * 1024
    """A slice ends earlier when its entries are large; one entry always goes."""
    dispatch_lease_ms: int = 5_000
    """Before entries go out it is stored that they may, for so long: after a crash what was due by then may have been
    delivered, what is due later was not."""
    ack_ranges_slice: int = 500
    """Ranges of acks of a cursor put together at a time: 100,000 take a tenth of a second."""
    prefetch_slice: int = 1_000
    """Entries read from disk into the near-term window at a time."""
    max_timer_ms: int = 1_000
    """The wall clock is looked at no later than this: a step forward is noticed in time."""
    ack_settle_s: float = 1.0
    """Acks that were relayed are in the broker's cursor by then."""
    cursor_jumps_max: int = 100
    """Moves of the broker's mark-delete position over what was not acked here that are remembered until the sizes of
    the ledgers are known: with each goes a copy of the acks."""
    repair_batch: int = 1_000
    """Acks given to the broker again in one command."""
    repair_pause_s: float = 0.01
    repair_after_s: float = 10.0
    """A cursor that stands for so long before an entry that is acked is given the acks it lacks."""
    transaction_poll_s: float = 1.0
    """How often the broker is asked about transactions that entries were acked in."""
    transaction_ask_after_s: float = 2.0
    """About one that nobody has spoken of for so long: most are ended through the bridge, and that is seen."""
    transaction_ask_most: int = 256
    """Transactions asked about at a time, and entries that are held back because of unknown ones."""
    transaction_asks_at_once: int = 8
    transaction_suspects_most: int = 10_000
    """Entries that go out late because each is asked about; then all go out, some perhaps acked in a transaction."""
    transaction_doubt_s: float = 60.0
    """A transaction that the broker does not let us ask about counts as aborted, unless its acks are in the cursor."""
    replay_early_max: int = 1_000
    """Entries passed over in a slice that were due until the clock was set back."""
    refetch_batch: int = 500
    """Immediate entries read again from the broker at a time, for redelivery."""
    refetch_bytes: int = 8 * 1024 * 1024
    """No more of them are read once they weigh so much."""
    refetch_hold_s: float = 1.0
    """How long an entry that is read again holds back what lies behind it."""
    refetch_patience_s: float = 8.0
    """How long the broker may give nothing before the read counts as failed."""
    refetch_retry_s: float = 2.0
    """Before what could not be read is read again: between half and all of it, see `bridge.net.backoff`."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _check(self, le, "round_robin_batch", "dispatch_slice")
        _check(self, le, "max_unacked_per_consumer", "max_unacked_per_subscription")
        _check(self, le, "look_ahead_per_consumer", "look_ahead_per_subscription")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """In: harvest and feed."""

    harvest_permits: int = 4_000
    harvest_slice: int = 500
    """Entries in one write batch: RocksDB holds the interpreter for less than a millisecond."""
    read_stall_s: float = 4.0
    """A reader that has permits, knows of more and gets nothing for so long is opened anew: a last resort."""
    catch_up_entries: int = 1_000
    """Where more were published since a topic partition was owned here last, new traffic comes first."""
    tail_buffer_bytes: int = 16 * 1024 * 1024
    """Immediate entries just read, kept per topic partition for feeds at the tail."""
    tail_buffer_entries: int = 50_000
    withheld_max: int = 1_000_000
    """Positions that the broker gave no reader and that are remembered, above what all subscriptions have acked: a
    megabyte or two. Of more, those so far are forgotten."""
    feed_permits: int = 2_000
    feed_queue_entries: int = 2_000
    feed_queue_bytes: int = 8 * 1024 * 1024
    feed_first_guess_bytes: int = 1024 * 1024
    """What an entry is taken to weigh before one was seen: permits are given for what the queue can hold."""
    feed_taken_max: int = 400_000
    """Positions handed out that are remembered before those that are acked since are sorted out."""
    feed_retry_s: float = 2.0
    """Before a reader that could not be opened is opened anew: between half and all of it."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _check(self, le, "feed_permits", "feed_queue_entries", "tail_buffer_entries")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """Ownership, and what is kept."""

    sync_interval_s: float = 0.02
    checkpoint_interval_s: float = 0.5
    """How often harvested position and checkpoints go to the broker: brokers persist them once a second."""
    checkpoint_slice: int = 20
    """Subscriptions whose progress is worked out before others get their turn."""
    cursor_poll_s: float = 2.0
    """How often mark-delete positions are asked for while messages are acked; above the broker's second between
    writes."""
    maintenance_interval_s: float = 30.0
    """How often the broker is asked who is connected and what it allows, and what nobody needs any more is given
    back."""
    policies_look_s: float = 30.0
    """How often the broker is asked for policies about dispatch: five calls a topic partition, one a subscription."""
    policies_fresh_s: float = 300.0
    """So old may be what a standby knows of them when it becomes the owner; it asks twice in that time."""
    policies_wait_s: float = 2.0
    """So long the first dispatch of a subscription waits for them at most."""
    standby_check_s: float = 10.0
    """How often a bridge that is not the owner looks who is, though the broker has no news and nobody asks."""
    standby_follow_s: float = 30.0
    """How often a standby follows the cursors, between half of it and all; what it has missed is read at a takeover."""
    election_poll_s: float = 0.05
    """The same at first, and after news: then twice as long each time."""
    owner_known_s: float = 0.5
    """What was seen so lately is told to who asks for the owner; else it is looked at first."""
    owner_wait_s: float = 2.0
    """That does not keep who asks for longer."""
    next_owner_s: float = 1.0
    """So long a bridge that stops waits for the broker to say who is the next owner."""
    election_lasts_s: float = 3.0
    """It takes the broker a second; a bridge that is alone need not wait for that."""
    election_untold_s: float = 5.0
    """A bridge that the broker shows as elected for so long, and does not tell, stands anew."""
    let_go_after_s: float = 3.0
    """Without consumers for so long: the bridge looks whether anybody but bridges is connected, and lets go if not.
    Looked at again after twice as long each time, up to ten times."""
    reading_refused_s: float = 10.0
    """Readers of the bridge's own that the broker's policies refuse for so long: the topic is passed through."""
    refused_again_s: float = 300.0
    """After that its consumers stay with the broker for so long: each change closes them once."""
    recovery_lasts_s: float = 10.0
    """A data directory that fails again sooner is given longer: opening it anew keeps the event loop for up to half a
    second."""
    move_rest_s: float = 0.02
    """Between two slices of 500 entries moved out of damaged files: a hundred million take an hour and a half."""
    served_wait_s: float = 10.0
    """How long an operator waits for a topic partition that the bridge had let go of."""
    cursor_wait_s: float = 10.0
    """How long an operator waits for the cursor of a subscription."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _check(self, lt, "sync_interval_s", "checkpoint_interval_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLimits:
    """Bridges among each other."""

    look_s: float = 4.0
    """How often a bridge looks who else is there and what they own, between half of it and all."""
    answer_s: float = 3.0
    """So long another bridge may take to say what it owns."""
    answer_bytes: int = 64 * 1024 * 1024
    """Longer answers are not read: half a million topics."""
    orphan_after_s: float = 5.0
    """A topic partition that nobody owns for so long is served by whoever remembers it."""
    remembered_s: float = 15.0
    """A bridge that the broker does not list any more is one all the same for so long, if it answers."""
    drain_s: float = 120.0
    """So long a bridge that is to end waits until others have taken over what it owns."""
    drain_look_s: float = 0.2
    moves_at_once: int = 3
    """Topic partitions that a bridge takes over from others after one look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Several bridges of one host."""

    worker_beat_s: float = 5.0
    """How often a worker tells whoever looks after it that its event loop turns."""
    worker_silent_s: float = 60.0
    """One that has not for so long hangs, and is killed and started again."""
    worker_stop_s: float = 60.0
    """A worker that does not end by then is killed."""
    worker_answer_s: float = 5.0
    """So long another worker may take to answer what is added up."""
    worker_relayed_s: float = 120.0
    """So long another worker may take to answer a request that is for it."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _check(self, lt, "worker_beat_s", "worker_silent_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefillLimits:
    """Gaps, rebuilds and audits."""

    backfill_slice: int = 500
    """Entries in one write batch, as `IntakeLimits.harvest_slice`."""
    heal_piece: int = 20_000
    """Of what was left out so many entries are read before that is noted."""
    gap_retry_s: float = 5.0
    """Before a gap that was not filled is filled: between half and all of it."""
    bookie_batch_entries: int = 100
    bookie_batch_bytes: int = 64 * 1024
    """Asked of a bookie at a time: what it gives is looked at in one go, a millisecond."""
    bookie_single_reads: int = 50
    """The same of bookies that know no batches."""
    bookie_rest: float = 1.0
    """Others get so many times as long as that took, before the next."""
    bookie_connect_timeout_s: float = 3.0
    bookie_timeout_s: float = 10.0
    """A bookie that is silent for so long is passed over."""
    rebuilds_kept: int = 20
    """Rebuilds of a topic partition that are remembered."""
    job_attempts: int = 4
    """How often a Spark job is run that is killed: it goes on where it was. One that fails is not run again."""
    audit_blocks_max: int = 100
    """Blocks of 512 positions whose differences an audit lists; of more it tells the number."""
    audit_listed_max: int = 1_000
    """Positions that differ of which an audit keeps a list."""
    audit_lookups: int = 100
    """Positions looked up in one go: 1 ms."""
    audit_ahead_ms: int = 60_000
    audit_job_starts_ms: int = 180_000
    audit_entries_per_s: int = 5_000
    """What is due within a minute, and the time that reading takes at this rate (and a job, on a machine that is busy,
    to start), may be delivered, acked and dropped while it is compared."""
    audit_tries: int = 3
    """An audit whose reading takes longer than that is begun again, with twice the time it took."""
    audit_few: int = 20
    """An index with so many times the entries of what is compared is not read as a whole: the entries are looked
    up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLimits:
    """What operators ask for and do."""

    steering_slice: int = 50
    """Entries looked up on disk before others get their turn: 2 ms."""
    steering_max: int = 1_000
    """Entries of one request."""
    clock_look_s: float = 1.0
    """How often the wall clock is held against one that never steps."""
    clock_step_ms: int = 200
    """So much between two looks is a step: a clock that is slewed gains half a millisecond a second at most."""
    clock_step_told_s: float = 600.0
    """A step is a warning for so long."""
    warnings_kept_ms: int = 5_000
    """Warnings are looked at anew after so long, when somebody asks for them."""
    overdue_warning_ms: int = 60_000
    """What has been due for so long, and nobody takes it, is worth a warning."""
    lately_s: float = 300.0
    """How late deliveries were in the last minutes."""
    lateness_sample_s: float = 10.0
    policies_kept_s: float = 300.0
    """The broker is asked for its policies so seldom: they are several calls a topic partition."""
    partition_slice: int = 100
    """Time partitions put into an answer before the event loop gets its turn."""
    topics_slice: int = 20
    """Topics looked at before others get their turn."""
    scrape_slice: int = 8
    """Topics told to a scrape before others get their turn: a millisecond."""
    forecast_look_entries: int = 1_000_000
    """Time partitions with more are not looked into for bursts: on average they are one."""
    forecast_slice: int = 1_000
    """Keys counted before others get their turn: less than a millisecond."""
    chart_slice: int = 20
    """Bars added up before others get their turn."""
    search_slice: int = 200
    """Entries a search looks at before others get their turn: a millisecond."""
    search_scan: int = 20_000
    """Entries one request looks at."""
    search_page_max: int = 1_000
    """Entries of one page."""
    payload_peek_bytes: int = 64 * 1024
    """Of a payload, at most so much is shown."""
    histogram_buckets_max: int = 10_000
    chart_bars_max: int = 1_000
    topics_page_max: int = 1_000
    books_tries: int = 3
    """Questions for the sizes of ledgers: one that is begun meanwhile makes the answer old."""
    books_positions_max: int = 1_000
    """Positions listed that are in no place, or in several."""
    books_scan_max: int = 5_000_000
    """Entries of an index that are looked at one by one for the books: ten seconds. Of a larger one the counters are
    believed; an audit compares it."""
    books_patience_s: float = 4.0
    """So long the broker may take for entries that are in no place; those behind the last that it gives to anybody it
    never gives."""
    books_blocks_max: int = 2_000
    """Blocks of 512 positions looked at for a subscription that is behind the tail: a third of a second."""
    books_blocks_slice: int = 8
    """Of these so many before others get their turn: 2 ms."""
    nobodys_asked_max: int = 5_000
    """Entries that a reader is not given about which the broker is asked after one look, each a call of 2 ms or so."""
    nobodys_asked_at_once: int = 8
    nobodys_acked_at_once: int = 1_000
    """In one command, as `DispatchLimits.repair_batch`."""
    nobodys_pause_s: float = 0.01
    harvest_wait_s: float = 5.0
    """How long an operator waits for an entry that was just published to be read."""
    harvest_poll_s: float = 0.01
    action_log_bytes: int = 8 * 1024 * 1024
    """Of one file: 20,000 to 40,000 acts."""
    action_log_files: int = 5
    action_positions_max: int = 500
    """Positions listed of one act; of more it tells the number."""
    actions_page_max: int = 1_000
    actions_scanned_max: int = 10_000
    """Acts looked through for those that a caller may see."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _check(self, le, "actions_page_max", "actions_scanned_max")
        _check(self, le, "search_slice", "search_scan")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Who may look and act, and for how long that is known."""

    access_list_lasts_s: float = 60.0
    """Who may see a topic finds it in lists for so long without a question: they show names and counts, no payloads."""
    access_answer_lasts_s: float = 3.0
    """Anything else is asked again: a permission that is given or taken away counts soon."""
    access_answers_max: int = 50_000
    """Answers kept, of 400 bytes: 50 callers who look at 500 topics, with two for each."""
    access_questions_at_once: int = 16
    """Asked of the broker at the same time for all callers together."""
    access_timeout_s: float = 5.0
    web_sessions_max: int = 1_000
    """Browsers that are logged in; the one that came first is logged out first."""
    web_session_lasts_s: float = 12 * 3_600.0
    relays_at_once: int = 100
    """Requests under way to the broker's HTTP interface in callers' names; further ones are refused with 503."""
    client_relays_at_once: int = 400
    """The same for lookups and what else clients ask by themselves: they are not kept out by admins."""
    relay_connect_s: float = 10.0
    relay_answer_s: float = 300.0
    """Pulsar's `httpProxyTimeout`: a broker that says nothing for so long counts as silent."""
    relay_stall_s: float = 30.0
    """A caller that sends nothing of its body, or reads nothing of its answer, for so long is left."""
    relay_gone_look_s: float = 0.5
    """How often it is looked whether a caller that waits is still there."""
    relay_kept_bytes: int = 1024 * 1024
    """A larger body is passed on as it comes, and cannot be sent again to where a broker redirects."""
    relay_buffer_bytes: int = 64 * 1024
    """Of an answer on its way."""
    relay_header_bytes: int = 64 * 1024
    """One header, or the first line, of a broker's answer."""
    relay_filled_bytes: int = 8 * 1024 * 1024
    """An answer that is to be changed is read whole, a kilobyte for each consumer, and keeps the event loop for a tenth
    of a second. Statistics that are larger are passed on as the broker tells them."""
    count_exactly_entries: int = 5_000
    """Of a time partition with more entries, those that are not due yet are estimated where they are on disk."""
    relay_partitions_at_once: int = 20
    """Partitions of one topic whose statistics are asked for at the same time."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _check(self, lt, "relay_gone_look_s", "relay_stall_s")
        _check(self, lt, "access_answer_lasts_s", "access_list_lasts_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """The garbage collector."""

    collect_look_s: float = 1.0
    """How often it is looked whether anything was delivered since."""
    collect_quiet_s: float = 60.0
    """Full garbage collections are at least this far apart, and made when nothing is delivered."""
    collect_at_latest_s: float = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All of one bridge."""

    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    dispatch: DispatchLimits = field(default_factory=DispatchLimits)
    intake: IntakeLimits = field(default_factory=IntakeLimits)
    topics: TopicLimits = field(default_factory=TopicLimits)
    members: MemberLimits = field(default_factory=MemberLimits)
    workers: WorkerLimits = field(default_factory=WorkerLimits)
    refill: RefillLimits = field(default_factory=RefillLimits)
    operators: OperatorLimits = field(default_factory=OperatorLimits)
    web: WebLimits = field(default_factory=WebLimits)
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    index: IndexLimits = field(default_factory=IndexLimits)
    store: StoreLimits = field(default_factory=StoreLimits)
    retry_backoff_s: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
    """After the first failure, the second …; the pauses are between half and all of it, see `bridge.net.backoff`."""

    def __post_init__(self) -> None:
        """Raises ValueError where one group's do not fit another's."""
        _fits(self.dispatch.dispatch_slice <= self.intake.harvest_permits, "dispatch_slice <= harvest_permits")
        taken = 2 * self.dispatch.max_unacked_per_subscription
        _fits(taken <= self.intake.feed_taken_max, "2 * max_unacked_per_subscription <= feed_taken_max")
        unread = self.connections.client_write_high_water + self.dispatch.dispatch_slice_bytes
        _fits(unread < self.connections.client_unread, "client_write_high_water + dispatch_slice_bytes < client_unread")
        again = self.retry_backoff_s[-1] < self.topics.recovery_lasts_s
        _fits(again, "the last of retry_backoff_s < recovery_lasts_s")
        patience = self.dispatch.refetch_patience_s
        _fits(self.connections.range_stall_s <= patience, "range_stall_s <= refetch_patience_s")


def _check(group: object, holds: Callable[[float, float], bool], *names: str) -> None:
    """Raises ValueError unless it holds of each two neighbours."""
    values = [getattr(group, name) for name in names]
    _fits(all(map(holds, values, values[1:])), (" < " if holds is lt else " <= ").join(names))


def _fits(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"limits that do not fit each other: not {what}")
