"""A Pulsar of a version whose server distribution cannot be fetched, from its published jars: for tests only.

`python -m tools.assemble_pulsar 4.2.4 build/pulsar-4.2.4` needs Maven. Scripts and configuration are those of the
version that is fetched otherwise; what the newer one has on top keeps its defaults. The folder can be named in
DELAY_BRIDGE_PULSAR_HOME.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bridge.embedded import ensure_distribution

_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>delay-bridge</groupId><artifactId>pulsar-under-test</artifactId><version>1</version><packaging>pom</packaging>
  <dependencyManagement><dependencies><dependency>
    <groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId><version>{version}</version>
    <type>pom</type><scope>import</scope>
  </dependency></dependencies></dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>{version}</version>
    </dependency>
{others}
  </dependencies>
</project>
"""
_OTHERS = (
    ("io.prometheus", "simpleclient_log4j2"),
    ("org.apache.logging.log4j", "log4j-core"),
    ("org.apache.logging.log4j", "log4j-slf4j2-impl"),
    ("org.apache.logging.log4j", "log4j-web"),
)
"""What the configuration of its log names."""
_COPY = ("dependency:copy-dependencies", "-DincludeScope=runtime")


def main() -> None:
    """Assemble it; a folder that is there already is left as it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if not re.fullmatch(r"\d+\.\d+\.\d+", given.version):
        parser.error(f"not a version: {given.version!r}, expected one as 4.2.4")
    maven = shutil.which("mvn")
    if maven is None:
        parser.error("Maven (mvn) is not on the PATH")
    folder = given.folder.resolve()
    if not folder.exists():
        assemble(maven, given.version, folder)
    print(folder)


def assemble(maven: str, version: str, folder: Path) -> None:
    """Fetch the jars and put them beside scripts and configuration; all or nothing. Raises CalledProcessError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        staged = Path(name) / "pulsar"
        fetched = ensure_distribution()
        for part in ("bin", "conf"):
            shutil.copytree(fetched / part, staged / part)
        others = "\n".join(
            f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId></dependency>"
            for group, artifact in _OTHERS
        )
        (Path(name) / "pom.xml").write_text(_PROJECT.format(version=version, others=others))
        command = [maven, "-q", "-B", *_COPY, f"-DoutputDirectory={staged / 'lib'}"]
        subprocess.run(command, cwd=name, check=True)
        staged.rename(folder)


if __name__ == "__main__":
    main()
