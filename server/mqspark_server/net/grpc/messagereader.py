"""The messages of a request: each behind a byte that says whether it is compressed, and its length (PROTOCOL-HTTP2).

The length is checked before anything is kept for it. Compressed messages are refused: they could be a thousand times as
large, and no client of RocketMQ compresses whole requests.
"""

from __future__ import annotations

import struct

from mqspark_server.net.grpc.grpcwords import GrpcAbort, GrpcCode

MESSAGE_HEAD = struct.Struct(">BI")
_HEAD_BYTES = MESSAGE_HEAD.size


def message_bytes(message: bytes) -> bytes:
    """As it is sent."""
    return MESSAGE_HEAD.pack(0, len(message)) + message


def only_message(data: bytes, most_bytes: int) -> bytes | None:
    """The message that is all of ``data``; None for anything else."""
    if len(data) < _HEAD_BYTES:
        return None
    is_compressed, size = MESSAGE_HEAD.unpack_from(data)
    if is_compressed or size > most_bytes or size != len(data) - _HEAD_BYTES:
        return None
    return data[_HEAD_BYTES:]


class MessageReader:
    """The data of one request, to its messages of at most ``most_bytes``."""

    __slots__ = ("_most_bytes", "_rest")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._rest: bytearray | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of a message that is not complete."""
        return len(self._rest) if self._rest is not None else 0

    def read(self, data: bytes) -> list[bytes]:
        """The messages that are complete now. Raises GrpcAbort."""
        if self._rest is None:
            if len(data) >= _HEAD_BYTES and self._size(data, 0) == len(data) - _HEAD_BYTES:
                return [data[_HEAD_BYTES:]]
            self._rest = bytearray()
        rest = self._rest
        rest += data
        messages, at = [], 0
        while len(rest) - at >= _HEAD_BYTES:
            end = at + _HEAD_BYTES + self._size(rest, at)
            if end > len(rest):
                break
            messages.append(bytes(rest[at + _HEAD_BYTES : end]))
            at = end
        if at == len(rest):
            self._rest = None
        else:
            del rest[:at]
        return messages

    def _size(self, data: bytes | bytearray, at: int) -> int:
        is_compressed: int
        size: int
        is_compressed, size = MESSAGE_HEAD.unpack_from(data, at)
        if is_compressed:
            raise GrpcAbort(GrpcCode.UNIMPLEMENTED, "compressed requests are not taken")
        if size > self._most_bytes:
            raise GrpcAbort(
                GrpcCode.RESOURCE_EXHAUSTED,
                f"a request of {size} bytes, which must not have more than {self._most_bytes}",
            )
        return size
