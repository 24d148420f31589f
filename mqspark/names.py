"""Names that strangers choose: what each of them must be before anything looks at it, and how one becomes a path.

Two rules serve every request, every answer and every table that is read from a file. A *name* (topic, group, broker,
cluster) is a word that can be a key of a table, a part of a longer key and a word of a line: RocketMQ's own alphabet
and what brokers and clusters are called beside it, for these are topics, too. An *id* (client id, key and namespace
of the name server's table, attempt id) is a printable text. What may be *made* is stricter: ``mqspark.message`` has
RocketMQ's rules for a new topic or group.

Independently of that, ``path_below`` is the one way from a name to a path: it takes nothing but plain words.

Must not know who sends the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from mqspark.errors import IllegalName
from mqspark.logs import printable, sparing

__all__ = ["ID", "NAME", "Rule", "are_sound", "check", "is_address", "is_sound", "path_below", "sound_only"]

MAX_NAME_LENGTH = 255
"""As long as RocketMQ's longest, those of retry topics."""
MAX_ID_LENGTH = 1024
"""Client ids of trace producers hold the addresses of all name servers."""
_MAX_FILE_NAME_BYTES = 255
_SHOWN = 40
_LISTED = 5


class Rule(NamedTuple):
    limit: int
    pattern: re.Pattern[str]
    allowed: str


# Half a surrogate pair is no text: nothing that leaves the process can hold it.
NAME = Rule(
    MAX_NAME_LENGTH,
    re.compile(r"(?!\.{1,2}\Z)[^\x00-\x1f\x7f-\x9f\u2028\u2029/\\@\ud800-\udfff]*"),
    "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
)
ID = Rule(
    MAX_ID_LENGTH,
    re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*"),
    "contains control characters",
)

V = TypeVar("V")

_log = sparing(__name__, lines=20)

_MAX_KNOWN, _MAX_KNOWN_LENGTH = 4096, 64
_known: set[object] = {None, ""}
"""Texts that follow ``NAME``, as often as they come again: some 700 KB at most."""


def check(what: str, text: str, rule: Rule = NAME) -> None:
    """Raise IllegalName unless ``text`` follows the rule. None and the empty text are no names, and pass: it is their
    user who knows whether he can go without."""
    if text in _known:
        return
    if len(text) > rule.limit:
        raise IllegalName(f"The specified {what} is longer than {what} max length {rule.limit}.", what)
    if rule.pattern.fullmatch(text) is None:
        raise IllegalName(f"The specified {what} {rule.allowed}: {printable(text, _SHOWN)}", what)
    if rule is NAME and len(text) <= _MAX_KNOWN_LENGTH and text.isascii():
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
            _known.update((None, ""))
        _known.add(text)


are_sound = _known.issuperset
"""Whether all these were found to follow ``NAME`` lately: the fast answer yes."""


def is_sound(text: str, rule: Rule = NAME) -> bool:
    try:
        check("name", text, rule)
    except IllegalName:
        return False
    return True


_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}(?:%[\w.-]{1,32})?\]|[\w.:%-]{1,255}):([0-9]{1,5})", re.ASCII)


def is_address(text: str) -> bool:
    """Whether it is ``host:port``, an IPv6 host in brackets or bare, as RocketMQ's brokers register."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) <= 0xFFFF


def sound_only(
    what: str,
    table: Mapping[str, V],
    rule: Rule = NAME,
    *,
    separator: str | None = None,
    accepts: Callable[[str], bool] | None = None,
) -> dict[str, V]:
    """The rows of a table from a file whose keys are names; the others are left out, and the log says so.
    ``separator``: of keys that are several names. ``accepts``: what else a key must be."""
    sound: dict[str, V] = {}
    left_out = []
    for key, value in table.items():
        words = key.split(separator) if separator else (key,)
        if all(is_sound(word, rule) for word in words) and (accepts is None or accepts(key)):
            sound[key] = value
        else:
            left_out.append(key)
    if left_out:
        _log.warning(
            "%s: %d rows are left out, for nothing may be called that: %s",
            what,
            len(left_out),
            ", ".join(printable(key, _SHOWN) for key in left_out[:_LISTED]),
        )
    return sound


def path_below(directory: Path, *names: str | int) -> Path:
    """The path of plain words below a directory; raises IllegalName for anything that could lead elsewhere.

    Every path that has a name in it comes from here, whatever was checked before.
    """
    for name in names:
        if isinstance(name, int):
            if name < 0:
                raise IllegalName(f"{name} cannot be a file name", "file name")
        elif not _is_file_name(name):
            raise IllegalName(f"{printable(name, _SHOWN)} cannot be a file name", "file name")
    return directory.joinpath(*map(str, names))


def _is_file_name(name: str) -> bool:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        return len(name.encode()) <= _MAX_FILE_NAME_BYTES
    except UnicodeEncodeError:
        return False
