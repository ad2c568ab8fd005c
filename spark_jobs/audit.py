"""The audit job: what a topic partition holds, as fingerprints.

    python -m spark_jobs.audit SPEC.json [--master local[*]] [--conf key=value …]

The spec is a ReadSpec; the outcome is the file `fingerprints.json` in its folder. See `spark_jobs.command` for what is
told meanwhile. Whoever has the index compares both, see `tracker.audit`.
"""

from __future__ import annotations

import sys
from typing import Any

from spark_jobs.command import run_command
from spark_jobs.ledgers.sources import state_to_read
from spark_jobs.plan import FINGERPRINTS_NAME, Needed, ReadSpec, fingerprints_of, sources_of
from spark_jobs.storage import Storage


def audit(spec: ReadSpec, token: str | None, context: Any) -> dict[str, object]:
    """Read what is missing and write the outcome. Raises LedgerReadError and what Spark raises."""
    from spark_jobs.stages.reading import Reading  # of the extra for Spark, which is there by now

    access, storage = spec.access(token), Storage(spec.output)
    reading = Reading(spec, access, storage)
    reading.begin()
    results = reading.run(context, state_to_read(access, spec.topic), Needed(()))
    storage.write(FINGERPRINTS_NAME, fingerprints_of(results))
    return {
        "fingerprints": f"{spec.output}/{FINGERPRINTS_NAME}",
        "read": sum(one.read for one in results),
        "compared": sum(known[2] for one in results for known in one.cells),
        **sources_of(results),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run a job from the command line; returns the exit status."""
    return run_command("audit", __doc__, ReadSpec, audit, arguments)


if __name__ == "__main__":
    sys.exit(main())
