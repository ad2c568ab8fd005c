"""The committed protocol modules are what the committed `.proto` gives."""

from pathlib import Path

import pytest

from tools.generate_protocol import GENERATED, PROTOCOL, generate


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("protocol")
    generate(folder)
    return folder


@pytest.mark.parametrize("name", GENERATED)
def test_committed_module_is_the_generated_one(generated: Path, name: str) -> None:
    assert (PROTOCOL / name).read_text().splitlines() == (generated / name).read_text().splitlines()


def test_nothing_else_is_generated(generated: Path) -> None:
    assert sorted(path.name for path in generated.iterdir()) == sorted(GENERATED)
