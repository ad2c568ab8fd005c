"""A consumer that comes to a backlog of immediate messages gets it as fast as from the broker itself."""

import itertools
from typing import Any

from tests.clients import drain, publish, shared, texts

MESSAGES = 20_000
BATCH = 1_000
# Without the defence each batch waits 4 to 5 s for the next permits; a busy machine may take most of a second.
MAX_PAUSE_MS = 3_000


def publish_batches(client: Any, topic: str, messages: int, batch: int = BATCH) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=batch,
        batching_max_publish_delay_ms=1_000,
        block_if_queue_full=True,
    )
    publish(producer, map(str, range(messages)))
    producer.close()


def test_a_backlog_of_batches_comes_without_a_pause(client: Any, direct: Any, topic: str) -> None:
    """A batch takes the broker's count of permits far below zero: what is missing is given again at once."""
    shared(direct, topic).close()
    publish_batches(direct, topic, MESSAGES)
    consumer = shared(client, topic)
    received = drain(consumer, MESSAGES)
    assert texts(received) == [str(number) for number in range(MESSAGES)]
    pauses = [after.at_ms - before.at_ms for before, after in itertools.pairwise(received)]
    assert max(pauses) < MAX_PAUSE_MS
