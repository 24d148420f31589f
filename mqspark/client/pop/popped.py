"""The result of a pop: messages, their place in the store, and the receipts that acknowledge them. Facts:
RocketMQ's MQClientAPIImpl.processPopResponse, ExtraInfoUtil."""

from __future__ import annotations

from collections.abc import Collection
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


class PoppedFrom(NamedTuple):
    """What the answer to a pop says of all its messages of one queue."""

    topic: str
    """As the group reads it."""
    stored_in: str
    """The queue's own: the same, or a retry topic."""
    pop: Receipt | None
    """Without an offset; None: the answer has no receipts for them."""
    offsets: Collection[int]
    """Those of its messages."""


class PopAnswer:
    """The answer to a pop from ``queue``. What it says of a queue is put together once for all messages of it."""

    def __init__(self, response: Command, queue: MessageQueue, group: str) -> None:
        """Raises ProtocolError."""
        self.body = response.body
        self._queue, self._group = queue, group
        self._header = header = response.header(PopMessageResponseHeader)
        self.pop_time_ms = header.pop_time
        self._starts = parse_start_offsets(header.start_offset_info)
        self._offsets = parse_message_offsets(header.msg_offset_info)
        self._counts = parse_order_counts(header.order_count_info)
        self._known: dict[tuple[str, int], PoppedFrom] = {}

    def messages(self, begin: int = 0, limits: InflateLimits = LIMITS) -> list[MessageExt]:
        """Those of the records that begin there in the body. If inner batches decompress to too much at once, the rest
        is left to be redelivered, and so are damaged messages."""
        queue, damaged = self._queue, list[InvalidMessage]()
        body = self.body[begin:] if begin else self.body
        messages, rest = decode_pull(body, broker_name=queue.broker_name, limits=limits, damaged=damaged)
        for error in damaged:
            log.error("a pop of %s: %s; it is left to be redelivered", queue, error)
        if rest is not None:
            log.warning(
                "a pop of %s decompresses to too much at once: messages from offset %d on will be redelivered",
                queue,
                rest,
            )
        return messages

    def origin(self, message: MessageExt) -> PoppedFrom:
        """Raises ProtocolError for a message that was not asked for."""
        return self.origin_of(message.topic, message.queue_id)

    def origin_of(self, stored_in: str, queue_id: int) -> PoppedFrom:
        """Raises ProtocolError for a queue that was not asked for."""
        key = stored_in, queue_id
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._origin(*key)
        return known

    def _origin(self, stored_in: str, queue_id: int) -> PoppedFrom:
        queue, group, header = self._queue, self._group, self._header
        topic = normal_topic(stored_in, group)
        is_queues = queue.queue_id in (-1, queue_id) or stored_in != queue.topic
        if queue.topic not in (topic, stored_in) or not is_queues:
            raise ProtocolError(f"a pop of {queue} brings a message of queue {queue_id} of topic {stored_in}")
        flag = retry_flag(stored_in, group)
        start = self._starts.get((flag, queue_id))
        pop = None
        if start is not None:
            pop = Receipt(
                start,
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                flag,
                queue.broker_name,
                queue_id,
            )
        return PoppedFrom(topic, real_topic(topic, group, flag), pop, self._offsets.get((flag, queue_id), ()))

    def pop_of(self, message: MessageExt, origin: PoppedFrom) -> Receipt:
        """What the receipt of a message that brings none is but for the offset; how often an ordered message was
        delivered is set. Raises ProtocolError."""
        pop = origin.pop
        if pop is None or message.queue_offset not in origin.offsets:
            raise ProtocolError(f"a pop of {self._queue} has no receipt for {message.message_id}")
        if pop.is_order:  # ordered messages are retried in place: their records have no counts
            message.reconsume_times = self._counts.of(message.queue_id, message.queue_offset)
        return pop


def popped_of(
    response: Command,
    queue: MessageQueue,
    group: str,
    namespace: Namespace,
    limits: InflateLimits = LIMITS,
    *,
    arrived_s: float,
) -> list[Popped]:
    """The messages of an answer to a pop from ``queue``, with their receipts. ``arrived_s`` is the client's monotonic
    time. Raises ProtocolError."""
    answer = PopAnswer(response, queue, group)
    pop_time = str(answer.pop_time_ms)
    works = []
    for message in answer.messages(limits=limits):
        origin = answer.origin(message)
        stored_in, properties = origin.stored_in, message.properties
        given = properties.get(POP_CK)
        if given is not None:
            receipt = parse_receipt(given)
            stored_in = real_topic(origin.topic, group, receipt.retry)
        else:
            receipt = answer.pop_of(message, origin)._replace(offset=message.queue_offset)
            properties[POP_CK] = receipt.encode()
        properties.setdefault(FIRST_POP_TIME, pop_time)
        message.topic = namespace.unwrap(origin.topic)
        works.append(Popped(message, stored_in, receipt, arrived_s + receipt.invisible_time_ms / 1000))
    return works
