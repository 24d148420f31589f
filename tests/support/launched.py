"""The other side of ``launcher.py``: forks of this process that take the place of a Python that somebody starts."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launcher.py")
MOST_BYTES = 1 << 20
"""The size of a request: arguments and environment."""


@dataclass(frozen=True, slots=True)
class Request:
    """``launcher`` waits for a byte from the fork, and then until the fork has closed it by its end."""

    launcher: socket.socket
    arguments: list[str]
    environment: dict[str, str]
    streams: list[int]

    def close(self) -> None:
        """In the process that has forked."""
        self.launcher.close()
        for stream in self.streams:
            os.close(stream)

    def take_streams(self) -> None:
        """In the fork: they become its standard streams, and the launcher is told so."""
        for descriptor, stream in enumerate(self.streams):
            os.dup2(stream, descriptor)
            os.close(stream)
        self.launcher.send(b"\1")


def listener_at(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def accepted(listener: socket.socket) -> Request | None:
    """The next request; None if its launcher is gone."""
    launcher, _ = listener.accept()
    message, streams, _, _ = socket.recv_fds(launcher, MOST_BYTES, 3)
    words, found, environment = message.partition(b"\0\0")
    if not found:
        launcher.close()
        return None
    pairs = (each.partition(b"=") for each in environment.split(b"\0"))
    return Request(
        launcher,
        [os.fsdecode(word) for word in words.split(b"\0")],
        {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs},
        streams,
    )
