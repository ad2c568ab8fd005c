"""How the bridge, or a shell, runs a job: `python -m spark_jobs.JOB SPEC.json [--master …] [--conf key=value …]`.

Told on standard output, a JSON object a line: `{"stage": "reading", "done": …, "total": …}` and the same of other
stages, in entries; at the end what the job returns, or `{"error": …}` with exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from bridge.extras import ExtraMissing, need
from spark_jobs import limits
from spark_jobs.errors import LedgerReadError
from spark_jobs.plan import TOKEN_VARIABLE, ReadSpec
from spark_jobs.session import open_context

S = TypeVar("S", bound=ReadSpec)


def tell(**what: object) -> None:
    """Say something to whoever started the job."""
    print(json.dumps(what), flush=True)


def run_command(
    name: str,
    description: str | None,
    kind: type[S],
    job: Callable[[S, str | None, Any], dict[str, object]],
    arguments: list[str] | None,
) -> int:
    """Run `job(spec, token, context)` and tell what it returns; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m spark_jobs.{name}", description=description)
    parser.add_argument("spec", type=Path, help=f"file with what is to be done, see {kind.__name__}")
    parser.add_argument("--master", default="local[*]", help="Spark master; default: local[*]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark setting")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input does")
    given = parser.parse_args(arguments)
    if given.with_parent:
        os.nice(limits.NICENESS)
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        need("spark", f"python -m spark_jobs.{name}")
        spec = kind.model_validate_json(given.spec.read_text())
        settings = dict(each.split("=", 1) for each in given.conf)
    except ExtraMissing as error:
        tell(error=str(error))
        return 1
    except (OSError, ValueError, ValidationError) as error:
        tell(error=f"{given.spec}: {error}")
        return 1
    try:
        context = open_context(f"{name} {spec.topic}", given.master, settings)
        try:
            result = job(spec, os.environ.get(TOKEN_VARIABLE) or None, context)
            if given.with_parent:
                # Whoever waits need not wait for Spark's end: Java ends, in order, when this process has.
                tell(**result)
                os._exit(0)
        finally:
            context.stop()
    except Exception as error:
        traceback.print_exc()
        tell(error=reason_of(error))
        return 1
    tell(**result)
    return 0


def reason_of(error: BaseException) -> str:
    """Return what went wrong, without what Spark wraps around the error of a task."""
    if isinstance(error, LedgerReadError):
        return " ".join(str(error).split())
    found = re.search(r"(?:LedgerReadError|StorageError|NotYet): ([^\n]+)", str(error))
    if found:
        return found[1]
    # A task's own trace ends with what it died of, e.g. of a disk that is full.
    _, _, trace = str(error).rpartition("Traceback (most recent call last):\n")
    died_of = re.search(r"^[\w.]*(?:Error|Exception): .+$", trace, re.MULTILINE)
    if died_of:
        return died_of[0]
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else 'no reason given'}"


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):  # not through the buffer: the interpreter waits for its lock at the end
        pass
    os._exit(1)
