"""What master and slave say to each other, sans I/O (DefaultHAConnection, DefaultHAClient; reference store-and-broker
§9.2). Big-endian:

    slave -> master    i64 position: what the slave has; its first one is where it wants to go on
    master -> slave    i64 position, i32 n, n bytes of the log from there; n = 0 says only where it stands
"""

from __future__ import annotations

import struct

__all__ = ["Reports", "data_head"]

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")

data_head = _HEAD.pack
"""(position, n): what goes before n bytes of the log."""


class Reports:
    """A slave's side of a connection."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def receive_data(self, data: bytes) -> list[int]:
        """The positions of all reports that are complete."""
        if self._rest:
            data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        return [position for (position,) in _REPORT.iter_unpack(memoryview(data)[:whole])]
