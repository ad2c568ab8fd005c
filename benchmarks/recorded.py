"""Where results are kept: one file a day and benchmark, with what it ran on."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, output: Path | None, about: dict[str, Any], **parts: Any) -> Path:
    """Write `parts` beside what is known of the machine; return the file, by default DATE-NAME.json."""
    target = output or RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{name}.json"
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    target.write_text(json.dumps({"about": machine | about, **parts}, indent=1) + "\n")
    return target
