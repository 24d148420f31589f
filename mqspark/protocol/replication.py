"""The protocol between master and slave, sans I/O (DefaultHAConnection, DefaultHAClient).

All integers are big-endian:

    slave -> master    i64 position: end of the slave's log; the first one is where it wants to continue
    master -> slave    i64 position, i32 n, n bytes of the log from there; n = 0 reports only the position

Facts: docs/rocketmq/replication.md#stream.
"""

from __future__ import annotations

import struct

__all__ = ["Reports", "data_head"]

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")

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
