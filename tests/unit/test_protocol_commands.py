"""The bytes of the commands that the project sends: brokers and clients have seen just these."""

import pytest

from bridge.protocol import commands
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandLookupTopic, CommandSubscribe, ServerError

TOPIC = "persistent://public/default/t"
TOPIC_HEX = TOPIC.encode().hex()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (commands.connect(None), "0802121b0a1370756c7361722d64656c61792d627269646765201452021001"),
        (
            commands.connect("token"),
            "080212290a1370756c7361722d64656c61792d6272696467651a05746f6b656e20142a05746f6b656e52021001",
        ),
        (commands.lookup(TOPIC, 7, False), f"0817ba01230a1d{TOPIC_HEX}10071800"),
        (commands.lookup(TOPIC, 8, True), f"0817ba01230a1d{TOPIC_HEX}10081801"),
        (
            commands.subscribe_reader(TOPIC, "sub", 1, 7, (5, 9)),
            f"080422360a1d{TOPIC_HEX}120373756218002001280740004a040805100968007800",
        ),
        (
            commands.subscribe_reader(TOPIC, "sub", 1, 7, (-1, -1)),
            f"080422360a1d{TOPIC_HEX}120373756218002001280740004a040800100068007800",
        ),
        (
            commands.subscribe_shared(TOPIC, "s", 3, 7, "__delay-bridge-operator"),
            f"080422430a1d{TOPIC_HEX}12017318012003280732175f5f64656c61792d6272696467652d6f70657261746f727800",
        ),
        (
            commands.subscribe_failover(TOPIC, "__delay-bridge", 3, 7, "pulsar://b:6650", {"k": "v"}, 5),
            f"080422540a1d{TOPIC_HEX}120e5f5f64656c61792d627269646765180220032807"
            "320f70756c7361723a2f2f623a36363530380552060a016b12017668017800",
        ),
        (commands.flow(3, 10), "080b5a040803100a"),
        (commands.ack(3, [(1, 2), (3, 4)], 8), "080a5212080310001a04080110021a04080310044008"),
        (commands.ack_up_to(3, (5, 9), {"p": 8}), "080a5211080310011a04080510092a050a01701008"),
        (commands.last_message_id(3, 8), "081dea010408031008"),
        (commands.close_consumer(3, 9), "081082010408031009"),
        (commands.unsubscribe(3, 7), "080c620408031007"),
        (commands.ping(), "08129201 00"),
        (commands.pong(), "08139a01 00"),
    ],
)
def test_bytes_on_the_wire(command: BaseCommand, expected: str) -> None:
    assert command.SerializeToString() == bytes.fromhex(expected)


def test_acks_that_nobody_waits_for_ask_for_no_answer() -> None:
    assert not commands.ack(3, [(1, 2)]).ack.HasField("request_id")
    assert commands.ack(3, [(1, 2)], 0).ack.HasField("request_id")


def test_a_clients_own_commands_are_sent_as_they_came_but_for_the_ids() -> None:
    request = CommandLookupTopic(topic=TOPIC, request_id=1, original_principal="somebody")
    asked = commands.lookup_for(request, 7, True).lookupTopic
    assert (asked.request_id, asked.authoritative, asked.original_principal) == (7, True, "somebody")
    subscribe = CommandSubscribe(
        topic=TOPIC, subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=1, priority_level=2
    )
    alone = commands.subscribe_alone(subscribe, 3, 7).subscribe
    assert (alone.subType, alone.consumer_id, alone.request_id) == (CommandSubscribe.Exclusive, 3, 7)
    assert alone.priority_level == 2
    assert (request.request_id, subscribe.subType) == (1, CommandSubscribe.Shared)


def test_the_client_is_told_the_given_address_only() -> None:
    command = commands.lookup_connect(7, "pulsar://bridge:6650", True)
    response = command.lookupTopicResponse
    assert command.type == BaseCommand.LOOKUP_RESPONSE
    assert (response.request_id, response.response) == (7, response.Connect)
    assert (response.brokerServiceUrl, response.brokerServiceUrlTls) == ("pulsar://bridge:6650", "")
    assert response.authoritative
    assert not response.proxy_through_service_url


def test_an_address_with_tls_is_told_in_its_own_field() -> None:
    response = commands.lookup_connect(7, "pulsar+ssl://bridge:6651", False).lookupTopicResponse
    assert (response.brokerServiceUrl, response.brokerServiceUrlTls) == ("", "pulsar+ssl://bridge:6651")


def test_the_client_is_told_why_it_was_refused() -> None:
    response = commands.lookup_failed(7, ServerError.TopicNotFound, "no").lookupTopicResponse
    assert (response.request_id, response.response) == (7, response.Failed)
    assert (response.error, response.message) == (ServerError.TopicNotFound, "no")
    assert not response.brokerServiceUrl
    refused = commands.error(8, ServerError.ConsumerBusy, "no").error
    assert (refused.request_id, refused.error, refused.message) == (8, ServerError.ConsumerBusy, "no")
