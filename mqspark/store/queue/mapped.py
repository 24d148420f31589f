"""The cache of mapped queue files."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.mapping import MapBudget, MapsByUse, try_map

Entries = npt.NDArray[Any]

DROPPED_AT_ONCE = 256
"""Maps in one turn: up to half a millisecond."""


class Tail(Protocol):
    """A queue that keeps the map of the file it appends to."""

    tail_used: bool
    """Whether the queue used the map since it was last checked for being idle."""

    def tail_unmapped(self) -> None: ...


class MappedFiles:
    """Whole queue files as arrays of entries. The least recently used file is unmapped first; idle files are
    unmapped as well. Files that are only read are mapped read-only, and files that cannot be mapped are
    copied.

    A Python mapping keeps a descriptor, hence the limit. An evicted map is not closed: the last array on it
    closes it.
    """

    def __init__(
        self, files: FileLayer, limit: int, dtype: np.dtype[np.void], budget: MapBudget | None = None
    ) -> None:
        self._files = files
        self._limit = limit
        self._dtype = dtype
        self._budget = budget if budget is not None else MapBudget()
        self._maps: MapsByUse[str, tuple[mmap, Entries]] = MapsByUse()
        self._tails: dict[str, Tail] = {}
        self._writable: set[str] = set()

    def rows(self, path: str, first: int, last: int) -> Entries:
        """Entries [first, last) of a file, fewer at its end."""
        used = self._maps.used
        found = used.get(path)
        if found is not None:
            used.move_to_end(path)
        else:
            found = self._maps.used_again(path) or self._map(path, write=False)
        if found is not None:
            return found[1][first:last]
        size = self._dtype.itemsize
        data = self.bytes_at(path, first * size, max(last - first, 0) * size)
        return np.frombuffer(data, dtype=self._dtype, count=len(data) // size)

    def bytes_at(self, path: str, low: int, count: int) -> bytes:
        """Bytes [low, low + count) of a file, fewer at its end."""
        used = self._maps.used
        found = used.get(path)
        if found is not None:
            used.move_to_end(path)
        else:
            found = self._maps.used_again(path) or self._map(path, write=False)
        if found is not None:
            return found[0][low : low + count]
        fd = self._files.open_read(path)
        try:
            return self._files.read_at(fd, count, low)
        finally:
            self._files.close(fd)

    def tail(self, path: str, owner: Tail) -> mmap | None:
        """The map of a file for ``owner`` to append to, until the owner is notified. None when it does not
        fit without evicting another one: the file is then written without a map."""
        found = self._maps.used.get(path) or self._maps.used_again(path)
        if found is None and len(self._maps) >= self._limit:
            return None
        if path not in self._writable:
            self.drop(path)
            found = self._map(path, write=True)
        if found is None:
            return None
        self._maps.used.move_to_end(path)
        self._tails[path] = owner
        return found[0]

    def _map(self, path: str, *, write: bool) -> tuple[mmap, Entries] | None:
        while len(self._maps) >= self._limit:
            self._drop_oldest()
        mapping = try_map(self._files, path, None, self._budget, self._make_room, write=write, scattered=True)
        if mapping is None:
            return None
        entries = np.frombuffer(mapping, dtype=self._dtype, count=len(mapping) // self._dtype.itemsize)
        self._maps.used[path] = (mapping, entries)
        if write:
            self._writable.add(path)
        return mapping, entries

    def _make_room(self) -> bool:
        if not self._maps:
            return False
        self._drop_oldest()
        return True

    def drop(self, path: str) -> None:
        found = self._maps.pop(path)
        if found is not None:
            self._forget(path, found)

    def drop_idle(self) -> Iterator[None]:
        """Set the maps aside that were not used since the last call, slice by slice."""
        number = 0
        while self._maps.idle:
            found = self._drop_oldest()
            if found is not None:
                self._budget.unmapped.append(found)
            number += 1
            if number % DROPPED_AT_ONCE == 0:
                yield
        self._maps.age()

    def _drop_oldest(self) -> tuple[mmap, Entries] | None:
        """Forget the oldest map, which is returned, or count it as used just now when its queue used it without
        asking here."""
        path, found = self._maps.pop_oldest()
        owner = self._tails.get(path)
        if owner is not None and owner.tail_used:
            owner.tail_used = False
            self._maps.used[path] = found
            return None
        self._forget(path, found)
        return found

    def _forget(self, path: str, found: tuple[mmap, Entries]) -> None:
        self._budget.used_bytes -= len(found[0])
        self._writable.discard(path)
        owner = self._tails.pop(path, None)
        if owner is not None:
            owner.tail_unmapped()

    def __len__(self) -> int:
        return len(self._maps)

    def clear(self) -> None:
        while self._maps:
            self._forget(*self._maps.pop_oldest())
