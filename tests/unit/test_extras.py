"""The plain package: what it takes, what it leaves out, and what is said where an extra is missing."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge import extras
from bridge.cli import main
from bridge.refill import spark_job
from bridge.refill.spark_job import JobError, SparkJob, SparkSettings
from spark_jobs import audit, rebuild, report
from spark_jobs.plan import ReadSpec, RebuildSpec
from spark_jobs.storage import Storage, StorageError
from tools.installed_size import LEFT_OUT, LIMIT_MB, ROOT, bytes_of, plain_packages
from tracker import EARLIEST, Position
from tracker.audit import Scope

HEAVY = ("pyspark", "py4j", "pandas", "pyarrow", "numpy", "plotly", "pulsar", "_pulsar")
"""Modules that no bridge needs in its process."""
SCOPE = Scope(EARLIEST, Position(1, 1), 1_000)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes modules look as if they were not installed."""

    def leave_out(*modules: str) -> None:
        for each in modules:
            monkeypatch.setitem(sys.modules, each, None)

    return leave_out


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SparkJob]:
    """One for which ten entries are many."""
    spark_job._can_run.cache_clear()
    urls = "pulsar://localhost:1", "http://localhost:1"
    yield SparkJob("audit", "persistent://a/b/c", SparkSettings(10, tmp_path, "local[1]", (), *urls, None), 1)
    spark_job._can_run.cache_clear()


def test_the_plain_package_is_small() -> None:
    """As it is installed here; `make installed-size` installs it anew. A tenth is left for compiled files."""
    own = sum(
        file.stat().st_size for each in ("bridge", "tracker", "spark_jobs") for file in (ROOT / each).rglob("*.*")
    )
    packages = plain_packages()
    assert not LEFT_OUT & packages.keys()
    assert sum(map(bytes_of, packages.values())) + own < 0.9 * LIMIT_MB * 2**20


def test_a_bridge_loads_nothing_of_the_extras() -> None:
    """The commands, all of them, and what `serve` runs."""
    code = f"import sys, bridge.cli, bridge.app; print(sorted({set(HEAVY)!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_a_missing_extra_is_told_with_the_command_that_installs_it(without: Callable[..., None]) -> None:
    command = f"{sys.executable} -m pip install 'pulsar-delay-bridge[spark]'"
    assert extras.missing("spark") is None
    without("pyarrow")
    assert extras.missing("spark") == f"pyarrow is not installed here: {command}"
    without("pyspark")
    assert extras.missing("spark") == f"pyspark, pyarrow are not installed here: {command}"
    assert extras.missing("demo") is None


@pytest.mark.parametrize("command", ["demo", "bench"])
def test_a_command_that_needs_an_extra_says_so(
    command: str, without: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    without("pulsar")
    with pytest.raises(SystemExit) as ended:
        main([command])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (1, "")
    assert said.err == (
        f"delay-bridge: {command} needs the extra demo, and pulsar-client is not installed here: "
        f"{sys.executable} -m pip install 'pulsar-delay-bridge[demo]'\n"
    )


@pytest.mark.parametrize("kind", [rebuild, audit, report])
def test_a_job_says_so_too(
    kind: Any, without: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without("pyspark", "pyarrow")
    arguments = [str(tmp_path / "spec.json")]
    if kind is report:
        arguments = ["--service-url=pulsar://h", "--web-url=http://h", f"--output={tmp_path}", "topic"]
    assert kind.main(arguments) == 1
    told = json.loads(capsys.readouterr().out)
    assert told == {"error": f"python -m {kind.__name__} needs the extra spark, and {extras.missing('spark')}"}


async def test_a_job_that_is_asked_for_fails_with_what_is_missing(job: SparkJob, without: Callable[..., None]) -> None:
    without("pyspark")
    spec = job.spec(ReadSpec, SCOPE)
    await asyncio.to_thread(job.begin, spec)
    with pytest.raises(JobError, match=r"cannot start a job: it needs the extra spark, and pyspark is not installed"):
        await job.run(spec, lambda *_: None)


def test_what_is_large_is_read_in_the_bridge_which_is_said_once(job: SparkJob, without: Callable[..., None]) -> None:
    without("pyspark")
    with capture_logs() as logs:
        assert not job.is_large(9)
        assert not logs
        assert not job.is_large(10)
        assert not job.is_large(11)
    assert [each["event"] for each in logs] == ["Spark is not installed, what is large is read here too"]
    assert logs[0]["reason"] == extras.missing("spark")


def test_with_spark_what_is_large_is_for_a_job(job: SparkJob) -> None:
    with capture_logs() as logs:
        assert [job.is_large(each) for each in (9, 10)] == [False, True]
    assert not logs


def test_places_elsewhere_need_the_extra_local_ones_do_not(without: Callable[..., None], tmp_path: Path) -> None:
    without("pyarrow")
    Storage(str(tmp_path)).write("a/b", b"c")
    assert Storage(str(tmp_path)).read("a/b") == b"c"
    with pytest.raises(StorageError, match=r"storage at s3://x/y needs the extra spark"):
        Storage("s3://x/y")


def test_specs_are_read_without_the_extra(job: SparkJob, without: Callable[..., None]) -> None:
    """What a bridge tells a job, and what it reads of its outcome."""
    without("pyspark", "pyarrow", "pandas", "numpy")
    spec = job.spec(RebuildSpec, SCOPE)
    job.begin(spec)
    assert RebuildSpec.model_validate_json(job.known_spec() or "") == spec
