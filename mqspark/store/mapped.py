"""The queue files that are mapped now."""

from __future__ import annotations

from collections import OrderedDict
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from mqspark.store.files import FileLayer

__all__ = ["Entries", "MappedFiles"]

Entries = npt.NDArray[Any]

_MARK = ""
"""Among the maps in the order of their use: those before it were not used since ``drop_idle`` was last called."""


class MappedFiles:
    """Whole queue files as arrays of entries: the least recently used goes first, and what nobody looked at for a
    while goes, too.

    A Python mapping keeps a descriptor, hence the bound. A map that leaves is not closed: the last array on
    it does.
    """

    __slots__ = ("_dtype", "_files", "_limit", "_maps")

    def __init__(self, files: FileLayer, limit: int, dtype: np.dtype[np.void]) -> None:
        self._files = files
        self._limit = limit
        self._dtype = dtype
        self._maps: OrderedDict[str, tuple[mmap, Entries] | None] = OrderedDict()

    def get(self, path: str) -> tuple[mmap, Entries]:
        found = self._maps.get(path)
        if found is not None:
            self._maps.move_to_end(path)
            return found
        while len(self._maps) >= self._limit:
            self._maps.popitem(last=False)
        fd = self._files.open(path)
        try:
            length = self._files.length(fd)
            mapping = self._files.map_write(fd, length)
        finally:
            self._files.close(fd)
        entries = np.frombuffer(mapping, dtype=self._dtype, count=length // self._dtype.itemsize)
        self._maps[path] = (mapping, entries)
        return mapping, entries

    def drop(self, path: str) -> None:
        self._maps.pop(path, None)

    def drop_idle(self) -> None:
        """Unmap what was not used since the last call."""
        if _MARK in self._maps:
            while self._maps.popitem(last=False)[0] != _MARK:
                continue
        self._maps[_MARK] = None

    def __len__(self) -> int:
        return len(self._maps) - (_MARK in self._maps)

    def clear(self) -> None:
        self._maps.clear()
