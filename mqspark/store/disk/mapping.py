"""Maps of files within the address space and the descriptors that there are.

A map can be refused where a read is not: under RLIMIT_AS, at ``vm.max_map_count``, without a free descriptor (a Python
mapping keeps one), on a file system that maps nothing. So whoever maps asks here, and copies by ``pread`` what cannot
be mapped. What is mapped is counted against a budget: under a limit of address space the maps must leave room for
everything else that the process does.

Must not know what is in the files.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from mmap import MADV_RANDOM, mmap

from mqspark.store.disk.files import FileLayer, StrPath

__all__ = ["MapBudget", "try_map"]

_CANNOT_MAP = frozenset((errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENODEV))
_UNLIMITED = 1 << 62
_SHARE = 4
"""Of a limited address space maps take one part in so many."""


class MapBudget:
    """How much address space the maps of one store may take, and how much they do."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int = 0) -> None:
        """0: a quarter of RLIMIT_AS, or no bound where that is unlimited."""
        if not limit_bytes:
            limit = resource.getrlimit(resource.RLIMIT_AS)[0]
            limit_bytes = limit // _SHARE if limit != resource.RLIM_INFINITY else _UNLIMITED
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def halves(self) -> tuple[MapBudget, MapBudget]:
        """Two in its place, so that of two kinds of files none takes the room of the other."""
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
    """The first ``length`` bytes of a file (None: all), mapped and counted; None when that is impossible although the
    file may be there. ``evict`` lets go of another map and says whether it had one. ``scattered``: little of the file
    is touched, here and there. Raises OSError."""
    while True:
        try:
            fd = files.open(path) if write else files.open_read(path)
            try:
                size = files.length(fd) if length is None else length
                if not 0 < size <= budget.limit_bytes:
                    return None
                if budget.used_bytes + size <= budget.limit_bytes:
                    mapping = files.map_write(fd, size) if write else files.map_read(fd, size)
                    budget.used_bytes += size
                    if scattered:
                        # Read ahead, the first touch of a file costs as much memory and time as the device's read-ahead
                        # setting allows, for zeros: milliseconds where it is megabytes.
                        mapping.madvise(MADV_RANDOM)
                    return mapping
            finally:
                files.close(fd)
        except ValueError:
            return None  # the file is shorter than it was: what is not there must not be touched
        except OSError as error:
            if error.errno not in _CANNOT_MAP:
                raise
        if not evict():
            return None
