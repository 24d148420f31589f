"""SQL92 filters: every recorded answer of RocketMQ's parser, what it says about bad ones, and its bounds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mqspark.errors import FilterFailed, InvalidFilter
from mqspark.filter.sql import MAX_SQL_COST, MAX_SQL_DEPTH, MAX_SQL_LENGTH, compile_sql
from mqspark.filter.values import Long, order, parse_double, parse_integer
from mqspark.message import encode_properties

VECTORS = Path(__file__).parents[2] / "golden" / "vectors" / "sql92.jsonl"

PROPERTIES = {"a": "5", "b": "abc", "d": "5.5", "big": "3000000000", "t": "true", "e": "1e3"}


def recorded() -> list[tuple[str, dict[str, str], str, dict[str, object]]]:
    cases, properties = [], {}
    for number, line in enumerate(VECTORS.read_text("utf-8").splitlines()):
        vector = json.loads(line)
        if "properties" in vector:
            properties = vector["properties"]
        else:
            cases.append((f"{number}: {vector['sql']}"[:60], properties, vector["sql"], vector))
    return cases


@pytest.mark.parametrize(
    ("properties", "sql", "expected"),
    [case[1:] for case in recorded()],
    ids=[case[0] for case in recorded()],
)
def test_what_rocketmq_says(properties: dict[str, str], sql: str, expected: dict[str, object]) -> None:
    if "parseError" in expected:
        with pytest.raises(InvalidFilter):
            compile_sql(sql)
        return
    compiled = compile_sql(sql)
    if "evalError" in expected:
        with pytest.raises(FilterFailed):
            compiled.evaluate(properties)
    else:
        assert compiled.evaluate(properties) is expected["value"]
    assert compiled.matches(properties) is expected["match"]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("(a>3)=TRUE", True),
        ("a BETWEEN -1 AND 6", True),
        ("a=5 a=6", True),
        ("a = 5 ; ", None),  # never looked at: the first word behind the end is one
        ("zz NOT CONTAINS 'b'", False),
        ("b STARTSWITH ''", False),
        ("(big > 5) NOT CONTAINS ''", False),  # nothing to search for: the left side is not evaluated
        ("zz = (big > 5)", FilterFailed),  # both sides of = are evaluated
        ("zz > -(big > 5)", None),  # of > the right one only when the left is something
        ("d>5", FilterFailed),
        ("big>5", FilterFailed),
        ("big>5000000000", False),
        ("TRUE=t", FilterFailed),
        ("t=TRUE", True),
        ("a=TRUE", False),
        ("5=TRUE", False),
        ("-a = 5", None),
        ("-a IS NULL", True),
        ("+a = 5", True),
        ("+a", False),
        ("(a) IN ('5')", True),
        ("a = --5", True),
        ("a = --5\n5", True),
        ("a IS NULL > 3", False),
        ("(a IS NULL) IS NOT NULL", True),
        ("a/**/=/***/5/* * / **/", True),
        ("e = 1000.", True),
        ("9007199254740993 = 9007199254740992.0", True),
        ("a = d", False),
        ("a < d", True),
        ("a > b", FilterFailed),
        ("a NOT IN ('1', '2', '3', '4', '5')", False),
        ("a BETWEEN d AND 6", False),
        ("NOT NULL", None),
        ("NULL AND FALSE", False),
        ("NULL OR TRUE", True),
    ],
)
def test_values(sql: str, value: object) -> None:
    if sql == "a = 5 ; ":
        with pytest.raises(InvalidFilter):
            compile_sql(sql)
        assert compile_sql("a = 5 b ;").evaluate(PROPERTIES) is True
    elif value is FilterFailed:
        assert compile_sql(sql).matches(PROPERTIES) is False
        with pytest.raises(FilterFailed):
            compile_sql(sql).evaluate(PROPERTIES)
    else:
        assert compile_sql(sql).evaluate(PROPERTIES) is value


@pytest.mark.parametrize(
    ("sql", "problem", "position"),
    [
        (None, "an operand is missing", 0),
        ("a != 5", "'!' does not begin a token", 2),
        ("a = 5 NOT x", "NOT is not followed by an operator", 10),
        ("a > 'x'", "only numbers and properties have an order", 2),
        ("TRUE > 1", "only numbers and properties have an order", 5),
        ("a > 1 > 2", "only numbers and properties have an order", 6),
        ("a = NULL", "NULL cannot be compared; use IS NULL", 2),
        ("TRUE = 5", "a truth value cannot be compared", 5),
        ("5", "a value stands where a condition is needed", 1),
        ("NOT 5", "a value stands where a condition is needed", 0),
        ("-a", "a value stands where a condition is needed", 2),
        ("a BETWEEN 6 AND 1", "6 is greater than 1", 2),
        ("a BETWEEN NULL AND 1", "only numbers and properties have an order", 2),
        ("5 IN ('5')", "only a property can be looked for in a list", 2),
        ("a IN ('x',)", "a quoted text is missing", 10),
        ("(a IS NULL > 3)", "a closing parenthesis is missing", 11),
        ("(a = 0L)", "a closing parenthesis is missing", 6),
        ("a IS 5", "NULL is missing", 5),
        ("a BETWEEN 1", "AND is missing", 11),
        ("a = 0.0", "0.0 is beyond the smallest or largest number", 4),
        ("a = 1e400", "1e400 is beyond the smallest or largest number", 4),
        ("a = 9223372036854775808", "'9223372036854775808' is not an integer of 64 bits", 4),
        ("a = /* b", "'/' does not begin a token", 4),
    ],
)
def test_what_does_not_compile(sql: str | None, problem: str, position: int) -> None:
    for _ in range(2):  # the second one comes from memory
        with pytest.raises(InvalidFilter) as caught:
            compile_sql(sql)
        assert str(caught.value).startswith("Invalid MessageSelector. ")
        assert caught.value.problem.startswith(problem)
        assert caught.value.position == position
        assert caught.value.expression == (sql or "")


@pytest.mark.parametrize(
    "sql",
    [
        "(" * 5000,
        "NOT " * 4000,
        "-" * 16000,
        "a" + " IS NULL" * 1900,
        "a" + "=a" * 8000,
        " OR ".join(["a=1"] * 2000),
        "a = " + "9" * 16000,
        "a = '" + "x''" * 5000,
        "/*" + "*x" * 8000,
        "x" * (MAX_SQL_LENGTH + 1),
    ],
    ids=lambda sql: sql[:12],
)
def test_the_hostile_are_refused(sql: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        compile_sql(sql)
    assert len(str(caught.value)) < 200


def test_the_bounds_are_reached() -> None:
    deep = "(" * (MAX_SQL_DEPTH - 1) + "NOT a IS NULL" + ")" * (MAX_SQL_DEPTH - 1)
    assert compile_sql(deep).evaluate({}) is True
    with pytest.raises(InvalidFilter, match=f"nested more than {MAX_SQL_DEPTH} deep"):
        compile_sql(f"({deep})")
    wide = " OR ".join(["a=1"] * ((MAX_SQL_COST - 1) // 3))  # a chain of ORs counts as one
    compiled = compile_sql(wide)
    assert compiled.cost <= MAX_SQL_COST
    assert compiled.evaluate({"a": "1"}) is True
    with pytest.raises(InvalidFilter, match=f"more than {MAX_SQL_COST} operators and operands"):
        compile_sql(wide + " OR a=1")
    names = ",".join(f"'{number}'" for number in range(2000))
    assert compile_sql(f"a IN ({names})").matches({"a": "1999"})


def test_names_are_what_is_looked_up() -> None:
    compiled = compile_sql("a > 3 AND (TAGS = 'x' OR b NOT IN ('a'))")
    assert compiled.names == {"a", "TAGS", "b"}
    assert compile_sql("TRUE").names == frozenset()
    assert compile_sql("a > 3") is compile_sql("a > 3")


@pytest.mark.parametrize("count", [1, 20])
def test_encoded_properties(count: int) -> None:
    """Few names are searched for, many are decoded; the answer is the same."""
    properties = {f"p{number}": str(number) for number in range(count)} | {"größe": "中文"}
    encoded = encode_properties(properties)
    compiled = compile_sql(" AND ".join(f"p{number} = {number}" for number in range(count)))
    assert compiled.matches_encoded(encoded)
    assert not compiled.matches_encoded(encode_properties(properties | {"p0": "1"}))
    assert not compiled.matches_encoded(b"")


def test_properties_that_only_look_alike() -> None:
    compiled = compile_sql("a = 1")
    assert not compiled.matches_encoded(b"xa\x011\x02ba\x011\x02c\x01a\x011")
    assert compiled.matches_encoded(b"x\x01a\x02a\x011")


@pytest.mark.parametrize(
    ("text", "bits", "number"),
    [
        ("5", 32, 5),
        ("+5", 32, 5),
        ("-2147483648", 32, -(1 << 31)),
        ("2147483648", 32, None),
        ("2147483648", 64, 1 << 31),
        ("-9223372036854775808", 64, -(1 << 63)),
        ("9223372036854775808", 64, None),
        ("0" * 30_000 + "7", 32, 7),
        ("-" + "0" * 30_000 + "7", 32, -7),
        ("9" * 30_000, 64, None),
        ("\u0665", 32, 5),
        ("\U0001d7d3", 32, None),  # two chars in Java
        ("", 32, None),
        ("+", 32, None),
        (" 5", 32, None),
        ("1_0", 32, None),
        ("5.0", 32, None),
    ],
)
def test_integers_are_java_s(text: str, bits: int, number: int | None) -> None:
    if number is None:
        with pytest.raises(FilterFailed):
            parse_integer(text, bits)
    else:
        assert parse_integer(text, bits) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" 5.5\t", 5.5),
        ("5.", 5.0),
        (".5f", 0.5),
        ("1D", 1.0),
        ("0x1.8p1", 3.0),
        ("0x1p2000", math.inf),
        ("-0x1p2000", -math.inf),
        ("1e400", math.inf),
        ("-Infinity", -math.inf),
        ("inf", None),
        ("nan", None),
        ("1_0", None),
        ("0x10", None),
        ("5dd", None),
        ("\xa05", None),
        ("", None),
        ("\u0665", None),
    ],
)
def test_doubles_are_java_s(text: str, number: float | None) -> None:
    if number is None:
        with pytest.raises(FilterFailed):
            parse_double(text)
    else:
        assert parse_double(text) == number


def test_the_order_of_doubles_is_total() -> None:
    ascending = [-math.inf, -1.0, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
    for index, low in enumerate(ascending):
        assert order(low, low) == 0
        for high in ascending[index + 1 :]:
            assert order(low, high) < 0 < order(high, low)
    assert order("-0.0", "0") < 0
    assert order("NaN", 5.0) > 0
    assert order(Long(1 << 40), "1099511627776") == 0
