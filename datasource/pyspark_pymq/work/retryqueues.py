"""Sends failed messages to the retry topic of their group, from the driver.

As RocketMQ's client does when a broker cannot take a message back by its offset: a new message in ``%RETRY%group``
with the body and the properties of the old one, the delay, and what the retry is of (DefaultMQPushConsumerImpl,
sendMessageBackAsNormalMessage). The message carries the reasons, and every RocketMQ broker accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mqspark.arrow.writing.pipeline import WORK_RETRIES, Pipeline, Send
from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.client.blocking import BlockingClient
from mqspark.errors import MQError, NoRoute
from mqspark.message import (
    COMPRESSED,
    COMPRESSION_SHIFT,
    CRC32,
    DELAY,
    FIRST_RETRY_LEVEL,
    KEYS,
    MAX_PROPERTIES_BYTES,
    MULTI_QUEUE_OFFSET,
    ORIGIN_MESSAGE_ID,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TAGS,
    TIMER_DELIVER_MS,
    TRANSACTION_BATCH,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    WAIT,
    MessageQueue,
    encode_stored_properties,
    retry_topic,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark.record.compression import ZLIB, compress
from pyspark_pymq.work.verdicts import (
    FAILED_AT_MS,
    FAILED_ATTEMPT,
    FAILED_BATCH,
    FAILED_QUERY,
    FAILED_TEXT,
    FAILED_TYPE,
    ORDER_KEY,
    RETRY_OF,
)

log = escaping("pyspark_pymq")

NEVER_DEAD = (1 << 31) - 1
"""The limit of attempts sent to the broker: the query decides which message is dead."""
_MOST_SENDS = 256
"""Sends that wait or are in flight. Bodies are bounded by the pipeline; this bounds their properties."""
_PLAIN_BYTES = 1 << 20
"""Larger bodies are compressed: they were perhaps sent compressed, and would exceed the broker's limit otherwise."""
_LEFT_BEHIND = frozenset(
    {
        DELAY,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        WAIT,
        CRC32,
        MULTI_QUEUE_OFFSET,
        PRODUCER_GROUP,
        TRANSACTION_PREPARED,
        TRANSACTION_BATCH,
        ORDER_KEY,
        RETRY_OF,
    }
)
"""Properties of one delivery, which are not copied to the next one. Properties of timers begin with one prefix."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A message that failed, and why."""

    message: Any
    """A Row of ``pyspark_pymq.work.outcome.MESSAGE``."""
    type: str
    text: str
    delay_ms: int | None
    order_key: str | None
    query: str
    batch: int
    at_ms: int


def properties_of(failed: Failed) -> dict[str, str]:
    """The properties of the retry or dead letter: the message's own, where it came from, and why it failed."""
    message = failed.message
    own = {
        name: value
        for name, value in (message.properties or {}).items()
        if name not in _LEFT_BEHIND and not name.startswith("TIMER_")
    }
    properties = own | {
        RETRY_TOPIC: message.topic,
        UNIQ_KEY: message.msgId,
        ORIGIN_MESSAGE_ID: own.get(ORIGIN_MESSAGE_ID) or message.msgId,
        FAILED_TYPE: failed.type,
        FAILED_TEXT: failed.text,
        FAILED_ATTEMPT: str(message.attempt),
        FAILED_QUERY: failed.query,
        FAILED_BATCH: str(failed.batch),
        FAILED_AT_MS: str(failed.at_ms),
    }
    for name, value in ((KEYS, message.key), (TAGS, message.tags)):
        if value:
            properties[name] = value
    return {name: value for name, value in properties.items() if value}


def _encoded(properties: Mapping[str, str]) -> str:
    """Shortens the error's text when the properties would be too long."""
    encoded = encode_stored_properties(properties)
    if len(encoded) > MAX_PROPERTIES_BYTES - 256:
        encoded = encode_stored_properties({**properties, FAILED_TEXT: "?"})
    return encoded.decode()


@dataclass(frozen=True, slots=True)
class SendBackTimes:
    retry_timeout_ms: int
    """How long a broker may be away, or too busy, before the query fails."""
    send_timeout_ms: int = 10_000


class RetryQueues:
    """The queues of the group's retry topic in the last known route. Raises NoRoute when there is none, after the
    client's ``retry_ms``."""

    def __init__(self, client: BlockingClient, group: str) -> None:
        self._client = client
        self._topic = retry_topic(group)
        self._addresses: dict[str, str] = {}
        self._queues: list[MessageQueue] = []
        self._turn = 0
        client.bridged(self._look_up)

    def next_of(self, broker: str) -> MessageQueue:
        """The next queue of that broker; of another broker if the route does not have it."""
        here = [queue for queue in self._queues if queue.broker_name == broker] or self._queues
        self._turn += 1
        return here[self._turn % len(here)]

    def address(self, queue: MessageQueue) -> str:
        return self._addresses[queue.broker_name]

    def instead_of(self, queue: MessageQueue) -> MessageQueue:
        return queue if queue in self._queues else self.next_of(queue.broker_name)

    def refresh(self, topic: str) -> None:
        """Keeps the known route when there is no new one. Never waits for a name server."""
        try:
            with self._client.without_retries():
                self._look_up()
        except MQError as error:
            log.info("the route of %s could not be refreshed: %s", topic, error)

    def _look_up(self) -> None:
        route = self._client.publish_route(self._topic, default_queues=1)
        queues = []
        for queue in route.publish_queues:
            address = route.master(queue.broker_name)
            if address is not None:
                self._addresses[queue.broker_name] = address
                queues.append(queue)
        if not queues:
            raise NoRoute(self._topic, "the retry topic of the group has no writable queue")
        self._queues = queues


class SendBack:
    """Many sends in flight. ``may_come_twice`` is called with places before any of them is sent again."""

    def __init__(
        self,
        client: BlockingClient,
        group: str,
        times: SendBackTimes,
        may_come_twice: Callable[[Iterable[str]], None],
    ) -> None:
        self._group = group
        self._queues = RetryQueues(client, group)
        self._pipeline = Pipeline(times, client, self._queues, WORK_RETRIES, may_come_twice=may_come_twice)

    def send(self, failures: Iterable[Failed]) -> None:
        """Returns when all messages are stored. Raises the error that prevented it."""
        for failed in failures:
            self._pipeline.add(self._send_of(failed))
            self._pipeline.throttle(_MOST_SENDS)
        self._pipeline.finish()

    def _send_of(self, failed: Failed) -> Send:
        message = failed.message
        properties = properties_of(failed) | {RETRY_OF: message.place}
        if failed.order_key is not None:
            properties[ORDER_KEY] = failed.order_key
        now_ms = wall_ms()
        if failed.delay_ms is None:
            properties[DELAY] = str(FIRST_RETRY_LEVEL + message.attempt - 1)
        elif failed.delay_ms:
            properties[TIMER_DELIVER_MS] = str(failed.at_ms + failed.delay_ms)
        # A broker takes no message without a body.
        body, sys_flag = bytes(message.value or b"\0"), 0
        if len(body) > _PLAIN_BYTES:
            body, sys_flag = compress(body, ZLIB), COMPRESSED | ZLIB << COMPRESSION_SHIFT
        queue = self._queues.next_of(message.broker)
        born = message.bornTimestamp
        header = SendMessageRequestHeaderV2.of(
            self._group,
            queue.topic,
            queue.queue_id,
            round(born.timestamp() * 1000) if born else now_ms,
            _encoded(properties),
            default_queues=1,
            reconsume_times=message.attempt,
            max_reconsume_times=NEVER_DEAD,
            sys_flag=sys_flag,
            bname=queue.broker_name,
        )
        return Send(queue, RequestCode.SEND_MESSAGE_V2, header, body, 1, mark=message.place)
