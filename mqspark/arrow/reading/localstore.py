"""Ranges of queues in place, from the files of a broker on this host. Must not know which directories may be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import BATCH_ROWS, LOG_BYTES
from mqspark.arrow.records.decode import Decoder
from mqspark.arrow.records.records import Records
from mqspark.errors import InvalidMessage, StoreError
from mqspark.message import java_hash
from mqspark.store.compaction.compactedqueues import is_compacted
from mqspark.store.tools.reader import Piece, StoreReader

_RUN_ROWS = 16
"""From this number of rows on, prefetching adjacent records pays off."""


class LocalStore:
    """A broker's directory on this host."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._mapped: tuple[Any, Records] | None = None
        """The segment that was read last, and the view of its mapping."""

    def let_go(self) -> None:
        """Let go of what the broker has deleted. In any thread."""
        self._mapped = None
        self._reader.let_go_deleted()

    def read(
        self, wanted: QueueRange, decoder: Decoder, tags: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch | int]:
        """Batches, each with the next offset, as far as the files contain the range."""
        if is_compacted(self._reader.paths.root, wanted.queue.topic):
            return  # only the broker knows the compacted messages
        codes = np.array([java_hash(tag) for tag in tags], dtype=np.int64)
        position = wanted.start
        try:
            while position < wanted.end:
                until = min(wanted.end, position + BATCH_ROWS)
                entries = self._reader.entries(wanted.queue.topic, wanted.queue.queue_id, position, until)
                if len(entries) == 0:
                    return
                offsets = np.arange(position, position + len(entries))
                if len(entries) < until - position:
                    # Some records are damaged, or the end is not visible here yet: read the queues from the
                    # records.
                    until = self._reader.queue_offset(int(entries["position"][-1])) + 1
                    if until != position + len(entries):
                        for index, place in enumerate(entries["position"].tolist()):
                            offsets[index] = self._reader.queue_offset(place)
                if codes.size:
                    kept = np.isin(entries["tags_code"], codes)
                    entries, offsets = entries[kept], offsets[kept]
                for piece, batches in self._batches(entries, decoder):
                    yield from batches
                    yield int(offsets[piece.last - 1]) + 1
                position = until
                yield position
        except (OSError, StoreError):
            # Expired or truncated during the read, or not allowed: the broker is asked from the last offset on.
            return

    def read_together(
        self, ranges: Sequence[QueueRange], decoder: Decoder, tags: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch | list[int]] | None:
        """Ranges of one topic as batches; then, if not all could be read, the next offsets. None if the files do
        not contain every entry."""
        if is_compacted(self._reader.paths.root, ranges[0].queue.topic):
            return None
        try:
            found = [
                self._reader.entries(each.queue.topic, each.queue.queue_id, each.start, each.end)
                for each in ranges
            ]
        except (OSError, StoreError):
            return None
        if any(len(entries) < each.rows for entries, each in zip(found, ranges, strict=True)):
            return None
        return self._read_all(found, ranges, decoder, tags)

    def _read_all(
        self, found: list[Any], ranges: Sequence[QueueRange], decoder: Decoder, tags: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch | list[int]]:
        entries = np.concatenate(found)
        numbers = np.repeat(np.arange(len(ranges)), [len(each) for each in found])
        offsets = np.concatenate([np.arange(each.start, each.end) for each in ranges])
        order = np.argsort(entries["position"])
        if tags:
            codes = [java_hash(tag) for tag in tags]
            order = order[np.isin(entries["tags_code"][order], codes)]
        done = 0
        try:
            for piece, batches in self._batches(entries[order], decoder):
                yield from batches
                done = piece.last
        except (OSError, StoreError):
            # In log order the offsets of a queue ascend, so the finished part of each queue is a prefix.
            following = np.array([each.start for each in ranges])
            np.maximum.at(following, numbers[order[:done]], offsets[order[:done]] + 1)
            yield following.tolist()

    def _batches(self, entries: Any, decoder: Decoder) -> Iterator[tuple[Piece, Iterator[pa.RecordBatch]]]:
        positions = np.ascontiguousarray(entries["position"])
        sizes = entries["size"].astype(np.int64)
        for piece in self._reader.pieces(positions, sizes, LOG_BYTES):
            yield piece, self._decoded(piece, decoder, sizes)

    def _decoded(self, piece: Piece, decoder: Decoder, sizes: Any) -> Iterator[pa.RecordBatch]:
        """All batches of the piece, or none and the error."""
        if piece.segment is None:
            yield from decoder.batches(Records(piece.buffer), piece.places)
            return
        mapped = self._mapped
        if mapped is None or mapped[0] is not piece.segment:
            mapped = self._mapped = piece.segment, Records(piece.buffer)
        records = mapped[1]
        _touch(records, piece.places, piece.places + sizes[piece.first : piece.last])
        batches = decoder.batches(records, piece.places)
        try:
            batch = next(batches)
        except InvalidMessage:
            self._reader.check(piece)  # zeros in place of a truncated part are not a message
            raise
        self._reader.check(piece)
        yield batch
        yield from batches  # of what was copied before the first


def _touch(records: Records, positions: Any, ends: Any) -> None:
    """Prefetch adjacent records into the processor's cache."""
    cuts = np.flatnonzero(positions[1:] != ends[:-1])
    if len(cuts) * _RUN_ROWS < len(positions):
        lows = [int(positions[0]), *positions[cuts + 1].tolist()]
        for low, high in zip(lows, [*ends[cuts].tolist(), int(ends[-1])], strict=True):
            records.touch(low, high)
