"""Adds files that workers wrote, or rows, to a Delta table, in one transaction of Delta's JVM library.

Files exist already, so the transaction (``org.apache.spark.sql.delta.OptimisticTransaction``) gets the actions of the
Delta protocol as JSON. Rows are written by Delta's own writer; its Python API would commit them before anybody knows
how many there are. Delta handles conflicts, checkpoints and versions. Must not know messages.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mqspark.arrow.files.locations import is_remote, join, local_path, names
from mqspark.base.clock import wall_ms
from mqspark.base.wholefile import sync
from mqspark_jobs.rowfiles import DATE, RowFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
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
    listed = jvm.java.util.ArrayList()
    listed.add(_action(jvm, _transaction(application, version, now_ms)))
    for file in files:
        listed.add(_action(jvm, {"add": _add(file, now_ms)}))
    operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq(listed)
    number = transaction.commit(sequence, operation)
    if not is_remote(url):
        log = local_path(url) / "_delta_log"
        sync(log / f"{number:020d}.json", log)


def append_rows(
    rows: DataFrame,
    url: str,
    application: str,
    version: int,
    metadata: str,
    *,
    is_new: Callable[[int], bool],
    written: Callable[[int | None], None],
) -> None:
    """Append the rows as transaction ``version`` of ``application``, with ``metadata`` in the commit. The table has all
    columns of the rows.

    ``is_new``: called with the table's version that the commit will follow; if it returns False, nothing is written.
    ``written``: called before the commit with the number of rows; None: Delta counts none (``stats.collect``). If one
    raises, nothing is committed.
    """
    session = rows.sparkSession
    jvm: Any = session._jvm
    delta = jvm.org.apache.spark.sql.delta
    with _active(session):
        transaction = delta.DeltaLog.forTable(session._jsparkSession, url).startTransaction()
        # The transaction fails if another one of the same application commits first. Asking Delta for the version
        # declares the same, and runs two jobs over the table's whole log each time.
        transaction.readTxn().addOne(application)
        if not is_new(transaction.readVersion()):
            return
        files = transaction.writeFiles(rows._jdf)
        counts = [files.apply(number).numLogicalRecords() for number in range(files.size())]
        written(sum(each.get() for each in counts) if all(each.isDefined() for each in counts) else None)
        mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        some = jvm.scala.Option.apply(metadata)
        operation = getattr(delta, "DeltaOperations$StreamingUpdate")(mode, application, version, some)
        marker = _action(jvm, _transaction(application, version, wall_ms()))
        transaction.commit(files.appended(marker), operation)


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Delta's transactions take the settings of the thread's session."""
    jvm: Any = session._jvm
    sessions = jvm.org.apache.spark.sql.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _transaction(application: str, version: int, now_ms: int) -> dict[str, Any]:
    return {"txn": {"appId": application, "version": version, "lastUpdated": now_ms}}


def _action(jvm: Any, action: dict[str, Any]) -> Any:
    companion = getattr(getattr(jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$")
    return companion.fromJson(json.dumps(action))


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
