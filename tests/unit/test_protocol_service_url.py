"""Service URLs: what they name, and what is none."""

import pytest

from bridge.broker.connection import BrokerError, connect
from bridge.limits import ConnectionLimits
from bridge.protocol.service_url import parse_service_url
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import service_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("pulsar://a", ("a", 6650, False)),
        ("pulsar+ssl://a", ("a", 6651, True)),
        ("pulsar://a:1", ("a", 1, False)),
        ("pulsar+ssl://[::1]:6650", ("::1", 6650, True)),
    ],
)
def test_addresses_have_the_usual_ports(url: str, address: tuple[str, int, bool]) -> None:
    assert parse_service_url(url) == address


@pytest.mark.parametrize(
    "url", ["", "a:6650", "http://a", "pulsar://", "pulsar://:6650", "pulsar://a:x", "pulsar://a:65536", "pulsar://[a"]
)
async def test_what_is_none_is_named_by_all_who_meet_it(url: str) -> None:
    with pytest.raises(ValueError, match="not a service URL") as caught:
        parse_service_url(url)
    assert repr(url) in str(caught.value)
    with pytest.raises(LedgerReadError, match="not a service URL"):
        service_address(url)
    with pytest.raises(BrokerError, match="not a service URL"):
        await connect(url, ConnectionLimits())
