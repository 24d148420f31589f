"""Maps of files that belong to another process, which may truncate them while they are read.

A process that touches a page of a mapping beyond the end of the file gets SIGBUS. A Python handler cannot
help: it runs later, and the instruction would fault forever. The handler here runs at once (a C callback made
by ctypes): it maps pages of zeros in place of the missing ones, notes that, and the instruction continues.
The reader then checks whether the file was truncated (``GuardedMap.is_whole``) and discards what it has read
if so.

A fault at any other address goes to the previous handler, which ends the process unless ``faulthandler``
handles it. For 64-bit Linux, where the C structures below have the same layout in every C library. Elsewhere
``guarded_map`` returns None, and the reader has to copy.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import sys
import weakref
from typing import Any

import numpy as np

__all__ = ["GuardedMap", "guarded_map"]

_MAP_FIXED = 0x10
_SA_SIGINFO = 4
_FAULT_ADDRESS_AT = 16
"""Offset in siginfo_t."""
_MACHINES = ("x86_64", "aarch64")


class _SigAction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Guard:
    """The SIGBUS handler of this process."""

    def __init__(self) -> None:
        self._libc = libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        self.ranges: dict[int, tuple[int, object]] = {}
        """Start address of each map → its end and its owner."""
        self.cut: set[int] = set()
        """Start addresses of the maps with pages of zeros."""
        self._before = _SigAction()
        self._gave_up = False
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._callback = kind(self._fault)
        self._address = ctypes.cast(self._callback, ctypes.c_void_p).value
        self.install()

    def install(self) -> None:
        """Install the handler; called before every access, because enabling ``faulthandler`` replaces it.
        Raises OSError."""
        now = _SigAction()
        self._action(None, now)
        if now.handler != self._address:
            self._before = now
            self._action(_SigAction(self._address, flags=_SA_SIGINFO), None)

    def _action(self, new: _SigAction | None, old: _SigAction | None) -> None:
        pointers = [ctypes.byref(each) if each is not None else None for each in (new, old)]
        if self._libc.sigaction(signal.SIGBUS, *pointers):
            raise OSError(ctypes.get_errno(), "sigaction")

    def _fault(self, _: int, info: int, __: int) -> None:
        is_filled = False
        try:
            address = ctypes.c_void_p.from_address(info + _FAULT_ADDRESS_AT).value or 0
            is_filled = self._fill(address)
        finally:
            if not is_filled:
                # The previous handler may raise the signal again, as faulthandler's does.
                self._action(_SigAction() if self._gave_up else self._before, None)
                self._gave_up = True

    def _fill(self, address: int) -> bool:
        for start, (end, _) in list(self.ranges.items()):
            if start <= address < end:
                page = address - address % mmap.PAGESIZE
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
                self.cut.add(start)
                return bool(self._libc.mmap(page, end - page, mmap.PROT_READ, flags, -1, 0) == page)
        return False

    def add(self, mapping: mmap.mmap, start: int) -> None:
        end = start + len(mapping)
        # Another map may reuse the addresses before the end of this one is noticed.
        token = object()
        self.cut.discard(start)
        self.ranges[start] = end, token
        # Slices may outlive the owner, so the guard is removed with the map itself.
        weakref.finalize(mapping, self._remove, start, token)

    def _remove(self, start: int, token: object) -> None:
        if self.ranges.get(start, (0, None))[1] is token:
            del self.ranges[start]
            self.cut.discard(start)


_guard: _Guard | None = None


class GuardedMap:
    """A whole file, read-only. After ``keep``, ``view`` may be read whatever happens to the file."""

    __slots__ = ("__weakref__", "_fd", "_guard", "_length", "_start", "view")

    def __init__(self, mapping: mmap.mmap, fd: int, guard: _Guard) -> None:
        self._fd = fd
        self._length = len(mapping)
        self._start: int = np.frombuffer(mapping, np.uint8).ctypes.data
        self.view = memoryview(mapping)
        self._guard = guard
        guard.add(mapping, self._start)

    def keep(self) -> None:
        """Prepare for reading ``view``. Raises OSError."""
        self._guard.install()

    def is_whole(self) -> bool:
        """Whether the file has not been truncated so far."""
        return self._start not in self._guard.cut and os.fstat(self._fd).st_size >= self._length


def guarded_map(fd: int, length: int) -> GuardedMap | None:
    """Map a file, which has to stay open. None when it cannot be mapped, or not be guarded."""
    global _guard
    if sys.platform != "linux" or platform.machine() not in _MACHINES or not length:
        return None
    try:
        _guard = _guard or _Guard()
        mapping: Any = mmap.mmap(fd, length, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    return GuardedMap(mapping, fd, _guard)
