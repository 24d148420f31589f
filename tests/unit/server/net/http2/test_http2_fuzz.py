"""Whatever a peer sends: a connection reports events or ends, and of each stream nothing is sent behind its end."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.errors import ProtocolError
from mqspark_server.net.http2.headerblocks import HeaderDecoder, literal_block
from mqspark_server.net.http2.http2connection import Http2Connection
from mqspark_server.net.http2.http2frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    Http2Error,
    frame,
)
from mqspark_server.net.http2.http2streams import RequestBegun
from tests.unit.http2_kit import BEGIN, frames_of, request_block

HEAD, END = literal_block([(":status", "200")]), literal_block([("grpc-status", "0")])
STREAMS = st.sampled_from([0, 1, 1, 2, 3, 5, 7, 9, (1 << 31) - 1])
PAYLOADS = st.one_of(
    st.binary(max_size=20),
    st.just(request_block()),
    st.sampled_from(
        [b"\0\0\0\1", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\4\0\0\0\5", b"\0\4\0\1\0\0", bytes(8)]
    ),
)
FRAMES = st.builds(frame, st.integers(0, 11), st.sampled_from([0, 1, 4, 5, 8, 12, 13, 36]), STREAMS, PAYLOADS)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_block_or_none(block: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        HeaderDecoder(1_000).decode(block)


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_none(said: bytes) -> None:
    with contextlib.suppress(Http2Error):
        Http2Connection(10).received(BEGIN + said, 0.0)


def check_order(sent: bytes) -> None:
    """Each stream has at most one end, and nothing behind it but a reset."""
    ended: set[int] = set()
    reset: set[int] = set()
    for each in frames_of(sent):
        if each.kind == GOAWAY or not each.stream:
            continue
        assert each.stream not in reset, each
        if each.kind == RST_STREAM:
            reset.add(each.stream)
        elif each.kind in (HEADERS, DATA):
            assert each.stream not in ended, each
            if each.flags & END_STREAM:
                ended.add(each.stream)


@settings(max_examples=300)
@given(st.lists(st.tuples(FRAMES, st.integers(0, 4)), max_size=25))
def test_any_frames_lead_to_events_or_to_an_end(said: list[tuple[bytes, int]]) -> None:
    connection, open_streams, sent = Http2Connection(3), [], b""
    with contextlib.suppress(Http2Error):
        connection.received(BEGIN, 0.0)
        for piece, deed in said:
            for event in connection.received(piece, 0.0):
                if isinstance(event, RequestBegun):
                    open_streams.append(event.stream)
                    connection.begin_answer(event.stream, HEAD)
            if open_streams and deed:
                stream = open_streams[deed % len(open_streams)]
                if deed == 1:
                    connection.send(stream, b"some of the answer")
                elif deed == 2:
                    connection.send(stream, bytes(20_000), END)
                elif deed == 3:
                    connection.end_answer(stream, END)
                else:
                    connection.used(stream, 400_000)
            sent += b"".join(connection.to_send())
            assert connection.unsent_bytes == sum(each.unsent_bytes for each in connection)
            assert len(connection) <= 3
    check_order(sent + b"".join(connection.to_send()))
