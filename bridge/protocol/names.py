"""Topic names as Pulsar completes them, and the name that is the bridge's own."""

import re
from typing import NamedTuple
from urllib.parse import quote

_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,9})\Z")
_MAX_PARTITION = (1 << 31) - 1
_DOMAINS = ("persistent", "non-persistent")
HIDDEN_SUBSCRIPTION = "__delay-bridge"
"""Of every tracked topic: elects its owner and keeps what the bridge read up to. Clients' may not begin like it."""


class TopicName(NamedTuple):
    """A topic's full name in its parts; `str()` gives `persistent://tenant/namespace/name`."""

    domain: str
    tenant: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "TopicName":
        """Complete short names (`NAME`, `tenant/namespace/NAME`). Raises ValueError naming the value.

        Source: the broker's `TopicName.get`; names of the old form with a cluster are refused.
        """
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
            if rest.count("/") == 0:
                rest = f"public/default/{rest}"
        parts = rest.split("/", 2)
        if domain not in _DOMAINS or len(parts) != 3 or not all(parts):
            raise ValueError(
                f"not a topic name: {text!r} (expected persistent://tenant/namespace/name, or a short name)"
            )
        return cls(domain, *parts)

    def __str__(self) -> str:
        """The full name."""
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.name}"

    @property
    def persistent(self) -> bool:
        """Whether the topic is stored; only such topics can be tracked."""
        return self.domain == "persistent"

    @property
    def rest_path(self) -> str:
        """The path of the topic below `/admin/v2/`, each part URL-encoded."""
        return "/".join((self.domain, quote(self.tenant, ""), quote(self.namespace, ""), quote(self.name, "")))

    @property
    def partition(self) -> int:
        """The index of a partition of a partitioned topic, else -1; `t-partition-01` is none."""
        match = _PARTITION.search(self.name)
        index = int(match[1]) if match else -1
        return index if index <= _MAX_PARTITION else -1
