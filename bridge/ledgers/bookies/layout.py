"""Which bookies have which entries of a ledger: read from what `internalStats?metadata=true` says of it.

The broker prints BookKeeper's metadata as text (source: `LedgerMetadataImpl.toSafeString`, which leaves the password
out; reading without fencing needs none).
"""

from __future__ import annotations

import ipaddress
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bridge.ledgers.bookies.digests import Digest

_NUMBER = r"\b{}=(\d+)"
_ENSEMBLES = re.compile(r"\bensembles=\{(.*?)\}")
_ENSEMBLE = re.compile(r"(\d+)=\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]")
_ADDRESS = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})")


class Bookie(NamedTuple):
    """Where one listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """As people write it."""
        return f"{self.host}:{self.port}"


class Ensemble(NamedTuple):
    """The bookies that entries are spread over, from one on until the next ensemble's first."""

    first_entry: int
    bookies: tuple[Bookie, ...]


class LedgerLayout(NamedTuple):
    """One ledger. `ensembles` are in the order of their first entries; the first one's is 0."""

    write_quorum: int
    digest: Digest
    ensembles: tuple[Ensemble, ...]

    def ensemble_of(self, entry: int) -> Ensemble:
        """Return the ensemble that an entry was written to."""
        return self.ensembles[bisect_right(self.ensembles, entry, key=_first_entry) - 1]

    def end_of(self, entry: int) -> int | None:
        """Return the first entry behind an entry's ensemble, None when that is the last one."""
        place = bisect_right(self.ensembles, entry, key=_first_entry)
        return self.ensembles[place].first_entry if place < len(self.ensembles) else None

    def is_striped(self, entry: int) -> bool:
        """Tell whether a bookie of an entry's ensemble has only some of the entries."""
        return len(self.ensemble_of(entry).bookies) > self.write_quorum

    def bookies_of(self, entry: int) -> list[Bookie]:
        """Return those that have an entry, in the order in which it was written to them.

        Source: `RoundRobinDistributionSchedule.getWriteSet`.
        """
        bookies = self.ensemble_of(entry).bookies
        count = len(bookies)
        return [bookies[(entry + place) % count] for place in range(min(self.write_quorum, count))]


Layout = LedgerLayout | str
"""Of a ledger, or why it cannot be read from bookies."""


def layouts_in(body: Mapping[str, Any], web_url: str) -> dict[int, Layout]:
    """Return what the broker's answer says of each ledger. `web_url`: where the broker was asked.

    A bookie on a loopback address is that of the broker's machine. Where the broker is on another one, whatever listens
    here may be a bookie of another cluster, with other entries under the same numbers.
    """
    layouts: dict[int, Layout] = {}
    here = _is_loopback(urlsplit(web_url).hostname or "")
    for told in body["ledgers"]:
        ledger = int(told["ledgerId"])
        if told.get("offloaded"):
            layouts[ledger] = f"ledger {ledger} is offloaded"
            continue
        try:
            layouts[ledger] = layout = parse_layout(told.get("metadata"))
            if not here and (there := _on_loopback(layout)):
                layouts[ledger] = f"ledger {ledger}: {there} is an address of the broker's own machine"
        except ValueError as error:
            layouts[ledger] = f"ledger {ledger}: {error}"
    return layouts


def _on_loopback(layout: LedgerLayout) -> Bookie | None:
    every = (bookie for ensemble in layout.ensembles for bookie in ensemble.bookies)
    return next((bookie for bookie in every if _is_loopback(bookie.host)), None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_layout(text: object) -> LedgerLayout:
    """Read one ledger's metadata. Raises ValueError naming what is missing or not understood."""
    if not isinstance(text, str) or not text:
        raise ValueError("the broker does not say where it lies")
    found = _ENSEMBLES.search(text)
    if found is None:
        raise ValueError(f"no ensembles in {text[:200]!r}")
    ensembles = tuple(
        Ensemble(int(first), tuple(_bookie(each) for each in members.split(", ")))
        for first, members in _ENSEMBLE.findall(found[1])
    )
    firsts = [each.first_entry for each in ensembles]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise ValueError(f"ensembles that do not begin at 0, or are in no order: {found[0][:200]!r}")
    write_quorum = _number(text, "writeQuorumSize")
    if write_quorum < 1:
        raise ValueError(f"writeQuorumSize is {write_quorum}")
    return LedgerLayout(write_quorum, _digest(text), ensembles)


def _number(text: str, name: str) -> int:
    found = re.search(_NUMBER.format(name), text)
    if found is None:
        raise ValueError(f"no {name} in {text[:200]!r}")
    return int(found[1])


def _digest(text: str) -> Digest:
    found = re.search(r"\bdigestType=(\w+)", text)
    name = found[1] if found else "none"
    try:
        return Digest[name]
    except KeyError:
        raise ValueError(f"the digest {name} cannot be checked") from None


def _bookie(text: str) -> Bookie:
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"a bookie that is named by no address: {text.strip()!r}")
    return Bookie(found[1] or found[2], int(found[3]))


def _first_entry(ensemble: Ensemble) -> int:
    return ensemble.first_entry
