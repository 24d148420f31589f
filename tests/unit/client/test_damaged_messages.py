"""Messages that do not match their CRC, or are no record at all: never handed out, and no queue stops for them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.base.logs import Outages
from mqspark.client.consumer.consumer_settings import GroupSettings
from mqspark.client.consumer.queuecalls import DAMAGE_PATIENCE_MS, QueueCalls
from mqspark.client.remoting.namespaces import Namespace
from mqspark.errors import InvalidMessage
from mqspark.message import MASTER_ID, MessageQueue
from mqspark.protocol.bodies.client_bodies import ConsumeType
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import PullMessageResponseHeader
from mqspark.record.compression import LIMITS
from mqspark.record.record import decode_pull, encode_record
from tests.support.clocks import ManualClock
from tests.unit.client.test_popped import popped

QUEUE = MessageQueue("T", "b-a", 0)


def records(count: int = 5) -> list[bytearray]:
    return [
        bytearray(encode_record(topic="T", body=b"%04d" % number * 20, queue_offset=number))
        for number in range(count)
    ]


def damaged(what: str, number: int) -> bytes:
    parts = records()
    part = parts[number]
    if what == "body":
        part[100] ^= 1
    elif what == "size":
        part[2] ^= 1
    elif what == "zeros":
        part[8:] = bytes(len(part) - 8)
    else:
        part[4] ^= 1
    return b"".join(parts)


WHAT = ["body", "size", "zeros", "magic"]


@pytest.mark.parametrize("what", WHAT)
def test_a_damaged_message_ends_what_is_taken_of_a_pull(what: str) -> None:
    messages, rest = decode_pull(damaged(what, 2))
    assert ([message.queue_offset for message in messages], rest) == ([0, 1], 2)
    with pytest.raises(InvalidMessage):
        decode_pull(damaged(what, 0))


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_it_can_be_left_out_alone(what: str, number: int) -> None:
    errors: list[InvalidMessage] = []
    messages, rest = decode_pull(damaged(what, number), damaged=errors)
    assert [message.queue_offset for message in messages] == [each for each in range(5) if each != number]
    assert (len(errors), rest) == (1, None)


def test_a_pop_leaves_it_to_be_redelivered(caplog: pytest.LogCaptureFixture) -> None:
    first, second = (
        bytearray(encode_record(topic="N%T", body=b"body", queue_id=0, queue_offset=each)) for each in (7, 8)
    )
    first[90] ^= 1
    found = popped(bytes(first + second), "0 0 7", "0 0 7,8")
    assert [one.receipt.offset for one in found] == [8]
    assert "does not match its CRC" in caplog.text


class Brokers:
    """An instance of a client, as far as a pull needs it, whose broker always sends the same bytes."""

    def __init__(self, body: bytes, next_offset: int) -> None:
        self.clock = ManualClock()
        self.remoting = self.silence = self
        self.outages = Outages(logging.getLogger(__name__))
        self.options = SimpleNamespace(inflate_limits=LIMITS)
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=next_offset, min_offset=0, max_offset=5
        )
        self._answer = encode_response(1, ResponseCode.SUCCESS, header, body)

    def uses(self, address: str) -> None: ...

    def broker_of(self, queue: MessageQueue) -> str:
        return queue.broker_name

    def replicas(self, broker: str) -> dict[int, str]:
        return {MASTER_ID: "127.0.0.1:1"}

    async def invoke(self, *_: Any, **__: Any) -> Command:
        (command,) = Connection().receive_data(self._answer)
        return command


async def test_a_broker_that_goes_on_sending_it_does_not_stop_the_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers: Any = Brokers(damaged("zeros", 0), 5)
    calls = QueueCalls(
        brokers, GroupSettings(group="G", consume_type=ConsumeType.CONSUME_PASSIVELY), Namespace("")
    )
    began_ms: int = brokers.clock.mono_ms
    pull: Any = {"commit_offset": 0, "broker_id": MASTER_ID, "lite": False}
    while brokers.clock.mono_ms < began_ms + DAMAGE_PATIENCE_MS:
        with pytest.raises(InvalidMessage):
            await calls.pull(QUEUE, 0, None, **pull)
        brokers.clock.advance(1_000)
    with caplog.at_level(logging.ERROR):
        found = await calls.pull(QUEUE, 0, None, **pull)
    assert ([message.queue_offset for message in found.messages], found.next_offset) == ([1, 2, 3, 4], 5)
    assert "is left out" in caplog.text
