"""Which segments of the log have to go, and whether messages may still be accepted: a decision, made of numbers.

A run deletes when it is the hour for it (``deleteWhen``), an operator asked, or a disk is fuller than it should be
(DefaultMessageStore.CleanCommitLogService; reference store-and-broker §8):

    over diskMaxUsedSpaceRatio        segments go that are older than fileReservedTime, at any hour
    over diskSpaceCleanForciblyRatio  the oldest segments go whatever their age (cleanFileForciblyEnable)
    over diskSpaceWarningLevelRatio   and no message is accepted, until no disk is over the mark before this one

The log is deleted from its beginning on, in whole segments, a few at a time, and never the one that is written. Where
RocketMQ takes a whole batch for space, here segments that are not expired go only until the log's disk is, by
their sizes, back at the mark.

Must not know files, threads or clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mqspark.errors import ConfigError

__all__ = ["Decision", "DiskUsage", "OldSegment", "RetentionRules", "decide", "delete_hours"]

_HOUR_MS = 3_600_000


class OldSegment(NamedTuple):
    """A segment that is complete and on disk."""

    modified_ms: int
    """When it was last written."""
    size_bytes: int
    """What the disk gets back for it."""


class DiskUsage(NamedTuple):
    used_bytes: int
    free_bytes: int
    """What this process may still use: some blocks are kept back for root."""

    @property
    def used_percent(self) -> float:
        total = self.used_bytes + self.free_bytes
        return 100 * self.used_bytes / total if total > 0 else 0.0

    def without(self, size_bytes: int) -> DiskUsage:
        """After so much was deleted."""
        freed = min(size_bytes, self.used_bytes)
        return DiskUsage(self.used_bytes - freed, self.free_bytes + freed)


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The settings of the same names (MessageStoreConfig)."""

    file_reserved_time_h: int = 72
    delete_hours: frozenset[int] = frozenset({4})
    """Hours of the local day."""
    max_used_percent: int = 75
    clean_forcibly_percent: int = 85
    warning_percent: int = 90
    clean_forcibly: bool = True
    batch_max: int = 10


@dataclass(frozen=True, slots=True)
class Decision:
    delete: int
    """How many segments, from the oldest on."""
    immediately: bool
    """A disk is so full that age does not count."""
    refuse_writes: bool


def decide(
    old: Sequence[OldSegment],
    log_disk: DiskUsage,
    other_disks: Sequence[DiskUsage],
    rules: RetentionRules,
    *,
    now_ms: int,
    hour: int,
    asked: bool,
    refusing: bool,
) -> Decision:
    """``old``: from the beginning of the log on, without the segment that is written. ``other_disks``: those of
    the queues, when they are not the log's. ``asked``: an operator wants expired segments gone now. ``refusing``:
    what the last decision said of writes, for there are two marks: one where refusing begins, a lower one where
    it ends.
    """
    fullest = max(disk.used_percent for disk in (log_disk, *other_disks))
    refuse_writes = fullest > rules.warning_percent or (refusing and fullest > rules.clean_forcibly_percent)
    immediately = fullest > min(rules.clean_forcibly_percent, rules.warning_percent)
    force = immediately and rules.clean_forcibly
    if not (force or asked or hour in rules.delete_hours or fullest > rules.max_used_percent):
        return Decision(0, immediately, refuse_writes)
    mark = min(rules.clean_forcibly_percent, rules.warning_percent)
    others_full = any(disk.used_percent > mark for disk in other_disks)
    expired_before_ms = now_ms - rules.file_reserved_time_h * _HOUR_MS
    count = freed_bytes = 0
    for segment in old[: rules.batch_max]:
        if segment.modified_ms > expired_before_ms:
            needed = others_full or log_disk.without(freed_bytes).used_percent > mark
            if not (force and needed):
                break
        count += 1
        freed_bytes += segment.size_bytes
    return Decision(count, immediately, refuse_writes)


def delete_hours(text: str) -> frozenset[int]:
    """``deleteWhen``: hours of the day, two digits each, separated by semicolons. Raises ConfigError."""
    words = [word.strip() for word in text.split(";") if word.strip()]
    if any(not (word.isascii() and word.isdigit() and int(word) < 24) for word in words):
        raise ConfigError(
            f"setting deleteWhen={text!r} is not hours of the day, as in '04;16'", key="deleteWhen"
        )
    return frozenset(int(word) for word in words)
