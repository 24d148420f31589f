"""The jars that Spark needs beside pyspark, from Maven Central: a POM that names each and excludes what it pulls in.

Delta's are for one Spark: tests that need them are marked ``delta`` and run with that one (``pyspark_versions``).
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.maven import ToolMissing, cached, copy_dependencies
from tests.support.pyspark_versions import has_spark_of_delta

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


NO_DELTA = "Delta takes Spark 4.2 (python -m tests.support.pyspark_versions -m pytest), and mvn has to fetch its jars"


def fetch_delta_jars() -> list[Path]:
    """The two that Delta needs beside pyspark. Raises as ``maven_jars`` does."""
    return maven_jars("delta-4.4.0", DELTA)


def delta_jars() -> list[Path] | None:
    """The same; None with another Spark, and without a cache and an mvn that reaches Central: ``NO_DELTA``."""
    if not has_spark_of_delta():
        return None
    try:
        return fetch_delta_jars()
    except (ToolMissing, RuntimeError, subprocess.SubprocessError):
        return None


def needed_delta_jars() -> str:
    """The same as an option takes them; skips the test without them."""
    jars = delta_jars()
    if jars is None:
        pytest.skip(NO_DELTA)
    return ",".join(map(str, jars))
