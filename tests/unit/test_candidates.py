"""Which candidates are taken for bridges."""

import pytest

from bridge.broker.candidates import (
    SIGNATURE,
    SIGNED_AT,
    STATEMENT_LASTS_MS,
    TLS_SIGNATURE,
    TLS_URL,
    WEB_URL,
    Candidate,
    Candidates,
    Elected,
    Peers,
)

TOPIC, ANOTHER = "persistent://public/default/orders", "persistent://public/default/others"
A, B, EVIL = "pulsar://a:6650", "pulsar://b:6650", "pulsar://evil:6650"
WEB_A, WEB_B = "http://a:8081", "http://b:8081"
NOW_MS = 1_800_000_000_000
SECRET = "a-secret-of-the-tests"
PEERS = Peers(SECRET)


def signed(url: str, web_url: str, topic: str = TOPIC, at_ms: int = NOW_MS, peers: Peers = PEERS) -> Candidate:
    return Candidate(url, None, peers.metadata(topic, url, web_url, at_ms), NOW_MS)


OWN = signed(A, WEB_A)


def judged(candidate: Candidate, peers: Peers = PEERS, own: Candidate = OWN) -> Elected:
    known = Candidates(candidate.name, [own, candidate])
    peers.note_own_role(own.name, known)
    return peers.judge(TOPIC, own.name, known)


def test_a_signed_statement_is_believed() -> None:
    assert judged(signed(B, WEB_B)) == Elected(B, WEB_B)


@pytest.mark.parametrize(
    ("candidate", "doubt"),
    [
        (Candidate(EVIL, None, {WEB_URL: WEB_B}), "brings no statement"),
        (Candidate(EVIL), "brings no statement"),
        (signed(B, WEB_B, peers=Peers("another-secret")), "not signed with this cluster_secret"),
        (signed(B, WEB_B, topic=ANOTHER), "not signed with this cluster_secret"),
        (signed(B, WEB_B)._replace(name=EVIL), "not signed with this cluster_secret"),
        (Candidate(B, None, {**signed(B, WEB_B).metadata, WEB_URL: "http://evil"}), "not signed with"),
        (Candidate(B, None, {**signed(B, WEB_B).metadata, SIGNED_AT: "x"}), "not signed with"),
        (Candidate(B, None, {**signed(B, WEB_B).metadata, SIGNATURE: "\udcff"}), "not signed with"),
        (signed(B, WEB_B, at_ms=NOW_MS - STATEMENT_LASTS_MS - 1), "signed long before it connected"),
    ],
)
def test_what_is_not_signed_for_this_is_not_believed(candidate: Candidate, doubt: str) -> None:
    elected = judged(candidate)
    assert (elected.url, elected.web_url) == (None, None)
    assert doubt in (elected.doubt or "")


def test_a_copy_of_a_statement_leads_to_the_bridge_that_signed_it() -> None:
    copied = signed(B, WEB_B)
    assert judged(copied, own=OWN) == Elected(B, WEB_B)
    # Where it is the bridge's own, it stays, and says so.
    elected = PEERS.judge(TOPIC, A, Candidates(A, [OWN, OWN]))
    assert (elected.url, elected.web_url) == (A, None)
    assert "several consumers stand for it under this bridge's own URL" in (elected.doubt or "")


def test_without_a_secret_the_role_counts() -> None:
    ours, theirs = Candidate(A, "bridge", {WEB_URL: WEB_A}), Candidate(B, "bridge", {WEB_URL: WEB_B})
    assert judged(theirs, Peers(), ours) == Elected(B, WEB_B)
    elected = judged(theirs._replace(role="consumer"), Peers(), ours)
    assert elected.url is None
    assert "a consumer of the role 'consumer' that is no known bridge" in (elected.doubt or "")
    assert "no cluster_secret" in (elected.doubt or "")


def test_nobody_makes_himself_a_peer_under_this_bridges_name() -> None:
    ours, false = Candidate(A, "bridge"), Candidate(A, "consumer")
    evil = Candidate(EVIL, "consumer")
    peers = Peers()
    peers.note_own_role(A, Candidates(EVIL, [ours, false, evil]))
    assert peers.judge(TOPIC, A, Candidates(EVIL, [ours, false, evil])).url is None
    # What was learned stays, also while this bridge does not stand.
    peers.note_own_role(A, Candidates(A, [ours]))
    peers.note_own_role(A, Candidates(EVIL, [false, evil]))
    assert peers.judge(TOPIC, A, Candidates(EVIL, [false, evil])).url is None
    assert peers.judge(TOPIC, A, Candidates(B, [Candidate(B, "bridge")]), settled=False) == Elected(B)


def test_without_authentication_bridges_follow_each_other() -> None:
    assert judged(Candidate(B, None, {WEB_URL: WEB_B}), Peers(), Candidate(A)) == Elected(B, WEB_B)
    assert judged(Candidate(B), Peers(), Candidate(A)) == Elected(B)


@pytest.mark.parametrize(
    ("allowed", "url", "web_url", "believed"),
    [
        ("pulsar://b:6650 http://b:8081", B, WEB_B, True),
        ("pulsar://b:6650", B, WEB_B, False),
        ("pulsar://bridge-*.example:6650", "pulsar://bridge-2.example:6650", None, True),
        ("pulsar://bridge-*.example:6650", "pulsar://bridge-2.evil.example:6650", None, False),
        ("pulsar://bridge-*.example:6650", "pulsar://bridge-2.example:6651", None, False),
        ("pulsar://10.0.0.*:6650", "pulsar://10x0.0.1:6650", None, False),
        ("", B, "javascript://b", False),
        ("", B, "http://b\r\nSet-Cookie:x", False),
        ("", "pulsar://b:6650,evil:6650", None, False),
        ("", "pulsar://user@evil:6650", None, False),
        ("", "b", None, False),
        ("", "pulsar://[::1]:6650", "https://[::1]:8081/bridge", True),
    ],
)
def test_which_urls_are_followed(allowed: str, url: str, web_url: str | None, believed: bool) -> None:
    metadata = {} if web_url is None else {WEB_URL: web_url}
    elected = judged(Candidate(url, None, metadata), Peers(None, allowed.split()), Candidate(A))
    assert (elected.url == url, elected.doubt is None) == (believed, believed)


def test_nobody_is_the_owner_before_the_broker_says_so() -> None:
    assert PEERS.judge(TOPIC, A, Candidates(None, [OWN]), settled=False) == Elected()
    assert PEERS.judge(TOPIC, A, Candidates(B, [OWN]), settled=False) == Elected()
    assert PEERS.judge(TOPIC, A, Candidates(None, [OWN])).doubt == "the broker elected nobody"
    assert "broker_web_url" in (PEERS.judge(TOPIC, A, Candidates(None, [])).doubt or "")


def test_the_secret_is_not_in_what_is_stated() -> None:
    assert set(Peers().metadata(TOPIC, A, WEB_A, NOW_MS)) == {WEB_URL}
    assert SECRET not in str(PEERS.metadata(TOPIC, A, WEB_A, NOW_MS))


# -- where a bridge serves clients with TLS

TLS_B, TLS_EVIL = "pulsar+ssl://b:6651", "pulsar+ssl://evil:6651"


def with_tls(tls_url: str = TLS_B, peers: Peers = PEERS, **changed: str) -> Candidate:
    stated = peers.metadata(TOPIC, B, WEB_B, NOW_MS, tls_url)
    return Candidate(B, None, stated | {name.replace("_", "-"): value for name, value in changed.items()}, NOW_MS)


def signature(topic: str, url: str) -> str:
    """Of a right statement on TLS, of something else."""
    return PEERS.metadata(topic, url, WEB_B, NOW_MS, TLS_B)[TLS_SIGNATURE]


def test_what_is_said_of_tls_is_believed() -> None:
    assert judged(with_tls()) == Elected(B, WEB_B, None, TLS_B)
    assert judged(with_tls(peers=Peers()), Peers(), Candidate(A)) == Elected(B, WEB_B, None, TLS_B)


@pytest.mark.parametrize(
    "candidate",
    [
        signed(B, WEB_B),
        with_tls(tls_url=TLS_EVIL, tls_signature=signature(TOPIC, B)),
        with_tls(tls_signature="\udcff"),
        with_tls(tls_signature=signature(ANOTHER, B)),
        with_tls(tls_signature=signature(TOPIC, A)),
        with_tls(tls_signature=with_tls().metadata[SIGNATURE]),
        signed(B, WEB_B)._replace(metadata={**signed(B, WEB_B).metadata, TLS_URL: TLS_B}),
    ],
)
def test_a_bridge_whose_word_on_tls_is_not_signed_is_a_bridge_without(candidate: Candidate) -> None:
    assert judged(candidate) == Elected(B, WEB_B)


def test_who_does_not_know_of_tls_sees_what_it_knows() -> None:
    """Bridges of the release before look at these names alone."""
    known = {name: value for name, value in with_tls().metadata.items() if not name.startswith("tls-")}
    assert known == signed(B, WEB_B).metadata


@pytest.mark.parametrize(
    ("allowed", "tls_url", "believed"),
    [
        ("pulsar://b:6650 http://b:8081 pulsar+ssl://b:6651", TLS_B, True),
        ("pulsar://b:6650 http://b:8081", TLS_B, False),
        ("", "pulsar://b:6650", False),
        ("", "pulsar+ssl://b:6651,evil:6651", False),
        ("", "pulsar+ssl://[::1]:6651", True),
    ],
)
def test_which_urls_with_tls_are_followed(allowed: str, tls_url: str, believed: bool) -> None:
    elected = judged(with_tls(tls_url=tls_url, peers=Peers()), Peers(None, allowed.split()), Candidate(A))
    assert elected == Elected(B, WEB_B, None, tls_url if believed else None)


def test_a_bridge_without_a_plain_port_says_it_by_its_name() -> None:
    assert TLS_URL not in PEERS.metadata(TOPIC, TLS_B, WEB_B, NOW_MS, TLS_B)
    assert judged(signed(TLS_B, WEB_B)) == Elected(TLS_B, WEB_B)


def test_standbys_are_the_same_to_all_who_ask() -> None:
    urls = [f"pulsar://{name}:6650" for name in "abcdef"]
    bridges = [signed(url, WEB_A) for url in urls]
    known = Candidates(urls[2], bridges)
    chosen = PEERS.standbys(TOPIC, known, 2)
    assert len(chosen) == 2
    assert urls[2] not in chosen, "the owner"
    assert PEERS.standbys(TOPIC, Candidates(urls[2], bridges[::-1]), 2) == chosen
    assert PEERS.standbys(TOPIC, known, 0) == set()
    assert PEERS.standbys(TOPIC, known, 100) == {*urls} - {urls[2]}


def test_each_bridge_stands_by_for_some_topics() -> None:
    urls = [f"pulsar://{name}:6650" for name in "abcd"]
    known = Candidates(urls[0], [Candidate(url) for url in urls])
    topics = [f"{TOPIC}-{number}" for number in range(300)]
    counts = [sum(url in Peers().standbys(topic, known, 1) for topic in topics) for url in urls[1:]]
    assert sum(counts) == 300
    assert min(counts) > 60


def test_a_stranger_is_no_standby() -> None:
    known = Candidates(A, [OWN, signed(B, WEB_B), Candidate(EVIL, None, {WEB_URL: WEB_B})])
    assert PEERS.standbys(TOPIC, known, 2) == {B}


def test_when_a_bridge_can_be_told_from_somebody_else() -> None:
    assert PEERS.can_tell
    assert Peers(urls=["pulsar://b-*:6650"]).can_tell
    anybody = Peers()
    anybody.note_own_role(A, Candidates(None, [Candidate(A, None)]))
    assert not anybody.can_tell
    by_role = Peers()
    by_role.note_own_role(A, Candidates(None, [Candidate(A, "bridge")]))
    assert by_role.can_tell
