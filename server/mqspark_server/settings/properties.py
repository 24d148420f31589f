"""The file format of ``broker.conf``: java.util.Properties.

Keys end at the first unescaped ``=``, ``:`` or white space; ``#`` and ``!`` begin a comment line; a line
that ends in an odd number of backslashes goes on in the next one, whose leading white space is dropped;
``\\t \\n \\r \\f \\uXXXX`` and a backslash before any other character are escapes. Must not know what a key
means.
"""

from __future__ import annotations

from mqspark.errors import ConfigError

__all__ = ["parse_properties"]

_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str, *, source: str = "broker.conf") -> dict[str, str]:
    """The entries in file order; the last of equal keys wins.

    Raises ConfigError that names ``source`` and the line.
    """
    entries: dict[str, str] = {}
    for number, line in _logical_lines(text):
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


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Comments and blank lines dropped, continuations joined; with the number of the first natural line."""
    lines: list[tuple[int, str]] = []
    pending: str | None = None
    first = 0
    for number, natural in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        line = natural.lstrip(_WHITE)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            first, pending = number, ""
        pending += line
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        lines.append((first, pending))
        pending = None
    if pending is not None:
        lines.append((first, pending))
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
    return "".join(out)
