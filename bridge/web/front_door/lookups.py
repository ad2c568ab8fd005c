"""The broker's answer to a lookup by HTTP, with the bridge's addresses in place of the broker's. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bridge.protocol.lookup import Found, Refused, led_to
from bridge.protocol.service_url import ServiceUrls


class NotToldHow(Exception):
    """The caller cannot be led to the topic; the message says why."""


def led(text: bytes, owner: ServiceUrls, web_urls: tuple[str | None, str | None], topic: str, *, by_tls: bool) -> bytes:
    """What the caller is told, where the broker told `text`.

    Clients take the URL that fits the scheme they asked by: without one for it they are refused. `web_urls`: those of
    this bridge, without TLS and with it. Source of the fields: the broker's `LookupData`. Raises NotToldHow.
    """
    found = _object(text)
    step = led_to(Found(str(found.get("brokerUrl"))), owner, by_tls, topic)
    if isinstance(step, Refused):
        raise NotToldHow(step.message)
    http, https = web_urls
    told = {
        "brokerUrl": owner.plain,
        "brokerUrlTls": owner.tls,
        "httpUrl": http,
        "httpUrlTls": https,
        "nativeUrl": owner.plain,
        "brokerUrlSsl": owner.tls or "",  # of before 2.0, always there
    }
    return json.dumps({name: value for name, value in told.items() if value is not None}).encode()


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, Mapping):
        raise NotToldHow("the broker's answer to the lookup cannot be read")
    return found
