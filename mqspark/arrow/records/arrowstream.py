"""Validates an Arrow IPC stream before Arrow reads it.

Arrow allocates the size that a compressed buffer claims, allows buffers to overlap, and accepts any number of
rows for columns without bytes. Therefore the headers of all batches are read first (flatbuffers; Message.fbs of
the Arrow format) and summed up. Then the offsets inside columns are checked, because Arrow would follow them to
any address; UTF-8 is checked by the texts' readers. Columns whose values may represent more bytes than they store
(dictionaries, views, run ends) are measured. Must not know messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqspark.errors import InvalidMessage
from mqspark.record.compression import OLD_ARROW, InflateLimits

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_HEADER_TYPE, _HEADER = 1, 2
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_DATA = 1
"""Fields of the tables Message, RecordBatch and DictionaryBatch, by number."""

_FREE_ROWS = 1 << 16
MAX_COLUMNS = 16_384
"""Limit of the columns of a message, nested ones included."""
_NOT_COMPRESSED = -1
_STRUCT_BYTES = 16
"""Size of a FieldNode (length, null count) and of a Buffer (offset, length)."""

_VIEW_BYTES = 16
"""Size of an entry of a view column, which starts with its length."""

_u16 = struct.Struct("<H").unpack_from
_i32 = struct.Struct("<i").unpack_from
_u32 = struct.Struct("<I").unpack_from
_i64 = struct.Struct("<q").unpack_from
_pair = struct.Struct("<qq")


class FreeRows:
    """How many rows without bytes a batch of messages may still have: each costs as much as others further on."""

    def __init__(self) -> None:
        self.left = _FREE_ROWS


def check_stream(body: pa.Buffer, limits: InflateLimits, free: FreeRows) -> None:
    """Raises InvalidMessage for a stream that exceeds ``limits`` or claims more rows than its bytes and ``free``
    allow."""
    limit_bytes = limits.of(body.size)
    total_bytes = total_rows = 0
    reader = pa.ipc.MessageReader.open_stream(body)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            free.left -= max(0, total_rows - 8 * total_bytes)
            return
        try:
            rows, size_bytes = _claims(memoryview(message.metadata), message.body)
        except (struct.error, IndexError) as error:
            raise InvalidMessage(
                f"the header of an Arrow batch cannot be read: {error}", field="value"
            ) from None
        total_rows += rows
        total_bytes += size_bytes
        if total_bytes > limit_bytes:
            raise InvalidMessage(
                f"an Arrow stream of {body.size} bytes becomes {total_bytes}, more than {limit_bytes}"
                " (maxInflatedBytes, maxInflateRatio)",
                field="value",
            )
        if total_rows - 8 * total_bytes > free.left:
            raise InvalidMessage(
                f"an Arrow stream of {body.size} bytes says that it has {total_rows} rows", field="value"
            )


def _claims(head: memoryview, body: pa.Buffer | None) -> tuple[int, int]:
    """What one message of the stream claims: the longest column, and the decompressed bytes of its buffers."""
    table = _u32(head, 0)[0]
    kind = _field(head, table, _HEADER_TYPE)
    if kind is None or head[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0, 0
    if OLD_ARROW in bytes(head):
        raise InvalidMessage("an Arrow batch that is compressed as by Arrow 0.17", field="value")
    batch = _table(head, table, _HEADER)
    if batch is not None and head[kind] == _DICTIONARY_BATCH:
        batch = _table(head, batch, _DATA)
    if batch is None:
        return 0, 0
    length = _field(head, batch, _LENGTH)
    rows = 0 if length is None else _i64(head, length)[0]
    lengths = [rows, *(each for each, _ in _structs(head, batch, _NODES))]
    if min(lengths) < 0:
        raise InvalidMessage("an Arrow batch of a negative length", field="value")
    is_compressed = _field(head, batch, _COMPRESSION) is not None
    room = 0 if body is None else body.size
    view = memoryview(body) if body is not None else memoryview(b"")
    size_bytes = 0
    for offset, stored in _structs(head, batch, _BUFFERS):
        if offset < 0 or stored < 0 or offset > room - stored:
            raise InvalidMessage("a buffer of an Arrow batch lies outside of it", field="value")
        claimed = _i64(view, offset)[0] if is_compressed and stored >= 8 else _NOT_COMPRESSED
        if claimed < _NOT_COMPRESSED:
            raise InvalidMessage("a buffer of an Arrow batch of a negative length", field="value")
        size_bytes += stored if claimed == _NOT_COMPRESSED else claimed
    return max(lengths), size_bytes


def _field(head: memoryview, table: int, number: int) -> int | None:
    """The position of a table's field, None if it is absent."""
    vtable = table - _i32(head, table)[0]
    if vtable < 0:
        raise IndexError("a table without a head")
    place = 4 + 2 * number
    if place + 2 > _u16(head, vtable)[0]:
        return None
    offset = _u16(head, vtable + place)[0]
    return table + offset if offset else None


def _table(head: memoryview, table: int, number: int) -> int | None:
    place = _field(head, table, number)
    return None if place is None else place + int(_u32(head, place)[0])


def _structs(head: memoryview, table: int, number: int) -> Iterator[tuple[int, int]]:
    vector = _table(head, table, number)
    if vector is None:
        return
    count = _u32(head, vector)[0]
    if vector + 4 + count * _STRUCT_BYTES > len(head):
        raise IndexError("a vector that is longer than its message")
    yield from _pair.iter_unpack(head[vector + 4 : vector + 4 + count * _STRUCT_BYTES])


def batches_of(
    body: pa.Buffer, limits: InflateLimits, free: FreeRows | None = None
) -> Iterator[pa.RecordBatch]:
    """The batches of a validated stream. ``free`` is shared by the messages that are read together. Raises
    InvalidMessage, ArrowException."""
    check_stream(body, limits, free or FreeRows())
    with pa.ipc.open_stream(body) as stream:
        columns = sum(_columns_of(field.type) for field in stream.schema)
        if columns > MAX_COLUMNS:
            raise InvalidMessage(
                f"an Arrow stream of {columns} columns, more than {MAX_COLUMNS}", field="value"
            )
        for field in stream.schema:
            _check_nested(field.name, field.type)
        for batch in stream:
            batch.validate()
            for column in batch.columns:
                _check_offsets(column)
            meant = sum(_meant_bytes(column) for column in batch.columns)
            if meant > limits.max_bytes:
                raise InvalidMessage(
                    f"an Arrow batch whose values are {meant} bytes, more than {limits.max_bytes}",
                    field="value",
                )
            yield batch


def _columns_of(kind: pa.DataType) -> int:
    return 1 + sum(_columns_of(kind.field(index).type) for index in range(kind.num_fields))


def _check_offsets(column: pa.Array) -> None:
    """Checks that offsets ascend and stay within their data. Raises InvalidMessage, ArrowInvalid."""
    kind, types = column.type, pa.types
    if types.is_primitive(kind) or types.is_null(kind) or types.is_fixed_size_binary(kind):
        return  # nothing that points anywhere
    if types.is_string(kind) or types.is_binary(kind):
        _check_ascending(column, np.int32, None)
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        _check_ascending(column, np.int64, None)
    elif types.is_list(kind) or types.is_map(kind):
        _check_ascending(column, np.int32, column.values)
    elif types.is_large_list(kind):
        _check_ascending(column, np.int64, column.values)
    elif types.is_fixed_size_list(kind):
        _check_offsets(column.values)
    elif types.is_struct(kind):
        for index in range(kind.num_fields):
            _check_offsets(column.field(index))
    else:
        column.validate(full=True)


def _check_ascending(column: pa.Array, width: type[np.signedinteger[Any]], values: pa.Array | None) -> None:
    if not len(column):
        return
    buffers = column.buffers()
    first = column.offset
    offsets = np.frombuffer(buffers[1], width)[first : first + len(column) + 1]
    if values is None:
        end = buffers[2].size if buffers[2] is not None else 0
    else:
        end = len(values)
        _check_offsets(values)
    if int(offsets[0]) < 0 or int(offsets[-1]) > end or not (offsets[1:] >= offsets[:-1]).all():
        raise InvalidMessage(f"a column of {column.type} points outside of its bytes", field="value")


def _is_short(kind: pa.DataType) -> bool:
    """Whether values may represent more bytes than they store."""
    return bool(
        pa.types.is_dictionary(kind)
        or pa.types.is_run_end_encoded(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def _check_nested(name: str, kind: pa.DataType) -> None:
    """Such types are allowed only for whole columns, and only of texts and numbers."""
    is_column = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    inner = [kind.value_type] if is_column else [kind.field(index).type for index in range(kind.num_fields)]
    for each in inner:
        if _is_short(each) or (is_column and pa.types.is_nested(each)):
            raise InvalidMessage(f"column {name!r} is {kind}, which is not taken apart", field="value")
        _check_nested(name, each)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        raise InvalidMessage(f"column {name!r} is {kind}, which is not taken apart", field="value")


def _meant_bytes(column: pa.Array) -> int:
    """The expanded size of a column of such a type; 0 for others."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return int(pc.sum(_lengths(column.dictionary).take(column.indices)).as_py() or 0)
    if pa.types.is_run_end_encoded(kind):
        longest = int(pc.max(_lengths(column.values)).as_py() or 0)
        return longest * len(column)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = column.buffers()[1]
        lengths = np.frombuffer(views, np.int32)[:: _VIEW_BYTES // 4]
        return int(lengths[column.offset : column.offset + len(column)].astype(np.int64).sum())
    return 0


def _lengths(values: pa.Array) -> pa.Array:
    """Lengths in bytes."""
    kind = values.type
    try:
        return pc.binary_length(values).cast(pa.int64())
    except pa.ArrowNotImplementedError:
        width = getattr(kind, "bit_width", 64) if pa.types.is_primitive(kind) else 64
        return pa.array([-(-width // 8)] * len(values), pa.int64())
