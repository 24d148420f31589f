"""What a test needs of a topic, asked with the minimal client of remoting.py."""

import json

from tests.support.clusters import Cluster
from tests.support.remoting import (
    GET_MAX_OFFSET,
    UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
    UPDATE_AND_CREATE_TOPIC,
    ask,
    runtime_info,
    topic_fields,
)
from tests.support.waiting import eventually

QUEUES = 4


def create_topic(cluster: Cluster, topic: str, queues: int = QUEUES, *, attributes: str | None = None) -> str:
    """Create the topic on the broker; its route is known to the name server when this returns.

    ``attributes`` as mqadmin takes them: ``+message.type=FIFO``.
    """
    more = {} if attributes is None else {"attributes": attributes}
    reply = ask(cluster.broker, UPDATE_AND_CREATE_TOPIC, **topic_fields(topic, queues, **more))
    assert reply.code == 0, reply
    return topic


def create_group(cluster: Cluster, group: str, **settings: object) -> str:
    """``settings`` as subscriptionGroup.json spells them."""
    config = {"groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "retryQueueNums": 1}
    body = json.dumps({**config, **settings}).encode()
    reply = ask(cluster.broker, UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body)
    assert reply.code == 0, reply
    return group


def dispatched(cluster: Cluster) -> None:
    """Wait until the queues have all that was acknowledged: RocketMQ's follow its log a moment later."""
    if cluster.kind == "rocketmq":
        eventually(
            lambda: runtime_info(cluster.broker)["dispatchBehindBytes"] == "0",
            "the queues have the whole log",
        )


def max_offset(cluster: Cluster, topic: str, queue_id: int) -> int:
    """The end of the queue, all that was acknowledged included."""
    dispatched(cluster)
    reply = ask(cluster.broker, GET_MAX_OFFSET, topic=topic, queueId=queue_id)
    assert reply.code == 0, reply
    return int(reply.ext["offset"])


def message_count(cluster: Cluster, topic: str, queues: int = QUEUES) -> int:
    return sum(max_offset(cluster, topic, queue_id) for queue_id in range(queues))
