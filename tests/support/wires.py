"""A transport without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection


class Wire(asyncio.Transport):
    """It keeps what is written, in the writes it came in. Its peer reads that at once, unless ``is_read`` is False."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.5", 1)})
        self.writes: list[bytes] = []
        self.is_read, self.unread_bytes = True, 0
        self.is_paused = self.closed = self.is_aborted = False
        self.high: int | None = None
        """How much may wait to be written."""

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))
        if not self.is_read:
            self.unread_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.is_aborted = True

    def written(self) -> bytes:
        return b"".join(self.writes)

    def commands(self) -> list[Command]:
        return Connection().receive_data(self.written())

    def opaques(self) -> list[int]:
        return [each.opaque for each in self.commands()]
