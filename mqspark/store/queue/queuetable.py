"""All queues of a store and their shared state: the length of their files, the maps, and what a checkpoint
has to sync.

Must not know the log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import numpy as np

from mqspark.base.bounded import Ledger, text_bytes
from mqspark.base.config import INT32_MAX
from mqspark.base.keyorder import KeyOrder
from mqspark.base.names import path_below
from mqspark.errors import InvalidMessage
from mqspark.message import LMQ_PREFIX
from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.layout import file_start, is_storable_topic
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.queue.consumequeue import ENTRY_DTYPE, ConsumeQueue, Doubt
from mqspark.store.queue.mapped import MappedFiles
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, is_lmq
from mqspark.store.queue.queueext import QueueExt, Unsynced

T = TypeVar("T")

_LENGTH_SAMPLE = 8
"""Number of queues whose files are measured at start; a single one may be truncated."""
_FILES_SAMPLE = 64
"""The same of the files of each."""


class QueueTable(Unsynced):
    """All queues of a store, by (topic, queue id)."""

    def __init__(
        self,
        directory: Path,
        files: FileLayer,
        *,
        file_bytes: int,
        max_mapped: int,
        budget: MapBudget | None = None,
        ledger: Ledger | None = None,
        dtype: np.dtype[np.void] = ENTRY_DTYPE,
        ext_directory: Path | None = None,
        ext_file_bytes: int = 0,
        ext_enabled: bool = False,
    ) -> None:
        """``budget``: of address space. ``ledger``: of memory. ``dtype``: of an entry; its first three fields
        are those of ENTRY_DTYPE. ``ext_…``: of the queues' ConsumeQueueExt, which are read when they exist
        and written when enabled."""
        super().__init__()
        self.directory = directory
        self.files = files
        self.dtype = dtype
        self.entry_bytes = dtype.itemsize
        self.file_bytes = -(-file_bytes // self.entry_bytes) * self.entry_bytes
        self.ext_directory = ext_directory
        self.ext_file_bytes = ext_file_bytes
        self.ext_enabled = ext_enabled
        self._budget = budget if budget is not None else MapBudget()
        self.maps = MappedFiles(files, max_mapped, dtype, self._budget)
        self.ledger = ledger if ledger is not None else Ledger("queues", sys.maxsize)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.in_order = KeyOrder[tuple[str, int]]()
        """Their keys."""
        self.light: dict[str, None] = {}
        """The light message queues among them, by name."""
        self.hidden: dict[str, list[ConsumeQueue]] = {}
        """Queues of deleted topics whose files still exist."""
        self.before_create: Callable[[str], None] = lambda topic: None
        """Called with the topic of a queue before it is created."""
        self.files_made = 0
        """How many files the queues have begun. One costs as much as some dozens of messages."""
        self.batch_topics: set[str] = set()
        """Topics with BatchConsumeQueues, which are in another table."""
        self.doubted: dict[ConsumeQueue, Doubt] = {}
        """Queues whose files were found damaged at start."""
        self.before_heal: Callable[[], None] = lambda: None
        """Called before the first repair, so that an interrupted start finds the damage again the next time."""

    def load(self, batch_directory: Path | None = None) -> None:
        """Find every queue. A store keeps its file length."""
        self.files.make_directory(self.directory)
        if batch_directory is not None:
            self.batch_topics = set(self.files.names(batch_directory))
        if (
            self.ext_directory is not None
            and not self.ext_enabled
            and not self.files.names(self.ext_directory)
        ):
            self.ext_directory = None
        found: list[tuple[str, int]] = []
        lengths: dict[int, list[int]] = {}
        sampled = 0
        for topic, queue_id, path in self._directories():
            if topic in self.batch_topics:
                continue
            found.append((topic, queue_id))
            if sampled < _LENGTH_SAMPLE:
                names = [name for name in self.files.names(path) if file_start(name) is not None]
                sampled += bool(names)
                for name in sorted(names)[:_FILES_SAMPLE]:
                    lengths.setdefault(self._length(path / name), []).append(int(name))
        self.file_bytes = self._likely_length(lengths)
        for topic, queue_id in sorted(found):
            self.create(topic, queue_id).load()

    def _likely_length(self, lengths: dict[int, list[int]]) -> int:
        """The length that most files have. ``lengths``: starts by length. Recovery restores a truncated file; one that
        is too long is told by the names of others, or by the settings."""
        starts = [start for each in lengths.values() for start in each]
        whole = [length for length in lengths if length and length % self.entry_bytes == 0]
        likely = [
            length
            for length in whole
            if 2 * len(lengths[length]) >= len(starts) and not any(start % length for start in starts)
        ]
        return max(
            likely or whole,
            key=lambda length: (len(lengths[length]), length == self.file_bytes, length),
            default=self.file_bytes,
        )

    def _directories(self) -> Iterator[tuple[str, int, Path]]:
        for topic in filter(is_storable_topic, self.files.names(self.directory)):
            for queue in self.files.names(path_below(self.directory, topic)):
                # Directories of others stay unread: 00, or a number that no queue has.
                if (
                    queue.isascii()
                    and queue.isdigit()
                    and str(int(queue)) == queue
                    and int(queue) <= INT32_MAX
                ):
                    yield topic, int(queue), path_below(self.directory, topic, queue)

    def _length(self, path: Path) -> int:
        fd = self.files.open_read(path)
        try:
            return self.files.length(fd)
        finally:
            self.files.close(fd)

    def admit(self, topic: str) -> None:
        """Account for a further queue created by a message. Raises TableFull."""
        self.ledger.admit(_queue_bytes(topic))

    def create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Create a queue in memory; its files appear with the first message. Raises InvalidMessage for a name
        that cannot be a directory."""
        if not is_storable_topic(topic):
            raise InvalidMessage(
                f"topic {topic!r} cannot be stored: its name has illegal characters", field="topic"
            )
        if not 0 <= queue_id <= INT32_MAX:
            raise InvalidMessage(f"queue id {queue_id} cannot be stored", field="queueId")
        if topic in self.batch_topics:
            raise InvalidMessage(
                f"topic {topic!r} has BatchCQ queues, which are kept elsewhere", field="topic"
            )
        self.before_create(topic)
        queue = ConsumeQueue(self, topic, queue_id)
        if queue.key not in self.queues:
            self.ledger.note(_queue_bytes(topic))
            self.in_order.add(queue.key)
        self.queues[queue.key] = queue
        if queue_id == LMQ_QUEUE_ID and is_lmq(topic):
            self.light[topic] = None
        return queue

    def ext_of(self, topic: str, queue_id: int) -> QueueExt | None:
        """The ext units of a queue. RocketMQ has none for light message queues."""
        if self.ext_directory is None or is_lmq(topic):
            return None
        return QueueExt(
            path_below(self.ext_directory, topic, queue_id),
            self.files,
            file_bytes=self.ext_file_bytes,
            unsynced=self,
            budget=self._budget,
        )

    def drop_idle(self) -> Iterator[None]:
        """Unmap the files that were not used since the last call, slice by slice."""
        yield from self.maps.drop_idle()
        for page in self.in_order.pages() if self.ext_directory is not None else ():
            for queue in filter(None, map(self.queues.get, page)):
                if queue.ext is not None:
                    queue.ext.unmap()
            yield

    @property
    def used_queues(self) -> int:
        """Number of queues that ever got a message."""
        return sum(1 for queue in self.queues.values() if queue.file_starts)

    def hide_topics(self, topics: Set[str]) -> None:
        """Hide the queues of these topics at once; their files stay until ``remove_topic``."""
        for key in [key for topic in topics for key in self.keys_of(topic)]:
            self.in_order.remove(key)
            self.light.pop(key[0], None)
            self.hidden.setdefault(key[0], []).append(self.queues.pop(key))
            self.ledger.free(_queue_bytes(key[0]))

    def keys_of(self, topic: str) -> list[tuple[str, int]]:
        """The keys of the queues of a topic, found without a look at all others."""
        return list(takewhile(lambda key: key[0] == topic, self.in_order.since((topic, 0))))

    def light_names(self, prefix: str = LMQ_PREFIX) -> Iterator[str]:
        """The light queues in the order of their names, or those among them that begin with ``prefix``, found without a
        look at the others; nothing is copied."""
        since = self.in_order.since((prefix, LMQ_QUEUE_ID))
        keys = takewhile(lambda key: key[0].startswith(prefix), since)
        return (topic for topic, queue_id in keys if queue_id == LMQ_QUEUE_ID)

    def remove_topic(self, topic: str, most: int = sys.maxsize) -> bool:
        """Remove the queues of a topic and their files, at most so many of them. Returns whether some are left.
        Raises OSError; another call continues."""
        if topic not in self.hidden:
            self.hide_topics({topic})
        hidden = self.hidden.get(topic, [])
        for _ in range(min(most, len(hidden))):
            hidden[-1].remove()
            hidden.pop()
        if hidden:
            return True
        self.hidden.pop(topic, None)
        self._remove_if_empty(topic)
        return False

    def leave_out(self, positions: Mapping[str, int], *, remove: bool = False) -> None:
        """Ignore files left from deleted topics (``Deletions.positions``). Call it before they are read.
        ``remove``: also delete them from the disk."""
        for key in [key for key in self.queues if key[0] in positions]:
            queue = self.queues[key]
            old = queue.files_before(positions[queue.topic])
            if remove:
                queue.remove_files(old)
            queue.file_starts = [start for start in queue.file_starts if start not in old]
            if old and not queue.file_starts:
                del self.queues[key]
                self.in_order.remove(key)
                self.light.pop(queue.topic, None)
                self.ledger.free(_queue_bytes(queue.topic))
                if remove:
                    queue.remove()
                    self._remove_if_empty(queue.topic)

    def _remove_if_empty(self, topic: str) -> None:
        directory = path_below(self.directory, topic)
        if not self.files.names(directory):
            self.files.remove(directory)


def queue_of(path: str) -> tuple[str, int]:
    """Topic and queue id of a queue's file."""
    _, topic, queue_id, _ = path.rsplit("/", 3)
    return topic, int(queue_id)


def united(one: set[T], other: set[T]) -> set[T]:
    """All of both, in one of the two: the smaller one is added to the larger one, which may have very many."""
    small, large = sorted((one, other), key=len)
    large |= small
    return large


def _queue_bytes(topic: str) -> int:
    return 1_500 + text_bytes(topic)
