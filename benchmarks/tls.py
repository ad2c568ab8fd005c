"""TLS beside none, both through the bridge, the same work in turn: `python -m benchmarks.tls`.

Starts a real Pulsar and a bridge in front of it that serves clients without TLS and with it. First what one client
publishes and consumes; then how late delayed messages of a client are while crowds of others connect at once, again
and again, without TLS and with it. Prints medians and ratios, and writes them below `benchmarks/results/`. Needs the
`openssl` command.
"""

import argparse
import asyncio
import contextlib
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.protocol import commands
from bridge.protocol.frames import encode_frame
from bridge.showcase.side_by_side import Runs, bridge_process, free_port, measure, medians

CROWD = 1_000
LEAVE_S = 2.0
"""They come at once, and leave one after the other."""
WORK = ("plain", "TLS")
CROWDS = ("nobody", "plain", "TLS")


def workloads(scale: float) -> dict[str, list[str]]:
    count, lead = str(int(100_000 * scale)), str(max(20 * scale, 6.0))
    return {
        "burst": ["burst", "--messages", count, "--lead", lead],
        "throughput": ["throughput", "--messages", count],
    }


def neighbour(scale: float) -> list[str]:
    """Messages that are due all the while; few, so that they are late because of others."""
    spread = str(max(60 * scale, 5.0))
    return ["spread", "--messages", str(int(30_000 * scale)), "--lead", "5", "--spread", spread]


def certificate(folder: Path) -> tuple[Path, Path]:
    """One that is its own authority, and its key."""
    found, key = folder / "certificate.pem", folder / "key.pem"
    made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    named = ("-subj", "/CN=bridge", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(found))
    subprocess.run(["openssl", *made, *named, *files], check=True, capture_output=True)
    return found, key


# -- a crowd, in a process of its own


async def connect_crowds(url: str, trust: str | None, size: int) -> None:
    """So many clients at once, and once more when all were there, until this process is ended."""
    parts = urlsplit(url)
    context = None if trust is None else ssl.create_default_context(cafile=trust)
    hello = encode_frame(commands.connect(None))

    async def one() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
        writer.write(hello)
        await reader.readexactly(4)
        return writer

    while True:
        there = await asyncio.gather(*[one() for _ in range(size)], return_exceptions=True)
        for writer in there:
            if isinstance(writer, asyncio.StreamWriter):
                writer.transport.abort()
                await asyncio.sleep(LEAVE_S / size)
        failed = [each for each in there if isinstance(each, BaseException)]
        print(f"{size - len(failed)} {failed[0]!r}" if failed else size, flush=True)
        await asyncio.sleep(1)


@contextlib.contextmanager
def crowds(url: str, trust: Path | None, folder: Path) -> Iterator[Path]:
    """They come while the context is open; gives a file with a line for each crowd."""
    said = folder / "crowds.txt"
    arguments = ["--crowd", url] + (["--trust", str(trust)] if trust else [])
    with said.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.tls", *arguments], stdout=output)
        try:
            yield said
        finally:
            process.terminate()
            process.wait(30)


# -- what is measured


def run(urls: dict[str, str], trust: Path, runs: int, scale: float, console: Console) -> dict[str, Runs]:
    options = {"plain": [], "TLS": ["--trust", str(trust)]}
    results: dict[str, Runs] = {}
    for name, arguments in workloads(scale).items():
        results[name] = {kind: [] for kind in WORK}
        for number in range(runs):
            for kind in WORK if number % 2 == 0 else reversed(WORK):
                results[name][kind].append(measure([*arguments, *options[kind]], urls[kind]))
                console.log(name, kind, _rounded(results[name][kind][-1]))
    return results


def run_beside_crowds(
    urls: dict[str, str], trust: Path, runs: int, scale: float, folder: Path, console: Console
) -> Runs:
    results: Runs = {kind: [] for kind in CROWDS}
    for number in range(runs):
        for kind in CROWDS if number % 2 == 0 else reversed(CROWDS):
            came = 0
            if kind == "nobody":
                figures = measure(neighbour(scale), urls["plain"])
            else:
                with crowds(urls[kind], trust if kind == "TLS" else None, folder) as said:
                    figures = measure(neighbour(scale), urls["plain"])
                    came = sum(int(line.split()[0]) for line in said.read_text().splitlines())
            results[kind].append(figures | {"came": float(came)})
            console.log("beside", kind, _rounded(results[kind][-1]))
    return results


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in figures.items()}


def report(results: dict[str, Runs], beside: Runs) -> Table:
    table = Table("workload", "figure", *WORK, "TLS / plain")
    for name, runs in results.items():
        plain, tls = medians(runs["plain"]), medians(runs["TLS"])
        for figure in ("rate", "p99_ms") if name == "burst" else ("produce", "consume", "both"):
            ratio = f"{tls[figure] / plain[figure]:.2f}"
            table.add_row(name, figure, f"{plain[figure]:,.1f}", f"{tls[figure]:,.1f}", ratio)
    table.add_section()
    alone = medians(beside["nobody"])
    for kind in ("plain", "TLS"):
        crowded, name = medians(beside[kind]), f"lateness beside crowds ({kind}) / alone"
        for figure in ("p50_ms", "p99_ms", "max_ms"):
            ratio = f"{crowded[figure] / alone[figure]:.2f}"
            table.add_row(name, figure, f"{alone[figure]:,.1f}", f"{crowded[figure]:,.1f}", ratio)
        table.add_row(name, "clients that came", "", f"{crowded['came']:,.0f}", "")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the messages")
    parser.add_argument("--output", type=Path, help="file for the result, default: DATE-tls.json")
    parser.add_argument("--crowd", help=argparse.SUPPRESS)
    parser.add_argument("--trust", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.crowd:
        asyncio.run(connect_crowds(given.crowd, given.trust, CROWD))
        return
    console = Console()
    with EmbeddedPulsar() as broker, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trust, key = certificate(folder)
        tls_port = free_port()
        settings = {
            "DELAY_BRIDGE_TLS_PORT": str(tls_port),
            "DELAY_BRIDGE_TLS_CERTIFICATE_FILE_PATH": str(trust),
            "DELAY_BRIDGE_TLS_KEY_FILE_PATH": str(key),
        }
        with bridge_process(broker, str(folder / "data"), **settings) as bridge:
            urls = {"plain": bridge.service_url, "TLS": f"pulsar+ssl://127.0.0.1:{tls_port}"}
            results = run(urls, trust, given.runs, given.scale, console)
            beside = run_beside_crowds(urls, trust, given.runs, given.scale, folder, console)
    console.print(report(results, beside))
    written = write_result("tls", given.output, {}, scale=given.scale, results=results, beside=beside)
    console.print(f"written to {written}")


if __name__ == "__main__":
    main()
