"""The forms of functions that a work queue calls, of one message or of a batch, and the outcomes of messages.

An exception fails only the row that caused it (in a batch, the rows left after halving). Must not know where the calls
happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_pymq.work.outcome import NAMES, with_results
from pyspark_pymq.work.verdicts import Failure

ERROR = "error"
"""The column by which a function on batches or DataFrames says which rows failed, and why."""


@dataclass
class Handled:
    """The outcomes of the rows of one batch."""

    failures: dict[int, Failure] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    results: pa.Array | None = None


@dataclass(frozen=True)
class RowFunction:
    """A function of one message; its result is a row, or ignored when ``results`` is None."""

    function: Callable[[Any], Any]
    results: pa.StructType | None

    slice_rows = 1
    """In a child process: one by one, so that none is repeated when another one kills the process."""

    def call(self, batch: pa.RecordBatch) -> Handled:
        calls = Handled()
        values: list[Any] = []
        for row, message in enumerate(messages_of(batch)):
            try:
                values.append(self.function(message))
            except Exception as error:
                values.append(None)
                calls.failures[row] = Failure.of(error)
        if self.results is not None:
            calls.results, unfit = with_results(values, self.results)
            calls.failures |= unfit
        return calls


@dataclass(frozen=True)
class ArrowFunction:
    """A function of a RecordBatch. It returns one of results; a column ``error`` in it, row by row with the input,
    names the rows that failed. When it raises, halves of the batch find the rows that fail."""

    function: Callable[[pa.RecordBatch], Any]
    results: pa.StructType | None

    slice_rows = 1 << 30

    def call(self, batch: pa.RecordBatch) -> Handled:
        calls = Handled()
        parts: list[pa.Array] = []
        waiting = [(0, batch.num_rows)]
        visible = batch.select(list(NAMES))
        while waiting:
            first, rows = waiting.pop()
            try:
                failures, results = self._called(visible.slice(first, rows))
            except Exception as error:
                if rows == 1:
                    calls.failures[first] = Failure.of(error)
                else:
                    half = rows // 2
                    waiting += [(first + half, rows - half), (first, half)]
                continue
            calls.failures |= {first + row: failure for row, failure in failures.items()}
            if results is not None:
                parts.append(results)
        if self.results is not None:
            calls.results = pa.concat_arrays([pa.nulls(0, self.results), *parts])
        return calls

    def _called(self, batch: pa.RecordBatch) -> tuple[dict[int, Failure], pa.Array | None]:
        returned = self.function(batch)
        if returned is None and self.results is None:
            return {}, None
        if not isinstance(returned, pa.RecordBatch | pa.Table):
            raise TypeError(f"the function returns a RecordBatch or a Table, not {type(returned).__name__}")
        failures: dict[int, Failure] = {}
        if ERROR in returned.schema.names:
            if returned.num_rows != batch.num_rows:
                raise ValueError(
                    f"with a column {ERROR!r} the function returns a row for each of the {batch.num_rows} messages,"
                    f" not {returned.num_rows}"
                )
            errors = returned.column(ERROR).to_pylist()
            failures = {
                row: Failure.of(Exception(text)) for row, text in enumerate(errors) if text is not None
            }
            returned = returned.take(pa.array([row for row in range(len(errors)) if row not in failures]))
        if self.results is None:
            return failures, None
        columns = []
        for each in self.results:
            if each.name not in returned.schema.names:
                raise ValueError(f"the function returns no column {each.name!r}")
            column = returned.column(each.name).cast(each.type)
            columns.append(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        return failures, pa.StructArray.from_arrays(
            [
                pa.concat_arrays([pa.nulls(0, each.type), column])
                for each, column in zip(self.results, columns, strict=True)
            ],
            fields=list(self.results),
        )


def messages_of(batch: pa.RecordBatch) -> Iterator[Any]:
    """The messages as Rows."""
    from pyspark.sql import Row

    make = Row(*NAMES)
    columns = [
        batch.column(name).to_pylist(maps_as_pydicts="lossy")
        if name == "properties"
        else batch.column(name).to_pylist()
        for name in NAMES
    ]
    for values in zip(*columns, strict=True):
        yield make(*values)
