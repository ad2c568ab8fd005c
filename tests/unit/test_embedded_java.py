from pathlib import Path

import pytest

from bridge.embedded import JavaNotFoundError, JavaTooOldError, find_java
from bridge.embedded.java import parse_version


def fake_java(folder: Path, printed: str, code: int = 0) -> Path:
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{printed}' >&2\nexit {code}\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25.0.1" 2025-10-21', 25),
        ("zsh: command not found", None),
    ],
)
def test_version_is_read_from_what_java_prints(printed: str, version: int | None) -> None:
    assert parse_version(printed) == version


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    in_home = fake_java(tmp_path / "home", 'openjdk version "21.0.2"')
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (java.home, java.executable, java.version) == (tmp_path / "home", in_home, 21)


def test_path_is_used_when_java_home_is_unusable(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    for home in (tmp_path / "nowhere", fake_java(tmp_path / "old", 'java version "1.8.0_1"').parents[1]):
        java = find_java({"JAVA_HOME": str(home), "PATH": str(on_path.parent)})
        assert (java.home, java.executable) == (None, on_path)


def test_old_java_is_named_with_both_versions(tmp_path: Path) -> None:
    old = fake_java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(JavaTooOldError, match=r"Java 17 or newer is needed: .*/bin/java is version 11\.") as raised:
        find_java({"PATH": str(old.parent)})
    assert raised.value.found == {old: 11}


def test_missing_java_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME \(/nowhere\) has no working java; PATH has no") as raised:
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(tmp_path)})
    assert raised.value.needed == 17


def test_stub_that_only_prints_a_hint_is_no_java(tmp_path: Path) -> None:
    stub = fake_java(tmp_path, "Unable to locate a Java Runtime.", code=1)
    with pytest.raises(JavaNotFoundError):
        find_java({"PATH": str(stub.parent)})


def test_environment_leads_scripts_to_the_java_found(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path, 'openjdk version "17.0.1"')
    java = find_java({"JAVA_HOME": "/nowhere", "PATH": str(on_path.parent)})
    env = java.environment({"JAVA_HOME": "/nowhere", "PATH": "/usr/bin"})
    assert "JAVA_HOME" not in env
    assert env["PATH"] == f"{on_path.parent}:/usr/bin"
