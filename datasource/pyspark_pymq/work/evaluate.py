"""Calls a function on messages, in Spark's workers: Arrow batches in, outcomes out, in the order of keys if asked.

After a crash the calls move into a child process (``pyspark_pymq.work.isolated``), so that a message that kills its
process can be identified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pyspark_pymq.work.functions import ArrowFunction, Handled, RowFunction
from pyspark_pymq.work.isolated import Isolated
from pyspark_pymq.work.outcome import outcome_of, plain
from pyspark_pymq.work.verdicts import RETRY, Policy


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
class Evaluation:
    """The function of ``mapInArrow``: pickled into every task."""

    form: RowFunction | ArrowFunction
    policy: Policy
    is_careful: bool
    """A process died on this batch before."""
    blocked: Mapping[str, str] | None = None
    """For ordered queues: the keys that wait, and for what."""
    group: str = ""
    has_spans: bool = False
    """openTelemetry: each call is a span, and a function of one message has a call for each."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        from pyspark_pymq.worker_tuning import begin_task

        begin_task()
        context = TaskContext.get()
        child: Isolated | None = None
        if self.is_careful or (context is not None and context.attemptNumber() > 0):
            child = Isolated(self.form)
        call: Callable[[pa.RecordBatch], Handled] = self.form.call if child is None else child.call
        order = None if self.blocked is None else Order(self.blocked)
        if self.has_spans:
            from pyspark_pymq.taskspans import TaskSpans

            call = TaskSpans().called(call, self.group)
            if order is None and isinstance(self.form, RowFunction):
                order = Order({})
        try:
            for batch in map(plain, batches):
                calls = call(batch) if order is None else self._in_order(batch, call, order)
                yield from outcome_of(
                    batch, calls.failures, calls.waiting, calls.results, self.policy, self.form.results
                )
        finally:
            if child is not None:
                child.close()

    def _in_order(
        self, batch: pa.RecordBatch, call: Callable[[pa.RecordBatch], Handled], order: Order
    ) -> Handled:
        """One by one: the outcome of a message decides whether the next one of its key is called."""
        calls = Handled()
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
