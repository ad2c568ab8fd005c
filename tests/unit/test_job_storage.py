"""Where jobs write: on this machine, and by pyarrow, which has to do just the same."""

import re
from pathlib import Path

import pytest

from spark_jobs.storage import Storage, StorageError


@pytest.fixture(params=["local", "by pyarrow"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A folder that is not there yet."""
    place = tmp_path / "some where" / "job"
    return Storage(str(place) if request.param == "local" else place.as_uri())


def test_files_that_are_written_whole(storage: Storage, tmp_path: Path) -> None:
    assert storage.read("ranges/1.json") is None
    assert storage.names("ranges", ".json") == []
    for name in ("ranges/2.json", "ranges/1.json", "ranges/1.rows", "other/3.json"):
        storage.write(name, name.encode())
    storage.write("ranges/1.json", b"again")
    assert storage.names("ranges", ".json") == ["ranges/1.json", "ranges/2.json"]
    assert (storage.read("ranges/1.json"), storage.read("ranges/2.json")) == (b"again", b"ranges/2.json")
    assert not list(tmp_path.rglob("*.new"))
    with storage.open("ranges/1.rows") as source:
        assert source.read(6) == b"ranges"


def test_files_that_are_copied_in_and_out(storage: Storage, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "fetched" / "target"
    source.write_bytes(bytes(3 << 20))
    storage.put(source, "a/b/c")
    storage.fetch("a/b/c", target)
    assert target.read_bytes() == source.read_bytes()
    storage.write("a/b/c", b"new")
    storage.fetch("a/b/c", target)
    assert target.stat().st_size == 3 << 20, "what is there is not fetched again"
    with pytest.raises(StorageError, match="cannot fetch nothing from"):
        storage.fetch("nothing", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_folder_goes_with_all_that_is_in_it(storage: Storage, tmp_path: Path) -> None:
    storage.remove()
    storage.write("a/b", b"c")
    storage.remove()
    assert not (tmp_path / "some where" / "job").exists()
    assert storage.read("a/b") is None


def test_what_cannot_be_done_is_told_with_name_and_place(storage: Storage, tmp_path: Path) -> None:
    storage.write("file", b"")
    source = tmp_path / "source"
    source.touch()
    said = re.escape(f"cannot write file/a to {storage.uri}: ")
    with pytest.raises(StorageError, match=said):
        storage.write("file/a", b"")
    with pytest.raises(StorageError, match=said):
        storage.put(source, "file/a")
    with pytest.raises(OSError, match="nothing"):
        storage.open("nothing")


@pytest.mark.parametrize("uri", ["nowhere://x", "://"])
def test_places_that_are_none(uri: str) -> None:
    with pytest.raises(StorageError, match="not a place for files"):
        Storage(uri)
