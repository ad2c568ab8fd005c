"""A Spark for all tests of this process."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.embedded.java import find_java
from spark_jobs.session import open_session
from spark_jobs.stages.source import PulsarLedgers
from tests.clients import Clients


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """`local[2]`, with the data source registered."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in find_java().environment(os.environ).items():
            patch.setenv(name, value)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = open_session("tests", "local[2]")
        session.dataSource.register(PulsarLedgers)
        yield session
        session.stop()


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Makes official clients, closed when the test ends."""
    made = Clients()
    yield made
    made.close()
