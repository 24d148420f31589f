"""Tables that tools and slaves read in pages (for example TopicConfigManager.subTopicConfigTable)."""

from __future__ import annotations

from collections.abc import Callable

from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import DataVersion
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal


def page_of(
    command: Command,
    names: Callable[[int, int], list[str]],
    version: DataVersion,
    most: int,
    *,
    first_key: str,
    limit_key: str,
) -> list[str] | None:
    """The requested part of a table, of which ``names`` returns names by their places; None for the whole table.
    Reading restarts when the table has changed."""
    ext = command.ext
    asked_version = ext.get("dataVersion")
    if first_key not in ext and limit_key not in ext and asked_version is None:
        return None
    first = _number(ext, first_key, 0)
    limit = _number(ext, limit_key, most)
    if not asked_version or decode_body(DataVersion, asked_version.encode()) != version:
        first = 0
    first = max(0, first)
    return names(first, first + max(0, min(limit, most)))


def _number(ext: dict[str, str], key: str, default: int) -> int:
    text = ext.get(key)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 11):
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"{key}={text[:40]!r} is not a number")
    return int(text)
