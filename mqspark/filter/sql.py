"""SQL92 filters over message properties, in RocketMQ's dialect (SelectorParser and the expression classes).

    OR < AND < = <> IS [NOT] NULL < > >= < <= [NOT] BETWEEN|IN|CONTAINS|STARTSWITH|ENDSWITH < unary + - NOT

NOT binds tighter than ``=``: ``NOT a = 5`` is ``(NOT a) = 5``. Logic is three-valued, and only TRUE matches.
Text after a complete expression is ignored, as in RocketMQ.

A compiled filter is a tree of closures. Expressions come from untrusted clients: length, depth and cost are
limited during parsing, and a name is only ever used as the key of a property.

Facts: docs/rocketmq/filter.md#sql92.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mqspark.base.bounded import Memo, text_bytes
from mqspark.base.propertystring import find_property
from mqspark.errors import FilterFailed, InvalidFilter
from mqspark.filter.tokens import FLOAT, INTEGER, NAME, STRING, Token, Tokens
from mqspark.filter.values import (
    INT_BITS,
    LONG_BITS,
    Long,
    Value,
    equal,
    is_number,
    negate,
    order,
    parse_integer,
)
from mqspark.message import decode_properties

SQL92 = "SQL92"
"""The expression type of these filters (ExpressionType)."""

MAX_SQL_LENGTH = 16_384  # characters
MAX_SQL_COST = 1_000
"""Limit of operators and operands together. A list counts as one, however long."""
MAX_SQL_DEPTH = 64
"""Limit of nested parentheses, of signs and NOTs, and of the tree. In RocketMQ only the stack is the limit."""

Properties = Mapping[str, str]
Run = Callable[[Properties], Value]

_FEW_NAMES = 6
"""Up to this number, searching the encoded properties is faster than decoding all of them."""


class SqlFilter:
    """A compiled expression. ``names``: the properties it uses. ``cost``: the number of its operators and
    operands."""

    __slots__ = ("_run", "_wanted", "cost", "expression", "names")

    def __init__(self, expression: str, run: Run, names: frozenset[str], cost: int) -> None:
        self.expression = expression
        self.names = names
        self.cost = cost
        self._run = run
        self._wanted = tuple((name, name.encode()) for name in sorted(names))

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def evaluate(self, properties: Properties) -> bool | None:
        """TRUE, FALSE or NULL. Raises FilterFailed where RocketMQ fails, for example for ``a > 3`` when a is
        ``x``."""
        value = self._run(properties)
        return None if value is None else value is True

    def matches(self, properties: Properties) -> bool:
        """Whether the filter matches. A failed evaluation does not match."""
        try:
            return self._run(properties) is True
        except FilterFailed:
            return False

    def matches_encoded(self, properties: bytes) -> bool:
        """``matches`` for encoded properties, as in a record."""
        if len(self._wanted) > _FEW_NAMES:
            return self.matches(decode_properties(properties))
        found = {}
        for name, encoded in self._wanted:
            value = find_property(properties, encoded)
            if value is not None:
                found[name] = value.decode("utf-8", "replace")
        return self.matches(found)


def compile_sql(expression: str | None) -> SqlFilter:
    """Compile an expression. Raises InvalidFilter. Results and failures are cached."""
    result = _filters[expression or ""]
    if isinstance(result, InvalidFilter):
        raise InvalidFilter(result.problem, result.expression, result.position)
    return result


def check_sql(expression: str) -> None:
    """Raise InvalidFilter for what does not compile. Keeps nothing, so that any thread may call it."""
    result = _compiled(expression)
    if isinstance(result, InvalidFilter):
        raise result


def _compiled(expression: str) -> SqlFilter | InvalidFilter:
    if len(expression) > MAX_SQL_LENGTH:
        problem = f"{len(expression)} characters are more than {MAX_SQL_LENGTH}"
        return InvalidFilter(problem, expression[: MAX_SQL_LENGTH + 1], MAX_SQL_LENGTH)
    try:
        return _SqlParser(expression).filter()
    except InvalidFilter as error:
        return error.with_traceback(None)


def filter_bytes(expression: str, cost: int = MAX_SQL_COST) -> int:
    """Upper estimate of the memory of a compiled expression."""
    return text_bytes(expression) + 16 * len(expression) + 512 * cost


def _weigh(expression: str, result: SqlFilter | InvalidFilter) -> int:
    return text_bytes(expression) + filter_bytes(
        expression, result.cost if isinstance(result, SqlFilter) else 1
    )


_filters = Memo("filter.sql", _compiled, max_bytes=16 << 20, weigh=_weigh)


# --- the tree -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    run: Run
    height: int = 0
    boolean: bool = False
    """Whether it can be a condition (BooleanExpression)."""
    constant: bool = False
    value: Value = None
    """Value of a constant."""
    name: str | None = None
    """Name, when the node is a plain property."""


def _constant(value: Value) -> _Node:
    boolean = value is None or isinstance(value, bool)
    return _Node(lambda _: value, boolean=boolean, constant=True, value=value)


def _property(name: str) -> _Node:
    return _Node(lambda properties: properties.get(name), name=name)


def _cast(node: _Node) -> _Node:
    """A property as a condition: text is never TRUE."""
    run = node.run
    return _Node(lambda properties: None if run(properties) is None else False, node.height + 1, boolean=True)


def _not(node: _Node) -> _Node:
    def run(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    inner = node.run
    return _Node(run, node.height + 1, boolean=True)


def _negative(node: _Node) -> _Node:
    run = node.run
    return _Node(lambda properties: negate(run(properties)), node.height + 1)


def _junction(nodes: list[_Node], decisive: bool) -> _Node:
    """AND (decided by FALSE) or OR (decided by TRUE) of any number of conditions, evaluated left to right."""

    def run(properties: Properties) -> Value:
        result: Value = not decisive
        for run in runs:
            value = run(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    runs = [node.run for node in nodes]
    return _Node(run, 1 + max(node.height for node in nodes), boolean=True)


def _equal(left: _Node, right: _Node) -> _Node:
    first, second = left.run, right.run
    return _Node(
        lambda properties: equal(first(properties), second(properties)),
        1 + max(left.height, right.height),
        boolean=True,
    )


def _ordered(left: _Node, right: _Node, test: Callable[[int, int], bool]) -> _Node:
    def run(properties: Properties) -> Value:
        value = first(properties)
        if value is None:
            return None
        other = second(properties)
        return None if other is None else test(order(value, other), 0)

    first, second = left.run, right.run
    return _Node(run, 1 + max(left.height, right.height), boolean=True)


def _member(name: str, elements: frozenset[str], negated: bool) -> _Node:
    def run(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in elements) is not negated

    return _Node(run, 1, boolean=True)


def _search(node: _Node, test: Callable[[str, str], bool], text: str, negated: bool) -> _Node:
    """FALSE, not NULL, when either operand is missing; for the NOT forms, too."""

    def run(properties: Properties) -> Value:
        if not text:
            return False
        value = inner(properties)
        return isinstance(value, str) and test(value, text) is not negated

    inner = node.run
    return _Node(run, node.height + 1, boolean=True)


_ORDERINGS: dict[str, Callable[[int, int], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}

# --- the parser ---------------------------------------------------------------------------------------------

_OR, _AND, _EQUALITY, _COMPARISON = 1, 2, 3, 4
_LEVELS = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "IS"), _EQUALITY),
    **dict.fromkeys((*_ORDERINGS, *_SEARCHES, "BETWEEN", "IN", "NOT"), _COMPARISON),
}
"""Binding power of an operator after an operand. Any other token ends the expression."""


class _SqlParser:
    """A Pratt parser: an operand, then every operator that binds tighter than the caller's."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = Tokens(expression)
        self._names: set[str] = set()
        self._cost = 0
        self._depth = 0

    def filter(self) -> SqlFilter:
        node = self._condition(self._parse(0), self._tokens.peek())
        return SqlFilter(self._expression, node.run, frozenset(self._names), self._cost)

    def _error(self, problem: str, token: Token) -> InvalidFilter:
        return InvalidFilter(problem, self._expression, token.position)

    def _charge(self, token: Token) -> None:
        self._cost += 1
        if self._cost > MAX_SQL_COST:
            raise self._error(f"more than {MAX_SQL_COST} operators and operands", token)

    def _expect(self, kind: str, what: str) -> Token:
        token = self._tokens.peek()
        if token.kind != kind:
            raise self._error(f"{what} is missing", token)
        return self._tokens.take()

    def _condition(self, node: _Node, token: Token) -> _Node:
        if node.boolean:
            return node
        if node.name is not None:
            return _cast(node)
        raise self._error("a value stands where a condition is needed", token)

    def _parse(self, level: int) -> _Node:
        """Parse an expression of operators that bind tighter than ``level``."""
        left = self._operand()
        tightest = _COMPARISON
        while True:
            token = self._tokens.peek()
            this = _LEVELS.get(token.kind, 0)
            if not level < this <= tightest:
                return left
            tightest = this
            left = self._operator(left, self._tokens.take())
            if left.height > MAX_SQL_DEPTH:
                raise self._error(f"nested more than {MAX_SQL_DEPTH} deep", token)

    # --- operands ---

    def _operand(self) -> _Node:
        """Parse a literal, a property or parentheses, with preceding signs and NOTs."""
        token = self._tokens.take()
        kind = token.kind
        self._charge(token)
        if kind == NAME:
            self._names.add(token.text)
            return _property(token.text)
        if kind == STRING:
            return _constant(_unquoted(token))
        if kind == INTEGER:
            return _constant(self._integer(token))
        if kind == FLOAT:
            return _constant(self._float(token))
        if kind in _WORD_VALUES:
            return _constant(_WORD_VALUES[kind])
        self._depth += 1
        if self._depth > MAX_SQL_DEPTH:
            raise self._error(f"nested more than {MAX_SQL_DEPTH} deep", token)
        if kind == "(":
            node = self._parse(0)
            self._expect(")", "a closing parenthesis")
        elif kind == "+":
            node = self._operand()
        elif kind == "-":
            node = _negative(self._operand())
        elif kind == "NOT":
            node = _not(self._condition(self._operand(), token))
        else:
            raise self._error("an operand is missing", token)
        self._depth -= 1
        return node

    def _integer(self, token: Token) -> int:
        try:
            number = parse_integer(token.text.rstrip("lL"), LONG_BITS)
        except FilterFailed as error:
            raise self._error(str(error), token) from None
        return number if number < 1 << (INT_BITS - 1) else Long(number)

    def _float(self, token: Token) -> float:
        number = float(token.text)
        if not 0.0 < number < float("inf"):
            raise self._error(f"{token.text[:40]} is beyond the smallest or largest number", token)
        return number

    # --- operators ---

    def _operator(self, left: _Node, token: Token) -> _Node:
        """Combine the operator just read with the operand before it and what follows."""
        kind = token.kind
        self._charge(token)
        if kind == "AND" or kind == "OR":
            return self._junction(left, token)
        if kind == "=" or kind == "<>":
            node = self._equality(left, self._parse(_EQUALITY), token)
            return node if kind == "=" else _not(node)
        if kind == "IS":
            negated = self._accept("NOT")
            self._expect("NULL", "NULL")
            node = _equal(left, _constant(None))
            return _not(node) if negated else node
        if kind in _ORDERINGS:
            return self._ordering(left, self._operand(), token)
        negated = kind == "NOT"
        if negated:
            token = self._tokens.take()
            kind = token.kind
        if kind in _SEARCHES:
            return _search(left, _SEARCHES[kind], self._string(), negated)
        if kind == "BETWEEN":
            return self._between(left, token, negated)
        if kind == "IN":
            return self._in(left, token, negated)
        raise self._error("NOT is not followed by an operator", token)

    def _accept(self, kind: str) -> bool:
        if self._tokens.peek().kind != kind:
            return False
        self._tokens.take()
        return True

    def _string(self) -> str:
        return _unquoted(self._expect(STRING, "a quoted text"))

    def _junction(self, left: _Node, token: Token) -> _Node:
        nodes = [self._condition(left, token)]
        level = _LEVELS[token.kind]
        while True:
            nodes.append(self._condition(self._parse(level), token))
            if not self._accept(token.kind):
                return _junction(nodes, token.kind == "OR")

    def _equality(self, left: _Node, right: _Node, token: Token) -> _Node:
        for node in (left, right):
            if node.constant and node.value is None:
                raise self._error("NULL cannot be compared; use IS NULL", token)
        if left.constant and right.constant and left.boolean and not right.boolean:
            raise self._error("a truth value cannot be compared with a number or a text", token)
        return _equal(left, right)

    def _ordering(self, left: _Node, right: _Node, token: Token, kind: str | None = None) -> _Node:
        for node in (left, right):
            if node.boolean or (node.constant and not is_number(node.value)):
                raise self._error("only numbers and properties have an order", token)
        return _ordered(left, right, _ORDERINGS[kind or token.kind])

    def _between(self, left: _Node, token: Token, negated: bool) -> _Node:
        low = self._operand()
        self._expect("AND", "AND")
        high = self._operand()
        kinds = ("<", ">") if negated else (">=", "<=")
        sides = [
            self._ordering(left, bound, token, kind) for bound, kind in zip((low, high), kinds, strict=True)
        ]
        if not negated and low.constant and high.constant and order(low.value, high.value) > 0:
            raise self._error(f"{low.value} is greater than {high.value}", token)
        return _junction(sides, negated)

    def _in(self, left: _Node, token: Token, negated: bool) -> _Node:
        if left.name is None:
            raise self._error("only a property can be looked for in a list", token)
        self._expect("(", "an opening parenthesis")
        elements = {self._string()}
        while self._accept(","):
            elements.add(self._string())
        self._expect(")", "a closing parenthesis")
        return _member(left.name, frozenset(elements), negated)


_WORD_VALUES: dict[str, bool | None] = {"TRUE": True, "FALSE": False, "NULL": None}


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")
