"""The directories of the log's segments: one, or several (MultiPathMappedFileQueue).

``storePathCommitLog`` may name directories separated by commas; segment n goes to the n-th of them in turn.
``readOnlyCommitLogStorePaths`` names directories whose segments are read and eventually deleted, but which
get no new ones. Directories on a disk that is too full get no new ones either.

Must not touch the disk.
"""

from __future__ import annotations

from pathlib import Path


class LogPaths:
    def __init__(self, writable: tuple[Path, ...], read_only: tuple[Path, ...] = ()) -> None:
        self.read_only = read_only
        self.writable = tuple(sorted(set(writable) - set(read_only), key=str)) or writable
        """Never empty: when every directory is read-only, all are used."""
        self.full: frozenset[Path] = frozenset()
        """Those of ``writable`` whose disk is too full for another segment."""

    @classmethod
    def parse(cls, text: str | None, read_only: str | None, default: Path) -> LogPaths:
        """Parse the two settings. Without the first there is one directory, ``default``."""
        return cls(_split(text) or (default,), _split(read_only))

    @property
    def first(self) -> Path:
        return self.writable[0]

    @property
    def all(self) -> tuple[Path, ...]:
        return (*self.writable, *(path for path in self.read_only if path not in self.writable))

    def for_segment(self, number: int) -> Path:
        """The directory of a new segment."""
        roomy = [path for path in self.writable if path not in self.full] or list(self.writable)
        return roomy[number % len(roomy)]


def _split(text: str | None) -> tuple[Path, ...]:
    return tuple(Path(word.strip()) for word in (text or "").split(",") if word.strip())
