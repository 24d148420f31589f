"""What a replica knows of itself in controller mode, whatever becomes of its log: ``mqspark.member`` in the store
directory. RocketMQ ignores it.

    CRC32 JSON\n

A replica that has acknowledged a position as a member may be elected because of it. So a start compares the log with
the note, and with the epochs that the log should have: less means damage, an older copy or another disk. A replica
whose log cannot be trusted notes that before anything else, and is no member until its log was compared with its
master's as a whole.

A position is written before it is acknowledged, and synced within about a second: a killed process loses nothing of
it. A power cut may bring back an older note, which says less and is true as well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from mqspark.base.crc import crc32
from mqspark.errors import is_shortage
from mqspark.store.disk.files import FileLayer, is_disk_full

NOTE_BYTES = 512
"""Length of the file: one sector, which a power cut leaves old or new."""
MAX_DAMAGE_LENGTH = 200


class Noted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    epoch: int = -1
    """The epoch in which the position was acknowledged; -1 before the first."""
    acknowledged: int = 0
    """The end of what this replica has acknowledged as a member, or as the master."""
    confirmed: int = 0
    """The end of what it knows that all members have."""
    damage: str = ""
    """Why the log cannot be trusted, or ''."""
    epochs: tuple[tuple[int, int], ...] = ()
    """Marks that the file of the epochs may have: of its content, and of the one that is being written."""
    segment_bytes: int = 0
    """The length of the log's segments, or 0. The length of a log's only file may be what is left of it."""


class MemberNote:
    """The note of one open store. Belongs to the store's thread; ``open`` and ``close`` may be called in any."""

    def __init__(self, path: Path, files: FileLayer, failed: Callable[[Path, OSError], None]) -> None:
        """``failed`` is called for every error that is not transient, in the thread in which it happens."""
        self._failed = failed
        self._path = path
        self._files = files
        self._fd = -1
        self._is_synced = True
        self.noted = Noted()
        self.problem = ""
        """Why the file that was found cannot be read, or ''."""

    def look(self) -> bool:
        """Read the note; whether there is one. Blocks. Raises OSError."""
        data = self._files.read(self._path)
        if data:
            try:
                self.noted = _decode(data)
            except ValueError as error:
                self.problem = f"{self._path.name} cannot be read: {error}"
        return bool(data)

    def open(self) -> None:
        """Read the note, or begin one. Blocks. Raises OSError."""
        if self._fd >= 0:
            return
        is_there = self.look()
        self._fd = self._files.open(self._path, create=True)
        if not is_there:
            self._write(self.noted)
            self.sync()
            self._files.sync_directory(self._path.parent)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def as_dict(self) -> dict[str, object] | None:
        """What is noted, for the health report; None without controllers."""
        if self._fd < 0:
            return None
        noted = self.noted
        return {
            "epoch": noted.epoch,
            "acknowledged": noted.acknowledged,
            "confirmed": noted.confirmed,
            "damage": noted.damage or None,
        }

    @property
    def damage(self) -> str:
        """Why the log cannot be trusted, or ''."""
        return self.noted.damage

    # --- positions ---

    def acknowledge(self, epoch: int, position: int, confirmed: int) -> None:
        """Note what is about to be acknowledged, and what is known to be confirmed. Raises OSError."""
        noted = self.noted
        if position > noted.acknowledged or confirmed > noted.confirmed:
            self._write(
                replace(
                    noted,
                    epoch=max(epoch, noted.epoch),
                    acknowledged=max(position, noted.acknowledged),
                    confirmed=max(confirmed, noted.confirmed),
                )
            )

    def lower(self, position: int) -> None:
        """The log is about to be taken back to ``position``. Blocks. Raises OSError."""
        noted = self.noted
        if position < noted.acknowledged:
            self._write(replace(noted, acknowledged=position, confirmed=min(position, noted.confirmed)))
            self.sync()

    # --- epochs ---

    def expect_epochs(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """The file of the epochs is about to change; or, with the same marks, it has. Blocks. Raises OSError."""
        marks = (before, after) if before != after else (after,)
        self._write(replace(self.noted, epochs=marks))
        if before != after:
            self.sync()

    # --- segments ---

    def expect_segments(self, segment_bytes: int) -> None:
        """The files of the log are so long. Blocks. Raises OSError."""
        if segment_bytes != self.noted.segment_bytes:
            self._write(replace(self.noted, segment_bytes=segment_bytes))
            self.sync()

    # --- damage ---

    def suspect(self, damage: str) -> None:
        """The log cannot be trusted; the first reason stays. Raises OSError."""
        if not self.noted.damage:
            text = damage[:MAX_DAMAGE_LENGTH].encode("ascii", "replace").decode() or "unknown"
            self._write(replace(self.noted, damage=text))

    def trust(self, epoch: int, position: int) -> None:
        """The log was compared with its master's up to ``position``. Raises OSError."""
        self.problem = ""
        confirmed = min(self.noted.confirmed, position)
        self._write(replace(self.noted, epoch=epoch, acknowledged=position, confirmed=confirmed, damage=""))

    # --- the file ---

    def sync(self) -> None:
        """Blocks. Raises OSError."""
        self._is_synced = True
        try:
            self._files.sync(self._fd)
        except OSError as error:
            self._is_synced = False
            self._report(error)
            raise

    def job(self) -> SyncNoteJob | None:
        """The job that syncs what was written since the last one."""
        return None if self._is_synced or self._fd < 0 else SyncNoteJob(self)

    def _write(self, noted: Noted) -> None:
        text = msgspec.json.encode(noted)
        line = b"%08x %s\n" % (crc32(text), text)
        try:
            self._files.write(self._fd, line.ljust(NOTE_BYTES), 0)
        except OSError as error:
            self._report(error)
            raise
        self.noted, self._is_synced = noted, False

    def _report(self, error: OSError) -> None:
        if not is_disk_full(error) and not is_shortage(error):
            self._failed(self._path, error)


class SyncNoteJob:
    """Blocking, in any thread. A failed sync is tried again: what it did not sync is needed after a power cut only."""

    def __init__(self, note: MemberNote) -> None:
        self._note = note

    def run(self) -> None:
        self._note.sync()

    def done(self, error: BaseException | None = None) -> None:
        """Nothing waits for it."""


def _decode(data: bytes) -> Noted:
    """Raises ValueError."""
    crc, _, text = data.partition(b"\n")[0].partition(b" ")
    if crc != b"%08x" % crc32(text):
        raise ValueError("its CRC is wrong")
    return msgspec.json.decode(text, type=Noted)
