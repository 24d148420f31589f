"""The outcome of a batch of work as rows: results, and the messages that failed or wait. Arrow, without Spark.

One row a result, one a message that failed or waits, and one for all messages of an Arrow batch that were done
without a result. Must not know where outcomes are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mqspark.arrow.messagecolumns import COLUMNS, PROPERTIES, arrow_type_of, default_columns
from pyspark_pymq.schema import spark_schema
from pyspark_pymq.work.verdicts import DONE, WAIT, Failure, Policy

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MESSAGE: dict[str, str] = {
    **{name: COLUMNS[name] for name in default_columns("broker", "bornTimestamp", "msgId", PROPERTIES)},
    "attempt": "int",
    "place": "string",
}
"""What a function sees of a message. ``topic`` is the topic it was sent to, also of a retry; ``partition`` and
``offset`` are those of the queue that it was read from, and ``place`` names all of that."""

NAMES = tuple(MESSAGE)
ORDER: dict[str, str] = {"orderKey": "string", "retryOf": "string", "turn": "bigint"}
"""Beside the message, for ordered queues: what it waits for, what it is a retry of, in which batch it began to wait."""


_REASON = {
    "kind": "string",
    "count": "bigint",
    "errorType": "string",
    "errorText": "string",
    "delayMs": "bigint",
}


def outcome_columns(results: StructType | None) -> StructType:
    """The columns of an outcome; ``results``: the columns of a result."""
    columns = spark_schema(_REASON).add("message", spark_schema(MESSAGE))
    for field in spark_schema(ORDER, ("orderKey", "turn")):
        columns.add(field)
    return columns if results is None else columns.add("result", results)


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The messages with the types that functions know: spark.sql.execution.arrow.useLargeVarTypes widens texts."""
    kinds = MESSAGE | ORDER
    fields = [
        field if pa.types.is_timestamp(field.type) else field.with_type(arrow_type_of(kinds[field.name]))
        for field in batch.schema
    ]
    return batch.cast(pa.schema(fields))


def _columns(batch: pa.RecordBatch, rows: Sequence[int], results: pa.DataType | None) -> dict[str, Any]:
    """The columns of messages that are not done."""
    chosen = batch.take(pa.array(rows, pa.int64()))
    columns = {
        "count": pa.array([1] * len(rows), pa.int64()),
        "message": pa.StructArray.from_arrays(
            [chosen.column(name) for name in NAMES], fields=[chosen.schema.field(name) for name in NAMES]
        ),
        "orderKey": chosen.column("orderKey"),
        "turn": chosen.column("turn"),
    }
    if results is not None:
        columns["result"] = pa.nulls(len(rows), results)
    return columns


def outcome_of(
    batch: pa.RecordBatch,
    failures: Mapping[int, Failure],
    waiting: Sequence[int],
    results: pa.Array | None,
    policy: Policy,
    result_type: pa.DataType | None,
) -> list[pa.RecordBatch]:
    """``failures``: by row of ``batch``; ``waiting``: rows that were not tried."""
    done = batch.num_rows - len(failures) - len(waiting)
    outcome = []
    message_type = pa.struct([batch.schema.field(name) for name in NAMES])
    if done or results is not None:
        count = len(results) if results is not None else 0
        rows = count + 1
        columns: dict[str, Any] = {
            "kind": pa.array([DONE] * rows),
            "count": pa.array([0] * count + [done], pa.int64()),
            "message": pa.nulls(rows, message_type),
        }
        if result_type is not None:
            given = results if results is not None else pa.nulls(0, result_type)
            columns["result"] = pa.concat_arrays([given, pa.nulls(1, result_type)])
        outcome.append(_batch(columns, rows, result_type))
    if failures:
        attempts = batch.column("attempt").to_pylist()
        items = sorted(failures.items())
        columns = _columns(batch, [row for row, _ in items], result_type) | {
            "kind": pa.array([policy.kind(failure, attempts[row]) for row, failure in items]),
            "errorType": pa.array([failure.type for _, failure in items]),
            "errorText": pa.array([failure.text for _, failure in items]),
            "delayMs": pa.array(
                [policy.delay_ms(failure, attempts[row]) for row, failure in items], pa.int64()
            ),
        }
        outcome.append(_batch(columns, len(items), result_type))
    if waiting:
        columns = _columns(batch, waiting, result_type) | {"kind": pa.array([WAIT] * len(waiting))}
        outcome.append(_batch(columns, len(waiting), result_type))
    return outcome


def _batch(columns: dict[str, Any], rows: int, result_type: pa.DataType | None) -> pa.RecordBatch:
    types = {
        "kind": pa.string(),
        "count": pa.int64(),
        "errorType": pa.string(),
        "errorText": pa.string(),
        "delayMs": pa.int64(),
        "message": columns["message"].type,
        "orderKey": pa.string(),
        "turn": pa.int64(),
    }
    if result_type is not None:
        types["result"] = result_type
    arrays = [columns[name] if name in columns else pa.nulls(rows, kind) for name, kind in types.items()]
    return pa.RecordBatch.from_arrays(arrays, list(types))


def with_results(rows: Sequence[Any], kind: pa.StructType) -> tuple[pa.Array, dict[int, Failure]]:
    """Results of a function on rows as Arrow: dicts, Rows or tuples, None for no result. A result that does not fit
    its columns is a failure of its row."""
    names = [field.name for field in kind]
    made: list[Any] = []
    failures: dict[int, Failure] = {}
    for row, result in enumerate(rows):
        if result is None:
            continue
        try:
            made.append(_as_dict(result, names))
        except (TypeError, ValueError) as error:
            failures[row] = Failure.of(error)
    try:
        return pa.array(made, kind), failures
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        arrays = []  # one by one: which of them does not fit
    for row, result in enumerate(rows):
        if result is None or row in failures:
            continue
        try:
            arrays.append(pa.array([_as_dict(result, names)], kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            failures[row] = Failure.of(error)
    return pa.concat_arrays([pa.nulls(0, kind), *arrays]), failures


def _as_dict(result: Any, names: Sequence[str]) -> dict[str, Any]:
    """Raises TypeError or ValueError for a result of another shape."""
    fields = result.asDict() if hasattr(result, "asDict") else result
    if isinstance(fields, Mapping):
        if unknown := [name for name in fields if name not in names]:
            raise ValueError(f"the result has a field {unknown[0]!r:.80}; its columns are {', '.join(names)}")
        return dict(fields)
    if isinstance(fields, tuple | list):
        if len(fields) != len(names):
            raise ValueError(f"the result has {len(fields)} values; its columns are {', '.join(names)}")
        return dict(zip(names, fields, strict=True))
    raise TypeError(f"a result is a dict, a Row, a tuple or None, not {type(result).__name__}")
