"""What peers may not do on a connection of HTTP/2, and how much of what serves nothing."""

from __future__ import annotations

import pytest

from mqspark_server.net.http2.allowance import BURST, PER_S, RESET_COST
from mqspark_server.net.http2.headerblocks import literal_block
from mqspark_server.net.http2.http2connection import (
    CONNECTION_WINDOW_BYTES,
    MAX_LATE,
    STREAM_WINDOW_BYTES,
    Http2Connection,
)
from mqspark_server.net.http2.http2frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    FRAME_HEAD,
    GOAWAY,
    HEADERS,
    MOST_WINDOW_BYTES,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Code,
    Http2Error,
    frame,
)
from mqspark_server.net.http2.http2streams import RequestEnded
from mqspark_server.net.http2.requestheads import MAX_BLOCK_BYTES
from tests.unit.http2_kit import REQUEST, Bench, continuation, data, request, request_block, settings, u32

Code = Http2Code
OPENED = request(1)

FATAL = {
    "frame of 16,385 bytes": (Code.FRAME_SIZE_ERROR, FRAME_HEAD.pack(64, 1, DATA, 0, 1)),
    "request on an even stream": (Code.PROTOCOL_ERROR, request(2)),
    "request on stream 0": (Code.PROTOCOL_ERROR, request(0)),
    "request that is older": (Code.PROTOCOL_ERROR, request(5) + request(3)),
    "request on a stream that has ended": (Code.STREAM_CLOSED, OPENED + u32(RST_STREAM, 1, 8) + OPENED),
    "data on stream 0": (Code.PROTOCOL_ERROR, data(0, b"x")),
    "data before the request": (Code.PROTOCOL_ERROR, data(1, b"x")),
    "data on a stream that has ended": (Code.STREAM_CLOSED, OPENED + u32(RST_STREAM, 1, 8) + data(1, b"x")),
    "data over the connection's window": (
        Code.FLOW_CONTROL_ERROR,
        b"".join(request(stream) for stream in range(1, 11, 2))
        + b"".join(data(stream, bytes(16_384)) * 60 for stream in range(1, 11, 2)),
    ),
    "padding that is too long": (Code.PROTOCOL_ERROR, OPENED + frame(DATA, PADDED, 1, b"\x05abcd")),
    "padding without length": (Code.FRAME_SIZE_ERROR, OPENED + frame(DATA, PADDED, 1)),
    "request that depends on itself": (
        Code.PROTOCOL_ERROR,
        frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0\0\x01\0" + request_block()),
    ),
    "priority that is cut": (Code.FRAME_SIZE_ERROR, frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0")),
    "block that means nothing": (Code.COMPRESSION_ERROR, request(1, block=b"\xff\xff\xff\xff\xff\xff")),
    "trailers that mean nothing": (Code.COMPRESSION_ERROR, OPENED + request(1, ended=True, block=b"\x80")),
    "continuation of nothing": (Code.PROTOCOL_ERROR, continuation(1, b"")),
    "continuation of another stream": (
        Code.PROTOCOL_ERROR,
        request(1, end_headers=False) + continuation(3, b"", end_headers=True),
    ),
    "ping amid a block": (Code.PROTOCOL_ERROR, request(1, end_headers=False) + frame(PING, 0, 0, bytes(8))),
    "priority of stream 0": (Code.PROTOCOL_ERROR, frame(PRIORITY, 0, 0, bytes(5))),
    "reset of stream 0": (Code.PROTOCOL_ERROR, u32(RST_STREAM, 0, 8)),
    "reset before the request": (Code.PROTOCOL_ERROR, u32(RST_STREAM, 1, 8)),
    "reset that is cut": (Code.FRAME_SIZE_ERROR, OPENED + frame(RST_STREAM, 0, 1, b"\0\0\0")),
    "settings of a stream": (Code.PROTOCOL_ERROR, frame(SETTINGS, 0, 1)),
    "settings that are cut": (Code.FRAME_SIZE_ERROR, frame(SETTINGS, 0, 0, bytes(5))),
    "acknowledged settings": (Code.FRAME_SIZE_ERROR, frame(SETTINGS, ACK, 0, bytes(6))),
    "push of 2": (Code.PROTOCOL_ERROR, settings(enable_push=2)),
    "initial window of 2^31": (Code.FLOW_CONTROL_ERROR, settings(initial_window_size=1 << 31)),
    "initial window that makes another too large": (
        Code.FLOW_CONTROL_ERROR,
        OPENED + u32(WINDOW_UPDATE, 1, 70_000) + settings(initial_window_size=MOST_WINDOW_BYTES),
    ),
    "frames of 16,383 bytes": (Code.PROTOCOL_ERROR, settings(max_frame_size=16_383)),
    "frames of 2^24 bytes": (Code.PROTOCOL_ERROR, settings(max_frame_size=1 << 24)),
    "push": (Code.PROTOCOL_ERROR, frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4))),
    "ping of a stream": (Code.PROTOCOL_ERROR, frame(PING, 0, 1, bytes(8))),
    "ping of 7 bytes": (Code.FRAME_SIZE_ERROR, frame(PING, 0, 0, bytes(7))),
    "GOAWAY of a stream": (Code.PROTOCOL_ERROR, frame(GOAWAY, 0, 1, bytes(8))),
    "window opened by 0": (Code.PROTOCOL_ERROR, u32(WINDOW_UPDATE, 0, 0)),
    "window over 2^31": (Code.FLOW_CONTROL_ERROR, u32(WINDOW_UPDATE, 0, MOST_WINDOW_BYTES)),
    "window before the request": (Code.PROTOCOL_ERROR, u32(WINDOW_UPDATE, 1, 1)),
    "window that is cut": (Code.FRAME_SIZE_ERROR, frame(WINDOW_UPDATE, 0, 0, bytes(3))),
}


@pytest.mark.parametrize("fault", FATAL)
def test_what_ends_a_connection_is_told_by_its_code(bench: Bench, fault: str) -> None:
    code, said = FATAL[fault]
    with pytest.raises(Http2Error) as raised:
        bench.give(said)
    assert raised.value.code == code
    last = bench.sent()[-1]
    assert (last.kind, last.number) == (GOAWAY, code)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0",
        PREFACE + frame(PING, 0, 0, bytes(8)),
        PREFACE + frame(SETTINGS, ACK, 0),
    ],
)
def test_what_does_not_begin_as_http2_is_no_connection(said: bytes) -> None:
    with pytest.raises(Http2Error):
        Http2Connection(1).received(said, 0.0)


def without(name: str, **more: str) -> bytes:
    """A request without a pseudo-field, or with others."""
    fields = {key: value for key, value in REQUEST.items() if key != name}
    return literal_block([*fields.items(), *more.items()])


RESETS = {
    "no path": (Code.PROTOCOL_ERROR, request(1, block=without(":path"))),
    "no method": (Code.PROTOCOL_ERROR, request(1, block=without(":method"))),
    "no scheme": (Code.PROTOCOL_ERROR, request(1, block=without(":scheme"))),
    "empty path": (
        Code.PROTOCOL_ERROR,
        request(1, block=literal_block([(":path", ""), (":method", "POST"), (":scheme", "http")])),
    ),
    "another pseudo-field": (Code.PROTOCOL_ERROR, request(1, block=without("", **{":status": "200"}))),
    "pseudo-field twice": (Code.PROTOCOL_ERROR, request(1, block=without("", **{":path": "/"}))),
    "pseudo-field behind others": (
        Code.PROTOCOL_ERROR,
        request(1, block=literal_block([("a", "b"), *REQUEST.items()])),
    ),
    "name in capitals": (Code.PROTOCOL_ERROR, request(1, block=request_block(X_more="v"))),
    "name with a space": (Code.PROTOCOL_ERROR, request(1, block=without("", **{"a b": "v"}))),
    "value with a line end": (Code.PROTOCOL_ERROR, request(1, block=request_block(a="b\nc"))),
    "value with outer space": (Code.PROTOCOL_ERROR, request(1, block=request_block(a=" b"))),
    "connection": (Code.PROTOCOL_ERROR, request(1, block=request_block(connection="close"))),
    "te: gzip": (Code.PROTOCOL_ERROR, request(1, block=request_block(te="gzip"))),
    "content-length that is no number": (Code.PROTOCOL_ERROR, request(1, block=request_block(content_length="+1"))),
    "content-length without content": (
        Code.PROTOCOL_ERROR,
        request(1, ended=True, block=request_block(content_length="1")),
    ),
    "more content than said": (
        Code.PROTOCOL_ERROR,
        request(1, block=request_block(content_length="1")) + data(1, b"ab"),
    ),
    "less content than said": (
        Code.PROTOCOL_ERROR,
        request(1, block=request_block(content_length="3")) + data(1, b"ab", ended=True),
    ),
    "data behind the end": (Code.STREAM_CLOSED, request(1, ended=True) + data(1, b"x")),
    "fields behind the end": (Code.STREAM_CLOSED, request(1, ended=True) + request(1, ended=True, block=b"")),
    "trailers that do not end": (Code.PROTOCOL_ERROR, OPENED + request(1, block=b"")),
    "trailers with a pseudo-field": (Code.PROTOCOL_ERROR, OPENED + request(1, ended=True, block=b"\x82")),
    "data over the stream's window": (
        Code.FLOW_CONTROL_ERROR,
        OPENED + data(1, bytes(16_384)) * (STREAM_WINDOW_BYTES // 16_384) + data(1, b"x"),
    ),
    "stream's window opened by 0": (Code.PROTOCOL_ERROR, OPENED + u32(WINDOW_UPDATE, 1, 0)),
    "stream's window over 2^31": (Code.FLOW_CONTROL_ERROR, OPENED + u32(WINDOW_UPDATE, 1, MOST_WINDOW_BYTES)),
    "priority of 4 bytes": (Code.FRAME_SIZE_ERROR, OPENED + frame(PRIORITY, 0, 1, bytes(4))),
    "stream that depends on itself": (Code.PROTOCOL_ERROR, OPENED + frame(PRIORITY, 0, 1, b"\0\0\0\x01\0")),
}  # fmt: skip


@pytest.mark.parametrize("fault", RESETS)
def test_what_one_stream_does_wrong_resets_it_alone(bench: Bench, fault: str) -> None:
    code, said = RESETS[fault]
    events = bench.give(said)
    reset = [each for each in bench.sent() if each.kind == RST_STREAM]
    assert [(each.stream, each.number) for each in reset] == [(1, code)]
    assert len(bench.connection) == 0
    if events:
        assert isinstance(events[-1], RequestEnded)
    bench.open(3)


# --- floods ---------------------------------------------------------------------------------------------------------


def opened_and_reset(bench: Bench) -> bytes:
    stream = next(bench.streams)
    return request(stream) + u32(RST_STREAM, stream, Code.CANCEL)


def reset_by_the_server(bench: Bench) -> bytes:
    stream = next(bench.streams)
    return request(stream) + u32(WINDOW_UPDATE, stream, 0)


FLOODS = {
    "pings (CVE-2019-9512)": (1, lambda _: frame(PING, 0, 0, bytes(8))),
    "settings (CVE-2019-9515)": (1, lambda _: frame(SETTINGS, 0, 0)),
    "many settings in a frame": (100, lambda _: frame(SETTINGS, 0, 0, b"\0\x03\0\0\0\1" * 800)),
    "acknowledged settings": (1, lambda _: frame(SETTINGS, ACK, 0)),
    "priorities (CVE-2019-9513)": (1, lambda _: frame(PRIORITY, 0, 99, bytes(5))),
    "empty data (CVE-2019-9518)": (1, lambda _: data(1, b"")),
    "data by a byte": (1, lambda _: data(1, b"x")),
    "windows by a byte (CVE-2019-9511)": (1, lambda _: u32(WINDOW_UPDATE, 1, 1)),
    "unknown frames": (1, lambda _: frame(0xEE, 0, 0)),
    "GOAWAY": (1, lambda _: frame(GOAWAY, 0, 0, bytes(8))),
    "resets (CVE-2023-44487)": (RESET_COST, opened_and_reset),
    "resets of the server (CVE-2025-8671)": (RESET_COST + 1, reset_by_the_server),
    "malformed requests": (RESET_COST, lambda bench: request(next(bench.streams), block=b"\x82")),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_what_serves_nothing_has_an_allowance(bench: Bench, flood: str) -> None:
    cost, piece = FLOODS[flood]
    bench.open(1)
    most = BURST // cost - 3
    for _ in range(most):
        bench.give(piece(bench))
    over = b"".join(piece(bench) for _ in range(6))
    with pytest.raises(Http2Error) as raised:
        bench.give(over)
    assert raised.value.code == Code.ENHANCE_YOUR_CALM


def test_the_allowance_grows_with_time_and_with_answers(bench: Bench) -> None:
    ping = frame(PING, 0, 0, bytes(8))
    bench.give(ping * (BURST - 10))
    bench.now += 1.0
    bench.give(ping * (PER_S - 10))
    for _ in range(100):
        stream = bench.open(next(bench.streams), ended=True)
        bench.connection.end_answer(stream, b"")
    bench.give(ping * 200)


def test_streams_that_settings_change_cost_more() -> None:
    bench = Bench(max_streams=4_000)
    for _ in range(4_000):
        bench.open(next(bench.streams))
    changes = b"".join(settings(initial_window_size=1_000 + size) for size in range(100))
    with pytest.raises(Http2Error):
        bench.give(changes)


@pytest.mark.parametrize("part", [b"", literal_block([("x-more", "v" * 200)]), bytes(8_000)])
def test_a_block_that_goes_on_and_on_ends_the_connection(bench: Bench, part: bytes) -> None:
    """CVE-2024-27316"""
    bench.give(request(1, end_headers=False))
    with pytest.raises(Http2Error) as raised:
        bench.give(frame(CONTINUATION, 0, 1, part) * 20)
    assert raised.value.code == Code.ENHANCE_YOUR_CALM
    assert bench.connection.buffered_bytes <= MAX_BLOCK_BYTES + len(part)


def test_late_frames_are_forgiven_for_so_many_streams(bench: Bench) -> None:
    for _ in range(MAX_LATE + 1):
        stream = bench.open(next(bench.streams))
        bench.connection.end_answer(stream, b"")
        bench.now += 1.0
    assert bench.give(data(5, b"late")) == []
    with pytest.raises(Http2Error):
        bench.give(data(3, b"too late"))


def test_data_of_streams_that_are_gone_counts_for_the_connection(bench: Bench) -> None:
    bench.connection.reset(bench.open(1), Code.CANCEL)
    count = CONNECTION_WINDOW_BYTES // 16_384 // 2
    bench.give(data(1, bytes(16_384)) * count)
    assert [each.number for each in bench.sent() if each.kind == WINDOW_UPDATE] == [count * 16_384]
    assert len(bench.connection) == 0
