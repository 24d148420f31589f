"""Bodies with the prefix of a schema registry: a zero byte and the id of the schema that the body was written with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqspark.arrow.payload.bodyrows import NO_BODY, BodyDecoder, BodyRows
from mqspark.errors import InvalidSchema
from mqspark.schemas.schemaprefix import MAGIC, PREFIX_BYTES

NO_PREFIX = "the body does not begin with the id of a schema"


def without_prefix(bodies: pa.BinaryArray) -> tuple[pa.BinaryArray, npt.NDArray[np.int64]]:
    """The bodies behind their prefixes, and the ids; 0 and the whole body for one without."""
    ids = np.zeros(len(bodies), np.int64)
    if not len(bodies):
        return bodies, ids
    _, offsets, data = bodies.buffers()
    ends = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    starts = ends[:-1]
    long = np.flatnonzero(np.diff(ends) >= PREFIX_BYTES)
    if not long.size:
        return bodies, ids
    heads = np.frombuffer(data, np.uint8)[starts[long][:, None] + np.arange(PREFIX_BYTES)]
    found = np.ascontiguousarray(heads[:, 1:]).view(">i4")[:, 0].astype(np.int64)
    has = (heads[:, 0] == MAGIC) & (found > 0)
    if not has.any():
        return bodies, ids
    ids[long[has]] = found[has]
    turns = np.empty(2 * len(bodies) + 1, np.int32)  # prefix, body, prefix, body
    turns[0:-1:2] = starts
    turns[1::2] = np.where(ids > 0, starts + PREFIX_BYTES, starts)
    turns[-1] = ends[-1]
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(bodies), [None, pa.py_buffer(turns), data])
    behind = both.take(pa.array(np.arange(1, 2 * len(bodies), 2)))
    if bodies.null_count:
        behind = pc.if_else(bodies.is_valid(), behind, pa.scalar(None, pa.binary()))
    return behind, ids


class PrefixedBodies:
    """Decodes each body with the decoder of the id in front of it; all of them make the columns of ``schema``."""

    def __init__(
        self, schema: pa.Schema, decoder_of: Callable[[int], BodyDecoder], unnamed: BodyDecoder | None = None
    ) -> None:
        """``decoder_of`` raises InvalidSchema for an id whose bodies have no values, and remembers decoders.
        ``unnamed``: for bodies without an id; None: they are wrong."""
        self.schema = schema
        self._decoder_of = decoder_of
        self._unnamed = unnamed

    def decode(self, bodies: pa.BinaryArray) -> BodyRows:
        behind, ids = without_prefix(bodies)
        kinds = np.unique(ids)
        if len(kinds) < 2:
            return self._rows(int(ids[0]) if len(ids) else 0, behind)
        parts, places = [], []
        for each in kinds.tolist():
            chosen = np.flatnonzero(ids == each)
            parts.append(self._rows(each, behind.take(pa.array(chosen))))
            places.append(chosen)
        back = np.empty(len(bodies), np.int64)
        back[np.concatenate(places)] = np.arange(len(bodies))
        order = pa.array(back)
        columns = [
            pa.concat_arrays([part.columns[at] for part in parts]).take(order)
            for at in range(len(self.schema))
        ]
        return BodyRows(columns, pa.concat_arrays([part.reasons for part in parts]).take(order))

    def _rows(self, schema_id: int, bodies: pa.BinaryArray) -> BodyRows:
        if not schema_id and self._unnamed is not None:
            return self._unnamed.decode(bodies)
        if not schema_id:
            reasons = pc.if_else(bodies.is_null(), pa.scalar(NO_BODY), pa.scalar(NO_PREFIX))
        else:
            try:
                return self._decoder_of(schema_id).decode(bodies)
            except InvalidSchema as error:
                reasons = pa.array([f"schema {schema_id}: {error.problem}"] * len(bodies), pa.string())
        return BodyRows([pa.nulls(len(bodies), each.type) for each in self.schema], reasons)
