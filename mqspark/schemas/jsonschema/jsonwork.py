"""How much work a JSON Schema can make of a payload, found before the first one comes.

One value may be compared with many schemas: ``allOf`` of two references, each to an ``allOf`` of two, is a million
comparisons after twenty steps, and a schema inside itself twice doubles them with each level of the payload. So the
schemas that may apply to one value are counted, level by level. Too many at all: the schema is refused. Too many from
some depth on: deeper payloads are refused. ``unevaluatedProperties`` and ``unevaluatedItems`` ask all that applies to
the same value once more, and what is asked asks again: inside each other they double it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.jsonschema.jsonprices import Costly, Prices, Under, costly, prices_of
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
_NO_LIMIT = 1 << 40
_PATTERN = 10
_SEARCHING_PATTERN = 100
"""One with lookaround or back-references, which may go back ``MAX_BACKTRACKS`` times."""
_META_SCHEMA = 100
"""One of JSON Schema's own, applied to a value; its parts are applied to the values inside."""
_LISTED = 16
"""So many items of a list are compared in the time of one schema."""
_MIXED = 4
"""So many texts among values of other types are."""
_DEPENDENCIES = 4
"""So many names are looked for in that time."""
_UNIQUE = 30
"""So many schemas are compared in the time of an item with the others of a list that is too short to be sorted."""

_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME = ("not", "if", "then", "else")
_SAME_MAPS = ("dependentSchemas", "dependencies")
_ITEMS = ("contains", "additionalItems", "unevaluatedItems", "items")
_UNEVALUATED = "unevaluatedProperties", "unevaluatedItems"
_OTHER_PROPERTIES = ("additionalProperties", _UNEVALUATED[0])
_DEPENDENT = ("dependentRequired", "dependencies")
_BRANCHES = ("anyOf", "oneOf")


@dataclass(frozen=True, slots=True)
class PayloadWork:
    at_one_value: int
    depth: int
    """Payloads with more values inside each other are refused."""
    prices: Prices
    explains_branches: bool
    """Whether the validator's first error may have many others in it: those of all branches of an ``anyOf``."""
    unique: int
    """How often the items of one list are compared with each other at most."""


@dataclass(slots=True)
class _Applied:
    """What a schema applies, as numbers of schemas."""

    own: int
    costly: Costly
    """What of these is costly."""
    same: list[int]
    """To the same value."""
    together: list[int]
    """To each value inside it."""
    one_of: list[int]
    """To the value of one property or item each."""
    inner: list[tuple[int, str | Under]]
    """All of these, as ``jsonprices.Inner`` has them."""
    asks_again: bool = False
    """Whether it asks what it applies to the same value once more."""


def payload_work(root: Any, documents: Documents) -> PayloadWork:
    """Raises SchemaTooLarge, InvalidSchema, ConfigError."""
    numbered = _NumberedWork(documents)
    applied = numbered.of(root)
    order = _inner_first(applied)
    chain = _longest_chain(applied)
    deepest = min(MAX_PAYLOAD_DEPTH, max(2, _MAX_STACK // chain), max(2, _MAX_STEPS // len(applied)))
    at_one = depth = 0
    for count in _at_depths(applied, order, [each.own for each in applied], deepest, MAX_AT_ONE_VALUE + 1):
        if count > MAX_AT_ONE_VALUE:
            break
        at_one = max(at_one, count)
        depth += 1
    else:
        depth = deepest
    if depth < 2:
        raise SchemaTooLarge(
            "schemas, patterns and values that one value is compared with", MAX_AT_ONE_VALUE, kind=JSON
        )
    nodes = numbered.nodes

    def most_at_one(own: Sequence[int]) -> int:
        if not any(own):
            return 0
        return max(_at_depths(applied, order, own, depth, _NO_LIMIT))

    most = Costly(*map(most_at_one, zip(*(each.costly for each in applied), strict=True)))
    return PayloadWork(
        at_one,
        depth,
        prices_of(nodes, [each.inner for each in applied], most),
        explains_branches=any(node is ANYTHING or any(each in node for each in _BRANCHES) for node in nodes),
        unique=most_at_one([_is_unique(node) for node in nodes]),
    )


def _at_depths(
    applied: list[_Applied], order: list[int], own: Sequence[int], deepest: int, most: int
) -> Iterator[int]:
    """The most that is applied to one value, by how deep it is: ``own`` of each schema that applies. It ends where
    nothing changes any more. Numbers above ``most`` do not grow."""
    level = _same_value(applied, order, own, most)
    yield level[0]
    for _ in range(deepest):
        inside = [
            sum(level[n] for n in each.together) + max((level[n] for n in each.one_of), default=0)
            for each in applied
        ]
        last, level = level, _same_value(applied, order, inside, most)
        if level == last or not any(level):
            return
        yield level[0]


class _NumberedWork:
    """Gives each schema a number, the root 0."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._numbers = dict[int, int]()
        self.nodes: list[dict[str, Any]] = []
        self._yes: dict[str, Any] = {}

    def of(self, root: Any) -> list[_Applied]:
        self._number(root)
        made = list[_Applied]()
        while len(made) < len(self.nodes):
            made.append(self._applied(self.nodes[len(made)]))
        return made

    def _number(self, node: Any) -> int:
        if not isinstance(node, dict):
            node = self._yes  # true, false, or what no schema is, which the validator says
        number = self._numbers.setdefault(id(node), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number

    def _all(self, nodes: Iterable[Any]) -> list[int]:
        return [self._number(each) for each in nodes if isinstance(each, dict | bool)]

    def _applied(self, node: dict[str, Any]) -> _Applied:
        if node is ANYTHING:
            inside = self._all([node])
            return _Applied(
                _META_SCHEMA, costly({}), [], inside, [], [(each, Under.ANY_NAME) for each in inside]
            )
        same = self._all(self._documents.targets(node))
        for name in _SAME_LISTS:
            same += self._all(_listed(node.get(name)))
        same += self._all(node.get(name) for name in _SAME)
        for name in _SAME_MAPS:
            same += self._all(_mapping(node.get(name)).values())
        patterns = _mapping(node.get("patternProperties"))
        others = self._all([*(node.get(name) for name in _OTHER_PROPERTIES), *patterns.values()])
        names, items = self._all([node.get("propertyNames")]), self._all(map(node.get, _ITEMS))
        placed = self._all([*_listed(node.get("items")), *_listed(node.get("prefixItems"))])
        named = [
            (self._number(each), name)
            for name, each in _mapping(node.get("properties")).items()
            if isinstance(each, dict | bool)
        ]
        dear = costly(node)
        own = 1 + _PATTERN * dear.patterns + _SEARCHING_PATTERN * dear.searching + _compared(node)
        inner: list[tuple[int, str | Under]] = [(each, Under.AS_BEFORE) for each in (*same, *items, *placed)]
        inner += [(each, Under.ANY_NAME) for each in others] + [(each, Under.IS_NAME) for each in names]
        one_of = [number for number, _ in named]
        return _Applied(
            own,
            dear,
            same,
            [*others, *names, *items],
            [*one_of, *placed],
            [*inner, *named],
            asks_again=any(each in node for each in _UNEVALUATED),
        )


def _compared(node: dict[str, Any]) -> int:
    """What a value is compared with besides schemas, counted as schemas."""
    count = sum(len(each) for each in node.values() if isinstance(each, list)) // _LISTED
    # As much as the value has may be the same in each of these, and is looked at.
    options = _listed(node.get("enum"))
    count += sum(isinstance(each, list | dict) for each in options)
    if len(set(map(type, options))) > 1:  # otherwise texts are looked up
        count += len(options) // _MIXED
    count += _UNIQUE * _is_unique(node)
    for of_names in map(_mapping, map(node.get, _DEPENDENT)):
        longest = max((len(each) for each in of_names.values() if isinstance(each, list)), default=0)
        count += longest + len(of_names) // _DEPENDENCIES
    return count


def _is_unique(node: dict[str, Any]) -> bool:
    return node is ANYTHING or node.get("uniqueItems") is True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _same_value(applied: list[_Applied], order: list[int], level: Sequence[int], most: int) -> list[int]:
    """With what applies to the same value."""
    total = list(level)
    again = list(level)
    """What it takes to ask each once more."""
    for number in order:
        each = applied[number]
        found = total[number] + sum(total[other] for other in each.same)
        again[number] = min(found + sum(again[other] for other in each.same), most)
        total[number] = min(found + each.asks_again * again[number], most)
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
