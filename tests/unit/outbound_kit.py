"""A connection to another server whose other end is a list of writes."""

from __future__ import annotations

from typing import Any

from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection
from mqspark_server.net.outbound import Outbound


class Wire:
    """The transport of a connection, and what its peer reads."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False
        self.unread_bytes = 0
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def get_extra_info(self, name: str) -> None:
        return None

    def commands(self) -> list[Command]:
        """All that was written."""
        return Connection().receive_data(b"".join(self.writes))

    def opaques(self) -> list[int]:
        return [each.opaque for each in self.commands()]


def connected(**options: Any) -> tuple[Outbound, Wire]:
    outbound, wire = Outbound("host:1", lambda: None, **options), Wire()
    outbound.connection_made(wire)  # type: ignore[arg-type]
    return outbound, wire
