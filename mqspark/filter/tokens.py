"""The tokens of a SQL92 filter (SelectorParser.jj).

As in RocketMQ the longest match wins, and tokens are read only when the parser needs them: text after the end
of an expression is never read, even if it is malformed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mqspark.errors import InvalidFilter

NAME, STRING, INTEGER, FLOAT, END = "name", "string", "integer", "float", "end"
"""Kinds of tokens. The kind of a keyword is the keyword in capitals, that of a symbol the symbol."""

KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

_WORDS = re.compile(
    r"""
      (?P<blank>   [ \t\n\r\f]++ | --[^\n\r]*+(?:\r\n|\n|\r) | /\*[^*]*+\*++(?:[^*/][^*]*+\*++)*+/ )
    | (?P<float>   (?: [0-9]++\.[0-9]*+ | \.[0-9]++ ) (?:[eE][+-]?[0-9]++)? | [0-9]++[eE][+-]?[0-9]++ )
    | (?P<integer> 0 | [1-9][0-9]*+[lL]? )
    | (?P<string>  '[^']*+(?:''[^']*+)*' )
    | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]*+ )
    | (?P<symbol>  <> | <= | >= | [<>=(),+-] )
    """,
    re.VERBOSE,
)
"""A line comment needs a line end: without one, two minus signs are two minus signs."""


class Token(NamedTuple):
    kind: str
    text: str
    position: int


class Tokens:
    """The tokens of an expression, in order."""

    __slots__ = ("_ahead", "_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._ahead: list[Token] = []

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or the one ``ahead`` after it. Raises InvalidFilter where no token begins."""
        while len(self._ahead) <= ahead:
            self._ahead.append(self._read())
        return self._ahead[ahead]

    def take(self) -> Token:
        token = self.peek()
        del self._ahead[0]
        return token

    def _read(self) -> Token:
        text = self._text
        while self._position < len(text):
            start = self._position
            found = _WORDS.match(text, start)
            if found is None:
                raise InvalidFilter(f"{text[start]!r} does not begin a token", text, start)
            self._position = found.end()
            kind, word = found.lastgroup or "", found.group()
            if kind == "symbol":
                return Token(word, word, start)
            if kind == NAME and (keyword := word.upper()) in KEYWORDS:
                return Token(keyword, word, start)
            if kind != "blank":
                return Token(kind, word, start)
        return Token(END, "", len(text))
