"""What a test needs to follow a page of the documentation: its fenced blocks, a shell, and how outputs are compared."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "end-of-output"
_FORMS = (
    (re.compile(r"\b[0-9a-f]{16}\b"), "CHECKSUM"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"\b\d+:-?\d+\b"), "POSITION"),
    (re.compile(r"(?<![\w-])\d[\d,.]*(?!\w)"), "NUMBER"),
    # Which of these it is depends on how long it takes to read on.
    (re.compile(r"\b(loading|in memory|draining)\b"), "in memory"),
    (re.compile(r"[ \t]+"), " "),
)


class Block(NamedTuple):
    """A fenced block; `kind` is what is written behind the fence, `line` where it begins."""

    kind: str
    text: str
    line: int

    def commands(self) -> list[str]:
        """What is typed, of a block with prompts."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]

    def output(self) -> str:
        """What is answered, of a block with prompts."""
        return "".join(line for line in self.text.splitlines(keepends=True) if not line.startswith("$ "))


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(each[1], each[2], page.count("\n", 0, each.start()) + 1) for each in _FENCED.finditer(page)]


def form(text: str) -> list[str]:
    """The lines of an output without what differs from run to run; of lines alike that follow each other one."""
    lines: list[str] = []
    for line in text.strip().splitlines():
        for pattern, name in _FORMS:
            line = pattern.sub(name, line)
        if not lines or lines[-1] != line.strip():
            lines.append(line.strip())
    return lines


class Shell:
    """One bash: variables last from command to command."""

    def __init__(self, environment: Mapping[str, str], folder: Path, errors: Path) -> None:
        """Works in `folder`; what commands say on standard error goes to the file `errors`."""
        self._errors = errors
        with errors.open("w") as log:
            self._process = subprocess.Popen(
                ["bash"],
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(self, command: str) -> str:
        """What a command writes to standard output; it has to succeed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho {_END} $?\n")
        self._process.stdin.flush()
        said = ""
        for line in self._process.stdout:
            if line.startswith(_END):
                assert line.split()[1] == "0", f"{command}: {said}{self._errors.read_text()}"
                return said
            said += line
        raise AssertionError(f"the shell ended with {command}: {self._errors.read_text()}")

    def close(self) -> None:
        with self._process as process:
            process.kill()
