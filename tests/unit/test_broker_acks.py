"""Answers to sends wait for the disk, in order, and turn into refusals when it fails."""

from __future__ import annotations

from mqspark.broker.state.acks import Acks
from mqspark.clock import SystemClock
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, send_response_frame
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, MAX_HEADER_BYTES, Connection
from mqspark.protocol.session import Session


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
