"""Names inside a store directory (StorePathConfigHelper, UtilAll.offset2FileName).

Facts: docs/rocketmq/store.md#directory.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from mqspark.base.config import INT64_MAX
from mqspark.store.disk.logpaths import LogPaths

_TOPIC = re.compile(r"[%|+a-zA-Z0-9_-]{1,255}|(?=.{1,255}\Z)%LMQ%\$[%|+a-zA-Z0-9_-]+\$[%|+a-zA-Z0-9_-]+")


def file_name(start: int) -> str:
    """Name of a mapped file: the offset of its first byte."""
    return f"{start:020d}"


BEYOND = "where the positions of a log end"


def file_start(name: str) -> int | None:
    """The reverse of ``file_name``; None for another kind of name."""
    start = int(name) if len(name) == 20 and name.isascii() and name.isdigit() else -1
    return start if 0 <= start <= INT64_MAX else None


def file_length(starts: Sequence[int], lengths: Sequence[int], default: int, least: int) -> int:
    """The length of the files of one space, which is the same for all: the distance of their names if one of them has
    it, else that of the longest if all names fit, else ``default``. Some may be cut, or too long."""
    step = min((after - start for start, after in itertools.pairwise(starts)), default=0)
    longest = max(lengths, default=0)
    told = step if step and step in lengths else longest
    return told if told >= least and not any(start % told for start in starts) else default


def is_beyond(start: int, size_bytes: int) -> bool:
    """Whether a segment that begins there ends at a position that no 64 bits hold."""
    return start > INT64_MAX - size_bytes


def is_storable_topic(topic: str) -> bool:
    """Whether a topic can be a directory name. Only RocketMQ's characters are allowed; the plus is in retry
    topics of POP, two dollars in the queues of lite topics."""
    return _TOPIC.fullmatch(topic) is not None


class StorePaths:
    """All paths of one store."""

    def __init__(
        self, root: Path, commit_log: Path | str | None = None, read_only_commit_logs: str | None = None
    ) -> None:
        """``commit_log``: one directory or several, separated by commas; below the root by default."""
        self.root = root
        self.commit_logs = LogPaths.parse(
            str(commit_log) if commit_log is not None else None, read_only_commit_logs, root / "commitlog"
        )
        self.commit_log = self.commit_logs.first
        """The first of the log directories."""
        self.consume_queue = root / "consumequeue"
        self.consume_queue_ext = root / "consumequeue_ext"
        self.batch_consume_queue = root / "batchconsumequeue"
        self.index = root / "index"
        self.config = root / "config"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"
        self.mark = root / "mqspark.checkpoint"
        """The exact position behind RocketMQ's timestamps. RocketMQ ignores it."""
        self.index_mark = root / "mqspark.index"
        """How much of the index is on disk. RocketMQ ignores it."""
        self.deletions = root / "mqspark.deletions"
        """The deleted topics and the log positions of their deletion. RocketMQ ignores it."""
        self.ends = root / "mqspark.ends"
        """The ends of the queues at the checkpoints. RocketMQ ignores it."""
        self.tables = root / "mqspark.tables"
        self.wall_time = root / "mqspark.clock"
        self.begin = root / "mqspark.begin"
        """Where the log may begin (``disk.beginnote``). RocketMQ ignores it."""
        self.epochs = root / "epochFileCheckpoint"
        """The epochs of the log, in controller mode (``log.epochs``)."""
        self.member = root / "mqspark.member"
        """What a replica knows of itself, in controller mode (``disk.membernote``). RocketMQ ignores it."""
        self.diverged = root / "mqspark.diverged"
        """Parts of the log that were taken back, because a master's log differs (``upkeep.cutback``)."""
        self.identity = root / "mqspark.id"
        """Names this store and its copies for ever, so that notes elsewhere can say which one they are about. RocketMQ
        ignores it."""
        self.restoring = root / "mqspark.restoring"
        """Marks a directory that a restore has not finished (``disk.directory``)."""
        self.nonce = root / "mqspark.nonce"
        """Proves to a process on this host that a broker serves this directory. RocketMQ ignores it."""
