"""Decides from figures which segments of the log are deleted and whether messages are accepted.

A run deletes when it is the hour for it (``deleteWhen``), an operator asked, or a disk is too full
(DefaultMessageStore.CleanCommitLogService):

    over diskMaxUsedSpaceRatio        delete segments older than fileReservedTime, at any hour
    over diskSpaceCleanForciblyRatio  delete the oldest segments whatever their age (cleanFileForciblyEnable)
    over diskSpaceWarningLevelRatio   also refuse messages, until every disk is below the previous mark

The log is deleted from its beginning, in whole segments, a few at a time, and never the active one. Where
RocketMQ deletes a whole batch for space, unexpired segments are deleted here only until their sizes bring the
log's disk back to the mark. The space of a deleted segment returns when the last process lets go of it, so for a
while it counts as returned.

Must not know files, threads or clocks.

Facts: docs/rocketmq/store.md#retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mqspark.base.clock import HOUR_MS
from mqspark.errors import ConfigError


class OldSegment(NamedTuple):
    """A segment that is complete and on disk."""

    modified_ms: int
    """Time of the last write."""
    size_bytes: int
    """Bytes that deleting it frees."""


class DiskUsage(NamedTuple):
    used_bytes: int
    free_bytes: int
    """Bytes that this process may still use; the blocks reserved for root are not included."""

    @property
    def used_percent(self) -> float:
        total = self.used_bytes + self.free_bytes
        return 100 * self.used_bytes / total if total > 0 else 0.0

    def without(self, size_bytes: int) -> DiskUsage:
        """The usage after deleting ``size_bytes``."""
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
    """Number of segments to delete, from the oldest on."""
    immediately: bool
    """Whether a disk is so full that age does not count."""
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
    returning_bytes: int = 0,
    by_age: bool = True,
) -> Decision:
    """``old``: segments from the beginning of the log, without the active one. ``other_disks``: those of the
    queues, if different from the log's. ``asked``: an operator wants expired segments deleted now.
    ``refusing``: whether the last decision refused messages, because refusing begins at one mark and ends at
    a lower one. ``returning_bytes``: of deleted segments, on the log's disk, which the usage still includes.
    ``by_age``: whether the clock may decide what has expired."""
    fullest = max(disk.used_percent for disk in (log_disk, *other_disks))
    refuse_writes = fullest > rules.warning_percent or (refusing and fullest > rules.clean_forcibly_percent)
    immediately = fullest > min(rules.clean_forcibly_percent, rules.warning_percent)
    force = immediately and rules.clean_forcibly
    if not (force or asked or hour in rules.delete_hours or fullest > rules.max_used_percent):
        return Decision(0, immediately, refuse_writes)
    mark = min(rules.clean_forcibly_percent, rules.warning_percent)
    others_full = any(disk.used_percent > mark for disk in other_disks)
    expired_before_ms = now_ms - rules.file_reserved_time_h * HOUR_MS
    count, freed_bytes = 0, returning_bytes
    for segment in old[: rules.batch_max]:
        if not by_age or segment.modified_ms > expired_before_ms:
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
