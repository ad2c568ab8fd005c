"""The official Pulsar server distribution: fetched once into the user's cache, checked at every use."""

import json
import os
import re
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bridge.embedded.errors import DistributionError
from bridge.embedded.ivy import download, find_ivy
from bridge.embedded.java import find_java

VERSION = "4.0.8"
CACHE_VARIABLE = "DELAY_BRIDGE_CACHE_DIR"
HOME_VARIABLE = "DELAY_BRIDGE_PULSAR_HOME"
_ARCHIVE_BYTES = 245_494_718
_NEEDED_BYTES = 600_000_000
_FOLDER = f"apache-pulsar-{VERSION}"
_MARKER = ".delay-bridge-complete.json"
_BROKER_JAR = re.compile(r"(?:^|[.-])pulsar-broker-(\d[\w.]*(?:-\w+)*)\.jar$")
_REQUIRED = ("bin/pulsar", "conf/standalone.conf")
_LOCK_SECONDS = 1800.0
_BROKEN_ARCHIVE = (tarfile.TarError, EOFError, zlib.error, OSError)


def ensure_distribution(cache_dir: Path | None = None, home: Path | None = None, progress: bool = True) -> Path:
    """The folder of a complete Pulsar distribution, fetched first when the cache has none.

    `home` (or DELAY_BRIDGE_PULSAR_HOME) names an unpacked distribution to use as it is. `cache_dir` (or
    DELAY_BRIDGE_CACHE_DIR, or the user's cache directory) is where a fetched one is kept; 250 MB, twice that while
    unpacking. `progress` shows a bar on stderr. Safe to call from several processes: one fetches, the others wait.
    Raises DistributionError (also for a `home` that is none), JavaNotFoundError, JavaTooOldError.
    """
    if given := home or _from_environment(HOME_VARIABLE):
        return _validated(given)
    cache = cache_dir or _from_environment(CACHE_VARIABLE) or user_cache_path("pulsar-delay-bridge")
    target = cache.absolute() / _FOLDER
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / "fetch.lock", timeout=_LOCK_SECONDS):
            if not is_complete(target):
                _fetch(target, progress)
    except Timeout:
        raise DistributionError(f"another process has been fetching Pulsar into {cache} for too long") from None
    except OSError as error:
        raise DistributionError(f"cannot use the cache directory {cache}: {error}") from error
    return target


def version_to_run(home: Path | None = None) -> str:
    """The version of what `ensure_distribution` gives or would fetch, as "4.0.8"; "unknown" if a home does not tell."""
    given = home or _from_environment(HOME_VARIABLE)
    if given is None:
        return VERSION
    found = (_BROKER_JAR.search(jar.name) for jar in sorted((given / "lib").glob("*pulsar-broker-*.jar")))
    return next((match[1] for match in found if match), "unknown")


def is_complete(folder: Path) -> bool:
    """Whether `folder` is a fetched distribution with nothing missing (a folder without a marker never is)."""
    try:
        expected = json.loads((folder / _MARKER).read_text())
    except (OSError, ValueError):
        return False
    return all((folder / name).is_file() for name in _REQUIRED) and expected == _contents(folder)


def _from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None


def _validated(home: Path) -> Path:
    missing = [name for name in _REQUIRED if not (home / name).is_file()]
    if missing:
        raise DistributionError(f"{home} is not a Pulsar distribution: {missing[0]} is missing")
    return home.resolve()


def _contents(folder: Path) -> dict[str, int | str]:
    """What the marker records: the libraries' number and bytes (settings and logs may change, libraries may not)."""
    sizes = [path.stat().st_size for path in (folder / "lib").glob("*.jar")]
    return {"version": VERSION, "libraries": len(sizes), "bytes": sum(sizes)}


def _fetch(target: Path, progress: bool) -> None:
    """Downloads, unpacks beside `target`, renames; a broken archive is fetched a second time."""
    _remove_leftovers(target.parent)
    free = shutil.disk_usage(target.parent).free
    if free < _NEEDED_BYTES:
        raise DistributionError(
            f"fetching Pulsar needs {_NEEDED_BYTES // 10**6} MB in {target.parent}, {free // 10**6} MB are free"
        )
    ivy, java = find_ivy(), find_java()
    work = target.parent / f".fetch-{os.getpid()}"
    try:
        for attempt in (1, 2):
            work.mkdir()
            with _bar(progress) as (bar, task):
                archive = download(
                    java,
                    ivy,
                    work,
                    organisation="org.apache.pulsar",
                    name="pulsar-server-distribution",
                    revision=VERSION,
                    classifier="bin",
                    extension="tar.gz",
                    on_bytes=lambda count, bar=bar, task=task: bar.update(task, completed=count),  # type: ignore[misc]
                )
                bar.update(task, completed=_ARCHIVE_BYTES, description="Unpacking Pulsar")
                try:
                    unpacked = unpack(archive, work)
                    break
                except DistributionError:
                    if attempt == 2:
                        raise
        if target.exists():
            target.rename(work / "incomplete")
        unpacked.rename(target)
    finally:
        _remove_leftovers(target.parent)


def unpack(archive: Path, into: Path) -> Path:
    """Unpacks `archive` to its end into the new folder `into` and removes it; returns the marked distribution folder.

    Raises DistributionError when the archive is broken or is something else.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            if sys.version_info >= (3, 11, 4):
                tar.extractall(into, filter="data")
            else:
                tar.extractall(into)
    except _BROKEN_ARCHIVE as error:
        shutil.rmtree(into, ignore_errors=True)
        raise DistributionError(f"the downloaded Pulsar distribution cannot be unpacked: {error}") from error
    finally:
        archive.unlink(missing_ok=True)
    folder = _validated(into / _FOLDER)
    (folder / _MARKER).write_text(json.dumps(_contents(folder)))
    return folder


def _remove_leftovers(cache: Path) -> None:
    """Removes what interrupted fetches left (only called by the holder of the lock)."""
    for path in cache.glob(".fetch-*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _bar(shown: bool) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        yield bar, bar.add_task(f"Fetching Pulsar {VERSION}", total=_ARCHIVE_BYTES)
