"""tables: keeps Delta tables that follow topics, every message exactly once.

``tablerows`` writes one table, ``tablequery`` keeps several by one query, ``tablekeeper`` decides which query keeps
which table.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mqspark.errors import MQError
from mqspark_jobs.job import ProgressLine, Summary, replace_metrics
from mqspark_jobs.tables.tabledefs import TableDefinition, TableState
from mqspark_jobs.tables.tablekeeper import TableKeeper, TablesOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 1.0
"""Between looks at definitions and queries."""
_METRICS_S = 10.0


def run(options: TablesOptions, spark: SparkSession, progress: ProgressLine) -> Summary:
    """Until SIGTERM or SIGINT, or with ``once`` until all has been read. Raises ConfigError for a table that is not
    there, and with ``once`` MQError for one that failed."""
    started = time.monotonic()
    for name in options.names:
        options.directory.load(name)
    keeper = TableKeeper(options, spark, progress)
    measured_s = -_METRICS_S
    with _until_stopped() as stopped:
        try:
            while not stopped.is_set():
                keeper.step(time.monotonic())
                if options.once and not keeper.names:
                    break
                if options.metrics is not None and time.monotonic() - measured_s >= _METRICS_S:
                    measured_s = time.monotonic()
                    replace_metrics(options.metrics, table_metrics(keeper))
                stopped.wait(_LOOK_S / 10 if options.once else _LOOK_S)
        finally:
            keeper.stop()
    if options.once and keeper.errors:
        raise MQError("; ".join(f"{name}: {error}" for name, error in sorted(keeper.errors.items())))
    return {
        "job": "tables",
        "tables": keeper.tables,
        "rows": keeper.rows,
        "batches": keeper.batches,
        "failures": keeper.failures,
        "elapsed_s": round(time.monotonic() - started, 3),
    }


def table_metrics(keeper: TableKeeper) -> list[str]:
    """The metrics of all tables of the directory, in Prometheus' text format."""
    directory = keeper.options.directory
    lines = []
    for name in directory.names():
        try:
            definition = directory.load(name)
        except MQError:
            continue  # which the keeper says
        figures = table_figures(definition, directory.state(name), is_kept=name in keeper.names)
        labels = f"table={json.dumps(name)},topic={json.dumps(definition.topic)}"
        lines += [f"mqspark_table_{figure}{{{labels}}} {value}" for figure, value in figures.items()]
    return sorted(lines)


def table_figures(definition: TableDefinition, state: TableState, *, is_kept: bool) -> dict[str, float]:
    """By the ends of the names of metrics, ``mqspark_table_...``."""
    found: dict[str, float] = {
        "kept": int(is_kept),
        "paused": int(definition.is_paused),
        "failed": int(bool(state.error)),
    }
    if not state.at_ms:
        return found
    found |= {"batch": state.batch, "batch_rows": state.rows, "newest_timestamp_seconds": state.at_ms / 1000}
    found["rejected_rows"] = state.rejected
    return found if state.delay_ms is None else found | {"delay_seconds": state.delay_ms / 1000}


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {each: signal.signal(each, lambda *_: stopped.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
