"""The rebuild job: from the ledgers of a topic partition to files its index takes in.

    python -m spark_jobs.rebuild SPEC.json [--master local[*]] [--conf key=value …]

The spec is a RebuildSpec; see `spark_jobs.command` for what is told meanwhile. Whatever is stored counts when its
marker is there, so the same job run again goes on where the last one ended. The manifest comes last: without it there
is no result.
"""

from __future__ import annotations

import sys
from typing import Any

from spark_jobs.command import run_command
from spark_jobs.plan import RebuildSpec
from tracker.bulk.files import MANIFEST_NAME


def rebuild(spec: RebuildSpec, token: str | None, context: Any) -> dict[str, object]:
    """Run a job and return what is told at its end. Raises LedgerReadError and what Spark raises."""
    from spark_jobs.rebuild_job import Rebuild  # of the extra for Spark, which is there by now

    job = Rebuild(spec, token)
    manifest = job.run(context)
    return {"manifest": f"{spec.output}/{MANIFEST_NAME}", "entries": manifest.entries, **job.sources}


def main(arguments: list[str] | None = None) -> int:
    """Run a job from the command line; returns the exit status."""
    return run_command("rebuild", __doc__, RebuildSpec, rebuild, arguments)


if __name__ == "__main__":
    sys.exit(main())
