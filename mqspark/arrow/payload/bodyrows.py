"""What every decoder of bodies returns: columns, and for each body the reason why it has no values.

A decoder keeps rows apart: a body that is not what the schema says is null in every column, and the bodies before
and behind it are not affected. Batches are decoded in slices, because Python's values of a body may be much larger
than its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SLICE_ROWS = 1 << 15
_SLICE_CELLS = 1 << 20
"""Limit of rows times columns of a slice: a missing field takes space, too."""
_SLICE_BYTES = 4 << 20
"""Bytes of the bodies of a slice. A body that is larger is a slice alone."""

MAX_DIGITS = 38
"""The digits of a decimal in Arrow's decimal128 and in Spark."""
MAX_COLUMNS = 10_000
"""The columns of one schema, nested ones included. A few types that contain each other twice make billions."""
NO_BODY = "the message has no body"
EMPTY_BODY = "the body is empty"


@dataclass(frozen=True, slots=True)
class BodyRows:
    """The columns of some bodies, one row each."""

    columns: list[pa.Array]
    reasons: pa.StringArray
    """Null for a body with values."""


class BodyDecoder(Protocol):
    """Decodes bodies, with nulls, to the columns of ``schema``. ``slice_of`` bounds what it is given."""

    schema: pa.Schema

    def decode(self, bodies: pa.BinaryArray) -> BodyRows: ...


def slices(bodies: pa.BinaryArray, columns: int) -> Iterator[tuple[int, int]]:
    """The parts (first row, number of rows) to decode one after the other."""
    most = max(1, min(SLICE_ROWS, _SLICE_CELLS // max(1, columns)))
    ends = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    first = 0
    while first < len(bodies):
        fits = int(np.searchsorted(ends, int(ends[first]) + _SLICE_BYTES, side="right")) - 1
        count = max(1, min(most, fits - first, len(bodies) - first))
        yield first, count
        first += count


def built(
    rows: Sequence[object],
    reasons: list[str | None],
    build: Callable[[Sequence[object]], list[pa.Array]],
    nothing: object = None,
) -> BodyRows:
    """The columns of decoded rows (``nothing``: no values). Where Arrow does not take a value, the row that has it is
    searched for by halving, and gets a reason."""

    def parts(first: int, end: int) -> Iterator[list[pa.Array]]:
        try:
            yield build(rows[first:end])
            return
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            if end - first == 1:
                reasons[first] = str(error)
                yield build([nothing])
                return
        middle = (first + end) // 2
        yield from parts(first, middle)
        yield from parts(middle, end)

    found = list(parts(0, len(rows)))
    columns = found[0] if len(found) == 1 else [pa.concat_arrays(each) for each in zip(*found, strict=True)]
    return body_rows(columns, reasons)


def joined(parts: list[BodyRows]) -> BodyRows:
    """One or several, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays(each) for each in zip(*(part.columns for part in parts), strict=True)]
    return BodyRows(columns, pa.concat_arrays([part.reasons for part in parts]))


def body_rows(columns: list[pa.Array], reasons: list[str | None]) -> BodyRows:
    """With nulls where there is a reason."""
    found = pa.array(reasons, pa.string())
    if found.null_count < len(found):
        right = found.is_null()
        columns = [pc.if_else(right, each, pa.scalar(None, each.type)) for each in columns]
    return BodyRows(columns, found)
