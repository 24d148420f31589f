"""A consumer's answer to a tool (GET_CONSUMER_RUNNING_INFO). Facts: RocketMQ's ConsumerRunningInfo."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from itertools import starmap

from mqspark.client.consumer.consumer import GroupConsumer
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.admin_bodies import ConsumeRates, ConsumerRunningInfo, ProcessQueueInfo
from mqspark.protocol.bodies.body import queue_key
from mqspark.protocol.codes import CURRENT_VERSION


def running_info(
    group: GroupConsumer,
    started_ms: int,
    queues: Mapping[MessageQueue, ProcessQueueInfo],
    *,
    ordered: bool = False,
    threads: int = 0,
    statistics: ConsumeStatistics | None = None,
) -> ConsumerRunningInfo:
    """Tools rely on the properties that begin with PROP."""
    settings = group.settings
    return ConsumerRunningInfo(
        properties={
            "PROP_NAMESERVER_ADDR": ";".join(group.instance.namesrv),
            "PROP_CONSUME_TYPE": settings.consume_type,
            "PROP_CONSUMEORDERLY": "true" if ordered else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(threads),
            "PROP_CLIENT_VERSION": str(CURRENT_VERSION),
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
            "consumerGroup": settings.group,
            "messageModel": settings.message_model,
            "consumeFromWhere": settings.consume_from,
            "allocateMessageQueueStrategy": settings.allocation.name,
            "pullBatchSize": str(settings.pull_batch_size),
        },
        subscription_set=list(group.subscriptions.values()),
        mq_table={queue_key(queue): info for queue, info in queues.items()},
        status_table={
            # Reported under the topic name that the program knows: the original one, also for retries.
            topic: statistics.status(group.namespace.unwrap(topic)) if statistics else ConsumeRates()
            for topic in group.subscriptions
        },
    )


def stacks() -> str:
    """The stack of every thread of this process."""
    return "\n".join(
        starmap(
            lambda ident, frame: f"thread {ident}\n{''.join(traceback.format_stack(frame))}",
            sys._current_frames().items(),
        )
    )
