"""The calls of the broker's admin REST interface that a job makes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from bridge.protocol.names import TopicName
from spark_jobs import limits
from spark_jobs.errors import LedgerReadError, NotYet
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.stats import TopicState

_REFUSED = {401: "not authenticated", 403: "no permission", 404: "no such topic"}


def topic_state(access: ClusterAccess, topic: str, *, layouts: bool = False) -> TopicState:
    """Ask for ledgers and cursors of a topic partition; redirects to the owning broker are followed.

    `layouts`: also where the ledgers lie, for which the broker asks the metadata store.

    Raises LedgerReadError, or NotYet when it may work a moment later.
    """
    path = f"/admin/v2/{TopicName.parse(topic).rest_path}/internalStats"
    return TopicState.of(_get(access, f"{path}?metadata=true" if layouts else path, topic), access.web_url)


def _get(access: ClusterAccess, path: str, topic: str) -> dict[str, Any]:
    request = urllib.request.Request(access.web_url + path)
    token = access.auth_token()
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    context = access.tls_context() if access.web_url.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=limits.REQUEST_TIMEOUT_S, context=context) as response:
            body: dict[str, Any] = json.load(response)
            return body
    except urllib.error.HTTPError as error:
        with error:
            reason = _reason_in(error)
        what = _REFUSED.get(error.code, "the broker refused")
        if error.code == 401 and reason.startswith("Unauthorized to "):
            what = _REFUSED[403]  # a role that is known but may not gets this status too
        message = f"{topic}: {what} ({error.code} {reason})"
        raise (LedgerReadError(message) if error.code in _REFUSED else NotYet(message)) from error
    except (OSError, ValueError) as error:
        raise NotYet(f"cannot reach {access.web_url}: {error}") from error


def _reason_in(error: urllib.error.HTTPError) -> str:
    """What the broker says of it, else what the status is called: some answers are pages."""
    try:
        return str(json.load(error)["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)
