"""Many records of the log at once: what recovery reads when nothing is wrong.

The same rules as ``mqspark.record.check_record`` and ``Recovery._record_at``, as columns: the chain of sizes
is walked one by one, everything else is gathered for the whole run. A run ends before the first record that
breaks a rule; who called looks at that one by itself. Must not know queues or files.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqspark.record import HEADS, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, is_seal_broken, tags_code
from mqspark.store.layout import is_storable_topic

__all__ = ["Run", "read_run"]

MAX_RUN_RECORDS = 8192
MIN_RUN_RECORDS = 32
"""Below, setting up the columns costs more than looking at the records one by one."""
_I32 = struct.Struct(">i")
_IPV6_EXTRA_BYTES = 12

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Run:
    """Columns of consecutive valid records."""

    end: int
    """Where the last one ends, relative to the view."""
    positions: Int64s
    """Physical offsets."""
    sizes: Int64s
    queue_ids: Int64s
    queue_offsets: Int64s
    sys_flags: Int64s
    store_timestamps_ms: Int64s
    topic_ids: Int64s
    """Indexes into ``topics``."""
    topics: list[str]
    properties: list[bytes]

    def tags_codes(self) -> Int64s:
        return np.fromiter(map(tags_code, self.properties), np.int64, len(self.properties))


def read_run(
    view: memoryview,
    low: int,
    limit: int,
    base: int,
    *,
    verify_crc: bool,
    verify_property_crc: bool = False,
    min_records: int = MIN_RUN_RECORDS,
) -> Run | None:
    """The valid records from ``low`` on, at most 8192, none of them beyond ``limit``.

    None when the first is not one, or when there cannot be ``min_records``.
    ``base`` is the physical offset of the view's first byte.
    """
    starts_list: list[int] = []
    position = low
    unpack_size = _I32.unpack_from
    while position + MIN_RECORD_BYTES <= limit and len(starts_list) < MAX_RUN_RECORDS:
        (size,) = unpack_size(view, position)
        if size < MIN_RECORD_BYTES or position + size > limit:
            break
        starts_list.append(position)
        position += size
    if len(starts_list) < min_records:
        return None
    starts = np.array(starts_list, np.int64)
    ends = np.append(starts[1:], position)
    column = _Columns(view, limit)
    magics = column.i32(starts + 4)
    sys_flags = column.i32(starts + 36)
    born_extra = ((sys_flags >> 4) & 1) * _IPV6_EXTRA_BYTES
    head_bytes = HEADS[0].size + born_extra + ((sys_flags >> 5) & 1) * _IPV6_EXTRA_BYTES
    wide = (magics == MAGIC_V2).astype(np.int64)
    body_starts = starts + head_bytes
    body_lengths = column.i32(body_starts - 4)
    good = (magics == MAGIC_V1) | (magics == MAGIC_V2)
    good &= (body_lengths >= 0) & (body_starts + body_lengths + 3 + wide <= ends)
    # Where a record is not good its lengths point anywhere: let them point at itself.
    body_ends = np.where(good, body_starts + body_lengths, starts)
    topic_starts = body_ends + 1 + wide
    topic_lengths = np.where(wide == 1, column.i16(body_ends), column.u8(body_ends))
    properties_starts = topic_starts + topic_lengths + 2
    good &= (topic_lengths > 0) & (properties_starts <= ends)
    properties_lengths = column.i16(np.where(good, properties_starts - 2, starts))
    good &= (properties_lengths >= 0) & (properties_starts + properties_lengths == ends)
    good &= (properties_lengths == 0) | (column.u8(ends - 1) != 0)
    good &= column.i64(starts + 28) == starts + base
    count = _leading(good)
    if verify_crc and count:
        crc32 = zlib.crc32
        bounds = zip(body_starts[:count].tolist(), body_ends[:count].tolist(), strict=True)
        crcs = np.array([crc32(view[first:last]) for first, last in bounds], np.int64) & 0x7FFFFFFF
        count = _leading((body_lengths[:count] == 0) | (crcs == column.i32(starts[:count] + 8)))
    if verify_property_crc and count:
        bounds = zip(starts[:count].tolist(), ends[:count].tolist(), strict=True)
        count = _leading(np.array([not is_seal_broken(view[first:last]) for first, last in bounds]))
    known: dict[bytes, int] = {}
    topic_ids = np.zeros(count, np.int64)
    bounds = zip(topic_starts[:count].tolist(), (properties_starts[:count] - 2).tolist(), strict=True)
    for index, (first, last) in enumerate(bounds):
        topic_ids[index] = known.setdefault(view[first:last].tobytes(), len(known))
    topics = [topic.decode("utf-8", "replace") for topic in known]
    storable = np.array([is_storable_topic(topic) for topic in topics], np.bool_)
    if not storable.all():
        count = _leading(storable[topic_ids])
    if not count:
        return None
    bounds = zip(properties_starts[:count].tolist(), ends[:count].tolist(), strict=True)
    starts = starts[:count]
    return Run(
        end=int(ends[count - 1]),
        positions=starts + base,
        sizes=ends[:count] - starts,
        queue_ids=column.i32(starts + 12),
        queue_offsets=column.i64(starts + 20),
        sys_flags=sys_flags[:count],
        store_timestamps_ms=column.i64(starts + 56 + born_extra[:count]),
        topic_ids=topic_ids[:count],
        topics=topics,
        properties=[view[first:last].tobytes() for first, last in bounds],
    )


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(good) if good.all() else int(np.argmin(good))


class _Columns:
    """Big-endian integers at any byte of a view. A place too near to the end reads the last one that fits."""

    def __init__(self, view: memoryview, limit: int) -> None:
        self._view = view
        self._limit = limit

    def _gather(self, dtype: str, places: Int64s) -> Int64s:
        width = int(dtype[-1])
        shape = (self._limit - width + 1,)
        every = np.ndarray(shape, dtype, buffer=self._view, strides=(1,))
        values: Int64s = every[np.minimum(places, shape[0] - 1)].astype(np.int64)
        return values

    def u8(self, places: Int64s) -> Int64s:
        return self._gather("u1", places)

    def i16(self, places: Int64s) -> Int64s:
        return self._gather(">i2", places)

    def i32(self, places: Int64s) -> Int64s:
        return self._gather(">i4", places)

    def i64(self, places: Int64s) -> Int64s:
        return self._gather(">i8", places)
