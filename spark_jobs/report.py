"""The report job: what is due when, by topic, key prefix and size, as Parquet.

    python -m spark_jobs.report --service-url … --web-url … --output FOLDER [options] TOPIC [TOPIC …]

Every delayed entry that is stored counts, those that were due in the past included; with `--subscription`, those that
the subscription had not acked when the job began. Told on standard output at the end, a JSON object a line:
`{"output": …, "rows": …, "entries": …}`, or `{"error": …}` with exit status 1. The folder's file `_SUCCESS` comes last:
without it there is no report. See `spark_jobs.report_job.COLUMNS` for what is in it.
"""

from __future__ import annotations

import sys
import traceback

from bridge.extras import ExtraMissing, need
from spark_jobs.command import reason_of, tell
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import access_from
from spark_jobs.report_spec import parser, spec_from
from spark_jobs.session import open_session


def main(arguments: list[str] | None = None) -> int:
    """Run the job from the command line; returns the exit status."""
    given = parser().parse_args(arguments)
    spec = spec_from(given)
    try:
        need("spark", "python -m spark_jobs.report")
        from spark_jobs.report_job import write_report

        access_from(spec.source)
        spark = open_session("report of what is delayed", given.master, dict(given.conf))
        try:
            totals = write_report(spark, spec)
        finally:
            spark.stop()
    except (LedgerReadError, ExtraMissing) as error:
        tell(error=str(error))
        return 1
    except Exception as error:
        traceback.print_exc()
        tell(error=reason_of(error))
        return 1
    tell(output=spec.output, rows=totals.rows, entries=totals.entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
