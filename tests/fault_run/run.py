"""One run: a stage, its faults one after the other, and what came of it."""

import random
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.fault_run.faults import FAULTS, Fault
from tests.fault_run.report import Outcome, reckon
from tests.fault_run.stage import Stage
from tests.fault_run.traffic import Load

FLOWING_S = 5.0
"""Before the first fault, and after the last one."""
PATIENCE_S = 120.0
"""Nothing came for so long: it is lost."""


def run(folder: Path, seed: int, faults: list[Fault], load: Load, limits: dict[str, Any], console: Console) -> Outcome:
    """`limits`: of the bridges, that differ."""
    began = time.monotonic()
    stage = Stage(folder, load, seed, limits)
    try:
        time.sleep(FLOWING_S)
        for number, fault in enumerate(faults, 1):
            time.sleep(fault.pause_s)
            at = time.monotonic()
            done = FAULTS[fault.kind](stage, random.Random(fault.seed))
            took, flown = time.monotonic() - at, sum(each.received for each in stage.accounts)
            told = f"{at - began:7.1f} s  {number:3}. {fault.kind}: {done} ({took:.1f} s; {flown:,} received"
            console.print(f"{told}, pause {fault.pause_s:.1f} s; began {at:.2f})", highlight=False, soft_wrap=True)
        time.sleep(FLOWING_S)
        stage.drain(PATIENCE_S)
        outcome = reckon(stage, seed, faults, PATIENCE_S)
        outcome.took_s = time.monotonic() - began
        return outcome
    finally:
        stage.close()
