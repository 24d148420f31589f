"""Payloads that differ only where a JSON Schema lets them: one that fits shows that the others do.

A ``Pattern`` is made of a body that fits. It says of each byte what may stand there: the same byte, or within a number
another digit, or within a text another plain character, if the schema says no more of the value than its type or a
length. So all bodies of a batch that have one length are compared with it at once. What it does not match may fit as
well, and is looked at by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mqspark.record.batchitems import EqualBodies
from mqspark.schemas.jsonschema.jsonshortcut import SILENT
from mqspark.schemas.parsedschema import Check

MAX_PATTERN_BYTES = 2_048
"""A pattern is made of no larger body."""
MAX_PATTERNS = 2
TILE_BYTES = 24 << 10
MAX_PAUSE = 64
_MAX_DIGITS = 15
"""Numbers with so many are the same for every reader."""
_TOKEN = re.compile(
    rb'[ \t\r\n]+|[{}\[\]:,]|("(?:[^"\\]|\\.)*")|(-?)([0-9]+)(\.[0-9]+)?(?![0-9.eE])|[^\s{}\[\]:,"]+'
)
_SPACE, _QUOTE, _LAST = ord(" "), ord('"'), ord("~")
_OF_OBJECTS = {"type", "properties", "required", "additionalProperties"}
_OF_LISTS = {"type", "items", "minItems", "maxItems"}
_OF_TEXTS = {"type", "minLength", "maxLength"}


class Pattern:
    """``body``: bytes that fit ``root``, behind ``head``."""

    def __init__(self, root: Any, body: bytes, head: int) -> None:
        self._low = np.frombuffer(body, np.uint8).copy()
        self._room = np.zeros(len(body), np.uint8)
        """How many more than the lowest byte may stand there."""
        self._head = head
        self._in_text = np.zeros(len(body), np.bool_)
        self._note(root, body)
        # One operation on many rows is cheaper than one on each.
        self._rows = max(1, TILE_BYTES // len(body))
        self._low, self._room = np.tile(self._low, self._rows), np.tile(self._room, self._rows)
        self._may_have_quotes = False
        self._quotes, self._backslashes = body.count(b'"'), body.count(b"\\")
        self.size = len(body)

    def matches(self, joined: bytes) -> bool:
        """``joined``: bodies of the same length, one after the other."""
        data = np.frombuffer(joined, np.uint8)
        if not self._are_within(data):
            if self._may_have_quotes:
                return False
            # With the space comes what is next to it. From now on quotes are counted.
            self._may_have_quotes = True
            in_text = np.tile(self._in_text, self._rows)
            self._low[in_text], self._room[in_text] = _SPACE, _LAST - _SPACE
            if not self._are_within(data):
                return False
        # A text may have any plain character so far, also those that would end it.
        if not self._backslashes and b"\\" in joined:
            return False
        count = len(data) // self.size
        if self._may_have_quotes and np.count_nonzero(data == _QUOTE) != count * self._quotes:
            return False
        return not self._backslashes or joined.count(b"\\") == count * self._backslashes

    def _are_within(self, data: npt.NDArray[np.uint8]) -> bool:
        step = self._rows * self.size
        for at in range(0, len(data), step):
            part = data[at : at + step]
            beyond = part - self._low[: len(part)] > self._room[: len(part)]
            if b"\1" in beyond.tobytes():  # half the time of any()
                return False
        return True

    def _note(self, root: Any, body: bytes) -> None:
        """Walks through the values, with the schema of each; None: nothing about it may change."""
        nodes: list[tuple[Any, bool]] = []
        """The schemas around, and whether each is that of an object."""
        key: str | None = None
        node, is_key = root, False
        for token in _TOKEN.finditer(body, self._head):
            mark = token[0]
            if mark in (b"{", b"["):
                nodes.append((node, mark == b"{"))
                is_key = mark == b"{"
                node = None if is_key else _of_items(node)
            elif mark in (b"}", b"]"):
                nodes.pop()
                is_key = False
            elif mark == b":":
                node, is_key = _of_property(nodes[-1][0], key), False
            elif mark == b",":
                is_key = nodes[-1][1]
                node = None if is_key else _of_items(nodes[-1][0])
            elif token[1] is not None and is_key:
                key = None if b"\\" in token[1] else token[1][1:-1].decode()
            elif token[1] is not None and _is_free(node, "string", _OF_TEXTS) and b"\\" not in token[1]:
                self._free(token.start(1) + 1, token.end(1) - 1)
            elif token[3] is not None:
                self._number(node, token)

    def _free(self, begin: int, end: int) -> None:
        plain = (self._low[begin:end] >= _SPACE) & (self._low[begin:end] <= _LAST)
        self._in_text[begin:end] = plain
        self._low[begin:end][plain] = _QUOTE + 1
        self._room[begin:end][plain] = _LAST - _QUOTE - 1

    def _number(self, node: Any, token: re.Match[bytes]) -> None:
        kind = "integer" if token[4] is None else "number"
        free = _is_free(node, kind, {"type"}) or (kind == "integer" and _is_free(node, "number", {"type"}))
        if not free or len(token[3]) + len(token[4] or b"") > _MAX_DIGITS:
            return
        begin, end = token.span(3)
        self._low[begin:end], self._room[begin:end] = ord("0"), 9
        if end - begin > 1:
            self._low[begin], self._room[begin] = ord("1"), 8
        if token[4] is not None:
            begin, end = token.start(4) + 1, token.end(4)
            self._low[begin:end], self._room[begin:end] = ord("0"), 9


class Alike:
    """The patterns of one schema, each of bodies of one length."""

    def __init__(self, root: Any, check: Check) -> None:
        self._root = root
        self._check = check
        self._patterns = dict[tuple[int, bytes], Pattern]()
        self._pause = self._left = 0
        """Batches after which it is tried again, where bodies are not alike."""

    def take(self, bodies: Sequence[bytes | memoryview], head: bytes) -> bool:
        """Whether bodies are alike, begin with ``head`` and fit. False: it is not said."""
        if self._left:
            self._left -= 1
            return False
        if isinstance(bodies, EqualBodies):
            size, joined = bodies.size, bodies.joined
        else:
            size = len(bodies[0])
            joined = b"".join(bodies) if len(set(map(len, bodies))) == 1 else b""
        if not 0 < size <= MAX_PATTERN_BYTES or not joined:
            return self._put_off()
        found = self._patterns.get((size, head))
        if found is not None and found.matches(joined):
            self._pause = 0
            return True
        first = bytes(bodies[0])
        if not first.startswith(head) or self._check(first[len(head) :]) is not None:
            return self._put_off()
        found = Pattern(self._root, first, len(head))
        if not found.matches(joined):
            return self._put_off()
        if len(self._patterns) >= MAX_PATTERNS:
            self._patterns.clear()
        self._patterns[size, head] = found
        self._pause = 0
        return True

    def _put_off(self) -> bool:
        self._left = self._pause = min(2 * self._pause + 1, MAX_PAUSE)
        return False


def _said(node: Any) -> set[str] | None:
    return None if not isinstance(node, dict) else node.keys() - SILENT


def _is_free(node: Any, kind: str, allowed: set[str]) -> bool:
    """Whether a value of this type may have any other value of it."""
    if node is True:
        return True
    said = _said(node)
    if said is None or not said <= allowed:
        return False
    named = node.get("type")
    return not said or named == kind or (isinstance(named, list) and kind in named)


def _of_property(node: Any, name: str | None) -> Any:
    """``name``: None: one that is written with escapes."""
    said = _said(node)
    if node is True or said == set():
        return True
    if said is None or not said <= _OF_OBJECTS or name is None:
        return None
    properties = node.get("properties", {})
    return properties[name] if name in properties else node.get("additionalProperties", True)


def _of_items(node: Any) -> Any:
    said = _said(node)
    if node is True or said == set():
        return True
    if said is None or not said <= _OF_LISTS:
        return None
    items = node.get("items", True)
    return items if isinstance(items, dict | bool) else None
