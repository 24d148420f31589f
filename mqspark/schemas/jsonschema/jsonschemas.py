"""JSON Schema, drafts 4 to 2020-12; draft 7 for a text that names none, as in Confluent's registry.

jsonschema-rs checks payloads. What bounds it: nothing is fetched (``Documents``); the schemas that may apply to one
value are counted (``payload_work``); a pattern is compiled to at most ``MAX_PATTERN_BYTES``, runs in linear time, and
one with lookaround or back-references gives up after ``MAX_BACKTRACKS`` steps, which counts as no match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from mqspark.base.jsonvalues import decode_json
from mqspark.errors import InvalidSchema
from mqspark.schemas.jsonschema.jsoncompat import JsonComparison
from mqspark.schemas.jsonschema.jsonprices import pattern_options
from mqspark.schemas.jsonschema.jsonreferences import Documents
from mqspark.schemas.jsonschema.jsonshortcut import lines_of
from mqspark.schemas.jsonschema.jsonwork import MAX_PAYLOAD_DEPTH, PayloadWork, payload_work
from mqspark.schemas.jsontexts import compact, json_document, levels_of
from mqspark.schemas.parsedschema import (
    JSON,
    TOO_MUCH_TOGETHER,
    Check,
    Effort,
    Flaw,
    Needed,
    Schema,
    needs_extra,
)

if TYPE_CHECKING:
    from mqspark.schemas.jsonschema.jsonalike import Alike

MAX_WORK = 20_000_000
"""Values of a payload, times the schemas that one is compared with, each of ``UNIT_NS``: half a second."""
_BYTES_OF_WORK = 16
_ALIKE_BYTES = 2
"""Each number that is like others costs a unit for so many bytes of its payload."""
_SHORT_LIST = 15
_COMPARED = 32
"""Two numbers that are not whole ones of 64 bits."""
_MAX_ALIKE_BYTES = 4_096
"""A payload of so many bytes is not looked at for the numbers of lists."""
_EXACT = 1 << 53
"""Whole numbers beyond it share their nearest float with others."""
_MAX_EXPLAINED = 32_000_000
"""Bytes that the errors of all branches together may take, or about."""
_ERROR_BYTES = 500
_SHOWN = 200


class JsonSchema(Schema):
    kind = JSON

    def __init__(self, text: str, needed: Needed = ()) -> None:
        super().__init__(text, needed)
        self.document: Any = json_document(text, JSON)
        if not isinstance(self.document, dict | bool):
            raise InvalidSchema("a schema is an object, true or false", kind=JSON)
        others = {
            name: each.document for name, each in self.all_needed.items() if isinstance(each, JsonSchema)
        }
        self.documents = Documents(self.document, others)
        work = payload_work(self.document, self.documents)
        self._check, self._batch_check = _payload_checks(self._validator(), work)
        self._lines = lines_of(self.document, self.documents)
        self._alike: Alike | None = None

    @cached_property
    def canonical(self) -> str:
        return compact(self.document)

    @cached_property
    def normalized(self) -> str:
        return compact(self.document, sort=True)

    def check(self, indexes: Sequence[int] = ()) -> Check:
        if indexes:
            raise InvalidSchema("a JSON schema has no indexes of messages", kind=JSON)
        return self._check

    def batch_check(self, effort: Effort, indexes: Sequence[int] = ()) -> Check:
        self.check(indexes)
        return self._batch_check(effort)

    def fits_all(self, bodies: Sequence[bytes | memoryview], head: bytes) -> bool:
        if self._alike is None:
            from mqspark.schemas.jsonschema.jsonalike import Alike  # NumPy, which a client may not have

            self._alike = Alike(self.document, self._check)
        return self._alike.take(bodies, head) or (self._lines is not None and self._lines.take(bodies, head))

    def incompatibilities_of(self, writer: Schema, me: str, other: str) -> list[tuple[str, str, str]]:
        if not isinstance(writer, JsonSchema):
            raise TypeError(f"{writer} is no JSON schema")
        comparison = JsonComparison(self.documents, writer.documents, me, other)
        return comparison.problems(self.document, writer.document)

    def _validator(self) -> Any:
        """Raises InvalidSchema, and ConfigError without the extra."""
        try:
            import jsonschema_rs
        except ImportError as error:
            raise needs_extra(JSON, error) from None
        named = isinstance(self.document, dict) and "$schema" in self.document
        make = jsonschema_rs.validator_for if named else jsonschema_rs.Draft7Validator
        try:
            return make(self.document, pattern_options=pattern_options(), retriever=self.documents.document)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            where = "".join(f"/{step}" for step in getattr(error, "instance_path", ()))
            problem = getattr(error, "message", None) or str(error)
            raise InvalidSchema(_shortened(problem), kind=JSON, where=where[:_SHOWN]) from None


def _payload_checks(validator: Any, work: PayloadWork) -> tuple[Check, Callable[[Effort], Check]]:
    """The check of single payloads, and what makes one for the payloads of a batch."""
    is_valid = validator.is_valid
    small = MAX_WORK // work.at_one_value
    shallow = 2 * work.depth if work.depth < MAX_PAYLOAD_DEPTH else MAX_WORK
    """A payload of so many bytes is not too deep."""
    unseen = min(small, shallow, int(MAX_WORK / max(1, work.prices.most)))
    """One of so many bytes is not looked at before it is checked."""
    if work.unique:
        unseen = min(unseen, _MAX_ALIKE_BYTES)
    cheap = max(1, min(small, int(MAX_WORK / max(1, work.prices.most))))
    """Payloads of so many bytes together take no longer than one may."""

    def check(payload: bytes | memoryview, effort: Effort | None = None) -> Flaw | None:
        if effort is not None and effort.left < 0:
            return Flaw("", TOO_MUCH_TOGETHER)
        try:
            value = decode_json(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Flaw("", f"the payload is no JSON: {error}")
        except RecursionError:
            return _too_deep(work.depth)
        size = len(payload)
        if size > unseen and (flaw := _too_much(value, size, work)) is not None:
            return flaw
        if effort is not None:
            effort.unseen -= size / cheap
            if effort.unseen < 0:
                effort.left -= _cost(value, size, work) / MAX_WORK
                if effort.left < 0:
                    return Flaw("", TOO_MUCH_TOGETHER)
        try:
            return None if is_valid(value) else _first_flaw(validator, value, size, work)
        except ValueError as error:  # it goes down some 250 values
            return Flaw("", f"the payload cannot be checked: {error}")

    def of_batch(effort: Effort) -> Check:
        return lambda payload: check(payload, effort)

    return check, of_batch


def _cost(value: Any, size: int, work: PayloadWork) -> float:
    count = sum(map(len, levels_of(value)))
    comparing = _comparing(value, size) * work.unique if work.unique else 0
    return size + count * work.at_one_value + work.prices.of(value, MAX_WORK) + comparing


def _first_flaw(validator: Any, value: Any, size: int, work: PayloadWork) -> Flaw:
    """What the validator says first. That no branch fits it says with all errors of all branches, each with its value:
    of a large payload this is not asked."""
    import jsonschema_rs

    if work.explains_branches and not _is_explained(value, size, work):
        return Flaw("", f"the payload does not fit; where, of {size} bytes, is not looked for")
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        path = list(error.instance_path)
        field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        return Flaw(field.removeprefix(".")[:_SHOWN], _shortened(error.message))
    return Flaw("", "the payload does not fit")


def _is_explained(value: Any, size: int, work: PayloadWork) -> bool:
    left = _MAX_EXPLAINED // work.at_one_value
    if size > left:
        return False
    for level in levels_of(value):
        left -= size + _ERROR_BYTES * len(level)
        if left < 0:
            return False
    return True


def _shortened(message: str) -> str:
    """With both ends: the value comes first, what is wrong with it last."""
    half = _SHOWN // 2
    return message if len(message) <= _SHOWN else f"{message[:half]}...{message[-half:]}"


def _too_deep(limit: int) -> Flaw:
    return Flaw(
        "", f"more than {limit} values are inside each other, the most that this schema allows to check"
    )


def _too_much(value: Any, size: int, work: PayloadWork) -> Flaw | None:
    """Counts the values level by level."""
    count = 0
    most = MAX_WORK // work.at_one_value - size // _BYTES_OF_WORK
    for depth, level in enumerate(levels_of(value), 1):
        count += len(level)
        if count > most:
            schemas = f"a schema that compares one value with up to {work.at_one_value} schemas"
            return Flaw("", f"{size} bytes are too many for {schemas}")
        if depth > work.depth:
            return _too_deep(work.depth)
    if work.prices.of(value, MAX_WORK) > MAX_WORK:
        return Flaw("", f"its {size} bytes have too much for the patterns and the multiples of the schema")
    if work.unique and _comparing(value, size) * work.unique > MAX_WORK:
        return Flaw("", f"its {size} bytes have too many numbers for uniqueItems")
    return None


def _comparing(payload: Any, size: int) -> float:
    """What it costs to compare the items of all lists with each other, besides what is counted for each value.

    The validator compares the items of a short list each with each; of a longer one those whose numbers have the same
    nearest floats, with all that is in them."""
    alike = dict[float, set[int]]()
    times = 0.0
    waiting: list[tuple[Any, float]] = [(payload, 0)]
    while waiting:
        value, around = waiting.pop()
        if isinstance(value, list):
            count = len(value)
            more = (count - 1) / 2 if 1 < count <= _SHORT_LIST else 0
            waiting += [(each, around + more) for each in value]
        elif isinstance(value, dict):
            waiting += [(each, around) for each in value.values()]
        elif isinstance(value, float):
            times += around
        elif isinstance(value, int) and abs(value) > _EXACT:
            times += around
            try:
                nearest = float(value)
            except OverflowError:
                nearest = math.inf
            alike.setdefault(nearest, set()).add(value)
    most_alike = max(map(len, alike.values()), default=0)
    return _COMPARED * times + size * most_alike / _ALIKE_BYTES
