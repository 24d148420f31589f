"""The file format of ``broker.conf``: java.util.Properties.

Keys end at the first unescaped ``=``, ``:`` or white space; ``#`` and ``!`` begin a comment line; a line
that ends in an odd number of backslashes goes on in the next one, whose leading white space is dropped;
``\\t \\n \\r \\f \\uXXXX`` and a backslash before any other character are escapes. Must not know what a key
means.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

from mqspark.errors import ConfigError

_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str, *, source: str = "broker.conf") -> dict[str, str]:
    """The entries in file order; the last of equal keys wins.

    Raises ConfigError that names ``source`` and the line.
    """
    entries: dict[str, str] = {}
    for number, _, line in _logical_lines(text):
        key, value = _split(line)
        where = f"{source}, line {number}"
        if not key:
            raise ConfigError(f"{where}: a value without a key")
        # A lone word is a legal entry with an empty value for Java, but in a broker.conf it is a forgotten
        # "=".
        if value is None:
            raise ConfigError(f"{where}: {key!r} has no '=' and no value", key=key)
        entries[_unescape(key, where)] = _unescape(value, where)
    return entries


def edit_properties(
    text: str, values: Mapping[str, str], same_key: Callable[[str, str], bool], *, source: str = "broker.conf"
) -> str:
    """The text with these values; everything else is unchanged. Of several lines with the same key the last one is
    replaced, because it wins; new keys are appended. Raises ConfigError."""
    natural = _natural_lines(text)
    entries = [
        (first, last, _unescape(_split(line)[0], f"{source}, line {first}"))
        for first, last, line in _logical_lines(text)
    ]
    replaced: dict[int, tuple[int, str]] = {}
    added: list[str] = []
    for key, value in values.items():
        found = [entry for entry in entries if same_key(entry[2], key)]
        if found:
            first, last, spelt = found[-1]
            replaced[first] = (last, f"{_escape_key(spelt)}={_escape(value)}\n")
        else:
            added.append(f"{_escape_key(key)}={_escape(value)}\n")
    out: list[str] = []
    number = 1
    while number <= len(natural):
        last, line = replaced.get(number, (number, natural[number - 1]))
        out.append(line)
        number = last + 1
    if added and out and not out[-1].endswith(("\n", "\r")):
        out.append("\n")
    return "".join(out + added)


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\")
    for name, char in _ESCAPES.items():
        escaped = escaped.replace(char, f"\\{name}")
    escaped = "".join(
        char
        if char.isascii() and char.isprintable()
        else "\\u" + char.encode("utf-16-be").hex(" ", 2).replace(" ", "\\u")
        for char in escaped
    )
    return f"\\{escaped}" if escaped[:1] == " " else escaped


def _escape_key(key: str) -> str:
    return "".join(f"\\{char}" if char in "=: #!\\" else char for char in key)


def _natural_lines(text: str) -> list[str]:
    """With their ends, which are Java's: Python has more, among them bytes of GBK that are read as Latin-1."""
    return list(io.StringIO(text, newline=""))


def _logical_lines(text: str) -> list[tuple[int, int, str]]:
    """Comments and blank lines dropped, continuations joined; with the numbers of the first and last natural line."""
    lines: list[tuple[int, int, str]] = []
    pending: str | None = None
    first = number = 0
    for number, natural in enumerate(_natural_lines(text.removeprefix("\ufeff")), start=1):
        line = natural.rstrip("\r\n").lstrip(_WHITE)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            first, pending = number, ""
        pending += line
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        lines.append((first, number, pending))
        pending = None
    if pending is not None:
        lines.append((first, number, pending))
    return lines


def _split(line: str) -> tuple[str, str | None]:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
        elif line[position] in "=:" or line[position] in _WHITE:
            break
        else:
            position += 1
    key, rest = line[:position], line[position:]
    value = rest.lstrip(_WHITE)
    if value[:1] in ("=", ":"):
        return key, value[1:].lstrip(_WHITE)
    return key, value or None


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        char = text[position]
        position += 1
        if char != "u":
            out.append(_ESCAPES.get(char, char))
            continue
        digits = text[position : position + 4]
        try:
            if len(digits) != 4:
                raise ValueError
            out.append(chr(int(digits, 16)))
        except ValueError:
            raise ConfigError(f"{where}: malformed \\u escape") from None
        position += 4
    try:
        # Java's characters are UTF-16: one beyond U+FFFF is written as two.
        return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: \\u escapes that are half a character") from None
