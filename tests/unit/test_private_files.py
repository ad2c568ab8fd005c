"""Who may look into a data directory."""

import os
import stat
from pathlib import Path

import pytest

from tracker import Store, StoreError
from tracker.store.private_files import keep_private

KNOWN = "known"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def made(folder: Path) -> Path:
    """A data directory as an older version left it."""
    (folder / "jobs").mkdir(parents=True)
    folder.chmod(0o755)
    for name in (KNOWN, "jobs/spec.json"):
        (folder / name).touch()
        (folder / name).chmod(0o664)
    return folder


def test_a_new_directory_is_its_owners_alone(tmp_path: Path) -> None:
    assert keep_private(tmp_path / "a" / "b", KNOWN) is None
    assert mode(tmp_path / "a" / "b") == 0o700


def test_what_is_there_is_tightened(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    assert keep_private(data, KNOWN) is None
    assert [mode(path) for path in (data, data / "jobs", data / KNOWN, data / "jobs/spec.json")] == [
        *(0o700, 0o700),
        *(0o600, 0o600),
    ]


def test_what_links_lead_to_is_left(tmp_path: Path) -> None:
    outside = made(tmp_path / "outside")
    data = made(tmp_path / "data")
    (data / "folder").symlink_to(outside)
    (data / "file").symlink_to(outside / KNOWN)
    assert keep_private(data, KNOWN) is None
    assert (mode(outside), mode(outside / KNOWN)) == (0o755, 0o664)


def test_a_directory_that_cannot_be_closed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to somebody else, as the root of a mounted volume does."""
    data = made(tmp_path / "data")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    reason = keep_private(data, KNOWN)
    assert reason == f"others may look into the data directory {data}: its mode is 0755, its owner user {os.getuid()}"


def test_a_directory_for_everybody_is_left(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    data.chmod(0o1777)
    assert "its mode is 1777" in (keep_private(data, KNOWN) or "")
    assert mode(data) == 0o1777


def test_root_does_not_close_what_belongs_to_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "lost+found").mkdir()
    assert keep_private(tmp_path, KNOWN) is None
    (tmp_path / "passwd").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(StoreError, match="holds other files"):
        keep_private(tmp_path, KNOWN)
    assert mode(tmp_path) == 0o755


def test_a_store_says_whether_it_is_private(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        assert store.exposed is None
        assert mode(tmp_path / "data") == 0o700
