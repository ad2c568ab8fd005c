"""What a killed broker still holds in its metadata."""

from pathlib import Path

from rocksdict import Options, Rdict

from bridge.embedded.sessions import forget_sessions, is_ephemeral


def node(ephemeral: int, value: bytes = b"v") -> bytes:
    """As RocksdbMetadataStore has it: size of the header, format, version, owner, created, modified, flag; value."""
    numbers = (41).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"".join(n.to_bytes(8, "big") for n in (0, 1, 9, 9))
    return numbers + bytes([ephemeral]) + value


def test_only_what_ends_with_its_session_goes(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path), Options(raw_mode=True))
    database[b"/ledgers/available/127.0.0.1:1"] = node(1)
    database[b"/managed-ledgers/public/default/persistent/t"] = node(0)
    database[b"\x00of its own"] = b"\x00" * 7
    database.close()
    assert forget_sessions(tmp_path) == 1
    assert forget_sessions(tmp_path) == 0
    left = Rdict(str(tmp_path), Options(raw_mode=True))
    assert set(left.keys()) == {b"/managed-ledgers/public/default/persistent/t", b"\x00of its own"}
    left.close()


def test_where_nothing_ran_nothing_is_made(tmp_path: Path) -> None:
    assert forget_sessions(tmp_path / "metadata") == 0
    assert not (tmp_path / "metadata").exists()


def test_short_and_other_values_are_left() -> None:
    assert not is_ephemeral(b"")
    assert not is_ephemeral(node(1)[:40])
    assert not is_ephemeral((40).to_bytes(4, "big") + node(1)[4:])
