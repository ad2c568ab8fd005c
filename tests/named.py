"""What documents name in backticks: files, what is defined in them, targets of make. Found without importing anything.

A document names a thing beside its file: in one row of a table, item of a list or paragraph stand the files and, beside
them, functions, classes, methods and attributes that are defined in one of these files.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
METRICS = "pulsar_delay_bridge_"
REFERENCE = ROOT / "docs" / "reference.md"
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


def blocks(page: str) -> Iterator[str]:
    """Rows of tables, items of lists, and paragraphs; what is between fences is left out."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    block: list[str] = []
    for line in [*page.splitlines(), ""]:
        if block and (not line.strip() or re.match(r"\||#|\s*(-|\d+\.) ", line)):
            yield "\n".join(block)
            block = []
        if line.strip():
            block.append(line)


def quoted(block: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", block)


def targets() -> set[str]:
    """Of the Makefile."""
    return set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def defined_in(file: Path) -> frozenset[str]:
    """`name`, `Class`, `Class.method` and `Class.attribute` of a module."""
    return frozenset(_definitions(ast.parse(file.read_text()).body, ""))


def _definitions(body: list[ast.stmt], within: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield within + node.name
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and within:
            yield from (within + name for name in _own_attributes(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            assigned = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (within + each.id for each in assigned if isinstance(each, ast.Name))


def _own_attributes(method: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            yield node.attr


def stale(page: str) -> list[str]:
    """What a document names and is not there."""
    return [wrong for block in blocks(page) for wrong in _stale_in(block)]


def _stale_in(block: str) -> Iterator[str]:
    words = quoted(block)
    places = [word for word in words if " " not in word and ("/" in word or (ROOT / word).is_file())]
    yield from (f"{place} is not there" for place in places if not _is_there(place))
    modules = [ROOT / place for place in places if place.endswith(".py") and (ROOT / place).is_file()]
    defined = frozenset[str]().union(*map(defined_in, modules))
    for word in words:
        if word.startswith(METRICS):
            if f"| `{word.removeprefix(METRICS)}` |" not in REFERENCE.read_text():
                yield f"{word}: no such metric"
        elif word.startswith("make ") and word.split()[1] not in targets():
            yield f"{word}: no such target"
        elif word not in places and _NAME.fullmatch(word) and word not in defined:
            yield f"{word} is in none of {[str(module.relative_to(ROOT)) for module in modules]}"


def _is_there(place: str) -> bool:
    if place.startswith("build/"):
        return True  # made by targets
    path = ROOT / place
    return path.is_dir() if place.endswith("/") else path.is_file()
