"""Names that peers choose: their rules, and the conversion of a name into a path.

Two rules apply to every request, every answer and every table read from a file. A *name* (topic, group,
broker, cluster) can be the key of a table, a part of a longer key and a word of a line. It uses RocketMQ's
alphabet plus the characters of broker and cluster names, because these are topics, too. An *id* (client id,
key and namespace of the name server's table, attempt id) is printable text. The rules for *creating* a topic
or group are stricter: they are in ``mqspark.message``.

``path_below`` is the only conversion of a name into a path. It checks by itself and accepts only plain words.

Must not know who sends the names.

Facts: docs/rocketmq/messages.md#names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from mqspark.base.logs import printable, sparing
from mqspark.errors import IllegalName

MAX_NAME_LENGTH = 255
"""Length of RocketMQ's longest names, those of retry topics."""
MAX_ID_LENGTH = 1024
"""Client ids of trace producers contain the addresses of all name servers."""
_MAX_FILE_NAME_BYTES = 255
_SHOWN = 40
_LISTED = 5


class Rule(NamedTuple):
    limit: int
    pattern: re.Pattern[str]
    allowed: str


# An unpaired surrogate is not valid text: it cannot be encoded when it leaves the process.
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
"""Texts known to follow ``NAME``, which saves repeated checks: some 700 KB at most."""


def check(what: str, text: str, rule: Rule = NAME) -> None:
    """Raise IllegalName unless ``text`` follows the rule. None and the empty text pass: the caller decides
    whether the name is required."""
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
"""Whether all of these were recently found to follow ``NAME``. False is not a verdict."""


def are_plain(texts: Collection[str]) -> bool:
    """Whether all of very many follow ``NAME``, found out at once. False is not a verdict."""
    joined = "".join(texts)
    return (
        joined.isascii()
        and joined.isprintable()
        and not any(letter in joined for letter in "/\\@")
        and max(map(len, texts), default=0) <= NAME.limit
        and not any(dots in texts for dots in (".", ".."))
    )


def is_sound(text: str, rule: Rule = NAME) -> bool:
    try:
        check("name", text, rule)
    except IllegalName:
        return False
    return True


_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}(?:%[\w.-]{1,32})?\]|[\w.:%-]{1,255}):([0-9]{1,5})", re.ASCII)


def is_address(text: str) -> bool:
    """Whether it is ``host:port``. An IPv6 host may be in brackets or bare, as RocketMQ's brokers register."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) <= 0xFFFF


def bracketed(host: str) -> str:
    """The host as it stands before the colon of an address: an IPv6 one is in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def sound_only(
    what: str,
    table: Mapping[str, V],
    rule: Rule = NAME,
    *,
    separator: str | None = None,
    accepts: Callable[[str], bool] | None = None,
) -> dict[str, V]:
    """The rows of a table from a file whose keys are legal names; the others are dropped and logged.
    ``separator``: splits keys that consist of several names. ``accepts``: an additional condition on keys."""
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
            "%s: %d rows are left out, because their names are illegal: %s",
            what,
            len(left_out),
            ", ".join(printable(key, _SHOWN) for key in left_out[:_LISTED]),
        )
    return sound


def path_below(directory: Path, *names: str | int) -> Path:
    """The path of plain words below a directory. Raises IllegalName for anything that could lead elsewhere.

    Every path that contains a name is built here, whatever was checked before.
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
