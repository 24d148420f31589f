"""Calls a function on messages, in Spark's workers: rows or Arrow batches in, outcomes out.

A function that raises costs its own row (or, after halving, its own rows) and nothing else. After a crash the calls
move into a child process (``pyspark_pymq.work.child``), so that a message that kills its process is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_pymq.work.outcome import NAMES, outcome_of, with_results
from pyspark_pymq.work.verdicts import RETRY, Failure, Policy

if TYPE_CHECKING:
    from pyspark_pymq.work.child import Isolated

__all__ = ["Arrow", "Calls", "Evaluation", "Order", "Rows"]

ERROR = "error"
"""The column by which a function on batches or DataFrames says which rows failed, and why."""


@dataclass
class Calls:
    """What became of the rows of one batch."""

    failures: dict[int, Failure] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    results: pa.Array | None = None


class Order:
    """Which messages wait: those whose key has a failed message that waits for its next attempt.

    ``blocked``: key to the place of the failed message, at the start of the batch. Within a task rows come by key,
    the retry before those that wait behind it.
    """

    def __init__(self, blocked: Mapping[str, str]) -> None:
        self._blocked = dict(blocked)

    def admits(self, key: str | None, retry_of: str | None) -> bool:
        return key is None or key not in self._blocked or self._blocked[key] == retry_of

    def ended(self, key: str | None, kind: str, place: str) -> None:
        if key is None:
            return
        if kind == RETRY:
            self._blocked[key] = place
        else:
            self._blocked.pop(key, None)


@dataclass(frozen=True)
class Rows:
    """A function of one message; its result is a row, or ignored when ``results`` is None."""

    function: Callable[[Any], Any]
    results: pa.StructType | None

    slice_rows = 1
    """In a child process: one by one, so that none is repeated when another one kills the process."""

    def call(self, batch: pa.RecordBatch) -> Calls:
        calls = Calls()
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
class Arrow:
    """A function of a RecordBatch. It returns one of results; a column ``error`` in it, row by row with the input,
    names the rows that failed. When it raises, halves of the batch find the rows that fail."""

    function: Callable[[pa.RecordBatch], Any]
    results: pa.StructType | None

    slice_rows = 1 << 30

    def call(self, batch: pa.RecordBatch) -> Calls:
        calls = Calls()
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


@dataclass(frozen=True)
class Evaluation:
    """The function of ``mapInArrow``: pickled into every task."""

    form: Rows | Arrow
    policy: Policy
    is_careful: bool
    """A process died on this batch before."""
    blocked: Mapping[str, str] | None = None
    """For ordered queues: the keys that wait, and for what."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        from pyspark_pymq.worker_tuning import begin_task

        begin_task()
        context = TaskContext.get()
        child: Isolated | None = None
        if self.is_careful or (context is not None and context.attemptNumber() > 0):
            from pyspark_pymq.work.child import Isolated

            child = Isolated(self.form)
        call = self.form.call if child is None else child.call
        order = None if self.blocked is None else Order(self.blocked)
        try:
            for batch in batches:
                calls = call(batch) if order is None else self._in_order(batch, call, order)
                yield from outcome_of(
                    batch, calls.failures, calls.waiting, calls.results, self.policy, self.form.results
                )
        finally:
            if child is not None:
                child.close()

    def _in_order(
        self, batch: pa.RecordBatch, call: Callable[[pa.RecordBatch], Calls], order: Order
    ) -> Calls:
        """One by one: the outcome of a message decides whether the next one of its key is called."""
        calls = Calls()
        parts: list[pa.Array] = []
        names = ("orderKey", "retryOf", "attempt", "place")
        for row, (key, retry_of, attempt, place) in enumerate(
            zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        ):
            if not order.admits(key, retry_of):
                calls.waiting.append(row)
                continue
            one = call(batch.slice(row, 1))
            failure = one.failures.get(0)
            if failure is not None:
                calls.failures[row] = failure
                order.ended(key, self.policy.kind(failure, attempt), place)
            else:
                order.ended(key, "", place)
            if one.results is not None:
                parts.append(one.results)
        if self.form.results is not None:
            calls.results = pa.concat_arrays([pa.nulls(0, self.form.results), *parts])
        return calls
