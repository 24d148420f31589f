"""table-upkeep: makes large files of the small ones of live tables, and removes files that no reader needs any more.

Delta keeps both from readers: who reads a version of the table goes on reading its files. The query of a table only
appends, which goes together with a compaction; a merge that meets one is tried again by Delta or with the next batch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqspark_jobs.job import ProgressLine, Summary
from mqspark_jobs.tables.tabledefs import TableDirectory
from mqspark_jobs.tables.tablerecord import newest_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTING_TASKS = 32


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    directory: TableDirectory
    names: tuple[str, ...] = ()
    """Only these; empty: all."""
    retention_hours: float = 168.0
    """How long files stay that no version needs any more: as long as a reader may take."""


def upkeep(options: UpkeepOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Raises ConfigError for a table that is not there, MQError, OSError."""
    from delta.tables import DeltaTable

    started = time.monotonic()
    chosen = [options.directory.load(name) for name in options.names or options.directory.names()]
    session = spark.newSession()
    session.conf.set("spark.sql.retainGroupColumns", "true")  # VACUUM takes its default for granted
    # Else Delta 4.4 takes the retention of the table's properties, whatever VACUUM is given.
    session.conf.set("spark.databricks.delta.vacuum.retentionWindowIgnore.enabled", "false")
    # VACUUM lists the files of a table by so many tasks, 10,000 unless it is told: minutes for a small one.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", str(_LISTING_TASKS))
    places = [url for each in chosen for url in (each.url, each.rejected_url)]
    files_before = files_after = 0
    for done, url in enumerate(places):
        progress.show("keeps", done, len(places), "tables")
        if newest_version(url).number < 0:
            continue
        table = DeltaTable.forPath(session, url)
        files_before += _files(table)
        table.optimize().executeCompaction()
        table.vacuum(options.retention_hours)
        files_after += _files(table)
    progress.show("keeps", len(places), len(places), "tables")
    return {
        "job": "table-upkeep",
        "tables": len(chosen),
        "files_before": files_before,
        "files_after": files_after,
        "elapsed_s": round(time.monotonic() - started, 3),
    }


def _files(table: Any) -> int:
    return int(table.detail().collect()[0].numFiles)
