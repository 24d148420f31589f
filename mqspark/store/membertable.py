"""The members of a batch as a table, when all are of one layout, as what a DataFrame's rows become mostly is.

The batch is a table of bytes, a row a member, and so are its records: each field is one strided copy of a column, and
nothing but the CRC of a body is a call a member. For thousands of small members that is a fifth of what it costs to
find out where each one begins (``mqspark.store.members``); from ``MIN_ALIKE`` on it costs less than to take them one by
one (``mqspark.record.split_batch``), and they leave for the log in one piece.

Must not know queues or files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mqspark.crc import crc32
from mqspark.store.members import HEAD_BYTES, MIN_BYTES, MIN_MEMBERS, Head, MemberColumns
from mqspark.store.scan import tags_codes

__all__ = ["MIN_ALIKE", "Many", "MemberTable", "many_of"]

MIN_ALIKE = 32

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.uint8]
"""Two dimensions: a row a member."""

_SIZE = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
"""Of the properties."""
_FLAG_AT, _BODY_LENGTH_AT = 12, 16


@dataclass(slots=True, frozen=True)
class MemberTable:
    """What ``MemberColumns`` is, for members whose bodies, and whose properties, are of one length."""

    data: bytes | memoryview
    flags: npt.NDArray[np.int32]
    bodies: Table
    """A view of ``data``."""
    tails: Table
    """What follows a body in a record: the properties' length, two bytes, and they themselves."""

    @classmethod
    def of(cls, data: bytes | memoryview) -> MemberTable | None:
        """None when there are fewer than ``MIN_ALIKE``, or when they are not alike (or not members)."""
        if len(data) < MIN_ALIKE * MIN_BYTES:
            return None
        (size,), (body,) = _SIZE.unpack_from(data), _SIZE.unpack_from(data, _BODY_LENGTH_AT)
        if size < MIN_BYTES or len(data) % size or not 0 <= body <= size - MIN_BYTES:
            return None
        count, body_end = len(data) // size, HEAD_BYTES + body
        if count < MIN_ALIKE:
            return None
        if _LENGTH.unpack_from(data, body_end) != (size - body_end - 2,):
            return None

        def column(at: int, kind: str) -> npt.NDArray[np.integer[Any]]:
            return np.ndarray((count,), kind, buffer=data, offset=at, strides=(size,))

        for at, kind, width in ((0, ">i4", 4), (_BODY_LENGTH_AT, ">i4", 4), (body_end, ">i2", 2)):
            if column(at, kind).tobytes() != bytes(data[at : at + width]) * count:
                return None
        table = np.frombuffer(data, np.uint8).reshape(count, size)
        flags = column(_FLAG_AT, ">i4").astype(np.int32)
        return cls(data, flags, table[:, HEAD_BYTES:body_end], table[:, body_end:])

    def with_suffix(self, suffix: bytes) -> Many:
        """As ``MemberColumns.with_suffix``; no table when only some properties need a separator before it."""
        count, old_bytes = self.tails.shape
        if old_bytes > 2:
            unfinished = self.tails[:, -1] != 2
            if unfinished.any():
                if not unfinished.all():
                    return self._columns().with_suffix(suffix)
                suffix = b"\x02" + suffix
        tails = np.empty((count, old_bytes + len(suffix)), np.uint8)
        tails[:, :2] = np.array([tails.shape[1] - 2], ">i2").view(np.uint8)
        tails[:, 2:old_bytes] = self.tails[:, 2:]
        tails[:, old_bytes:] = np.frombuffer(suffix, np.uint8)
        return replace(self, tails=tails)

    def _columns(self) -> MemberColumns:
        starts = np.arange(len(self), dtype=np.int64) * self.bodies.strides[0] + HEAD_BYTES
        body_ends = starts + self.bodies.shape[1]
        tails = [tail.tobytes() for tail in self.tails]
        ends = body_ends + self.tails.shape[1]
        return MemberColumns(bytes(self.data), self.flags, starts, body_ends, ends, tails, ends - body_ends)

    def items(self) -> list[tuple[int, bytes, bytes]]:
        """Flag, body and properties of each, as ``mqspark.record.split_batch`` gives them."""
        each = zip(self.flags.tolist(), self.bodies, self.tails, strict=True)
        return [(flag, body.tobytes(), tail[2:].tobytes()) for flag, body, tail in each]

    def __len__(self) -> int:
        return len(self.flags)

    def any_has(self, *texts: bytes) -> bool:
        """As ``MemberColumns.any_has``."""
        if self.tails.shape[1] == 2:
            return False
        joined = self.tails.tobytes()
        return any(text in joined for text in texts)

    @property
    def body_bytes(self) -> int:
        return self.bodies.size

    @property
    def largest(self) -> tuple[int, int]:
        """Bytes of the longest body and of the longest properties."""
        return self.bodies.shape[1], self.tails.shape[1] - 2

    def sizes(self, overhead_bytes: int) -> Ints:
        """Of the records; ``overhead_bytes``: of all that is not body or properties."""
        return np.full(len(self), sum(self.largest) + overhead_bytes, np.int64)

    def tags_codes(self) -> Ints:
        """``mqspark.record.tags_code`` of every member."""
        if not self.any_has(b"TAGS\x01"):
            return np.zeros(len(self), np.int64)
        step = self.tails.shape[1]
        starts = np.arange(len(self), dtype=np.int64) * step + 2
        return tags_codes(memoryview(self.tails.tobytes()), starts, starts + (step - 2))

    def records(self, head: Head, sizes: Ints, positions: Ints, first_queue_offset: int) -> memoryview:
        """All records, back to back."""
        common, topic = head.packed(), head.topic_field
        body_end = len(common) + self.bodies.shape[1]
        tails_at = body_end + len(topic)
        table = np.empty((len(self), tails_at + self.tails.shape[1]), np.uint8)
        table[:, : len(common)] = np.frombuffer(common, np.uint8)
        table[:, len(common) : body_end] = self.bodies
        table[:, body_end:tails_at] = np.frombuffer(topic, np.uint8)
        table[:, tails_at:] = self.tails
        heads = np.ndarray((len(self),), head.dtype, buffer=table.data, strides=table.strides[:1])
        head.fill(heads, sizes, self._crcs(), self.flags, positions, first_queue_offset, self.bodies.shape[1])
        return table.reshape(-1).data

    def _crcs(self) -> Ints:
        body_bytes = self.bodies.shape[1]
        if not body_bytes:
            return np.zeros(len(self), np.int64)
        # Bodies as elements of an array: as a list of bytes they cost a fourth of what slices of the data do.
        kind, strides = np.dtype((np.void, body_bytes)), self.bodies.strides[:1]
        bodies = np.ndarray((len(self),), kind, buffer=self.data, offset=HEAD_BYTES, strides=strides)
        return np.array(list(map(crc32, bodies.tolist())), np.int64)


Many = MemberColumns | MemberTable


def many_of(data: bytes | memoryview) -> Many | None:
    """The members of a batch; None when they are few. Raises InvalidMessage when a length is wrong."""
    table = MemberTable.of(data)
    if table is not None or len(data) < MIN_MEMBERS * MIN_BYTES:
        return table
    return MemberColumns.of(bytes(data))
