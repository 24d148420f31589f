"""The lag of a group: a number for what exists, an error for what does not."""

from __future__ import annotations

import pytest

from mqspark import AdminClient, Message, Producer, PushConsumer
from mqspark.aio import AdminClient as AioAdminClient
from mqspark.errors import BrokerError, NoRoute
from mqspark.protocol.codes import ResponseCode
from mqspark.testing import Broker
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]


def test_a_group_that_does_not_exist(mq_broker: Broker, mq_topic: str) -> None:
    with AdminClient(mq_broker.namesrv) as admin, Producer(mq_broker.namesrv, group="p") as producer:
        producer.send(Message.of(mq_topic, "a"))
        for _ in range(2):  # asking makes nothing that would be found the second time
            for topic in (None, mq_topic):
                for ask in (admin.group_lag, admin.group_offsets):
                    with pytest.raises(BrokerError, match="there is no consumer group 'nobody'") as caught:
                        ask("nobody", topic)
                    assert caught.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_topic_that_does_not_exist(mq_broker: Broker) -> None:
    with AdminClient(mq_broker.namesrv) as admin:
        admin.create_group("somebody")
        with pytest.raises(NoRoute, match="'nothing'"):
            admin.group_lag("somebody", "nothing")


def test_a_group_that_has_consumed_nothing_yet(mq_broker: Broker, mq_topic: str) -> None:
    with AdminClient(mq_broker.namesrv) as admin, Producer(mq_broker.namesrv, group="p") as producer:
        for _ in range(3):
            producer.send(Message.of(mq_topic, "a"))
        admin.create_group("fresh")
        assert admin.group_lag("fresh") == 0
        assert admin.group_lag("fresh", mq_topic) == 3


async def test_a_group_that_has_only_consumers(mq_broker: Broker, mq_topic: str) -> None:
    async with AioAdminClient(mq_broker.namesrv) as admin:
        await admin.create_topic(mq_topic, queues=2)
        consumer = PushConsumer(mq_broker.namesrv, group="idle", listener=lambda message: None)
        consumer.subscribe(mq_topic)
        with consumer:
            broker = mq_broker.apps[0].parts.core
            assert broker is not None
            groups = broker.state.subscriptions
            await eventually_async(lambda: "idle" in groups, "the group is known")
            assert await admin.group_lag("idle", mq_topic) == 0
