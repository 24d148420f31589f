"""Stored records that look as most do: what a gRPC client gets of them is put together without an object of the
message, which would take half as much time again. ``grpcmessages`` says what that is, and makes all other messages.
"""

from __future__ import annotations

from typing import NamedTuple

from mqspark.base.bounded import Memo
from mqspark.base.crc import crc32
from mqspark.message import (
    BORN_TIMESTAMP,
    COMPRESSED,
    HOST_FLAGS,
    INNER_BATCH,
    NEED_UNWRAP,
    POP_CK,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    format_host,
)
from mqspark.record.record import BODY_CRC_MASK
from mqspark.record.recordlayout import BODY_AT, MAGIC_V1, MIN_RECORD_BYTES, fields
from mqspark_server.proxy.content.grpcmessages import Extras, host_of, usual_extras
from mqspark_server.proxy.content.systemkeys import BORN_HOST

_unpack = fields(
    "size", "magic", "crc", "queue_id", "queue_offset", "position", "sys_flag", "born_ms", "born_host", "store_ms",
    "store_host", "reconsume_times", "body_bytes",
).unpack_from  # fmt: skip
_UNUSUAL = HOST_FLAGS | COMPRESSED | INNER_BATCH | NEED_UNWRAP
_ID, _BORN = f"{UNIQ_KEY}\x01".encode(), f"\x02{BORN_TIMESTAMP}\x01".encode()


class UsualForm(NamedTuple):
    """What properties say that are the same but for the unique id and the born time."""

    tags: str | None
    born_host: str | None
    extras: Extras


def _form(rest: bytes) -> UsualForm | None:
    """``rest``: properties without the two values. None: those of a message that is not usual."""
    properties, at = decode_properties(rest), rest.find(_ID)
    extras = usual_extras(properties)
    if extras is None or POP_CK in properties or rest.count(_ID) != 1 or rest[:at][-1:] not in (b"", b"\x02"):
        return None
    return UsualForm(properties.get(TAGS), properties.get(BORN_HOST), extras)


_forms: Memo[bytes, UsualForm | None] = Memo(
    "proxy.forms", _form, weigh=lambda rest, form: 1_000 + 4 * len(rest)
)
_born_hosts: Memo[bytes, str] = Memo(
    "proxy.bornHosts", lambda host: host_of(format_host(host)), max_bytes=1 << 20
)
_store_hosts: Memo[bytes, str] = Memo("proxy.storeHosts", format_host, max_bytes=1 << 20)


UsualRecord = tuple[int, bytes, int, int, int, int, int, int, bytes, str, str, bytes, UsualForm]
"""Where the next record begins; topic's name, queue, queue offset, position, reconsume times, born time, store time,
unique id, born host, store host, body, form. A tuple with names takes half as much time again."""


def usual_record(data: bytes, begin: int) -> UsualRecord | None:
    """The record that begins there. None: it is not usual, or not whole."""
    if len(data) - begin < MIN_RECORD_BYTES:
        return None
    (
        size, magic, crc, queue_id, queue_offset, position, sys_flag, born_ms, born_host, stored_ms, store_host,
        reconsume_times, body_bytes,
    ) = _unpack(data, begin)  # fmt: skip
    body_at, end = begin + BODY_AT, begin + size
    body_end = body_at + body_bytes
    if magic != MAGIC_V1 or sys_flag & _UNUSUAL or body_bytes < 0 or body_end + 3 > end or end > len(data):
        return None
    topic_end = body_end + 1 + data[body_end]
    at = topic_end + 2
    if at > end or data[topic_end] << 8 | data[topic_end + 1] != end - at:
        return None
    id_at = data.find(_ID, at, end) + len(_ID)
    id_end = data.find(b"\x02", id_at, end)
    if id_at < at + len(_ID) or id_end <= id_at:
        return None
    born_at = data.find(_BORN, id_end, end) + len(_BORN)
    born_end = data.find(b"\x02", born_at, end) if born_at >= id_end + len(_BORN) else -1
    if born_end < 0:
        form = _forms[data[at:id_at] + data[id_end:end]]
    else:
        form = _forms[b"%b%b%b" % (data[at:id_at], data[id_end:born_at], data[born_end:end])]
    message_id, body = data[id_at:id_end], data[body_at:body_end]
    if form is None or not message_id.isascii() or (body and crc32(body) & BODY_CRC_MASK != crc):
        return None
    return (
        end,
        data[body_end + 1 : topic_end],
        queue_id,
        queue_offset,
        position,
        reconsume_times,
        born_ms,
        stored_ms,
        message_id,
        form.born_host or _born_hosts[born_host],
        _store_hosts[store_host],
        body,
        form,
    )
