"""Opening Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any


def open_session(name: str, master: str, settings: Mapping[str, str] | None = None) -> Any:
    """Return a session; a local one talks to this machine alone and uses this interpreter for its workers."""
    from pyspark.sql import SparkSession  # here, so that a job can say that it is not installed

    builder = SparkSession.builder.appName(name).master(master)
    values = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        values |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for key, value in (values | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
