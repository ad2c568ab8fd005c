"""Downloads one published archive with the Ivy that PySpark brings along (no host is named here)."""

import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path

from bridge.embedded.child import ChildProcess
from bridge.embedded.errors import DistributionError
from bridge.embedded.java import Java
from bridge.extras import install_command

SETTINGS_VARIABLE = "DELAY_BRIDGE_IVY_SETTINGS"
_POLL_SECONDS = 0.2
_STALLED_SECONDS = 180.0
_TAIL_LINES = 12
_OTHER_WAYS = (
    "  - unpack the server distribution yourself and name its folder in DELAY_BRIDGE_PULSAR_HOME;\n"
    "  - run Pulsar in Docker (image apachepulsar/pulsar) and give the bridge its URLs;\n"
    "  - give the bridge the URLs of an existing cluster (delay-bridge serve)."
)
_MODULE = """<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">
  <info organisation="delay-bridge" module="embedded"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="{organisation}" name="{name}" rev="{revision}" transitive="false" conf="default->default">
      <artifact name="{name}" type="{extension}" ext="{extension}" e:classifier="{classifier}"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def find_ivy() -> Path:
    """Ivy's archive in the installed PySpark. Raises DistributionError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None:
        raise DistributionError(
            "Pulsar has to be fetched first, which takes the Ivy in PySpark, and that is not installed here:\n"
            f"  {install_command('spark')}\n"
            f"There are three other ways:\n{_OTHER_WAYS}"
        )
    for place in spec.submodule_search_locations or ():
        if jar := next(iter(sorted((Path(place) / "jars").glob("ivy-*.jar"))), None):
            return jar
    raise DistributionError("PySpark's Ivy (pyspark/jars/ivy-*.jar) is missing: is pyspark installed completely?")


def download(
    java: Java,
    ivy: Path,
    work_dir: Path,
    *,
    organisation: str,
    name: str,
    revision: str,
    classifier: str,
    extension: str,
    on_bytes: Callable[[int], None],
) -> Path:
    """Downloads into `work_dir` (which exists); returns the archive's path. Ivy has compared its checksum by then.

    `ivy`: its own archive, see `find_ivy`. `on_bytes` is told now and then how many bytes have arrived.
    DELAY_BRIDGE_IVY_SETTINGS may name an Ivy settings file, for sites that reach the world through a mirror. Raises
    DistributionError when it cannot be had.
    """
    module = work_dir / "ivy.xml"
    module.write_text(
        _MODULE.format(
            organisation=organisation, name=name, revision=revision, classifier=classifier, extension=extension
        )
    )
    cache = work_dir / "ivy-cache"
    log = work_dir / "ivy.log"
    command = [str(java.executable), "-cp", str(ivy), "org.apache.ivy.Main"]
    if settings := os.environ.get(SETTINGS_VARIABLE):
        command += ["-settings", settings]
    command += ["-ivy", str(module), "-cache", str(cache)]
    pattern = f"{organisation}/{name}/*/{name}-{revision}-{classifier}.{extension}"
    child = ChildProcess(command, os.environ, log, remove=work_dir)
    try:
        child.start()
        finished = _follow(child, cache, pattern, log, on_bytes)
    except BaseException:
        child.close()
        raise
    archive = next(cache.glob(pattern), None)
    if not finished or child.exit_code != 0 or archive is None:
        reason = "the download stalled" if not finished else f"Ivy ended with code {child.exit_code}"
        tail = _tail(log)
        child.close()
        raise DistributionError(_failed(f"{organisation}:{name}:{revision}", reason, tail))
    # The watchdog removes its folder when it ends, so the archive leaves that folder first.
    kept = work_dir.with_name(f"{work_dir.name}.{extension}")
    archive.replace(kept)
    child.close()
    return kept


def _follow(child: ChildProcess, cache: Path, pattern: str, log: Path, on_bytes: Callable[[int], None]) -> bool:
    """Reports progress until Ivy ended (True) or nothing has moved for too long (False)."""
    seen, moved_at = (0, 0), time.monotonic()
    while not child.wait(_POLL_SECONDS):
        # Ivy writes to "<archive>.part" and renames at the end.
        arrived = max((_size(path) for path in cache.glob(f"{pattern}*")), default=0)
        on_bytes(arrived)
        state = (arrived, _size(log))
        if state != seen:
            seen, moved_at = state, time.monotonic()
        elif time.monotonic() - moved_at > _STALLED_SECONDS:
            child.kill()
            return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _tail(log: Path) -> str:
    """The last lines of Ivy's log without its progress dots."""
    lines = [line.rstrip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    return "\n".join(line[:200] for line in lines if line.strip(" .\t"))[-2000:]


def _failed(what: str, reason: str, tail: str) -> str:
    lines = "\n".join(tail.splitlines()[-_TAIL_LINES:])
    return (
        f"Could not fetch {what}: {reason}.\n"
        f"Without a network there are three other ways:\n{_OTHER_WAYS}\n"
        f"Behind a mirror, name an Ivy settings file in {SETTINGS_VARIABLE}. Ivy's last lines:\n{lines}"
    )
