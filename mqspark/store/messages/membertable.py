"""The members of a batch as a table, when all have the same layout, as the rows of a DataFrame mostly do.

The batch is an array of structures, one per member, and so are its records. Each field is one strided copy of
a column; only the CRC of a body takes a call per member. For thousands of small members this takes a fifth of
the time of finding the start of each (``mqspark.store.messages.members``). From ``MIN_ALIKE`` on it is
cheaper than single processing (``mqspark.record.batchitems.split_batch``), and the records enter the log as one piece.

Must not know queues or files.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mqspark.base.propertystring import ITEM_END
from mqspark.record.batchitems import EqualBodies
from mqspark.record.record import TAGS_START
from mqspark.record.recordlayout import I16, I32
from mqspark.store.log.scan import tags_codes
from mqspark.store.messages.members import HEAD_BYTES, MIN_BYTES, MIN_MEMBERS, Common, MemberColumns, Sizes

MIN_ALIKE = 12
"""At 8 members a known layout saves a fifteenth of the cost of single processing, less than a new layout
costs."""

Ints = npt.NDArray[np.int64]

_FLAG_AT, _BODY_LENGTH_AT = 12, 16
_LAYOUTS = 256
"""Limit of cached layouts. A producer's batches have few; creating one takes some microseconds."""


@functools.lru_cache(_LAYOUTS)
def _member_dtype(size: int, body_bytes: int) -> np.dtype[np.void]:
    """The lengths, which must be equal, are compared as bytes. The tail begins with the properties' length."""
    body_end = HEAD_BYTES + body_bytes
    return np.dtype(
        {
            "names": ["size", "flag", "body_bytes", "body", "property_bytes", "tail"],
            "formats": ["V4", ">i4", "V4", f"V{body_bytes}", "V2", f"V{size - body_end}"],
            "offsets": [0, _FLAG_AT, _BODY_LENGTH_AT, HEAD_BYTES, body_end, body_end],
            "itemsize": size,
        }
    )


@functools.lru_cache(_LAYOUTS)
def _record_dtype(
    head: np.dtype[np.void], body_bytes: int, topic_bytes: int, tail_bytes: int
) -> np.dtype[np.void]:
    """``common`` is the head once more, as bytes: copying whole heads takes a tenth of the time."""
    body_at = head.itemsize
    topic_at = body_at + body_bytes
    tail_at = topic_at + topic_bytes
    return np.dtype(
        {
            "names": ["head", "common", "body", "topic", "tail"],
            "formats": [head, f"V{head.itemsize}", f"V{body_bytes}", f"V{topic_bytes}", f"V{tail_bytes}"],
            "offsets": [0, 0, body_at, topic_at, tail_at],
            "itemsize": tail_at + tail_bytes,
        }
    )


@dataclass(slots=True)
class MemberTable:
    """The counterpart of ``MemberColumns`` for members with equal body lengths and equal property lengths."""

    members: npt.NDArray[np.void]
    """Array of a ``_member_dtype``."""
    tails: bytes
    """What follows the bodies in the records, contiguous: the two bytes of the properties' length, and the
    properties."""
    largest: tuple[int, int]
    """Bytes of each body and of each member's properties."""

    @classmethod
    def of(cls, data: bytes | memoryview) -> MemberTable | None:
        """None when there are fewer than ``MIN_ALIKE`` members, when their lengths differ, or when they are
        malformed."""
        if len(data) < MIN_ALIKE * MIN_BYTES:
            return None
        (size,), (body,) = I32.unpack_from(data), I32.unpack_from(data, _BODY_LENGTH_AT)
        if size < MIN_BYTES or len(data) % size or not 0 <= body <= size - MIN_BYTES:
            return None
        count, body_end = len(data) // size, HEAD_BYTES + body
        if count < MIN_ALIKE or I16.unpack_from(data, body_end) != (size - body_end - 2,):
            return None
        members = np.ndarray((count,), _member_dtype(size, body), data)
        for name in ("size", "body_bytes", "property_bytes"):
            lengths = members[name].tobytes()
            if lengths != lengths[: len(lengths) // count] * count:
                return None
        return cls(members, members["tail"].tobytes(), (body, size - body_end - 2))

    def with_suffix(self, suffix: bytes) -> BatchMembers:
        """As ``MemberColumns.with_suffix``. Not a table when only some properties need a separator before the
        suffix."""
        body, properties = self.largest
        if properties:
            finished = self.tails[properties + 1 :: properties + 2].count(ITEM_END.encode())
            if 0 < finished < len(self):
                return self._columns().with_suffix(suffix)
            if not finished:
                suffix = ITEM_END.encode() + suffix
        longer = properties + len(suffix)
        own = np.frombuffer(self.tails, [("length", "V2"), ("properties", f"V{properties}")])
        tails = np.empty(len(self), [*own.dtype.descr, ("suffix", f"V{len(suffix)}")])
        tails["length"] = np.void(I16.pack(longer))
        tails["properties"] = own["properties"]
        tails["suffix"] = np.void(suffix)
        return replace(self, tails=tails.tobytes(), largest=(body, longer))

    def _each_tail(self) -> list[bytes]:
        step = self.largest[1] + 2
        return [self.tails[at : at + step] for at in range(0, len(self.tails), step)]

    def _columns(self) -> MemberColumns:
        members, (body, properties) = self.members, self.largest
        body_starts = np.arange(HEAD_BYTES, members.nbytes, members.itemsize)
        body_ends = body_starts + body
        tail_bytes = np.full(len(self), properties + 2)
        flags = members["flag"].astype(np.int32)
        return MemberColumns(
            members.tobytes(),
            flags,
            body_starts,
            body_ends,
            body_ends + tail_bytes,
            self._each_tail(),
            tail_bytes,
            members["body"].tolist(),
        )

    def items(self) -> list[tuple[int, bytes, bytes]]:
        """As ``MemberColumns.items``."""
        flags, bodies = self.members["flag"].tolist(), self.members["body"].tolist()
        properties = [tail[2:] for tail in self._each_tail()]
        return list(zip(flags, bodies, properties, strict=True))

    def bodies(self) -> Sequence[bytes]:
        """As ``MemberColumns.bodies``."""
        size = self.largest[0]
        return EqualBodies(self.members["body"].tobytes(), size) if size else [b""] * len(self)

    def __len__(self) -> int:
        return len(self.members)

    def any_has(self, *texts: bytes) -> bool:
        """As ``MemberColumns.any_has``."""
        return any(text in self.tails for text in texts)

    @property
    def body_bytes(self) -> int:
        return len(self.members) * self.largest[0]

    def sizes(self, overhead_bytes: int) -> Sizes:
        """As ``MemberColumns.sizes``."""
        size = overhead_bytes + sum(self.largest)
        return Sizes(size, len(self.members) * size)

    def tags_codes(self) -> Ints | int:
        """As ``MemberColumns.tags_codes``."""
        if TAGS_START not in self.tails:
            return 0
        properties = self.largest[1]
        starts = np.arange(2, len(self.tails), properties + 2)
        return tags_codes(memoryview(self.tails), starts, starts + properties)

    def records(self, common: Common, sizes: Ints | int, positions: Ints) -> bytes | memoryview:
        """As ``MemberColumns.records``."""
        members, (body, properties), topic_field = self.members, self.largest, common.topic_field
        dtype = _record_dtype(common.dtype, body, len(topic_field), properties + 2)
        size, count = dtype.itemsize, len(members)
        head = bytearray(common.head)
        I32.pack_into(head, 0, size)
        I32.pack_into(head, len(head) - I32.size, body)
        data = np.empty(count * size, np.uint8).data
        records: npt.NDArray[np.void] = np.ndarray((count,), dtype, data)
        records["common"] = np.void(bytes(head))
        records["body"] = members["body"]
        records["topic"] = np.void(topic_field)
        records["tail"] = np.frombuffer(self.tails, dtype["tail"])
        common.fill(records["head"], members["body"].tolist(), members["flag"], positions)
        return data


BatchMembers = MemberColumns | MemberTable


def batch_members(data: bytes | memoryview) -> BatchMembers | None:
    """The members of a batch; None when they are few. Raises InvalidMessage when a length is wrong."""
    table = MemberTable.of(data)
    if table is not None or len(data) < MIN_MEMBERS * MIN_BYTES:
        return table
    return MemberColumns.of(bytes(data))
