"""Live tables of this host as a job server and ``mqspark table`` show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from mqspark.errors import MQError
from mqspark.protocol.headers.header import I64

if TYPE_CHECKING:
    from mqspark_jobs.tables.tabledefs import TableDefinition, TableDirectory

_METRICS = {
    "kept": "1 while a process on this host keeps the table",
    "paused": "1 if the table is paused",
    "failed": "1 if the table's query ended with an error",
    "batch": "number of the newest batch",
    "batch_rows": "messages of the newest batch",
    "newest_timestamp_seconds": "when the newest batch was in the table",
    "delay_seconds": "from when the oldest message of the newest batch was stored until the table had it",
    "rejected_rows": "messages beside the table, of all batches",
}


class TableRow(msgspec.Struct):
    """One live table. Times are ms since the epoch."""

    name: str
    topic: str
    nameserver: str
    group: str
    """The consumer group whose lag is the table's."""
    state: str
    """running, paused, failed or stopped."""
    url: str
    rows: I64 = 0
    """Messages of the newest batch."""
    at_ms: I64 | None = None
    """When the table had them; None: there is no batch yet."""
    delay_ms: I64 | None = None
    """From when the oldest of them was stored until then."""
    rejected: I64 = 0
    error: str | None = None


def table_row(directory: TableDirectory, each: TableDefinition) -> TableRow:
    state = directory.state(each.name)
    return TableRow(
        each.name,
        each.topic,
        each.nameserver,
        each.group,
        directory.condition(each),
        each.url,
        state.rows,
        state.at_ms or None,
        state.delay_ms,
        state.rejected,
        state.error or None,
    )


def readable_tables(directory: TableDirectory) -> Iterator[TableDefinition]:
    """Without those whose definitions are damaged; the process that keeps tables names these."""
    for name in directory.names():
        try:
            yield directory.load(name)
        except MQError:
            continue


def metrics_of_tables(directory: TableDirectory) -> Iterator[Metric]:
    from mqspark_jobs.tables.livetable import table_figures

    families = {
        name: GaugeMetricFamily(f"mqspark_table_{name}", text, labels=["table", "topic"])
        for name, text in _METRICS.items()
    }
    for each in readable_tables(directory):
        is_kept = directory.is_running(each.name)
        for name, value in table_figures(each, directory.state(each.name), is_kept=is_kept).items():
            families[name].add_metric([each.name, each.topic], float(value))
    yield from families.values()
