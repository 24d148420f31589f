"""Fast checks that records of one queue are intact, for one record or for many as columns. Every record that
a consumer gets from the disk is checked.

Returns True only for the common case: IPv4 hosts, the queue's own topic, offset and position, consistent
lengths, and a body that matches its CRC. The caller checks the others one by one
(``mqspark.record.record.check_record``).

Must not know files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mqspark.base.crc import crc32
from mqspark.message import HOST_FLAGS
from mqspark.record.recordlayout import fields
from mqspark.store.messages.members import HEAD_DTYPES
from mqspark.store.queue.consumequeue import ConsumeQueue

Int64s = npt.NDArray[np.int64]

_HEAD = HEAD_DTYPES[0]
_read_head = fields(
    "size", "magic", "crc", "queue_id", "queue_offset", "position", "sys_flag", "body_bytes"
).unpack_from
"""Size, magic, CRC, queue id, queue offset, physical offset, system flag and body length, at their places in
a record."""


def are_surely_sound(
    view: memoryview,
    starts: Int64s,
    ends: Int64s,
    base: int | Int64s,
    queue: ConsumeQueue,
    offsets: Int64s,
) -> npt.NDArray[np.bool_]:
    """One result for each record [start, end) of ``view``. ``base`` is the log position of the view's first
    byte, or one number per record when they were copied together. ``offsets``: the expected queue offsets."""
    topic = np.frombuffer(queue.topic_field, np.uint8)
    last = len(view) - _HEAD.itemsize
    every = np.ndarray((last + 1,), f"V{_HEAD.itemsize}", buffer=view, strides=(1,))
    heads = every[np.minimum(starts, last)].view(_HEAD)
    body_starts = starts + _HEAD.itemsize
    body_ends = body_starts + heads["body_bytes"]
    properties = body_ends + len(topic) + 2
    good: npt.NDArray[np.bool_] = heads["position"] == starts + base
    good &= heads["size"] == ends - starts
    good &= heads["magic"] == queue.record_magic
    good &= heads["sys_flag"] & HOST_FLAGS == 0
    good &= heads["queue_id"] == queue.queue_id
    good &= heads["queue_offset"] == offsets
    good &= (body_ends >= body_starts) & (properties <= ends)
    # The lengths of an invalid record are arbitrary: read at the start of the file instead.
    at = np.where(good, body_ends, 0)
    octets = np.frombuffer(view, np.uint8)
    good &= (octets[at[:, None] + np.arange(len(topic))] == topic).all(axis=1)
    lengths = octets[at + len(topic)].astype(np.int64) << 8 | octets[at + len(topic) + 1]
    good &= lengths == ends - properties
    bodies = zip(body_starts.tolist(), at.tolist(), strict=True)
    crcs = [crc32(view[low:high]) & 0x7FFFFFFF for low, high in bodies]
    if crcs != heads["crc"].tolist():
        good &= heads["crc"] == crcs
    return good


def surely_sound(queue: ConsumeQueue | None) -> Callable[[memoryview, int, int, int, int], bool]:
    """A check of one record of the queue: ``view``, start and end in it, expected position and queue offset.
    Without a queue no record is surely sound."""
    if queue is None:
        return _is_unsure
    topic, expected_magic, number = queue.topic_field, queue.record_magic, queue.queue_id
    tail = _tail(len(topic))
    tail_bytes, read_tail = tail.size, tail.unpack_from

    def is_sound(view: memoryview, start: int, end: int, position: int, offset: int) -> bool:
        if end > len(view):
            return False
        size, magic, crc, queue_id, queue_offset, physical, sys_flag, body_bytes = _read_head(view, start)
        low = start + _HEAD.itemsize
        high = low + body_bytes
        return (
            physical == position
            and queue_offset == offset
            and size == end - start
            and magic == expected_magic
            and queue_id == number
            and not sys_flag & HOST_FLAGS
            and low <= high <= end - tail_bytes
            and read_tail(view, high) == (topic, end - high - tail_bytes)
            and crc32(view[low:high]) & 0x7FFFFFFF == crc
        )

    return is_sound


def _is_unsure(_view: memoryview, _start: int, _end: int, _position: int, _offset: int) -> bool:
    return False


@lru_cache(256)
def _tail(topic_bytes: int) -> struct.Struct:
    """The topic with its length, and the length of the properties."""
    return struct.Struct(f">{topic_bytes}sh")
