"""Calls of gRPC over connections without sockets: how they are served, and how they end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from mqspark_server.net.grpc.callturns import FIRST_CALLS, LEAST_CALLS, MOST_CALLS, TURN_S, CallTurns
from mqspark_server.net.grpc.connectionturns import READ_S
from mqspark_server.net.grpc.grpcconnection import STREAM_MARK_BYTES
from mqspark_server.net.grpc.grpclistener import GrpcListener
from mqspark_server.net.grpc.grpcwords import GrpcAbort, GrpcCode
from mqspark_server.net.grpc.messagereader import message_bytes
from mqspark_server.net.grpc.servedcalls import MESSAGE_COST_BYTES, TAKEN_AT_ONCE
from mqspark_server.net.http2.headerblocks import literal_block
from mqspark_server.net.http2.http2connection import STREAM_WINDOW_BYTES, WAITING_STREAM_BYTES
from mqspark_server.net.http2.http2frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LAST_STREAM,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    Http2Code,
    frame,
)
from tests.unit.grpc_kit import CALLS, LIMITS, GrpcClientBench, Text, listener_of, method
from tests.unit.http2_kit import BEGIN, data, request_block, settings, u32
from tests.unit.http2_kit import request as http2_request


async def echo(request: Text, call: Any) -> Text:
    return Text(b"echo " + request.text)


def client_of(
    serve: Any = echo, *, takes_stream: bool = False, begin: bytes = BEGIN, **limits: Any
) -> GrpcClientBench:
    listener = listener_of([("/Method", method(serve, takes_stream=takes_stream))], **limits)
    return GrpcClientBench(listener, begin=begin)


class Waiting:
    """A method that waits until it is told to go on."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = self.cancelled = 0

    async def __call__(self, request: Text, call: Any) -> Text:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Text(b"done")


# --- one call -------------------------------------------------------------------------------------------------------


async def test_a_unary_call_has_one_answer() -> None:
    client = client_of()
    stream = client.call(b"hello")
    assert await client.answers(stream) == [b"echo hello"]
    assert await client.status(stream) == (0, "")


async def test_a_method_is_told_its_metadata_its_peer_and_its_time() -> None:
    seen: list[Any] = []

    async def serve(request: Text, call: Any) -> Text:
        seen.extend([call.metadata["x-mq-client-id"], call.address, call.time_remaining()])
        return request

    client = client_of(serve)
    await client.status(client.call(b"", x_mq_client_id="me", grpc_timeout="5S"))
    assert seen[:2] == ["me", ("10.0.0.5", 1)]
    assert 0 < seen[2] <= 5
    await client.status(client.call(b"", x_mq_client_id="me"))
    assert seen[5] is None


async def test_a_method_that_writes_has_many_answers() -> None:
    async def serve(request: Text, call: Any) -> None:
        for number in range(3):
            await call.write(Text(b"%d" % number))

    client = client_of(serve)
    stream = client.call(b"")
    assert await client.answers(stream) == [b"0", b"1", b"2"]
    assert await client.status(stream) == (0, "")


async def test_a_method_may_answer_without_a_task() -> None:
    later: list[Any] = []

    def at_once(request: Text, call: Any) -> bool:
        if request.text == b"task":
            return False
        if request.text == b"fails":
            raise GrpcAbort(GrpcCode.UNAVAILABLE, "not now")
        if request.text == b"later":
            later.append(call)
        else:
            call.answer(b"at once " + request.text)
        return True

    listener = listener_of([("/Method", method(echo)._replace(at_once=at_once))])
    client = GrpcClientBench(listener)
    streams = {text: client.call(text) for text in (b"now", b"task", b"fails", b"later")}
    assert await client.answers(streams[b"now"]) == [b"at once now"]
    assert await client.answers(streams[b"task"]) == [b"echo task"]
    assert await client.status(streams[b"fails"]) == (GrpcCode.UNAVAILABLE, "not now")
    assert await client.status(streams[b"later"]) is None
    assert listener.calls == 1
    later[0].answer(b"in the end")
    later[0].answer(b"and again")
    assert await client.answers(streams[b"later"]) == [b"in the end"]
    assert await client.status(streams[b"later"]) == (0, "")
    gone = client.call(b"later")
    client.say(u32(RST_STREAM, gone, Http2Code.CANCEL))
    later[1].serve(Text(b"later"))
    later[1].answer(b"to nobody")
    assert await client.answers(gone) == []
    assert listener.calls == 0


async def test_a_stream_of_requests_is_read_as_it_comes() -> None:
    async def serve(requests: Any, call: Any) -> None:
        async for each in requests:
            await call.write(Text(each.text.upper()))
        await call.write(Text(b"END"))

    client = client_of(serve, takes_stream=True)
    stream = client.call(b"a", ended=False)
    assert await client.answers(stream) == [b"A"]
    client.say(data(stream, message_bytes(b"b") + message_bytes(b"c")))
    assert await client.answers(stream) == [b"A", b"B", b"C"]
    assert await client.status(stream) is None
    client.say(data(stream, b"", ended=True))
    assert await client.answers(stream) == [b"A", b"B", b"C", b"END"]
    assert await client.status(stream) == (0, "")


# --- calls that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"path": "/None"}, GrpcCode.UNIMPLEMENTED),
        ({"content_type": "text/html"}, 415),
        ({"grpc_timeout": "soon"}, GrpcCode.INTERNAL),
        ({"x_more": "v" * 16_150}, GrpcCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_calls_that_cannot_begin(fields: dict[str, str], status: int) -> None:
    client = client_of()
    ended = await client.status(client.call(b"x", **fields))
    assert ended is not None
    assert ended[0] == status
    assert await client.status(client.call(b"x")) == (0, "")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"", GrpcCode.INTERNAL),
        (message_bytes(b"x")[:-1], GrpcCode.INTERNAL),
        (message_bytes(b"x") * 2, GrpcCode.UNIMPLEMENTED),
        (message_bytes(b"wrong"), GrpcCode.INTERNAL),
        (b"\1" + message_bytes(b"x")[1:], GrpcCode.UNIMPLEMENTED),
        (struct.pack(">BI", 0, 100_001), GrpcCode.RESOURCE_EXHAUSTED),
    ],
    ids=["none", "cut", "two", "wrong", "compressed", "too-large"],
)
async def test_requests_that_are_none(said: bytes, code: GrpcCode) -> None:
    client = client_of()
    stream = client.call(ended=False)
    client.say(data(stream, said, ended=True))
    ended = await client.status(stream)
    assert ended is not None
    assert ended[0] == code


async def test_a_request_that_is_too_large_is_refused_before_it_has_come() -> None:
    client = client_of()
    stream = client.call(ended=False)
    client.say(data(stream, struct.pack(">BI", 0, 100_001)))
    ended = await client.status(stream)
    assert ended is not None
    assert ended[0] == GrpcCode.RESOURCE_EXHAUSTED
    assert client.resets() == [(stream, Http2Code.NO_ERROR)]
    client.say(data(stream, bytes(10_000)))
    assert await client.status(client.call(b"x")) == (0, "")


async def test_failures_of_methods_are_told_with_and_without_answers_before() -> None:
    async def serve(request: Text, call: Any) -> None:
        if request.text == b"bug":
            raise KeyError("secret")
        await call.write(Text(b"first"))
        raise GrpcAbort(GrpcCode.INVALID_ARGUMENT, "then no more")

    client = client_of(serve)
    assert await client.status(client.call(b"bug")) == (GrpcCode.UNKNOWN, "KeyError in the server")
    stream = client.call(b"")
    assert await client.answers(stream) == [b"first"]
    assert await client.status(stream) == (GrpcCode.INVALID_ARGUMENT, "then no more")


M = message_bytes(b"m")
FORMS: dict[str, list[bytes]] = {
    "whole": [data(1, M, ended=True)],
    "ended by itself": [data(1, M), data(1, b"", ended=True)],
    "in parts": [data(1, M[:3]), data(1, M[3:], ended=True)],
    "ended by fields": [data(1, M), frame(HEADERS, END_HEADERS | END_STREAM, 1, literal_block([("a", "b")]))],
    "nothing": [data(1, b"", ended=True)],
    "two": [data(1, M), data(1, M, ended=True)],
    "two at once": [data(1, M + M, ended=True)],
    "cut": [data(1, M[:4], ended=True)],
    "wrong": [data(1, message_bytes(b"wrong"), ended=True)],
    "not ended": [data(1, M)],
    "taken back": [data(1, M, ended=True), u32(RST_STREAM, 1, Http2Code.CANCEL)],
    "taken back before its end": [data(1, M), u32(RST_STREAM, 1, Http2Code.CANCEL)],
    "more than all": [data(1, M, ended=True), data(1, M)],
    "by one who leaves": [data(1, M, ended=True), frame(GOAWAY, 0, 0, bytes(8))],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["task", "at once", "stream"])
async def test_a_call_ends_the_same_however_its_frames_are_read(form: str, kind: str) -> None:
    async def serve(requests: Any, call: Any) -> None:
        await call.write(*[each async for each in requests])

    def at_once(request: Text, call: Any) -> bool:
        call.answer(b"echo " + request.text)
        return True

    found = method(serve, takes_stream=True) if kind == "stream" else method(echo)
    if kind == "at once":
        found = found._replace(at_once=at_once)
    block = request_block(content_type="application/grpc", grpc_timeout="10S")
    said = [http2_request(1, block=block), *FORMS[form]]
    is_whole = form not in ("taken back", "more than all")  # else it may be answered before
    ends = []
    for parts in ([b"".join(said)], said, [b"%c" % octet for octet in b"".join(said)]):
        listener = listener_of([("/service/Method", found)])
        client = GrpcClientBench(listener)
        for part in parts:
            client.say(part)
        ends.append((await client.status(1), await client.answers(1)) if is_whole else None)
        is_open = form == "not ended"
        assert listener.calls == is_open
        client.hang_up()
        assert listener.calls == 0
    assert ends == [ends[0]] * 3


async def test_a_call_whose_time_is_over_is_cancelled() -> None:
    serve = Waiting()
    client = client_of(serve)
    stream = client.call(b"", grpc_timeout="1m")
    await client.hear()
    await asyncio.sleep(0.15)
    ended = await client.status(stream)
    assert ended is not None
    assert ended[0] == GrpcCode.DEADLINE_EXCEEDED
    assert serve.cancelled == 1


@pytest.mark.parametrize("leave", [lambda c, s: c.say(u32(RST_STREAM, s, 8)), lambda c, _: c.hang_up()])
async def test_a_method_is_cancelled_when_its_caller_is_gone(
    leave: Callable[[GrpcClientBench, int], None],
) -> None:
    serve = Waiting()
    listener = listener_of([("/Method", method(serve))])
    client = GrpcClientBench(listener)
    stream = client.call(b"", grpc_timeout="100S")
    await client.hear()
    assert (serve.begun, listener.calls) == (1, 1)
    leave(client, stream)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (serve.cancelled, listener.calls) == (1, 0)


async def test_a_request_that_does_not_arrive_is_given_up() -> None:
    client = client_of(partial_frame_s=0.02)
    silent = client.call(ended=False)
    slow = client.call(ended=False)
    client.say(data(slow, message_bytes(bytes(100))[:15]))
    await asyncio.sleep(0.15)
    for stream in (silent, slow):
        assert await client.status(stream) == (GrpcCode.DEADLINE_EXCEEDED, "the request does not arrive")


async def test_a_request_that_arrives_has_as_long_again_for_so_many_bytes() -> None:
    listener = listener_of([("/Method", method(echo))])
    client = GrpcClientBench(listener)
    stream = client.call(ended=False)
    (call,) = client.connection.calls
    assert not call.is_arriving(10)
    client.say(data(stream, message_bytes(bytes(100))[:20]))
    assert call.is_arriving(10)
    assert not call.is_arriving(10)
    client.say(data(stream, message_bytes(bytes(100))[20:], ended=True))
    assert not call.is_arriving(0)
    assert await client.status(stream) == (0, "")


async def test_calls_beyond_the_limit_are_refused_until_others_end() -> None:
    serve = Waiting()
    client = client_of(serve, max_calls=2)
    streams = [client.call(b"") for _ in range(3)]
    assert [await client.status(each) for each in streams[:2]] == [None, None]
    refused = await client.status(streams[2])
    assert refused is not None
    assert refused[0] == GrpcCode.RESOURCE_EXHAUSTED
    serve.go.set()
    assert await client.status(streams[0]) == (0, "")
    assert await client.status(client.call(b"")) == (0, "")


# --- bounds ---------------------------------------------------------------------------------------------------------


def fixed_turns(listener: GrpcListener) -> None:
    """As if all calls took as long as is assumed of the first ones."""
    listener.turns.calls.took = lambda seconds, calls: None  # type: ignore[method-assign]


async def test_calls_that_wait_begin_in_later_turns_and_others_are_served_between() -> None:
    order: list[bytes] = []

    async def serve(request: Text, call: Any) -> Text:
        order.append(request.text)
        return request

    listener = listener_of([("/Method", method(serve))])
    fixed_turns(listener)
    busy, other = GrpcClientBench(listener), GrpcClientBench(listener)
    for _ in range(8 * FIRST_CALLS):
        busy.call(b"busy")
    assert busy.wire.is_paused
    last = other.call(b"other")
    assert await other.status(last) == (0, "")
    assert order.index(b"other") <= 3 * FIRST_CALLS
    await busy.hear()
    assert len(order) == 8 * FIRST_CALLS + 1
    assert not busy.wire.is_paused


async def test_busy_connections_share_the_turns() -> None:
    order: list[bytes] = []

    async def serve(request: Text, call: Any) -> Text:
        order.append(request.text)
        return request

    listener = listener_of([("/Method", method(serve))])
    fixed_turns(listener)
    clients = [GrpcClientBench(listener) for _ in range(5)]
    for number, client in enumerate(clients):
        for _ in range(4 * FIRST_CALLS):
            client.call(bytes((number,)))
    for _ in range(12):  # not all calls
        await asyncio.sleep(0)
    counts = [order.count(bytes((number,))) for number in range(1, 5)]
    assert 0 < min(counts) < 4 * FIRST_CALLS
    assert max(counts) - min(counts) <= FIRST_CALLS
    for client in clients:
        await client.hear()
    assert len(order) == 20 * FIRST_CALLS


async def test_so_many_calls_of_all_connections_begin_in_a_turn() -> None:
    begun = 0

    async def serve(request: Text, call: Any) -> Text:
        nonlocal begun
        begun += 1
        return request

    listener = listener_of([("/Method", method(serve))])
    fixed_turns(listener)
    clients = [GrpcClientBench(listener) for _ in range(20)]
    streams = [(client, client.call(b"")) for client in clients for _ in range(20)]
    most, before = 0, 0
    while begun < len(streams):
        await asyncio.sleep(0)
        most, before = max(most, begun - before), begun
    assert most <= 2 * FIRST_CALLS
    for client, stream in streams:
        assert await client.status(stream) == (0, "")


async def test_a_long_read_is_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, now_s = [], 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += READ_S / 2
        return now_s

    async def serve(request: Text, call: Any) -> Text:
        taken.append(request.text)
        return Text(b"")

    listener = GrpcListener({"/service/Method": method(serve)}, None, **CALLS, limits=LIMITS)
    monkeypatch.setattr("mqspark_server.net.grpc.connectionturns.monotonic", clock)
    fixed_turns(listener)
    long, other = GrpcClientBench(listener), GrpcClientBench(listener)
    block = request_block(content_type="application/grpc")
    calls = [
        http2_request(stream, block=block) + data(stream, message_bytes(bytes(1_000)), ended=True)
        for stream in range(1, 2 * 100, 2)
    ]
    long.say(b"".join(calls))
    assert long.wire.is_paused
    assert await other.status(other.call(b"other", path="/service/Method")) == (0, "")
    assert taken.index(b"other") < len(calls) // 2
    for _ in range(5):
        await long.hear()
    assert len(taken) == len(calls) + 1
    assert not long.wire.is_paused
    assert [each.stream for each in long.frames if each.kind == DATA] == [*range(1, 2 * 100, 2)]


async def test_fewer_calls_begin_in_a_turn_when_they_take_long() -> None:
    turns = CallTurns()
    for _ in range(20):
        turns.took(FIRST_CALLS * TURN_S, FIRST_CALLS)
    assert turns.most == LEAST_CALLS
    for _ in range(40):
        turns.took(LEAST_CALLS * TURN_S / 50, LEAST_CALLS)
    assert 45 <= turns.most <= 50
    for _ in range(40):
        turns.took(0.0, 1)
    assert turns.most == MOST_CALLS


async def test_a_listener_measures_what_its_calls_take() -> None:
    now_s = 0.0

    async def serve(request: Text, call: Any) -> Text:
        nonlocal now_s
        now_s += TURN_S
        return request

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mqspark_server.net.grpc.connectionturns.monotonic", lambda: now_s)
        listener = listener_of([("/Method", method(serve))])
        client = GrpcClientBench(listener)
        streams = [client.call(b"") for _ in range(4 * FIRST_CALLS)]
        for stream in streams:
            assert await client.status(stream) == (0, "")
        assert listener.turns.calls.most < FIRST_CALLS // 2


async def test_a_method_waits_for_a_caller_that_opens_no_window() -> None:
    written = 0

    async def serve(request: Text, call: Any) -> None:
        nonlocal written
        for _ in range(100):
            await call.write(Text(bytes(10_000)))
            written += 1

    client = client_of(serve)
    stream = client.call(b"")
    await client.hear()
    assert written * 10_000 < STREAM_MARK_BYTES + 65_535 + 10_000
    client.say(u32(WINDOW_UPDATE, 0, 10 << 20) + u32(WINDOW_UPDATE, stream, 10 << 20))
    assert len(await client.answers(stream)) == 100
    assert await client.status(stream) == (0, "")


async def test_what_a_peer_opens_no_window_for_counts_as_unread_and_is_dropped_in_the_end() -> None:
    async def serve(request: Text, call: Any) -> None:
        for _ in range(4):
            await call.write(Text(bytes(20_000)))
            await asyncio.sleep(0)

    listener = listener_of([("/Method", method(serve))])
    client = GrpcClientBench(listener, begin=BEGIN + settings(initial_window_size=0))
    client.call(b"")
    await client.hear()
    held = 4 * len(message_bytes(bytes(20_000))) + WAITING_STREAM_BYTES
    assert listener.unread.budget.held(client.connection)[0] == held
    assert not client.connection.does_not_read(1_000.0)
    assert client.connection.does_not_read(1_000.0 + LIMITS.unread_s + 1)


async def test_no_call_begins_while_answers_wait_for_windows() -> None:
    async def serve(request: Text, call: Any) -> Text:
        return Text(bytes(50_000))

    client = client_of(serve, begin=BEGIN + settings(initial_window_size=0), high_water_bytes=200_000)
    streams = [client.call(b"x") for _ in range(40)]
    await client.hear()
    held = client.connection.unread_bytes
    assert held <= FIRST_CALLS * (50_100 + WAITING_STREAM_BYTES)
    more = [client.call(b"x" * 1_000) for _ in range(40)]
    await client.hear()
    assert client.connection.unread_bytes == held
    assert not client.wire.is_paused
    client.say(settings(initial_window_size=1 << 20) + u32(WINDOW_UPDATE, 0, 100 << 20))
    await asyncio.sleep(0.05)
    for stream in streams + more:
        assert await client.status(stream) == (0, "")


async def test_a_method_waits_for_a_caller_that_does_not_read() -> None:
    served = Waiting()
    client = client_of(served)
    client.connection.pause_writing()
    stream = client.call(b"")
    await client.hear()
    assert served.begun == 0
    client.connection.resume_writing()
    served.go.set()
    await asyncio.sleep(0.05)
    assert await client.status(stream) == (0, "")


async def test_the_window_of_a_stream_that_nobody_reads_stays_closed() -> None:
    waiting = Waiting()
    client = client_of(waiting, takes_stream=True)
    stream = client.call(ended=False)
    messages = message_bytes(bytes(10_000)) * 60
    for at in range(0, len(messages), 16_000):
        client.say(data(stream, messages[at : at + 16_000]))
    opened = [each for each in await client.hear() if each.kind == WINDOW_UPDATE and each.stream == stream]
    assert len(messages) > STREAM_WINDOW_BYTES // 2
    assert opened == []


async def test_the_window_of_a_stream_is_opened_by_what_came_though_messages_come_in_pieces() -> None:
    taken = 0

    async def serve(requests: Any, call: Any) -> None:
        nonlocal taken
        async for _ in requests:
            taken += 1

    client = client_of(serve, takes_stream=True)
    stream, sent = client.call(ended=False), 0
    for message in (message_bytes(bytes(9_000)), message_bytes(b"")):
        for _ in range(300):
            for piece in filter(None, (message[:-5], message[-5:])):
                client.say(data(stream, piece))
                sent += len(piece)
            await asyncio.sleep(0)
    opened = [each for each in await client.hear() if each.kind == WINDOW_UPDATE and each.stream == stream]
    assert taken == 600
    assert sent - STREAM_WINDOW_BYTES // 2 < sum(each.number for each in opened) <= sent


async def test_a_stream_of_many_small_messages_lets_others_go_first() -> None:
    turns: list[int] = []
    held: list[int] = []

    async def serve(requests: Any, call: Any) -> None:
        async for _ in requests:
            turns[-1] += 1

    def turn() -> None:
        turns.append(0)
        held.append(listener.partial.budget.total)
        asyncio.get_running_loop().call_soon(turn)

    listener = listener_of([("/Method", method(serve, takes_stream=True))])
    turn()
    client = GrpcClientBench(listener)
    stream = client.call(ended=False)
    client.say(data(stream, message_bytes(b"") * 3_000))
    while sum(turns) < 3_000:
        await client.hear()
    assert max(turns) <= 2 * TAKEN_AT_ONCE
    assert max(held) > 2_000 * MESSAGE_COST_BYTES
    await client.hear()
    assert held[-1] == 0


# --- the connection -------------------------------------------------------------------------------------------------


async def test_a_listener_that_stops_lets_calls_end_then_cancels_them() -> None:
    serve = Waiting()
    listener = listener_of([("/Method", method(serve))])
    client = GrpcClientBench(listener)
    quick = client.call(b"")
    await client.hear()
    stopping = asyncio.create_task(listener.close(30.0))
    await client.hear()
    assert client.goaways() == [LAST_STREAM]
    serve.go.set()
    assert await client.status(quick) == (0, "")
    assert client.goaways() == [LAST_STREAM, quick]
    assert client.wire.closed
    client.connection.connection_lost(None)
    await stopping


async def test_calls_that_do_not_end_are_told_that_the_server_stops() -> None:
    serve = Waiting()
    listener = listener_of([("/Method", method(serve))])
    client = GrpcClientBench(listener)
    stream = client.call(b"")
    await client.hear()
    stopping = asyncio.create_task(listener.close(0.01))
    await asyncio.sleep(0.05)
    ended = await client.status(stream)
    assert ended is not None
    assert ended[0] == GrpcCode.UNAVAILABLE
    assert serve.cancelled == 1
    client.connection.connection_lost(None)
    await stopping


async def test_what_is_no_http2_is_told_so_and_closed() -> None:
    client = client_of(begin=b"GET / HTTP/1.1\r\n\r\n")
    assert client.wire.closed
    await client.hear()
    assert client.goaways() == [0]


async def test_tls_is_refused_where_there_is_none() -> None:
    client = client_of(begin=b"\x16\x03\x01\0\0")
    assert client.wire.closed
    assert client.wire.writes == []


async def test_a_silent_peer_with_calls_is_asked_for_a_sign_of_life() -> None:
    client = client_of(Waiting())
    client.call(b"")
    assert client.connection.check_alive()
    asked = [each for each in await client.hear() if each.kind == PING]
    assert len(asked) == 1
    client.say(frame(PING, 1, 0, asked[0].payload))
    assert client.connection.check_alive()
    assert not client.connection.check_alive()
