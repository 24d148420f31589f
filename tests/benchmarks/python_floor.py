"""A Python data source whose rows nobody sent and whose sink stores nothing: what of a query's delay is Spark's own for
any source and sink in Python.

A row is ``NUMBER DUE`` as of client_sides/spark_load.py. The sink notes how late each row is when it arrives there, by
the same clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)


@dataclass
class Numbers(InputPartition):  # type: ignore[misc]
    first: int
    end: int


@dataclass
class Late(WriterCommitMessage):  # type: ignore[misc]
    """Each row's due time in microseconds and its delay in seconds."""

    rows: list[tuple[int, float]]


class PythonFloor(DataSource):  # type: ignore[misc]
    """Options: ``rate`` of rows in a second and ``began``, seconds of ``time.perf_counter``; ``delays``, the file that
    gets a line of JSON a batch."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> str:
        return "value binary, timestamp timestamp"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return FloorReader(float(self.options["rate"]), float(self.options["began"]))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return FloorWriter(self.options["delays"])


class FloorReader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, rate: float, began: float) -> None:
        self.rate, self.began = rate, began

    def initialOffset(self) -> dict[str, int]:
        return {"number": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"number": int((time.perf_counter() - self.began) * self.rate)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Numbers(start["number"], end["number"])]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        numbers = range(partition.first, partition.end)
        values = [b"%08d %d" % (each, (self.began + each / self.rate) * 1e6) for each in numbers]
        now = pa.array([time.time_ns() // 1000] * len(values), pa.timestamp("us", "UTC"))
        yield pa.record_batch({"value": pa.array(values, pa.binary()), "timestamp": now})


class FloorWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, delays: str) -> None:
        self.delays = delays

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Late:
        dues = [int(text.split()[0]) for batch in iterator for text in batch.column("value").to_pylist()]
        now_us = time.perf_counter() * 1e6
        return Late([(due, (now_us - due) / 1e6) for due in dues])

    def commit(self, messages: list[Late | None], batchId: int) -> None:
        with Path(self.delays).open("a") as file:
            for message in messages:
                if message is not None:
                    print(json.dumps(message.rows), file=file)
