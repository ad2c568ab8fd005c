"""The delayed index alone, on one core: what it must hold, measured.

`python -m benchmarks.index` runs each workload in a process of its own that is bound to one core, prints the figures
beside what they must be, and writes them below `benchmarks/results/`. The files of the large index are made by two
processes first; that, and only that, uses more than one core.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.index_data import Spread, manifest_of, write_part
from benchmarks.index_workloads import TOPIC
from benchmarks.recorded import write_result

LARGE = 100_000_000

Figures = dict[str, float]

MUST_HOLD: list[tuple[str, str, str, float]] = [
    ("add with group sync, random due times over 2 years", "add_per_s", ">=", 150_000),
    ("… of the rate at which RocksDB alone takes them", "add_over_plain_puts", ">=", 0),
    ("drain due entries with payload, from disk", "drain_disk_per_s", ">=", 400_000),
    ("drain due entries with payload, near term", "drain_memory_per_s", ">=", 400_000),
    ("memory of a near-term entry, beside its value (B)", "near_term_bytes", "<=", 40),
    ("… each further subscription (B)", "subscription_bytes", "<=", 2),
    ("resident, large index, 5 subscriptions, +1 M, -1 M (MB)", "resident_mb", "<=", 256),
    ("open after kill -9 to the first due entry (s)", "open_s", "<=", 2),
    ("disk over payload, a far-term entry (B)", "disk_overhead_bytes", "<=", 16),
    ("counts, pending of 5 subscriptions (ms)", "counts_ms", "<=", 5),
    ("288-step histogram (ms)", "histogram_ms", "<=", 5),
    ("288-step histogram of a subscription (ms)", "view_histogram_ms", "<=", 5),
    ("1 M due at one millisecond: first out (ms)", "instant_first_ms", "<=", 50),
    ("… then drained", "instant_per_s", ">=", 400_000),
    ("… memory grown by (MB), RocksDB's buffers among it", "instant_grown_mb", "<=", 128),
    ("bulk load", "bulk_per_s", ">=", 1_000_000),
    ("delivery P99 while loading over without", "bulk_p99_ratio", "<=", 2),
]


def measure(workload: str, *arguments: object) -> Figures:
    """Run one workload in a process of its own; the last line it prints is its figures."""
    command = [sys.executable, "-m", "benchmarks.index_workloads", workload, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def make_files(directory: Path, size: int) -> None:
    """The files of a bulk load of `size` entries over two years."""
    directory.mkdir()
    spread, parts = Spread(size), 16
    with ProcessPoolExecutor(max_workers=2) as pool:
        pending = [pool.submit(write_part, directory, TOPIC, spread, part, parts) for part in range(parts)]
        manifest_of(TOPIC, spread, [each.result() for each in pending]).write(directory)


def kill_while_adding(data_dir: Path, seconds: float) -> None:
    """Have a process add to the index and end it by SIGKILL, in the middle."""
    command = [sys.executable, "-m", "benchmarks.index_workloads", "add-for-ever", str(data_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def run(console: Console, root: Path, scale: float, only: str) -> Figures:
    """All workloads, the large index last; those whose name does not contain `only` are left out."""
    million = max(int(1_000_000 * scale), 10_000)
    figures: Figures = {"large_entries": max(round(LARGE * scale, -3), 40_000)}

    def add(workload: str, *arguments: object) -> None:
        if only in workload:
            figures.update(measure(workload, *arguments))
            console.log(workload, figures)

    add("add", root / "add", 2 * million)
    add("drain", root / "drain", million)
    add("memory", root / "memory", million // 2)
    add("instant", root / "instant", million)
    if only in "bulk large":
        size = int(figures["large_entries"])
        started = time.perf_counter()
        make_files(root / "files", size)
        os.sync()  # what is measured next does not wait for these to reach the disk
        console.log(f"files of {size:,} entries made in {time.perf_counter() - started:.0f} s")
        # With few entries over two years nearly every one is a time partition of its own: rests would take minutes.
        add("bulk", root / "large", root / "files", 100 if scale > 0.05 else 1)
        add("large-disk", root / "large", size)
        kill_while_adding(root / "large", 3)
        add("large-open", root / "large")
        add("large-resident", root / "large", million)
        add("large-counts", root / "large")
    return figures


def report(figures: Figures) -> Table:
    """What must hold beside what was measured."""
    table = Table(title=f"the delayed index, one core, payload 128 B, {int(figures['large_entries']):,} entries")
    for column, justify in (("figure", "left"), ("must be", "right"), ("measured", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, key, relation, bound in MUST_HOLD:
        if key in figures:
            held = figures[key] >= bound if relation == ">=" else figures[key] <= bound
            table.add_row(name, f"{relation} {bound:,g}", f"{figures[key]:,.4g}", "" if held else "MISSED")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the entries; below 1 for a quick look")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--directory", type=Path, help="where the data goes (16 GB at full scale), default: temporary")
    parser.add_argument("--output", type=Path, help="file for the result, default: benchmarks/results/DATE-index.json")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=given.directory) as root:
        figures = run(console, Path(root), given.scale, given.only)
    console.print(report(figures))
    written = write_result("index", given.output, {}, scale=given.scale, figures=figures)
    console.print(f"written to {written}")


if __name__ == "__main__":
    main()
