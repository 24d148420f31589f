"""``mqspark.archived``: the position up to which the log is verified to be in an archive. Written by the job
``archive``, read by retention (deleteArchivedOnly). RocketMQ ignores it."""

from __future__ import annotations

__all__ = ["ARCHIVED", "decode_archived", "encode_archived"]

ARCHIVED = "mqspark.archived"
_WORD = b"mqspark-archived-1"


def encode_archived(position: int) -> bytes:
    return b"%s %020d\n" % (_WORD, position)


def decode_archived(data: bytes | None) -> int:
    """The position; 0 when nothing is archived or the file is invalid."""
    word, _, position = (data or b"").strip().partition(b" ")
    return int(position) if word == _WORD and position.isdigit() else 0
