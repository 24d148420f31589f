"""A disk in memory that writes down what is done to it, and every state in which a power cut may leave it.

What is assumed of a disk and a file system is as little as POSIX promises:

* A sector (512 bytes) is written whole. Between two syncs of a file each of its sectors, and its length, may be
  on the disk as any version that it had in that time, whatever became of the others.
* ``fdatasync`` makes durable what was in the file when it began: not the file's name, not what is written meanwhile.
* After a failed ``fdatasync`` programs go on seeing what they wrote, and another sync does nothing about it: only what
  is written again gets another chance. (Linux; told for files that are written, not for those that are mapped.)
* Names in a directory (made, renamed, removed) are durable after the directory was synced; before, each of them is
  or is not, except that a rename is one step. A directory whose name is lost is lost with all that is in it.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import mmap
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqspark.errors import StoreLocked
from mqspark.store.disk.files import StrPath
from mqspark.store.disk.retention import DiskUsage, OldSegment

SECTOR_BYTES = 512
_BLOCK_BYTES = 4096

Tree = dict[str, "bytes | Tree"]
"""What a disk holds: names to contents, or to directories."""


class File:
    """Content in an anonymous mapping as soon as somebody maps it: a write is then seen there, too."""

    __slots__ = ("data", "length", "mapped_for_writing", "number", "shadow")
    _numbers = itertools.count()

    def __init__(self, content: bytes = b"") -> None:
        self.number = next(self._numbers)
        self.data: bytearray | mmap.mmap = bytearray(content)
        self.length = len(content)
        self.mapped_for_writing = False
        self.shadow = b""
        """The content when the recorder last looked."""

    def content(self) -> bytes:
        return bytes(self.data[: self.length])

    def map(self) -> mmap.mmap:
        if not isinstance(self.data, mmap.mmap):
            mapping = mmap.mmap(-1, self.length)
            mapping[:] = bytes(self.data[: self.length])
            self.data = mapping
        return self.data

    def set_length(self, length: int) -> None:
        if length == self.length:
            return
        self.data = bytearray(self.data[: min(length, self.length)].ljust(length, b"\0"))
        self.length = length

    def write(self, data: bytes, offset: int) -> None:
        if offset + len(data) > self.length:
            self.set_length(offset + len(data))
        self.data[offset : offset + len(data)] = data


class Directory:
    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[str, File | Directory] = {}


class MemoryFiles:
    """FileLayer in memory. ``root`` is a path that need not exist; it is the one directory that is there at first."""

    def __init__(self, root: Path, tree: Tree | None = None) -> None:
        self.root = str(root)
        self.directories: dict[str, Directory] = {self.root: Directory()}
        self.open_files: dict[int, File] = {}
        self._next_fd = 3
        self._locked: set[str] = set()
        self._fill(self.root, tree or {})

    def _fill(self, path: str, tree: Tree) -> None:
        entries = self.directories[path].entries
        for name, content in tree.items():
            if isinstance(content, bytes):
                entries[name] = File(content)
            else:
                child = f"{path}/{name}"
                entries[name] = self.directories[child] = Directory()
                self._fill(child, content)

    def tree(self, path: str | None = None) -> Tree:
        """What programs see."""
        path = path or self.root
        return {
            name: node.content() if isinstance(node, File) else self.tree(f"{path}/{name}")
            for name, node in self.directories[path].entries.items()
        }

    def _find(self, path: StrPath) -> tuple[Directory, str, File | Directory | None]:
        parent, name = os.path.split(os.fspath(path))
        directory = self.directories.get(parent)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return directory, name, directory.entries.get(name)

    # --- FileLayer ------------------------------------------------------------------------------------------

    def open(self, path: StrPath, *, create: bool = False) -> int:
        directory, name, node = self._find(path)
        if node is None and create:
            node = File()
            self._link(os.path.dirname(os.fspath(path)), directory, name, node)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        self._next_fd += 1
        self.open_files[self._next_fd] = node
        return self._next_fd

    def open_read(self, path: StrPath) -> int:
        return self.open(path)

    def close(self, fd: int) -> None:
        del self.open_files[fd]

    def length(self, fd: int) -> int:
        return self.open_files[fd].length

    def set_length(self, fd: int, length: int) -> None:
        self.open_files[fd].set_length(length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        file = self.open_files[fd]
        if offset + length > file.length:
            file.set_length(offset + length)

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        """There is no cache."""

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.open_files[fd].write(bytes(data), offset)

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        file = self.open_files[fd]
        return bytes(file.data[offset : min(offset + length, file.length)])

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        data = self.read_at(fd, len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def sync(self, fd: int) -> None:
        assert fd in self.open_files

    def sync_directory(self, path: StrPath) -> None:
        if os.fspath(path) not in self.directories and os.fspath(path) != os.path.dirname(self.root):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def data_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        used = len(self.open_files[fd].content().rstrip(b"\0"))
        if used > start:
            yield start, min(end, -(-used // _BLOCK_BYTES) * _BLOCK_BYTES)

    def map_read(self, fd: int, length: int) -> mmap.mmap:
        mapping = self.open_files[fd].map()
        assert len(mapping) == length
        return mapping

    def map_write(self, fd: int, length: int) -> mmap.mmap:
        file = self.open_files[fd]
        if not file.mapped_for_writing:
            file.mapped_for_writing = True
            file.shadow = file.content()
        return self.map_read(fd, length)

    def make_directory(self, path: StrPath, *, durable: bool = False) -> None:
        text = os.fspath(path)
        if text in self.directories:
            return
        parent, name = os.path.split(text)
        self.make_directory(parent, durable=durable)
        self.directories[text] = Directory()
        self._link(parent, self.directories[parent], name, self.directories[text])
        if durable:
            self.sync_directory(parent)

    def rename(self, source: StrPath, target: StrPath) -> None:
        directory, old, node = self._find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        target_directory, new, _ = self._find(target)
        assert directory is target_directory, "the store renames inside a directory only"
        directory.entries[new] = node
        del directory.entries[old]

    def remove(self, path: StrPath) -> None:
        try:
            directory, name, node = self._find(path)
        except FileNotFoundError:
            return
        if isinstance(node, Directory):
            if node.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
            del self.directories[os.fspath(path)]
        if node is not None:
            self._link(os.path.dirname(os.fspath(path)), directory, name, None)

    def remove_tree(self, path: StrPath) -> None:
        for name in self.names(path):
            self.remove_tree(f"{os.fspath(path)}/{name}")
        self.remove(path)

    def read(self, path: StrPath) -> bytes | None:
        try:
            node = self._find(path)[2]
        except FileNotFoundError:
            return None
        return node.content() if isinstance(node, File) else None

    def names(self, path: StrPath) -> list[str]:
        directory = self.directories.get(os.fspath(path))
        return list(directory.entries) if directory is not None else []

    def disk(self, path: StrPath) -> tuple[int, DiskUsage]:
        return 1, DiskUsage(10, 90)

    def is_read_only(self, path: StrPath) -> bool:
        return False

    def age(self, path: StrPath) -> OldSegment:
        return OldSegment(0, 0)

    def lock(self, path: StrPath, *, alone: bool = True) -> int:
        if os.fspath(path) in self._locked:
            raise StoreLocked(os.path.dirname(path))
        fd = self.open(path, create=True)
        self._locked.add(os.fspath(path))
        return fd

    def lock_directory(self, path: StrPath) -> int:
        return -1

    def relock(self, path: StrPath, fd: int) -> int:
        return fd

    def unlock(self, path: StrPath, fd: int) -> None:
        self._locked.discard(os.fspath(path))
        self.close(fd)

    def _link(self, path: str, directory: Directory, name: str, node: File | Directory | None) -> None:
        """A name now means ``node``; None: nothing any more."""
        if node is None:
            del directory.entries[name]
        else:
            directory.entries[name] = node


# --- what was done ---------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Wrote:
    file: File
    offset: int
    data: bytes


@dataclass(slots=True, frozen=True)
class Lengthened:
    """Or shortened."""

    file: File
    length: int


@dataclass(slots=True, frozen=True)
class SyncBegan:
    file: File


@dataclass(slots=True, frozen=True)
class Synced:
    file: File


@dataclass(slots=True, frozen=True)
class SyncFailed:
    file: File


@dataclass(slots=True, frozen=True)
class Named:
    """One step: names of a directory and what they mean from then on."""

    directory: Directory
    names: tuple[tuple[str, File | Directory | None], ...]


@dataclass(slots=True, frozen=True)
class DirectorySynced:
    directory: Directory


@dataclass(slots=True, frozen=True)
class Noted:
    """Something that the script wants to know at this moment of the images."""

    what: Any


Event = Wrote | Lengthened | SyncBegan | Synced | SyncFailed | Named | DirectorySynced | Noted


class RecordedFiles(MemoryFiles):
    """MemoryFiles that keep ``events``, stores into mappings included (seen at the next event)."""

    def __init__(self, root: Path, tree: Tree | None = None) -> None:
        super().__init__(root, tree)
        self.start: Tree = self.tree()
        """What was there, durable, before the first event."""
        self.initial = self._nodes(self.directories[self.root])
        self.events: list[Event] = []
        self.during_sync: Callable[[], None] | None = None
        """Called once while the next sync is under way: what another thread does meanwhile."""
        self.fault: Callable[[str], None] | None = None
        """Called with each verb that changes something; may raise OSError."""

    def _nodes(self, directory: Directory) -> dict[Directory, dict[str, File | Directory]]:
        found = {directory: dict(directory.entries)}
        for node in directory.entries.values():
            if isinstance(node, Directory):
                found |= self._nodes(node)
        return found

    def note(self, what: Any) -> None:
        self._add(Noted(what))

    def _may_fail(self, verb: str) -> None:
        if self.fault is not None:
            self.fault(verb)

    def _add(self, event: Event) -> None:
        self._look_at_mappings()
        self.events.append(event)

    def _look_at_mappings(self) -> None:
        for file in self._mapped:
            content = file.content()
            if content == file.shadow:
                continue
            for low in range(0, file.length, SECTOR_BYTES):
                sector = content[low : low + SECTOR_BYTES]
                if sector != file.shadow[low : low + SECTOR_BYTES]:
                    self.events.append(Wrote(file, low, sector))
            file.shadow = content

    @property
    def _mapped(self) -> list[File]:
        return [
            node
            for directory in self.directories.values()
            for node in directory.entries.values()
            if isinstance(node, File) and node.mapped_for_writing
        ]

    def open(self, path: StrPath, *, create: bool = False) -> int:
        self._may_fail("create" if create else "open")
        return super().open(path, create=create)

    def map_write(self, fd: int, length: int) -> mmap.mmap:
        self._may_fail("map_write")
        return super().map_write(fd, length)

    def make_directory(self, path: StrPath, *, durable: bool = False) -> None:
        self._may_fail("make_directory")
        super().make_directory(path, durable=durable)

    def remove(self, path: StrPath) -> None:
        self._may_fail("remove")
        super().remove(path)

    def set_length(self, fd: int, length: int) -> None:
        self._may_fail("set_length")
        self._resized(self.open_files[fd], length)
        super().set_length(fd, length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._may_fail("allocate")
        self._resized(self.open_files[fd], max(offset + length, self.open_files[fd].length))
        super().allocate(fd, offset, length)

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        try:
            self._may_fail("write")
        except OSError:
            # Any part of it may have been written.
            self._write(fd, bytes(data)[: len(data) // 2], offset)
            raise
        self._write(fd, data, offset)

    def _write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        file = self.open_files[fd]
        self._resized(file, max(offset + len(data), file.length))
        super().write(fd, data, offset)
        # A torn write is some of its sectors: each is a version of its own.
        low = offset
        while low < offset + len(data):
            high = min(low - low % SECTOR_BYTES + SECTOR_BYTES, offset + len(data))
            self._add(Wrote(file, low, bytes(data[low - offset : high - offset])))
            low = high
        if file.mapped_for_writing:
            file.shadow = file.content()

    def _resized(self, file: File, length: int) -> None:
        if file.length != length:
            self._add(Lengthened(file, length))

    def sync(self, fd: int) -> None:
        file = self.open_files[fd]
        self._add(SyncBegan(file))
        if self.during_sync is not None:
            act, self.during_sync = self.during_sync, None
            act()
        try:
            self._may_fail("sync")
        except OSError:
            self._add(SyncFailed(file))
            raise
        self._add(Synced(file))

    def sync_directory(self, path: StrPath) -> None:
        self._may_fail("sync_directory")
        super().sync_directory(path)
        if os.fspath(path) in self.directories:
            self._add(DirectorySynced(self.directories[os.fspath(path)]))

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._may_fail("rename")
        directory, old, node = self._find(source)
        super().rename(source, target)
        self._add(Named(directory, ((os.path.basename(target), node), (old, None))))

    def _link(self, path: str, directory: Directory, name: str, node: File | Directory | None) -> None:
        self._look_at_mappings()
        super()._link(path, directory, name, node)
        self._add(Named(directory, ((name, node),)))


# --- what a power cut leaves -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _FileState:
    """``sectors`` and ``lengths``: the versions since the last sync, the durable one first."""

    sectors: dict[int, list[bytes]] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=lambda: [0])
    began: tuple[dict[int, int], int] | None = None
    forgotten: set[int] = field(default_factory=set)
    """Sectors that no sync will write: one failed, and they were not written since."""


@dataclass(slots=True)
class _DirectoryState:
    durable: dict[str, File | Directory] = field(default_factory=dict)
    steps: list[tuple[tuple[str, File | Directory | None], ...]] = field(default_factory=list)


Choice = dict[Any, int]
"""For what is not settled by a sync: which of its versions is on the disk."""


class Power:
    """Follows the events of a recording; at every moment it knows what a power cut may leave."""

    def __init__(self, recording: RecordedFiles) -> None:
        self._root = recording.directories[recording.root]
        self._files: dict[File, _FileState] = {}
        self._directories: dict[Directory, _DirectoryState] = {}
        self.unsettled: dict[Any, int] = {}
        """How many versions there are of each sector, length and step that has more than one."""
        contents = dict(_contents(recording.start, recording.initial, self._root))
        for directory, entries in recording.initial.items():
            self._directories[directory] = _DirectoryState(dict(entries))
        for file, content in contents.items():
            state = self._files[file] = _FileState(lengths=[len(content)])
            for low in range(0, len(content), SECTOR_BYTES):
                state.sectors[low] = [content[low : low + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")]

    def follow(self, event: Event) -> None:
        match event:
            case Wrote(file, offset, data):
                low = offset - offset % SECTOR_BYTES
                versions = self._file(file).sectors.setdefault(low, [bytes(SECTOR_BYTES)])
                self._file(file).forgotten.discard(low)
                at = offset - low
                new = versions[-1][:at] + data + versions[-1][at + len(data) :]
                if new != versions[-1]:
                    versions.append(new)
                    self._count((file, low), len(versions))
            case Lengthened(file, length):
                state = self._file(file)
                for low in [low for low in state.sectors if low + SECTOR_BYTES > length]:
                    kept = max(length - low, 0)
                    self.follow(Wrote(file, low + kept, bytes(SECTOR_BYTES - kept)))
                state.lengths.append(length)
                self._count((file, "length"), len(state.lengths))
            case SyncBegan(file):
                state = self._file(file)
                state.began = {low: len(v) - 1 for low, v in state.sectors.items()}, len(state.lengths) - 1
            case Synced(file):
                state = self._file(file)
                assert state.began is not None
                for low, versions in state.sectors.items():
                    if low in state.forgotten:
                        continue
                    del versions[: state.began[0].get(low, 0)]
                    self._count((file, low), len(versions))
                del state.lengths[: state.began[1]]
                self._count((file, "length"), len(state.lengths))
            case SyncFailed(file):
                if not file.mapped_for_writing:
                    state = self._file(file)
                    state.forgotten |= {low for low, versions in state.sectors.items() if len(versions) > 1}
            case Named(directory, names):
                state_d = self._directory(directory)
                state_d.steps.append(names)
                self.unsettled[directory, len(state_d.steps) - 1] = 2
            case DirectorySynced(directory):
                state_d = self._directory(directory)
                for step, names in enumerate(state_d.steps):
                    _apply(state_d.durable, names)
                    del self.unsettled[directory, step]
                state_d.steps.clear()
            case Noted():
                pass

    def _count(self, key: Any, versions: int) -> None:
        if versions > 1:
            self.unsettled[key] = versions
        else:
            self.unsettled.pop(key, None)

    def _file(self, file: File) -> _FileState:
        return self._files.setdefault(file, _FileState())

    def _directory(self, directory: Directory) -> _DirectoryState:
        return self._directories.setdefault(directory, _DirectoryState())

    def image(self, choice: Choice) -> Tree:
        """What is there when the power comes back; what the choice does not name is there as it was last."""
        return self._image_of(self._root, choice)

    def _image_of(self, directory: Directory, choice: Choice) -> Tree:
        state = self._directory(directory)
        entries = dict(state.durable)
        for step, names in enumerate(state.steps):
            if choice.get((directory, step), 1):
                _apply(entries, names)
        return {
            name: self._content(node, choice) if isinstance(node, File) else self._image_of(node, choice)
            for name, node in entries.items()
        }

    def _content(self, file: File, choice: Choice) -> bytes:
        state = self._file(file)
        length = state.lengths[choice.get((file, "length"), -1)]
        content = bytearray(length)
        for low, versions in state.sectors.items():
            if low < length:
                sector = versions[choice.get((file, low), -1)]
                content[low : low + SECTOR_BYTES] = sector[: length - low]
        return bytes(content)

    def choices(self, limit: int, chance: random.Random) -> Iterator[Choice]:
        """All of them when they are no more than ``limit``. Else ``limit`` of them: everything there; nothing there;
        some things alone missing or alone there; then by chance."""
        keys, counts = list(self.unsettled), list(self.unsettled.values())
        total = 1
        for count in counts:
            total *= count
            if total > limit:
                break
        if total <= limit:
            for versions in itertools.product(*map(range, counts)):
                yield dict(zip(keys, versions, strict=True))
            return
        yield from itertools.islice(self._some_choices(keys, counts, limit, chance), limit)

    def _some_choices(
        self, keys: list[Any], counts: list[int], limit: int, chance: random.Random
    ) -> Iterator[Choice]:
        yield {}
        nothing = dict.fromkeys(keys, 0)
        yield nothing
        singles = list(range(len(keys)))
        chance.shuffle(singles)
        for index in singles[: max((limit - 2) // 3, 1)]:
            missing = {keys[index]: chance.randrange(counts[index] - 1)}
            there = {**nothing, keys[index]: 1 + chance.randrange(counts[index] - 1)}
            yield from chance.sample([missing, there], 2)
        while True:
            # Mostly there, mostly missing, or half and half.
            share = chance.choice((0.1, 0.5, 0.9))
            yield {
                key: count - 1 if chance.random() < share else chance.randrange(count - 1)
                for key, count in zip(keys, counts, strict=True)
            }


def _apply(
    entries: dict[str, File | Directory], names: tuple[tuple[str, File | Directory | None], ...]
) -> None:
    for name, node in names:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _contents(
    tree: Tree, nodes: dict[Directory, dict[str, File | Directory]], directory: Directory
) -> Iterator[tuple[File, bytes]]:
    for name, content in tree.items():
        node = nodes[directory][name]
        if isinstance(content, bytes):
            assert isinstance(node, File)
            yield node, content
        else:
            assert isinstance(node, Directory)
            yield from _contents(content, nodes, node)


def digest(tree: Tree) -> bytes:
    """Equal for equal trees."""
    state = hashlib.blake2b(digest_size=16)

    def add(tree: Tree) -> None:
        for name in sorted(tree):
            content = tree[name]
            state.update(name.encode() + b"\0")
            if isinstance(content, bytes):
                state.update(b"%d:" % len(content) + content)
            else:
                state.update(b"{")
                add(content)
                state.update(b"}")

    add(tree)
    return state.digest()
