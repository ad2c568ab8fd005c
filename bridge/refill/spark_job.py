"""Spark jobs as child processes: started, followed, and ended with this process.

One folder a topic partition and kind of job holds its spec, its log and, in the end, its files: those of a job that
writes elsewhere (`spark_output`) are fetched.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import structlog

from bridge.embedded.errors import EmbeddedError
from bridge.embedded.java import find_java
from bridge.extras import ExtraMissing, missing, need
from bridge.ledgers.bookies.read_from import ReadFrom
from spark_jobs.plan import SPEC_NAME, TOKEN_VARIABLE, ReadSpec
from spark_jobs.storage import Storage, StorageError
from tracker.audit import Scope

log = structlog.get_logger(__name__)

S = TypeVar("S", bound=ReadSpec)
Told = Callable[[str, int, int], None]
"""Of a stage, entries done and in total."""


class JobError(Exception):
    """A job failed; the index is as it was. The message says why."""


@dataclass(frozen=True)
class SparkSettings:
    """How jobs are run: from how many entries on (0: never), where, and with which cluster.

    `output`: where the workers write, a URI all of them and this process reach; None for `folder`, as workers of this
    machine can.
    """

    from_entries: int
    folder: Path
    master: str
    conf: tuple[str, ...]
    service_url: str
    web_url: str
    token: str | None
    output: str | None = None
    tls_trust_certs: str | None = None
    """Authorities of brokers' certificates; None for the system's."""
    tls_verify_hostname: bool = True
    read_from: ReadFrom = ReadFrom.auto


class SparkJob:
    """Jobs of one kind for one topic partition, one at a time; the caller sees to that."""

    def __init__(self, kind: str, topic: str, settings: SparkSettings, attempts: int) -> None:
        """`kind`: the module in `spark_jobs`; `attempts`: how often a job is run that is killed."""
        self.kind = kind
        self.topic = topic
        self.settings = settings
        self._attempts = attempts
        name = hashlib.sha256(topic.encode()).hexdigest()[:32]
        self.folder = settings.folder / (name if kind == "rebuild" else f"{name}-{kind}")
        self.output = (
            str(self.folder) if settings.output is None else f"{settings.output.rstrip('/')}/{self.folder.name}"
        )

    def is_large(self, entries: int) -> bool:
        """Tell whether so many entries are for a job rather than for this process."""
        return 0 < self.settings.from_entries <= entries and _can_run()

    def spec(self, kind: type[S], scope: Scope) -> S:
        """Return what a job is to do that reads a scope, all else as `kind` has it by default."""
        return kind(
            topic=self.topic,
            service_url=self.settings.service_url,
            web_url=self.settings.web_url,
            tls_trust_certs=self.settings.tls_trust_certs,
            tls_verify_hostname=self.settings.tls_verify_hostname,
            after=scope.after,
            upto=scope.upto,
            partition_width_ms=scope.width_ms,
            cut=scope.cut,
            held=list(scope.held),
            read_from=self.settings.read_from,
            output=self.output,
        )

    def known_spec(self) -> str | None:
        """Return the spec of the job whose folder this is."""
        try:
            return (self.folder / SPEC_NAME).read_text()
        except OSError:
            return None

    def begin(self, spec: ReadSpec) -> None:
        """Make room for a new job. Raises JobError."""
        try:
            self._remove()  # files of another job would be taken for this one's
            self.folder.mkdir(parents=True)
            (self.folder / SPEC_NAME).write_text(spec.model_dump_json())
        except (OSError, StorageError) as error:
            raise JobError(f"cannot begin in {self.folder}: {error}") from error

    def remove(self) -> None:
        """Delete the job's files, of no use any more; what stays elsewhere goes when the next job begins."""
        try:
            self._remove()
        except StorageError as error:
            log.warning("files of a job are left behind", topic=self.topic, reason=str(error))

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.settings.output is not None:
            Storage(self.output).remove()

    def read(self, name: str) -> bytes:
        """Return a small file of the output. Raises JobError."""
        try:
            data = Storage(self.output).read(name)
        except StorageError as error:
            raise JobError(str(error)) from error
        if data is None:
            raise JobError(f"the job left no {name} in {self.output}")
        return data

    def fetch(self, names: Iterable[str]) -> None:
        """Have files of the output in the folder, unless they are there. Raises JobError."""
        try:
            storage = Storage(self.output)
            for name in names:
                storage.fetch(name, self.folder / name)
        except (OSError, StorageError) as error:
            raise JobError(str(error)) from error

    async def run(self, spec: ReadSpec, on_told: Told) -> dict[str, Any]:
        """Run a job to its end; return what it tells there. One that is killed is run again. Raises JobError."""
        started = time.monotonic()
        settings = self.settings
        for attempt in range(1, self._attempts + 1):
            log.info(
                f"{self.kind} started",
                topic=self.topic,
                after=str(spec.after),
                to=str(spec.upto),
                master=settings.master,
                attempt=attempt,
            )
            outcome, code = await self._run_once(on_told)
            if code >= 0:
                break
        if code or "stage" in outcome or "error" in outcome:
            reason = outcome.get("error") or f"the job ended with status {code}"
            if refused := await asyncio.to_thread(_refused_by_spark, self._log_file):
                reason = refused
            raise JobError(f"{reason} (all of it: {self._log_file})")
        log.info(f"{self.kind} written", topic=self.topic, seconds=round(time.monotonic() - started, 1), **outcome)
        return outcome

    async def _run_once(self, on_told: Told) -> tuple[dict[str, Any], int]:
        """Return what the process told last, and its exit status: negative when a signal ended it."""
        try:
            process = await self._start()
        except (EmbeddedError, ExtraMissing, OSError) as error:
            raise JobError(f"cannot start a job: {error}") from error
        try:
            return await self._follow(process, on_told), await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    @property
    def _log_file(self) -> Path:
        return self.folder / "job.log"

    async def _start(self) -> asyncio.subprocess.Process:
        need("spark", "it")
        settings = self.settings
        command = [sys.executable, "-m", f"spark_jobs.{self.kind}", str(self.folder / SPEC_NAME), "--with-parent"]
        command += ["--master", settings.master]
        for each in settings.conf:
            command += ["--conf", each]
        java = await asyncio.to_thread(find_java)
        environment = java.environment({"PYSPARK_PYTHON": sys.executable} | dict(os.environ))
        if settings.token is not None:
            environment[TOKEN_VARIABLE] = settings.token
        pipe = asyncio.subprocess.PIPE
        with self._log_file.open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=errors, env=environment
            )

    async def _follow(self, process: asyncio.subprocess.Process, on_told: Told) -> dict[str, Any]:
        """Take in what the job tells; return the last of it."""
        assert process.stdout is not None
        told: dict[str, Any] = {"stage": "starting"}
        while line := await process.stdout.readline():
            try:
                found = json.loads(line)
            except ValueError:
                continue  # something else writes to the same place
            if isinstance(found, dict):
                told = found
                if "stage" in told:
                    on_told(told["stage"], told["done"], told["total"])
        return told


@cache
def _can_run() -> bool:
    """Tell whether what jobs need is installed; when it is not, that is said once, the first time it matters."""
    reason = missing("spark")
    if reason is not None:
        log.info("Spark is not installed, what is large is read here too", reason=reason)
    return reason is None


def _refused_by_spark(log_file: Path) -> str | None:
    """Return why Spark did not even start: Python does not get to know."""
    found = re.findall(r'^Exception in thread "main" [\w.]+: (.+)$', log_file.read_text(errors="replace"), re.MULTILINE)
    return str(found[-1]) if found else None
