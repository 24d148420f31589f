"""``mqspark.tables``: what was saved of each table in ``config/``, and where the log ended then.

A table that is replaced by an older file of itself is valid, and nothing in it tells that younger changes are missing.
Its data version does, if it has one, and if that has changed meanwhile; and its content is that of an earlier save. So
the checksums of the last saves are noted, more of them than a data version takes to change. RocketMQ ignores the file:

    mqspark-tables-1
    1700000000000 17 9d0ad5c7@4000,5c79d0ad@4711 topics.json    time and counter of the version, then for each save
    9d0ad5c7                                                    the CRC-32 and the log's end; last that of all before

Every table that a broker saves is watched, and the rows tell ``fsck`` which there are. It is written after the tables,
so a kill leaves it behind them, never ahead. Must not know what is in a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.disk.files import FileLayer

MAX_SAVES = 1000
"""The most saves of a table that are noted. The offsets change twice as often between two data versions at most."""
_TITLE = "mqspark-tables-1"
_BESIDE = "../"
"""Begins the name of a table that is not in ``config/``."""
_ROW = re.compile(r"(\d{1,19}) (\d{1,19}) ((?:[0-9a-f]{8}@)?\d{1,19}(?:,[0-9a-f]{8}@\d{1,19})*) (\S[^\n]*)")

Version = tuple[int, int]
"""Time and counter of a data version."""


class Watched(Protocol):
    """A table whose saves are noted, as ``SavedTable``."""

    @property
    def path(self) -> Path: ...

    @property
    def digest(self) -> int | None:
        """The digest of the content that was loaded; None without a file."""

    @property
    def saved_version(self) -> Version | None: ...

    @property
    def is_missing(self) -> bool: ...

    @property
    def is_known_damaged(self) -> bool: ...

    def tell_saves(self, on_written: Callable[[int], None]) -> None: ...


class OlderTable(NamedTuple):
    """A file that is not the last one that was saved."""

    damage: Damage
    position: int
    """Where the log ended when it was saved, or later."""
    is_missing: bool = False


class _Save(NamedTuple):
    digest: int
    """-1 if it is not known."""
    position: int
    """The durable end of the log."""

    def __str__(self) -> str:
        return f"{self.digest:08x}@{self.position}" if self.digest >= 0 else str(self.position)


class _Note(NamedTuple):
    version: Version
    """(0, 0) for a table without one."""
    saves: tuple[_Save, ...]
    """The last one is the file's, unless the process was killed after a save."""

    @property
    def position(self) -> int:
        return self.saves[-1].position

    def older(self, digest: int | None, version: Version | None) -> _Save | None:
        """The save that a file is, or the first that is known, if it is not the last one or a later one."""
        if digest == self.saves[-1].digest:
            return None
        earlier = next((save for save in reversed(self.saves) if save.digest == digest), None)
        if version is not None and version != self.version:
            is_older = version[::-1] < self.version[::-1]
            return (earlier or self.saves[0]) if is_older else None
        return earlier


def _saves(text: str) -> tuple[_Save, ...]:
    found = (each.rpartition("@") for each in text.split(","))
    return tuple(_Save(int(digest, 16) if digest else -1, int(position)) for digest, _, position in found)


def _decode(data: bytes) -> dict[str, _Note] | None:
    text, _, crc = data.removesuffix(b"\n").rpartition(b"\n")
    title, *rows = text.decode("utf-8", "replace").split("\n")
    found = [_ROW.fullmatch(row) for row in rows]
    if title != _TITLE or crc != b"%08x" % crc32(text):
        return None
    return {
        row[4]: _Note((int(row[1]), int(row[2])), _saves(row[3])[-MAX_SAVES:])
        for row in found
        if row is not None
    }


class DurableLog(Protocol):
    @property
    def durable(self) -> int:
        """Up to where no crash can take it back."""
        ...


class TableNotes:
    """The notes of a broker, or of a directory that is only read. Belongs to one thread, except ``run`` of its jobs."""

    def __init__(self, file: ConfigFile, config: Path, log: DurableLog | None = None) -> None:
        """``config``: the directory of the tables. A file that is lost or damaged notes nothing."""
        self._file = file
        self._config = config
        self._log = log
        self._tables: dict[str, Watched] = {}
        self._unnoted: dict[str, list[_Save]] = {}
        """Saves, in their order, by table."""
        self._notes = _decode(file.load(lambda data: _decode(data) is not None) or b"") or {}

    @property
    def _position(self) -> int:
        return 0 if self._log is None else self._log.durable

    @property
    def names(self) -> list[str]:
        """Those of all tables that were saved, as paths from ``config``."""
        return list(self._notes)

    def watch(self, table: Watched) -> OlderTable | None:
        """Call this when a table was loaded, before it is saved. What is wrong if its file is not the last one that was
        saved."""
        name, digest = self._name_of(table.path), table.digest
        self._tables[name] = table
        noted, unnoted = self._notes.get(name), self._unnoted.setdefault(name, [])
        table.tell_saves(lambda digest: unnoted.append(_Save(digest, self._position)))
        found = _Save(-1 if digest is None else digest, self._position)
        if noted is None:
            is_noted = digest is None
        else:  # each finding is reported once
            is_noted = noted.saves[-1].digest == found.digest and noted.position <= found.position
        if not is_noted:
            unnoted.append(found)
        if noted is None or table.is_known_damaged:
            return None
        return _compared(name, noted, digest, table.saved_version, is_missing=table.is_missing)

    def _name_of(self, path: Path) -> str:
        if path.is_relative_to(self._config):
            return path.relative_to(self._config).as_posix()
        root = self._config.parent
        return _BESIDE + path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)

    def compared(
        self, files: FileLayer, version_of: Callable[[bytes], Version | None]
    ) -> Iterator[tuple[str, OlderTable]]:
        """The same for every table of the directory, which nobody uses: names and what is wrong."""
        for name, noted in self._notes.items():
            place = name.removeprefix(_BESIDE)
            if place.startswith("/") or ".." in place.split("/"):
                continue  # its place is a setting of the broker, which is not known here
            file = ConfigFile((self._config if place == name else self._config.parent) / place, files)
            data = file.load()
            digest, version = (None, None) if data is None else (crc32(data), version_of(data))
            if not file.is_damaged:
                older = _compared(name, noted, digest, version, is_missing=file.is_missing)
                if older is not None:
                    yield name, older

    def beyond(self, log_end: int) -> Damage | None:
        """What is wrong if the log ends before tables were saved."""
        ahead = {name: note.position for name, note in self._notes.items() if note.position > log_end}
        if not ahead:
            return None
        text = (
            f"tables were saved when the log ended at {max(ahead.values())}, but it ends at {log_end}: its end is lost,"
            f" or it is an older one ({', '.join(sorted(map(_short, ahead)))})"
        )
        return Damage("config.ahead", Outcome.LOST, text)

    @property
    def is_behind(self) -> bool:
        """Whether a table has been saved, or loaded, that is not noted."""
        return any(self._unnoted.values())

    def job(self) -> TableNotesJob:
        """To be run after the jobs of the tables."""
        return TableNotesJob(self)

    def write(self) -> None:
        """Note what was saved. Blocking. Raises OSError."""
        notes, counts = dict(self._notes), {}
        for name, unnoted in self._unnoted.items():
            del unnoted[:-MAX_SAVES]
            counts[name] = len(unnoted)
            if unnoted:
                before = self._notes.get(name)
                saves = (*(before.saves if before is not None else ()), *unnoted[: counts[name]])
                notes[name] = _Note(self._tables[name].saved_version or (0, 0), saves[-MAX_SAVES:])
        if not any(counts.values()):
            return
        self._file.save(_encode(notes))
        self._notes = notes
        for name, count in counts.items():
            del self._unnoted[name][:count]


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _compared(
    name: str, noted: _Note, digest: int | None, version: Version | None, *, is_missing: bool
) -> OlderTable | None:
    name = _short(name)
    if is_missing:
        if noted.saves[-1].digest < 0:
            return None  # as it was before
        text = (
            f"{name} is missing, and its .bak; it was saved last when the log ended at {noted.position}: what it had is"
            " lost"
        )
        return OlderTable(Damage("config.missing", Outcome.LOST, text), 0, is_missing=True)
    older = noted.older(digest, version)
    if older is None:
        return None
    if version is None or version == noted.version:
        which = f"it was saved when the log ended at {older.position}, the last one was saved after it"
    else:
        which = f"it has version {version[1]}, the last one that was saved had version {noted.version[1]}"
    text = (
        f"{name} is an older one: {which}, when the log ended at {noted.position}; what was changed in between is"
        " lost"
    )
    return OlderTable(Damage("config.older", Outcome.LOST, text), older.position)


def _encode(notes: Mapping[str, _Note]) -> bytes:
    rows = [
        f"{note.version[0]} {note.version[1]} {','.join(map(str, note.saves))} {name}"
        for name, note in sorted(notes.items())
    ]
    text = "\n".join([_TITLE, *rows]).encode()
    return text + b"\n%08x\n" % crc32(text)


class TableNotesJob:
    def __init__(self, notes: TableNotes) -> None:
        self._notes = notes

    def run(self) -> None:
        self._notes.write()

    def done(self, error: BaseException | None = None) -> None:
        """After an error the next job writes it."""
