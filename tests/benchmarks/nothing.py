"""A Python data source that reads nothing: each task makes one Arrow batch and gives it to Spark again and again. What
that takes is Spark's own part of a read, and no source in Python is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from mqspark.arrow.messagecolumns import COLUMNS, arrow_schema, default_columns
from pyspark_pymq.schema import selected_columns, spark_schema

TASKS = 4
BATCH_BYTES = 1 << 20
"""Bytes of values, as pymq's own batches have."""


@dataclass
class Rows(InputPartition):
    count: int


class Nothing(DataSource):
    """Options: ``rows`` in all, ``size`` of a value in bytes. Columns as ``pymq`` has them."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> Any:
        return spark_schema(COLUMNS, default_columns())

    def reader(self, schema: Any) -> DataSourceReader:
        return NothingReader(self.options, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NothingStreamReader(self.options, schema)


class _Reader:
    def __init__(self, options: dict[str, str], schema: Any) -> None:
        self.rows, self.size = int(options["rows"]), int(options["size"])
        self.columns = selected_columns(schema)

    def tasks(self) -> Sequence[Rows]:
        return [Rows(self.rows // TASKS + (number < self.rows % TASKS)) for number in range(TASKS)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        batch = self._batch(min(partition.count, max(1, BATCH_BYTES // self.size)))
        left = partition.count
        while left:
            taken = min(left, len(batch))
            yield batch[:taken]
            left -= taken

    def _batch(self, count: int) -> pa.RecordBatch:
        numbers = range(count)
        columns: dict[str, list[Any]] = {
            "key": [None] * count,
            "value": [b"%0*d" % (self.size, number) for number in numbers],
            "topic": ["Bench"] * count,
            "partition": [0] * count,
            "offset": list(numbers),
            "timestamp": [1_700_000_000_000_000] * count,
            "tags": [None] * count,
            "broker": ["broker-a"] * count,
            "bornTimestamp": [1_700_000_000_000_000] * count,
            "msgId": [f"{number:032X}" for number in numbers],
        }
        return pa.RecordBatch.from_pydict(
            {name: columns[name] for name in self.columns}, schema=arrow_schema(self.columns)
        )


class NothingReader(_Reader, DataSourceReader):  # type: ignore[misc]
    def partitions(self) -> Sequence[InputPartition]:
        return self.tasks()


class NothingStreamReader(_Reader, DataSourceStreamReader):  # type: ignore[misc]
    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"rows": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self.tasks()
