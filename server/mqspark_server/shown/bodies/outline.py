"""Values as indented JSON, written as they are read and only until there is enough of it.

Must not know the formats that are read.
"""

from __future__ import annotations

import json
import struct

MAX_OUTLINE_DEPTH = 64
"""The depth of nested values; a form that a program sends has some ten."""
_BYTES_SHOWN = 64


class Unreadable(Exception):
    """The body does not have this format, or is not read here; the text says why."""


class Full(Exception):
    """There is no room for more: what is written is the beginning."""


class Outline:
    """``most``: characters. Everything that writes raises Full, or Unreadable for values that nest too deep."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._parts: list[str] = []
        self._ends: list[str] = []
        self._is_empty = True
        self._is_named = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def begin(self, brackets: str) -> None:
        """``brackets``: both of the list or the object."""
        if len(self._ends) == MAX_OUTLINE_DEPTH:
            raise Unreadable(f"it nests deeper than {MAX_OUTLINE_DEPTH} values")
        self._place()
        self._put(brackets[0])
        self._ends.append(brackets[1])
        self._is_empty = True

    def end(self) -> None:
        mark = self._ends.pop()
        self._put(mark if self._is_empty else f"\n{self._indent}{mark}")
        self._is_empty = False

    def name(self, text: str) -> None:
        """Names the value that follows."""
        self._place()
        self._put(f"{_quoted(text, self._left)}: ")
        self._is_named = True

    def literal(self, text: str) -> None:
        """A value that is written as it is: a number or a word."""
        self._place()
        self._put(text)

    def value(self, value: object) -> None:
        """One that holds no others."""
        match value:
            case str():
                self.literal(_quoted(value, self._left))
            case bytes() | bytearray() | memoryview():
                self.literal(_hex(bytes(value[:_BYTES_SHOWN]), len(value)))
            case None | bool() | float():
                self.literal(json.dumps(value))
            case _:
                self.literal(str(value))

    @property
    def _indent(self) -> str:
        return "  " * len(self._ends)

    def _place(self) -> None:
        if self._is_named:
            self._is_named = False
            return
        if self._ends:
            self._put(f"{'' if self._is_empty else ','}\n{self._indent}")
        elif self._parts:
            self._put("\n")
        self._is_empty = False

    def _put(self, text: str) -> None:
        self._parts.append(text[: self._left])
        self._left -= len(text)
        if self._left < 0:
            raise Full


def _quoted(text: str, most: int) -> str:
    return json.dumps(text[: most + 1], ensure_ascii=False)


def _hex(shown: bytes, size: int) -> str:
    rest = f"… ({size:,} bytes)" if size > len(shown) else ""
    return f'"0x{shown.hex()}{rest}"'


class Reading:
    """A place in bytes. Reads raise Unreadable at the end of them."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        self.data = memoryview(data)
        self.at = at
        self.end = len(data)

    @property
    def is_at_end(self) -> bool:
        return self.at >= self.end

    def take(self, count: int) -> memoryview:
        if not 0 <= count <= self.end - self.at:
            raise Unreadable(f"it says {count} bytes at {self.at}, where {self.end - self.at} are left")
        found = self.data[self.at : self.at + count]
        self.at += count
        return found

    def byte(self) -> int:
        return self.take(1)[0]

    def unpack(self, form: str) -> int | float:
        found: int | float = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return found

    def whole(self, form: str) -> int:
        return int(self.unpack(form))

    def varint(self) -> int:
        """Reads a number of at most 64 bits, seven in a byte and the lowest first."""
        found = 0
        for shift in range(0, 70, 7):
            each = self.byte()
            found |= (each & 0x7F) << shift
            if each < 0x80:
                return found & 0xFFFF_FFFF_FFFF_FFFF
        raise Unreadable(f"the number before {self.at} has more than 64 bits")

    def text(self, count: int) -> str:
        try:
            return str(self.take(count), "utf-8")
        except UnicodeDecodeError:
            raise Unreadable(f"the text before {self.at} is not UTF-8") from None
