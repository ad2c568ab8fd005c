"""What is installed only when somebody asks for it: the package's extras, and how to get the one that is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

PACKAGE: Final = "pulsar-delay-bridge"
MODULES: Final = {
    "spark": {"pyspark": "pyspark", "pyarrow": "pyarrow", "pandas": "pandas", "numpy": "numpy"},
    "demo": {"pulsar": "pulsar-client"},
}
"""Of each extra the modules that are imported by what needs it, and the packages they are in."""


class ExtraMissing(Exception):
    """Something was asked for that takes an extra; the message says what is missing and names the command."""


def missing(extra: str) -> str | None:
    """Return which packages of an extra are missing, and the command that installs them; None when all are there."""
    absent = [package for module, package in MODULES[extra].items() if find_spec(module) is None]
    if not absent:
        return None
    verb = "is" if len(absent) == 1 else "are"
    return f"{', '.join(absent)} {verb} not installed here: {install_command(extra)}"


def need(extra: str, what: str) -> None:
    """Raise ExtraMissing unless an extra is installed; `what` needs it, e.g. `delay-bridge demo`."""
    reason = missing(extra)
    if reason is not None:
        raise ExtraMissing(f"{what} needs the extra {extra}, and {reason}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra where this runs."""
    return f"{sys.executable} -m pip install '{PACKAGE}[{extra}]'"
