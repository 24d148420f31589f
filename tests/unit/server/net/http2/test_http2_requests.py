"""Requests and answers over one connection of HTTP/2, without a socket."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mqspark_server.net.http2.headerblocks import literal_block
from mqspark_server.net.http2.http2connection import (
    CONNECTION_WINDOW_BYTES,
    STREAM_WINDOW_BYTES,
    Http2Connection,
)
from mqspark_server.net.http2.http2frames import (
    ACK,
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LAST_STREAM,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Code,
    frame,
)
from mqspark_server.net.http2.http2streams import (
    DataCame,
    Event,
    PingAnswered,
    RequestBegun,
    RequestEnded,
    WindowOpened,
)
from tests.unit.http2_kit import (
    BEGIN,
    REQUEST,
    Bench,
    continuation,
    data,
    frames_of,
    request,
    request_block,
    settings,
    u32,
)

HEAD = literal_block([(":status", "200"), ("content-type", "application/grpc")])
TRAILERS = literal_block([("grpc-status", "0")])


def shown(event: Event) -> Any:
    """The event as values that can be compared."""
    if isinstance(event, RequestBegun):
        return "begun", event.stream.id, event.head and (event.head.path, event.head.fields), event.ended
    if isinstance(event, DataCame):
        return "data", event.stream.id, event.data, event.ended
    if isinstance(event, RequestEnded):
        return "ended", event.stream.id, event.code
    if isinstance(event, PingAnswered):
        return "ping", event.payload
    return "opened", event.stream.id


TALK = (
    BEGIN
    + request(1, block=request_block(x_more="1"))
    + data(1, b"first")
    + frame(PING, 0, 0, b"12345678")
    + request(3, end_headers=False)
    + continuation(3, literal_block([("x-cut", "in two")])[:4])
    + continuation(3, literal_block([("x-cut", "in two")])[4:], end_headers=True)
    + frame(DATA, PADDED, 1, b"\x03second\0\0\0")
    + settings(initial_window_size=100)
    + request(5, ended=True, block=bytes.fromhex("838684") + b"\x40\x01a\x01b")
    + request(7, ended=True, block=bytes.fromhex("838684be"))
    + u32(RST_STREAM, 3, Http2Code.CANCEL)
    + data(1, b"", ended=True)
    + frame(PING, ACK, 0, b"abcdefgh")
    + frame(0xEE, 0, 9, b"an extension")
)
BEFORE = ("/service/Method", {"x-more": "1"})
EVENTS = [
    ("begun", 1, BEFORE, False),
    ("data", 1, b"first", False),
    ("begun", 3, ("/service/Method", {"x-cut": "in two"}), False),
    ("data", 1, b"second", False),
    ("begun", 5, ("/", {"a": "b"}), True),
    ("begun", 7, ("/", {"a": "b"}), True),
    ("ended", 3, Http2Code.CANCEL),
    ("data", 1, b"", True),
    ("ping", b"abcdefgh"),
]


def events_of(pieces: list[bytes]) -> tuple[list[Any], bytes]:
    connection, events = Http2Connection(100), []
    for piece in pieces:
        events += map(shown, connection.received(piece, 0.0))
    assert not connection.buffered_bytes
    return events, b"".join(connection.to_send())


def test_all_frames_of_a_read_are_reported_in_their_order() -> None:
    assert events_of([TALK])[0] == EVENTS


def test_a_cut_at_any_byte_changes_nothing() -> None:
    whole = events_of([TALK])
    assert events_of([TALK[at : at + 1] for at in range(len(TALK))]) == whole
    for at in range(1, len(TALK)):
        assert events_of([TALK[:at], TALK[at:]]) == whole


@given(st.lists(st.integers(0, len(TALK)), max_size=12))
def test_any_cuts_change_nothing(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TALK)]
    assert events_of([TALK[a:b] for a, b in itertools.pairwise(places)]) == events_of([TALK])


def test_the_server_says_its_settings_first_and_acknowledges_the_peers() -> None:
    connection = Http2Connection(77)
    first = frames_of(b"".join(connection.to_send()))
    assert [each.kind for each in first] == [SETTINGS, WINDOW_UPDATE]
    assert first[0].payload[:6] == b"\0\x03\0\0\0\x4d"
    connection.received(BEGIN, 0.0)
    assert [(each.kind, each.flags) for each in frames_of(b"".join(connection.to_send()))] == [
        (SETTINGS, ACK)
    ]


def test_an_answer_is_head_data_and_trailers(bench: Bench) -> None:
    stream = bench.open(ended=True)
    bench.answer(stream, HEAD, b"answer", TRAILERS)
    head, body, trailers = bench.sent()
    assert (head.kind, head.flags, head.fields[":status"]) == (HEADERS, END_HEADERS, "200")
    assert (body.kind, body.flags, body.payload) == (DATA, 0, b"answer")
    assert (trailers.flags, trailers.fields) == (END_HEADERS | END_STREAM, {"grpc-status": "0"})
    assert len(bench.connection) == 0


def test_an_answer_to_a_request_that_has_not_ended_ends_it_and_what_is_late_is_dropped(bench: Bench) -> None:
    stream = bench.open()
    bench.connection.end_answer(stream, TRAILERS)
    assert [each.kind for each in bench.sent()] == [HEADERS, RST_STREAM]
    assert (
        bench.give(data(1, b"late") + request(1, ended=True, block=TRAILERS) + u32(WINDOW_UPDATE, 1, 2000))
        == []
    )
    assert bench.sent() == []


def test_trailers_end_a_request(bench: Bench) -> None:
    bench.open()
    (event,) = bench.give(request(1, ended=True, block=literal_block([("x-trailer", "t")])))
    assert shown(event) == ("data", 1, b"", True)


def test_priorities_of_requests_are_read_over() -> None:
    payload = b"\0\0\0\x09\x10" + request_block()
    (event,) = Bench().give(frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, payload))
    assert isinstance(event, RequestBegun)


def test_a_head_that_comes_again_is_the_same_object_until_the_table_changes(bench: Bench) -> None:

    def head(stream: int, block: bytes) -> object:
        (event,) = bench.give(request(stream, ended=True, block=block))
        assert isinstance(event, RequestBegun)
        return event.head

    indexed = bytes.fromhex("838684be")
    bench.give(request(1, ended=True, block=bytes.fromhex("838684") + b"\x40\x01a\x011"))
    first = head(3, indexed)
    assert head(5, indexed) is first
    bench.give(request(7, ended=True, block=bytes.fromhex("838684") + b"\x40\x01a\x012"))
    again = head(9, indexed)
    assert getattr(first, "fields", None) == {"a": "1"}
    assert getattr(again, "fields", None) == {"a": "2"}


def test_a_block_that_changes_the_size_of_the_table_does_so_each_time_it_comes(bench: Bench) -> None:
    smaller, larger = bytes.fromhex("3f45838684"), bytes.fromhex("3fe11f838684")
    for stream, block in zip((1, 3, 5), (larger, smaller, larger), strict=True):
        bench.give(request(stream, ended=True, block=block))
    long = b"\x40" + literal_block([("a", "v" * 500)])[1:]
    bench.give(request(7, ended=True, block=bytes.fromhex("838684") + long))
    (event,) = bench.give(request(9, ended=True, block=bytes.fromhex("838684be")))
    assert shown(event)[2] == ("/", {"a": "v" * 500})


def test_fields_that_are_too_long_are_a_request_without_a_head(bench: Bench) -> None:
    block = (
        bytes.fromhex("838684") + b"\x40" + literal_block([("a", "v" * 4000)])[1:] + bytes((0x80 | 62,)) * 5
    )
    (event,) = bench.give(request(1, block=block))
    assert isinstance(event, RequestBegun)
    assert event.head is None
    assert shown(bench.give(request(3, block=bytes.fromhex("838684be")))[0])[2] == ("/", {"a": "v" * 4000})


# --- windows --------------------------------------------------------------------------------------------------------


def test_what_a_stream_window_does_not_take_waits_for_it() -> None:
    bench = Bench(begin=BEGIN + settings(initial_window_size=10))
    stream = bench.open(ended=True)
    bench.answer(stream, HEAD, bytes(range(25)), TRAILERS)
    assert [each.payload for each in bench.sent()[1:]] == [bytes(range(10))]
    assert bench.connection.unsent_bytes == 15
    bench.give(u32(WINDOW_UPDATE, 1, 10))
    assert [each.payload for each in bench.sent()] == [bytes(range(10, 20))]
    bench.give(settings(initial_window_size=15))
    assert [each.kind for each in bench.sent()] == [DATA, HEADERS, SETTINGS]
    assert bench.connection.unsent_bytes == len(bench.connection) == 0


def test_a_stream_says_when_all_of_it_is_on_its_way() -> None:
    bench = Bench(begin=BEGIN + settings(initial_window_size=0))
    stream = bench.open()
    for part in (b"abc", b"", b"def"):
        bench.connection.send(stream, part)
    assert bench.give(u32(WINDOW_UPDATE, 1, 4)) == []
    (event,) = bench.give(u32(WINDOW_UPDATE, 1, 2000))
    assert isinstance(event, WindowOpened)
    assert b"".join(each.payload for each in bench.sent()) == b"abcdef"


def test_streams_that_wait_for_the_connection_take_turns() -> None:
    bench = Bench(begin=BEGIN + settings(initial_window_size=1 << 20))
    one, other = bench.open(1), bench.open(3)
    bench.connection.send(one, bytes(DEFAULT_WINDOW_BYTES))
    bench.sent()
    for stream in (one, other):
        bench.connection.send(stream, bytes(40_000))
    bench.give(u32(WINDOW_UPDATE, 0, 32_768))
    assert [(each.stream, len(each.payload)) for each in bench.sent()] == [(1, 16_384), (3, 16_384)]
    bench.give(u32(RST_STREAM, 1, Http2Code.CANCEL))
    assert bench.connection.unsent_bytes == 40_000 - 16_384
    bench.give(u32(WINDOW_UPDATE, 0, 1 << 20))
    assert [each.stream for each in bench.sent()] == [3, 3]


def test_a_window_may_become_negative(bench: Bench) -> None:
    stream = bench.open()
    bench.connection.send(stream, bytes(100))
    bench.give(settings(initial_window_size=50))
    bench.sent()
    bench.connection.send(stream, b"more")
    bench.give(u32(WINDOW_UPDATE, 1, 50) + u32(WINDOW_UPDATE, 0, 2_000))
    assert bench.sent() == []
    bench.give(u32(WINDOW_UPDATE, 1, 4))
    assert [each.payload for each in bench.sent()] == [b"more"]


def test_large_data_goes_in_frames_that_the_peer_takes() -> None:
    bench = Bench(begin=BEGIN + settings(initial_window_size=1 << 20, max_frame_size=20_000))
    bench.connection.send(bench.open(), bytes(45_000))
    assert [len(each.payload) for each in bench.sent()] == [20_000, 20_000, 5_000]


def test_the_windows_of_the_peer_are_opened_as_it_is_read(bench: Bench) -> None:
    stream = bench.open()
    chunk = data(1, bytes(16_384))
    half = STREAM_WINDOW_BYTES // 16_384 // 2
    bench.give(chunk * half)
    assert bench.sent() == []
    bench.connection.used(stream, half * 16_384)
    assert [(each.stream, each.number) for each in bench.sent()] == [(1, STREAM_WINDOW_BYTES // 2)]
    for _ in range(3):
        bench.give(chunk * half)
        bench.connection.used(stream, half * 16_384)
    opened = [each.number for each in bench.sent() if not each.stream]
    assert opened == [CONNECTION_WINDOW_BYTES // 2]


# --- the end --------------------------------------------------------------------------------------------------------


def test_a_server_that_stops_says_so_then_refuses_what_comes(bench: Bench) -> None:
    bench.open(1)
    bench.connection.announce_end()
    bench.open(3)
    bench.connection.refuse_streams()
    assert [(each.kind, each.payload[:4]) for each in bench.sent()] == [
        (GOAWAY, LAST_STREAM.to_bytes(4, "big")),
        (GOAWAY, b"\0\0\0\x03"),
    ]
    assert bench.give(request(5)) == []
    (refused,) = bench.sent()
    assert (refused.stream, refused.number) == (5, Http2Code.REFUSED_STREAM)
    assert len(bench.connection) == 2


def test_more_streams_than_agreed_are_refused_and_their_fields_are_read() -> None:
    bench = Bench(max_streams=1)
    bench.open(1)
    bench.give(request(3, block=request_block() + b"\x40\x01a\x01b"))
    (refused,) = bench.sent()
    assert (refused.stream, refused.number) == (3, Http2Code.REFUSED_STREAM)
    bench.give(data(3, b"late") + u32(RST_STREAM, 1, Http2Code.CANCEL))
    (event,) = bench.give(request(5, block=request_block() + b"\xbe"))
    assert isinstance(event, RequestBegun)
    assert event.head is not None
    assert event.head.fields == {"a": "b"}


def test_nothing_is_sent_for_a_stream_that_is_gone(bench: Bench) -> None:
    stream = bench.open()
    bench.give(u32(RST_STREAM, 1, Http2Code.CANCEL))
    bench.answer(stream, HEAD, b"answer", TRAILERS)
    bench.connection.reset(stream, Http2Code.CANCEL)
    assert bench.sent() == []


def test_the_fields_of_the_kit_are_a_request() -> None:
    (event,) = Bench().give(request(1, block=literal_block(REQUEST.items())))
    assert isinstance(event, RequestBegun)
