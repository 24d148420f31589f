"""The protocol between master and slave, sans I/O (DefaultHAConnection, DefaultHAClient).

All integers are big-endian:

    slave -> master    i64 position: end of the slave's log; the first one is where it wants to continue
    master -> slave    i64 position, i32 n, n bytes of the log from there; n = 0 reports only the position

Facts: docs/rocketmq/replication.md#stream.
"""

from __future__ import annotations

import struct

from mqspark.errors import ProtocolError

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")

MAX_DATA_BYTES = 4 << 20
"""Bytes of the log in one frame; a RocketMQ slave's buffer is as large (DefaultHAClient)."""

encode_report = _REPORT.pack
"""Encodes a slave's position."""

data_head = _HEAD.pack
"""Encodes (position, n), which precedes n bytes of the log."""


class Reports:
    """Parses the reports of a slave's connection."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def receive_data(self, data: bytes) -> list[int]:
        """The positions of all complete reports."""
        if self._rest:
            data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        return [position for (position,) in _REPORT.iter_unpack(memoryview(data)[:whole])]


class DataFrames:
    """Parses what a master sends. Bytes of the log are passed on as they come, so nothing but a head is kept."""

    __slots__ = ("_at", "_head", "_left")

    def __init__(self) -> None:
        self._head = b""
        self._at = 0
        self._left = 0

    def receive_data(self, data: bytes) -> list[tuple[int, memoryview]]:
        """(position, bytes of the log from there); no bytes in a frame that reports only the position. Raises
        ProtocolError."""
        found: list[tuple[int, memoryview]] = []
        view, at = memoryview(data), 0
        while at < len(view):
            if self._left:
                part = view[at : at + self._left]
                found.append((self._at, part))
                self._at += len(part)
                self._left -= len(part)
                at += len(part)
                continue
            taken = view[at : at + _HEAD.size - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) < _HEAD.size:
                break
            self._at, self._left = _HEAD.unpack(self._head)
            self._head = b""
            if not 0 <= self._left <= MAX_DATA_BYTES or self._at < 0:
                raise ProtocolError(f"a master sent {self._left} bytes of the log at {self._at}")
            if not self._left:
                found.append((self._at, view[:0]))
        return found
