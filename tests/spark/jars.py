"""Jars from Maven Central, fetched once a machine: a POM that names each and excludes what it would pull in."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

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
    """(group, artifact, version, exclusions) of each; from the cache, which mvn fills once."""
    home = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")))
    cache = home / "mqspark-tests" / name
    if not (cache / ".complete").exists():
        with tempfile.TemporaryDirectory() as folder:
            pom = Path(folder) / "pom.xml"
            dependencies = "".join(DEPENDENCY.format(*item) for item in items)
            pom.write_text(POM.format(name=name.replace(".", "-"), dependencies=dependencies))
            command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
            subprocess.run([*command, f"-DoutputDirectory={cache}"], check=True, timeout=600)
        (cache / ".complete").touch()
    return sorted(cache.glob("*.jar"))


def delta_jars() -> list[Path] | None:
    """The two that Delta needs beside pyspark; None without a cache and without an mvn that reaches Central."""
    try:
        return maven_jars("delta-4.4.0", DELTA)
    except (OSError, subprocess.SubprocessError):
        return None
