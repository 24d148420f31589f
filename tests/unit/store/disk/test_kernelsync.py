from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.store.disk import kernelsync
from mqspark.store.disk.kernelsync import KernelSync
from tests.support.store_tools import kernel_sync


@pytest.fixture
def kernel() -> Iterator[KernelSync]:
    sync = kernel_sync()
    yield sync
    sync.close()


def result(kernel: KernelSync) -> int:
    ready, _, _ = select.select([kernel.event_fd], [], [], 60)
    assert ready, "the sync did not end within 60 s"
    kernel.clear_event()
    number = kernel.poll()
    assert number is not None
    return number


def test_a_file_is_synced_as_often_as_asked(kernel: KernelSync, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT, 0o600)
    for number in range(3):
        os.pwrite(fd, b"x" * 10_000, number * 10_000)
        kernel.submit(fd)
        assert result(kernel) == 0
        assert kernel.poll() is None, "told once"
        assert select.select([kernel.event_fd], [], [], 0)[0] == []
    os.close(fd)


def test_the_descriptor_may_be_closed_meanwhile(kernel: KernelSync, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b"x" * 1_000_000)
    kernel.submit(fd)
    os.close(fd)
    assert result(kernel) == 0


def test_what_cannot_be_synced_is_not_begun(kernel: KernelSync) -> None:
    source, target = os.pipe()
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        kernel.submit(target)
    os.close(source)
    os.close(target)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        kernel.submit(target)
    assert kernel.poll() is None


def test_a_closed_one_says_that_it_cannot_tell() -> None:
    kernel = kernel_sync()
    kernel.close()
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        kernel.poll()


GET_EVENTS_ARGUMENTS = 5
"""Arguments of io_getevents; the other calls have fewer."""


def test_a_signal_is_no_failed_sync(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Asked for results, the kernel says EINTR if there are none and a signal has come: the store would be poisoned."""
    plain, signals = ctypes.PyDLL, [errno.EINTR, errno.EINTR, errno.EIO]

    class Library:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            call = plain(*arguments, **options).syscall
            call.restype = ctypes.c_long

            class Syscall:
                restype: Any = None

                def __call__(self, number: int, *rest: object) -> int:
                    if len(rest) == GET_EVENTS_ARGUMENTS and signals:
                        ctypes.set_errno(signals.pop(0))
                        return -1
                    return int(call(number, *rest))

            self.syscall = Syscall()

    monkeypatch.setattr(ctypes, "PyDLL", Library)
    kernel = kernel_sync()
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT, 0o600)
    kernel.submit(fd)
    assert select.select([kernel.event_fd], [], [], 60)[0], "before it ends nobody asks the kernel"
    assert kernel.poll() is None
    assert kernel.poll() is None
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        kernel.poll()
    assert result(kernel) == 0
    kernel.close()
    os.close(fd)


def test_elsewhere_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match=r"not on .* riscv64"):
        KernelSync()
    monkeypatch.setattr(kernelsync, "_NUMBERS", {"riscv64": (2**30,) * 4})
    if sys.platform == "linux":
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
            KernelSync()
        assert len(os.listdir("/proc/self/fd")) == before


def test_to_ask_for_what_has_not_ended_calls_nothing(
    kernel: KernelSync, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[object] = []
    call = vars(KernelSync)["_call"]

    def counted(self: KernelSync, *arguments: object) -> int:
        calls.append(arguments)
        return int(call(self, *arguments))

    monkeypatch.setattr(KernelSync, "_call", counted)
    assert kernel.poll() is None
    assert calls == []
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b"x")
    kernel.submit(fd)
    assert result(kernel) == 0
    assert kernel.poll() is None
    assert len(calls) == 2, "io_submit, and io_getevents once"
    os.close(fd)
