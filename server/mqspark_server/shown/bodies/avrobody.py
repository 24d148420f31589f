"""Avro: container files, which have their schema with them, and what is said by messages that have it elsewhere.

Facts: https://avro.apache.org/docs/1.11.1/specification/ (object container files, binary encoding, single-object
encoding). Must not know a registry: who has looked up a schema gives it.
"""

from __future__ import annotations

import bz2
import contextlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mqspark_server.shown.bodies.outline import MAX_OUTLINE_DEPTH, Full, Outline, Reading, Unreadable

MAGIC = b"Obj\x01"
SINGLE_OBJECT = b"\xc3\x01"
MAX_SCHEMA_BYTES = 256 * 1024
MAX_INFLATED_BYTES = 1 << 20
"""The most of each block; what is behind is not shown."""
MAX_INFLATED_IN_ALL_BYTES = 8 << 20
MAX_BLOCKS = 4_096
"""Blocks that are unpacked: one without records writes nothing, and may inflate to a thousand times its size."""
MAX_HEADER_FIELDS = 1_000
MAX_AVRO_STEPS = 100_000
"""Values, and fields of records, that are looked at for one body: many of them may take no byte and write nothing."""
_SYNC_BYTES = 16
_FINGERPRINT_BYTES = 8


def _stored(block: bytes) -> bytes:
    return block


def _inflated(block: bytes) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(block, MAX_INFLATED_BYTES)


def _unzipped(block: bytes) -> bytes:
    return bz2.BZ2Decompressor().decompress(block, MAX_INFLATED_BYTES)


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {"null": _stored, "deflate": _inflated, "bzip2": _unzipped}


def write_avro(body: bytes, out: Outline) -> str:
    """The records of a container file, as a list. Returns what it is. Raises Unreadable, Full."""
    if body.startswith(SINGLE_OBJECT) and len(body) >= len(SINGLE_OBJECT) + _FINGERPRINT_BYTES:
        fingerprint = body[len(SINGLE_OBJECT) :][:_FINGERPRINT_BYTES][::-1].hex()
        raise Unreadable(f"only the schema with the fingerprint {fingerprint} says what it is")
    if not body.startswith(MAGIC):
        raise Unreadable("it is no container file, and only its schema says what it is")
    reading = Reading(body, len(MAGIC))
    header = _header(reading)
    codec = header.get("avro.codec", b"null").decode("ascii", "replace")
    unpack = _CODECS.get(codec)
    if unpack is None:
        raise Unreadable(f"its records are compressed with {codec[:40]}; {', '.join(_CODECS)} are read")
    schema = _AvroBodySchema(header.get("avro.schema", b""))
    sync = bytes(reading.take(_SYNC_BYTES))
    out.begin("[]")
    blocks = inflated_bytes = 0
    while not reading.is_at_end:
        if blocks == MAX_BLOCKS or inflated_bytes >= MAX_INFLATED_IN_ALL_BYTES:
            raise Full
        count, block = _long(reading), reading.take(_long(reading))
        try:
            data = unpack(bytes(block))
        except (zlib.error, OSError, EOFError, ValueError) as error:
            raise Unreadable(f"the block before {reading.at} is not {codec}: {error}") from None
        if reading.take(_SYNC_BYTES) != sync:
            raise Unreadable(f"the block before {reading.at} does not end with the mark of its file")
        blocks += 1
        inflated_bytes += len(data)
        records = Reading(data)
        for _ in range(count):
            if len(data) >= MAX_INFLATED_BYTES and records.is_at_end:
                raise Full
            schema.write(records, out)
    out.end()
    return f"Avro, {schema.name}"


def write_avro_value(body: bytes, schema: str, needed: Sequence[str], out: Outline) -> str:
    """One value by its schema. ``needed``: schemas with names that it uses. Returns what it is. Raises Unreadable,
    Full."""
    known = _AvroBodySchema(schema.encode(), needed)
    reading = Reading(body)
    known.write(reading, out)
    if not reading.is_at_end:
        raise Unreadable(f"{len(body) - reading.at} bytes are behind the value")
    return f"Avro, {known.name}"


def _header(reading: Reading) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = MAX_HEADER_FIELDS
    for count in _blocks(reading):
        left -= count
        if left < 0:
            raise Unreadable(f"its header has more than {MAX_HEADER_FIELDS:,} fields")
        for _ in range(count):
            name = reading.text(_long(reading))
            found[name] = bytes(reading.take(_long(reading)))
    return found


def _long(reading: Reading) -> int:
    """Zigzag: the sign is the lowest bit."""
    found = reading.varint()
    return (found >> 1) ^ -(found & 1)


def _blocks(reading: Reading) -> Any:
    """The counts of the blocks of a list or a map."""
    while count := _long(reading):
        if count < 0:
            _long(reading)  # the bytes of the block, for who skips it
        yield abs(count)


class _AvroBodySchema:
    """Reads the values of a schema. Raises Unreadable for what is none."""

    def __init__(self, text: bytes, needed: Sequence[str] = ()) -> None:
        if len(text) > MAX_SCHEMA_BYTES:
            raise Unreadable(f"its schema has more than {MAX_SCHEMA_BYTES:,} bytes")
        try:
            self._root = json.loads(text)
        except (ValueError, RecursionError):
            raise Unreadable("its schema is not JSON") from None
        self._names: dict[str, Any] = {}
        for each in needed:
            with contextlib.suppress(ValueError, RecursionError):  # then the name is not found
                self._learn(json.loads(each), "", 0)
        self._learn(self._root, "", 0)
        self._steps = MAX_AVRO_STEPS

    @property
    def name(self) -> str:
        root = self._root
        return str(root.get("name", root.get("type")) if isinstance(root, dict) else root)[:80]

    def _learn(self, schema: Any, space: str, depth: int) -> None:
        """The named types, by their full and their short names."""
        if depth > MAX_OUTLINE_DEPTH:
            raise Unreadable("its schema nests too deep")
        match schema:
            case list():
                for each in schema:
                    self._learn(each, space, depth + 1)
            case {"type": kind}:
                name = schema.get("name")
                if isinstance(name, str) and kind in ("record", "error", "enum", "fixed"):
                    space = name.rpartition(".")[0] or str(schema.get("namespace", space))
                    short = name.rpartition(".")[2]
                    self._names.setdefault(short, schema)
                    self._names[f"{space}.{short}"] = schema
                inner = [schema.get("items"), schema.get("values"), kind]
                fields = schema.get("fields")
                inner += [each.get("type") for each in _objects(fields)]
                for each in inner:
                    if isinstance(each, dict | list):
                        self._learn(each, space, depth + 1)
            case _:
                return

    def write(self, reading: Reading, out: Outline) -> None:
        """One value. Raises Full, too."""
        self._write(self._root, reading, out, 0)

    def _write(self, schema: Any, reading: Reading, out: Outline, depth: int) -> None:
        if depth > 2 * MAX_OUTLINE_DEPTH:
            raise Unreadable("its values nest too deep")
        self._step()
        match schema:
            case list():
                self._write(_choice(schema, _long(reading)), reading, out, depth + 1)
            case {"type": str(kind)} if kind in _COMPLEX:
                self._complex(kind, schema, reading, out, depth)
            case {"type": inner}:
                self._write(inner, reading, out, depth + 1)
            case str() if schema in _PRIMITIVES:
                out.value(_PRIMITIVES[schema](reading))
            case str() if schema in self._names:
                self._write(self._names[schema], reading, out, depth + 1)
            case _:
                raise Unreadable(f"its schema has a type that is none: {str(schema)[:80]}")

    def _step(self, count: int = 1) -> None:
        if self._steps < count:
            raise Full
        self._steps -= count

    def _complex(
        self, kind: str, schema: Mapping[str, Any], reading: Reading, out: Outline, depth: int
    ) -> None:
        match kind:
            case "record" | "error":
                out.begin("{}")
                fields = schema.get("fields")
                self._step(len(fields) if isinstance(fields, list) else 0)
                for field in _objects(fields):
                    out.name(str(field.get("name")))
                    self._write(field.get("type"), reading, out, depth + 1)
                out.end()
            case "array":
                out.begin("[]")
                for count in _blocks(reading):
                    for _ in range(count):
                        self._write(schema.get("items"), reading, out, depth + 1)
                out.end()
            case "map":
                out.begin("{}")
                for count in _blocks(reading):
                    for _ in range(count):
                        out.name(reading.text(_long(reading)))
                        self._write(schema.get("values"), reading, out, depth + 1)
                out.end()
            case "enum":
                out.value(_choice(schema.get("symbols"), _long(reading)))
            case _:
                size = schema.get("size")
                out.value(reading.take(size if isinstance(size, int) else -1))


_COMPLEX = ("record", "error", "array", "map", "enum", "fixed")
_PRIMITIVES: Mapping[str, Callable[[Reading], object]] = {
    "null": lambda reading: None,
    "boolean": lambda reading: reading.byte() != 0,
    "int": _long,
    "long": _long,
    "float": lambda reading: reading.unpack("<f"),
    "double": lambda reading: reading.unpack("<d"),
    "bytes": lambda reading: reading.take(_long(reading)),
    "string": lambda reading: reading.text(_long(reading)),
}


def _objects(value: Any) -> list[Any]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _choice(options: Any, number: int) -> Any:
    if not isinstance(options, list) or not 0 <= number < len(options):
        raise Unreadable(f"it chooses the {number}th of what its schema does not have")
    return options[number]
