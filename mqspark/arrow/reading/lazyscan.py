"""``mqspark.arrow.scan``: a topic that is read when a query of DuckDB, Polars or pyarrow runs, and only what it needs.

A query tells its columns and its filter. Columns that it does not use are not decoded. Of the ranges of queues only
those parts are read where the filter can be true of ``offset``, ``partition``, ``topic`` and ``broker``; it is
evaluated on the rows anyway. Store times do not always ascend, so ``start`` and ``end`` alone bound them.
"""

from __future__ import annotations

import itertools
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs

from mqspark.arrow.cluster.queueranges import LogicPlace, QueueRange
from mqspark.arrow.messagecolumns import COLUMNS, arrow_schema
from mqspark.arrow.reading.topicread import Narrowing, ReadChoices, TopicRead
from mqspark.message import MessageQueue

if TYPE_CHECKING:
    import polars as pl

_OF_RANGES = ("offset", "partition", "topic", "broker")
_CUTS = 64
"""How many pieces of a range are judged at once; its first and its last one are judged again in as many."""


def scan(nameserver: str, topic: str | Sequence[str], **choices: Unpack[ReadChoices]) -> TopicScan:
    """A topic for queries; the keywords are those of ``read``. The bounds are resolved by each query.

    >>> orders = mqspark.arrow.scan("127.0.0.1:9876", "Orders")
    >>> duckdb.sql("SELECT count(*) FROM orders WHERE partition = 0")
    >>> orders.polars().filter(pl.col("partition") == 0).collect()

    Raises ConfigError; a query raises what ``read`` does.
    """
    return TopicScan(TopicRead(nameserver, topic, **choices))


class TopicScan(ds.Dataset):  # type: ignore[misc]
    """What DuckDB and pyarrow take for a dataset; ``polars`` is a LazyFrame of it."""

    def __init__(self, read: TopicRead) -> None:
        self._read = read

    @property
    def schema(self) -> pa.Schema:
        return self._read.row_schema

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """All rows, as of now."""
        return (self._read if columns is None else self._read.of(columns)).reader()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def scanner(
        self,
        columns: Sequence[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **_: Any,
    ) -> ds.Scanner:
        """What pyarrow's readers of datasets call, DuckDB among them; their hints about files mean nothing here."""
        wanted = self.schema.names if columns is None else list(columns)
        texts = [str(filter), *(map(str, columns.values()) if isinstance(columns, dict) else wanted)]
        needed = _named_in(texts, self.schema.names) or self.schema.names[:1]
        read = self._read.of(needed)
        return ds.Scanner.from_batches(
            read.reader(None if filter is None else _judged_by(filter)),
            columns=columns,
            filter=filter,
        )

    def polars(self) -> pl.LazyFrame:
        """The topic as a LazyFrame; needs ``mqspark[polars]``."""
        import polars as pl
        from polars.io.plugins import register_io_source

        def source(
            columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            read = self._read if columns is None else self._read.of(columns or self.schema.names[:1])
            filter = None if predicate is None else _filter_of(predicate)
            for batch in read.reader(None if filter is None else _judged_by(filter)):
                frame = pl.DataFrame(pl.from_arrow(batch))
                if rows is not None:
                    frame = frame.head(rows)
                    rows -= frame.height
                yield frame if predicate is None else frame.filter(predicate)
                if rows == 0:
                    return

        empty = pl.DataFrame(pl.from_arrow(self.schema.empty_table()))
        return register_io_source(source, schema=empty.schema)


def _named_in(texts: Iterable[str], names: Sequence[str]) -> list[str]:
    """Those of the names that occur in the texts of expressions: at least those that the expressions use."""
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    return [name for name in names if name in words]


# --- which parts of ranges a filter can be true of -------------------------------------------------------------


def _judged_by(filter: pc.Expression) -> Narrowing | None:
    """A function from ranges, and what their queues are a part of, to the parts that may have rows of the filter."""
    if not _named_in([str(filter)], _OF_RANGES):
        return None

    def kept(ranges: Sequence[QueueRange], places: Mapping[MessageQueue, LogicPlace]) -> list[QueueRange]:
        def judged(pieces: Sequence[QueueRange]) -> list[bool]:
            return _satisfiable(filter, pieces, places)

        found = _split(judged, [_cut(each) for each in ranges])
        ends = [(pieces[0], pieces[-1]) for pieces in found if pieces]
        firsts = _split(judged, [_cut(first) for first, _ in ends])
        lasts = _split(judged, [_cut(last) for _, last in ends])
        return [
            QueueRange(first.queue, low[0].start if low else first.start, high[-1].end if high else last.end)
            for (first, last), low, high in zip(ends, firsts, lasts, strict=True)
        ]

    return kept


def _cut(each: QueueRange) -> list[QueueRange]:
    count = min(_CUTS, each.rows)
    cuts = [each.start + each.rows * index // count for index in range(count + 1)]
    return [QueueRange(each.queue, low, high) for low, high in itertools.pairwise(cuts)]


def _split(
    judged: Callable[[Sequence[QueueRange]], list[bool]], cut: Sequence[Sequence[QueueRange]]
) -> list[list[QueueRange]]:
    """The satisfiable pieces of each range; all are judged at once."""
    flags = iter(judged([piece for pieces in cut for piece in pieces]))
    return [[piece for piece in pieces if next(flags)] for pieces in cut]


def _satisfiable(
    filter: pc.Expression, pieces: Sequence[QueueRange], places: Mapping[MessageQueue, LogicPlace]
) -> list[bool]:
    """Arrow's own judgment of partitions: of what is known of each piece, can the filter be true?"""
    known = []
    for piece in pieces:
        shown = places.get(piece.queue, LogicPlace(piece.queue, 0))
        known.append(
            (pc.field("topic") == piece.queue.topic)
            & (pc.field("broker") == shown.queue.broker_name)
            & (pc.field("partition") == shown.queue.queue_id)
            & (pc.field("offset") >= piece.start + shown.delta)
            & (pc.field("offset") < piece.end + shown.delta)
        )
    numbered = ds.FileSystemDataset.from_paths(
        [str(number) for number in range(len(pieces))],
        schema=arrow_schema(tuple(COLUMNS)),
        format=ds.IpcFileFormat(),
        filesystem=fs.LocalFileSystem(),  # of which nothing is opened
        partitions=known,
    )
    found = {int(each.path) for each in numbered.get_fragments(filter=filter)}
    return [number in found for number in range(len(pieces))]


# --- filters of Polars -----------------------------------------------------------------------------------------

_COMPARED: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "Eq": operator.eq,
    "Lt": operator.lt,
    "LtEq": operator.le,
    "Gt": operator.gt,
    "GtEq": operator.ge,
}
_MIRRORED = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}


def _filter_of(predicate: pl.Expr) -> pc.Expression | None:
    """What a predicate says about columns of ranges, as far as it is a conjunction of comparisons with constants. What
    is not understood narrows nothing: Polars evaluates the predicate itself."""
    import polars as pl

    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, ValueError):
        return None
    found: pc.Expression | None = None
    for each in _conjuncts(tree):
        found = each if found is None else found & each
    return found


def _conjuncts(node: Any) -> Iterator[pc.Expression]:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case {"BinaryExpr": {"left": {"Column": name}, "op": str(op), "right": {"Literal": value}}}:
            yield from _comparison(name, op, value)
        case {"BinaryExpr": {"left": {"Literal": value}, "op": str(op), "right": {"Column": name}}}:
            yield from _comparison(name, _MIRRORED.get(op, ""), value)
        case {
            "Function": {
                "input": [{"Column": name}, {"Literal": low}, {"Literal": high}],
                "function": {"Boolean": {"IsBetween": _}},  # an open end may be read with the closed ones
            }
        }:
            yield from _comparison(name, "GtEq", low)
            yield from _comparison(name, "LtEq", high)


def _comparison(name: str, op: str, literal: Any) -> Iterator[pc.Expression]:
    match literal:
        case (
            {"Dyn": {"Int": int(number)}}
            | {"Scalar": {"Int32": int(number)}}
            | {"Scalar": {"Int64": int(number)}}
        ):
            if name in ("offset", "partition") and op in _COMPARED and abs(number) < 1 << 62:
                yield _COMPARED[op](pc.field(name).cast(pa.int64()), pa.scalar(number, pa.int64()))
        case {"Scalar": {"String": str(text)}}:
            if name in ("topic", "broker") and op in _COMPARED:
                yield _COMPARED[op](pc.field(name), text)
