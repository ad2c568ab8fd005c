"""Opening Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any


def open_context(name: str, master: str, settings: Mapping[str, str] | None = None) -> Any:
    """Return a context, for jobs that are functions: it is there in half the time that a session takes."""
    from pyspark import SparkConf, SparkContext  # here, so that a job can say that it is not installed

    conf = SparkConf().setAppName(name).setMaster(master)
    return SparkContext.getOrCreate(conf.setAll(list(_values(master, settings).items())))


def open_session(name: str, master: str, settings: Mapping[str, str] | None = None) -> Any:
    """Return a session, for jobs that are queries."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    for key, value in _values(master, settings).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _values(master: str, settings: Mapping[str, str] | None) -> dict[str, str]:
    """Return Spark's settings; a local one talks to this machine alone and uses this interpreter for its workers."""
    values = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        values |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return values | dict(settings or {})
