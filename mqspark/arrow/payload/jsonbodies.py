"""JSON bodies to typed columns.

msgspec decodes each body with a class made from the schema: it skips what no column asks for, names the field of a
wrong value, and is as fast as Arrow's reader of JSON lines. That one takes a file, in which a body with a line break
or two objects moves the rows behind it, keeps bytes that are no UTF-8, and has no maps.

| column | JSON |
|---|---|
| string, boolean | the same, nothing else |
| integers | a number without a fraction, in the type's range |
| float, double | a number |
| decimal | a number or a text with a number, with at most the type's digits |
| binary | base64, as Spark's JSON |
| date | "2024-12-31" |
| timestamp | RFC 3339 with a zone; digits below microseconds are rounded |
| timestamp_ntz | the same without a zone |
| array, struct, map | array, object, object. Keys of a map may be texts, integers and dates |

A field that is null or missing is null; fields that the schema lacks are ignored; the last of duplicate fields
counts, as in Python's and JavaScript's readers. The prefix of a schema registry, which no JSON begins with, is left
out. Must not know messages or Spark.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from mqspark.arrow.payload.bodyrows import EMPTY_BODY, NO_BODY, BodyRows, built, joined
from mqspark.arrow.payload.prefixedbodies import without_prefix
from mqspark.errors import ConfigError
from mqspark.schemas.jsontexts import lines_of_objects

_TOGETHER = 2_048
"""Bodies that are decoded at once: so many values stay in a processor's cache until they are columns. A wrong body
among them costs the time of as many."""
_WRONG = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
_FLOAT32_MAX = 3.4028234663852886e38


class JsonBodies:
    """A decoder for columns of ``schema``. Raises ConfigError for a type that JSON cannot give."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        row = _struct([(field.name, field.type) for field in schema], "")
        decoder = msgspec.json.Decoder(row.hint)
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        self._columns = row.columns

    def decode(self, bodies: pa.BinaryArray) -> BodyRows:
        texts = without_prefix(bodies)[0].to_pylist()
        return joined([self._part(texts[at : at + _TOGETHER]) for at in range(0, len(texts) or 1, _TOGETHER)])

    def _part(self, bodies: list[bytes | None]) -> BodyRows:
        reasons: list[str | None] = [None] * len(bodies)
        rows = self._together(bodies)
        if rows is None:
            rows = list(self._each(bodies, reasons))
        return built(rows, reasons, self._columns)

    def _together(self, bodies: list[bytes | None]) -> list[Any] | None:
        """None: they have to be looked at one by one."""
        try:
            lines = lines_of_objects(bodies)  # type: ignore[arg-type]  # a body that is not there: TypeError
            found = None if lines is None else self._decode_lines(lines)
        except _WRONG:
            return None
        return found if found is not None and len(found) == len(bodies) else None

    def _each(self, bodies: list[bytes | None], reasons: list[str | None]) -> Iterator[Any]:
        decode: Callable[[Any], Any] = self._decode
        for at, body in enumerate(bodies):
            try:
                yield decode(body)
            except _WRONG as error:
                reasons[at] = _reason(body, error)
                yield None


def _reason(body: bytes | None, error: Exception) -> str:
    if body is None:
        return NO_BODY
    if not body:
        return EMPTY_BODY
    return str(error)


class _Kind:
    """A type: what msgspec is told, and how a column is made of values (None: null)."""

    def __init__(self, hint: Any, array: Callable[[Sequence[Any]], pa.Array]) -> None:
        self.hint = hint
        self.array = array


class _Struct(_Kind):
    def __init__(self, names: list[str], kinds: list[_Kind], types: list[pa.Field]) -> None:
        attributes = [f"f{index}" for index in range(len(names))]
        self._getters = [attrgetter(each) for each in attributes]
        self._kinds = kinds
        self._types = types
        hint = msgspec.defstruct(
            "Row",
            [(each, kind.hint | None, None) for each, kind in zip(attributes, kinds, strict=True)],
            rename=dict(zip(attributes, names, strict=True)),
            gc=False,  # values of JSON have no circles
        )
        self._nothing = hint()
        super().__init__(hint, self._array)

    def columns(self, values: Sequence[Any]) -> list[pa.Array]:
        if None in values:
            nothing = self._nothing
            values = [nothing if each is None else each for each in values]
        return [
            kind.array(list(map(get, values))) for get, kind in zip(self._getters, self._kinds, strict=True)
        ]

    def _array(self, values: Sequence[Any]) -> pa.Array:
        mask = pa.array([each is None for each in values], pa.bool_())
        return pa.StructArray.from_arrays(self.columns(values), fields=self._types, mask=mask)


def _struct(fields: list[tuple[str, pa.DataType]], path: str) -> _Struct:
    names = [name for name, _ in fields]
    if len(set(names)) < len(names):
        raise ConfigError.of("payloadSchema", f"{path or 'the schema'} names a field twice")
    kinds = [_kind(kind, f"{path}.{name}" if path else name) for name, kind in fields]
    return _Struct(names, kinds, [pa.field(name, kind) for name, kind in fields])


def _kind(kind: pa.DataType, path: str) -> _Kind:
    if pa.types.is_struct(kind):
        return _struct([(each.name, each.type) for each in kind], path)
    if pa.types.is_list(kind):
        return _list(kind, _kind(kind.value_type, f"{path}[]"))
    if pa.types.is_map(kind):
        return _map(kind, path)
    hint = _hint(kind)
    if hint is None:
        raise ConfigError.of(
            "payloadSchema", f"{path} cannot be {kind} in JSON; make it a string and convert that"
        )
    return _Kind(hint, lambda values: _leaf(values, kind, path))


def _leaf(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:  # digits of a decimal
        raise pa.ArrowInvalid(f"{error} - at `$.{path}`") from None


def _hint(kind: pa.DataType) -> Any:
    is_type = pa.types
    if is_type.is_signed_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if is_type.is_float32(kind):
        return Annotated[float, msgspec.Meta(ge=-_FLOAT32_MAX, le=_FLOAT32_MAX)]
    if is_type.is_timestamp(kind):
        return Annotated[datetime.datetime, msgspec.Meta(tz=kind.tz is not None)]
    simple: list[tuple[Callable[[pa.DataType], bool], Any]] = [
        (is_type.is_string, str),
        (is_type.is_boolean, bool),
        (is_type.is_float64, float),
        (is_type.is_binary, bytes),
        (is_type.is_date32, datetime.date),
        (is_type.is_decimal, decimal.Decimal),
    ]
    return next((hint for is_kind, hint in simple if is_kind(kind)), None)


def _list(kind: pa.DataType, item: _Kind) -> _Kind:
    def array(values: Sequence[Any]) -> pa.Array:
        offsets = _offsets(values)
        items = item.array(list(itertools.chain.from_iterable(each for each in values if each)))
        return pa.ListArray.from_arrays(offsets, items, type=kind)

    return _Kind(types.GenericAlias(list, (item.hint | None,)), array)


def _map(kind: pa.DataType, path: str) -> _Kind:
    keys, items = kind.key_type, _kind(kind.item_type, f"{path}{{}}")
    if not (pa.types.is_string(keys) or pa.types.is_signed_integer(keys) or pa.types.is_date32(keys)):
        raise ConfigError.of(
            "payloadSchema", f"{path} cannot have keys of {keys} in JSON; they are texts, integers or dates"
        )

    def array(values: Sequence[Any]) -> pa.Array:
        full = [each for each in values if each]
        return pa.MapArray.from_arrays(
            _offsets(values),
            pa.array(list(itertools.chain.from_iterable(full)), keys),
            items.array(list(itertools.chain.from_iterable(each.values() for each in full))),
            type=kind,
        )

    return _Kind(types.GenericAlias(dict, (_hint(keys), items.hint | None)), array)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Where each list begins; null for a value that is null."""
    ends = list(itertools.accumulate((len(each) if each else 0 for each in values), initial=0))
    starts = [None if each is None else start for each, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())
