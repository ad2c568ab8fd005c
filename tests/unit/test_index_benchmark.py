"""The index benchmark runs, small: what it prints was measured, not made up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.index import MUST_HOLD


@pytest.mark.slow
def test_every_figure_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.index", "--scale", "0.0001", "--output", str(output)]
    done = subprocess.run([*command, "--directory", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(output.read_text())["figures"]
    assert not {key for _, key, _, _ in MUST_HOLD} - figures.keys()
    assert figures["large_entries"] == 40_000
    assert figures["add_per_s"] > 0
