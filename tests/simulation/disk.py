"""A simulated disk for fast runs: what programs see, and what a power cut leaves of it.

Simpler than ``tests/crash/disk.py``, whose files it uses: a sector that is not synced is on the disk as it was at the
last sync, or as it is now; a change of names that is not synced is there or not.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from mqspark.store.disk.files import StrPath
from mqspark.store.disk.retention import OldSegment
from tests.crash.disk import SECTOR_BYTES, Directory, File, MemoryFiles, Tree

_Step = tuple[tuple[str, "File | Directory | None"], ...]


class SimulatedFiles(MemoryFiles):
    """All that is in ``tree`` is durable, and as old as these files."""

    def __init__(self, root: Path, tree: Tree | None, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._written_ms: dict[File, int] = {}
        self._durable: dict[File, bytes] = {}
        self._names: dict[Directory, dict[str, File | Directory]] = {}
        self._steps: dict[Directory, list[_Step]] = {}
        self.fault: int = 0
        """The error number of every write, sync and allocation, or 0."""
        self.stall_s = 0.0
        """What every job takes longer."""
        super().__init__(root, tree)
        for directory in self.directories.values():
            self._names[directory] = dict(directory.entries)
            for node in directory.entries.values():
                if isinstance(node, File):
                    self._durable[node] = node.content()

    def durable(self, file: File) -> bytes:
        return self._durable.get(file, b"")

    def at(self, *names: str) -> File | None:
        """The file that these names lead to, from the root on."""
        *parents, name = names
        directory = self.directories.get("/".join((self.root, *parents)))
        node = None if directory is None else directory.entries.get(name)
        return node if isinstance(node, File) else None

    def _check(self) -> None:
        if self.fault:
            raise OSError(self.fault, os.strerror(self.fault))

    def allocate(self, fd: int, offset: int, length: int) -> None:
        if self.fault == errno.ENOSPC:
            self._check()
        super().allocate(fd, offset, length)

    def age(self, path: StrPath) -> OldSegment:
        file = self._find(path)[2]
        if not isinstance(file, File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return OldSegment(self._written_ms.get(file, self._began_ms), file.length)

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._written_ms[self.open_files[fd]] = self._now_ms()
        if self.fault:
            super().write(fd, bytes(data)[: len(data) // 2], offset)
            self._check()
        super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        if self.fault == errno.EIO:
            self._check()
        file = self.open_files[fd]
        self._durable[file] = file.content()

    def sync_directory(self, path: StrPath) -> None:
        super().sync_directory(path)
        directory = self.directories.get(os.fspath(path))
        if directory is not None:
            self._names[directory] = dict(directory.entries)
            self._steps.pop(directory, None)

    def rename(self, source: StrPath, target: StrPath) -> None:
        directory, old, node = self._find(source)
        super().rename(source, target)
        self._steps.setdefault(directory, []).append(((os.path.basename(target), node), (old, None)))

    def _link(self, path: str, directory: Directory, name: str, node: File | Directory | None) -> None:
        super()._link(path, directory, name, node)
        self._steps.setdefault(directory, []).append(((name, node),))

    def after_power_cut(self, chance: random.Random) -> Tree:
        """What is there when the power comes back: of what was not synced everything, nothing, or a part."""
        share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        return self._image(self.directories[self.root], chance, share)

    def _image(self, directory: Directory, chance: random.Random, share: float) -> Tree:
        entries = dict(self._names.get(directory, {}))
        for step in self._steps.get(directory, ()):
            if chance.random() < share:
                for name, node in step:
                    if node is None:
                        entries.pop(name, None)
                    else:
                        entries[name] = node
        return {
            name: self._content(node, chance, share)
            if isinstance(node, File)
            else self._image(node, chance, share)
            for name, node in entries.items()
        }

    def _content(self, file: File, chance: random.Random, share: float) -> bytes:
        old, new = self._durable.get(file, b""), file.content()
        if old == new:
            return old
        length = len(new) if chance.random() < share else len(old)
        if old[:length] == new[:length]:
            return new[:length].ljust(length, b"\0")
        content = bytearray(old[:length].ljust(length, b"\0"))
        for low in range(0, min(length, len(new)), SECTOR_BYTES):
            sector = new[low : min(low + SECTOR_BYTES, length)]
            if content[low : low + len(sector)] != sector and chance.random() < share:
                content[low : low + len(sector)] = sector
        return bytes(content)
