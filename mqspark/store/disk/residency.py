"""Which pages of a mapped file are in the page cache (mincore(2)).

A read of other pages waits for the disk. The kernel answers truthfully only to those who own the file or may write
to it, as a broker may; to others it says that every page is there.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

PAGE_BYTES = mmap.PAGESIZE
_MAX_SPAN_PAGES = 4_096
"""Pages that one call asks about, of which only some may be wanted."""

_mincore = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_mincore.restype = ctypes.c_int


def are_resident(view: memoryview, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether the page of each place of a map is in memory. ``view`` is of the whole file; ``places`` ascend and lie
    in it. Nothing is read. What the kernel does not say counts as there."""
    pages = places // PAGE_BYTES
    resident = np.ones(len(places), np.bool_)
    address = np.frombuffer(view, np.uint8).ctypes.data
    low = 0
    while low < len(pages):
        high = int(pages.searchsorted(pages[low] + _MAX_SPAN_PAGES))
        first, count = int(pages[low]), int(pages[high - 1] - pages[low]) + 1
        answer = np.zeros(count, np.uint8)
        if not _mincore(address + first * PAGE_BYTES, count * PAGE_BYTES, answer.ctypes.data):
            resident[low:high] = answer[pages[low:high] - first] & 1 != 0
        low = high
    return resident
