"""Whether a store takes messages, and why not.

A failed write or sync *poisons* the store: it takes no more writes until it is opened again. Everything else passes:
a full disk, a shortage of descriptors, memory or permissions, and a refusal by the owner of the store.

Must not know who puts, writes and flushes.
"""

from __future__ import annotations

from pathlib import Path

from mqspark.errors import DiskFull, NoResources, NotNow, StoreError, StoreReadOnly, is_shortage
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.messages.unsettled import Unsettled


class Condition:
    """The condition of one store. Whatever refuses puts lets ``log`` ask ``check_writable`` before the next one."""

    def __init__(self, root: Path, log: CommitLog, unsettled: Unsettled) -> None:
        self._root = root
        self._log = log
        self._unsettled = unsettled
        self.failed_save: tuple[str, OSError] | None = None
        """The file beside the log that could not be saved, and the error. Set in the thread that saved."""
        self.read_only: str | None = "the store is not open"
        """Why puts are refused until the store is opened again, or None."""
        self.is_copy = False
        """Whether the log is a copy of another broker's, which takes no messages."""
        self.refusal: NotNow | None = None
        """Why the owner refuses puts although the store is healthy, or None."""
        self.shortage: NoResources | None = None
        """The current shortage. Puts are refused until it is over."""
        self.disk_full: str | None = None
        """Why the marks of a disk refuse messages, or None. The cleaner measures."""
        self.no_space: DiskFull | None = None
        """The error of the last put, when its log or queue could not grow. The next put tries again."""

    def begin(self) -> None:
        """Take messages: the store is open."""
        self.read_only = self.failed_save = self.no_space = None

    def check_writable(self) -> None:
        """Raises StoreReadOnly, NotNow, DiskFull or NoResources when nothing may be put."""
        if self.read_only is not None or self.is_copy:
            raise StoreReadOnly(self.read_only or "its log is a copy of a master's")
        if self.refusal is not None:
            raise self.refusal
        if self.disk_full is not None:
            raise DiskFull(self.disk_full)
        if self.shortage is not None:
            raise self.shortage

    @property
    def full(self) -> str | None:
        """Why messages are refused for want of disk space, or None."""
        return self.disk_full or (None if self.no_space is None else str(self.no_space))

    @property
    def why_refusing(self) -> str | None:
        """Why puts are refused, or None. A copy of a master's log takes none while it is healthy, too: that is no
        reason."""
        why = self.refusal or self.full or self.shortage
        return self.read_only or (None if why is None or self.is_copy else str(why))

    def poison(self, what: str, error: Exception) -> StoreError:
        """Make the store read-only and return the error to raise. A shortage poisons nothing."""
        if isinstance(error, OSError) and is_shortage(error):
            return NoResources(what, error)
        if self.read_only is None:
            self.read_only = f"{what}: {error}"
        self._unsettled.drop()
        return StoreReadOnly(self.read_only)

    def refuse(self, reason: NotNow | None) -> None:
        """Refuse every put with this error, until a call without one."""
        self.refusal = reason
        if reason is not None:
            self._log.hold()

    def lack(self, what: str, error: Exception) -> None:
        """Refuse puts for want of what ``is_shortage`` names, until ``relieve``."""
        self.shortage = NoResources(what, error)
        self._log.hold()

    def lack_space(self, error: DiskFull | None) -> None:
        """A put was refused with this error, because log or queue could not grow; None: they can again."""
        self.no_space = error
        if error is not None:
            self._log.hold()

    def relieve(self) -> None:
        """The shortage is over."""
        self.shortage = None

    def distrust(self, path: Path, error: OSError) -> None:
        """Note that a file beside the log could not be written or synced. The owner thread then makes the
        store read-only (``notice_failed_save``). May be called from any thread."""
        name = path.relative_to(self._root) if path.is_relative_to(self._root) else path
        self.failed_save = self.failed_save or (f"saving {name} failed", error)

    def notice_failed_save(self) -> None:
        """Poison the store when a file beside the log could not be saved."""
        if self.failed_save is not None:
            self.poison(*self.failed_save)
