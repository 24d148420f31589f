"""The jars that Spark needs beside pyspark, from Maven Central: a POM that names each and excludes what it pulls in."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.maven import ToolMissing, cached, copy_dependencies

__all__ = ["ALONE", "delta_jars", "maven_jars"]

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>t</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging><dependencies>
{dependencies}</dependencies></project>"""
DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>
"""
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
DELTA = [
    ("io.delta", "delta-spark_4.2_2.13", "4.4.0", ALONE),
    ("io.delta", "delta-storage", "4.4.0", ALONE),
]


def maven_jars(name: str, items: Sequence[tuple[str, str, str, str]]) -> list[Path]:
    """(group, artifact, version, exclusions) of each; from the cache, which mvn fills once.

    Raises ToolMissing, and RuntimeError when Maven cannot fetch them.
    """
    dependencies = "".join(DEPENDENCY.format(*item) for item in items)
    text = POM.format(name=name.replace(".", "-"), dependencies=dependencies)

    def fetch(folder: Path) -> None:
        pom = folder / "pom.xml"
        pom.write_text(text)
        copy_dependencies(pom, folder)

    folder = cached(f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}", fetch)
    return sorted(folder.glob("*.jar"))


def delta_jars() -> list[Path] | None:
    """The two that Delta needs beside pyspark; None without a cache and without an mvn that reaches Central."""
    try:
        return maven_jars("delta-4.4.0", DELTA)
    except (ToolMissing, RuntimeError, subprocess.SubprocessError):
        return None
