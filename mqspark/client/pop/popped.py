"""The result of a pop: messages, their place in the store, and the receipts that acknowledge them. Facts:
RocketMQ's MQClientAPIImpl.processPopResponse, ExtraInfoUtil."""

from __future__ import annotations

from typing import NamedTuple

from mqspark.base.logs import escaping
from mqspark.client.remoting.namespaces import Namespace
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.message import FIRST_POP_TIME, POP_CK, MessageExt, MessageQueue
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import PopMessageResponseHeader
from mqspark.protocol.receipts import (
    Receipt,
    normal_topic,
    parse_message_offsets,
    parse_order_counts,
    parse_receipt,
    parse_start_offsets,
    real_topic,
    retry_flag,
)
from mqspark.record.compression import LIMITS, InflateLimits
from mqspark.record.record import decode_pull

log = escaping(__name__)


class Popped(NamedTuple):
    """A message that is with the listener or waits for it."""

    message: MessageExt
    topic: str
    """The topic where it is stored: the original one or a retry topic."""
    receipt: Receipt
    deadline: float
    """When the receipt expires, in seconds of the client's monotonic time, because the broker's may differ."""


def popped_of(
    response: Command,
    queue: MessageQueue,
    group: str,
    namespace: Namespace,
    limits: InflateLimits = LIMITS,
    *,
    arrived_s: float,
) -> list[Popped]:
    """The messages of an answer to a pop from ``queue``, with their receipts. If inner batches decompress to too
    much at once, the rest is left to be redelivered, and so are damaged messages. ``arrived_s`` is the client's
    monotonic time. Raises ProtocolError."""
    answer = response.header(PopMessageResponseHeader)
    starts = parse_start_offsets(answer.start_offset_info)
    offsets = parse_message_offsets(answer.msg_offset_info)
    counts = parse_order_counts(answer.order_count_info)
    works = []
    damaged: list[InvalidMessage] = []
    messages, rest = decode_pull(response.body, broker_name=queue.broker_name, limits=limits, damaged=damaged)
    for error in damaged:
        log.error("a pop of %s: %s; it is left to be redelivered", queue, error)
    if rest is not None:
        log.warning(
            "a pop of %s decompresses to too much at once: messages from offset %d on will be redelivered",
            queue,
            rest,
        )
    for message in messages:
        is_queues = queue.queue_id in (-1, message.queue_id) or message.topic != queue.topic
        if queue.topic not in (normal_topic(message.topic, group), message.topic) or not is_queues:
            raise ProtocolError(
                f"a pop of {queue} brings a message of queue {message.queue_id} of topic {message.topic}"
            )
        given = message.properties.get(POP_CK)
        if given is not None:
            receipt = parse_receipt(given)
        else:
            flag = retry_flag(message.topic, group)
            place = flag, message.queue_id
            if place not in starts or message.queue_offset not in offsets.get(place, ()):
                raise ProtocolError(f"a pop of {queue} has no receipt for {message.message_id}")
            receipt = Receipt(
                starts[place],
                answer.pop_time,
                answer.invisible_time,
                answer.revive_qid,
                flag,
                queue.broker_name,
                message.queue_id,
                message.queue_offset,
            )
            message.properties[POP_CK] = receipt.encode()
            if receipt.is_order:  # ordered messages are retried in place: their records have no counts
                message.reconsume_times = counts.of(message.queue_id, message.queue_offset)
        message.properties.setdefault(FIRST_POP_TIME, str(answer.pop_time))
        topic = normal_topic(message.topic, group)
        message.topic = namespace.unwrap(topic)
        stored = real_topic(topic, group, receipt.retry)
        works.append(Popped(message, stored, receipt, arrived_s + receipt.invisible_time_ms / 1000))
    return works
