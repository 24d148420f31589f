"""``mqspark.archived``: the position up to which the log is verified to be in an archive. Written by the job
``archive``, read by retention (deleteArchivedOnly). RocketMQ ignores it.

    mqspark-archived-2 00000000000000004711 9d0ad5c7     the position, and the CRC-32 of what is before it

Retention deletes what lies before the position, so a number that is not sure counts as none."""

from __future__ import annotations

from mqspark.base.crc import crc32

ARCHIVED = "mqspark.archived"
_WORD = b"mqspark-archived-2"


def encode_archived(position: int) -> bytes:
    text = b"%s %020d" % (_WORD, position)
    return text + b" %08x\n" % crc32(text)


def decode_archived(data: bytes | None) -> int:
    """The position; 0 when nothing is archived or the file is invalid."""
    text, _, crc = (data or b"").rstrip(b"\n").rpartition(b" ")
    word, _, position = text.partition(b" ")
    return int(position) if word == _WORD and crc == b"%08x" % crc32(text) else 0
