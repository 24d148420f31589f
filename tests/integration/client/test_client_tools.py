"""What tools ask of live consumers, through the broker and over real sockets: our client is on both ends."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from mqspark.aio import (
    AdminClient,
    ConsumeFromWhere,
    ConsumeStatus,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from mqspark.client.remoting.remoting import Remoting
from mqspark.errors import BrokerError
from mqspark.protocol.bodies.admin_bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from mqspark.protocol.bodies.body import decode_body, queue_of
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.testing import Broker
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Tool:
    """Asks the broker as ``mqadmin`` does."""

    def __init__(self, broker: Broker) -> None:
        self._address = broker.address
        self._remoting = Remoting(connect_timeout_ms=3_000, on_request=lambda channel, request: None)

    async def ask(self, code: int, **fields: str) -> bytes:
        answer = await self._remoting.invoke(self._address, code, fields, timeout_ms=20_000)
        return bytes(answer.body)

    async def close(self) -> None:
        await self._remoting.close()


@pytest.mark.parametrize("server_side", [True, False], ids=["noted", "pushed"])
@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
async def test_a_push_consumer_is_looked_into_and_moved(
    mq_topic: str, server_side: bool, ordered: bool
) -> None:
    seen: list[bytes] = []

    async def listen(message: MessageExt) -> ConsumeStatus | None:
        seen.append(message.body)
        if len(seen) > 1 and seen[-1] == b"4" == seen[-2]:
            raise ValueError("once is enough")
        return None

    settings = {"useServerSideResetOffset": server_side}
    with Broker(settings=settings) as broker:
        consumer = PushConsumer(
            broker.namesrv,
            group="tooled",
            listener=listen,
            consume_from=FIRST,
            ordered=ordered,
            concurrency=1,
            persist_interval_ms=100,
        )
        consumer.subscribe(mq_topic)
        tool = Tool(broker)
        async with (
            AdminClient(broker.namesrv) as admin,
            Producer(broker.namesrv, group="pg", send_timeout_ms=30_000) as producer,
        ):
            (place,) = (await admin.create_topic(mq_topic, queues=1)).publish_queues
            sent = [await producer.send(Message.of(mq_topic, b"%d" % number)) for number in range(5)]
            async with consumer:
                await eventually_async(lambda: consumer.progress().get(place) == 5, "all five")
                who = {"consumerGroup": "tooled", "clientId": consumer.client_id}

                body = await tool.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **who, jstackEnable="true")
                info = decode_body(ConsumerRunningInfo, body)
                assert info.properties["PROP_CONSUMEORDERLY"] == str(ordered).lower()
                queues = {queue_of(key): row for key, row in info.mq_table.items()}
                assert (queues[place].commit_offset, queues[place].locked) == (5, ordered)
                assert "thread" in (info.jstack or "")

                body = await tool.ask(
                    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=mq_topic, group="tooled"
                )
                (table,) = decode_body(GetConsumerStatusBody, body).consumer_table.values()
                assert {queue_of(key): offset for key, offset in table.items()} == {place: 5}

                direct = {**who, "msgId": sent[4].offset_message_id, "topic": mq_topic}
                body = await tool.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **direct)
                result = decode_body(ConsumeMessageDirectlyResult, body)
                assert (result.consume_result, result.order) == ("CR_THROW_EXCEPTION", ordered)
                assert "once is enough" in (result.remark or "")
                assert seen[5:] == [b"4"]
                assert consumer.progress()[place] == 5

                # Without a committed offset there is nothing to reset, for RocketMQ.
                deadline = time.monotonic() + 60
                while await admin.query_offset("tooled", place) != 5:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.01)
                del seen[:]
                body = await tool.ask(
                    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                    topic=mq_topic, group="tooled", timestamp="0", isForce="true",
                )  # fmt: skip
                assert list(decode_body(ResetOffsetBody, body).offset_table.values()) == [0]
                await eventually_async(lambda: len(seen) == 5, "all five again")
                await eventually_async(lambda: consumer.progress().get(place) == 5, "progress")
            assert seen == [b"%d" % number for number in range(5)]
            assert await admin.query_offset("tooled", place) == 5
            with pytest.raises(BrokerError) as gone:
                await tool.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **who)
            assert gone.value.code == ResponseCode.SYSTEM_ERROR
        await tool.close()


async def test_a_pull_consumer_is_looked_into(mq_topic: str) -> None:
    with Broker() as broker:
        tool = Tool(broker)
        async with (
            AdminClient(broker.namesrv) as admin,
            Producer(broker.namesrv, group="pg", send_timeout_ms=30_000) as producer,
        ):
            await admin.create_topic(mq_topic, queues=1)
            await producer.send(Message.of(mq_topic, b"x"))
        consumer = LitePullConsumer(broker.namesrv, group="pulled", consume_from=FIRST)
        consumer.subscribe(mq_topic)
        async with consumer:
            (message,) = await consumer.poll(30_000)
            await consumer.commit()
            client_id = consumer.client_id
            body = await tool.ask(
                RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="pulled", clientId=client_id
            )
            info = decode_body(ConsumerRunningInfo, body)
            assert [queue_of(key) for key in info.mq_table] == [MessageQueue(mq_topic, "dev", 0)]
            with pytest.raises(BrokerError) as refused:
                await tool.ask(
                    RequestCode.CONSUME_MESSAGE_DIRECTLY,
                    consumerGroup="pulled", clientId=client_id, msgId=message.offset_message_id,
                )  # fmt: skip
            assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await tool.close()


async def test_settings_without_a_meaning_are_accepted_as_in_a_file(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mqspark")
    with Broker() as broker:
        remoting = Remoting(connect_timeout_ms=3_000, on_request=lambda channel, request: None)

        async def change(address: str, code: int, body: bytes) -> tuple[int, str | None]:
            codes = ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION
            answer = await remoting.invoke(address, code, None, body, timeout_ms=20_000, accept=codes)
            return answer.code, answer.remark

        for address, code, own in (
            (broker.address, RequestCode.UPDATE_BROKER_CONFIG, b"traceOn"),
            (broker.namesrv, RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable"),
        ):
            caplog.clear()
            assert await change(address, code, own + b"=true\nuseEpollNativeSelector=true\n") == (0, None)
            assert [record.getMessage() for record in caplog.records] == [
                "settings without an effect here: useEpollNativeSelector"
            ]
            assert await change(address, code, own + b"e=true\n") == (
                ResponseCode.SYSTEM_ERROR,
                f"unknown setting '{own.decode()}e'; did you mean '{own.decode()}'?",
            )
            assert await change(address, code, b"aclEnable=true\n") == (
                ResponseCode.SYSTEM_ERROR,
                "aclEnable=true: RocketMQ 4's access control is not available (authenticationEnabled is)"
                " in this version",
            )
            assert await change(address, code, b"serverSocketBacklog=9\n") == (
                ResponseCode.NO_PERMISSION,
                "Can not update config serverSocketBacklog: it cannot change while the process runs",
            )
        await remoting.close()
