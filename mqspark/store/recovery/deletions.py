"""Deleted topics, each with the place in the log before which its records are in no queue any more.

The log keeps the records of a deleted topic until it is cleaned. Without this list a recovery or a rebuild would put
them into queues again: all of them, or, worse, those behind a checkpoint alone, among offsets that a topic made again
under the name has given to other messages. (RocketMQ keeps no such list. Kafka has a log for each partition, so that
one rename deletes it.) A file of ours, which RocketMQ ignores and a store that comes from it does not have:

    mqspark.deletions   mqspark-deletions-1
                        00000000000000004711 TopicA         one line a topic, the last deletion of it
                        9d0ad5c7                            CRC-32 of all before

The topic is out of sight at once, then this file is saved, then the files of its queues are removed. A crash before the
save leaves the topic as it was: nobody was told otherwise. A crash after it leaves it deleted: what it left of the
files is removed at the start. A topic that is made again before the save waits for it. Room for the next list is kept
in a file beside it: on a full disk topics are deleted to get some.

An entry counts until the log begins behind its place. No place may be behind the log's end, where records to come
would be taken for those that were deleted: a start after a power cut, which may have taken the end of the log, moves it
there before anything is put. (A broker of RocketMQ that takes a store over moves nothing: what it puts where it has cut
the log itself, as it does at damage, is not told from what was deleted.)
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Mapping

from mqspark.bounded import ENTRY_BYTES, Ledger, text_bytes
from mqspark.errors import StoreCorrupt
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import FileLayer, is_disk_full
from mqspark.store.disk.layout import is_storable_topic

__all__ = ["Deletions", "load_deletions"]

_TITLE = b"mqspark-deletions-1\n"
_BLOCK_BYTES = 4096


def load_deletions(file: ConfigFile) -> dict[str, int]:
    """Physical offsets by topic; none without a file. Raises StoreCorrupt when neither it nor its ``.bak`` can be
    read."""
    is_there = False

    def is_readable(data: bytes) -> bool:
        nonlocal is_there
        is_there = True
        text, _, crc = data.removesuffix(b"\n").rpartition(b"\n")
        text += b"\n"
        return text.startswith(_TITLE) and crc == b"%08x" % zlib.crc32(text)

    data = file.load(is_readable)
    if data is None:
        if is_there:
            raise StoreCorrupt(
                f"{file.path} (and its .bak) cannot be read: without them parts of deleted topics may come back",
                path=str(file.path),
            )
        return {}
    rows = (line.split(" ", 1) for line in data.decode().splitlines()[1:-1])
    return {topic: int(position) for position, topic in rows if is_storable_topic(topic)}


def _encode(positions: Mapping[str, int]) -> bytes:
    text = _TITLE + "".join(f"{position:020d} {topic}\n" for topic, position in positions.items()).encode()
    return text + b"%08x\n" % zlib.crc32(text)


MAX_BYTES = 64 << 20
"""Of the list: some 200,000 topics that were deleted while the log still has records of them."""


def _row_bytes(topic: str) -> int:
    return 2 * ENTRY_BYTES + text_bytes(topic)


class Deletions:
    """Of one open store. Belongs to its thread, but for ``run`` of its jobs."""

    __slots__ = (
        "_begin",
        "_file",
        "_files",
        "_generation",
        "_lock",
        "_pending",
        "_remove",
        "_room",
        "_room_generation",
        "_saved_generation",
        "ledger",
        "on_removed",
        "positions",
    )

    def __init__(self, file: ConfigFile, files: FileLayer, remove: Callable[[str], None]) -> None:
        """``remove(topic)`` removes the files of its queues; an OSError of it is raised by ``done`` of the job, and the
        next one tries again."""
        self._file = file
        self._files = files
        self._room_generation = -1
        self._room = file.path.with_name(file.path.name + ".room")
        self._remove = remove
        self._lock = threading.Lock()
        self._begin = 0
        self._generation = self._saved_generation = 0
        self.ledger = Ledger(
            "deletions", lambda: MAX_BYTES, "Deletions.positions", "Deletions._pending", "QueueTable.hidden"
        )
        self._pending: dict[str, int] = {}
        """Topics whose files are still there, with the generation that has to be saved before."""
        self.on_removed: Callable[[], None] = lambda: None
        """Called when deletions that were added are on disk and carried out."""
        self.positions: dict[str, int] = {}
        """Records of these topics that lie before these physical offsets are of no queue."""

    def load(self, log_begin: int) -> None:
        """Raises StoreCorrupt."""
        self._pending.clear()
        self._saved_generation = self._generation
        self._begin = 0
        self._room_generation = -1
        self.positions = load_deletions(self._file)
        self._weigh_all()
        self._forget_before(log_begin)

    def end_at(self, log_end: int) -> None:
        """Recovery has found the end of the log: nothing may be put before this has returned. Blocking. Raises
        OSError."""
        behind = [topic for topic, position in self.positions.items() if position > log_end]
        if behind:
            self.positions.update(dict.fromkeys(behind, log_end))
            self._generation += 1
            self.job().run()
        self.keep_room()

    def admit(self, topic: str) -> None:
        """Before a topic is deleted. Raises TableFull: the list is as long as the log has records of so many."""
        if topic not in self.positions:
            self.ledger.admit(_row_bytes(topic))

    def _weigh_all(self) -> None:
        self.ledger.clear()
        for topic in self.positions:
            self.ledger.note(_row_bytes(topic))

    def add(self, topic: str, log_begin: int, position: int) -> None:
        """All of its records that there are lie before ``position``, where the log ends."""
        self._forget_before(log_begin)
        if topic not in self.positions:
            self.ledger.note(_row_bytes(topic))
        self.positions[topic] = position
        self._generation += 1
        self._pending[topic] = self._generation

    def _forget_before(self, log_begin: int) -> None:
        if log_begin > self._begin:
            self._begin = log_begin
            self.positions = {
                topic: position for topic, position in self.positions.items() if position > log_begin
            }
            self._weigh_all()

    @property
    def behind(self) -> bool:
        """A job has to run."""
        return bool(self._pending)

    def job(self) -> _SaveJob:
        return _SaveJob(self, self._generation, self.positions.copy())

    def finish(self, topic: str) -> None:
        """Before a queue of it is made: waits until the deletion is on disk and the files are gone. Raises OSError."""
        if topic in self._pending:
            job = self.job()
            job.run()
            job.done()

    def save(self, generation: int, positions: Mapping[str, int]) -> None:
        """Unless that, or what came later, is on disk already. Any thread. Raises OSError."""
        with self._lock:
            if generation > self._saved_generation:
                self._save(_encode(positions))
                self._saved_generation = generation

    def _save(self, data: bytes) -> None:
        try:
            self._file.save(data)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._files.remove(self._room)
            self._room_generation = -1
            self._file.save(data)

    def keep_room(self) -> None:
        """For the next list, if there is any by now. Not at once when files were removed: others wait for it, too."""
        if self._room_generation == self._generation:
            return
        length = len(_encode(self.positions)) + _BLOCK_BYTES
        length -= length % _BLOCK_BYTES
        with contextlib.suppress(OSError):  # there is none: the next time perhaps
            fd = self._files.open(self._room, create=True)
            try:
                self._files.set_length(fd, length)
                self._files.allocate(fd, 0, length)
                self._room_generation = self._generation
            finally:
                self._files.close(fd)

    def saved(self) -> None:
        for topic, generation in list(self._pending.items()):
            if generation <= self._saved_generation:
                self._remove(topic)
                del self._pending[topic]
        self.on_removed()


class _SaveJob:
    """The list onto the disk, then what is on it out of the queues' directories."""

    __slots__ = ("_deletions", "_generation", "_positions")

    def __init__(self, deletions: Deletions, generation: int, positions: dict[str, int]) -> None:
        self._deletions = deletions
        self._generation = generation
        self._positions = positions

    def run(self) -> None:
        self._deletions.save(self._generation, self._positions)

    def done(self) -> None:
        self._deletions.saved()
