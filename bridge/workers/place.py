"""What a worker is told by whoever started it: which of them it is, and what they share."""

import json
import os
from collections.abc import Mapping
from typing import NamedTuple, Self

VARIABLE = "_DELAY_BRIDGE_PLACE"
"""Of the environment."""
UP = b"up"
"""Said on the line once clients are accepted."""
BEAT = b"."
"""Said now and then from then on."""


class Ports(NamedTuple):
    """A worker's own."""

    plain: int
    tls: int
    web: int


class Place(NamedTuple):
    """One worker's. Files are open in it from the start, by their numbers.

    `line`: it ends when whoever looks after the workers is gone. `shared`, `shared_tls`: where all of them accept
    clients; None where nobody does.
    """

    number: int
    ports: tuple[Ports, ...]
    line: int
    shared: int | None
    shared_tls: int | None

    @property
    def own(self) -> Ports:
        """The worker's own ports."""
        return self.ports[self.number]

    @property
    def files(self) -> list[int]:
        """What it has to inherit."""
        return [each for each in (self.line, self.shared, self.shared_tls) if each is not None]

    def environment(self) -> dict[str, str]:
        """What tells a child of its place."""
        return {VARIABLE: json.dumps(self._asdict())}

    @classmethod
    def told(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """This process's; None for one that is no worker."""
        text = environment.get(VARIABLE)
        if text is None:
            return None
        found = json.loads(text)
        return cls(**{**found, "ports": tuple(Ports(*each) for each in found["ports"])})
