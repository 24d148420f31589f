"""Stored records to Arrow, many at a time and without a Python loop over them.

The input is a buffer (a mapped CommitLog segment, or pull bodies) and the positions of records in it. Columns of
head fields are views of one gather of heads. Texts that all have one length are one gather, too; others come out
by "interleaved offsets + take": one binary array whose even slots are the wanted bytes and whose odd slots are
the bytes between. Only rows with a compressed body take a per-record path, and a batch ends when their bodies
reach INFLATED_BYTES. That limits the memory of one batch and stays far below Arrow's 32-bit offsets. A column
that is not selected costs nothing.

Positions are checked against the buffer before anything is read from them: a wrong length raises InvalidMessage
and never causes a read elsewhere. Must not know the source of the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqspark.arrow.messagecolumns import arrow_schema, arrow_type
from mqspark.arrow.records.records import BODY, BODY_LENGTH, BORN_HOST_END, Ints, Records
from mqspark.base.logs import sparing
from mqspark.base.propertystring import ITEM_END, NAME_END
from mqspark.errors import InvalidMessage
from mqspark.message import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    HOST_FLAGS,
    KEYS,
    STORE_HOST_V6,
    TAGS,
    UNIQ_KEY,
    MessageQueue,
    is_dispatched,
)
from mqspark.record.compression import LIMITS, InflateLimits, decompress
from mqspark.record.record import decode_record
from mqspark.record.recordlayout import MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, V6_EXTRA_BYTES

log = sparing(__name__)

INFLATED_BYTES = 16 << 20
"""Limit of decompressed bodies in one batch; a larger body is alone in its batch."""

_PHYSICAL, _STORE_HOST, _RECONSUME_TIMES = 28, 64, 72

_HEX = np.array([int.from_bytes(b"%02X" % value, "little") for value in range(256)], dtype="<u2")
"""Byte value to its two upper-case hex characters, packed."""
_HEX4 = (_HEX[:, None].astype("<u4") | _HEX[None, :].astype("<u4") << 16).reshape(-1)
"""The same for two bytes, the high one first."""


class Decoder:
    """Positions of records to a RecordBatch of the selected columns.

    ``topic`` and ``queue_id``: common to all records, or None to read them from each record. ``offset_delta`` is added
    to their queue offsets. ``only``: the queue of all records; another topic or queue id (-1: any) raises
    InvalidMessage. ``tags``: keep only
    rows whose TAGS property is literally one of these (the hash test was done before). ``strict``: a body that
    does not decompress, or becomes more than ``limits``, raises InvalidMessage; otherwise its value is null, and
    a line in the log counts it.
    """

    def __init__(
        self,
        columns: tuple[str, ...],
        *,
        topic: str | None,
        broker: str,
        queue_id: int | None,
        offset_delta: int = 0,
        only: MessageQueue | None = None,
        tags: frozenset[str] = frozenset(),
        strict: bool = True,
        limits: InflateLimits = LIMITS,
    ) -> None:
        self.schema = arrow_schema(columns)
        constants = {"topic": topic, "partition": queue_id, "broker": broker}
        self._constants = {
            name: pa.array([value], arrow_type(name))
            for name, value in constants.items()
            if value is not None
        }
        """Sized as needed so far: batches take slices of them."""
        self._only = only
        self._tags = pa.array(sorted(tags), pa.string()) if tags else None
        self.strict = strict
        self.limits = limits
        self._offset_delta = offset_delta

    def __call__(self, records: Records, positions: Ints) -> pa.RecordBatch:
        """All records as one batch. Raises InvalidMessage if their bodies decompress to more than one batch may
        hold."""
        batch, *more = itertools.islice(self.batches(records, positions), 2)
        if more:
            raise InvalidMessage(f"bodies of more than {INFLATED_BYTES} bytes for one batch", field="body")
        return batch

    def batches(self, records: Records, positions: Ints) -> Iterator[pa.RecordBatch]:
        """One batch, or several if bodies decompress to more than one may hold. Several come from a copy made
        before the first, so the buffer may change afterwards."""
        rows = self._rows(records, positions)
        if "value" not in self.schema.names or not rows.packed.any():
            yield self._batch(rows)
            return
        records, positions = records.copied(rows.positions, rows.ends)
        rows = _DecodedRows(records, positions)
        for first, last, inflated in rows.inflated(self.strict, self.limits):
            part = _DecodedRows(records, rows.positions[first:last])
            part.plain_bodies = inflated
            batch = self._batch(part)
            del part, inflated  # large: released before the next are decompressed
            yield batch
            del batch

    def _rows(self, records: Records, positions: Ints) -> _DecodedRows:
        rows = _DecodedRows(records, positions)
        if self._only is not None:
            self._check_places(rows, self._only)
        if self._tags is not None:
            keep = pc.is_in(rows.properties.values(TAGS), value_set=self._tags).to_numpy(zero_copy_only=False)
            if not keep.all():
                rows = _DecodedRows(records, positions[keep])
        return rows

    def _check_places(self, rows: _DecodedRows, queue: MessageQueue) -> None:
        """Raises InvalidMessage. Rows carry the names of the queue that was read, so a record of another one would
        become a message of it."""
        is_here = queue.queue_id < 0 or bool((rows.field("queue_id") == queue.queue_id).all())
        if is_here and rows.all_of(queue.topic.encode()):
            return
        for row in range(len(rows.positions)):
            found = decode_record(memoryview(rows.records.arrow), int(rows.positions[row]), decompress=False)
            is_ours = found.topic == queue.topic and queue.queue_id in (-1, found.queue_id)
            if not is_ours and not is_dispatched(queue.topic, found.properties):
                meant = f"queue {queue.queue_id} of topic" if queue.queue_id >= 0 else "topic"
                raise InvalidMessage(
                    f"broker {queue.broker_name} gives a message of queue {found.queue_id} of topic {found.topic} for "
                    f"{meant} {queue.topic}",
                    field="topic",
                )

    def _batch(self, rows: _DecodedRows) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self._column(name, rows) for name in self.schema.names], schema=self.schema
        )

    def _column(self, name: str, rows: _DecodedRows) -> pa.Array:
        constant = self._constants.get(name)
        if constant is None and name == "offset":
            return _fixed(_shifted(rows.field("queue_offset"), self._offset_delta), pa.int64())
        if constant is None:
            return _MAKERS[name](rows)
        count = len(rows.positions)
        if len(constant) < count:
            constant = self._constants[name] = pa.repeat(constant[0], count)
        return constant.slice(0, count)


class _DecodedRows:
    """One batch of records; fields that several columns need are computed once."""

    def __init__(self, records: Records, positions: Ints) -> None:
        self.records = records
        self.positions = positions
        self._properties: _DecodedProperties | None = None
        self._topic_bounds: tuple[Ints, Ints] | None = None
        self.plain_bodies: pa.Array | None = None
        """The compressed bodies, once they are decompressed."""
        if len(positions) and (
            int(positions.min()) < 0 or int(positions.max()) + MIN_RECORD_BYTES > records.size_bytes
        ):
            raise InvalidMessage("record position outside of its segment", field="totalSize")
        self.heads = records.heads(positions)
        self.sys_flags = self.field("sys_flag")
        self.body_starts = self.body_ends = positions
        self.born_shifts: Ints | None = None
        """The bytes that IPv6 hosts add before the store time; None: there are none."""
        if not len(positions):
            return
        self.ends = positions + self.field("size")
        self.magics = self.heads["magic"].astype(np.int32)
        body_lengths = self.field("body_length")
        self.body_starts = positions + BODY
        v6 = (self.sys_flags & HOST_FLAGS) != 0
        if v6.any():
            self.born_shifts = ((self.sys_flags & BORN_HOST_V6) != 0) * V6_EXTRA_BYTES
            shifts = self.born_shifts + ((self.sys_flags & STORE_HOST_V6) != 0) * V6_EXTRA_BYTES
            self.body_starts += shifts
        ordered = bool((positions[1:] >= self.ends[:-1]).all()) and int(self.ends[-1]) <= records.size_bytes
        known = ((self.magics == MAGIC_V1) | (self.magics == MAGIC_V2)).all()
        if not ordered or not known or not (self.body_starts + 3 <= self.ends).all():
            raise InvalidMessage(
                "a queue entry does not point at a record, or the record is damaged", field="magic"
            )
        if self.born_shifts is not None:
            body_lengths = records.ints(positions + BODY_LENGTH + shifts)
        self.body_ends = self.body_starts + body_lengths
        if int(body_lengths.min()) < 0 or not (self.body_ends + 3 <= self.ends).all():
            raise InvalidMessage("a body is longer than its record", field="bodyLength")

    def field(self, name: str) -> Ints:
        """A field of each head, in native byte order."""
        values: Ints = self.heads[name].astype(np.int64)
        return values

    def topics(self) -> pa.Array:
        if not len(self.positions):
            return pa.array([], pa.string())
        names = _between(self.records.arrow, *self.topic_bounds(), pa.binary())
        if not _is_utf8(names):
            raise InvalidMessage("a topic is not UTF-8", field="topic")
        return names.cast(pa.string())

    def topic_bounds(self) -> tuple[Ints, Ints]:
        """Start and end of each record's topic. Raises InvalidMessage if it is longer than its record."""
        if self._topic_bounds is not None:
            return self._topic_bounds
        starts = self.body_ends + 1
        lengths = self.records.bytes[self.body_ends].astype(np.int64)
        v2 = self.magics == MAGIC_V2
        if v2.any():
            lengths = np.where(v2, self.records.shorts(self.body_ends), lengths)
            starts = starts + v2
        ends = starts + lengths
        if not (ends + 2 <= self.ends).all():
            raise InvalidMessage("a topic is longer than its record", field="topic")
        self._topic_bounds = starts, ends
        return starts, ends

    def all_of(self, topic: bytes) -> bool:
        """Whether all records are of the topic."""
        count = len(self.positions)
        if not count:
            return True
        starts, ends = self.topic_bounds()
        if not (ends - starts == len(topic)).all():
            return False
        return self.records.strings(starts, len(topic)).tobytes() == topic * count

    def store_times(self) -> Ints:
        if self.born_shifts is None:
            return self.field("store_time")
        return self.records.longs(self.positions + BORN_HOST_END + self.born_shifts)

    def reconsume_times(self) -> Ints:
        """The field lies behind both hosts, at a fixed distance before the body."""
        if self.born_shifts is None:
            return self.field("reconsume_times")
        return self.records.ints(self.body_starts - (BODY - _RECONSUME_TIMES))

    @property
    def packed(self) -> npt.NDArray[np.bool_]:
        """The rows with a compressed body."""
        packed: npt.NDArray[np.bool_] = (self.sys_flags & COMPRESSED) != 0
        return packed

    def inflated(self, strict: bool, limits: InflateLimits) -> Iterator[tuple[int, int, pa.Array]]:
        """Runs of rows (from, to) whose compressed bodies together reach INFLATED_BYTES, and those bodies."""
        view = memoryview(self.records.arrow)
        bodies: list[bytes | None] = []
        first = size = 0
        for row in np.flatnonzero(self.packed).tolist():
            stored = view[int(self.body_starts[row]) : int(self.body_ends[row])]
            kind = (int(self.sys_flags[row]) & COMPRESSION_MASK) >> COMPRESSION_SHIFT
            body = None
            try:
                body = decompress(stored, kind, limits.of(len(stored)))
            except InvalidMessage as error:
                queue, offset = int(self.heads["queue_id"][row]), int(self.heads["queue_offset"][row])
                what = f"the message at offset {offset} of queue {queue}: {error}"
                if strict:
                    raise InvalidMessage(
                        f"{what}; failOnDataLoss=false makes it null", field="body"
                    ) from None
                log.warning("%s; it is null (failOnDataLoss=false)", what)
            body_bytes = 0 if body is None else len(body)
            if bodies and size + body_bytes > INFLATED_BYTES:
                values = pa.array(bodies, pa.binary())
                bodies.clear()
                yield first, row, values
                del values
                first, size = row, 0
            bodies.append(body)
            size += body_bytes
            del body
        values = pa.array(bodies, pa.binary())
        bodies.clear()
        yield first, len(self.positions), values

    def bodies(self) -> pa.Array:
        if self.plain_bodies is not None and self.packed.all():
            return self.plain_bodies
        plain = _between(self.records.arrow, self.body_starts, self.body_ends, pa.binary())
        if self.plain_bodies is None:
            return plain
        return pc.replace_with_mask(plain, pa.array(self.packed), self.plain_bodies)

    @property
    def properties(self) -> _DecodedProperties:
        if self._properties is None:
            self._properties = _DecodedProperties(self)
        return self._properties

    def message_ids(self) -> pa.Array:
        """UNIQ_KEY, or the offset id: store host and physical offset in upper-case hex."""
        unique = self.properties.values(UNIQ_KEY)
        if unique.null_count == 0:
            return unique
        missing = unique.is_null().to_numpy(zero_copy_only=False)
        store_v6 = (self.sys_flags & STORE_HOST_V6) != 0
        for chosen, ids_of in (
            (missing & ~store_v6, self._offset_ids),
            (missing & store_v6, self._offset_ids_v6),
        ):
            if chosen.all():
                return ids_of(chosen)
            if chosen.any():
                unique = pc.replace_with_mask(unique, pa.array(chosen), ids_of(chosen))
        return unique

    def _offset_ids(self, chosen: npt.NDArray[np.bool_]) -> pa.Array:
        """Eight characters per step; where all rows are equal, as usually for the host, one step covers all."""
        heads = self.heads if chosen.all() else self.heads[chosen]
        hosts = heads["store_host"].copy()
        if self.born_shifts is not None:
            places = (self.positions + _STORE_HOST + self.born_shifts)[chosen]
            hosts = self.records.bytes[places[:, None] + np.arange(8)]
        numbers = (
            hosts.view(">u8").reshape(-1).astype(np.uint64),
            heads["physical_offset"].astype(np.uint64),
        )
        text = np.empty((len(heads), 4), "<u8")
        for index, number in enumerate(numbers):
            for part, half in enumerate((number >> np.uint64(32), number & np.uint64(0xFFFFFFFF))):
                text[:, 2 * index + part] = _hex8(half[:1] if bool((half == half[0]).all()) else half)
        return _of_width(text, len(heads), 32, pa.string())

    def _offset_ids_v6(self, chosen: npt.NDArray[np.bool_]) -> pa.Array:
        starts = self.positions[chosen]
        shifts = self.born_shifts[chosen] if self.born_shifts is not None else 0
        hosts = (starts + _STORE_HOST + shifts)[:, None] + np.arange(20)
        physical = (starts + _PHYSICAL)[:, None] + np.arange(8)
        text = _HEX[self.records.bytes[np.hstack([hosts, physical])]]
        return _of_width(text, len(starts), 2 * 28, pa.string())


class _DecodedProperties:
    """The property strings of a batch, gathered and split into ``name 0x01 value`` items."""

    def __init__(self, rows: _DecodedRows) -> None:
        texts = self._gather(rows)
        if texts.buffers()[2] is None or texts.buffers()[2].size == 0:
            # No row has any.
            self._items = pa.array([], pa.binary())
            self._row_starts = np.zeros(len(texts) + 1, np.int64)
            self._offsets = np.zeros(1, np.int64)
            self._data = pa.py_buffer(b"")
            return
        if not _is_utf8(texts):
            # Clients other than Java's may store anything; Arrow strings must be UTF-8.
            repaired = [text.decode("utf-8", "replace").encode() for text in texts.to_pylist()]
            texts = pa.array(repaired, pa.binary())
        lists = pc.split_pattern(texts, pattern=ITEM_END)
        self._items = lists.flatten()
        self._row_starts = np.frombuffer(lists.buffers()[1], np.int32)[: len(lists) + 1].astype(np.int64)
        count = len(self._items)
        self._offsets = np.zeros(1, np.int64)
        if count:
            self._offsets = np.frombuffer(self._items.buffers()[1], np.int32)[: count + 1].astype(np.int64)
        self._data = self._items.buffers()[2] or pa.py_buffer(b"")

    @staticmethod
    def _gather(rows: _DecodedRows) -> pa.Array:
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
        if not len(self._items):
            return pa.nulls(len(self._row_starts) - 1, pa.string())
        prefix = f"{name}{NAME_END}".encode()
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
        # A row without the property takes an empty slot at the start of its items, so that slots ascend.
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
            pc.find_substring(self._items, pattern=NAME_END).to_numpy(zero_copy_only=False).astype(np.int64)
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
    lengths = ends - starts
    if missing is None and bool((lengths == lengths[0]).all()):
        return _slices_of_width(buffer, starts, int(lengths[0]), kind)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = ends[-1]
    slots = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), buffer])
    return slots.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=missing))


def _slices_of_width(buffer: pa.Buffer, starts: Ints, width: int, kind: pa.DataType) -> pa.Array:
    """``width`` bytes from each start on."""
    if width == 0:
        return _of_width(np.empty(0, np.uint8), len(starts), 0, kind)
    every = np.ndarray((buffer.size - width + 1,), f"V{width}", buffer=buffer, strides=(1,))
    return _of_width(every[starts], len(starts), width, kind)


def _of_width(texts: npt.NDArray[Any], count: int, width: int, kind: pa.DataType) -> pa.Array:
    """Texts of one length, concatenated."""
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(texts.view(np.uint8))]
    )


def _hex8(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The eight upper-case hex characters of each number below 2**32, packed."""
    high, low = _HEX4[numbers >> np.uint64(16)], _HEX4[numbers & np.uint64(0xFFFF)]
    packed: npt.NDArray[np.uint64] = high.astype(np.uint64) | low.astype(np.uint64) << np.uint64(32)
    return packed


def _fixed(values: Ints, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _shifted(values: Ints, delta: int) -> Ints:
    return values + delta if delta else values


def _timestamps(milliseconds: Ints) -> pa.Array:
    return _fixed(milliseconds * 1000, arrow_type("timestamp"))


_MAKERS: dict[str, Callable[[_DecodedRows], pa.Array]] = {
    "key": lambda rows: rows.properties.values(KEYS),
    "tags": lambda rows: rows.properties.values(TAGS),
    "value": lambda rows: rows.bodies(),
    "timestamp": lambda rows: _timestamps(rows.store_times()),
    "bornTimestamp": lambda rows: _timestamps(rows.field("born_time")),
    "msgId": lambda rows: rows.message_ids(),
    "properties": lambda rows: rows.properties.as_map(),
    "headers": lambda rows: as_headers(rows.properties.as_map()),
    "topic": lambda rows: rows.topics(),
    "partition": lambda rows: _fixed(rows.heads["queue_id"].astype(np.int32), pa.int32()),
    "physicalOffset": lambda rows: _fixed(rows.field("physical_offset"), pa.int64()),
    "sysFlag": lambda rows: _fixed(rows.heads["sys_flag"].astype(np.int32), pa.int32()),
    "reconsumeTimes": lambda rows: _fixed(rows.reconsume_times().astype(np.int32), pa.int32()),
}
"""The columns, but for the offset, to which the decoder adds."""
