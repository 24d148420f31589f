"""A load of gRPC calls that costs little: prepared HTTP/2 frames over one socket, so many calls at a time.

It stands for clients, whose own libraries would take more of the processors than a server. Of HTTP/2 it knows what a
server needs to answer; of an answer it reads the messages and that the stream has ended.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tests.support.barehttp2 import (
    ACK,
    BEGIN,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

INITIAL_WINDOW = 4
WINDOW_BYTES = (1 << 31) - 1
CONNECTION_WINDOW_BYTES = 65_535


class Outcome(NamedTuple):
    seconds: float
    answers: list[list[bytes]]
    """The messages of each call, in the order in which the calls ended."""


class Http2Load:
    """A connection that is used by one call of ``run`` after the other."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = -1
        self._rest = b""
        settings = struct.pack(">HI", INITIAL_WINDOW, WINDOW_BYTES)
        more = struct.pack(">I", WINDOW_BYTES - CONNECTION_WINDOW_BYTES)
        self._socket.sendall(BEGIN + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, more))

    def run(self, block: bytes, requests: Iterable[bytes], at_once: int) -> Outcome:
        """Make a call for each request, ``at_once`` of them at a time. Raises RuntimeError for a call that fails."""
        waiting = deque(requests)
        open_streams: dict[int, bytearray] = {}
        answers: list[list[bytes]] = []
        began = time.perf_counter()

        def begin(count: int) -> None:
            out = []
            for _ in range(min(count, len(waiting))):
                self._stream += 2
                request = waiting.popleft()
                open_streams[self._stream] = bytearray()
                out.append(frame(HEADERS, END_HEADERS, self._stream, block))
                out.append(
                    frame(DATA, END_STREAM, self._stream, struct.pack(">BI", 0, len(request)) + request)
                )
            if out:
                self._socket.sendall(b"".join(out))

        begin(at_once)
        while open_streams:
            ended = self._read(open_streams)
            answers += [_messages(data) for data in ended]
            begin(len(ended))
        return Outcome(time.perf_counter() - began, answers)

    def _read(self, open_streams: dict[int, bytearray]) -> list[bytearray]:
        """What the streams got that have ended."""
        got = self._socket.recv(1 << 18)
        if not got:
            raise RuntimeError("the server closed the connection")
        data, at, ended = self._rest + got, 0, []
        while len(data) - at >= 9:
            high, low, kind, flags, stream = FRAME.unpack_from(data, at)
            size = high << 8 | low
            if len(data) - at - 9 < size:
                break
            payload = data[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == DATA:
                open_streams[stream] += payload
            elif kind == SETTINGS and not flags & ACK:
                self._socket.sendall(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._socket.sendall(frame(PING, ACK, 0, payload))
            elif kind in (RST_STREAM, GOAWAY):
                raise RuntimeError(f"the server ends stream {stream}: {payload!r}")
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                ended.append(open_streams.pop(stream))
        self._rest = data[at:]
        return ended

    def close(self) -> None:
        self._socket.close()


def _messages(data: bytearray) -> list[bytes]:
    messages, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        messages.append(bytes(data[at + 5 : at + 5 + size]))
        at += 5 + size
    return messages
