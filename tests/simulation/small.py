"""Limits so small that a few hundred messages reach them."""

from tests.changed_limits import changed

SMALL = changed(
    ack_batch=10,
    backfill_slice=20,
    broker_check_s=10.0,
    catch_up_entries=15,
    dispatch_slice=30,
    feed_permits=12,
    feed_queue_entries=12,
    feed_taken_max=200,
    harvest_permits=40,
    harvest_slice=20,
    heal_piece=30,
    look_ahead_per_consumer=20,
    look_ahead_per_subscription=50,
    look_s=20.0,
    max_unacked_per_consumer=60,
    max_unacked_per_subscription=100,
    prefetch_slice=20,
    range_permits=12,
    refetch_batch=10,
    repair_batch=10,
    tail_buffer_entries=25,
    transaction_poll_s=5.0,
)
