"""Adds files written by workers to a Delta table, in one transaction of Delta's JVM library.

Delta's writers and its Python API take rows. Here the files exist already, so the transaction
(``org.apache.spark.sql.delta.OptimisticTransaction``) gets the actions of the Delta protocol as JSON. Delta handles
conflicts, checkpoints and versions. Must not know messages.
"""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqspark.arrow.files.locations import is_remote, join, local_path, names
from mqspark.base.clock import wall_ms
from mqspark_jobs.rowfiles import DATE, RowFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def make_table(
    spark: SparkSession,
    url: str,
    columns: StructType,
    *,
    partitions: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create an empty Delta table unless one exists."""
    from delta.tables import DeltaTable

    if not names(join(url, "_delta_log")):
        builder = DeltaTable.createIfNotExists(spark).location(url).addColumns(columns)
        for name, value in (properties or {}).items():
            builder = builder.property(name, value)
        builder.partitionedBy(*partitions).execute()


def commit_files(
    spark: SparkSession, url: str, application: str, version: int, files: Sequence[RowFile]
) -> None:
    """Add the files as transaction ``version`` of ``application``; does nothing if that version is committed
    already."""
    jvm: Any = spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    log = delta.DeltaLog.forTable(spark._jsparkSession, url)
    transaction = log.startTransaction()
    # Reading the version makes the transaction fail if another one of the same application commits first.
    if transaction.txnVersion(application) >= version:
        return
    now_ms = wall_ms()
    actions = [
        {"txn": {"appId": application, "version": version, "lastUpdated": now_ms}},
        *({"add": _add(file, now_ms)} for file in files),
    ]
    companion = getattr(getattr(delta.actions, "Action$"), "MODULE$")
    listed = jvm.java.util.ArrayList()
    for action in actions:
        listed.add(companion.fromJson(json.dumps(action)))
    operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq(listed)
    number = transaction.commit(sequence, operation)
    if not is_remote(url):
        _sync(local_path(url) / "_delta_log", f"{number:020d}.json")


def _add(file: RowFile, now_ms: int) -> dict[str, Any]:
    stats = {
        "numRecords": file.rows,
        "minValues": _values(file.lowest),
        "maxValues": _values(file.highest),
    }
    return {
        "path": urllib.parse.quote(file.path, safe="/="),
        "partitionValues": {"topic": file.topic, DATE: file.date},
        "size": file.size_bytes,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": json.dumps(stats),
    }


def _values(numbers: dict[str, int]) -> dict[str, Any]:
    values: dict[str, Any] = dict(numbers)
    time_ms = numbers["timestamp"]
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000))
    return values | {"timestamp": f"{text}.{time_ms % 1000:03d}Z"}


def _sync(directory: Path, name: str) -> None:
    for path, flags in ((directory / name, os.O_RDONLY), (directory, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
