"""Stored records to Arrow, many at a time and without a Python loop over them.

The input is a buffer (a mapped CommitLog segment, or pull bodies) and the positions of records in it. Header fields
sit at fixed offsets, so a column of them is one gather; bodies and properties come out by "interleaved offsets + take"
(reference spark-datasource §8): one binary array whose even slots are the wanted bytes and whose odd slots are the
bytes between. Only rows with a compressed body or an inner batch take a per-record path.

Record layout: reference remoting-protocol §9.1. Positions are checked against the buffer before anything is read
from them: a wrong length raises InvalidMessage, never reads elsewhere. Must not know where bytes came from.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqspark.compression import decompress
from mqspark.errors import InvalidMessage
from mqspark.message import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    INNER_BATCH,
    KEYS,
    NEED_UNWRAP,
    STORE_HOST_V6,
    TAGS,
    UNIQ_KEY,
)
from mqspark.record import MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, decode_record, encode_record, split_batch
from pyspark_pymq.schema import arrow_schema, arrow_type

__all__ = ["Decoder", "Ints", "Records", "as_headers", "record_positions", "unwrap_inner_batches"]

Ints = npt.NDArray[np.int64]

_MAGIC_BYTE = 0xDA
"""Both magics begin with it."""
_V6_EXTRA_BYTES = 12
_QUEUE_ID, _QUEUE_OFFSET, _PHYSICAL, _SYS_FLAG, _BORN_TIME = 12, 20, 28, 36, 40
_BORN_HOST, _BORN_HOST_END, _BORN_HOST_END_V6, _STORE_HOST, _BODY_LENGTH, _BODY = 48, 56, 68, 64, 84, 88

_HEX = np.array([int.from_bytes(b"%02X" % value, "little") for value in range(256)], dtype="<u2")
"""Byte value to its two upper-case hex characters, packed."""


class Records:
    """A buffer of records and its views; reused for all batches of one segment."""

    __slots__ = ("arrow", "bytes", "i32", "i64", "size_bytes", "u16")

    def __init__(self, buffer: Any) -> None:
        """``buffer``: anything with the buffer protocol; it stays alive as long as an Arrow array refers to it."""
        self.arrow = pa.py_buffer(buffer)
        self.bytes = np.frombuffer(buffer, np.uint8)
        self.size_bytes = self.bytes.size
        # Views with a stride of one byte: index them by position to gather unaligned integers (native order, swapped
        # afterwards, which is twice as fast as a big-endian dtype on wide gathers).
        self.i32 = self._view(buffer, "<i4")
        self.i64 = self._view(buffer, "<i8")
        self.u16 = self._view(buffer, "<u2")

    def _view(self, buffer: Any, dtype: str) -> npt.NDArray[Any]:
        count = max(0, self.size_bytes - np.dtype(dtype).itemsize + 1)
        return np.ndarray((count,), dtype, buffer=buffer if count else bytes(8), strides=(1,))

    def ints(self, positions: Ints) -> Ints:
        """Big-endian i32 at each position."""
        return self.i32[positions].byteswap().astype(np.int64)

    def longs(self, positions: Ints) -> Ints:
        """Big-endian i64 at each position."""
        swapped: Ints = self.i64[positions].byteswap()
        return swapped

    def shorts(self, positions: Ints) -> Ints:
        """Big-endian u16 at each position."""
        return self.u16[positions].byteswap().astype(np.int64)

    def body_lengths(self, positions: Ints) -> Ints:
        """Of the records at these positions, as they are stored."""
        flags = self.ints(positions + _SYS_FLAG)
        hosts = ((flags & BORN_HOST_V6) != 0).astype(np.int64) + ((flags & STORE_HOST_V6) != 0)
        return self.ints(positions + _BODY_LENGTH + hosts * _V6_EXTRA_BYTES)


def record_positions(records: Records) -> Ints:
    """Where each record of a pull body starts. Raises InvalidMessage when the sizes do not add up.

    Records follow one another, so their magics are looked for all at once; only when a body happens to hold a magic too
    is the chain of sizes walked record by record.
    """
    found = np.flatnonzero(records.bytes[4 : max(4, records.size_bytes - 3)] == _MAGIC_BYTE)
    magics = records.ints(found + 4)
    positions: Ints = found[(magics == MAGIC_V1) | (magics == MAGIC_V2)]
    ends = positions + records.ints(positions)
    whole = len(positions) and positions[0] == 0 and ends[-1] == records.size_bytes
    if whole and (ends[:-1] == positions[1:]).all() and int((ends - positions).min()) >= MIN_RECORD_BYTES:
        return positions
    return _walked_positions(records)


def _walked_positions(records: Records) -> Ints:
    view, length = memoryview(records.arrow), records.size_bytes
    size_at = struct.Struct(">i").unpack_from
    positions = []
    position = 0
    while position < length:
        if length - position < MIN_RECORD_BYTES:
            raise InvalidMessage(
                f"{length - position} bytes after the last record of a pull", field="totalSize"
            )
        (size,) = size_at(view, position)
        if size < MIN_RECORD_BYTES or size > length - position:
            raise InvalidMessage(f"record of {size} bytes in {length - position}", field="totalSize")
        positions.append(position)
        position += size
    return np.array(positions, dtype=np.int64)


def unwrap_inner_batches(records: Records, positions: Ints) -> tuple[Records, Ints]:
    """Records whose system flag says "inner batch" replaced by one plain record an item; usually a no-op.

    Item i gets queue offset base + i and keeps the batch's hosts, times and physical offset (§9.6).
    """
    flags = records.ints(positions + _SYS_FLAG)
    batched = (flags & NEED_UNWRAP != 0) & (flags & INNER_BATCH != 0)
    if not batched.any():
        return records, positions
    parts: list[bytes] = []
    view = memoryview(records.arrow).cast("B")
    for position, is_batch in zip(positions.tolist(), batched.tolist(), strict=True):
        message = decode_record(view, position, decompress=is_batch)
        if not is_batch:
            parts.append(bytes(view[position : position + message.store_size_bytes]))
            continue
        born_end = position + (_BORN_HOST_END_V6 if message.sys_flag & BORN_HOST_V6 else _BORN_HOST_END)
        store_bytes = 20 if message.sys_flag & STORE_HOST_V6 else 8
        parts += [
            encode_record(
                topic=message.topic,
                body=body,
                properties=properties,
                queue_id=message.queue_id,
                queue_offset=message.queue_offset + index,
                physical_offset=message.physical_offset,
                flag=flag,
                sys_flag=message.sys_flag & ~(NEED_UNWRAP | INNER_BATCH | COMPRESSED),
                born_timestamp_ms=message.born_timestamp_ms,
                born_host=bytes(view[position + _BORN_HOST : born_end]),
                store_timestamp_ms=message.store_timestamp_ms,
                store_host=bytes(view[born_end + 8 : born_end + 8 + store_bytes]),
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
            )
            for index, (flag, body, properties) in enumerate(split_batch(message.body))
        ]
    plain = b"".join(parts)
    unwrapped = Records(plain)
    return unwrapped, record_positions(unwrapped)


class Decoder:
    """Positions of records to a RecordBatch of the selected columns.

    ``topic`` and ``queue_id``: of all of them, or None where each record has to say it.
    ``tags``: keep only rows whose TAGS property is literally one of these (the hash test was done before).
    ``strict``: a body that does not decompress raises InvalidMessage; otherwise its value is null.
    """

    def __init__(
        self,
        columns: tuple[str, ...],
        *,
        topic: str | None,
        broker: str,
        queue_id: int | None,
        tags: frozenset[str] = frozenset(),
        strict: bool = True,
    ) -> None:
        self.schema = arrow_schema(columns)
        constants = {"topic": topic, "partition": queue_id, "broker": broker}
        self._constants = {name: value for name, value in constants.items() if value is not None}
        self._tags = pa.array(sorted(tags), pa.string()) if tags else None
        self._strict = strict
        self._makers: dict[str, Callable[[_Rows], pa.Array]] = {
            "key": lambda rows: rows.properties.values(KEYS),
            "tags": lambda rows: rows.properties.values(TAGS),
            "value": lambda rows: rows.bodies(self._strict),
            "offset": lambda rows: _fixed(rows.records.longs(rows.positions + _QUEUE_OFFSET), pa.int64()),
            "timestamp": lambda rows: _timestamps(rows.store_times()),
            "bornTimestamp": lambda rows: _timestamps(rows.records.longs(rows.positions + _BORN_TIME)),
            "msgId": lambda rows: rows.message_ids(),
            "properties": lambda rows: rows.properties.as_map(),
            "headers": lambda rows: as_headers(rows.properties.as_map()),
            "topic": lambda rows: rows.topics(),
            "partition": lambda rows: rows.integers(_QUEUE_ID),
            "physicalOffset": lambda rows: _fixed(rows.records.longs(rows.positions + _PHYSICAL), pa.int64()),
            "sysFlag": lambda rows: rows.integers(_SYS_FLAG),
        }

    def __call__(self, records: Records, positions: Ints) -> pa.RecordBatch:
        rows = _Rows(records, positions)
        if self._tags is not None:
            keep = pc.is_in(rows.properties.values(TAGS), value_set=self._tags).to_numpy(zero_copy_only=False)
            if not keep.all():
                rows = _Rows(records, positions[keep])
        return pa.RecordBatch.from_arrays(
            [self._column(name, rows) for name in self.schema.names], schema=self.schema
        )

    def _column(self, name: str, rows: _Rows) -> pa.Array:
        if name in self._constants:
            return pa.repeat(pa.scalar(self._constants[name], arrow_type(name)), len(rows.positions))
        return self._makers[name](rows)


class _Rows:
    """One batch of records: fields that several columns need are found once."""

    def __init__(self, records: Records, positions: Ints) -> None:
        self.records = records
        self.positions = positions
        self._properties: _Properties | None = None
        count = len(positions)
        if count == 0:
            self.sys_flags = self.born_shifts = self.body_starts = self.body_ends = positions
            return
        if int(positions[0]) < 0 or int(positions[-1]) + MIN_RECORD_BYTES > records.size_bytes:
            raise InvalidMessage("record position outside of its segment", field="totalSize")
        sizes = records.ints(positions)
        self.ends = positions + sizes
        self.magics = records.ints(positions + 4)
        self.sys_flags = records.ints(positions + _SYS_FLAG)
        born_v6 = (self.sys_flags & BORN_HOST_V6) != 0
        store_v6 = (self.sys_flags & STORE_HOST_V6) != 0
        self.born_shifts = born_v6 * _V6_EXTRA_BYTES
        shifts = self.born_shifts + store_v6 * _V6_EXTRA_BYTES
        self.body_starts = positions + _BODY + shifts
        ordered = bool((positions[1:] >= self.ends[:-1]).all()) and int(self.ends[-1]) <= records.size_bytes
        known = ((self.magics == MAGIC_V1) | (self.magics == MAGIC_V2)).all()
        if not ordered or not known or not (self.body_starts + 3 <= self.ends).all():
            raise InvalidMessage(
                "a queue entry does not point at a record, or the record is damaged", field="magic"
            )
        body_lengths = records.ints(positions + _BODY_LENGTH + shifts)
        self.body_ends = self.body_starts + body_lengths
        if int(body_lengths.min()) < 0 or not (self.body_ends + 3 <= self.ends).all():
            raise InvalidMessage("a body is longer than its record", field="bodyLength")

    def integers(self, at: int) -> pa.Array:
        """The i32 at that place of each record's head."""
        return _fixed(self.records.ints(self.positions + at).astype(np.int32), pa.int32())

    def topics(self) -> pa.Array:
        if not len(self.positions):
            return pa.array([], pa.string())
        names = _between(self.records.arrow, *self.topic_bounds(), pa.binary())
        return names.cast(pa.string())

    def topic_bounds(self) -> tuple[Ints, Ints]:
        """Where each record's topic begins and ends. Raises InvalidMessage when it is longer than its record."""
        starts = self.body_ends + 1
        lengths = self.records.bytes[self.body_ends].astype(np.int64)
        v2 = self.magics == MAGIC_V2
        if v2.any():
            lengths = np.where(v2, self.records.shorts(self.body_ends), lengths)
            starts = starts + v2
        ends = starts + lengths
        if not (ends + 2 <= self.ends).all():
            raise InvalidMessage("a topic is longer than its record", field="topic")
        return starts, ends

    def store_times(self) -> Ints:
        return self.records.longs(self.positions + _BORN_HOST_END + self.born_shifts)

    def bodies(self, strict: bool) -> pa.Array:
        plain = _between(self.records.arrow, self.body_starts, self.body_ends, pa.binary())
        packed = (self.sys_flags & COMPRESSED) != 0
        if not packed.any():
            return plain
        inflated: list[bytes | None] = []
        for row in np.flatnonzero(packed):
            kind = (int(self.sys_flags[row]) & COMPRESSION_MASK) >> COMPRESSION_SHIFT
            try:
                inflated.append(decompress(plain[int(row)].as_py(), kind))
            except InvalidMessage as error:
                if strict:
                    position = self.positions[row : row + 1]
                    queue = int(self.records.ints(position + _QUEUE_ID)[0])
                    offset = int(self.records.longs(position + _QUEUE_OFFSET)[0])
                    raise InvalidMessage(
                        f"the message at offset {offset} of queue {queue}: {error}; failOnDataLoss=false makes it null",
                        field="body",
                    ) from error
                inflated.append(None)
        return pc.replace_with_mask(plain, pa.array(packed), pa.array(inflated, pa.binary()))

    @property
    def properties(self) -> _Properties:
        if self._properties is None:
            self._properties = _Properties(self)
        return self._properties

    def message_ids(self) -> pa.Array:
        """UNIQ_KEY, or the offset id: store host and physical offset in upper-case hex."""
        unique = self.properties.values(UNIQ_KEY)
        if unique.null_count == 0:
            return unique
        missing = unique.is_null().to_numpy(zero_copy_only=False)
        store_v6 = (self.sys_flags & STORE_HOST_V6) != 0
        for v6, host_bytes in ((False, 8), (True, 20)):
            chosen = missing & (store_v6 == v6)
            if chosen.any():
                ids = self._offset_ids(chosen, host_bytes)
                unique = (
                    ids if len(ids) == len(unique) else pc.replace_with_mask(unique, pa.array(chosen), ids)
                )
        return unique

    def _offset_ids(self, chosen: npt.NDArray[np.bool_], host_bytes: int) -> pa.Array:
        starts = self.positions[chosen]
        hosts = (starts + _STORE_HOST + self.born_shifts[chosen])[:, None] + np.arange(host_bytes)
        physical = (starts + _PHYSICAL)[:, None] + np.arange(8)
        text = _HEX[self.records.bytes[np.hstack([hosts, physical])]]
        width = 2 * (host_bytes + 8)
        offsets = np.arange(0, width * (len(starts) + 1), width, dtype=np.int32)
        return pa.Array.from_buffers(
            pa.string(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        )


class _Properties:
    """The property strings of a batch, gathered and split into ``name 0x01 value`` items (§9.4)."""

    def __init__(self, rows: _Rows) -> None:
        texts = self._gather(rows)
        if not _is_utf8(texts):
            # Clients that are not Java may store anything; Arrow strings must be UTF-8.
            repaired = [text.decode("utf-8", "replace").encode() for text in texts.to_pylist()]
            texts = pa.array(repaired, pa.binary())
        lists = pc.split_pattern(texts, pattern=b"\x02")
        self._items = lists.flatten()
        self._row_starts = np.frombuffer(lists.buffers()[1], np.int32)[: len(lists) + 1].astype(np.int64)
        count = len(self._items)
        self._offsets = np.zeros(1, np.int64)
        if count:
            self._offsets = np.frombuffer(self._items.buffers()[1], np.int32)[: count + 1].astype(np.int64)
        self._data = self._items.buffers()[2] or pa.py_buffer(b"")

    @staticmethod
    def _gather(rows: _Rows) -> pa.Array:
        if not len(rows.positions):
            return pa.array([], pa.binary())
        records = rows.records
        starts = rows.topic_bounds()[1] + 2
        ends = starts + records.shorts(starts - 2)
        if not (ends <= rows.ends).all():
            raise InvalidMessage("properties are longer than their record", field="properties")
        return _between(records.arrow, starts, ends, pa.binary())

    def values(self, name: str) -> pa.Array:
        """The value of property ``name`` in each row, null where it is missing or empty; the last duplicate wins."""
        prefix = name.encode() + b"\x01"
        named = pc.starts_with(self._items, prefix).to_numpy(zero_copy_only=False)
        items = np.flatnonzero(named)
        value_starts = self._offsets[items] + len(prefix)
        value_ends = self._offsets[items + 1]
        full = value_ends > value_starts
        if not full.all():
            items, value_starts, value_ends = items[full], value_starts[full], value_ends[full]
        count = len(self._row_starts) - 1
        rows = np.searchsorted(self._row_starts, items, "right") - 1
        if len(rows) == count and bool((rows[1:] > rows[:-1]).all()):
            return _between(self._data, value_starts, value_ends, pa.string())
        # A row without the property takes an empty slot where its items begin, so that slots keep ascending.
        starts = self._offsets[self._row_starts[:-1]]
        ends = starts.copy()
        starts[rows] = value_starts
        ends[rows] = value_ends
        found = np.zeros(count, bool)
        found[rows] = True
        return _between(self._data, starts, ends, pa.string(), missing=~found)

    def as_map(self) -> pa.Array:
        count = len(self._row_starts) - 1
        separators = (
            pc.find_substring(self._items, pattern=b"\x01").to_numpy(zero_copy_only=False).astype(np.int64)
        )
        lengths = np.diff(self._offsets)
        valid = np.flatnonzero((separators > 0) & (separators + 1 < lengths))
        starts, ends = self._offsets[valid], self._offsets[valid + 1]
        names_end = starts + separators[valid]
        names = _between(self._data, starts, names_end, pa.string())
        values = _between(self._data, names_end + 1, ends, pa.string())
        offsets = np.searchsorted(valid, self._row_starts)
        codes = names.dictionary_encode()
        width = len(codes.dictionary)
        rows = np.repeat(np.arange(count), np.diff(offsets))
        pairs = rows * width + codes.indices.to_numpy().astype(np.int64)
        if len(pairs) and int(np.bincount(pairs).max() if width < 64 else _most_frequent(pairs)) > 1:
            maps = [
                list(dict(zip(names[a:b].to_pylist(), values[a:b].to_pylist(), strict=True)).items())
                for a, b in itertools.pairwise(offsets.tolist())
            ]
            return pa.array(maps, arrow_type("properties"))
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), names, values)


def as_headers(maps: pa.Array) -> pa.Array:
    """Property maps as Kafka's headers: lists of structs of a name and bytes."""
    kind = arrow_type("headers")
    structs = pa.StructArray.from_arrays(
        [maps.keys, maps.items.cast(pa.binary())], fields=list(kind.value_type)
    )
    return pa.ListArray.from_arrays(maps.offsets, structs, type=kind)


def _most_frequent(values: Ints) -> int:
    return int(np.unique(values, return_counts=True)[1].max())


def _is_utf8(texts: pa.Array) -> bool:
    data = texts.buffers()[2]
    if data is None or data.size == 0 or int(np.frombuffer(data, np.uint8).max()) < 0x80:
        return True
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _between(
    buffer: pa.Buffer, starts: Ints, ends: Ints, kind: pa.DataType, *, missing: Any = None
) -> pa.Array:
    """Bytes ``[start, end)`` of each row as one array; starts and ends ascend. ``missing`` rows become null."""
    count = len(starts)
    if count == 0:
        return pa.array([], kind)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = ends[-1]
    slots = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), buffer])
    return slots.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=missing))


def _fixed(values: Ints, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _timestamps(milliseconds: Ints) -> pa.Array:
    return _fixed(milliseconds * 1000, arrow_type("timestamp"))
