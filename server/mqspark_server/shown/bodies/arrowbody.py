"""Arrow: its stream and its file, as rows. Facts: https://arrow.apache.org/docs/format/Columnar.html.

Messages are looked at before pyarrow reads them: a compressed one says itself how much it takes. Columns are walked,
never converted as a whole: a list of nulls may have billions of them in no bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from mqspark.record.compression import OLD_ARROW
from mqspark_server.shown.bodies.outline import Full, Outline, Unreadable

FILE = b"ARROW1\x00\x00"
STREAM = b"\xff\xff\xff\xff"
MAX_INFLATED_BYTES = 16 << 20
MAX_ARROW_STEPS = 20_000
"""Values that are read."""
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
"""Fields of Message, DictionaryBatch and RecordBatch (Message.fbs)."""


def begins_arrow(body: bytes) -> bool:
    size = int.from_bytes(body[4:8], "little")
    return body.startswith(FILE) or (body.startswith(STREAM) and 0 < size <= len(body) and size % 8 == 0)


def write_arrow(body: bytes, out: Outline) -> str:
    """Returns what it is. Raises Unreadable, Full."""
    try:
        import pyarrow as pa
    except ImportError:
        raise Unreadable("pyarrow reads it, which is not installed beside this console") from None
    # A file is a stream between its marks.
    stream = pa.py_buffer(body).slice(len(FILE) if body.startswith(FILE) else 0)
    try:
        _check_sizes(pa, stream)
        with pa.ipc.open_stream(stream) as reader:
            walk = _RowWriter(pa, out)
            out.begin("[]")
            for batch in reader:
                batch.validate(full=True)  # its offsets may point anywhere
                walk.rows(batch)
            out.end()
            return f"Arrow, {len(reader.schema):,} column{'' if len(reader.schema) == 1 else 's'}"
    except (pa.ArrowException, OSError, ValueError, OverflowError, struct.error, IndexError) as error:
        raise Unreadable(str(error)[:200] or "it cannot be read") from None


def _check_sizes(pa: Any, stream: Any) -> None:
    """Raises Unreadable for what inflates to too much, and errors of pyarrow."""
    inflated = 0
    reader = pa.ipc.MessageReader.open_stream(stream)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type not in ("record batch", "dictionary"):
            continue
        head = message.metadata.to_pybytes()
        if OLD_ARROW in head:
            raise Unreadable("it is compressed as by Arrow 0.17")
        table = _Table.root(head).table(_HEADER)
        batch = table.table(_DATA) if message.type == "dictionary" else table
        if batch.place(_COMPRESSION) is None:
            continue
        body = memoryview(message.body)
        for offset, length in batch.pairs(_BUFFERS):
            if length >= 8:
                (size,) = struct.unpack_from("<q", body, offset)
                inflated += max(0, size)
        if inflated > MAX_INFLATED_BYTES:
            raise Unreadable(f"it inflates to more than {MAX_INFLATED_BYTES >> 20} MiB")


class _Table:
    """A table of a flatbuffer. Raises struct.error for what is none."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, struct.unpack_from("<I", data)[0])

    def place(self, field: int) -> int | None:
        vtable = self._at - struct.unpack_from("<i", self._data, self._at)[0]
        if 4 + 2 * field >= struct.unpack_from("<H", self._data, vtable)[0]:
            return None
        offset = struct.unpack_from("<H", self._data, vtable + 4 + 2 * field)[0]
        return self._at + offset if offset else None

    def _target(self, field: int) -> int:
        at = self.place(field)
        if at is None:
            raise struct.error(f"there is no field {field}")
        found: int = at + struct.unpack_from("<I", self._data, at)[0]
        return found

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._target(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit numbers."""
        at = self._target(field)
        count = struct.unpack_from("<I", self._data, at)[0]
        return [struct.unpack_from("<qq", self._data, at + 4 + 16 * each) for each in range(count)]


class _RowWriter:
    """Writes rows until MAX_ARROW_STEPS values are read. Raises Full."""

    def __init__(self, pa: Any, out: Outline) -> None:
        self._pa = pa
        self._out = out
        self._steps = MAX_ARROW_STEPS

    def rows(self, batch: Any) -> None:
        for number in range(batch.num_rows):
            self._step()
            self._out.begin("{}")
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                self._out.name(name)
                self._value(column[number])
            self._out.end()

    def _step(self) -> None:
        if self._steps == 0:
            raise Full
        self._steps -= 1

    def _value(self, scalar: Any) -> None:
        self._step()
        types, kind = self._pa.types, scalar.type
        if types.is_dictionary(kind):
            scalar = scalar.value
            kind = scalar.type
        if not scalar.is_valid:
            self._out.value(None)
        elif types.is_nested(kind):
            self._nested(kind, scalar)
        elif types.is_run_end_encoded(kind) or isinstance(scalar, self._pa.ExtensionScalar):
            self._out.value(str(kind))
        elif types.is_primitive(kind) and not types.is_temporal(kind):
            found = scalar.as_py()
            self._out.value(found if isinstance(found, int | float | bool) else str(found))
        elif _is_of_bytes(types, kind):
            self._out.value(memoryview(scalar.as_buffer()))
        elif types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            self._out.value(bytes(memoryview(scalar.as_buffer())[:_TEXT_BYTES]).decode("utf-8", "replace"))
        else:
            self._out.value(self._words(scalar))

    def _words(self, scalar: Any) -> str:
        """Times and decimals. Zones are not looked up: a body may name any."""
        types, kind = self._pa.types, scalar.type
        if types.is_duration(kind):
            return f"{scalar.value} {kind.unit}"
        if types.is_timestamp(kind) and kind.tz is not None:
            return f"{scalar.cast(self._pa.timestamp(kind.unit)).cast(self._pa.string()).as_py()}Z"
        if types.is_interval(kind):
            return str(scalar)
        return str(scalar.cast(self._pa.string()).as_py())

    def _nested(self, kind: Any, scalar: Any) -> None:
        if self._pa.types.is_struct(kind):
            self._out.begin("{}")
            for number, field in enumerate(kind):
                self._out.name(field.name)
                self._value(scalar[number])
            self._out.end()
        elif self._pa.types.is_union(kind):
            self._value(scalar.value)
        else:
            self._out.begin("[]")
            values = scalar.values
            for number in range(len(values)):
                self._value(values[number])
            self._out.end()


_TEXT_BYTES = 64 * 1024
"""More than a page shows of a value."""


def _is_of_bytes(types: Any, kind: Any) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )
