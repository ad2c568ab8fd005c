"""Who stands for a topic partition, and whether it is a bridge. Pure.

Whoever may consume from a topic may stand beside the bridges, under any name. Believed is a candidate that the broker
knows by the same role as this bridge, or, where bridges share a secret, one that brings a statement signed with it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

WEB_URL, SIGNED_AT, SIGNATURE = "web-url", "signed-at", "signature"
"""Metadata of a bridge's consumer: where its REST is; when the statement was signed, in epoch ms; its HMAC-SHA256."""
TLS_URL, TLS_SIGNATURE = "tls-url", "tls-signature"
"""Where it serves clients with TLS beside those without, signed for itself: bridges that do not know of it need not."""
STATEMENT_LASTS_MS: Final = 300_000
"""A candidate's statement is of when it connected: clocks may be off, and the broker be slow, by so much."""
LEVEL: Final = "priority-level"
"""The priority level that a candidate stands at: brokers do not list it."""
_SERVICE_URL = re.compile(r"pulsar(\+ssl)?://[\w.:\[\]-]+", re.ASCII)
_TLS_URL = re.compile(r"pulsar\+ssl://[\w.:\[\]-]+", re.ASCII)
_WEB_URL = re.compile(r"https?://[\w.:\[\]-]+(/[\w./~%-]*)?", re.ASCII)
_SIGNED_AS = "pulsar-delay-bridge stands for a topic, 1"
_TLS_SIGNED_AS = "pulsar-delay-bridge serves a topic with TLS, 1"


class Candidate(NamedTuple):
    """A consumer of the hidden subscription, as the broker shows it."""

    name: str
    """A bridge's is its service URL."""
    role: str | None = None
    """Whom the broker took it for when it connected; None where it does not ask."""
    metadata: Mapping[str, str] = {}
    connected_ms: int | None = None

    @property
    def level(self) -> int:
        """What it says of its priority level; the broker elects among those of the lowest. 0 where it says nothing."""
        said = self.metadata.get(LEVEL, "")
        return int(said) if said.isascii() and said.isdecimal() and len(said) <= 10 else 0


class Candidates(NamedTuple):
    """All who stand for a topic partition, and the name of the elected one, if there is one."""

    active: str | None
    all: Sequence[Candidate]


class Elected(NamedTuple):
    """The owner as far as it can be believed: its URLs, and else why it cannot."""

    url: str | None = None
    web_url: str | None = None
    doubt: str | None = None
    tls_url: str | None = None


class Peers:
    """What the bridges of a cluster know each other by."""

    def __init__(self, secret: str | None = None, urls: Sequence[str] = ()) -> None:
        """`secret`: all bridges have the same one; `urls`: those they may have, `*` for a part between dots."""
        self._secret = None if secret is None else secret.encode()
        self._own_role: str | None = None
        self._knows_own_role = False
        self._allowed = [re.compile(r"[^.:/]*".join(map(re.escape, one.split("*")))) for one in urls]

    def metadata(self, topic: str, url: str, web_url: str, now_ms: int, tls_url: str | None = None) -> dict[str, str]:
        """Return what this bridge's consumer says of itself."""
        stated, at = {WEB_URL: web_url}, str(now_ms)
        if self._secret is not None:
            stated |= {SIGNED_AT: at, SIGNATURE: self._sign(_SIGNED_AS, topic, url, web_url, at)}
        if tls_url is not None and tls_url != url:
            stated[TLS_URL] = tls_url
            if self._secret is not None:
                stated[TLS_SIGNATURE] = self._sign(_TLS_SIGNED_AS, topic, url, tls_url, at)
        return stated

    def note_own_role(self, own_url: str, known: Candidates) -> None:
        """Learn whom the broker takes this bridge for; it must stand for the topic.

        Once and for all: later somebody else may stand under its name, while it does not.
        """
        roles = {each.role for each in known.all if each.name == own_url}
        if not self._knows_own_role and len(roles) == 1:
            self._own_role, self._knows_own_role = roles.pop(), True

    def judge(self, topic: str, own_url: str, known: Candidates, settled: bool = True) -> Elected:
        """Tell who owns a topic partition; `settled`: whether the broker had the time to elect somebody."""
        named = [each for each in known.all if each.name == known.active]
        if settled and all(each.name != own_url for each in known.all):
            return Elected(
                doubt="the broker's statistics do not list this bridge: is broker_web_url another cluster's?"
            )
        if not named:
            return Elected(doubt="the broker elected nobody" if settled else None)
        if known.active == own_url:
            several = f"several consumers stand for it under this bridge's own URL {own_url}"
            return Elected(own_url, None, several if len(named) > 1 else None)
        doubts = [self._doubt(topic, each) for each in named]
        for each, doubt in zip(named, doubts, strict=True):
            if doubt is None:
                return Elected(each.name, each.metadata.get(WEB_URL), None, self._tls_url(topic, each))
        role = "" if named[0].role is None else f" of the role {named[0].role!r}"
        return Elected(doubt=f"the broker elected a consumer{role} that is no known bridge: {doubts[0]}")

    def standbys(self, topic: str, known: Candidates, count: int) -> set[str]:
        """The URLs of the bridges that are to be ready to take a topic partition over, of those that stand for it."""
        return ready_ones(topic, (one.name for one in self.bridges(topic, known) if one.name != known.active), count)

    @property
    def can_tell(self) -> bool:
        """Whether a bridge can be told from somebody else: only then is it shown a token."""
        return self._secret is not None or self._own_role is not None or bool(self._allowed)

    def bridges(self, topic: str, known: Candidates) -> list[Candidate]:
        """Those of the candidates that are bridges."""
        return [one for one in known.all if self._doubt(topic, one) is None]

    def _doubt(self, topic: str, candidate: Candidate) -> str | None:
        """Say why a candidate is not taken for a bridge, None when it is."""
        name, web_url = candidate.name, candidate.metadata.get(WEB_URL)
        if not _SERVICE_URL.fullmatch(name) or (web_url is not None and not _WEB_URL.fullmatch(web_url)):
            return f"what it names is no URL: {_short(name)}, {_short(web_url)}"
        for url in (name, web_url):
            if url is not None and not self._allows(url):
                return f"peer_urls does not allow {_short(url)}"
        if self._secret is not None:
            return self._doubt_statement(topic, candidate)
        if candidate.role != self._own_role:
            return f"{_short(name)} is not of this bridge's own role, and no cluster_secret is set"
        return None

    def _tls_url(self, topic: str, candidate: Candidate) -> str | None:
        """Where a candidate that is a bridge serves clients with TLS, if what it says of that can be believed."""
        stated = candidate.metadata
        url = stated.get(TLS_URL)
        if url is None or not _TLS_URL.fullmatch(url) or not self._allows(url):
            return None
        if self._secret is not None:
            right = self._sign(_TLS_SIGNED_AS, topic, candidate.name, url, stated.get(SIGNED_AT, ""))
            if not hmac.compare_digest(stated.get(TLS_SIGNATURE, "").encode(errors="replace"), right.encode()):
                return None
        return url

    def _allows(self, url: str) -> bool:
        return not self._allowed or any(one.fullmatch(url) for one in self._allowed)

    def _doubt_statement(self, topic: str, candidate: Candidate) -> str | None:
        name, stated = candidate.name, candidate.metadata
        given, signed_at = stated.get(SIGNATURE), stated.get(SIGNED_AT, "")
        if given is None:
            return f"{_short(name)} brings no statement signed with cluster_secret"
        right = self._sign(_SIGNED_AS, topic, name, stated.get(WEB_URL, ""), signed_at)
        if not hmac.compare_digest(given.encode(errors="replace"), right.encode()):
            return f"{_short(name)} brings a statement that is not signed with this cluster_secret"
        # Whoever sees the statistics can copy a statement, which leads to the bridge that signed it, if that still is.
        connected_ms = candidate.connected_ms
        if connected_ms is not None and abs(connected_ms - int(signed_at)) > STATEMENT_LASTS_MS:
            return f"{_short(name)} brings a statement signed long before it connected, or a clock is wrong"
        return None

    def _sign(self, signed_as: str, topic: str, url: str, other_url: str, signed_at: str) -> str:
        assert self._secret is not None
        said = json.dumps([signed_as, topic, url, other_url, signed_at]).encode()
        return hmac.new(self._secret, said, hashlib.sha256).hexdigest()


def ready_ones(topic: str, urls: Iterable[str], count: int) -> set[str]:
    """Which bridges are to be ready to take a topic partition over: the same to all who ask.

    By chance of their names: each bridge is ready for some of the topics, and few change when one comes or goes.
    """
    return set(sorted(set(urls), key=lambda url: hashlib.sha256(f"{topic} {url}".encode()).digest())[:count])


def _short(text: str | None) -> str:
    """What somebody else wrote, for a log line."""
    return repr(text if text is None else text[:200])
