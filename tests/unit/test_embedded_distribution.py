"""Fetching, with the real Ivy on a repository in a folder that holds a tiny distribution."""

import hashlib
import io
import shutil
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bridge.embedded import DistributionError, ensure_distribution
from bridge.embedded.distribution import HOME_VARIABLE, VERSION, is_complete, unpack, version_to_run
from bridge.embedded.ivy import download
from bridge.embedded.java import Java

pytestmark = pytest.mark.slow  # Ivy runs on Java
ROOT = "apache-pulsar-4.0.8"
FILES = {"bin/pulsar": b"#!/bin/sh\n", "conf/standalone.conf": b"a=1\n", "lib/a.jar": b"a" * 50_000, "lib/b.jar": b"b"}
ARCHIVE = "pulsar-server-distribution-4.0.8-bin.tar.gz"
SETTINGS = """<ivysettings><settings defaultResolver="folder"/><resolvers>
  <filesystem name="folder" m2compatible="true">
    <artifact pattern="{repository}/[artifact]-[revision](-[classifier]).[ext]"/>
  </filesystem>
</resolvers></ivysettings>"""


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder Ivy fetches from; the user's own settings do not reach these tests."""
    folder = tmp_path / "repository"
    folder.mkdir()
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(repository=folder))
    monkeypatch.setenv("DELAY_BRIDGE_IVY_SETTINGS", str(settings))
    monkeypatch.delenv("DELAY_BRIDGE_PULSAR_HOME", raising=False)
    monkeypatch.delenv("DELAY_BRIDGE_CACHE_DIR", raising=False)
    return folder


def write_archive(path: Path, root: str = ROOT) -> bytes:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in FILES.items():
            info = tarfile.TarInfo(f"{root}/{name}")
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return path.read_bytes()


def publish(repository: Path, checksum: str | None = None) -> None:
    data = write_archive(repository / ARCHIVE)
    (repository / f"{ARCHIVE}.sha1").write_text(checksum or hashlib.sha1(data).hexdigest())


def test_fetched_once_then_taken_from_the_cache(tmp_path: Path, repository: Path) -> None:
    publish(repository)
    cache = tmp_path / "cache"
    home = ensure_distribution(cache, progress=False)
    assert home == cache / ROOT
    assert (home / "bin" / "pulsar").stat().st_mode & 0o100
    shutil.rmtree(repository)
    assert ensure_distribution(cache, progress=False) == home
    assert {path.name for path in cache.iterdir()} <= {ROOT, "fetch.lock"}  # no archive, no Ivy files


def test_asked_for_at_once_it_is_fetched_once(tmp_path: Path, repository: Path) -> None:
    publish(repository)
    fetches: list[Path] = []

    def counting(java: Java, ivy: Path, work_dir: Path, **arguments: Any) -> Path:
        fetches.append(work_dir)
        return download(java, ivy, work_dir, **arguments)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr("bridge.embedded.distribution.download", counting)
        homes = set(pool.map(lambda _: ensure_distribution(tmp_path, progress=False), range(3)))
    assert homes == {tmp_path / ROOT}
    assert len(fetches) == 1


def test_damaged_distribution_is_fetched_again(tmp_path: Path, repository: Path) -> None:
    publish(repository)
    home = ensure_distribution(tmp_path, progress=False)
    for damage in ("lib/a.jar", "bin/pulsar", ".delay-bridge-complete.json"):
        (home / damage).unlink()
        assert not is_complete(home)
        ensure_distribution(tmp_path, progress=False)
        assert is_complete(home)
        assert (home / "lib" / "a.jar").is_file()


def test_wrong_checksum_is_noticed_and_leaves_nothing(tmp_path: Path, repository: Path) -> None:
    publish(repository, checksum="0" * 40)
    with pytest.raises(DistributionError, match="invalid sha1"):
        ensure_distribution(tmp_path / "cache", progress=False)
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= {"fetch.lock"}
    publish(repository)
    assert is_complete(ensure_distribution(tmp_path / "cache", progress=False))


def test_unreachable_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DistributionError) as raised:
        ensure_distribution(tmp_path / "cache", progress=False)
    for word in ("DELAY_BRIDGE_PULSAR_HOME", "Docker", "existing cluster", "DELAY_BRIDGE_IVY_SETTINGS", "not found"):
        assert word in str(raised.value)


def test_without_pyspark_only_what_is_fetched_already_can_be_used(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(repository)
    ensure_distribution(tmp_path / "fetched", progress=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert is_complete(ensure_distribution(tmp_path / "fetched", progress=False))
    with pytest.raises(DistributionError, match="not installed here") as raised:
        ensure_distribution(tmp_path / "cache", progress=False)
    for word in ("-m pip install 'pulsar-delay-bridge[spark]'", "DELAY_BRIDGE_PULSAR_HOME", "existing cluster"):
        assert word in str(raised.value)


def test_leftovers_of_a_killed_fetch_are_removed(tmp_path: Path, repository: Path) -> None:
    publish(repository)
    (tmp_path / ".fetch-1" / "ivy-cache").mkdir(parents=True)
    (tmp_path / ".fetch-1.tar.gz").touch()
    (tmp_path / ROOT / "lib").mkdir(parents=True)  # half unpacked by someone: no marker
    assert is_complete(ensure_distribution(tmp_path, progress=False))
    assert not list(tmp_path.glob(".fetch-*"))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_half_an_archive_is_not_unpacked(tmp_path: Path, kept: float) -> None:
    archive = tmp_path / "half.tar.gz"
    data = write_archive(archive)
    archive.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(DistributionError):
        unpack(archive, tmp_path / "out")
    assert not archive.exists()


def test_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "other.tar.gz"
    write_archive(archive, root="something-else")
    with pytest.raises(DistributionError, match="not a Pulsar distribution"):
        unpack(archive, tmp_path / "out")


def test_named_distribution_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bin/pulsar", "conf/standalone.conf"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert ensure_distribution(home=tmp_path) == tmp_path
    monkeypatch.setenv("DELAY_BRIDGE_PULSAR_HOME", str(tmp_path))
    assert ensure_distribution() == tmp_path
    with pytest.raises(DistributionError, match=r"lib is not a Pulsar distribution: bin/pulsar is missing"):
        ensure_distribution(home=tmp_path / "lib")


def test_unusable_cache_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DistributionError, match="cannot use the cache directory"):
        ensure_distribution(tmp_path / "file", progress=False)


def test_the_version_that_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    assert version_to_run() == VERSION
    (tmp_path / "lib").mkdir()
    assert version_to_run(tmp_path) == "unknown"
    for name in ("pulsar-broker-common-4.2.4.jar", "org.apache.pulsar-pulsar-broker-auth-sasl-4.2.4.jar"):
        (tmp_path / "lib" / name).touch()
    assert version_to_run(tmp_path) == "unknown"
    (tmp_path / "lib" / "org.apache.pulsar-pulsar-broker-4.2.4.jar").touch()
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    assert version_to_run() == "4.2.4"
