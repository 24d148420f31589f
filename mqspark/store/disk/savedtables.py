"""Tables kept in ``config/*.json``. When a file is behind its table, a blocking job writes it."""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import msgspec

from mqspark.errors import MQError, StoreCorrupt
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.diskjobs import Job


class SteppedJob(Job):
    """A job whose work on the loop's thread is long. It runs in steps, between which other requests are served."""

    @abstractmethod
    def steps(self, error: BaseException | None = None) -> Iterator[None]:
        """Called instead of ``done``. May be abandoned before its end; another job then starts it again."""


PAUSE_S = 0.0002
"""Between two pieces of a table. Without it the encoding thread holds the interpreter for most of the time, and every
turn of the loop waits some milliseconds for it."""


BLOCK_BYTES = 256 << 10
"""Bytes of a table that are written at once. A join of a hundred megabytes would hold the interpreter, too."""

MAX_WAITING_BYTES = 1 << 20
"""Limit of the answers of one server that wait until their changes are on disk."""
WAITING_BYTES = 500
"""The memory of one answer that waits."""


class Table(Protocol):
    """``generation`` counts changes. ``load`` raises when the bytes are not a valid table."""

    @property
    def generation(self) -> int: ...

    def load(self, data: bytes) -> None: ...

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """A function that encodes the table as it is now, or as it will be while that runs, in another thread. Long
        tables come in pieces of less than a millisecond."""


class ChangedSettings:
    """Settings that operators have changed while the process runs, by RocketMQ's keys: a table whose file is the
    settings file. Bounded by the number of settings."""

    def __init__(self) -> None:
        self.generation = 0
        self._values: dict[str, Any] = {}

    def note(self, values: Mapping[str, Any]) -> None:
        if values:
            self._values.update(values)
            self.generation += 1

    def load(self, data: bytes) -> None:
        """Does nothing: the settings of the file are in force since the start."""

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """The changes as a JSON object."""
        values = dict(self._values)
        return lambda: [msgspec.json.encode(values)]


class SavedTable:
    """A table and its file. ``on_saved`` is called on the loop's thread after each save."""

    def __init__(self, table: Table, file: ConfigFile, on_saved: Callable[[], None] = lambda: None) -> None:
        self._table = table
        self._file = file
        self._on_saved = on_saved
        self.saved_generation = table.generation
        self.saved_version: tuple[int, int] | None = None
        """Time and counter of the data version in the file; None for a table or a file without one."""
        self.digest: int | None = None
        """The digest of the content that was loaded; None without a file."""
        self._on_written: Callable[[int], None] = lambda digest: None
        self._before = _version_of(table)

    def load(self) -> None:
        """Read the table. Raises StoreCorrupt when there is a file but neither it nor its ``.bak`` can be
        read: starting with an empty table would discard its content."""
        problem: list[str] = []

        def is_readable(data: bytes) -> bool:
            if not data:
                problem.append("it is empty")
                return False
            try:
                self._table.load(data)
            except (MQError, ValueError, TypeError, AttributeError) as error:
                problem.append(str(error))
                return False
            return True

        data = self._file.load(is_readable)
        if data is None and problem:
            path = str(self._file.path)
            raise StoreCorrupt(f"{path} (and its .bak) cannot be read: {problem[0]}", path=path)
        self.loaded(data)

    def loaded(self, data: bytes | None) -> None:
        """The table has been loaded from this content of its file, or there is no file."""
        self.saved_generation = self._table.generation
        version = _version_of(self._table)
        self.saved_version = version if data is not None and version not in (self._before, (0, 0)) else None
        self.digest = None if data is None else crc32(data)

    @property
    def is_latest(self) -> bool:
        """Whether ``load`` has read the last save: not the file's ``.bak``, and not nothing."""
        return self._file.is_latest

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def is_missing(self) -> bool:
        """Whether ``load`` has found neither the file nor its ``.bak``."""
        return self._file.is_missing

    @property
    def is_known_damaged(self) -> bool:
        """Whether ``load`` has reported that it could not read the file itself."""
        return self._file.is_damaged

    def tell_saves(self, on_written: Callable[[int], None]) -> None:
        """``on_written`` gets the digest of each content that is written, in the thread that writes it."""
        self._on_written = on_written

    def backup(self) -> bytes | None:
        """The content of its file's ``.bak``."""
        return self._file.backup()

    @property
    def generation(self) -> int:
        """Generation of the table's current state."""
        return self._table.generation

    @property
    def behind(self) -> bool:
        return self._table.generation != self.saved_generation

    def saved(self, generation: int) -> None:
        self.saved_generation = generation
        self._on_saved()

    def save(self, pieces: Iterable[bytes], version: tuple[int, int] | None) -> None:
        """Write the file, with pauses between its pieces. In any thread, one at a time. Raises OSError."""
        digest = 0

        def written() -> Iterator[bytes]:
            nonlocal digest
            for block in _blocks(pieces):
                digest = crc32(block, digest)
                yield block

        blocks = written()
        first, second = next(blocks, b""), next(blocks, None)
        if second is None:
            self._file.save(first)
        else:
            self._file.save_pieces(itertools.chain((first, second), blocks))
        self.saved_version = version
        self._on_written(digest)

    def job(self) -> Job:
        table = self._table
        return _SaveTableJob(self, table.snapshot(), table.generation, _version_of(table))


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces, some in each block, and a pause after each piece."""
    waiting: list[bytes] = []
    size = 0
    for number, piece in enumerate(pieces):
        if number:
            time.sleep(PAUSE_S)
        waiting.append(piece)
        size += len(piece)
        if size >= BLOCK_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    if waiting:
        yield b"".join(waiting)


def _version_of(table: Table) -> tuple[int, int] | None:
    """Time and counter of a table's data version, as RocketMQ calls it, if it has one."""
    version = getattr(table, "data_version", None)
    return None if version is None else (version.timestamp, version.counter)


class _SaveTableJob:
    def __init__(
        self,
        owner: SavedTable,
        encode: Callable[[], Iterable[bytes]],
        generation: int,
        version: tuple[int, int] | None,
    ) -> None:
        self._owner = owner
        self._encode = encode
        self._generation = generation
        self._version = version

    def run(self) -> None:
        self._owner.save(self._encode(), self._version)

    def done(self, error: BaseException | None = None) -> None:
        if error is None:  # otherwise the table stays behind its file's generation, and the next job saves it
            self._owner.saved(self._generation)
