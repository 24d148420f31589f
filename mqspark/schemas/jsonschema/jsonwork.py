"""How much work a JSON Schema can make of a payload, found before the first one comes.

One value may be compared with many schemas: ``allOf`` of two references, each to an ``allOf`` of two, is a million
comparisons after twenty steps, and a schema inside itself twice doubles them with each level of the payload. So the
schemas that may apply to one value are counted, level by level. Too many at all: the schema is refused. Too many from
some depth on: deeper payloads are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.jsonschema.jsonreferences import ANYTHING, Documents
from mqspark.schemas.parsedschema import JSON

MAX_AT_ONE_VALUE = 1_000
"""Schemas, patterns and such that one value of a payload may be compared with."""
MAX_PAYLOAD_DEPTH = 1_000
"""The depth of any payload: the decoder goes no deeper."""
MAX_CHAIN = 300
"""Schemas inside each other, by their place or by reference; the validator goes down by a call of its own each."""
_MAX_STACK = 20_000
"""Calls inside each other that a payload may cause."""
_MAX_STEPS = 500_000
_PATTERN = 10
_SEARCHING_PATTERN = 100
"""One with lookaround or back-references, which may go back ``MAX_BACKTRACKS`` times."""
_META_SCHEMA = 100
"""One of JSON Schema's own, applied to a value; its parts are applied to the values inside."""
_LISTED = 16
"""So many items of a list are compared in the time of one schema."""

_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME = ("not", "if", "then", "else")
_SAME_MAPS = ("dependentSchemas", "dependencies")
_CHILD = (
    "additionalProperties", "unevaluatedProperties", "propertyNames", "contains", "additionalItems",
    "unevaluatedItems", "items",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PayloadWork:
    at_one_value: int
    depth: int
    """Payloads with more values inside each other are refused."""


@dataclass(slots=True)
class _Applied:
    """What a schema applies, as numbers of schemas."""

    own: int
    same: list[int]
    """To the same value."""
    together: list[int]
    """To each value inside it."""
    one_of: list[int]
    """To the value of one property or item each."""


def payload_work(root: Any, documents: Documents) -> PayloadWork:
    """Raises SchemaTooLarge, InvalidSchema."""
    applied = _Numbered(documents).of(root)
    order = _inner_first(applied)
    chain = _longest_chain(applied)
    level = _same_value(applied, order, [each.own for each in applied])
    at_one = level[0]
    depth = 0
    deepest = min(MAX_PAYLOAD_DEPTH, max(2, _MAX_STACK // chain), max(2, _MAX_STEPS // len(applied)))
    while at_one <= MAX_AT_ONE_VALUE and depth < deepest:
        inside = [
            sum(level[n] for n in each.together) + max((level[n] for n in each.one_of), default=0)
            for each in applied
        ]
        depth += 1
        last, level = level, _same_value(applied, order, inside)
        if level == last or not any(level):
            depth = deepest
            break
        if level[0] > MAX_AT_ONE_VALUE:
            break
        at_one = max(at_one, level[0])
    if at_one > MAX_AT_ONE_VALUE or depth < 2:
        raise SchemaTooLarge("schemas that one value is compared with", MAX_AT_ONE_VALUE, kind=JSON)
    return PayloadWork(at_one, depth)


class _Numbered:
    """Gives each schema a number, the root 0."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._numbers = dict[int, int]()
        self._nodes: list[Any] = []
        self._yes: dict[str, Any] = {}

    def of(self, root: Any) -> list[_Applied]:
        self._number(root)
        made = list[_Applied]()
        while len(made) < len(self._nodes):
            made.append(self._applied(self._nodes[len(made)]))
        return made

    def _number(self, node: Any) -> int:
        if not isinstance(node, dict):
            node = self._yes  # true, false, or what no schema is, which the validator says
        number = self._numbers.setdefault(id(node), len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node)
        return number

    def _all(self, nodes: Iterable[Any]) -> list[int]:
        return [self._number(each) for each in nodes if isinstance(each, dict | bool)]

    def _applied(self, node: dict[str, Any]) -> _Applied:
        if node is ANYTHING:
            return _Applied(_META_SCHEMA, [], self._all([node]), [])
        same = self._all(self._documents.targets(node))
        for name in _SAME_LISTS:
            same += self._all(_listed(node.get(name)))
        same += self._all(node.get(name) for name in _SAME)
        for name in _SAME_MAPS:
            same += self._all(_mapped(node.get(name)))
        patterns = _mapping(node.get("patternProperties"))
        together = self._all([*(node.get(name) for name in _CHILD), *patterns.values()])
        one_of = self._all(_mapped(node.get("properties")))
        one_of += self._all([*_listed(node.get("items")), *_listed(node.get("prefixItems"))])
        own = 1 + sum(map(_weight, patterns)) + _weight(node.get("pattern"))
        own += sum(len(each) for each in node.values() if isinstance(each, list)) // _LISTED
        return _Applied(own, same, together, one_of)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mapped(value: Any) -> Iterable[Any]:
    return _mapping(value).values()


def _weight(pattern: Any) -> int:
    if not isinstance(pattern, str):
        return 0
    searching = "(?" in pattern or any(f"\\{digit}" in pattern for digit in "123456789k")
    return _SEARCHING_PATTERN if searching else _PATTERN


def _same_value(applied: list[_Applied], order: list[int], level: list[int]) -> list[int]:
    """With what applies to the same value. Numbers beyond the limit do not grow."""
    total = list(level)
    for number in order:
        found = total[number] + sum(total[each] for each in applied[number].same)
        total[number] = min(found, MAX_AT_ONE_VALUE + 1)
    return total


def _inner_first(applied: list[_Applied]) -> list[int]:
    """Every schema behind those that it applies to the same value. Raises InvalidSchema for a circle of these."""
    order, state = list[int](), [0] * len(applied)
    for start in range(len(applied)):
        waiting = [start]
        while waiting:
            number = waiting[-1]
            if state[number] == 2:
                waiting.pop()
            elif state[number] == 1:
                state[number] = 2
                order.append(waiting.pop())
            else:
                state[number] = 1
                for each in applied[number].same:
                    if state[each] == 1:
                        raise InvalidSchema(
                            "a schema applies itself to the same value, by its references", kind=JSON
                        )
                    if state[each] == 0:
                        waiting.append(each)
    return order


def _longest_chain(applied: list[_Applied]) -> int:
    """Schemas inside each other, a recursive one counted once. Raises SchemaTooLarge."""
    length, state = [1] * len(applied), [0] * len(applied)
    waiting = [0]
    while waiting:
        number = waiting[-1]
        each = applied[number]
        inner = each.same + each.together + each.one_of
        if state[number] == 0:
            state[number] = 1
            waiting += [other for other in inner if state[other] == 0]
            continue
        waiting.pop()
        if state[number] == 1:
            state[number] = 2
            length[number] = 1 + max((length[other] for other in inner if state[other] == 2), default=0)
    if length[0] > MAX_CHAIN:
        raise SchemaTooLarge("schemas inside each other", MAX_CHAIN, kind=JSON)
    return length[0]
