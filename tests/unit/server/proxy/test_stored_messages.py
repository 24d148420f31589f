"""Stored messages for clients of gRPC, whatever a producer of remoting has said of them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from mqspark.message import TIMER_DELAY_SEC, TIMER_DELIVER_MS, MessageExt
from mqspark.record.record import PackedMessage
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.grpcmessages import apart, stored_message
from mqspark_server.proxy.content.instants import FIRST_S, LAST_S, millis_of, set_instant
from mqspark_server.proxy.grpcstatus import GrpcRefusal

LEAST, MOST = -(1 << 63), (1 << 63) - 1


def stored(kind: type[MessageExt] = MessageExt, **more: Any) -> MessageExt:
    given: dict[str, Any] = {
        "topic": "Orders",
        "body": b"x",
        "queue_id": 0,
        "queue_offset": 0,
        "physical_offset": 0,
        "sys_flag": 0,
        "born_timestamp_ms": 0,
        "born_host": "127.0.0.1:1",
        "store_timestamp_ms": 0,
        "store_host": "127.0.0.1:2",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body_crc": 0,
        "store_size_bytes": 0,
        "offset_message_id": "",
    }
    return kind(**given | more)


@pytest.mark.parametrize("number", [LEAST, -1, 0, 1 << 62, MOST])
def test_times_that_protobuf_does_not_have_are_the_nearest(number: int) -> None:
    made = stored_message(stored(born_timestamp_ms=number, store_timestamp_ms=number), 0)
    times = {
        made.system_properties.born_timestamp.ToMilliseconds(),
        made.system_properties.store_timestamp.ToMilliseconds(),
    }
    assert times == {min(max(number, FIRST_S * 1000), LAST_S * 1000)}


@pytest.mark.parametrize("name", [TIMER_DELIVER_MS, TIMER_DELAY_SEC])
def test_a_delivery_beyond_all_years_is_the_last_instant(name: str) -> None:
    made = stored_message(stored(properties={name: str(10**15)}), 1_000)
    assert made.system_properties.delivery_timestamp.seconds == LAST_S


@pytest.mark.parametrize("times", [0, (1 << 31) - 1])
def test_attempts_stay_a_number_of_32_bits(times: int) -> None:
    made = stored_message(stored(reconsume_times=times), 0)
    assert made.system_properties.delivery_attempt == min(times + 1, (1 << 31) - 1)


@pytest.mark.parametrize("millis", [FIRST_S * 1000, -1, 0, 1, LAST_S * 1000])
def test_instants_are_milliseconds(millis: int) -> None:
    given = Timestamp()
    set_instant(given, millis)
    assert millis_of(given) == millis


def test_what_is_no_instant_has_the_code_that_fits() -> None:
    given = Timestamp(nanos=-1)
    with pytest.raises(GrpcRefusal) as refused:
        millis_of(given, pb.ILLEGAL_DELIVERY_TIME)
    assert refused.value.code == pb.ILLEGAL_DELIVERY_TIME


def test_a_large_packed_body_is_inflated_in_a_thread() -> None:
    seen: list[bool] = []

    def make() -> pb.Message:
        seen.append(threading.current_thread() is threading.main_thread())
        return pb.Message()

    async def run() -> None:
        for size in (10, 100_000):
            await apart(stored(PackedMessage, body=bytes(size)), make)
        await apart(stored(body=bytes(100_000)), make)

    asyncio.run(run())
    assert seen == [True, False, True]
