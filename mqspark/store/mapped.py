"""The queue files that are mapped now."""

from __future__ import annotations

from collections import OrderedDict
from mmap import mmap
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mqspark.store.files import FileLayer

__all__ = ["Entries", "MappedFiles"]

Entries = npt.NDArray[Any]

_MARK = ""
"""Among the maps in the order of their use: those before it were not used since ``drop_idle`` was last called."""


class Tail(Protocol):
    """A queue that keeps at hand the map of the file it appends to."""

    tail_used: bool
    """Since the map was last looked for a place among the idle ones."""

    def tail_unmapped(self) -> None: ...


class MappedFiles:
    """Whole queue files as arrays of entries: the least recently used goes first, and what nobody looked at for a
    while goes, too.

    A Python mapping keeps a descriptor, hence the bound. A map that leaves is not closed: the last array on
    it does.
    """

    __slots__ = ("_dtype", "_files", "_limit", "_maps", "_tails")

    def __init__(self, files: FileLayer, limit: int, dtype: np.dtype[np.void]) -> None:
        self._files = files
        self._limit = limit
        self._dtype = dtype
        self._maps: OrderedDict[str, tuple[mmap, Entries] | None] = OrderedDict()
        self._tails: dict[str, Tail] = {}

    def get(self, path: str) -> tuple[mmap, Entries]:
        found = self._maps.get(path)
        if found is not None:
            self._maps.move_to_end(path)
            return found
        while len(self._maps) >= self._limit:
            self._drop_oldest()
        fd = self._files.open(path)
        try:
            length = self._files.length(fd)
            mapping = self._files.map_write(fd, length)
        finally:
            self._files.close(fd)
        entries = np.frombuffer(mapping, dtype=self._dtype, count=length // self._dtype.itemsize)
        self._maps[path] = (mapping, entries)
        return mapping, entries

    def tail(self, path: str, owner: Tail) -> mmap | None:
        """The map of a file that ``owner`` appends to and may use until it is told otherwise; None when another would
        have to leave for it: then writing costs less than mapping."""
        if path not in self._maps and len(self._maps) >= self._limit:
            return None
        self._tails[path] = owner
        return self.get(path)[0]

    def drop(self, path: str) -> None:
        self._maps.pop(path, None)
        self._leave(path)

    def drop_idle(self) -> None:
        """Unmap what was not used since the last call."""
        while _MARK in self._maps:
            self._drop_oldest()
        self._maps[_MARK] = None

    def _drop_oldest(self) -> None:
        """Or give it another turn, if a queue used it without asking here."""
        path, found = self._maps.popitem(last=False)
        owner = self._tails.get(path)
        if owner is not None and owner.tail_used:
            owner.tail_used = False
            self._maps[path] = found
        else:
            self._leave(path)

    def _leave(self, path: str) -> None:
        owner = self._tails.pop(path, None)
        if owner is not None:
            owner.tail_unmapped()

    def __len__(self) -> int:
        return len(self._maps) - (_MARK in self._maps)

    def clear(self) -> None:
        self._maps.clear()
        for path in list(self._tails):
            self._leave(path)
