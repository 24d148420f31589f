"""Arrow rows to the batch bodies of a send, without a Python loop over rows.

An item is ``size i32, 0, 0, flag i32, body length i32, body, properties length i16, properties``; joining the
columns element by element puts all items of a queue into one buffer, and a batch body is a slice of it. Must not
import pyspark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqspark.base.propertystring import ITEM_END, NAME_END, item
from mqspark.errors import InvalidMessage
from mqspark.message import (
    COMPRESSED,
    COMPRESSION_SHIFT,
    DELAY,
    KEYS,
    MAX_PROPERTIES_BYTES,
    PRIORITY,
    SET_BY_BROKERS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    java_hash,
)
from mqspark.record.compression import compressor

Ints = npt.NDArray[np.int64]

_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("length", ">i4")])
_NAME_END, _ITEM_END = pa.scalar(NAME_END.encode(), pa.binary()), pa.scalar(ITEM_END.encode(), pa.binary())
_MAX_BATCH_MESSAGES = 16_384
"""The answer lists each message's id, in a header of less than a megabyte."""
_RUN_ROWS = 64
"""If runs of rows with one target are shorter, the rows are sorted by target."""
_VECTOR_KEY_BYTES = 64
_SET_BY_BROKERS = pa.array([name.encode() for name in sorted(SET_BY_BROKERS)], pa.binary())


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One send: ``count`` messages as a batch body."""

    body: memoryview
    count: int
    sys_flag: int
    """The system flag of every message in it: compression."""


@dataclass(frozen=True, slots=True)
class Compression:
    """``kind`` as in ``mqspark.record.compression``. The messages of a batch share their flags: if one value has
    ``threshold_bytes``, all values encoded with it are compressed."""

    kind: int
    threshold_bytes: int

    @property
    def sys_flag(self) -> int:
        return COMPRESSED | self.kind << COMPRESSION_SHIFT

    def applies(self, values: pa.Array) -> bool:
        return len(values) > 0 and int(pc.max(pc.binary_length(values)).as_py()) >= self.threshold_bytes

    def compressed(self, values: pa.Array) -> pa.Array:
        compress = compressor(self.kind)
        return pa.array([compress(memoryview(value.as_buffer())) for value in values], pa.binary())


class Rows:
    """The message columns of one Arrow batch, validated: a value in every row, no separator in a key or tag.

    ``keep_broker_properties``: else what brokers set for one delivery is left out of ``properties`` and ``headers``,
    so that rows that were read from a topic can be written to another one."""

    def __init__(self, batch: pa.RecordBatch, keep_broker_properties: bool = False) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names}
        self.count = batch.num_rows
        self.values = columns["value"].cast(pa.binary())
        if self.values.null_count:
            raise InvalidMessage(
                f"value: row {_first(self.values.is_null())} of the batch has none; a message needs a body",
                field="value",
            )
        key, tags, properties = columns.get("key"), columns.get("tags"), columns.get("properties")
        sharding = columns.get("shardingKey")
        priority = columns.get("priority")
        if priority is not None and len(priority.drop_null()) and pc.min(priority).as_py() < 0:
            row = _first(pc.fill_null(pc.less(priority, 0), False))
            raise InvalidMessage(f"priority: row {row} of the batch has one below 0", field="priority")
        self.keys = None if key is None else _utf8("key", key)
        self.sharding = self.keys if sharding is None else sharding.cast(pa.binary())
        """The column that selects the queue: shardingKey, else the key."""
        parts = []
        # The last duplicate wins: columns override the map.
        if properties is not None:
            entries = properties.cast(pa.map_(pa.string(), pa.string()))
            names, values = entries.keys.cast(pa.binary()), entries.items.cast(pa.binary())
            parts.append(_properties("properties", entries, names, values, keep_broker_properties))
        if (headers := columns.get("headers")) is not None:
            texts = _headers(headers, keep_broker_properties)
            # A copy with both columns has every property twice.
            is_copy = pc.equal(texts, parts[0]) if parts else pa.scalar(False)
            parts.append(pc.if_else(is_copy, pa.scalar(b"", pa.binary()), texts))
        own = (
            (KEYS, "key", self.keys),
            (TAGS, "tags", None if tags is None else tags.cast(pa.binary())),
            (SHARDING_KEY, "shardingKey", None if sharding is None else self.sharding),
            (
                PRIORITY,
                "priority",
                None if priority is None else priority.cast(pa.string()).cast(pa.binary()),
            ),
        )
        for name, what, column in own:
            if column is not None:
                parts.append(_property(name, what, column))
        empty = pa.repeat(pa.scalar(b"", pa.binary()), self.count)
        self.properties = pc.binary_join_element_wise(*parts, b"") if parts else empty

    @property
    def size_bytes(self) -> int:
        """Size of all items, before compression."""
        size: int = (_HEAD.itemsize + 2) * self.count
        return size + _data_bytes(self.values) + _data_bytes(self.properties)

    def sends(
        self,
        chosen: Ints,
        targets: Ints,
        batch_bytes: int,
        compression: Compression | None = None,
    ) -> Iterator[tuple[int, EncodedBatch]]:
        """The selected rows as sends of at most ``batch_bytes`` and of similar size (a larger message is sent
        alone), each with its target; rows of one target keep their order."""
        changes = np.flatnonzero(np.diff(targets)) + 1
        if len(changes) * _RUN_ROWS > len(targets):
            by_target = np.argsort(targets, kind="stable")
            chosen, targets = chosen[by_target], targets[by_target]
            changes = np.flatnonzero(np.diff(targets)) + 1
        data, starts, sys_flag = self.items(chosen, compression)
        for first, end in itertools.pairwise([0, *changes.tolist(), len(chosen)]):
            for begin, until in _cuts(starts, first, end, batch_bytes):
                body = data[int(starts[begin]) : int(starts[until])]
                yield int(targets[begin]), EncodedBatch(body, until - begin, sys_flag)

    def items(self, order: Ints, compression: Compression | None = None) -> tuple[memoryview, Ints, int]:
        """The items of the rows in ``order``, concatenated, the start of each (one more entry than rows), and
        their common system flag."""
        values, properties = _taken(self.values, order), _taken(self.properties, order)
        sys_flag = 0
        if compression is not None and compression.applies(values):
            values, sys_flag = compression.compressed(values), compression.sys_flag
        value_lengths = pc.binary_length(values).to_numpy().astype(np.int64)
        property_lengths = pc.binary_length(properties).to_numpy().astype(np.int64)
        if len(order) and int(property_lengths.max()) > MAX_PROPERTIES_BYTES:
            raise InvalidMessage(
                f"properties of {int(property_lengths.max())} bytes exceed {MAX_PROPERTIES_BYTES}",
                field="properties",
            )
        sizes = _HEAD.itemsize + 2 + value_lengths + property_lengths
        starts = np.append(0, np.cumsum(sizes))
        if len(order) and _all_alike(value_lengths) and _all_alike(property_lengths):
            return _table(values, properties, int(sizes[0])), starts, sys_flag
        heads = np.zeros(len(order), _HEAD)
        heads["size"], heads["length"] = sizes, value_lengths
        joined = pc.binary_join_element_wise(
            _fixed_width(heads), values, _fixed_width(property_lengths.astype(">i2")), properties, b""
        )
        data = joined.buffers()[2]
        return memoryview(data if data is not None else b"").cast("B"), starts, sys_flag


def _cuts(starts: Ints, first: int, end: int, batch_bytes: int) -> Iterator[tuple[int, int]]:
    """Splits the rows ``first`` to ``end`` into pieces."""
    if first == end:
        return
    total = int(starts[end] - starts[first])
    largest = int(np.diff(starts[first : end + 1]).max())
    # Each piece is below the limit by less than a row, so no small one remains.
    limit = min(batch_bytes, -(-total // -(-total // batch_bytes)) + largest)
    while first < end:
        last = int(np.searchsorted(starts, starts[first] + limit, "right")) - 1
        last = min(max(last, first + 1), first + _MAX_BATCH_MESSAGES, end)
        yield first, last
        first = last


def _taken(column: pa.Array, order: Ints) -> pa.Array:
    """The column's rows in ``order``; a run of neighbours is not copied."""
    if len(order) == 0 or (np.diff(order) == 1).all():
        return column.slice(int(order[0]) if len(order) else 0, len(order))
    return column.take(pa.array(order))


def _all_alike(lengths: Ints) -> bool:
    return bool((lengths == lengths[0]).all())


def _table(values: pa.Array, properties: pa.Array, size: int) -> memoryview:
    """The items of rows of equal length: a table of bytes with a column per field."""
    buffer = pa.allocate_buffer(
        len(values) * size
    )  # from Arrow's pool, which reuses memory instead of mapping fresh pages
    table = np.frombuffer(buffer, np.uint8).reshape(len(values), size)
    values_table, properties_table = _bytes(values), _bytes(properties)
    head = np.zeros(1, _HEAD)
    head["size"], head["length"] = size, values_table.shape[1]
    body_end = _HEAD.itemsize + values_table.shape[1]
    table[:, : _HEAD.itemsize] = head.view(np.uint8)
    table[:, _HEAD.itemsize : body_end] = values_table
    table[:, body_end : body_end + 2] = np.array([properties_table.shape[1]], ">i2").view(np.uint8)
    table[:, body_end + 2 :] = properties_table
    return memoryview(buffer).cast("B")


def _bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of a column of equal lengths, one row per row."""
    begin, end = _ends(column)
    raw = np.frombuffer(column.buffers()[2], np.uint8) if end > begin else np.zeros(0, np.uint8)
    return raw[begin:end].reshape(len(column), (end - begin) // len(column))


def _data_bytes(column: pa.Array) -> int:
    begin, end = _ends(column)
    return end - begin


def _ends(column: pa.Array) -> tuple[int, int]:
    """Start and end of the column's bytes in its data."""
    if len(column) == 0:
        return 0, 0
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return int(offsets[column.offset]), int(offsets[column.offset + len(column)])


class Waits:
    """Delivery times of rows, from ``delayLevel`` and ``deliverAt``; null or a level below 1 means immediately."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        none = np.zeros(batch.num_rows, np.int64)
        self._levels = none
        self._times_ms = none
        if "delayLevel" in names:
            self._levels = pc.fill_null(batch.column("delayLevel"), 0).to_numpy().astype(np.int64)
        if "deliverAt" in names:
            column = batch.column("deliverAt")
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
            self._times_ms = pc.fill_null(column, 0).to_numpy().astype(np.int64)

    def any_of(self, rows: Ints) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self._levels[rows] > 0) | (self._times_ms[rows] > 0)
        return found

    def properties(self, row: int) -> str:
        """The additional properties of a row that is delayed. Raises InvalidMessage for a row with both delays."""
        level, time_ms = int(self._levels[row]), int(self._times_ms[row])
        if level > 0 and time_ms > 0:
            raise InvalidMessage(
                f"deliverAt: row {row} of the batch has a delayLevel, too; give one of them",
                field="deliverAt",
            )
        if level > 0:
            return item(DELAY, str(level))
        return item(TIMER_DELIVER_MS, str(time_ms)) if time_ms > 0 else ""


def key_hashes(keys: Sequence[bytes | None] | pa.Array) -> Ints:
    """Java's ``String.hashCode`` of each key, as a queue selector by hash needs it; 0 for null."""
    array = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
    if len(array) == 0:
        return np.zeros(0, np.int64)
    filled = pc.fill_null(array, b"")
    lengths = pc.binary_length(filled).to_numpy().astype(np.int64)
    data = filled.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    longest = int(lengths.max())
    offsets = np.frombuffer(filled.buffers()[1], np.int32)[
        filled.offset : filled.offset + len(filled)
    ].astype(np.int64)
    used = raw[int(offsets[0]) : int(offsets[-1] + lengths[-1])]
    if longest > _VECTOR_KEY_BYTES or (used.size and int(used.max()) >= 0x80):
        return np.array(
            [java_hash((key or b"").decode("utf-8", "replace")) for key in filled.to_pylist()], dtype=np.int64
        )
    hashes = np.zeros(len(array), np.int32)
    with np.errstate(over="ignore"):
        for index in range(longest):  # iterates over the characters of the longest key, not over rows
            inside = lengths > index
            letters = raw[np.where(inside, offsets + index, 0)].astype(np.int32)
            hashes = np.where(inside, hashes * np.int32(31) + letters, hashes)
    return hashes.astype(np.int64)


def _property(name: str, what: str, column: pa.Array) -> pa.Array:
    """``name 0x01 value 0x02`` for each row of the column ``what``; nothing for a null or empty value, as in a
    producer."""
    _check_separators(what, column, None)
    head = pa.scalar(f"{name}{NAME_END}".encode(), pa.binary())
    joined = pc.binary_join_element_wise(head, column, _ITEM_END, b"")
    present = pc.greater(pc.binary_length(column), 0)
    return pc.if_else(pc.fill_null(present, False), pc.fill_null(joined, b""), pa.scalar(b"", pa.binary()))


def _utf8(what: str, column: pa.Array, offsets: pa.Array | None = None) -> pa.Array:
    """The column as bytes. Raises InvalidMessage for bytes that are no text: properties are, and readers would turn
    different keys into one."""
    is_text = not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type))
    column = column.cast(pa.binary())
    if not is_text:
        try:
            column.cast(pa.string())
        except pa.ArrowInvalid:
            bad = next(index for index, value in enumerate(column.to_pylist()) if not _is_utf8(value))
            raise InvalidMessage(
                f"{what}: row {_row(bad, offsets)} of the batch holds bytes that are not UTF-8, which no property can"
                f" keep; write hex({what}) or base64({what}) instead",
                field=what,
            ) from None
    return column


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _headers(column: pa.Array, keep_broker_properties: bool) -> pa.Array:
    """Kafka's headers as property strings. Raises InvalidMessage also for two headers of one name in a row."""
    lists = column.cast(pa.list_(column.type.value_type))
    entries = lists.values
    names = entries.field(0).cast(pa.binary())
    if (entry := _first(pc.or_(entries.is_null(), names.is_null()))) is not None:
        raise InvalidMessage(
            f"headers: row {_row(entry, lists.offsets)} of the batch has a header without a key",
            field="headers",
        )
    values = _utf8("headers", entries.field(1), lists.offsets)
    rows = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
    if len(rows):
        first = lists.offsets[0].as_py()
        codes = names.dictionary_encode().indices.to_numpy()[first : first + len(rows)]
        _, found = np.unique(rows * (int(codes.max()) + 1) + codes, return_index=True)
        if len(found) < len(rows):
            again = first + min(set(range(len(rows))) - set(found.tolist()))
            raise InvalidMessage(
                f"headers: row {_row(again, lists.offsets)} of the batch has two headers"
                f" {names[again].as_py().decode()[:100]!r}; a message has one property of a name",
                field="headers",
            )
    return _properties("headers", lists, names, values, keep_broker_properties)


def _properties(
    what: str, column: pa.Array, names: pa.Array, values: pa.Array, keep_broker_properties: bool
) -> pa.Array:
    """The entries of each row as a property string; entries with a null value are omitted. Raises InvalidMessage for an
    empty name or value, as a producer does: readers of RocketMQ's format drop such an entry."""
    if not keep_broker_properties:
        values = pc.if_else(pc.is_in(names, _SET_BY_BROKERS), pa.scalar(None, pa.binary()), values)
    for part, role in ((names, "name"), (values, "value")):
        _check_separators(what, part, column.offsets)
        entry = _first(pc.equal(pc.binary_length(part), 0))
        if entry is not None:
            name, row = names[entry].as_py().decode()[:100], _row(entry, column.offsets)
            raise InvalidMessage(
                f"{what}: row {row} of the batch: the {role} of {name!r} is empty, which cannot be stored; leave "
                "the entry out, or make its value null",
                field=what,
            )
    entries = pc.binary_join_element_wise(names, _NAME_END, values, _ITEM_END, b"")
    texts = pc.binary_join(pa.ListArray.from_arrays(column.offsets, pc.fill_null(entries, b"")), b"")
    return pc.if_else(column.is_valid(), texts, pa.scalar(b"", pa.binary())) if column.null_count else texts


def _check_separators(what: str, column: pa.Array, offsets: pa.Array | None) -> None:
    """``offsets``: where the entries of each row begin, if ``column`` has several for a row."""
    for separator in (NAME_END, ITEM_END):
        entry = _first(pc.match_substring(column, separator))
        if entry is not None:
            raise InvalidMessage(
                f"{what}: row {_row(entry, offsets)} of the batch holds the separator 0x0{ord(separator)}",
                field=what,
            )


def _first(found: pa.Array) -> int | None:
    """The index of the first true element."""
    if not pc.any(found).as_py():
        return None
    return int(pc.index(found, pa.scalar(True)).as_py())


def _row(entry: int, offsets: pa.Array | None) -> int:
    return entry if offsets is None else int(np.searchsorted(offsets.to_numpy(), entry, "right")) - 1


def _fixed_width(values: npt.NDArray[np.generic]) -> pa.Array:
    """Each element's bytes as one binary value."""
    width = values.dtype.itemsize
    offsets = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(),
        len(values),
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))],
    )
