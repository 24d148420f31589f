"""JSON texts from peers, decoded within bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.parsedschema import MAX_NODES, MAX_SCHEMA_DEPTH


def json_document(text: str, kind: str) -> Any:
    """``kind``: what the errors call the language. Raises InvalidSchema, SchemaTooLarge."""
    reader = _Counting(kind)
    try:
        found = json.loads(
            text,
            parse_constant=reader.constant,
            parse_float=reader.fraction,
            object_pairs_hook=reader.object,
        )
        if "\\u" in text:  # two of them may be halves of one character, or not
            json.dumps(found, ensure_ascii=False).encode()
    except InvalidSchema:
        raise
    except RecursionError:
        raise SchemaTooLarge("values inside each other", MAX_SCHEMA_DEPTH, kind=kind) from None
    except UnicodeEncodeError:
        raise InvalidSchema("the text has half of a surrogate pair", kind=kind) from None
    except ValueError as error:
        raise InvalidSchema(f"the text is no JSON: {error}", kind=kind) from None
    return found


def check_nesting(document: Any, most: int, kind: str) -> None:
    """Raises SchemaTooLarge for a document with more values inside each other."""
    for depth, _ in enumerate(levels_of(document), 1):
        if depth > most:
            raise SchemaTooLarge("values inside each other", most, kind=kind)


def levels_of(document: Any) -> Iterator[list[Any]]:
    """The document, then the values in it, then those in these: each level is found when it is asked for."""
    level = [document]
    while level:
        yield level
        inner = list[Any]()
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = inner


class _Counting:
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._nodes = 0

    def constant(self, name: str) -> Any:
        raise InvalidSchema(f"{name} is no JSON", kind=self._kind)

    def fraction(self, text: str) -> float:
        number = float(text)
        if math.isinf(number):
            raise InvalidSchema(f"the number {text[:80]} is too large", kind=self._kind)
        return number

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._nodes += 1 + len(pairs)
        if self._nodes > MAX_NODES:
            raise SchemaTooLarge("types, fields and values", MAX_NODES, kind=self._kind)
        found = dict[str, Any]()
        for name, value in pairs:
            if name in found:
                raise InvalidSchema(f"an object has the key {name[:80]!r} twice", kind=self._kind)
            found[name] = value
        return found


def compact(value: Any, *, sort: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort)


_BEGIN, _END = {ord("{")}, {ord("}")}
_first_byte, _last_byte = itemgetter(0), itemgetter(-1)


def lines_of_objects(bodies: Sequence[bytes | memoryview]) -> bytes | None:
    """Bodies that look like one object each, one a line; None if one does not, or has a line break.

    A reader that takes all lines and finds as many values as there are bodies has found one in each: no value goes on
    behind a line, because after the brace at its end the one at the next begin can only be that of another value, and
    a text has no line break."""
    try:
        if set(map(_first_byte, bodies)) != _BEGIN or set(map(_last_byte, bodies)) != _END:
            return None
    except IndexError:
        return None
    return None if b"\n" in b"".join(bodies) else b"\n".join(bodies)
