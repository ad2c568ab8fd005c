"""How much disk the plain package takes: run by `make installed-size`.

In an environment of its own, installed as a user does it and without any extra, the package has to stay below LIMIT_MB,
to serve and render its pages, and to say of the commands that need an extra how to install it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.installed import build_wheel, run, serve, uv

ROOT = Path(__file__).parent.parent
LIMIT_MB = 150
"""As `du -m` counts: 2^20 bytes."""
LARGEST = 12
"""So many packages are listed."""
LEFT_OUT = {"numpy", "pandas", "plotly", "pulsar-client", "pyarrow", "pyspark"}
REFUSED = (
    ("demo", ("-m", "bridge", "demo")),
    ("demo", ("-m", "bridge", "bench")),
    ("spark", ("-m", "spark_jobs.rebuild", "spec.json")),
    ("spark", ("-m", "spark_jobs.audit", "spec.json")),
    ("spark", ("-m", "spark_jobs.report", "--service-url=pulsar://h", "--web-url=http://h", "--output=o", "topic")),
)
"""Extras, and what cannot be done without."""


def main() -> None:
    """Raises CalledProcessError, AssertionError."""
    with tempfile.TemporaryDirectory(prefix="delay-bridge-size-") as path:
        folder = Path(path)
        python = folder / "venv" / "bin" / "python"
        uv("venv", "--python", sys.executable, folder / "venv")  # with nothing in it, not even pip
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
        run(*pip, "install", "--quiet", build_wheel(folder), cwd=folder)
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        found = {canonicalize_name(each.name): each for each in distributions(path=[str(site)])}
        total = bytes_below(site) >> 20
        print(f"{total} MB in {len(found)} packages, the largest of them:")
        for size, package in sorted(((bytes_of(each), package) for package, each in found.items()), reverse=True)[
            :LARGEST
        ]:
            print(f"{size / 2**20:8.1f} MB  {package} {found[package].version}")
        assert total <= LIMIT_MB, f"more than {LIMIT_MB} MB"
        assert not LEFT_OUT & found.keys(), LEFT_OUT & found.keys()
        serve(folder / "venv" / "bin" / "delay-bridge", folder)
        for extra, command in REFUSED:
            _is_refused(extra, [str(python), *command], folder)
        print("it serves, and says what else there is to be installed")


def _is_refused(extra: str, command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1, f"{command}: {done.returncode}, {said}"
    assert f"-m pip install 'pulsar-delay-bridge[{extra}]'" in said, f"{command}: {said}"
    assert "Traceback" not in said, said


def plain_packages() -> Mapping[str, Distribution]:
    """The packages that the plain package needs, as they are installed here; without itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return needed(project["dependencies"])


def needed(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Every package that requirements lead to on this machine, by name. Raises PackageNotFoundError."""
    found: dict[str, Distribution] = {}
    waiting = [(text, "") for text in requirements]
    while waiting:
        text, extra = waiting.pop()
        one = Requirement(text)
        name = canonicalize_name(one.name)
        if (one.marker is not None and not one.marker.evaluate({"extra": extra})) or (name in found and not one.extras):
            continue
        found[name] = distribution(name)
        for each in ("", *one.extras):
            waiting += [(text, each) for text in found[name].requires or ()]
    return found


def bytes_of(package: Distribution) -> int:
    """What the files of an installed package take."""
    paths = (Path(str(file.locate())) for file in package.files or ())
    return sum(_taken(path) for path in paths if path.is_file())


def bytes_below(folder: Path) -> int:
    """What a folder takes with all that is in it, as `du` counts."""
    return _taken(folder) + sum(_taken(path) for path in folder.rglob("*"))


def _taken(path: Path) -> int:
    return path.lstat().st_blocks * 512


if __name__ == "__main__":
    main()
