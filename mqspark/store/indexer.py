"""Lets the index follow the log: reads what is new, slice by slice, and puts its keys.

The index is always made this way, whether records just arrived or are being indexed again after a crash or in a
directory that had no index. So it costs a put nothing, and it never decides whether a message is accepted.

Must not know queues.
"""

from __future__ import annotations

import struct
from mmap import mmap
from typing import cast

from mqspark.record import BLANK_BYTES, BLANK_MAGIC, Verdict, check_record
from mqspark.store.commitlog import CommitLog, Segment
from mqspark.store.index import MessageIndex
from mqspark.store.keys import record_keys, record_starts

__all__ = ["Indexer"]

_SLICE_RECORDS = 512
"""So that the arrays stay small enough to be had without page faults."""
_SIZE_MAGIC = struct.Struct(">ii")
_MAGIC_PREFIX = b"\xda\xa3\x20"


class Indexer:
    __slots__ = ("_index", "_log")

    def __init__(self, log: CommitLog, index: MessageIndex) -> None:
        self._log = log
        self._index = index

    def follow(self, end: int, max_records: int) -> bool:
        """Index what lies before ``end``, the end of a record, but not much more than ``max_records``.

        Gives back whether ``end`` is reached. Raises DiskFull or OSError; the next call goes on where this one ended.
        """
        log, index = self._log, self._index
        while index.position < end:
            if max_records <= 0:
                return False
            segment = log.segment_of(index.position)
            if segment is None:
                # Retention was faster.
                index.skip(min((s.start for s in log.segments if s.start > index.position), default=end))
                continue
            max_records -= self._slice(segment, min(end, segment.end), min(max_records, _SLICE_RECORDS))
        return True

    def _slice(self, segment: Segment, end: int, max_records: int) -> int:
        index, start = self._index, segment.start
        view = self._log.view(segment)
        starts, low = record_starts(view, index.position - start, end - start, max_records)
        keys, count = record_keys(view, starts, start)
        if count < len(starts):
            low = starts[count]
        index.put(keys, start + low)
        if count < len(starts) or (count < max_records and start + low < end):
            index.skip(self._behind_gap(segment, start + low, end))
        return count + 1

    def _behind_gap(self, segment: Segment, position: int, end: int) -> int:
        """Where to go on when no record begins at ``position``: the segment is over there, or something is damaged."""
        view = self._log.view(segment)
        low, high = position - segment.start, end - segment.start
        size, magic = 0, 0
        if low + BLANK_BYTES <= high:
            size, magic = _SIZE_MAGIC.unpack_from(view, low)
        if magic == BLANK_MAGIC:
            return end
        if size > 0 and self._is_record(segment, low + size, high):
            return position + size
        mapping = cast(mmap, view.obj)
        at = low
        while (at := mapping.find(_MAGIC_PREFIX, at + 1, high)) >= 0:
            if at - 4 > low and self._is_record(segment, at - 4, high):
                return segment.start + at - 4
        return end

    def _is_record(self, segment: Segment, low: int, high: int) -> bool:
        record = check_record(self._log.view(segment), low, high, verify_crc=True)
        return record.verdict is Verdict.VALID and record.physical_offset == segment.start + low
