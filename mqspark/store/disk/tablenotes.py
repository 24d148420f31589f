"""``mqspark.tables``: the version of each table in ``config/`` that was saved last, and where the log ended then.

A table that is replaced by an older file of itself is valid, and nothing in it tells that younger changes are missing.
Its data version does: it grows with each change. RocketMQ ignores the file:

    mqspark-tables-1
    1700000000000 17 4711 topics.json       time and counter of the version, position of the log
    9d0ad5c7                                CRC-32 of everything before

It is written after the tables, so a kill leaves it behind them, never ahead. Must not know what is in a table.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.disk.saved import SavedTable

__all__ = ["TableNotes", "TableNotesJob"]

_TITLE = "mqspark-tables-1"
_ROW = re.compile(r"(\d{1,19}) (\d{1,19}) (\d{1,19}) ([A-Za-z.]+)")


class _Note(NamedTuple):
    timestamp_ms: int
    counter: int
    position: int

    def is_older(self, other: _Note) -> bool:
        return (self.counter, self.timestamp_ms) < (other.counter, other.timestamp_ms)


def _decode(data: bytes) -> dict[str, _Note] | None:
    text, _, crc = data.removesuffix(b"\n").rpartition(b"\n")
    title, *rows = text.decode("ascii", "replace").split("\n")
    found = [_ROW.fullmatch(row) for row in rows]
    if title != _TITLE or crc != b"%08x" % zlib.crc32(text):
        return None
    return {row[4]: _Note(int(row[1]), int(row[2]), int(row[3])) for row in found if row is not None}


class TableNotes:
    """Of one broker, or of a directory that is only read. Belongs to one thread, except ``run`` of its jobs."""

    def __init__(self, file: ConfigFile, position: Callable[[], int] = lambda: 0) -> None:
        """``position``: the durable end of the log. A file that is lost or damaged notes nothing."""
        self._file = file
        self._position = position
        self._tables: dict[str, SavedTable] = {}
        self._notes = _decode(file.load(lambda data: _decode(data) is not None) or b"") or {}

    def compare(self, name: str, table: SavedTable) -> Damage | None:
        """Call this when the table was loaded. What is wrong if its file is older than the last one that was saved."""
        self._tables[name] = table
        noted, version = self._notes.get(name), table.saved_version
        if noted is None or version is None or not table.is_latest:
            return None
        if not _Note(*version, 0).is_older(noted):
            return None
        text = (
            f"{name} is an older one: it has version {version[1]}, the last one that was saved had version"
            f" {noted.counter}, when the log ended at {noted.position}; what was changed in between is lost"
        )
        return Damage("config.older", Outcome.LOST, text)

    def beyond(self, log_end: int) -> Damage | None:
        """What is wrong if the log ends before the tables were saved."""
        reached = max((note.position for note in self._notes.values()), default=0)
        if reached <= log_end:
            return None
        text = (
            f"the tables were saved when the log ended at {reached}, but it ends at {log_end}: its end is lost, or it"
            " is an older one"
        )
        return Damage("config.ahead", Outcome.LOST, text)

    def job(self) -> TableNotesJob:
        """To be run after the jobs of the tables."""
        return TableNotesJob(self)

    def write(self) -> None:
        """Note the versions that are on disk now. Blocking. Raises OSError."""
        before, position = self._notes, self._position()
        notes = dict(before)
        for name, table in self._tables.items():
            version, noted = table.saved_version, before.get(name)
            if version is not None and (noted is None or version != (noted.timestamp_ms, noted.counter)):
                notes[name] = _Note(*version, position)
        if notes != before:
            self._file.save(_encode(notes))
            self._notes = notes


def _encode(notes: Mapping[str, _Note]) -> bytes:
    rows = [
        f"{note.timestamp_ms} {note.counter} {note.position} {name}" for name, note in sorted(notes.items())
    ]
    text = "\n".join([_TITLE, *rows]).encode()
    return text + b"\n%08x\n" % zlib.crc32(text)


class TableNotesJob:
    def __init__(self, notes: TableNotes) -> None:
        self._notes = notes

    def run(self) -> None:
        self._notes.write()

    def done(self, error: BaseException | None = None) -> None:
        """After an error the next job writes it."""
