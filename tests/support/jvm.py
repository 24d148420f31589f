"""JVMs of the tests: options for those that live for seconds, and archives of the classes that they load.

A JVM that finds its classes in an archive (Java's AppCDS) needs half of the processor time to start. An archive belongs
to one Java, one class path of jars and one main class: who changes one of them gets another archive, or none.
``tests/interop/fetch.py`` makes them; without one a JVM is only slower.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Compiling well would cost such a JVM more than it saves, and so would the threads of another collector."""
ERRORS_ONLY = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Standard output belongs to the program: the JVM would write there that an archive does not fit."""


def class_archive(folder: Path, name: str, *parts: str) -> Path:
    """Path of the archive for such JVMs; it may not exist. ``parts``: what it depends on besides Java itself."""
    java = Path(os.path.realpath(shutil.which("java") or "java"))
    changed_ns = java.stat().st_mtime_ns if java.exists() else 0
    key = hashlib.sha256("\0".join((str(java), str(changed_ns), *parts)).encode()).hexdigest()[:12]
    return folder / f"{name}-{key}.jsa"


def with_classes_of(archive: Path) -> list[str]:
    """The options of a JVM that uses the archive, if the archive exists."""
    return [f"-XX:SharedArchiveFile={archive}", *ERRORS_ONLY] if archive.exists() else []


def make_archive(archive: Path, run: Callable[[list[str]], object]) -> Path:
    """Create the archive unless it exists. ``run`` gets options, and returns once a JVM with them has ended."""
    if not archive.exists():
        made = archive.with_suffix(f".{os.getpid()}")
        archive.parent.mkdir(parents=True, exist_ok=True)
        try:
            run([f"-XX:ArchiveClassesAtExit={made}", *ERRORS_ONLY])
            if not made.exists():
                raise RuntimeError(f"Java left no archive of classes at {made}")
            made.replace(archive)
        finally:
            made.unlink(missing_ok=True)
    return archive


def spark_class_archive() -> Path:
    """In the environment, as the class path is: its folder decides."""
    found = find_spec("pyspark")
    return class_archive(Path(sys.prefix), "spark-classes", str(found and found.origin))


def spark_options() -> str:
    """``spark.driver.extraJavaOptions`` of a session that lives for seconds, or minutes of short queries."""
    return " ".join((*SHORT_LIVED, *with_classes_of(spark_class_archive())))
