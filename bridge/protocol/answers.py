"""Which command answers which. ACK is not among them: for clients there may be an ACK_RESPONSE for each message."""

from collections.abc import Mapping

from bridge.protocol.pulsar_pb2 import BaseCommand

ANSWER_OF: Mapping[int, int] = {
    BaseCommand.SUBSCRIBE: BaseCommand.SUCCESS,
    BaseCommand.UNSUBSCRIBE: BaseCommand.SUCCESS,
    BaseCommand.SEEK: BaseCommand.SUCCESS,
    BaseCommand.CLOSE_CONSUMER: BaseCommand.SUCCESS,
    BaseCommand.CLOSE_PRODUCER: BaseCommand.SUCCESS,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: BaseCommand.SUCCESS,
    BaseCommand.PRODUCER: BaseCommand.PRODUCER_SUCCESS,
    BaseCommand.LOOKUP: BaseCommand.LOOKUP_RESPONSE,
    BaseCommand.PARTITIONED_METADATA: BaseCommand.PARTITIONED_METADATA_RESPONSE,
    BaseCommand.CONSUMER_STATS: BaseCommand.CONSUMER_STATS_RESPONSE,
    BaseCommand.GET_LAST_MESSAGE_ID: BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    BaseCommand.GET_SCHEMA: BaseCommand.GET_SCHEMA_RESPONSE,
    BaseCommand.GET_OR_CREATE_SCHEMA: BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
    BaseCommand.NEW_TXN: BaseCommand.NEW_TXN_RESPONSE,
    BaseCommand.ADD_PARTITION_TO_TXN: BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
    BaseCommand.END_TXN: BaseCommand.END_TXN_RESPONSE,
    BaseCommand.END_TXN_ON_PARTITION: BaseCommand.END_TXN_ON_PARTITION_RESPONSE,
    BaseCommand.END_TXN_ON_SUBSCRIPTION: BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: BaseCommand.TC_CLIENT_CONNECT_RESPONSE,
    BaseCommand.WATCH_TOPIC_LIST: BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
}
"""Commands that bear a request id, and what answers them unless an ERROR does."""

FIELD_OF: Mapping[int, str] = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.number > 1}
"""By type: the field of BaseCommand that holds what such a command says. It has the number of the type."""
