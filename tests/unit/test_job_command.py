"""What a job that failed gives as its reason."""

import pytest

from spark_jobs.command import reason_of
from spark_jobs.errors import LedgerReadError, NotYet
from spark_jobs.storage import StorageError

TRACE = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4327, in invoke_udf
    run_process()
{cause}
"""
IN_THE_JVM = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times: Lost task 0.0:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
OSError: [Errno 28] No space left on device

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
Caused by: java.io.IOException: something else
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StorageError("cannot write x:\n  no such folder"), "cannot write x: no such folder"),
        (NotYet("cannot reach b"), "cannot reach b"),
        (RuntimeError(TRACE.format(cause="spark_jobs.errors.LedgerReadError: t: no permission")), "t: no permission"),
        (RuntimeError(TRACE.format(cause="OSError: [Errno 27] File too large")), "OSError: [Errno 27] File too large"),
        (RuntimeError(TRACE.format(cause="Exception: IO error: full")), "Exception: IO error: full"),
        (RuntimeError(IN_THE_JVM), "OSError: [Errno 28] No space left on device"),
        (LedgerReadError("Traceback of nothing"), "Traceback of nothing"),
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError(), "ValueError: no reason given"),
    ],
)
def test_the_reason_is_what_the_task_died_of(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
