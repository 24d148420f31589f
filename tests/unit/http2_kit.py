"""A client of HTTP/2 in a few lines: frames to send, and what a server's bytes say."""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

from mqspark_server.net.http2.headerblocks import HeaderDecoder, literal_block
from mqspark_server.net.http2.http2connection import Http2Connection
from mqspark_server.net.http2.http2frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from mqspark_server.net.http2.http2streams import Event, Http2Stream, RequestBegun

REQUEST = {":method": "POST", ":scheme": "http", ":path": "/service/Method", ":authority": "here"}
BEGIN = PREFACE + frame(SETTINGS, 0, 0)


def settings(**values: int) -> bytes:
    """``initial_window_size=1, max_frame_size=...``"""
    keys = {"header_table_size": 1, "enable_push": 2, "initial_window_size": 4, "max_frame_size": 5}
    return frame(
        SETTINGS, 0, 0, b"".join(struct.pack(">HI", keys[key], each) for key, each in values.items())
    )


def u32(kind: int, stream: int, value: int) -> bytes:
    """RST_STREAM or WINDOW_UPDATE."""
    assert kind in (RST_STREAM, WINDOW_UPDATE)
    return frame(kind, 0, stream, struct.pack(">I", value))


def request_block(**fields: str) -> bytes:
    """Fields of a request, and ``x_more="v"`` as x-more."""
    return literal_block(
        [*REQUEST.items(), *((name.replace("_", "-"), value) for name, value in fields.items())]
    )


def request(
    stream: int, *, ended: bool = False, block: bytes | None = None, end_headers: bool = True
) -> bytes:
    flags = (END_STREAM if ended else 0) | (END_HEADERS if end_headers else 0)
    return frame(HEADERS, flags, stream, request_block() if block is None else block)


def continuation(stream: int, block: bytes, *, end_headers: bool = False) -> bytes:
    return frame(CONTINUATION, END_HEADERS if end_headers else 0, stream, block)


def data(stream: int, payload: bytes, *, ended: bool = False) -> bytes:
    return frame(DATA, END_STREAM if ended else 0, stream, payload)


def fields_of(block: bytes) -> dict[str, str]:
    return {name: value for name, value, _, _ in HeaderDecoder(1 << 16).decode(block) or ()}


class Sent(NamedTuple):
    """A frame of the server."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def fields(self) -> dict[str, str]:
        return fields_of(self.payload)

    @property
    def number(self) -> int:
        """The code of RST_STREAM and GOAWAY, the increment of WINDOW_UPDATE."""
        value: int = struct.unpack_from(">I", self.payload, 4 if self.kind == GOAWAY else 0)[0]
        return value


def frames_of(said: bytes) -> list[Sent]:
    at, frames = 0, []
    while at < len(said):
        high, low, kind, flags, stream = FRAME_HEAD.unpack_from(said, at)
        end = at + HEAD_BYTES + (high << 8 | low)
        frames.append(Sent(kind, flags, stream, said[at + HEAD_BYTES : end]))
        at = end
    assert at == len(said)
    return frames


class Bench:
    """A connection that has begun, and a clock that stands."""

    def __init__(self, max_streams: int = 100, *, begin: bytes = BEGIN) -> None:
        self.connection = Http2Connection(max_streams)
        self.now = 0.0
        self.streams = itertools.count(3, 2)
        """The streams of more requests."""
        self.give(begin)
        self.sent()

    def give(self, said: bytes) -> list[Event]:
        return self.connection.received(said, self.now)

    def sent(self) -> list[Sent]:
        return frames_of(b"".join(self.connection.to_send()))

    def answer(self, stream: Http2Stream, head: bytes, body: bytes, trailers: bytes) -> None:
        self.connection.begin_answer(stream, head)
        self.connection.send(stream, body, trailers)

    def open(self, stream: int = 1, *, ended: bool = False) -> Http2Stream:
        (event,) = self.give(request(stream, ended=ended))
        assert isinstance(event, RequestBegun)
        return event.stream
