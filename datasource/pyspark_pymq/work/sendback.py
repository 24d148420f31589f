"""Sends failed messages to the retry topic of their group, from the driver.

As RocketMQ's client does when a broker cannot take a message back by its offset: a new message in ``%RETRY%group``
with the body and the properties of the old one, the delay, and what the retry is of (DefaultMQPushConsumerImpl,
sendMessageBackAsNormalMessage). So the reasons travel with it, and any broker of RocketMQ takes it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.compression import ZLIB, compress
from mqspark.errors import BrokerError, ConnectionLost, MQError, NoRoute, RequestTimeout
from mqspark.message import (
    COMPRESSED,
    COMPRESSION_SHIFT,
    CRC32,
    DEFAULT_TOPIC,
    DELAY,
    KEYS,
    MAX_PROPERTIES_BYTES,
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
    encode_properties,
    retry_topic,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers import SendMessageRequestHeaderV2
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
from pyspark_pymq.writing.pipeline import RETRIED, WEAKLY_STORED

__all__ = ["Failed", "SendBack", "properties_of"]

FIRST_RETRY_LEVEL = 3
"""The delay level after the first attempt; each further attempt adds one (MQClientAPIImpl, SendMessageProcessor)."""
NEVER_DEAD = (1 << 31) - 1
"""The limit of attempts told to the broker: the query decides which message is dead."""
_IN_FLIGHT = 256
_IN_FLIGHT_BYTES = 8 << 20
_PLAIN_BYTES = 1 << 20
"""Larger bodies are compressed: they were perhaps sent compressed, and would exceed the broker's limit otherwise."""
_TIMEOUT_MS = 10_000
_PATIENCE_S = 60.0
"""How long a broker may refuse or be away before the query fails."""
_ACCEPTED = WEAKLY_STORED | {ResponseCode.SUCCESS}
_LEFT_BEHIND = frozenset(
    {
        DELAY,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        WAIT,
        CRC32,
        PRODUCER_GROUP,
        TRANSACTION_PREPARED,
        TRANSACTION_BATCH,
        ORDER_KEY,
        RETRY_OF,
    }
)
"""Properties of one delivery, which the next one does not have. Those of timers begin alike."""


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
    """The properties of the message when it comes again or is a dead letter: its own, where it came from, and why."""
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
    """The text of the error gives way when there is no room for all."""
    encoded = encode_properties(properties)
    if len(encoded) > MAX_PROPERTIES_BYTES - 256:
        encoded = encode_properties({**properties, FAILED_TEXT: "?"})
    return encoded.decode()


@dataclass(slots=True)
class _Returned:
    place: str
    broker: str
    header: SendMessageRequestHeaderV2
    body: bytes


class SendBack:
    """Many sends in flight. ``may_come_twice`` is called with places before any of them is sent again."""

    def __init__(
        self, client: BlockingClient, group: str, may_come_twice: Callable[[Iterable[str]], None]
    ) -> None:
        self._client = client
        self._group = group
        self._may_come_twice = may_come_twice
        self._under_way: dict[tuple[BlockingConnection, int], _Returned] = {}
        self._bytes = 0
        self._turn = 0
        self._failing_since: float | None = None
        self._refresh()

    def send(self, failures: Iterable[Failed]) -> int:
        """Returns the number of messages when all are stored. Raises the error that prevented it."""
        count = 0
        for failed in failures:
            self._start([self._send_of(failed)])
            count += 1
            while len(self._under_way) >= _IN_FLIGHT or self._bytes > _IN_FLIGHT_BYTES:
                self._receive()
        while self._under_way:
            self._receive()
        return count

    def _refresh(self) -> None:
        """Raises NoRoute."""
        topic = retry_topic(self._group)
        self._route = self._client.publish_route(topic, default_queues=1)
        self._queues = list(self._route.publish_queues)
        if not self._queues:
            raise NoRoute(topic, "the retry topic of the group has no writable queue")

    def _send_of(self, failed: Failed) -> _Returned:
        message = failed.message
        properties = properties_of(failed) | {RETRY_OF: message.place}
        if failed.order_key is not None:
            properties[ORDER_KEY] = failed.order_key
        now_ms = time.time_ns() // 1_000_000
        if failed.delay_ms is None:
            properties[DELAY] = str(FIRST_RETRY_LEVEL + message.attempt - 1)
        elif failed.delay_ms:
            properties[TIMER_DELIVER_MS] = str(failed.at_ms + failed.delay_ms)
        # A broker takes no message without a body.
        body, sys_flag = bytes(message.value or b"\0"), 0
        if len(body) > _PLAIN_BYTES:
            body, sys_flag = compress(body, ZLIB), COMPRESSED | ZLIB << COMPRESSION_SHIFT
        header = SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=retry_topic(self._group),
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp=round(message.bornTimestamp.timestamp() * 1000)
            if message.bornTimestamp
            else now_ms,
            flag=0,
            properties=_encoded(properties),
            reconsume_times=message.attempt,
            unit_mode=False,
            max_reconsume_times=NEVER_DEAD,
            batch=False,
        )
        return _Returned(message.place, message.broker, header, body)

    def _start(self, sends: Iterable[_Returned]) -> None:
        """Send to the broker that the message came from, where it can be."""
        waiting = deque(sends)
        while waiting:
            send = waiting[0]
            here = [queue for queue in self._queues if queue.broker_name == send.broker] or self._queues
            self._turn += 1
            queue = here[self._turn % len(here)]
            address = self._route.master(queue.broker_name)
            if address is None:
                self._pause(NoRoute(queue.topic, f"broker {queue.broker_name} has no address"))
                continue
            header = send.header
            header.queue_id, header.bname = queue.queue_id, queue.broker_name
            try:
                connection = self._client.connection(address)
                opaque = connection.send(
                    RequestCode.SEND_MESSAGE_V2, header, send.body, timeout_ms=_TIMEOUT_MS
                )
            except ConnectionLost as error:
                waiting += self._lost(address)
                self._may_come_twice([each.place for each in waiting])
                self._pause(error)
                continue
            self._under_way[connection, opaque] = send
            self._bytes += len(send.body)
            waiting.popleft()

    def _lost(self, address: str) -> list[_Returned]:
        """What was under way on a lost connection."""
        gone = [key for key in self._under_way if key[0].address == address]
        self._client.forget(address)
        return [self._taken(key) for key in gone]

    def _taken(self, key: tuple[BlockingConnection, int]) -> _Returned:
        send = self._under_way.pop(key)
        self._bytes -= len(send.body)
        return send

    def _receive(self) -> None:
        connection = next(iter(self._under_way))[0]
        here = [opaque for other, opaque in self._under_way if other is connection]
        try:
            answers = connection.poll(here, _TIMEOUT_MS / 1000)
            if not answers:
                raise RequestTimeout(connection.address, _TIMEOUT_MS)
        except (ConnectionLost, RequestTimeout) as error:
            again = self._lost(connection.address)
            self._may_come_twice([each.place for each in again])
            self._pause(error)
            self._start(again)
            return
        for opaque, answer in answers.items():
            send = self._taken((connection, opaque))
            if answer.code in _ACCEPTED:
                self._failing_since = None
                continue
            failure = BrokerError(answer.code, answer.remark, address=connection.address)
            if answer.code not in RETRIED:
                raise failure
            self._pause(failure)
            self._start([send])

    def _pause(self, error: MQError) -> None:
        """Before another try. Raises ``error`` when there were enough."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > _PATIENCE_S:
            raise error
        time.sleep(0.2)
        try:
            self._refresh()
        except (NoRoute, ConnectionLost, RequestTimeout) as failure:
            if now - self._failing_since > _PATIENCE_S:
                raise failure from error
