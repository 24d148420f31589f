"""Versions of pyspark other than that of the environment, fetched by pip once per machine."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark_pymq.precompile import precompile
from tests.support.maven import FETCH_TIMEOUT_S, ToolMissing, cached, run

__all__ = ["NEWEST", "OLDEST", "pyspark_of"]

OLDEST, NEWEST = "4.1.4", "4.3.0"


def pyspark_of(version: str) -> Path:
    """A folder to put first in ``sys.path``. Raises ToolMissing when pip cannot fetch the version."""

    def install(folder: Path) -> None:
        # Without its dependencies: py4j and pyarrow come from the environment.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*pip, "--target", str(folder), f"pyspark=={version}"], FETCH_TIMEOUT_S)
        precompile(folder / "pyspark" / "python" / "lib" / "pyspark.zip")

    try:
        return cached(f"pyspark-{version}", install)
    except RuntimeError as error:
        raise ToolMissing(f"pip cannot get pyspark {version}: {error}") from error
