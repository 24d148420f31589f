"""The members of a large batch send as columns, and the resulting records, without a Python object per
member.

A batch is walked once, from size to size. Everything else is arithmetic on columns and one join of slices.
For thousands of small members that takes a third of the time of single processing. Below ``MIN_MEMBERS`` the
columns cost more than they save (``mqspark.record.batchitems.split_batch``). Members with equal lengths are faster as a
table (``mqspark.store.messages.membertable``).

Must not know queues or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.base.crc import crc32
from mqspark.base.propertystring import ITEM_END
from mqspark.errors import InvalidMessage
from mqspark.message import HOST_FLAGS
from mqspark.record.batchitems import split_batch
from mqspark.record.record import TAGS_START
from mqspark.record.recordlayout import HEAD, HOST_BYTES, I32, columns
from mqspark.store.log.scan import tags_codes
from mqspark.store.queue.consumequeue import ENTRY_DTYPE

Ints = npt.NDArray[np.int64]
Heads = npt.NDArray[np.void]
"""Heads of records, of one of ``HEAD_DTYPES``."""

MIN_MEMBERS = 64

HEAD_BYTES = 20
"""Head of a member: size, magic, CRC, flag, body length. Magic and CRC are ignored, as in
MessageDecoder.decodeMessage."""
MIN_BYTES = HEAD_BYTES + 2


HEAD_DTYPES: dict[int, np.dtype[np.void]] = {
    flags: np.dtype(columns(*HEAD, born_bytes=born, store_bytes=store))
    for flags, (born, store) in HOST_BYTES.items()
}
"""The head by ``system flag & HOST_FLAGS``."""


class Common(NamedTuple):
    """What all records of a batch have in common."""

    head: bytes
    """The head of the first. Size, CRC, flag and body length are 0."""
    sys_flag: int
    queue_offset: int
    topic_field: bytes

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The type of the heads."""
        return HEAD_DTYPES[self.sys_flag & HOST_FLAGS]

    def fill(self, heads: Heads, bodies: list[bytes], flags: npt.NDArray[np.int32], positions: Ints) -> None:
        """Set the fields that always differ in copies of the head."""
        count = len(heads)
        heads["crc"] = np.fromiter(map(crc32, bodies), np.uint32, count) & 0x7FFFFFFF
        heads["flag"] = flags
        heads["queue_offset"] = np.arange(self.queue_offset, self.queue_offset + count)
        heads["position"] = positions


class Sizes(NamedTuple):
    """Sizes of consecutive records."""

    each: Ints | int
    """A number when all have the same size."""
    total: int

    def positions(self, first: int) -> Ints:
        """Positions of the records when the first is at ``first``."""
        if isinstance(self.each, int):
            return np.arange(first, first + self.total, self.each)
        return np.cumsum(self.each) - self.each + first


@dataclass(slots=True, frozen=True)
class MemberColumns:
    """Members of a batch. Places are relative to ``data``, the body of the send."""

    data: bytes
    flags: npt.NDArray[np.int32]
    body_starts: Ints
    body_ends: Ints
    ends: Ints
    tails: list[bytes]
    """What follows a body in a record: the two bytes of the properties' length, and the properties."""
    tail_bytes: Ints
    each_body: list[bytes]

    @classmethod
    def of(cls, data: bytes) -> MemberColumns | None:
        """None when there are fewer than ``MIN_MEMBERS``. Raises InvalidMessage when a length is wrong."""
        starts = _starts(data)
        if starts is not None and len(starts) < MIN_MEMBERS:
            return None
        columns = None if starts is None else cls._at(data, np.array(starts, np.int64))
        if columns is None:
            split_batch(data)  # raises with the place and the reason
            raise InvalidMessage("a batch item has impossible lengths", field="body")
        return columns

    @classmethod
    def _at(cls, data: bytes, starts: Ints) -> MemberColumns | None:
        ints = np.ndarray((len(data) - 3,), ">i4", buffer=data, strides=(1,))
        shorts = np.ndarray((len(data) - 1,), ">i2", buffer=data, strides=(1,))
        ends = np.append(starts[1:], len(data))
        body_starts = starts + HEAD_BYTES
        body_ends = body_starts + ints[starts + 16]
        if (body_ends < body_starts).any() or (body_ends + 2 > ends).any():
            return None
        property_lengths = shorts[body_ends]
        if (property_lengths < 0).any() or (body_ends + 2 + property_lengths != ends).any():
            return None
        middles = body_ends.tolist()
        tails = [data[low:high] for low, high in zip(middles, ends.tolist(), strict=True)]
        bodies = [data[low:high] for low, high in zip(body_starts.tolist(), middles, strict=True)]
        flags = ints[starts + 12].astype(np.int32)
        return cls(data, flags, body_starts, body_ends, ends, tails, ends - body_ends, bodies)

    def with_suffix(self, suffix: bytes) -> MemberColumns:
        """A copy with more properties after those of every member. ``suffix``: encoded in the same way."""
        joined = ITEM_END.encode() + suffix
        mores = [suffix if len(tail) == 2 or tail[-1] == 2 else joined for tail in self.tails]
        tail_bytes = self.tail_bytes + np.fromiter(map(len, mores), np.int64, len(mores))
        lengths = (tail_bytes - 2).astype(">i2").tobytes()
        each = zip(range(0, len(lengths), 2), self.tails, mores, strict=True)
        tails = [lengths[at : at + 2] + tail[2:] + more for at, tail, more in each]
        return replace(self, tails=tails, tail_bytes=tail_bytes)

    def items(self) -> list[tuple[int, bytes, bytes]]:
        """Flag, body and properties of each member, as ``mqspark.record.batchitems.split_batch``."""
        each = zip(self.flags.tolist(), self.each_body, self.tails, strict=True)
        return [(flag, body, tail[2:]) for flag, body, tail in each]

    def bodies(self) -> Sequence[bytes]:
        return self.each_body

    def __len__(self) -> int:
        return len(self.ends)

    def any_has(self, *texts: bytes) -> bool:
        """Whether the properties may contain one of the texts. Bodies, which are many times longer, are not
        searched."""
        joined = b"".join(self.tails)
        return any(text in joined for text in texts)

    @property
    def body_bytes(self) -> int:
        return int((self.body_ends - self.body_starts).sum())

    @property
    def largest(self) -> tuple[int, int]:
        """Bytes of the longest body and of the longest properties."""
        return int((self.body_ends - self.body_starts).max()), int(self.tail_bytes.max()) - 2

    def sizes(self, overhead_bytes: int) -> Sizes:
        """Sizes of the records. ``overhead_bytes``: everything but body and properties."""
        sizes = self.body_ends - self.body_starts + self.tail_bytes + (overhead_bytes - 2)
        return Sizes(sizes, int(sizes.sum()))

    def tags_codes(self) -> Ints | int:
        """``mqspark.record.record.tags_code`` of every member, or one for all."""
        if not self.any_has(TAGS_START):
            return 0
        return tags_codes(memoryview(self.data), self.body_ends + 2, self.ends)

    def records(self, common: Common, sizes: Ints | int, positions: Ints) -> bytes | memoryview:
        """All records, contiguous."""
        bodies, count = self.each_body, len(self)
        heads = np.full(count, np.frombuffer(common.head, common.dtype)[0])
        heads["size"], heads["body_bytes"] = sizes, self.body_ends - self.body_starts
        common.fill(heads, bodies, self.flags, positions)
        packed, step = heads.tobytes(), len(common.head)
        pieces: list[bytes] = [common.topic_field] * (4 * count)
        pieces[0::4] = [packed[low : low + step] for low in range(0, len(packed), step)]
        pieces[1::4] = bodies
        pieces[3::4] = self.tails
        return b"".join(pieces)


def queue_entries(positions: Ints, sizes: Ints | int, codes: Ints | int) -> bytes:
    """The ConsumeQueue entries of these records."""
    found = np.empty(len(positions), ENTRY_DTYPE)
    found["position"], found["size"], found["tags_code"] = positions, sizes, codes
    return found.tobytes()


def _starts(data: bytes) -> list[int] | None:
    """Starts of the members when each ends where its size says; None when a size is impossible."""
    unpack, at, last = I32.unpack_from, 0, len(data) - MIN_BYTES
    starts: list[int] = []
    append = starts.append
    while at <= last:
        append(at)
        (size,) = unpack(data, at)
        if size < MIN_BYTES:
            return None
        at += size
    return starts if at == len(data) else None
