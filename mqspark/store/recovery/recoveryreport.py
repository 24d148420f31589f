"""What recovery found and did, and which queue offsets damage of the log costs.

Must not know how a store is recovered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mqspark.store.disk.damage import LostOffsets
from mqspark.store.queue.consumequeue import ConsumeQueue


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did. Positions are physical offsets."""

    clean: bool
    """Whether there was no abort file: the last process stopped cleanly."""
    segments: int = 0
    queues: int = 0
    min_position: int = 0
    start_position: int = 0
    end_position: int = 0
    records: int = 0
    """Valid records read from start_position on."""
    entries: int = 0
    """Queue entries written for these records."""
    damaged: list[tuple[int, int]] = field(default_factory=list)
    """[from, to) ranges of the log that hold no valid record but are followed by one."""
    lost_entries: int = 0
    """Queue offsets that became fillers."""
    ignored_records: int = 0
    """Valid records that fit no queue: the offset is in use, or the name cannot be a directory."""
    sure_position: int = 0
    """End of what a successful sync is known to have reached; behind it a power cut may have left holes."""
    rewritten_bytes: int = 0
    """Bytes at the end of the log that were rewritten because no sync was known to have reached them."""
    cut_bytes: int = 0
    """Bytes by which the log is shorter than last noted: they were stored and are lost."""
    torn_bytes: int = 0
    """Bytes zeroed from end_position on."""
    cleared_entries: int = 0
    """Queue entries removed because they had no record."""
    last_store_timestamp_ms: int = 0
    elapsed_ms: float = 0.0

    def __str__(self) -> str:
        """One log line: what was found, what was done, then what was wrong."""
        parts = [
            "stopped cleanly" if self.clean else "not stopped cleanly",
            f"{self.segments} segments, {self.queues} queues, log from {self.min_position} to {self.end_position}",
            f"{self.records} records read from {self.start_position} on, {self.entries} queue entries written",
        ]
        found = (
            (sum(end - start for start, end in self.damaged), "bytes of the log are damaged"),
            (self.lost_entries, "queue offsets lost their message"),
            (self.ignored_records, "records have no place in a queue"),
            (self.cleared_entries, "queue entries without a record cleared"),
            (self.torn_bytes, "bytes of an incomplete record cut off"),
            (self.cut_bytes, "stored bytes are missing"),
            (self.rewritten_bytes, "bytes written again"),
        )
        parts += [f"{count} {what}" for count, what in found if count]
        return f"{'; '.join(parts)}; in {self.elapsed_ms:.0f} ms"


def lost_offsets(
    queues: Iterable[ConsumeQueue], low: int, high: int, most: int = 100
) -> tuple[LostOffsets, ...]:
    """The offsets whose entries point into [low, high) of the log. For queues with batches, the entry
    numbers."""
    found: list[LostOffsets] = []
    for queue in queues:
        if len(found) >= most or queue.max_offset <= queue.min_offset:
            continue
        first = queue.first_where(
            lambda position, size, _tags: position + size > low, queue.min_offset, queue.max_offset
        )
        end = queue.first_where(lambda position, _size, _tags: position >= high, first, queue.max_offset)
        if end > first:
            found.append(LostOffsets(queue.topic, queue.queue_id, first, end))
    return tuple(found)
