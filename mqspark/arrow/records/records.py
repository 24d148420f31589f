"""Record positions and heads of a buffer of stored records, as numpy arrays.

Head fields have fixed offsets up to the first IPv6 host, which shifts the rest, so the heads of many records are
one gather, and a column of them is a view of it. Callers check positions (``mqspark.arrow.records.decode``). Must
not know about columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqspark.base.logs import sparing
from mqspark.errors import InvalidMessage
from mqspark.message import BORN_HOST_V6, COMPRESSED, INNER_BATCH, NEED_UNWRAP, STORE_HOST_V6
from mqspark.record.batchitems import split_batch
from mqspark.record.compression import LIMITS, InflateLimits
from mqspark.record.record import MAX_BATCH_MESSAGES, decode_record, encode_record
from mqspark.record.recordlayout import (
    AT,
    BODY_AT,
    MAGIC_BYTE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    V6_EXTRA_BYTES,
    spans,
)

log = sparing(__name__)

Ints = npt.NDArray[np.int64]

_UNWRAPPED_BYTES = 16 << 20
"""Approximate bytes of records unpacked from inner batches at a time."""

QUEUE_OFFSET, SYS_FLAG, BODY_LENGTH, BODY = AT["queue_offset"], AT["sys_flag"], AT["body_bytes"], BODY_AT
_BORN_HOST, BORN_HOST_END = AT["born_host"], AT["store_ms"]
_BORN_HOST_END_V6 = BORN_HOST_END + V6_EXTRA_BYTES

_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_time", ">i8"),
        ("born_host", "V8"),
        ("store_time", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_length", ">i4"),
    ]
)
"""A head whose hosts are IPv4; with IPv6 only the fields before the first host are correct."""


_CACHE_LINE_BYTES = 64


def _keep_freed_memory() -> None:
    """glibc returns freed blocks above a threshold to the kernel; the threshold grows with the largest block
    freed so far (mallopt(3), M_MMAP_THRESHOLD). Otherwise columns of a megabyte would be fresh pages in every
    batch, which cost several times as much as filling them. The block is not touched, so it costs nothing; other
    allocators are not affected."""
    np.empty(16 << 20, np.uint8)


_keep_freed_memory()


class Records:
    """A buffer of records and its views; reused for all batches of one segment."""

    __slots__ = ("_buffer", "_heads", "arrow", "bytes", "i32", "i64", "size_bytes", "u16")

    def __init__(self, buffer: Any) -> None:
        """``buffer``: anything with the buffer protocol; it stays alive as long as an Arrow array refers to it."""
        self._buffer = buffer
        self.arrow = pa.py_buffer(buffer)
        self.bytes = np.frombuffer(buffer, np.uint8)
        self.size_bytes = self.bytes.size
        # Views with a stride of one byte: index them by position to gather unaligned integers (native order, swapped
        # afterwards, which is twice as fast as a big-endian dtype on wide gathers).
        self.i32 = self._view(buffer, "<i4")
        self.i64 = self._view(buffer, "<i8")
        self.u16 = self._view(buffer, "<u2")
        # Opaque, for numpy copies those item by item with memcpy, but structures field by field.
        self._heads = self._view(buffer, f"V{_HEAD.itemsize}")

    def _view(self, buffer: Any, dtype: str) -> npt.NDArray[Any]:
        width = np.dtype(dtype).itemsize
        count = max(0, self.size_bytes - width + 1)
        return np.ndarray((count,), dtype, buffer=buffer if count else bytes(width), strides=(1,))

    def touch(self, low: int, high: int) -> None:
        """Read one byte of every cache line of a range: the processor prefetches sequential reads, but not reads
        of scattered heads."""
        self.bytes[low:high:_CACHE_LINE_BYTES].max(initial=0)

    def copied(self, starts: Ints, ends: Ints) -> tuple[Records, Ints]:
        """Only these records, concatenated, and their new positions."""
        view = memoryview(self.arrow)
        parts = [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        lengths = ends - starts
        return Records(b"".join(parts)), np.cumsum(lengths) - lengths

    def heads(self, positions: Ints) -> npt.NDArray[Any]:
        """The head of each record, a copy with named fields."""
        return self._heads[positions].view(_HEAD)

    def strings(self, starts: Ints, width: int) -> npt.NDArray[Any]:
        """``width`` bytes from each start on, one after the other."""
        return self._view(self._buffer, f"V{width}")[starts]

    def ints(self, positions: Ints) -> Ints:
        """Big-endian i32 at each position."""
        return self.i32[positions].byteswap().astype(np.int64)

    def longs(self, positions: Ints) -> Ints:
        """Big-endian i64 at each position."""
        swapped: Ints = self.i64[positions].byteswap()
        return swapped

    def shorts(self, positions: Ints) -> Ints:
        """Big-endian u16 at each position."""
        return self.u16[positions].byteswap().astype(np.int64)

    def body_lengths(self, positions: Ints) -> Ints:
        """The stored body lengths of the records at these positions."""
        flags = self.ints(positions + SYS_FLAG)
        hosts = ((flags & BORN_HOST_V6) != 0).astype(np.int64) + ((flags & STORE_HOST_V6) != 0)
        return self.ints(positions + BODY_LENGTH + hosts * V6_EXTRA_BYTES)


def record_positions(records: Records) -> Ints:
    """Where each record of a pull body starts. Raises InvalidMessage when the sizes do not add up.

    Records are contiguous. If all have the size of the first, the positions follow from it. Otherwise all magic
    numbers are searched at once; only if a body also contains one is the chain of sizes followed record by
    record.
    """
    if records.size_bytes >= MIN_RECORD_BYTES:
        size = int(records.ints(np.zeros(1, np.int64))[0])
        if size >= MIN_RECORD_BYTES and records.size_bytes % size == 0:
            alike = np.arange(0, records.size_bytes, size, dtype=np.int64)
            if (records.i32[alike] == records.i32[0]).all() and _is_magic(records.ints(alike + 4)).all():
                return alike
    found = np.flatnonzero(records.bytes[4 : max(4, records.size_bytes - 3)] == MAGIC_BYTE)
    positions: Ints = found[_is_magic(records.ints(found + 4))]
    ends = positions + records.ints(positions)
    whole = len(positions) and positions[0] == 0 and ends[-1] == records.size_bytes
    if whole and (ends[:-1] == positions[1:]).all() and int((ends - positions).min()) >= MIN_RECORD_BYTES:
        return positions
    return _walked_positions(records)


def _is_magic(values: Ints) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = (values == MAGIC_V1) | (values == MAGIC_V2)
    return known


def _walked_positions(records: Records) -> Ints:
    return np.array([begin for begin, _ in spans(memoryview(records.arrow))], dtype=np.int64)


def has_inner_batches(records: Records, positions: Ints) -> bool:
    return bool(_are_batches(records, positions).any())


def _are_batches(records: Records, positions: Ints) -> npt.NDArray[np.bool_]:
    flags = records.ints(positions + SYS_FLAG)
    batched: npt.NDArray[np.bool_] = (flags & NEED_UNWRAP != 0) & (flags & INNER_BATCH != 0)
    return batched


def unwrap_inner_batches(
    records: Records, positions: Ints, *, strict: bool = True, limits: InflateLimits = LIMITS
) -> Iterator[tuple[Records, Ints]]:
    """Records whose system flag says "inner batch" replaced by one plain record per item, a part at a time if
    they are large. Usually a no-op.

    Item i gets queue offset base + i and keeps the batch's hosts, times and physical offset. ``strict``: a
    malformed batch raises InvalidMessage; otherwise it is skipped, and a line in the log counts it.
    """
    batched = _are_batches(records, positions)
    if not batched.any():
        yield records, positions
        return
    parts: list[bytes] = []
    size = 0
    view = memoryview(records.arrow).cast("B")
    for position, is_batch in zip(positions.tolist(), batched.tolist(), strict=True):
        if is_batch:
            found = _unwrapped(view, position, strict, limits)
        else:
            message = decode_record(view, position, decompress=False)
            found = [bytes(view[position : position + message.store_size_bytes])]
        parts += found
        size += sum(map(len, found))
        if size >= _UNWRAPPED_BYTES:
            yield _joined(parts)
            parts, size = [], 0
    yield _joined(parts)


def _joined(parts: list[bytes]) -> tuple[Records, Ints]:
    unwrapped = Records(b"".join(parts))
    return unwrapped, record_positions(unwrapped)


def _unwrapped(view: memoryview, position: int, strict: bool, limits: InflateLimits) -> list[bytes]:
    """The messages of one batch as records."""
    message = decode_record(view, position, limits=limits)
    try:
        items = split_batch(message.body, MAX_BATCH_MESSAGES)
    except InvalidMessage as error:
        what = f"the batch at offset {message.queue_offset} of queue {message.queue_id}: {error}"
        if strict:
            raise InvalidMessage(f"{what}; failOnDataLoss=false leaves it out", field="body") from None
        log.warning("%s; it is left out (failOnDataLoss=false)", what)
        return []
    born_end = position + (_BORN_HOST_END_V6 if message.sys_flag & BORN_HOST_V6 else BORN_HOST_END)
    store_bytes = 20 if message.sys_flag & STORE_HOST_V6 else 8
    return [
        encode_record(
            topic=message.topic,
            body=body,
            properties=properties,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset + index,
            physical_offset=message.physical_offset,
            flag=flag,
            sys_flag=message.sys_flag & ~(NEED_UNWRAP | INNER_BATCH | COMPRESSED),
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=bytes(view[position + _BORN_HOST : born_end]),
            store_timestamp_ms=message.store_timestamp_ms,
            store_host=bytes(view[born_end + 8 : born_end + 8 + store_bytes]),
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
        for index, (flag, body, properties) in enumerate(items)
    ]
