"""Which of many records of one queue are surely whole, as columns: what is asked of all that a consumer is given from
the disk.

Says yes only to what is plain: hosts of IPv4, the queue's own topic, offset and place, lengths that agree, a body with
its CRC. Whoever asked looks at the others one by one (``mqspark.record.check_record``).

Must not know files.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mqspark.crc import crc32
from mqspark.message import BORN_HOST_V6, STORE_HOST_V6
from mqspark.store.consumequeue import ConsumeQueue
from mqspark.store.members import HEAD_DTYPES

__all__ = ["MIN_RECORDS", "surely_sound"]

Int64s = npt.NDArray[np.int64]

MIN_RECORDS = 8
"""Below, the columns cost more than looking at the records one by one."""
_HEAD = HEAD_DTYPES[0]


def surely_sound(
    view: memoryview, starts: Int64s, ends: Int64s, base: int, queue: ConsumeQueue, offsets: Int64s
) -> npt.NDArray[np.bool_]:
    """One for each record [start, end) of ``view``, whose first byte is the log's ``base``; ``offsets``: what the queue
    says theirs are. Sizes and magics were looked at before (``heads_agree``)."""
    topic = np.frombuffer(queue.topic_field, np.uint8)
    last = len(view) - _HEAD.itemsize
    every = np.ndarray((last + 1,), f"V{_HEAD.itemsize}", buffer=view, strides=(1,))
    heads = every[np.minimum(starts, last)].view(_HEAD)
    body_starts = starts + _HEAD.itemsize
    body_ends = body_starts + heads["body_bytes"]
    properties = body_ends + len(topic) + 2
    good: npt.NDArray[np.bool_] = heads["position"] == starts + base
    good &= heads["magic"] == queue.record_magic
    good &= heads["sys_flag"] & (BORN_HOST_V6 | STORE_HOST_V6) == 0
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
