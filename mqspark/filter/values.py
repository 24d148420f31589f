"""The values of SQL92 filters: Java's types, their parsing and their order (ComparisonExpression).

A property is text or missing. The other operand of a comparison determines how the text is parsed, without
conversion: ``c > 3`` fails for the text ``3.14``.

    in Java   null   Boolean   Integer   Long   Double   String
    here      None   bool      int       Long   float    str

Facts: docs/rocketmq/filter.md#evaluation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from mqspark.errors import FilterFailed


class Long(int):
    """An integer that is a 64-bit Long in Java: a literal beyond 32 bits."""

    __slots__ = ()


Value = bool | int | float | str | None

INT_BITS, LONG_BITS = 32, 64

_INTEGER = re.compile(r"[+-]?\d+")
_LONGEST_INTEGER = 19  # digits of 2**63
_SHORT_INTEGER = 9  # digits that always fit

# Possessive: a property of many digits that is no number after all would be tried with every split of its digits.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]++\.?+[0-9a-fA-F]*+|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf}
_JAVA_BLANKS = "".join(map(chr, range(0x21)))


def parse_integer(text: str, bits: int) -> int:
    """Java's Integer.parseInt or Long.parseLong. Raises FilterFailed."""
    if len(text) <= _SHORT_INTEGER and text.isascii() and text.isdigit():
        return int(text)
    if _INTEGER.fullmatch(text) is not None and (text.isascii() or max(text) <= "\uffff"):
        if len(text) > _LONGEST_INTEGER:
            # Longer than any number unless it has leading zeros. int() is slow for long texts.
            sign = text[0] if text[0] in "+-" else ""
            digits = text[len(sign) :]
            text = sign + digits[:-_LONGEST_INTEGER].lstrip("0") + digits[-_LONGEST_INTEGER:]
        if len(text) <= _LONGEST_INTEGER + 1:
            number = int(text)
            if -(1 << (bits - 1)) <= number < 1 << (bits - 1):
                return number
    raise FilterFailed(f"{_shown(text)} is not an integer of {bits} bits")


def parse_double(text: str) -> float:
    """Java's Double.parseDouble. Raises FilterFailed."""
    trimmed = text.strip(_JAVA_BLANKS)
    number = trimmed[:-1] if trimmed[-1:] in ("d", "D", "f", "F") else trimmed
    if _DECIMAL.fullmatch(number) is not None:
        return float(number)
    if _HEXADECIMAL.fullmatch(number) is not None:
        try:
            return float.fromhex(number)
        except OverflowError:
            return -math.inf if number.startswith("-") else math.inf
    unsigned = trimmed[1:] if trimmed[:1] in ("+", "-") else trimmed
    if unsigned in _NOT_FINITE:
        return math.copysign(_NOT_FINITE[unsigned], -1 if trimmed.startswith("-") else 1)
    raise FilterFailed(f"{_shown(text)} is not a number")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def negate(value: Value) -> Value:
    """The negated number; NULL for anything else. A literal is never the smallest integer, so nothing
    overflows."""
    if isinstance(value, Long):
        return Long(-value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return -value
    return None


# --- order --------------------------------------------------------------------------------------------------


def _plain(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _doubles(left: float, right: float) -> int:
    """Double.compareTo: -0.0 comes before 0.0, and NaN equals itself and comes last."""
    if left != right and left == left and right == right:
        return -1 if left < right else 1
    return _plain(_rank(left), _rank(right))


def _rank(number: float) -> tuple[bool, float, float]:
    if number != number:
        return True, 0.0, 0.0
    return False, number, math.copysign(1.0, number)


def _converted(
    by: Callable[[Any, Any], int], left: Callable[[Any], Any] | None, right: Callable[[Any], Any] | None
) -> Callable[[Any, Any], int]:
    if left is not None:
        return lambda a, b: by(left(a), b)
    if right is not None:
        return lambda a, b: by(a, right(b))
    return by


def _to_int(text: str) -> int:
    return parse_integer(text, INT_BITS)


def _to_long(text: str) -> int:
    return parse_integer(text, LONG_BITS)


def _to_bool(text: str) -> bool:
    return text.lower() == "true"


def _no_cast(left: bool, right: str) -> int:
    # RocketMQ casts the wrong operand here (ComparisonExpression.__compare), which always fails.
    raise FilterFailed(f"{left} on the left cannot be compared with the text {_shown(right)}")


_ORDERS: dict[tuple[type, type], Callable[[Any, Any], int]] = {
    (bool, bool): _plain,
    (bool, str): _no_cast,
    (str, bool): _converted(_plain, _to_bool, None),
    (str, str): _plain,
    (int, int): _plain,
    (int, Long): _plain,
    (Long, int): _plain,
    (Long, Long): _plain,
    (float, float): _doubles,
    (int, float): _converted(_doubles, float, None),
    (Long, float): _converted(_doubles, float, None),
    (float, int): _converted(_doubles, None, float),
    (float, Long): _converted(_doubles, None, float),
    (str, int): _converted(_plain, _to_int, None),
    (int, str): _converted(_plain, None, _to_int),
    (str, Long): _converted(_plain, _to_long, None),
    (Long, str): _converted(_plain, None, _to_long),
    (str, float): _converted(_doubles, parse_double, None),
    (float, str): _converted(_doubles, None, parse_double),
}
"""A truth value and a number have no order; they are unequal."""


def equal(left: Value, right: Value) -> bool | None:
    """``left = right``. NULL on the left gives NULL; NULL on the right alone gives FALSE. Raises
    FilterFailed."""
    if left is None or right is None:
        if left is right:
            return True
        return None if left is None else False
    kinds = type(left), type(right)
    if kinds == (str, str):
        return left == right
    by = _ORDERS.get(kinds)
    return by is not None and by(left, right) == 0


def order(left: Any, right: Any) -> int:
    """Negative, 0 or positive as ``left`` is less than, equal to or greater than ``right``. Neither is NULL
    or a truth value. Two texts are compared as doubles. Raises FilterFailed."""
    kinds = type(left), type(right)
    if kinds == (str, str):
        return _doubles(parse_double(left), parse_double(right))
    return _ORDERS[kinds](left, right)
