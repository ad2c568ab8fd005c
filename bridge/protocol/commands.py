"""The commands that the project itself sends, each built here and nowhere else.

A field that is set to its default differs on the wire from one that is not set: what is set here is what is sent.
Positions are pairs of ledger and entry.
"""

from collections.abc import Iterable, Mapping

from bridge.protocol.answers import ANSWER_OF, FIELD_OF
from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandSubscribe,
    ServerError,
)
from bridge.protocol.service_url import TLS_SCHEME, ServiceUrls

CLIENT_VERSION = "pulsar-delay-bridge"
PROTOCOL_VERSION = 20


def connect(auth_token: str | None, proxy_to: str | None = None) -> BaseCommand:
    """CONNECT, without credentials or with a token. `proxy_to`: host and port of the broker behind a proxy."""
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = CLIENT_VERSION
    command.connect.protocol_version = PROTOCOL_VERSION
    # What a broker has noted of an entry is for the clients that ask for it: the bridge passes it on to them.
    command.connect.feature_flags.supports_broker_entry_metadata = True
    if auth_token is not None:
        command.connect.auth_method_name = "token"
        command.connect.auth_data = auth_token.encode()
    if proxy_to is not None:
        command.connect.proxy_to_broker_url = proxy_to
    return command


def ping() -> BaseCommand:
    """PING."""
    return BaseCommand(type=BaseCommand.PING, ping={})


def pong() -> BaseCommand:
    """PONG."""
    return BaseCommand(type=BaseCommand.PONG, pong={})


def lookup(topic: str, request_id: int, authoritative: bool) -> BaseCommand:
    """LOOKUP: who owns a topic partition; it gets an owner if it has none."""
    return lookup_for(CommandLookupTopic(topic=topic), request_id, authoritative)


def lookup_for(request: CommandLookupTopic, request_id: int, authoritative: bool) -> BaseCommand:
    """A client's LOOKUP, asked on its behalf."""
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.CopyFrom(request)
    command.lookupTopic.request_id = request_id
    command.lookupTopic.authoritative = authoritative
    return command


def lookup_connect(request_id: int, url: str, authoritative: bool) -> BaseCommand:
    """LOOKUP_RESPONSE: connect to `url`, which is in the field for its kind: clients look into one of both."""
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = command.lookupTopicResponse
    response.request_id = request_id
    response.response = CommandLookupTopicResponse.Connect
    response.authoritative = authoritative
    if url.startswith(TLS_SCHEME):
        response.brokerServiceUrlTls = url
    else:
        response.brokerServiceUrl = url
    response.proxy_through_service_url = False
    return command


def lookup_failed(request_id: int, code: ServerError, message: str) -> BaseCommand:
    """LOOKUP_RESPONSE: a refusal."""
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = command.lookupTopicResponse
    response.request_id = request_id
    response.response = CommandLookupTopicResponse.Failed
    response.error, response.message = code, message
    return command


def subscribe_reader(
    topic: str, subscription: str, consumer_id: int, request_id: int, after: tuple[int, int]
) -> BaseCommand:
    """SUBSCRIBE of a non-durable reader behind a position.

    Exclusive: a Shared one would be given delayed entries when they are due. The start is inclusive, so the entry
    before comes too: starting at the last entry known, not behind it, keeps the broker from falling back to
    `initialPosition` when nothing newer is there yet.
    """
    command = _subscribe(topic, subscription, CommandSubscribe.Exclusive, consumer_id, request_id)
    subscribe = command.subscribe
    subscribe.durable = False
    subscribe.start_message_id.ledgerId = max(after[0], 0)
    subscribe.start_message_id.entryId = max(after[1], 0)
    subscribe.initialPosition = CommandSubscribe.Latest
    return command


def subscribe_shared(topic: str, subscription: str, consumer_id: int, request_id: int, name: str) -> BaseCommand:
    """SUBSCRIBE of a Shared consumer `name`."""
    command = _subscribe(topic, subscription, CommandSubscribe.Shared, consumer_id, request_id)
    command.subscribe.consumer_name = name
    return command


def subscribe_failover(
    topic: str,
    subscription: str,
    consumer_id: int,
    request_id: int,
    name: str,
    metadata: Mapping[str, str],
    priority_level: int = 0,
    *,
    create: bool = False,
) -> BaseCommand:
    """SUBSCRIBE of a Failover consumer `name`; a subscription that it makes starts where the topic does.

    Elected is one of the lowest priority level. `create`: the topic too, where brokers allow it.
    """
    command = _subscribe(topic, subscription, CommandSubscribe.Failover, consumer_id, request_id)
    subscribe = command.subscribe
    subscribe.consumer_name, subscribe.priority_level = name, priority_level
    subscribe.force_topic_creation = create
    for key, value in metadata.items():
        subscribe.metadata.add(key=key, value=value)
    subscribe.initialPosition = CommandSubscribe.Earliest
    return command


def subscribe_alone(subscribe: CommandSubscribe, consumer_id: int, request_id: int) -> BaseCommand:
    """A client's SUBSCRIBE as an Exclusive one, with ids of another."""
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.CopyFrom(subscribe)
    command.subscribe.subType = CommandSubscribe.Exclusive
    command.subscribe.consumer_id = consumer_id
    command.subscribe.request_id = request_id
    return command


def flow(consumer_id: int, permits: int) -> BaseCommand:
    """FLOW: so many messages more."""
    command = BaseCommand(type=BaseCommand.FLOW)
    command.flow.consumer_id = consumer_id
    command.flow.messagePermits = permits
    return command


def ack(consumer_id: int, positions: Iterable[tuple[int, int]], request_id: int | None = None) -> BaseCommand:
    """ACK of entries one by one. The broker answers when there is a `request_id`."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = CommandAck.Individual
    for ledger, entry in positions:
        command.ack.message_id.add(ledgerId=ledger, entryId=entry)
    if request_id is not None:
        command.ack.request_id = request_id
    return command


def ack_as(ack: CommandAck) -> BaseCommand:
    """ACK as it is given."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.CopyFrom(ack)
    return command


def ack_up_to(consumer_id: int, position: tuple[int, int], properties: Mapping[str, int]) -> BaseCommand:
    """ACK of all up to a position, with `properties` that the broker keeps in the cursor."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = CommandAck.Cumulative
    command.ack.message_id.add(ledgerId=position[0], entryId=position[1])
    for name, value in properties.items():
        command.ack.properties.add(key=name, value=value)
    return command


def last_message_id(consumer_id: int, request_id: int) -> BaseCommand:
    """GET_LAST_MESSAGE_ID: where the topic ends, and where the consumer's cursor is."""
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.consumer_id = consumer_id
    command.getLastMessageId.request_id = request_id
    return command


def close_consumer(consumer_id: int, request_id: int, to: ServiceUrls | None = None) -> BaseCommand:
    """CLOSE_CONSUMER, of either side. `to`: where a client that understands it subscribes anew, without a lookup."""
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = request_id
    if to is not None and to.plain is not None:
        command.close_consumer.assignedBrokerServiceUrl = to.plain
    if to is not None and to.tls is not None:
        command.close_consumer.assignedBrokerServiceUrlTls = to.tls
    return command


def unsubscribe(consumer_id: int, request_id: int) -> BaseCommand:
    """UNSUBSCRIBE: the subscription goes too."""
    command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id = consumer_id
    command.unsubscribe.request_id = request_id
    return command


def error(request_id: int, code: ServerError, message: str) -> BaseCommand:
    """ERROR: the answer to a request that is refused."""
    command = BaseCommand(type=BaseCommand.ERROR)
    command.error.request_id = request_id
    command.error.error = code
    command.error.message = message
    return command


def refused(command: BaseCommand, request_id: int, code: ServerError, message: str) -> BaseCommand:
    """The answer to a request about schemas or transactions that is refused: it has room for an error of its own.

    Clients find what waits for it by the transaction that the answer names: an ERROR names none.
    """
    asked = getattr(command, FIELD_OF[command.type])
    kind = ANSWER_OF[command.type]
    answer = BaseCommand(type=BaseCommand.Type.Name(kind))
    body = getattr(answer, FIELD_OF[kind])
    body.request_id = request_id
    if command.type == BaseCommand.GET_OR_CREATE_SCHEMA:
        body.error_code, body.error_message = code, message
        return answer
    body.error, body.message = code, message
    if command.type == BaseCommand.NEW_TXN:
        body.txnid_most_bits = asked.tc_id
    elif command.type != BaseCommand.TC_CLIENT_CONNECT_REQUEST:
        body.txnid_most_bits, body.txnid_least_bits = asked.txnid_most_bits, asked.txnid_least_bits
    return answer


def _subscribe(
    topic: str, subscription: str, kind: CommandSubscribe.SubType, consumer_id: int, request_id: int
) -> BaseCommand:
    """No consumer of the project's own makes a topic come into being."""
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    subscribe = command.subscribe
    subscribe.topic = topic
    subscribe.subscription = subscription
    subscribe.subType = kind
    subscribe.consumer_id = consumer_id
    subscribe.request_id = request_id
    subscribe.force_topic_creation = False
    return command
