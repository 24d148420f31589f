"""What the texts and numbers of a payload cost that a JSON Schema compares with patterns and steps.

A pattern of some letters may take microseconds for each byte of a text: one that counts (``[ab]*a[ab]{900}``) has more
states than the engine's table holds, and one that looks around is begun again at up to ``MAX_BACKTRACKS`` places. A
step (``multipleOf``) takes microseconds for a number that is far from it, and so do numbers that are compared, unless
both are whole and of 64 bits. So a schema has prices, by the name of the property that a value is under, and a large
payload is added up: a long text beside a dear pattern costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.jsontexts import levels_of
from mqspark.schemas.parsedschema import JSON, needs_extra

MAX_PATTERN_BYTES = 256 << 10
"""The most of a compiled pattern."""
MAX_COMPILED_BYTES = 8 << 20
"""Those of a schema together, or about. They are compiled in one go, by which nothing else runs: some 60 ms."""
MAX_BACKTRACKS = 1_000
UNIT_NS = 25
"""A price of one; a value compared with one schema."""

_PRICES = ((1 << 10, 2), (4 << 10, 16), (16 << 10, 40), (64 << 10, 160), (MAX_PATTERN_BYTES, 500))
"""Bytes of a compiled pattern, and what a byte of a text then costs at most; measured with patterns that count."""
_SEARCH = 200
"""A byte of a text that a small pattern with lookaround is begun again in ``MAX_BACKTRACKS`` times."""
_STEP = 40
_FAR_STEP = 450
"""With a float of the other end of their range."""
_ODD_BOUND = 20
_ODD_EQUAL = 32
"""A number is compared with one that is no whole one of 64 bits, or the other way round."""
_WHOLE_BOUND = 4
_FREE_ODD = 20
"""Some limits are compared with in less time than it takes to add up what they cost."""
_FAR_ODD = 8
_DIGITS_OF_UNIT = 500
"""A long integer costs the square of its digits, divided by this."""
_LONG_LIST = 16
_NEAR = 1 << 64
_WHOLE = 1 << 63
_BOUNDS = ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum")
_MAX_PLACES = 100_000
"""Schemas times the names that they are under; with more of them, no names are told apart."""


class Under(Enum):
    """What a value is under when it is not under the one name of a property."""

    ANY_NAME = auto()
    AS_BEFORE = auto()
    """What the value around is under: items of a list."""
    IS_NAME = auto()
    """The value is a name itself."""


Inner = Sequence[Sequence[tuple[int, str | Under]]]
"""For each schema those that it applies, each with what the value is then under."""


def pattern_options() -> Any:
    """How patterns of peers are compiled. Raises ConfigError without the extra."""
    return _options(MAX_PATTERN_BYTES)


def _options(size: int) -> Any:
    try:
        import jsonschema_rs
    except ImportError as error:
        raise needs_extra(JSON, error) from None
    return jsonschema_rs.FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS, size_limit=size)


def compiled(pattern: str, size: int = MAX_PATTERN_BYTES) -> Any:
    """A validator with this pattern alone. Raises InvalidSchema, ConfigError."""
    options = _options(size)
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft7Validator({"pattern": pattern}, pattern_options=options)
    except ValueError:
        raise InvalidSchema(f"the pattern {pattern[:80]!r} cannot be used", kind=JSON) from None


class Costly(NamedTuple):
    """What a schema itself compares one value or its names with, or all that are applied to one value do."""

    patterns: int
    searching: int
    """Patterns with lookaround or back-references."""
    numbers: int
    """For any number."""
    odd_numbers: int
    """For one that is no whole one of 64 bits, besides."""


ONCE = Costly(1, 1, 0, 0)


def costly(node: dict[str, Any]) -> Costly:
    searching = [is_searching(pattern) for _, pattern in _patterns(node)]
    step = node.get("multipleOf")
    bounds: list[Any] = [each for each in map(node.get, _BOUNDS) if _is_number(each)]
    are_odd = [any(map(is_odd, found)) for each in _equals(node) if (found := _numbers(each))]
    numbers = (_FAR_STEP if _is_far(step) else _STEP) if _is_number(step) else 0
    for each in bounds:
        numbers += _FAR_STEP if _is_far(each) else _ODD_BOUND if is_odd(each) else 0
    return Costly(
        searching.count(False),
        searching.count(True),
        numbers + _ODD_EQUAL * are_odd.count(True),
        _WHOLE_BOUND * len(bounds) + _ODD_EQUAL * are_odd.count(False),
    )


def _equals(node: dict[str, Any]) -> list[Any]:
    """What a value is compared with as a whole."""
    options = node.get("enum")
    return [*(options if isinstance(options, list) else ()), node.get("const")]


def _numbers(value: Any) -> list[float]:
    return [each for level in levels_of(value) for each in level if _is_number(each)]


def is_odd(number: float) -> bool:
    return not (type(number) is int and -_WHOLE <= number < _WHOLE)


def is_searching(pattern: str) -> bool:
    return "(?" in pattern or any(f"\\{digit}" in pattern for digit in "123456789k")


def _patterns(node: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """Each with whether it is that of names in the value, instead of the value."""
    if isinstance(pattern := node.get("pattern"), str):
        yield False, pattern
    if isinstance(of_names := node.get("patternProperties"), dict):
        yield from ((True, each) for each in of_names)


@dataclass(frozen=True, slots=True)
class Price:
    """What is under one name costs so much. Each is for all that one value may be compared with."""

    byte: float = 0
    search: float = 0
    """A byte of a text, times the bytes of the text, up to ``MAX_BACKTRACKS``."""
    searches: float = 0
    number: float = 0
    odd: float = 0
    """A number that is no whole one of 64 bits, besides."""

    def or_more(self, other: Price) -> Price:
        return Price(
            max(self.byte, other.byte),
            max(self.search, other.search),
            max(self.searches, other.searches),
            max(self.number, other.number),
            max(self.odd, other.odd),
        )

    @property
    def most(self) -> float:
        """The most for a byte of a payload: the shortest number has two of them with its comma, an odd one four."""
        numbers = self.number * _FAR_STEP / _STEP / 2 + self.odd * _FAR_ODD / 4
        return self.byte + self.searches + MAX_BACKTRACKS * self.search + numbers

    def of_text(self, text: str) -> float:
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        return size * (self.byte + self.searches + min(size, MAX_BACKTRACKS) * self.search)

    def of_number(self, number: float) -> float:
        if not is_odd(number):
            return self.number
        if not _is_far(number):
            return self.number + self.odd
        odd = self.odd * _FAR_ODD
        if isinstance(number, int):
            return odd + self.number * (1 + (number.bit_length() // 3) ** 2 / _DIGITS_OF_UNIT)
        return odd + self.number * _FAR_STEP / _STEP

    def of_plain_numbers(self, values: list[Any]) -> tuple[list[Any], float]:
        """The values that are to be looked at one by one, and what the others cost. A payload may have two million
        numbers: to look at each takes longer than to compare it."""
        if len(values) < _LONG_LIST:
            return values, 0
        plain = [type(each) for each in values if _is_plain(each)]
        others = [] if len(plain) == len(values) else [each for each in values if not _is_plain(each)]
        return others, self.number * len(plain) + self.odd * plain.count(float)


_FREE = Price()


class Prices:
    """Those of one schema."""

    def __init__(self, found: dict[str | Under, Price]) -> None:
        self._any = found.get(Under.ANY_NAME, _FREE)
        self._name = found.get(Under.IS_NAME, _FREE)
        self._named: dict[str | Under | None, Price] = {
            name: price.or_more(self._any) for name, price in found.items()
        }
        self.most = max((each.most for each in found.values()), default=0.0)
        """The most for a byte of a payload."""

    def of(self, payload: Any, most: float) -> float:
        """What a decoded payload costs. What costs more than ``most`` is not added up to its end."""
        total = 0.0
        waiting: list[tuple[list[Any], Price]] = [([payload], self._any)] if self.most else []
        while waiting and total <= most:
            values, price = waiting.pop()
            others, cost = price.of_plain_numbers(values)
            total += cost
            items = list[Any]()
            inside = defaultdict[str | None, list[Any]](list)
            """Values by their names; None: of names that have no price of their own."""
            for value in others:
                if isinstance(value, str):
                    total += price.of_text(value)
                elif isinstance(value, dict):
                    for name, each in value.items():
                        total += self._name.of_text(name)
                        inside[name if name in self._named else None].append(each)
                elif isinstance(value, list):
                    items += value
                elif isinstance(value, int | float):
                    total += price.of_number(value)
            waiting += [(each, self._named.get(name, self._any)) for name, each in inside.items()]
            if items:
                waiting.append((items, price))
        return total


def prices_of(nodes: Sequence[dict[str, Any]], inner: Inner, most: Costly) -> Prices:
    """``most``: what one value is compared with at most. The first of ``nodes`` is the root. Raises SchemaTooLarge."""
    known = dict[str, Price]()
    _check_patterns(nodes)
    own = [_own_prices(node, most, known) for node in nodes]
    found = dict[str | Under, Price]()
    if any(own):
        for number, name in _places(inner):
            for other, price in own[number]:
                under = other or name
                found[under] = found.get(under, _FREE).or_more(price)
    return Prices(found)


def _places(inner: Inner) -> set[tuple[int, str | Under]]:
    """Each schema with all that its values may be under."""
    start: tuple[int, str | Under] = (0, Under.ANY_NAME)
    found, waiting = {start}, [start]
    while waiting:
        number, name = waiting.pop()
        for other, under in inner[number]:
            place = other, name if under is Under.AS_BEFORE else under
            if place not in found:
                found.add(place)
                waiting.append(place)
        if len(found) > _MAX_PLACES:
            return {(each, under) for each in range(len(inner)) for under in (Under.ANY_NAME, Under.IS_NAME)}
    return found


def _check_patterns(nodes: Sequence[dict[str, Any]]) -> None:
    sizes = dict[str, int]()
    total = 0
    for node in nodes:
        for _, pattern in _patterns(node):
            if pattern not in sizes:
                sizes[pattern] = _size_and_price(pattern)[0]
            total += sizes[pattern]
            if total > MAX_COMPILED_BYTES:
                raise SchemaTooLarge("bytes of compiled patterns", MAX_COMPILED_BYTES, kind=JSON)


def _own_prices(
    node: dict[str, Any], most: Costly, known: dict[str, Price]
) -> list[tuple[Under | None, Price]]:
    """Each with what it is for: None: the value itself, which is under any of its names."""
    found = list[tuple[Under | None, Price]]()
    for is_name, pattern in _patterns(node):
        if pattern not in known:
            known[pattern] = text_price(pattern, most)
        found.append((Under.IS_NAME if is_name else None, known[pattern]))
    own = costly(node)
    odd = max(0, most.odd_numbers - _FREE_ODD) if own.odd_numbers else 0
    if own.numbers or odd:
        is_inside = any(isinstance(each, list | dict) for each in _equals(node))
        price = Price(number=most.numbers, odd=odd)
        found.append((Under.ANY_NAME if is_inside else None, price))
    return found


def text_price(pattern: str, most: Costly = ONCE) -> Price:
    """``most``: with how many such ones a text may be compared."""
    _, price = _size_and_price(pattern)
    if is_searching(pattern):
        more = price - _PRICES[0][1]  # than a small one, which _SEARCH is for
        return Price(search=more * most.searching, searches=_SEARCH * most.searching)
    return Price(byte=price * most.patterns)


def _size_and_price(pattern: str) -> tuple[int, int]:
    """The most bytes that it is compiled to, and the price for a byte of a text that it goes over once. Of patterns of
    one size the prices are the same."""
    for size, price in _PRICES[:-1]:
        try:
            compiled(pattern, size)
        except InvalidSchema:
            continue
        return size, price
    return _PRICES[-1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    """Whether it is a number that costs as much as any other of its type."""
    if type(value) is int:
        return -_WHOLE <= value < _WHOLE
    return type(value) is float and not _is_far(value)


def _is_far(value: Any) -> bool:
    return _is_number(value) and value != 0 and not 1 / _NEAR < abs(value) < _NEAR
