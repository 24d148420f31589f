"""What a consumer makes of the answer to a pop."""

from __future__ import annotations

import time

import pytest

from mqspark.client.pop.popped import Popped, popped_of
from mqspark.client.remoting.namespaces import Namespace
from mqspark.errors import ProtocolError
from mqspark.message import MessageQueue
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import PopMessageResponseHeader
from mqspark.record.record import encode_record

QUEUE = MessageQueue("N%T", "b-a", -1)


def answer(body: bytes, starts: str, offsets: str) -> Command:
    header = PopMessageResponseHeader(
        pop_time=1_000,
        invisible_time=60_000,
        revive_qid=3,
        rest_num=0,
        start_offset_info=starts,
        msg_offset_info=offsets,
    )
    (command,) = Connection().receive_data(encode_response(1, 0, header, body))
    return command


def record(topic: str, queue_id: int, offset: int, **properties: str) -> bytes:
    return encode_record(
        topic=topic, body=b"x", queue_id=queue_id, queue_offset=offset, properties=properties
    )


def popped(body: bytes, starts: str, offsets: str) -> list[Popped]:
    return popped_of(answer(body, starts, offsets), QUEUE, "G", Namespace("N"), arrived_s=time.monotonic())


def test_messages_get_their_receipts() -> None:
    body = record("N%T", 0, 7) + record("N%T", 1, 5) + record("N%T", 1, 9)
    found = popped(body, "0 0 7;0 1 5", "0 0 7;0 1 5,9")
    assert [one.receipt.encode() for one in found] == [
        "7 1000 60000 3 0 b-a 0 7",
        "5 1000 60000 3 0 b-a 1 5",
        "5 1000 60000 3 0 b-a 1 9",
    ]
    for one in found:
        assert (one.topic, one.message.topic) == ("N%T", "T")
        assert one.message.properties == {"POP_CK": one.receipt.encode(), "1ST_POP_TIME": "1000"}
        assert one.message.broker_name == "b-a"


def test_retries_bring_theirs() -> None:
    given = "4 1000 60000 3 1 b-a 0 4"
    body = record("N%T", 0, 4, POP_CK=given, **{"1ST_POP_TIME": "5"})
    (one,) = popped(body, "1 0 4", "1 0 4")
    assert (one.topic, one.message.topic) == ("%RETRY%G_N%T", "T")
    assert one.receipt.encode() == given
    assert one.message.properties["1ST_POP_TIME"] == "5"


def test_a_broker_may_leave_retries_under_their_own_name() -> None:
    """popResponseReturnActualRetryTopic."""
    (one,) = popped(record("%RETRY%G+N%T", 0, 4), "2 0 4", "2 0 4")
    assert (one.topic, one.message.topic, one.receipt.retry) == ("%RETRY%G+N%T", "T", "2")


@pytest.mark.parametrize(
    ("starts", "offsets"),
    [
        ("0 0 7", "0 0 8"),
        ("", "0 0 7"),
        ("0 0 7", ""),
        ("0 1 7", "0 0 7"),
        ("x", "0 0 7"),
        ("0 0 7", "0 0 a"),
    ],
)
def test_an_answer_that_does_not_say_what_is_what(starts: str, offsets: str) -> None:
    with pytest.raises(ProtocolError):
        popped(record("N%T", 0, 7), starts, offsets)
