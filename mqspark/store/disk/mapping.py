"""Maps of files, within the limits of address space and descriptors.

A map can be refused where a read is not: under RLIMIT_AS, at ``vm.max_map_count``, without a free descriptor
(a Python mapping keeps one), on a file system that does not support maps. So all maps are made here, and
callers copy by ``pread`` what cannot be mapped. Maps count against a budget: under a limit of address space
they must leave room for the rest of the process.

Must not know what is in the files.
"""

from __future__ import annotations

import errno
import resource
from collections import OrderedDict
from collections.abc import Callable, Hashable
from mmap import MADV_RANDOM, mmap
from typing import Generic, TypeVar

from mqspark.store.disk.files import FileLayer, StrPath

_CANNOT_MAP = frozenset((errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENODEV))
_UNLIMITED = 1 << 62
_LIMITED_BELOW = _UNLIMITED // 2
"""A half of what has no limit has none either."""
_SHARE = 4
"""Divisor of a limited address space: maps take this part of it."""


K = TypeVar("K", bound=Hashable)
M = TypeVar("M")


class MapsByUse(Generic[K, M]):
    """Maps in the order of their last use: those that are idle come before those that are not."""

    __slots__ = ("idle", "used")

    def __init__(self) -> None:
        self.used: OrderedDict[K, M] = OrderedDict()
        """Those used since the last ``age``. Callers look here first, and move what they find to the end."""
        self.idle: OrderedDict[K, M] = OrderedDict()

    def used_again(self, key: K) -> M | None:
        """The map, if it was idle."""
        found = self.idle.pop(key, None)
        if found is not None:
            self.used[key] = found
        return found

    def pop(self, key: K) -> M | None:
        found = self.used.pop(key, None)
        return found if found is not None else self.idle.pop(key, None)

    def pop_oldest(self) -> tuple[K, M]:
        return (self.idle or self.used).popitem(last=False)

    def age(self) -> None:
        """All are idle until they are used again. Nothing may be idle now."""
        self.idle, self.used = self.used, self.idle

    def __len__(self) -> int:
        return len(self.used) + len(self.idle)


class MapBudget:
    """Address space that the maps of one store may use and do use."""

    __slots__ = ("limit_bytes", "unmapped", "used_bytes")

    def __init__(self, limit_bytes: int = 0) -> None:
        """0: a quarter of RLIMIT_AS, or no limit where that is unlimited."""
        if not limit_bytes:
            limit = resource.getrlimit(resource.RLIMIT_AS)[0]
            limit_bytes = limit // _SHARE if limit != resource.RLIM_INFINITY else _UNLIMITED
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.unmapped: list[object] = []
        """Maps that are used no more and not counted, for a job to free (``UnmapJob``)."""

    def free_unmapped(self) -> bool:
        """Free at once what waits for a job. Returns whether there was anything."""
        found = bool(self.unmapped)
        self.unmapped.clear()
        return found

    def halves(self) -> tuple[MapBudget, MapBudget]:
        """Split the budget in two, so that two kinds of files cannot displace each other."""
        half = max(1, self.limit_bytes // 2)
        return MapBudget(half), MapBudget(half)


def try_map(
    files: FileLayer,
    path: StrPath,
    length: int | None,
    budget: MapBudget,
    evict: Callable[[], bool],
    *,
    write: bool = False,
    scattered: bool = False,
) -> mmap | None:
    """Map the first ``length`` bytes of a file (None: all) and count them. None when it cannot be mapped
    although it may exist. ``evict`` unmaps another file and returns whether there was one. ``scattered``:
    accesses are few and random. Raises OSError."""
    while True:
        try:
            fd = files.open(path) if write else files.open_read(path)
            try:
                size = files.length(fd) if length is None else length
                if not 0 < size <= budget.limit_bytes:
                    return None
                if budget.used_bytes + size <= budget.limit_bytes:
                    if budget.limit_bytes < _LIMITED_BELOW:
                        budget.free_unmapped()  # it is not counted, but takes address space until a job comes by
                    mapping = files.map_write(fd, size) if write else files.map_read(fd, size)
                    if scattered:
                        # With read-ahead, the first access reads as much as the device's read-ahead setting,
                        # even of a hole. With a setting of megabytes that takes milliseconds.
                        mapping.madvise(MADV_RANDOM)
                    budget.used_bytes += size
                    return mapping
            finally:
                files.close(fd)
        except ValueError:
            return None  # the file was truncated: its missing pages must not be touched
        except OSError as error:
            if error.errno not in _CANNOT_MAP:
                raise
            if budget.free_unmapped():
                continue
        if not evict():
            return None
