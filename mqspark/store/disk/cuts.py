"""Maps of files that belong to another process, which may be cut while somebody looks at them.

A process that touches a page of a mapping behind the end of its file gets SIGBUS, and Python's own handlers cannot
help: they run later, and the instruction would fault for ever. This one runs at once (a C callback that ctypes makes):
it puts pages of zeros in the place of what is gone, notes that, and the instruction goes on. Who reads asks afterwards
whether the file is still as long as it was (``GuardedMap.is_whole``) and throws away what it has read if not.

A fault anywhere else goes to the handler that was there before, which without ``faulthandler`` ends the process as
ever. For Linux with 64 bits, where the C structures below are what every C library has; elsewhere ``guarded_map`` gives
None, and who reads has to copy.
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
"""In siginfo_t."""
_MACHINES = ("x86_64", "aarch64")


class _SigAction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Guard:
    """The handler of this process."""

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
        """Where the maps begin and end, and whose they are."""
        self.cut: set[int] = set()
        """Those that have pages of zeros."""
        self._before = _SigAction()
        self._gave_up = False
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._callback = kind(self._fault)
        self._address = ctypes.cast(self._callback, ctypes.c_void_p).value
        self.install()

    def install(self) -> None:
        """Raises OSError. Again and again: who enables ``faulthandler`` takes our place."""
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
                # A handler that was there before may raise the signal again for us, as faulthandler's does.
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
        # The same addresses may be another map's before this one's end is known here.
        token = object()
        self.cut.discard(start)
        self.ranges[start] = end, token
        # Slices may outlive the map's owner: what is guarded goes with the map itself.
        weakref.finalize(mapping, self._remove, start, token)

    def _remove(self, start: int, token: object) -> None:
        if self.ranges.get(start, (0, None))[1] is token:
            del self.ranges[start]
            self.cut.discard(start)


_guard: _Guard | None = None


class GuardedMap:
    """A whole file, read-only. ``view`` may be looked at, after ``keep``, whatever becomes of the file."""

    __slots__ = ("__weakref__", "_fd", "_guard", "_length", "_start", "view")

    def __init__(self, mapping: mmap.mmap, fd: int, guard: _Guard) -> None:
        self._fd = fd
        self._length = len(mapping)
        self._start: int = np.frombuffer(mapping, np.uint8).ctypes.data
        self.view = memoryview(mapping)
        self._guard = guard
        guard.add(mapping, self._start)

    def keep(self) -> None:
        """Before it is looked at. Raises OSError."""
        self._guard.install()

    def is_whole(self) -> bool:
        """Whether nothing was cut until now."""
        return self._start not in self._guard.cut and os.fstat(self._fd).st_size >= self._length


def guarded_map(fd: int, length: int) -> GuardedMap | None:
    """The file, which has to stay open; None when it cannot be mapped, or not be guarded."""
    global _guard
    if sys.platform != "linux" or platform.machine() not in _MACHINES or not length:
        return None
    try:
        _guard = _guard or _Guard()
        mapping: Any = mmap.mmap(fd, length, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    return GuardedMap(mapping, fd, _guard)
