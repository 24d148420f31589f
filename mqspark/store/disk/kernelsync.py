"""Asynchronous fdatasync: Linux's asynchronous I/O, ``IOCB_CMD_FDSYNC`` (kernel 4.18 and later).

A thread that syncs needs the interpreter lock before and after each system call, and a processor to run on.
On a busy machine it waits longer for these than for the disk. Here one call hands the descriptor to a kernel
worker, and an eventfd reports when the worker has called ``vfs_fsync`` (fs/aio.c, ``aio_fsync_work``), as
``fdatasync`` does, with the same result. Containers that forbid io_uring mostly allow it.

For descriptors of real files (``OsFiles``). Must not know what is synced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of the system calls io_setup, io_destroy, io_getevents and io_submit."""

_FDSYNC = 3
_FLAG_RESFD = 1


class _Request(ctypes.Structure):
    """``struct iocb`` (linux/aio_abi.h) on a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("byte_count", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("result_fd", ctypes.c_uint32),
    )


class _AioEvent(ctypes.Structure):
    """``struct io_event``."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _AioRing(ctypes.Structure):
    """``struct aio_ring`` (fs/aio.c): what the kernel maps where a context points, for libraries to look at."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("events", ctypes.c_uint32),
        ("head", ctypes.c_uint32),
        ("tail", ctypes.c_uint32),
        ("magic", ctypes.c_uint32),
    )


_RING_MAGIC = 0xA10A10A1


class KernelSync:
    """One fdatasync at a time. Not thread-safe."""

    def __init__(self) -> None:
        """Raises OSError where asynchronous I/O is missing or exhausted (``fs.aio-max-nr``)."""
        numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
        if numbers is None:
            raise OSError(errno.ENOSYS, f"not on {sys.platform} {platform.machine()}")
        self._io_setup, self._io_destroy, self._io_getevents, self._io_submit = numbers
        # Not CDLL: no call blocks, and this class exists to avoid releasing the interpreter lock.
        self._syscall = ctypes.PyDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a sync has ended, also after ``poll`` has returned its result."""
        try:
            self._call(self._io_setup, ctypes.c_long(1), ctypes.byref(self._context))
        except OSError:
            os.close(self.event_fd)
            raise
        ring = _AioRing.from_address(self._context.value)
        self._ring = ring if ring.magic == _RING_MAGIC else None
        """None: only a call tells whether a sync has ended."""
        self._request = _Request(opcode=_FDSYNC, flags=_FLAG_RESFD, result_fd=self.event_fd)
        self._requests = (ctypes.POINTER(_Request) * 1)(ctypes.pointer(self._request))
        self._event = _AioEvent()
        self._at_once = (ctypes.c_long * 2)(0, 0)

    def _call(self, *arguments: object) -> int:
        result = int(self._syscall(*arguments))
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def submit(self, fd: int) -> None:
        """Start a sync. Raises OSError when it was not started; the state of the descriptor's data is then
        unknown."""
        self._request.fd = fd
        self._call(self._io_submit, self._context, ctypes.c_long(1), self._requests)

    def poll(self) -> int | None:
        """The result of the sync: 0 or its errno; None while it runs. Each result is returned exactly once.

        Raises OSError when the result cannot be read.
        """
        ring = self._ring
        if ring is not None and ring.head == ring.tail:
            return None  # as after most turns: to look costs a tenth of the call
        none, one = ctypes.c_long(0), ctypes.c_long(1)
        event = ctypes.byref(self._event)
        try:
            if not self._call(self._io_getevents, self._context, none, one, event, self._at_once):
                return None
        except InterruptedError:
            return None  # the kernel says so if nothing has ended and a signal has come
        return -int(self._event.result)

    def clear_event(self) -> None:
        """Make ``event_fd`` unreadable until the next sync ends."""
        try:
            os.eventfd_read(self.event_fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Wait for a running sync and release the resources."""
        self._ring = None
        self._call(self._io_destroy, self._context)
        os.close(self.event_fd)
