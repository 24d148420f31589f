"""Which records of one queue are surely whole: what is asked of all that a consumer is given from the disk. A few are
looked at one after the other, many as columns.

Says yes only to what is plain: hosts of IPv4, the queue's own topic, offset and place, lengths that agree, a body with
its CRC. Whoever asked looks at the others one by one (``mqspark.record.check_record``).

Must not know files.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from mqspark.crc import crc32
from mqspark.message import BORN_HOST_V6, STORE_HOST_V6
from mqspark.store.consumequeue import ConsumeQueue
from mqspark.store.members import HEAD_DTYPES

__all__ = ["surely_sound"]

Int64s = npt.NDArray[np.int64]

MIN_COLUMN_RECORDS = 64
"""Below, the steps of the columns cost more than a loop."""
_HEAD = HEAD_DTYPES[0]
_FIELDS = struct.Struct(">4i4xqqi44xi")
"""Size, magic, CRC, queue, queue offset, place, system flag and length of the body: of the same bytes."""
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6


def surely_sound(
    view: memoryview, starts: Int64s, ends: Int64s, base: int, queue: ConsumeQueue, offsets: Int64s
) -> npt.NDArray[np.bool_]:
    """One for each record [start, end) of ``view``, whose first byte is the log's ``base``; ``offsets``: what the queue
    says theirs are."""
    if len(starts) < MIN_COLUMN_RECORDS:
        return _one_by_one(view, starts, ends, base, queue, offsets)
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
    good &= heads["sys_flag"] & _HOSTS_V6 == 0
    good &= heads["queue_id"] == queue.queue_id
    good &= heads["queue_offset"] == offsets
    good &= (body_ends >= body_starts) & (properties <= ends)
    # Where it is not, the lengths point anywhere: look at the file's beginning instead.
    at = np.where(good, body_ends, 0)
    octets = np.frombuffer(view, np.uint8)
    good &= (octets[at[:, None] + np.arange(len(topic))] == topic).all(axis=1)
    lengths = octets[at + len(topic)].astype(np.int64) << 8 | octets[at + len(topic) + 1]
    good &= lengths == ends - properties
    crcs = heads["crc"].tolist()
    for index, (low, high) in enumerate(zip(body_starts.tolist(), at.tolist(), strict=True)):
        if low < high and crc32(view[low:high]) & 0x7FFFFFFF != crcs[index]:
            good[index] = False
    return good


def _one_by_one(
    view: memoryview, starts: Int64s, ends: Int64s, base: int, queue: ConsumeQueue, offsets: Int64s
) -> npt.NDArray[np.bool_]:
    length, head_bytes, read_head = len(view), _FIELDS.size, _FIELDS.unpack_from
    tail = struct.Struct(
        f">{len(queue.topic_field)}sh"
    )  # the topic with its length; how long the properties are
    tail_bytes, read_tail = tail.size, tail.unpack_from
    good = []
    for start, end, offset in zip(starts.tolist(), ends.tolist(), offsets.tolist(), strict=True):
        sound = end <= length
        if sound:
            size, magic, crc, queue_id, queue_offset, position, sys_flag, body_bytes = read_head(view, start)
            low = start + head_bytes
            high = low + body_bytes
            sound = (
                position == start + base
                and queue_offset == offset
                and size == end - start
                and magic == queue.record_magic
                and queue_id == queue.queue_id
                and not sys_flag & _HOSTS_V6
                and low <= high <= end - tail_bytes
                and read_tail(view, high) == (queue.topic_field, end - high - tail_bytes)
                and (low == high or crc32(view[low:high]) & 0x7FFFFFFF == crc)
            )
        good.append(sound)
    return np.array(good, np.bool_)
