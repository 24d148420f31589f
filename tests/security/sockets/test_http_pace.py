"""HTTP in tiny pieces: a read of 256 KB may have 40,000 chunks, or lines of a head. Nobody else shall wait for them."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from mqspark.testing import Broker
from mqspark_server.web import pacedhttp
from mqspark_server.web.httpguard import MAX_QUERY_FIELDS
from mqspark_server.web.pacedhttp import EVENTS, MAX_LINES
from tests.security.sockets.test_http import address, raw

PATH = "/api/v1/topics/attacked/messages"
HEAD = (
    f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
).encode()
CLOSING = b"Connection: close\r\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        yield running


def chunked(body: bytes) -> bytes:
    return b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The events that the parser was asked for between two turns."""
    asked: list[int] = []
    next_event, begin_turn = pacedhttp.PacedParser.next_event, pacedhttp.PacedParser.begin_turn

    def begin(parser: pacedhttp.PacedParser) -> None:
        asked.append(0)
        begin_turn(parser)

    def counted(parser: pacedhttp.PacedParser) -> object:
        asked[-1] += 1
        return next_event(parser)

    monkeypatch.setattr(pacedhttp.PacedParser, "begin_turn", begin)
    monkeypatch.setattr(pacedhttp.PacedParser, "next_event", counted)
    return asked


def test_chunks_of_one_byte_are_parsed_between_the_turns_of_others(broker: Broker, turns: list[int]) -> None:
    body = json.dumps({"body": "x" * 20_000}).encode()
    answer = raw(broker, HEAD + CLOSING + b"\r\n" + chunked(body))
    assert b" 201 " in answer.split(b"\r\n")[0], answer[:300]
    assert max(turns) <= EVENTS + 1
    assert len(turns) > len(body) // EVENTS


def test_requests_behind_such_a_body_are_answered_in_their_order(broker: Broker) -> None:
    bodies = [json.dumps({"body": str(number) * 3_000}).encode() for number in range(1, 4)]
    missing = b"GET /api/v1/nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = raw(broker, b"".join(HEAD + b"\r\n" + chunked(body) for body in bodies) + missing)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"201", b"201", b"201", b"404"]


def test_an_answer_before_the_end_of_such_a_body_ends_nothing_else(broker: Broker) -> None:
    refused = HEAD.replace(PATH.encode(), b"/api/v1/nowhere") + b"\r\n" + chunked(b"x" * 10_000)
    live = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(address(broker), timeout=60) as sock:
        sock.sendall(refused)
        sock.sendall(live)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(1 << 16):
                answer += data
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 405"))
    assert b" 200 OK" in raw(broker, live)


@pytest.mark.parametrize("place", ["a head", "behind the last chunk"])
def test_many_lines_are_refused_and_some_are_read(broker: Broker, place: str) -> None:
    for count, status in ((MAX_LINES - 10, b" 201 "), (20_000, b" 400 ")):
        lines = b"a:\r\n" * count
        body = b'c\r\n{"body":"x"}\r\n0\r\n'
        if place == "a head":
            request = HEAD + CLOSING + lines + b"\r\n" + body + b"\r\n"
        else:
            request = HEAD + CLOSING + b"\r\n" + body + lines + b"\r\n"
        assert status in raw(broker, request).split(b"\r\n")[0]


@pytest.mark.parametrize("path", ["/api/v1/topics", "/console/topics", "/health/live", "/subjects"])
def test_an_address_of_very_many_fields_is_refused_before_they_are_read(broker: Broker, path: str) -> None:
    for count, is_read in ((MAX_QUERY_FIELDS, True), (MAX_QUERY_FIELDS + 1, False), (30_000, False)):
        fields = "&".join(["a"] * count)
        request = f"GET {path}?{fields} HTTP/1.1\r\nHost: localhost\r\n".encode() + CLOSING + b"\r\n"
        status = raw(broker, request).split(b" ")[1]
        assert (status != b"414") is is_read
