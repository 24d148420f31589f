"""Avro bodies to typed columns: a field of all bodies at once (``avrocursor``).

A body has no names and no types, so it is read by the schema that it was written with, field by field, and each field
becomes what the reader's schema says (Avro, "Schema Resolution"). Arrays and maps are read an item of all bodies at
a time; bodies that have many more items than the others are decoded alone, by the same classes (``one``).
"""

from __future__ import annotations

import decimal
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqspark.arrow.payload.avrocolumns import AvroColumns, factor, items_of, may_be_empty, members
from mqspark.arrow.payload.avrocursor import ENDS_EARLY, AvroCursor, Rows
from mqspark.arrow.payload.bodyrows import NO_BODY, BodyRows, body_rows
from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.avro.avrodefaults import AvroDefaults
from mqspark.schemas.avro.avrotypes import AvroField, AvroType
from mqspark.schemas.parsedschema import AVRO

FEW_ROWS = 48
"""A step costs as much as decoding about this many items alone."""
_INT32 = 1 << 31
_MAX_COMPARED = 100_000


class AvroBodies:
    """A decoder of bodies that were written with ``writer``, to the columns of ``reader``. Raises InvalidSchema if
    the reader does not understand the writer, or for a schema that has no columns."""

    def __init__(self, writer: AvroType, reader: AvroType | None = None, *, few_rows: int = FEW_ROWS) -> None:
        reader = reader or writer
        if reader.type != "record" or writer.type != "record":
            raise InvalidSchema(f"columns come from a record, not from {reader.fullname}", kind=AVRO)
        self.schema = pa.schema(list(AvroColumns().type_of(reader)))
        AvroColumns().type_of(writer)  # a writer's type that contains itself is refused, too
        self._root = _resolved_record(writer, reader, "", _Meeting(few_rows))
        self._few_rows = few_rows

    def decode(self, bodies: pa.BinaryArray) -> BodyRows:
        cursor = AvroCursor(bodies.fill_null(b""))
        rows: Rows = np.arange(len(bodies))
        absent = rows[np.asarray(bodies.is_null())] if bodies.null_count else rows[:0]
        cursor.refuse(absent, NO_BODY)
        columns = self._root.columns(cursor, rows)
        cursor.refuse_rest()
        reasons = cursor.reasons()
        alone = np.flatnonzero(cursor.slow)
        if alone.size:
            columns = self._with_slow(columns, bodies, alone, reasons)
        return body_rows(columns, reasons)

    def _with_slow(
        self, columns: list[pa.Array], bodies: pa.BinaryArray, alone: Rows, reasons: list[str | None]
    ) -> list[pa.Array]:
        values: list[dict[str, Any]] = []
        for row in alone.tolist():
            body = _OneBody(bodies[row].as_py())
            try:
                found = self._root.one(body)
                body.check_end()
            except _NotOfSchema as error:
                reasons[row] = str(error)
                found = {}
            values.append(found)
        places = np.arange(len(bodies))
        places[alone] = len(bodies) + np.arange(alone.size)
        order = pa.array(places)
        return [
            pa.concat_arrays([column, pa.array([each.get(field.name) for each in values], field.type)]).take(
                order
            )
            for column, field in zip(columns, self.schema, strict=True)
        ]


class _NotOfSchema(Exception):
    """A body that is not what the schema says."""


class _OneBody:
    """One body that is decoded alone."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def check_end(self) -> None:
        if self._at < len(self._data):
            raise _NotOfSchema("the body goes on behind its last field")

    def left(self) -> int:
        return len(self._data) - self._at

    def number(self, path: str) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63 or (shift == 63 and self._data[self._at] > 1):
                raise _NotOfSchema(f"{path}: a number that is cut short or too long")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def bytes(self, size: int, path: str) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise _NotOfSchema(f"{path}: {ENDS_EARLY}")
        self._at += size
        return self._data[self._at - size : self._at]


class _AvroNode(ABC):
    """Reads a value. ``type`` is the Arrow type of what it returns."""

    def __init__(self, path: str, kind: pa.DataType) -> None:
        self.path = path
        self.type = kind

    @abstractmethod
    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        """The value of each of the bodies; anything for those that are wrong."""

    @abstractmethod
    def one(self, body: _OneBody) -> Any:
        """The value of one body, as ``pa.array`` takes it. Raises _NotOfSchema."""


class _Null(_AvroNode):
    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        return pa.nulls(rows.size, self.type)

    def one(self, body: _OneBody) -> Any:
        return None


class _Boolean(_AvroNode):
    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        byte = cursor.fixed(rows, 1, self.path)[:, 0]
        cursor.refuse(rows[byte > 1], f"{self.path}: a boolean is 0 or 1")
        return pa.array(byte == 1)

    def one(self, body: _OneBody) -> Any:
        byte = body.bytes(1, self.path)[0]
        if byte > 1:
            raise _NotOfSchema(f"{self.path}: a boolean is 0 or 1")
        return byte == 1


class _AvroNumber(_AvroNode):
    """An int or a long, with a limit, as an integer, a time or a float."""

    def __init__(self, path: str, kind: pa.DataType, limit: int, times: int) -> None:
        super().__init__(path, kind)
        self._limit = limit // times
        self._times = times
        self._too_large = f"{path}: out of the range of {kind}"

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        found = cursor.numbers(rows, self.path)
        wrong = (found < -self._limit) | (found >= self._limit) if self._limit < 1 << 63 else None
        if wrong is not None and wrong.any():
            cursor.refuse(rows[wrong], self._too_large)
            found[wrong] = 0
        if self._times != 1:
            found = found * self._times
        if pa.types.is_floating(self.type):
            return pa.array(found.astype(self.type.to_pandas_dtype()))
        if self.type.bit_width == 32:
            return pa.array(found.astype(np.int32)).view(self.type)
        return pa.array(found).view(self.type)

    def one(self, body: _OneBody) -> Any:
        found = body.number(self.path)
        if not -self._limit <= found < self._limit:
            raise _NotOfSchema(self._too_large)
        value = found * self._times
        if pa.types.is_floating(self.type):
            return self.type.to_pandas_dtype()(value)
        return value


class _Float(_AvroNode):
    """A float or double, as one of them."""

    def __init__(self, path: str, kind: pa.DataType, size: int) -> None:
        super().__init__(path, kind)
        self._size = size

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        found = np.ascontiguousarray(cursor.fixed(rows, self._size, self.path)).view(f"<f{self._size}")[:, 0]
        return pa.array(found.astype(self.type.to_pandas_dtype(), copy=False))

    def one(self, body: _OneBody) -> Any:
        return struct.unpack("<f" if self._size == 4 else "<d", body.bytes(self._size, self.path))[0]


class _Sized(_AvroNode):
    """Bytes behind their number, or always ``size`` of them."""

    def __init__(self, path: str, kind: pa.DataType, size: int | None) -> None:
        super().__init__(path, kind)
        self._size = size

    def _lengths(self, cursor: AvroCursor, rows: Rows) -> npt.NDArray[np.int64]:
        if self._size is None:
            return cursor.lengths(rows, self.path)
        return cursor.check_room(rows, np.full(rows.size, self._size), self.path)

    def _content(self, body: _OneBody) -> bytes:
        return body.bytes(body.number(self.path) if self._size is None else self._size, self.path)


class _AvroBytes(_Sized):
    """Bytes, a text or a fixed, as bytes or a text."""

    def __init__(self, path: str, kind: pa.DataType, size: int | None, *, is_wanted: bool) -> None:
        super().__init__(path, kind, size)
        self._is_wanted = is_wanted
        self._no_text = f"{path}: the text is no UTF-8"

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        lengths = self._lengths(cursor, rows)
        if not self._is_wanted:
            cursor.skip(rows, lengths)
            return pa.nulls(rows.size, self.type)
        found = cursor.binary(rows, lengths)
        if not pa.types.is_string(self.type):
            return found
        try:
            return found.cast(self.type)
        except pa.ArrowInvalid:
            wrong = np.array([not _is_text(each) for each in found.to_pylist()], np.bool_)
            cursor.refuse(rows[wrong], self._no_text)
            return pc.if_else(pa.array(wrong), pa.scalar(b""), found).cast(self.type)

    def one(self, body: _OneBody) -> Any:
        found = self._content(body)
        if not self._is_wanted or not pa.types.is_string(self.type):
            return found
        if not _is_text(found):
            raise _NotOfSchema(self._no_text)
        return found.decode()


def _is_text(found: bytes) -> bool:
    try:
        found.decode()
    except UnicodeDecodeError:
        return False
    return True


class _AvroDecimal(_Sized):
    def __init__(self, path: str, kind: pa.DataType, size: int | None) -> None:
        super().__init__(path, kind, size)
        self._limit = 10**kind.precision
        self._too_large = f"{path}: more than the {kind.precision} digits of the decimal"

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        lengths = self._lengths(cursor, rows)
        long = lengths > 16  # more bytes than digits need; what is more than the sign is looked at alone
        if long.any():
            cursor.leave(rows[long])
            lengths = np.where(long, 0, lengths)
        found = cursor.big_endian(rows, lengths)
        high = found.view("<i8")[:, 1]
        low = found.view("<u8")[:, 0]
        wrong = self._are_too_large(high, low)
        if wrong.any():
            cursor.refuse(rows[wrong], self._too_large)
            found[wrong] = 0
        return pa.Array.from_buffers(self.type, rows.size, [None, pa.py_buffer(found)])

    def _are_too_large(
        self, high: npt.NDArray[np.int64], low: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Whether a number of two parts is -limit or less, or limit or more."""
        most, least = self._limit - 1, -(self._limit - 1)
        high_most, low_most = most >> 64, np.uint64(most & (1 << 64) - 1)
        high_least, low_least = least >> 64, np.uint64(least & (1 << 64) - 1)
        above = (high > high_most) | ((high == high_most) & (low > low_most))
        below = (high < high_least) | ((high == high_least) & (low < low_least))
        found: npt.NDArray[np.bool_] = above | below
        return found

    def one(self, body: _OneBody) -> Any:
        found = self._content(body)
        value = int.from_bytes(found, "big", signed=True)
        if not -self._limit < value < self._limit:
            raise _NotOfSchema(self._too_large)
        return decimal.Decimal(value).scaleb(-self.type.scale, decimal.Context(prec=60))


class _AvroEnum(_AvroNode):
    """``symbols``: what the reader makes of each of the writer's; None for one that it has not."""

    def __init__(self, path: str, names: Sequence[str], symbols: Sequence[str | None]) -> None:
        super().__init__(path, pa.string())
        self._names = names
        self._symbols = pa.array(symbols, pa.string())
        self._list = symbols
        self._lost = [at for at, each in enumerate(symbols) if each is None]

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        found = cursor.numbers(rows, self.path)
        wrong = (found < 0) | (found >= len(self._list))
        if wrong.any():
            cursor.refuse(rows[wrong], f"{self.path}: the enum has no symbol of this number")
            found[wrong] = 0
        for lost in self._lost:
            cursor.refuse(rows[found == lost], self._loss(lost))
        return self._symbols.take(pa.array(found))

    def _loss(self, number: int) -> str:
        return f"{self.path}: the schema has no symbol {self._names[number]!r}, and no default"

    def one(self, body: _OneBody) -> Any:
        found = body.number(self.path)
        if not 0 <= found < len(self._list):
            raise _NotOfSchema(f"{self.path}: the enum has no symbol of this number")
        if self._list[found] is None:
            raise _NotOfSchema(self._loss(found))
        return self._list[found]


class _Never(_AvroNode):
    """A branch of a writer's union that the reader does not understand."""

    def __init__(self, path: str, kind: pa.DataType, reason: str) -> None:
        super().__init__(path, kind)
        self._reason = reason

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        cursor.refuse(rows, self._reason)
        return pa.nulls(rows.size, self.type)

    def one(self, body: _OneBody) -> Any:
        raise _NotOfSchema(self._reason)


class _AvroUnion(_AvroNode):
    """The branches are nodes of the same type."""

    def __init__(self, path: str, kind: pa.DataType, branches: list[_AvroNode]) -> None:
        super().__init__(path, kind)
        self._branches = branches
        self._no_branch = f"{path}: the union has no branch of this number"

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        branch = cursor.numbers(rows, self.path)
        wrong = (branch < 0) | (branch >= len(self._branches))
        if wrong.any():
            cursor.refuse(rows[wrong], self._no_branch)
            branch[wrong] = -1
        parts, places, known = [], np.full(rows.size, -1), 0
        for number, node in enumerate(self._branches):
            chosen = np.flatnonzero(branch == number)
            if not chosen.size:
                continue
            part = node.many(cursor, rows[chosen])
            if chosen.size == rows.size:
                return part
            if isinstance(node, _Null):
                continue
            parts.append(part)
            places[chosen] = known + np.arange(chosen.size)
            known += chosen.size
        if not parts:
            return pa.nulls(rows.size, self.type)
        return pa.concat_arrays(parts).take(pa.array(places, mask=places < 0))

    def one(self, body: _OneBody) -> Any:
        branch = body.number(self.path)
        if not 0 <= branch < len(self._branches):
            raise _NotOfSchema(self._no_branch)
        return self._branches[branch].one(body)


class _Member(_AvroNode):
    """A value as the field of a struct that says which branch of the reader's union it is."""

    def __init__(self, path: str, kind: pa.DataType, number: int, inner: _AvroNode) -> None:
        super().__init__(path, kind)
        self._number = number
        self._inner = inner

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        found = self._inner.many(cursor, rows)
        arrays = [
            found if at == self._number else pa.nulls(rows.size, each.type)
            for at, each in enumerate(self.type)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type))

    def one(self, body: _OneBody) -> Any:
        return {f"member{self._number}": self._inner.one(body)}


class _AvroRecordField(_AvroNode):
    """``fields``: the writer's in order, each with its place among the reader's columns, None if none wants it.
    ``defaults``: of the reader's fields that the writer has not."""

    def __init__(
        self,
        path: str,
        kind: pa.StructType,
        fields: list[tuple[_AvroNode, int | None]],
        defaults: dict[int, Any],
    ) -> None:
        super().__init__(path, kind)
        self._fields = fields
        self._defaults = defaults

    def columns(self, cursor: AvroCursor, rows: Rows) -> list[pa.Array]:
        found: dict[int, pa.Array] = {}
        for node, place in self._fields:
            array = node.many(cursor, rows)
            if place is not None:
                found[place] = array
        for place, value in self._defaults.items():
            kind = self.type.field(place).type
            found[place] = pa.nulls(rows.size, kind) if value is None else pa.array([value] * rows.size, kind)
        return [found[place] for place in range(self.type.num_fields)]

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        columns = self.columns(cursor, rows)
        if not columns:
            return pa.array([{}] * rows.size, self.type)
        return pa.StructArray.from_arrays(columns, fields=list(self.type))

    def one(self, body: _OneBody) -> Any:
        found = {self.type.field(place).name: value for place, value in self._defaults.items()}
        for node, place in self._fields:
            value = node.one(body)
            if place is not None:
                found[self.type.field(place).name] = value
        return found


class _AvroItems(_AvroNode):
    """An array or a map: blocks, each with the number of its items in front, and 0 behind the last one."""

    def __init__(self, path: str, kind: pa.DataType, items: list[_AvroNode], few_rows: int) -> None:
        """``items``: one node, or that of the key and that of the value."""
        super().__init__(path, kind)
        self._items = items
        self._few_rows = few_rows
        self._too_many = f"{path}: a block of more items than the body has bytes"

    def many(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        left = self._block(cursor, rows)
        active = np.flatnonzero(left > 0)
        owners: list[Rows] = []
        parts: list[list[pa.Array]] = [[] for _ in self._items]
        while active.size:
            if active.size < self._few_rows:
                cursor.leave(rows[active])
                break
            here = rows[active]
            for part, node in zip(parts, self._items, strict=True):
                part.append(node.many(cursor, here))
            owners.append(active)
            left[active] -= 1
            left[active[cursor.is_over(here)]] = -1
            ended = active[left[active] == 0]
            if ended.size:
                left[ended] = self._block(cursor, rows[ended])
            active = active[left[active] > 0]
        return self._array(rows.size, owners, parts)

    def _array(self, count: int, owners: list[Rows], parts: list[list[pa.Array]]) -> pa.Array:
        offsets = np.zeros(count + 1, np.int32)
        if not owners:
            empty = [pa.array([], node.type) for node in self._items]
            return self._made(pa.array(offsets), empty)
        owner = np.concatenate(owners)
        np.cumsum(np.bincount(owner, minlength=count), out=offsets[1:])
        order = pa.array(np.argsort(owner, kind="stable"))
        return self._made(pa.array(offsets), [pa.concat_arrays(part).take(order) for part in parts])

    def _made(self, offsets: pa.Array, arrays: list[pa.Array]) -> pa.Array:
        if len(arrays) == 1:
            return pa.ListArray.from_arrays(offsets, arrays[0], type=self.type)
        return pa.MapArray.from_arrays(offsets, arrays[0], arrays[1], type=self.type)

    def _block(self, cursor: AvroCursor, rows: Rows) -> npt.NDArray[np.int64]:
        count = cursor.numbers(rows, self.path)
        sized = np.flatnonzero(count < 0)
        if sized.size:
            cursor.numbers(rows[sized], self.path)  # its size in bytes, for those who skip it
            count[sized] = -count[sized]
        wrong = (count < 0) | (count > cursor.left(rows))
        if wrong.any():
            cursor.refuse(rows[wrong], self._too_many)
            count[wrong] = 0
        return count

    def one(self, body: _OneBody) -> Any:
        found: list[Any] = []
        while True:
            count = body.number(self.path)
            if count < 0:
                body.number(self.path)
                count = -count
            if count > body.left():
                raise _NotOfSchema(self._too_many)
            if not count:
                return found
            for _ in range(count):
                values = [node.one(body) for node in self._items]
                found.append(values[0] if len(values) == 1 else tuple(values))


# --- the meeting of writer and reader ---


class _Meeting:
    """Bounds what is compared: the branches of two unions, and of those inside them, meet in many ways."""

    def __init__(self, few_rows: int) -> None:
        self.few_rows = few_rows
        self._compared = 0

    def count(self) -> None:
        self._compared += 1
        if self._compared > _MAX_COMPARED:
            raise SchemaTooLarge(
                "comparisons of what was written with what is read", _MAX_COMPARED, kind=AVRO
            )


def _resolved(writer: AvroType, reader: AvroType, path: str, meeting: _Meeting) -> _AvroNode:
    """Raises InvalidSchema."""
    meeting.count()
    if writer.type == "union":
        kind = AvroColumns().type_of(reader)
        branches: list[_AvroNode] = []
        for branch in writer.parts:
            try:
                branches.append(_resolved(branch, reader, path, meeting))
            except SchemaTooLarge:
                raise
            except InvalidSchema as error:
                branches.append(_Never(path, kind, error.problem))
        if all(isinstance(each, _Never) for each in branches):
            raise _mismatch(writer, reader, path)
        return _AvroUnion(path, kind, branches)
    if reader.type == "union":
        return _of_union(writer, reader, path, meeting)
    if reader.type == "record":
        if writer.type != "record" or not _same_name(writer, reader):
            raise _mismatch(writer, reader, path)
        return _resolved_record(writer, reader, path, meeting)
    if reader.type in ("array", "map"):
        return _resolved_items(writer, reader, path, meeting)
    if reader.type == "enum":
        if writer.type != "enum" or not _same_name(writer, reader):
            raise _mismatch(writer, reader, path)
        known = set(reader.symbols)
        return _AvroEnum(
            path, writer.symbols, [each if each in known else reader.default for each in writer.symbols]
        )
    return _resolved_simple(writer, reader, path)


def _resolved_simple(writer: AvroType, reader: AvroType, path: str) -> _AvroNode:
    kind = AvroColumns().type_of(reader)
    if reader.type == "fixed" and (
        writer.type != "fixed" or writer.size != reader.size or not _same_name(writer, reader)
    ):
        raise _mismatch(writer, reader, path)
    size = reader.size if reader.type == "fixed" else None
    if pa.types.is_decimal(kind):
        theirs = AvroColumns().type_of(writer)
        if writer.type != reader.type or (pa.types.is_decimal(theirs) and theirs.scale != kind.scale):
            raise _mismatch(writer, reader, path)
        return _AvroDecimal(path, kind, size)
    if reader.type == "null" and writer.type == "null":
        return _Null(path, kind)
    if reader.type == "boolean" and writer.type == "boolean":
        return _Boolean(path, kind)
    texts = ("bytes", "string")
    if (reader.type in texts and writer.type in texts) or reader.type == "fixed":
        return _AvroBytes(path, kind, size, is_wanted=True)
    if writer.type in ("float", "double") and reader.type in (writer.type, "double"):
        return _Float(path, kind, 4 if writer.type == "float" else 8)
    wider = {"int": ("int", "long", "float", "double"), "long": ("long", "float", "double")}
    if reader.type in wider.get(writer.type, ()):
        if pa.types.is_temporal(kind) and factor(writer) != factor(reader) and _is_temporal(writer):
            raise _mismatch(writer, reader, path)
        limit = _INT32 if writer.type == "int" else 1 << 63
        return _AvroNumber(path, kind, limit, factor(reader))
    raise _mismatch(writer, reader, path)


def _is_temporal(of: AvroType) -> bool:
    return bool(pa.types.is_temporal(AvroColumns().type_of(of)))


def _of_union(writer: AvroType, reader: AvroType, path: str, meeting: _Meeting) -> _AvroNode:
    """A value that becomes one of the reader's branches: the first one of its own type, or else the first one that
    understands it."""
    kind = AvroColumns().type_of(reader)
    own = [each for each in reader.parts if each.type == writer.type and _same_name(writer, each)]
    for branch in dict.fromkeys((*own, *reader.parts)):
        try:
            found = _resolved(writer, branch, path, meeting)
        except SchemaTooLarge:
            raise
        except InvalidSchema:
            continue
        if isinstance(found, _Null):
            return _Null(path, kind)
        real = members(reader)
        if found.type == kind and len(real) == 1:
            return found
        if pa.types.is_struct(kind):
            return _Member(path, kind, real.index(branch), found)
        # int and long, float and double: the larger type of the two
        larger = AvroType("long") if kind == pa.int64() else AvroType("double")
        return _resolved(writer, larger, path, meeting)
    raise _mismatch(writer, reader, path)


def _resolved_items(writer: AvroType, reader: AvroType, path: str, meeting: _Meeting) -> _AvroNode:
    if writer.type != reader.type:
        raise _mismatch(writer, reader, path)
    written, wanted = items_of(writer), items_of(reader)
    kind = AvroColumns().type_of(reader)
    if reader.type == "map":
        inner = _resolved(written, wanted, f"{path}{{}}", meeting)
        return _AvroItems(
            path, kind, [_AvroBytes(path, pa.string(), None, is_wanted=True), inner], meeting.few_rows
        )
    if may_be_empty(written):
        raise InvalidSchema(f"{path}: items without bytes could be any number in a few bytes", kind=AVRO)
    return _AvroItems(path, kind, [_resolved(written, wanted, f"{path}[]", meeting)], meeting.few_rows)


def _resolved_record(writer: AvroType, reader: AvroType, path: str, meeting: _Meeting) -> _AvroRecordField:
    wanted: dict[str, int] = {}
    written = {each.name for each in writer.fields}
    defaults: dict[int, Any] = {}
    for place, field in enumerate(reader.fields):
        source = next((name for name in (field.name, *field.aliases) if name in written), None)
        if source is not None and source not in wanted:
            wanted[source] = place
        elif field.has_default:
            defaults[place] = _default(field, AvroColumns().type_of(field.type))
        else:
            inner = f"{path}.{field.name}" if path else field.name
            raise InvalidSchema(f"{inner} is not in what was written, and has no default", kind=AVRO)
    fields = []
    for each in writer.fields:
        found = wanted.get(each.name)
        inner = f"{path}.{each.name}" if path else each.name
        node = (
            _unwanted(each.type, inner, meeting)
            if found is None
            else _resolved(each.type, reader.fields[found].type, inner, meeting)
        )
        fields.append((node, found))
    return _AvroRecordField(path, AvroColumns().type_of(reader), fields, defaults)


def _unwanted(writer: AvroType, path: str, meeting: _Meeting) -> _AvroNode:
    """Reads over a value."""
    if writer.type in ("bytes", "string", "fixed"):
        return _AvroBytes(path, pa.null(), writer.size if writer.type == "fixed" else None, is_wanted=False)
    return _resolved(writer, writer, path, meeting)


def _default(field: AvroField, kind: pa.DataType) -> Any:
    """Raises InvalidSchema for one that no column can hold."""
    try:
        return _value(field.default, field.type, kind, AvroDefaults())
    except OverflowError as error:
        raise InvalidSchema(f"the default of {field.name} is {error}", kind=AVRO) from None


def _value(given: Any, of: AvroType, kind: pa.DataType, defaults: AvroDefaults) -> Any:
    """A default of a schema, as ``pa.array`` takes it. That of a union is one of its first branch that fits. Raises
    OverflowError."""
    if of.type == "union":
        branch = next(each for each in of.parts if defaults.fit(given, each))
        if branch.type == "null":
            return None
        real = members(of)
        if len(real) == 1 or not pa.types.is_struct(kind):
            return _value(given, branch, kind, defaults)
        number = real.index(branch)
        return {f"member{number}": _value(given, branch, kind.field(number).type, defaults)}
    if of.type == "record":
        return {
            each.name: _value(given.get(each.name, each.default), each.type, kind.field(at).type, defaults)
            for at, each in enumerate(of.fields)
        }
    if of.type in ("array", "map"):
        if of.type == "map":
            return [
                (key, _value(each, items_of(of), kind.item_type, defaults)) for key, each in given.items()
            ]
        return [_value(each, items_of(of), kind.value_type, defaults) for each in given]
    if of.type in ("bytes", "fixed"):
        found = given.encode("latin-1")
        if pa.types.is_decimal(kind):
            value = int.from_bytes(found, "big", signed=True)
            if abs(value) >= 10**kind.precision:
                raise OverflowError(f"more than the {kind.precision} digits of the decimal")
            return decimal.Decimal(value).scaleb(-kind.scale, decimal.Context(prec=60))
        return found
    if pa.types.is_temporal(kind):
        value = int(given) * factor(of)
        if not -(1 << 63) <= value < 1 << 63:
            raise OverflowError(f"out of the range of {kind}")
        return value
    return float(given) if pa.types.is_floating(kind) else given


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    if not reader.name:
        return True
    return writer.short_name == reader.short_name or writer.name in reader.aliases


def _mismatch(writer: AvroType, reader: AvroType, path: str) -> InvalidSchema:
    where = path or "the body"
    return InvalidSchema(
        f"{where} is {writer.fullname} where it was written, not {reader.fullname}", kind=AVRO
    )
