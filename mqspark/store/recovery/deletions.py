"""The deleted topics, each with the log position before which its records belong to no queue.

The log keeps the records of a deleted topic until retention removes them. Without this list a recovery or a
rebuild would add them to queues again: all of them, or, worse, only those after a checkpoint, between offsets
that a new topic of the same name has assigned to other messages. (RocketMQ has no such list. Kafka has a log
for each partition and deletes it by one rename.) The list is a file of this project, which RocketMQ ignores
and a store from RocketMQ lacks:

    mqspark.deletions   mqspark-deletions-1
                        00000000000000004711 TopicA         one line per topic, its last deletion
                        00000000000000000017 #saves         how often it was saved
                        9d0ad5c7                            CRC-32 of everything before

The topic is hidden at once, then this file is saved, then the files of its queues are removed. After a crash
before the save the topic exists as before: nobody was told that it was deleted. Who deletes it is answered after the
save, however many files there are. After a crash following the save it stays deleted: the next start removes the rest
of its files. Creating the topic again before the save
waits for the save. Space for the next list is reserved in a second file, because topics are deleted to free a
full disk. That file holds a copy of the list: when the first one is lost or an older one, the copy is used, so that no
deleted topic comes back.

An entry counts until the log begins after its position. No position may lie after the end of the log, where
new records would count as deleted. A power failure may lose the end of the log, so a start moves such
positions to the end before anything is put. (A RocketMQ broker that takes over a store moves nothing. What it
puts after it has cut the log itself, as it does at damage, cannot be told from deleted records.)
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from mqspark.base.bounded import ENTRY_BYTES, Ledger, text_bytes
from mqspark.errors import StoreCorrupt
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Note, Outcome
from mqspark.store.disk.diskjobs import PreparedJob
from mqspark.store.disk.files import FileLayer, OsFiles, is_disk_full
from mqspark.store.disk.layout import is_storable_topic
from mqspark.store.disk.savedtables import SteppedJob

_TITLE = b"mqspark-deletions-1\n"
_SAVES = "#saves"
"""In the place of a topic, which it cannot be: a version that does not know it leaves it out."""
_BLOCK_BYTES = 4096
STEPS_PER_ROUND = 64
"""Steps of removals in one round of jobs: some 500 queues, a tenth of a second."""
LOOKED_AT_ONCE = 2_048
"""Deleted topics looked at in one slice, to forget or to copy them: at most a millisecond."""


class SavedDeletions(NamedTuple):
    positions: dict[str, int]
    """Physical offsets by topic."""
    number: int
    """The number of the save; 0 without a file, or for one that has none."""
    data: bytes | None
    problem: str = ""
    """Why the copy was used."""


def load_deletions(file: ConfigFile) -> dict[str, int]:
    """Physical offsets by topic (``read_deletions``)."""
    return read_deletions(file, OsFiles()).positions


def read_deletions(file: ConfigFile, files: FileLayer) -> SavedDeletions:
    """Without a file there are none. Raises StoreCorrupt when neither it nor its ``.bak`` can be read."""
    data = file.load(_is_readable)
    if data is None and not file.is_missing:
        raise StoreCorrupt(
            f"{file.path} (and its .bak) cannot be read: without them parts of deleted topics may come back",
            path=str(file.path),
        )
    saved = SavedDeletions({}, 0, None) if data is None else _decode(data)
    copied = (files.read(_room(file)) or b"").rstrip(b"\0")
    if _is_readable(copied) and (copy := _decode(copied)).number > saved.number:
        which = "is missing" if file.is_missing else f"is an older one: it is save {saved.number}"
        return copy._replace(
            problem=f"{file.path.name} {which}; its copy is used, which is save {copy.number}"
        )
    return saved


def _room(file: ConfigFile) -> Path:
    return file.path.with_name(file.path.name + ".room")


def _is_readable(data: bytes) -> bool:
    text, _, crc = data.removesuffix(b"\n").rpartition(b"\n")
    text += b"\n"
    return text.startswith(_TITLE) and crc == b"%08x" % zlib.crc32(text)


def _decode(data: bytes) -> SavedDeletions:
    rows = [
        (topic, int(number))
        for number, topic in (line.split(" ", 1) for line in data.decode().splitlines()[1:-1])
    ]
    positions = {topic: position for topic, position in rows if is_storable_topic(topic)}
    return SavedDeletions(positions, dict(rows).get(_SAVES, 0), data)


def _encode(positions: Mapping[str, int], number: int) -> bytes:
    rows = "".join(f"{position:020d} {topic}\n" for topic, position in (*positions.items(), (_SAVES, number)))
    text = _TITLE + rows.encode()
    return text + b"%08x\n" % zlib.crc32(text)


_EMPTY = _encode({}, 0)
MAX_DELETIONS_BYTES = 64 << 20
"""Limit of the list: some 200,000 deleted topics of which the log still has records."""


def _row_bytes(topic: str) -> int:
    return 2 * ENTRY_BYTES + text_bytes(topic)


class Deletions:
    """The list of one open store. Belongs to the store's thread, except ``run`` of its jobs."""

    def __init__(
        self,
        file: ConfigFile,
        files: FileLayer,
        remove: Callable[[str], bool | None],
        note: Note = lambda damage: None,
        positions: dict[str, int] | None = None,
    ) -> None:
        """``remove(topic)`` removes files of its queues, and returns True when some are left. ``done`` of the job
        raises its OSError, and the next job tries again. ``positions``: the list in memory (``StoreData.deleted``),
        which others read and this alone writes."""
        self._file = file
        self._files = files
        self._room = _room(file)
        self._saved: bytes | None = None
        """The list on disk; None if there is none yet."""
        self._number = 0
        """The number of its save."""
        self._copied: bytes | None = None
        """The list in the second file; None if that is not known."""
        self._on_written: Callable[[int], None] = lambda digest: None
        self._note = note
        self._is_copy_used = False
        self._remove = remove
        self._lock = threading.Lock()
        self._begin = 0
        self._generation = self._saved_generation = 0
        self.ledger = Ledger(
            "deletions",
            MAX_DELETIONS_BYTES,
            "Deletions.positions",
            "Deletions._pending",
            "QueueTable.hidden",
        )
        self._pending: dict[str, int] = {}
        """Topics whose files still exist, and the generation that has to be saved before they are removed."""
        self.on_saved: Callable[[], None] = lambda: None
        """Called when added deletions are on disk."""
        self.positions: dict[str, int] = positions if positions is not None else {}
        """Records of these topics before these physical offsets belong to no queue."""

    def load(self, log_begin: int) -> None:
        """Read the list. Raises StoreCorrupt."""
        self._pending.clear()
        self._saved_generation = self._generation
        self._begin = 0
        self._copied = None
        positions, self._number, self._saved, problem = read_deletions(self._file, self._files)
        self.positions.clear()
        self.positions.update(positions)
        self._is_copy_used = bool(problem)
        if problem:
            self._note(Damage("deletions.older", Outcome.HEALED, problem))
        self.ledger.clear()
        for topic in self.positions:
            self.ledger.note(_row_bytes(topic))
        for _ in self.forget_before(log_begin):
            continue

    def end_at(self, log_end: int) -> None:
        """Move positions after ``log_end``, the end of the recovered log, back to it. Must return before
        anything is put. Blocking. Raises OSError."""
        behind = [topic for topic, position in self.positions.items() if position > log_end]
        if behind or self._is_copy_used:
            self.positions.update(dict.fromkeys(behind, log_end))
            self._generation += 1
            self.job().run()
            self._is_copy_used = False
        self.keep_room()

    # --- as a table that is watched (``tablenotes``) ---

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def saved_version(self) -> None:
        return None

    @property
    def is_missing(self) -> bool:
        return self._saved is None

    @property
    def is_known_damaged(self) -> bool:
        return self._file.is_damaged

    @property
    def digest(self) -> int | None:
        return None if self._saved is None else zlib.crc32(self._saved)

    def tell_saves(self, on_written: Callable[[int], None]) -> None:
        self._on_written = on_written

    def admit(self, topic: str) -> None:
        """Call this before a topic is deleted. Raises TableFull when the list is full."""
        if topic not in self.positions:
            self.ledger.admit(_row_bytes(topic))

    def add(self, topic: str, position: int) -> None:
        """Add a deleted topic. All of its records lie before ``position``, the end of the log."""
        if topic not in self.positions:
            self.ledger.note(_row_bytes(topic))
        self.positions[topic] = position
        self._generation += 1
        self._pending[topic] = self._generation

    def forget_before(self, log_begin: int) -> Generator[None, None, None]:
        """Forget, slice by slice, the topics of which the log has no record any more, and which have no files."""
        if log_begin <= self._begin:
            return
        self._begin = log_begin
        topics = iter(list(self.positions))
        while some := list(islice(topics, LOOKED_AT_ONCE)):
            for topic in some:
                # It may be gone, or have been deleted once more.
                if self.positions.get(topic, log_begin + 1) <= log_begin and topic not in self._pending:
                    del self.positions[topic]
                    self.ledger.free(_row_bytes(topic))
            yield

    @property
    def behind(self) -> bool:
        """Whether a job has to run."""
        return bool(self._pending)

    @property
    def unsaved(self) -> bool:
        """Whether a deletion is not on disk yet. Who asked for it is answered then: the files go afterwards."""
        return self._generation > self._saved_generation

    def save_job(self) -> _SaveDeletionsJob:
        """Saves the list alone."""
        return _SaveDeletionsJob(self, self._generation)

    def removal_job(self, steps: int = STEPS_PER_ROUND) -> _RemoveFilesJob:
        """Removes some of the files whose deletion is on disk then."""
        return _RemoveFilesJob(self, steps)

    def job(self) -> _CarryOutJob:
        """Saves the list, then removes all files."""
        return _CarryOutJob(self, self._generation)

    def copied_into(self, positions: dict[str, int]) -> Iterator[None]:
        """Copies the list, slice by slice, in any thread. What is added meanwhile may be in the copy or not."""
        topics = iter(list(self.positions))
        while some := list(islice(topics, LOOKED_AT_ONCE)):
            for topic in some:
                position = self.positions.get(topic)
                if position is not None:  # else it is forgotten
                    positions[topic] = position
            yield

    def finish(self, topic: str) -> None:
        """Call this before a queue of the topic is created: waits until the deletion is on disk and the files
        are removed. Raises OSError."""
        if topic in self._pending:
            self.save_job().run()
            self.on_saved()
            for _ in self.removals((topic,)):
                continue

    def save(self, generation: int, positions: Mapping[str, int]) -> None:
        """Save the list unless this generation or a later one is on disk. In any thread. Raises OSError."""
        with self._lock:
            if generation > self._saved_generation:
                data = _encode(positions, self._number + 1)
                self._save(data)
                self._saved = data
                self._number += 1
                self._saved_generation = generation
                self._on_written(zlib.crc32(data))

    def _save(self, data: bytes) -> None:
        try:
            self._file.save(data)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._files.remove(self._room)
            self._copied = None
            self._file.save(data)

    def room_job(self) -> _KeepRoomJob | None:
        """Reserves space for the next list, and copies this one there, if the disk has any. None if that is done. Not
        right after files were removed, because others wait for the space, too."""
        return None if self._copied == self._to_copy else _KeepRoomJob(self)

    @property
    def _to_copy(self) -> bytes:
        return _EMPTY if self._saved is None else self._saved

    def keep_room(self) -> None:
        """The work of ``room_job``, in any thread."""
        with self._lock:
            self._keep_room(self._to_copy)

    def _keep_room(self, data: bytes) -> None:
        length = len(data) + _BLOCK_BYTES
        length -= length % _BLOCK_BYTES
        with contextlib.suppress(OSError):  # no space now; tried again later
            fd = self._files.open(self._room, create=True)
            try:
                self._files.set_length(fd, length)
                self._files.allocate(fd, 0, length)
                self._files.write(fd, data.ljust(length, b"\0"), 0)
                self._copied = data
            finally:
                self._files.close(fd)

    def removals(self, topics: Collection[str] | None = None) -> Iterator[None]:
        """Remove the files of these topics, or of all, whose deletion is on disk. One step removes a few queues;
        others may be served, and ``finish`` may be called, between two steps."""
        for topic in list(self._pending) if topics is None else topics:
            generation = self._pending.get(topic)
            while generation is not None and self._pending.get(topic) == generation <= self._saved_generation:
                if not self._remove(topic):
                    del self._pending[topic]
                yield


class _SaveDeletionsJob(PreparedJob):
    """Saves the list."""

    __slots__ = ("_copying", "_deletions", "_generation", "_positions")

    def __init__(self, deletions: Deletions, generation: int) -> None:
        self._deletions = deletions
        self._generation = generation
        self._positions: dict[str, int] = {}
        self._copying = deletions.copied_into(self._positions)

    def prepare(self) -> Iterator[None]:
        return self._copying

    def run(self) -> None:
        for _ in self._copying:
            continue
        self._deletions.save(self._generation, self._positions)

    def done(self, error: BaseException | None = None) -> None:
        """After an error the topics wait for the next job."""
        if error is None:
            self._deletions.on_saved()


class _KeepRoomJob:
    __slots__ = ("_deletions",)

    def __init__(self, deletions: Deletions) -> None:
        self._deletions = deletions

    def run(self) -> None:
        self._deletions.keep_room()

    def done(self, error: BaseException | None = None) -> None:
        """Without room it is tried again."""


class _RemoveFilesJob(SteppedJob):
    """A part of the removals. What is left waits for the next round of jobs, so that no other change does."""

    __slots__ = ("_deletions", "_steps")

    def __init__(self, deletions: Deletions, steps: int) -> None:
        self._deletions = deletions
        self._steps = steps

    def run(self) -> None:
        """Does nothing: files of queues are removed on the store's thread."""

    def done(self, error: BaseException | None = None) -> None:
        for _ in self.steps(error):
            continue

    def steps(self, error: BaseException | None = None) -> Iterator[None]:
        return islice(self._deletions.removals(), self._steps) if error is None else iter(())


class _CarryOutJob(_SaveDeletionsJob):
    """Saves the list, then removes the files of its topics."""

    __slots__ = ()

    def done(self, error: BaseException | None = None) -> None:
        super().done(error)
        for _ in self._deletions.removals() if error is None else ():
            continue
