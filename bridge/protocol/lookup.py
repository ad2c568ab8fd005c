"""A lookup, from broker to broker until one names the owner of a topic: an answer in, the next step out. Pure."""

from typing import NamedTuple

from bridge.protocol.pulsar_pb2 import CommandLookupTopicResponse, ServerError
from bridge.protocol.service_url import TLS_SCHEME, ServiceUrls

REDIRECTS_MAX = 20
"""As the official clients' `maxLookupRedirects`."""


class Ask(NamedTuple):
    """The broker at `url` is to be asked, as one that owns the topic or is to become its owner if `authoritative`."""

    url: str
    authoritative: bool = False
    earlier: int = 0
    """How many were asked before."""


class Found(NamedTuple):
    """The owner is reached by `url`; if it is behind a proxy there, it is `behind`."""

    url: str
    behind: str | None = None
    authoritative: bool = False
    """As the broker said it."""


class Refused(NamedTuple):
    """A broker's refusal, or one more redirect than anybody follows."""

    code: ServerError
    message: str


def next_step(asked: Ask, answer: CommandLookupTopicResponse, topic: str) -> Ask | Found | Refused:
    """What to do about the answer to `asked`. Of the owner's two URLs it takes the one with TLS if the asked had it."""
    if answer.response == CommandLookupTopicResponse.Failed:
        return Refused(answer.error, answer.message)
    urls = answer.brokerServiceUrl, answer.brokerServiceUrlTls
    if asked.url.startswith(TLS_SCHEME):
        urls = urls[1], urls[0]
    url = urls[0] or urls[1]
    if answer.response == CommandLookupTopicResponse.Connect:
        through = answer.proxy_through_service_url
        return Found(asked.url if through else url, url if through else None, answer.authoritative)
    if asked.earlier + 1 >= REDIRECTS_MAX:
        return Refused(ServerError.ServiceNotReady, f"lookup of {topic} was redirected {REDIRECTS_MAX} times")
    return Ask(url, answer.authoritative, asked.earlier + 1)


def led_to(found: Found, owner: ServiceUrls, by_tls: bool, topic: str) -> Found | Refused:
    """What a client is told when a broker was found: the bridge that owns the topic, reached as the client came here.

    Whoever came by TLS has said that nobody is to listen: better no answer than one that leads away from it.
    """
    url = owner.tls if by_tls else owner.plain
    if url is None:
        how = "with" if by_tls else "without"
        reason = f"the bridge that owns {topic}, {owner.name}, is not known to serve clients {how} TLS"
        return Refused(ServerError.ServiceNotReady, f"{reason}, as this one came")
    return Found(url, authoritative=found.authoritative)
