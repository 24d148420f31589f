"""Answers that wait for windows which the peer keeps closed: each has a stream, of more memory than its bytes."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from mqspark_server.net.http2.http2connection import Http2Connection
from mqspark_server.net.http2.http2streams import Http2Stream, RequestBegun
from tests.support.barehttp2 import (
    BEGIN,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    header_block,
)

STREAMS = 1_000


def window(size: int) -> bytes:
    """The settings with which each stream may be sent so many bytes."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 4, size))


def answered(connection: Http2Connection) -> list[Http2Stream]:
    """Streams with an answer of twenty bytes each."""
    block, streams = header_block("/a/b"), []
    for number in range(1, 2 * STREAMS, 2):
        (begun,) = connection.received(frame(HEADERS, END_HEADERS | END_STREAM, number, block), 0.0)
        assert isinstance(begun, RequestBegun)
        connection.answer(begun.stream, b"head", b"d" * 20, b"end")
        connection.to_send()
        streams.append(begun.stream)
    return streams


@pytest.fixture
def closed() -> Http2Connection:
    connection = Http2Connection(STREAMS)
    connection.received(BEGIN + window(0), 0.0)
    return connection


def test_their_memory_is_counted(closed: Http2Connection) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        streams = answered(closed)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(streams) == len(closed) == STREAMS
    assert closed.unsent_bytes == 20 * STREAMS
    assert 0.8 * grown < closed.waiting_bytes < 2 * grown


@pytest.mark.parametrize("how", ["windows", "settings", "resets"])
def test_nothing_is_counted_of_those_that_are_over(closed: Http2Connection, how: str) -> None:
    for stream in answered(closed):
        if how == "windows":
            closed.received(frame(WINDOW_UPDATE, 0, stream.id, struct.pack(">I", 1_024)), 0.0)
        elif how == "resets":
            closed.received(frame(RST_STREAM, 0, stream.id, bytes(4)), float(stream.id))
    if how == "settings":
        closed.received(window(1_000), 0.0)
    assert (len(closed), closed.unsent_bytes, closed.waiting_bytes) == (0, 0, 0)
