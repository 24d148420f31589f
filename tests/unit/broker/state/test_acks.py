"""Answers to sends wait for the disk, in order, and turn into refusals when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.base.clock import SystemClock
from mqspark.broker.state.acks import Acks
from mqspark.message import TRANSACTION_PREPARED_TYPE, Message
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, send_response_frame
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, MAX_HEADER_BYTES, Connection
from mqspark.protocol.session import Session
from mqspark.record.batchitems import encode_batch
from tests.unit.broker_kit import Bench, send_ext


def answers(session: Session) -> list[Command]:
    return Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES).receive_data(b"".join(session.take()))


def test_answers_are_released_up_to_a_position() -> None:
    acks, session = Acks(SystemClock()), Session(1, "127.0.0.1", 1, [])
    for n in range(3):
        acks.waiting.append((100 * (n + 1), session, send_response_frame(n, "ID", 0, n)))
    acks.release(199)
    assert [command.opaque for command in answers(session)] == [0]
    acks.release(300)
    assert [command.opaque for command in answers(session)] == [1, 2]
    assert len(acks) == 0


def test_a_failure_refuses_every_waiting_send_a_large_batch_included() -> None:
    acks, session = Acks(SystemClock()), Session(1, "127.0.0.1", 1, [])
    ids = ",".join(["7F00000100002A9F0000000000000000"] * 10_000)
    frame = send_response_frame(7, ids, 3, 40, "UNIQ")
    assert len(frame) > MAX_HEADER_BYTES
    acks.waiting.append((10, session, frame))
    acks.waiting.append((20, session, send_response_frame(8, "ID", 0, 1)))
    acks.fail("the store failed: EIO")
    batch, single = answers(session)
    assert (batch.code, batch.opaque, batch.remark) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        7,
        "the store failed: EIO",
    )
    assert batch.ext["msgId"] == ids
    assert (single.code, single.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, 8)


@pytest.mark.parametrize("kind", ["plain", "new topic", "delayed", "batch"])
@pytest.mark.parametrize(("wait", "answered"), [("false", True), ("true", False), (None, False)])
def test_a_sender_that_does_not_wait_is_answered_when_its_message_is_written(
    tmp_path: Path, kind: str, wait: str | None, answered: bool
) -> None:
    bench = Bench(tmp_path, sync=True)
    peer = bench.peer()
    if kind != "new topic":
        peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"first")
    properties = "" if wait is None else f"WAIT\x01{wait}\x02"
    body = b"body"
    if kind == "delayed":
        properties += "DELAY\x011\x02"
    if kind == "batch":
        body = encode_batch([Message("T", b"1"), Message("T", b"2")])
    ext = send_ext(
        "New" if kind == "new topic" else "T", properties=properties, m=str(kind == "batch").lower()
    )
    opaque = peer.give(RequestCode.SEND_MESSAGE_V2, ext, body)
    bench.broker.turn()  # does not sync
    assert [(answer.opaque, answer.code) for answer in peer.heard()] == [(opaque, 0)] * answered
    bench.flush()
    assert len(peer.heard()) == (not answered)


def test_a_message_of_a_sender_that_does_not_wait_outlives_the_process(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    peer = bench.peer()
    peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"first")
    peer.give(RequestCode.SEND_MESSAGE_V2, send_ext(properties="WAIT\x01false\x02"), b"second")
    bench.broker.turn()
    assert [answer.code for answer in peer.heard()] == [0]
    bench.crash()
    assert [message.body for message in bench.records("T")] == [b"first", b"second"]


def test_a_message_that_could_not_be_written_is_not_acknowledged() -> None:
    acks, session = Acks(SystemClock()), Session(1, "127.0.0.1", 1, [])
    acks.unsafe.append((10, session, send_response_frame(7, "ID", 0, 1)))
    acks.release_unsafe(written=False)
    assert answers(session) == []
    acks.release(10)
    assert [answer.code for answer in answers(session)] == [ResponseCode.SUCCESS]


@pytest.mark.parametrize("sys_flag", [0, TRANSACTION_PREPARED_TYPE])
def test_a_half_message_is_synced_before_its_sender_is_answered(tmp_path: Path, sys_flag: int) -> None:
    bench = Bench(tmp_path, sync=True)
    peer = bench.peer()
    peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"first")
    properties = "WAIT\x01false\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    peer.give(
        RequestCode.SEND_MESSAGE_V2,
        send_ext(properties=properties, f=str(sys_flag)),
        b"half",
    )
    bench.broker.turn()
    assert peer.heard() == []
    bench.flush()
    assert [answer.code for answer in peer.heard()] == [0]


def test_a_write_that_fails_refuses_a_sender_that_does_not_wait() -> None:
    acks, session = Acks(SystemClock()), Session(1, "127.0.0.1", 1, [])
    acks.unsafe.append((10, session, send_response_frame(7, "ID", 0, 1)))
    acks.fail("the store failed: EIO")
    acks.release_unsafe(written=True)
    assert [answer.code for answer in answers(session)] == [ResponseCode.SERVICE_NOT_AVAILABLE]
