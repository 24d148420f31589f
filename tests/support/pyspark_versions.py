"""Versions of pyspark other than that of the environment, fetched by pip once per machine.

``python -m tests.support.pyspark_versions ARGUMENTS`` runs Python with the Spark that Delta takes:

    .venv/bin/python -m tests.support.pyspark_versions -m pytest -m delta tests/spark
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

from mqspark_jobs.commandline import DELTA_VERSION
from pyspark_pymq.precompile import precompile
from tests.support.maven import FETCH_TIMEOUT_S, ToolMissing, cached, run

OLDEST = "4.1.4"
WITH_DELTA = "4.2.0"
"""The newest that delta-spark takes."""


def pyspark_of(wanted: str, *more: str) -> Path:
    """A folder to put first in ``sys.path``. Raises ToolMissing when pip cannot fetch the version."""

    def install(folder: Path) -> None:
        # Without its dependencies: py4j and pyarrow come from the environment.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*pip, "--target", str(folder), f"pyspark=={wanted}", *more], FETCH_TIMEOUT_S)
        precompile(folder / "pyspark" / "python" / "lib" / "pyspark.zip")

    try:
        return cached("-".join(("pyspark", wanted, *(each.replace("==", "-") for each in more))), install)
    except RuntimeError as error:
        raise ToolMissing(f"pip cannot get pyspark {wanted}: {error}") from error


def spark_of_delta() -> Path:
    """The same with Delta's package. Raises ToolMissing."""
    return pyspark_of(WITH_DELTA, f"delta-spark=={DELTA_VERSION}")


def has_spark_of_delta() -> bool:
    """Whether this process has it."""
    return version("pyspark").split(".")[:2] == WITH_DELTA.split(".")[:2]


def environment_of(folder: Path) -> dict[str, str]:
    """The environment variables with which Python and Spark's scripts find it."""
    return {"PYTHONPATH": str(folder), "SPARK_HOME": str(folder / "pyspark")}


if __name__ == "__main__":
    found = environment_of(spark_of_delta())
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**os.environ, **found})  # noqa: S606
