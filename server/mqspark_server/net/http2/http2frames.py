"""Frames of HTTP/2 (RFC 9113, 4 and 6): their kinds and flags, the settings, and the codes of errors."""

from __future__ import annotations

import struct
from enum import IntEnum

from mqspark.errors import ProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""How each connection begins (3.4)."""
FRAME_HEAD = struct.Struct(">HBBBI")
"""The length in two parts (16 bits, 8 bits), kind, flags, stream."""
HEAD_BYTES = FRAME_HEAD.size
MAX_FRAME_BYTES = 16_384
"""SETTINGS_MAX_FRAME_SIZE: the default, which needs not be said, and what every peer takes."""
MOST_FRAME_BYTES = (1 << 24) - 1
MOST_WINDOW_BYTES = (1 << 31) - 1
DEFAULT_WINDOW_BYTES = 65_535
LAST_STREAM = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9

END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 32

SETTINGS_ENABLE_PUSH, SETTINGS_MAX_CONCURRENT_STREAMS = 2, 3
SETTINGS_INITIAL_WINDOW_SIZE, SETTINGS_MAX_FRAME_SIZE, SETTINGS_MAX_HEADER_LIST_SIZE = 4, 5, 6


class Http2Code(IntEnum):
    """Why a stream or a connection ends (7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(ProtocolError):
    """A connection ends, and its peer is told this code."""

    def __init__(self, code: Http2Code, text: str) -> None:
        super().__init__(code, text)  # both, or it could not be pickled
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return self.text


def frame_head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    return FRAME_HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_head(kind, flags, stream_id, len(payload)) + payload
