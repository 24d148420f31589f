"""SQL92 filters under any input: three-valued logic, layout, and nothing but the two errors they may raise."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mqspark.errors import FilterFailed, InvalidFilter
from mqspark.filter.sql import compile_sql
from mqspark.message import decode_properties, encode_properties

Tree = tuple[object, ...]

NAMES = st.sampled_from(["a", "b", "TAGS", "$x", "_"])
TEXTS = st.one_of(
    st.sampled_from(
        ["5", "-7", "5.0", "1e3", "true", "NaN", "-0.0", "3000000000", "0x1p3", "\u0665", "it's", "中文"]
    ),
    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12),
)
PROPERTIES = st.dictionaries(NAMES, TEXTS, max_size=4)
VOCABULARY = """
    a b TAGS $x NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH = <> < <= > >= ( ) , + -
    0 5 -5 5L 3000000000 5.0 1e3 .5 '5' '' 'it''s' 'true' ; ! ' /* */ --
"""
WORDS = st.sampled_from(VOCABULARY.split())


@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=25).map(" ".join)), PROPERTIES)
@example("a > b", {"a": "-0.0", "b": "NaN"})
def test_anything_is_refused_or_has_a_value(sql: str, properties: dict[str, str]) -> None:
    try:
        compiled = compile_sql(sql)
    except InvalidFilter:
        return
    try:
        value = compiled.evaluate(properties)
    except FilterFailed:
        value = None
    assert value in (True, False, None)
    assert compiled.matches(properties) is (value is True)
    encoded = encode_properties(properties)
    assert compiled.matches_encoded(encoded) is compiled.matches(decode_properties(encoded))


def logic(tree: Tree) -> bool | None:
    """SQL's tables, by minimum and maximum over FALSE < NULL < TRUE."""
    rank = {False: 0, None: 1, True: 2}
    back: list[bool | None] = [False, None, True]
    match tree:
        case ("not", operand):
            return back[2 - rank[logic(operand)]]  # type: ignore[arg-type]
        case ("AND", *operands):
            return back[min(rank[logic(operand)] for operand in operands)]  # type: ignore[arg-type]
        case ("OR", *operands):
            return back[max(rank[logic(operand)] for operand in operands)]  # type: ignore[arg-type]
        case (_, value):
            return value  # type: ignore[return-value]
    raise AssertionError(tree)


def written(tree: Tree) -> str:
    match tree:
        case ("not", operand):
            return f"NOT ({written(operand)})"  # type: ignore[arg-type]
        case (("AND" | "OR") as word, *operands):
            return f" {word} ".join(f"({written(operand)})" for operand in operands)  # type: ignore[arg-type]
        case (text, _):
            return str(text)
    raise AssertionError(tree)


LEAVES = st.sampled_from(
    [("TRUE", True), ("FALSE", False), ("NULL", None), ("a = 5", True), ("a <> 5", False), ("z < 5", None)]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner),
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner, inner),
    ),
    max_leaves=12,
)


@given(TREES)
def test_logic_is_three_valued(tree: Tree) -> None:
    assert compile_sql(written(tree)).evaluate({"a": "5"}) is logic(tree)


@given(TREES, TREES)
def test_and_binds_tighter_than_or(left: Tree, right: Tree) -> None:
    flat = f"({written(left)}) OR ({written(right)}) AND FALSE OR ({written(right)})"
    assert compile_sql(flat).evaluate({"a": "5"}) is logic(("OR", left, ("AND", right, ("F", False)), right))


@given(
    TREES, st.lists(st.sampled_from([" ", "\t\n", "/* x */", "-- x\r\n", "/***/"]), min_size=1, max_size=3)
)
def test_blanks_comments_and_case_mean_nothing(tree: Tree, blanks: list[str]) -> None:
    plain = written(tree)
    odd = "".join(blanks).join(plain.replace("(", "( ").replace(")", " )").split(" "))
    odd = odd.replace("AND", "aNd").replace("OR", "or").replace("NOT", "Not").replace("NULL", "nuLL")
    assert compile_sql(odd).evaluate({"a": "5"}) is compile_sql(plain).evaluate({"a": "5"})


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63) + 1, (1 << 63) - 1))
def test_integers_are_ordered(left: int, right: int) -> None:
    properties = {"a": str(left)}
    literal = f"{right}" if right >= 0 else f"-{-right}"
    fits = -(1 << 31) <= left < (1 << 31) or abs(right) >= (1 << 31)
    for word, expected in (("<", left < right), (">=", left >= right), ("=", left == right)):
        assert compile_sql(f"a {word} {literal}").matches(properties) is (expected and fits)
    between = f"a BETWEEN {literal} AND {literal}"
    assert compile_sql(between).matches(properties) is (left == right and fits)


@given(TEXTS, TEXTS)
def test_texts_are_compared_whole(left: str, right: str) -> None:
    quoted = "'" + right.replace("'", "''") + "'"
    properties = {"a": left}
    assert compile_sql(f"a = {quoted}").evaluate(properties) is (left == right)
    assert compile_sql(f"a NOT IN ('no', {quoted})").evaluate(properties) is (left not in (right, "no"))
    assert compile_sql(f"a CONTAINS {quoted}").evaluate(properties) is (right != "" and right in left)
    assert compile_sql(f"a STARTSWITH {quoted}").evaluate(properties) is (
        right != "" and left.startswith(right)
    )
    assert compile_sql(f"a NOT ENDSWITH {quoted}").evaluate(properties) is (
        right != "" and not left.endswith(right)
    )
