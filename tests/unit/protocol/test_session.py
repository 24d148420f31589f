"""A session queues frames and enters the outbox once per write."""

from __future__ import annotations

from mqspark.message import encode_host
from mqspark.protocol.session import Session


def test_outbox_holds_a_session_once() -> None:
    outbox: list[Session] = []
    session = Session(1, "10.0.0.9", 5000, outbox)
    session.send(b"a")
    session.send(b"b", memoryview(b"c"))
    assert outbox == [session]
    assert b"".join(session.take()) == b"abc"
    outbox.clear()
    session.send(b"d")
    assert outbox == [session]
    assert session.take() == [b"d"]
    assert session.take() == []


def test_identity() -> None:
    session = Session(7, "10.0.0.9", 5000, [], fast=True)
    assert (session.id, session.peer, session.fast) == (7, "10.0.0.9:5000", True)
    assert session.peer_host == encode_host("10.0.0.9", 5000)
    assert Session(8, "fd00::2", 1, []).peer == "[fd00::2]:1"
    assert "10.0.0.9:5000" in repr(session)


def test_a_closed_session_swallows_what_is_sent_and_tells_the_shell_once() -> None:
    outbox: list[Session] = []
    session = Session(1, "127.0.0.1", 1, outbox)
    session.send(b"last")
    session.close()
    session.send(b"late")
    session.close()
    assert outbox == [session]
    assert session.take() == [b"last"]
    assert not session.open
    idle = Session(2, "127.0.0.1", 2, outbox)
    idle.close()
    assert outbox == [session, idle]
    assert "closed" in repr(idle)


def test_opaques_count_up_and_wrap() -> None:
    session = Session(1, "127.0.0.1", 1, [])
    assert [session.next_opaque() for _ in range(3)] == [0, 1, 2]
    session._opaque = 0x7FFFFFFF
    assert [session.next_opaque(), session.next_opaque()] == [0x7FFFFFFF, 0]


def test_what_is_long_is_taken_in_parts() -> None:
    outbox: list[Session] = []
    session = Session(1, "127.0.0.1", 1, outbox)
    session.send(b"abc", b"", memoryview(b"defgh"))
    outbox.clear()
    assert b"".join(session.take_first(4)) == b"abcd"
    assert session.out_bytes == 4
    session.send(b"ij")
    assert outbox == [], "who took a part takes the rest"
    assert [b"".join(session.take_first(4)), b"".join(session.take_first(4))] == [b"efgh", b"ij"]
    assert (session.out, session.out_bytes) == ([], 0)
    session.send(b"k")
    assert outbox == [session]
