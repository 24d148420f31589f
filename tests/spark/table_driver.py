"""Jobs of live tables in one process and one Spark; it kills itself, its JVM and its workers at a named step of a
table, if one is named: ``python table_driver.py SETTINGS.json``."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from mqspark_jobs.commandline import main
from mqspark_jobs.tables.tablerows import TableWriter


def die_at(method: str, when: str, call: int) -> None:
    """Before or after the call of this number; a call begins with 1."""
    step = getattr(TableWriter, method)
    calls = 0

    def last(writer: TableWriter, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if when == "after":
            step(writer, *arguments)
        if calls == call:
            os.killpg(0, signal.SIGKILL)
        if when == "before":
            step(writer, *arguments)

    setattr(TableWriter, method, last)


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if "dies" in settings:
        die_at(*settings["dies"])
    stop = SparkSession.stop
    SparkSession.stop = lambda session: None  # type: ignore[method-assign]
    codes = [main(arguments) for arguments in settings["runs"]]
    stop(SparkSession.builder.getOrCreate())
    sys.exit(max(codes))
