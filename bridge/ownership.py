"""Which bridge dispatches a topic partition: the one whose consumer the broker elects on `__delay-bridge`.

A Failover consumer with 0 permits, named after the bridge's advertised URL. The harvested position and the
subscriptions' checkpoints are kept in that subscription's cursor, as its mark-delete position and as properties of
the cumulative ack that moves it: the broker keeps them, and gives them to the next owner.
"""

import asyncio
import contextlib

from bridge import limits
from bridge.broker.admin import AdminClient
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.protocol.entries import StoredEntry
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandAck, CommandSubscribe
from tracker import Position

HIDDEN_SUBSCRIPTION = "__delay-bridge"
WEB_URL_METADATA = "web-url"
"""Of the consumer: where REST of the bridge is."""
ELECTION_POLL_S = 0.05


class Ownership:
    """The bridge's candidacy for one topic partition."""

    def __init__(self, connection: BrokerConnection, topic: str, advertised_url: str, web_url: str) -> None:
        """Nothing is sent yet. `web_url`: where others find this bridge's REST."""
        self.topic = topic
        self.connection = connection
        self.active = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._advertised_url = advertised_url
        self._web_url = web_url
        self._consumer_id = connection.register(self)
        self._gone = False  # the broker does not know the consumer any more

    async def stand(self) -> None:
        """Become a candidate. Raises BrokerError."""
        request_id = self.connection.next_request_id()
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic = self.topic
        subscribe.subscription = HIDDEN_SUBSCRIPTION
        subscribe.subType = CommandSubscribe.Failover
        subscribe.consumer_id = self._consumer_id
        subscribe.request_id = request_id
        subscribe.consumer_name = self._advertised_url
        subscribe.metadata.add(key=WEB_URL_METADATA, value=self._web_url)
        # From the start of the topic: the broker is to keep what a bridge has not harvested yet.
        subscribe.initialPosition = CommandSubscribe.Earliest
        subscribe.force_topic_creation = False
        await self.connection.request(command, request_id)

    async def elected(self, admin: AdminClient) -> None:
        """Wait until this bridge is the owner. Raises BrokerError when the candidacy is lost meanwhile.

        The broker tells a new owner about a second late, to let the former one finish. When there is no
        other candidate there is no former one, and the stats say so at once.
        """
        while not self.active.is_set():
            if self.lost.done():
                raise BrokerError(self.lost.result())
            if await admin.consumer_names(self.topic, HIDDEN_SUBSCRIPTION) == [self._advertised_url]:
                self.active.set()
                return
            await asyncio.sleep(ELECTION_POLL_S)

    def keep(self, harvested_position: Position, properties: dict[str, int]) -> None:
        """Store the harvested position, which must be on disk, and `properties` in the broker's cursor."""
        if self.lost.done():
            return
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = self._consumer_id
        command.ack.ack_type = CommandAck.Cumulative
        command.ack.message_id.add(ledgerId=harvested_position.ledger, entryId=harvested_position.entry)
        for name, value in properties.items():
            command.ack.properties.add(key=name, value=value)
        self.connection.send(command)

    async def resign(self, *, unsubscribe: bool = False) -> None:
        """Give the topic partition up, and with `unsubscribe` its cursor; errors do not matter any more."""
        if self._gone:
            return
        self._gone, lost = True, self.lost.done()
        self.connection.unregister(self._consumer_id)
        self._lose("resigned")
        request_id = self.connection.next_request_id()
        command = BaseCommand()
        if unsubscribe:
            command.type = BaseCommand.UNSUBSCRIBE
            command.unsubscribe.consumer_id = self._consumer_id
            command.unsubscribe.request_id = request_id
        else:
            command.type = BaseCommand.CLOSE_CONSUMER
            command.close_consumer.consumer_id = self._consumer_id
            command.close_consumer.request_id = request_id
        with contextlib.suppress(BrokerError):
            if lost and not unsubscribe:
                # Deposed, or in trouble: the consumer is still a candidate, and would be elected without knowing of it.
                # The broker may have closed it just now, and give no answer.
                self.connection.send(command)
            else:
                await self.connection.request(command, request_id, timeout_s=limits.CLOSE_TIMEOUT_S)

    # -- ConsumerListener

    def on_entries(self, entries: list[StoredEntry]) -> None:
        """Without permits there are none."""

    def on_active(self, active: bool) -> None:
        """Elected, or deposed: a deposed owner stops at once."""
        if active:
            self.active.set()
        elif self.active.is_set():
            self._lose("another bridge was elected")

    def on_closed(self, reason: str) -> None:
        """The topic was unloaded, or the broker is gone."""
        self._gone = True
        self._lose(reason)

    def give_up(self, reason: str) -> None:
        """Not to be the owner any more, for a reason of the bridge's own; `resign` is still to come."""
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)


def checkpoint_properties(checkpoints: dict[str, Position]) -> dict[str, int]:
    """Cursor properties for each subscription's checkpoint; values are unsigned, so an entry of -1 becomes 0."""
    properties: dict[str, int] = {}
    for name, position in checkpoints.items():
        if position.ledger >= 0:
            properties[f"ledger:{name}"] = position.ledger
            properties[f"entry:{name}"] = position.entry + 1
    return properties


def read_checkpoint(properties: dict[str, int], name: str) -> Position | None:
    """The checkpoint of a subscription, None when the cursor holds none."""
    ledger, entry = properties.get(f"ledger:{name}"), properties.get(f"entry:{name}")
    return None if ledger is None or entry is None else Position(ledger, entry - 1)
