"""Maps of files that belong to another process, which may truncate them while they are read.

A process that touches a page of a mapping beyond the end of the file gets SIGBUS. A Python handler cannot
help: it runs later, and the instruction would fault forever. The handler here runs at once (a C callback made
by ctypes): it maps pages of zeros in place of the missing ones, notes that, and the instruction continues.
The reader then checks whether the file was truncated (``GuardedMap.is_whole``) and discards what it has read
if so.

``GuardedMap.cut`` and ``release`` do the same on purpose, to let go of a file that was deleted while somebody may
still read it.

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

import numpy as np
import numpy.typing as npt

_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value
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


class _CutGuard:
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
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
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
                self.cut.add(start)
                return self._zero(address - address % mmap.PAGESIZE, end)
        return False

    def _zero(self, page: int, end: int) -> bool:
        """Put pages of zeros in place of a map's."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        return bool(self._libc.mmap(page, end - page, mmap.PROT_READ, flags, -1, 0) == page)

    def cut_all(self, start: int) -> None:
        """Cut a map at its begin. Raises OSError."""
        self.cut.add(start)
        if not self._zero(start, self.ranges[start][0]):
            raise OSError(ctypes.get_errno(), "mmap")

    def map(self, fd: int, length: int) -> memoryview:
        """A map of a file, read-only, until its last slice is gone. Raises OSError."""
        # Python's own keeps a duplicate of the descriptor, and so the file.
        start = self._libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if start == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        mapping = (ctypes.c_ubyte * length).from_address(start)
        # Another map may reuse the addresses before the end of this one is noticed.
        token = object()
        self.cut.discard(start)
        self.ranges[start] = start + length, token
        # Not at exit: other code of the exit may still look at it.
        weakref.finalize(mapping, self._remove, start, length, token).atexit = False
        data: npt.NDArray[np.uint8] = np.ctypeslib.as_array(mapping)
        data.flags.writeable = False
        return data.data

    def _remove(self, start: int, length: int, token: object) -> None:
        if self.ranges.get(start, (0, None))[1] is token:
            del self.ranges[start]
            self.cut.discard(start)
        self._libc.munmap(start, length)


_guard: _CutGuard | None = None


class GuardedMap:
    """A whole file, read-only. After ``keep``, ``view`` may be read whatever happens to the file."""

    __slots__ = ("__weakref__", "_fd", "_guard", "_length", "_start", "view")

    def __init__(self, view: memoryview, fd: int, guard: _CutGuard) -> None:
        self._fd = fd
        self._length = len(view)
        self._start: int = np.frombuffer(view, np.uint8).ctypes.data
        self.view = view
        self._guard = guard

    def keep(self) -> None:
        """Prepare for reading ``view``. Raises OSError."""
        self._guard.install()

    def is_whole(self) -> bool:
        """Whether the file has not been truncated so far."""
        return self._start not in self._guard.cut and os.fstat(self._fd).st_size >= self._length

    def cut(self) -> None:
        """Give up the file as if it had been truncated, while others may be reading ``view``. Raises OSError."""
        self._guard.cut_all(self._start)


def guarded_map(fd: int, length: int) -> GuardedMap | None:
    """Map a file, which has to stay open. None when it cannot be mapped, or not be guarded."""
    global _guard
    if sys.platform != "linux" or platform.machine() not in _MACHINES or not length:
        return None
    try:
        _guard = _guard or _CutGuard()
        view = _guard.map(fd, length)
    except OSError:
        return None
    return GuardedMap(view, fd, _guard)


def release(fd: int) -> None:
    """Let a descriptor that others may be using give up its file: it reads as an empty one from now on."""
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.dup2(empty, fd, inheritable=False)
    finally:
        os.close(empty)
