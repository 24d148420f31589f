"""The producer. Facts: RocketMQ's DefaultMQProducerImpl; reference client-semantics §2.

The usual send makes no task and no dict: the route, the connection and everything of the header that does not
change are looked up in one step, and the response settles the caller's future. Whatever is unusual (no
route yet, no connection, a large body to compress, a retry) goes through ``_dispatch``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import enum
import logging
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from mqspark import compression
from mqspark.client.autobatch import Accumulator, AutoBatch, can_batch
from mqspark.client.faults import SLOW_MS, FaultTable, QueueChooser
from mqspark.client.hooks import Interceptor, SendContext
from mqspark.client.hooks import call as call_hooks
from mqspark.client.instance import ClientInstance, ClientOptions
from mqspark.client.namespaces import Namespace
from mqspark.client.remoting import Channel, Outcome
from mqspark.client.requests import Requests, is_reply, reply_message
from mqspark.client.routes import TopicRoute
from mqspark.client.trace import MAX_TRACE_BYTES, Tracer, trace_group
from mqspark.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    ConnectionLost,
    InvalidMessage,
    MessageTooLarge,
    MQError,
    NoRoute,
    RequestTimeout,
)
from mqspark.message import (
    COMPRESSED,
    COMPRESSION_SHIFT,
    DEFAULT_TOPIC,
    DELAY,
    INSTANCE_ID,
    MAX_PROPERTIES_BYTES,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    TRANSACTION_PREPARED_TYPE,
    UNIQ_KEY,
    WAIT,
    Message,
    MessageExt,
    MessageQueue,
    QueueOffset,
    check_group,
    check_topic,
    decode_recall_handle,
    encode_properties,
    java_hash,
    new_unique_id,
)
from mqspark.protocol.bodies import ConsumerData, ProducerData
from mqspark.protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode
from mqspark.protocol.command import ONEWAY_FLAG, Command
from mqspark.protocol.headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageResponseHeader,
)
from mqspark.record import encode_batch

__all__ = ["Producer", "QueueSelector", "SendResult", "SendStatus"]

log = logging.getLogger(__name__)

P = TypeVar("P", bound="Producer")

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses the queue of a message among all writable ones of its topic."""

SettleFuture = asyncio.Future[Any] | concurrent.futures.Future[Any]
"""Gets a SendResult, or None once a oneway message is handed over."""


class SendStatus(enum.Enum):
    """What the broker could promise; the message is stored in all four cases."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message is now. For a batch: of its first message, and the ids of all, joined by commas."""

    status: SendStatus
    message_id: str
    """The unique id that consumers see as ``message_id``."""
    offset_message_id: str
    """The broker's own id: where in which CommitLog."""
    queue: MessageQueue
    queue_offset: QueueOffset
    recall_handle: str | None = None
    """For ``Producer.recall``, of a message that is to be delivered at a time; None when the broker recalls none."""

    @property
    def message_ids(self) -> list[str]:
        return self.message_id.split(",")


_STATUSES: dict[int, SendStatus] = {status.value: status for status in SendStatus}
_SEND_OK = SendStatus.SEND_OK

RETRYABLE = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Response codes after which another broker may do better (DefaultMQProducer.retryResponseCodes)."""

MIN_ATTEMPT_S = 0.02
"""With less time left than this another attempt could only double the message; timers fire some ms early, too."""

_TIMED = frozenset({DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS})

_COMPRESSED_ZLIB = COMPRESSED | compression.ZLIB << COMPRESSION_SHIFT
_THREAD_COMPRESS_BYTES = 128 * 1024
"""Compressing this much takes milliseconds, which the event loop should not spend."""

_PREFIX = struct.Struct(">ii")
_encode_json = msgspec.json.encode


_PLAIN, _BATCH, _REPLY = range(3)
_CODES = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
"""By kind."""


class _Target:
    """One queue as the hot path needs it."""

    __slots__ = ("broker_name", "channel", "heads", "queue", "shown")

    def __init__(
        self, queue: MessageQueue, shown: MessageQueue, group: str, default_queue_count: int
    ) -> None:
        self.queue = queue
        self.shown = shown
        """The queue by the program's name of the topic."""
        self.broker_name = queue.broker_name
        self.channel: Channel | None = None
        self.heads = tuple(
            self._head(group, default_queue_count, code, oneway=oneway)
            for code in _CODES
            for oneway in (False, True)
        )

    def _head(self, group: str, default_queue_count: int, code: RequestCode, *, oneway: bool) -> bytes:
        """Everything of SendMessageRequestHeaderV2 up to the born timestamp (``g``), whose quote is open."""
        fields = {
            "a": group,
            "b": self.queue.topic,
            "c": DEFAULT_TOPIC,
            "d": str(default_queue_count),
            "e": str(self.queue.queue_id),
            "j": "0",
            "k": "false",
            "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
            "n": self.broker_name,
        }
        return (
            f'{{"code":{int(code)},"flag":{ONEWAY_FLAG if oneway else 0},"language":"PYTHON",'
            f'"version":{CURRENT_VERSION},"serializeTypeCurrentRPC":"JSON",'
            f'"extFields":{_encode_json(fields).decode()[:-1]},"g":"'
        ).encode()


class _Topic:
    """A topic's queues and the turn they are at."""

    __slots__ = ("by_queue", "chooser", "queues", "targets")

    def __init__(self, chooser: QueueChooser) -> None:
        self.chooser = chooser
        self.queues: tuple[MessageQueue, ...] = ()
        self.targets: list[_Target] = []
        self.by_queue: dict[MessageQueue, _Target] = {}


class _Sending:
    """One message (or batch) on its way; called with what became of its latest attempt."""

    __slots__ = (
        "attempts",
        "body",
        "context",
        "deadline",
        "flag",
        "future",
        "kind",
        "message_id",
        "oneway",
        "pinned",
        "producer",
        "properties",
        "select",
        "size_bytes",
        "started",
        "sys_flag",
        "target",
        "timeout_ms",
        "topic",
    )

    producer: Producer
    future: SettleFuture
    topic: str
    body: bytes
    properties: bytes
    context: SendContext | None
    """What interceptors are told; None without any."""
    message_id: str
    flag: int
    sys_flag: int
    kind: int
    oneway: bool
    pinned: MessageQueue | None
    select: Callable[[Sequence[MessageQueue]], MessageQueue] | None
    target: _Target | None
    attempts: int
    size_bytes: int
    started: float
    deadline: float
    timeout_ms: int

    def transmit(self, target: _Target, channel: Channel, timeout_ms: int) -> None:
        opaque = channel.next_opaque()
        body = self.body
        header = b'%b%d","h":"%d","f":"%d","i":%b},"opaque":%d}' % (
            target.heads[2 * self.kind + self.oneway],
            time.time_ns() // 1_000_000,
            self.flag,
            self.sys_flag,
            self.properties,
            opaque,
        )
        length = len(header)
        if self.oneway:
            channel.write(_PREFIX.pack(4 + length + len(body), length), header, body)
            self.producer._finish(self, None, None)
        else:
            channel.submit(
                opaque, timeout_ms, self, _PREFIX.pack(4 + length + len(body), length), header, body
            )

    def __call__(self, outcome: Outcome) -> None:
        producer = self.producer
        target = self.target
        if target is None:
            raise AssertionError("an outcome before the first attempt")
        if isinstance(outcome, Command):
            status = _SEND_OK if outcome.code == 0 else _STATUSES.get(outcome.code)
            if status is not None:
                latency_ms = (producer._loop_time() - self.started) * 1000
                if latency_ms >= SLOW_MS:
                    producer._faults.record(target.broker_name, latency_ms)
                try:
                    header = outcome.header(SendMessageResponseHeader)
                except MQError as error:
                    producer._finish(self, None, error)
                    return
                context = self.context
                if context is not None:
                    context.broker_address = target.channel.address if target.channel else None
                    context.region = outcome.ext.get("MSG_REGION")
                    context.trace_on = outcome.ext.get("TRACE_ON") != "false"
                queue = target.shown
                if header.queue_id != queue.queue_id:
                    queue = queue._replace(queue_id=header.queue_id)
                producer._finish(
                    self,
                    SendResult(
                        status,
                        header.batch_uniq_id or self.message_id,
                        header.msg_id,
                        queue,
                        QueueOffset(header.queue_offset),
                        header.recall_handle,
                    ),
                    None,
                )
                return
            address = target.channel.address if target.channel else None
            producer._failed(self, BrokerError(outcome.code, outcome.remark, address=address))
        else:
            producer._failed(self, outcome)


class Producer:
    """Sends messages to the topics of a cluster.

    ``timeout_ms`` is the whole time a send may take, retries and connecting included. Raises what
    ``mqspark.errors`` lists under ClientError, and InvalidMessage for a message that no broker would take.
    Not thread-safe: use it on the loop it was started on (``mqspark.Producer`` is the one for threads).
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        send_timeout_ms: int = 3_000,
        retries: int = 2,
        compress_from_bytes: int = 4_096,
        compress_level: int = 5,
        max_message_bytes: int = 4 * 1024 * 1024,
        default_topic_queues: int = 4,
        max_in_flight: int = 1_024,
        max_in_flight_bytes: int = 100 * 1024 * 1024,
        auto_batch: AutoBatch | None = None,
        interceptors: Sequence[Interceptor] = (),
        trace: bool = False,
        trace_topic: str | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        """``default_topic_queues`` is how many queues a topic gets that sending to it creates.

        A send waits while ``max_in_flight`` messages or ``max_in_flight_bytes`` are not answered yet. With
        ``auto_batch`` messages that are sent one by one travel together, a little later. With
        ``trace`` each acknowledged send is recorded in ``trace_topic`` (RMQ_SYS_TRACE_TOPIC), for
        ``mqadmin queryMsgTraceById``.
        """
        self._options = options or ClientOptions()
        self._namespace = Namespace(self._options.namespace)
        group = self._namespace.wrap(group)
        check_group(group)
        if max_in_flight < 1 or max_in_flight_bytes < 1:
            raise ConfigError("the limits of what is in flight must be positive", key="max_in_flight")
        self.group = group
        self._faults: FaultTable
        self._instance: ClientInstance
        self._namesrv = namesrv
        self._send_timeout_ms = send_timeout_ms
        self._retries = retries
        self._compress_from_bytes = compress_from_bytes
        self._compress_level = compress_level
        self._max_message_bytes = max_message_bytes
        self._default_topic_queues = default_topic_queues
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._topics: dict[str, _Topic] = {}
        self._requests: Requests
        self._asked_topics: set[str] = set()
        self._running = False
        self._auto_batch = auto_batch
        self._accumulator: Accumulator | None = None
        self._interceptors = list(interceptors)
        self._trace = trace
        self._trace_topic = trace_topic
        self._tracer: Tracer | None = None
        self._loop: asyncio.AbstractEventLoop

    # --- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects when the first message is sent. Raises ConfigError without a name server."""
        if self._running:
            return
        self._loop = asyncio.get_running_loop()
        self._loop_time = self._loop.time
        self._instance = ClientInstance(self._namesrv, self._options)
        self._faults = FaultTable(self._instance.clock)
        self._instance.join(self)
        self._requests = Requests(self._instance.client_id)
        self._instance.listen(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._requests.replied)
        await self._instance.start()
        if self._trace:
            sender = Producer(
                self._namesrv,
                group=trace_group(self._namespace.unwrap(self.group), "PRODUCE"),
                send_timeout_ms=5_000,
                max_message_bytes=MAX_TRACE_BYTES,
                options=self._options,
            )
            self._tracer = Tracer(sender, self._trace_topic)
            await self._tracer.start()
            self._interceptors.append(self._tracer)
        if self._auto_batch is not None:
            self._accumulator = Accumulator(self._auto_batch, self._begin_together)
        self._running = True

    async def stop(self) -> None:
        """Waits for what is in flight (at most its timeout), then leaves."""
        if not self._running:
            return
        if self._accumulator is not None:
            self._accumulator.flush()
            self._accumulator = None
        self._running = False
        self._requests.abandon()
        if self._in_flight:
            self._idle = self._loop.create_future()
            await self._idle
        if self._tracer is not None:
            self._interceptors.remove(self._tracer)
            await self._tracer.stop()
            self._tracer = None
        await self._instance.stop()

    async def __aenter__(self: P) -> P:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- sending ----------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait for the broker's word.

        The queue is chosen in turn, or is ``queue``, or the one that ``hash_key`` always gets while the
        topic's queues stay the same, or what ``selector`` says. Only the first kind is tried again on other
        brokers.
        """
        return await (
            await self.send_async(
                message, queue=queue, hash_key=hash_key, selector=selector, timeout_ms=timeout_ms
            )
        )

    async def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """As ``send``, but gives the future as soon as there is room in flight.

        Messages to one queue are stored in the order in which they were sent only where each future was awaited
        before the next send: a retry, or a first connection, may let a later message pass.
        """
        while self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes:
            await self._room()
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self.begin(message, future, queue, hash_key, selector, timeout_ms)
        return future

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Returns once the message is handed to the connection; nobody will say whether it arrived."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.begin(message, future, queue, hash_key, selector, None, oneway=True)
        await future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """All of one topic to one queue, stored together, under one acknowledgement."""
        while self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes:
            await self._room()
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self.begin_batch(messages, future, queue, timeout_ms)
        return await future

    async def request(
        self,
        message: Message,
        timeout_ms: int = 3_000,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> MessageExt:
        """Send a message and wait for the reply of whoever consumes it (``reply``); ``timeout_ms`` is the time for
        both. Raises as ``send``, and RequestTimeout when the message is stored but no reply comes."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._request(message, timeout_ms, queue, hash_key, selector)
        except TimeoutError as error:
            if isinstance(error, RequestTimeout):
                raise
            raise RequestTimeout(f"a consumer of topic {message.topic}", timeout_ms) from None

    async def _request(
        self,
        message: Message,
        timeout_ms: int,
        queue: MessageQueue | None,
        hash_key: str | int | None,
        selector: QueueSelector | None,
    ) -> MessageExt:
        if not self._running:
            raise ClientError("the producer is not started, or already stopped")
        if message.topic not in self._asked_topics:
            # A reply may come over any broker of the topic's, and each has to know us by then.
            check_topic(message.topic)
            await self.queues(message.topic)
            await self._instance.heartbeat()
            self._asked_topics.add(message.topic)
        while self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes:
            await self._room()
        correlation_id, request, reply = self._requests.open(message, timeout_ms)
        sent: asyncio.Future[SendResult] = self._loop.create_future()
        try:
            self.begin(request, sent, queue, hash_key, selector, timeout_ms, alone=True)
            await asyncio.wait((sent, reply), return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                await sent
            return await reply
        finally:
            self._requests.close(correlation_id)
            if sent.done() and not sent.cancelled():
                sent.exception()  # with the reply here, it is of no interest
            else:
                sent.cancel()

    async def reply(
        self, request: MessageExt, body: bytes | str, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Answer a request that was consumed; returns when the client that waits has the reply. Raises InvalidMessage
        for what is no request, BrokerError when nobody waits any more."""
        message = reply_message(request, body)
        # The broker that has the request surely knows who sent it.
        queues = await self.queues(message.topic)
        near = next((queue for queue in queues if queue.broker_name == request.broker_name), None)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self.begin(message, future, near, timeout_ms=timeout_ms, alone=True)
        return await future

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a message to ``topic`` can go to now. Raises NoRoute."""
        check_topic(topic)
        found = await self._find_topic(self._namespace.wrap(topic))
        return self._namespace.unwrap_queues(found.queues)

    async def recall(self, topic: str, handle: str, *, timeout_ms: int | None = None) -> str:
        """Take a message back that is not delivered yet: the ``recall_handle`` of a timed one. Its message id.

        Raises InvalidMessage for a handle that is none, BrokerError when it is too late, or when the broker does not
        recall (recallMessageEnable).
        """
        check_topic(topic)
        _, broker_name, _, _ = decode_recall_handle(handle)
        if not self._running:
            raise ClientError("the producer is not started, or already stopped")
        wrapped = self._namespace.wrap(topic)
        address = (await self._instance.route(wrapped)).master(broker_name)
        if address is None:
            raise NoRoute(topic, f"broker {broker_name} has no address")
        response = await self._instance.remoting.invoke(
            address,
            RequestCode.RECALL_MESSAGE,
            RecallMessageRequestHeader(topic=wrapped, recall_handle=handle, producer_group=self.group),
            timeout_ms=timeout_ms or self._send_timeout_ms,
        )
        return response.header(RecallMessageResponseHeader).msg_id

    # --- what the facades use ---------------------------------------------------------------------------

    def begin(
        self,
        message: Message,
        future: SettleFuture,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
        *,
        oneway: bool = False,
        prepared: bool = False,
        alone: bool = False,
    ) -> None:
        """Start a send on this loop; ``future`` (of asyncio or concurrent.futures) gets the result or the
        error. ``prepared``: of a transaction, whose properties are set. ``alone``: in no automatic batch.

        Raises InvalidMessage, MessageTooLarge at once. Does not wait for room.
        """
        if (
            self._accumulator is not None
            and not (alone or oneway or prepared)
            and hash_key is None
            and selector is None
            and self._accumulate(message, future, queue, timeout_ms)
        ):
            return
        context = None
        if self._interceptors:
            context = self._intercept([message])
            message = context.messages[0]
        if self._namespace:
            message, queue, selector = (
                self._named(message),
                self._named_queue(queue),
                self._named_selector(selector),
            )
        topic = message.topic
        if topic not in self._topics:
            check_topic(topic)
            if topic in SEND_FORBIDDEN_TOPICS:
                raise InvalidMessage(
                    f"topic {topic} is the broker's own; nobody may send to it", field="topic"
                )
        body = message.body
        if not body:
            raise InvalidMessage("a message needs a body of at least one byte", field="body")
        if len(body) > self._max_message_bytes:
            raise MessageTooLarge("body", len(body), self._max_message_bytes)
        sending = _Sending()
        if message.properties:
            text, sending.message_id = _properties_text(message, prepared=prepared)
        else:
            sending.message_id = new_unique_id()
            text = f"UNIQ_KEY\x01{sending.message_id}\x02"
        sending.properties = _encode_json(text)
        sending.context = context
        sending.topic = topic
        sending.body = body
        sending.flag = message.flag
        sending.pinned = queue
        if hash_key is not None or selector is not None:
            sending.select = _selecting(message, hash_key, selector)
        else:
            sending.select = None
        sending.sys_flag = TRANSACTION_PREPARED_TYPE if prepared else 0
        kind = _REPLY if is_reply(message) else _PLAIN
        self._launch(sending, future, timeout_ms, kind=kind, oneway=oneway)

    def _accumulate(
        self, message: Message, future: SettleFuture, queue: MessageQueue | None, timeout_ms: int | None
    ) -> bool:
        """Leave it to the accumulator. Raises InvalidMessage for what would spoil a batch."""
        accumulator = self._accumulator
        if accumulator is None or len(message.body) >= self._compress_from_bytes or not can_batch(message):
            return False
        _check_batch([message])
        return bool(message.body) and accumulator.add(message, future, queue, timeout_ms)

    def _begin_together(
        self,
        messages: list[Message],
        future: asyncio.Future[Any],
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> None:
        """What was accumulated. Never raises: the future gets the error."""
        try:
            if len(messages) == 1:
                self.begin(messages[0], future, queue, timeout_ms=timeout_ms, alone=True)
            else:
                self.begin_batch(messages, future, queue, timeout_ms)
        except MQError as error:
            future.set_exception(error)

    def begin_batch(
        self,
        messages: Sequence[Message],
        future: SettleFuture,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """As ``begin`` for a batch."""
        context = None
        if self._interceptors and messages:
            context = self._intercept(messages)
            messages = context.messages
        if self._namespace:
            messages, queue = [self._named(message) for message in messages], self._named_queue(queue)
        topic = _check_batch(messages)
        ids = []
        items = []
        for message in messages:
            if not message.body:
                raise InvalidMessage("a message needs a body of at least one byte", field="body")
            unique_id = message.properties.get(UNIQ_KEY) or new_unique_id()
            ids.append(unique_id)
            items.append(
                Message(
                    topic=topic,
                    body=message.body,
                    properties={**message.properties, UNIQ_KEY: unique_id},
                    flag=message.flag,
                )
            )
        body = encode_batch(items)
        if len(body) > self._max_message_bytes:
            raise MessageTooLarge("batch", len(body), self._max_message_bytes)
        sending = _Sending()
        sending.message_id = ",".join(ids)
        # The batch as such carries no id: RocketMQ would write it over those of its messages.
        sending.properties = b'""'
        sending.context = context
        sending.topic = topic
        sending.body = body
        sending.flag = 0
        sending.pinned = queue
        sending.select = None
        sending.sys_flag = 0
        self._launch(sending, future, timeout_ms, kind=_BATCH, oneway=False)

    # --- Member -----------------------------------------------------------------------------------------

    def topics(self) -> Collection[str]:
        return self._topics.keys()

    def producer_data(self) -> ProducerData | None:
        return ProducerData(group_name=self.group)

    def consumer_data(self) -> ConsumerData | None:
        return None

    def route_changed(self, route: TopicRoute) -> None:
        topic = self._topics.get(route.topic)
        if topic is not None:
            self._adopt(topic, route)

    def group_changed(self) -> None:
        """Of no interest: a producer shares nothing with its group."""

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            log.info("a reply came for which nobody waits any more")
            return ResponseCode.SUCCESS, b"", None
        return ResponseCode.REQUEST_CODE_NOT_SUPPORTED, b"", f"a producer does not answer {request.code}"

    # --- within -----------------------------------------------------------------------------------------

    def _launch(
        self, sending: _Sending, future: SettleFuture, timeout_ms: int | None, *, kind: int, oneway: bool
    ) -> None:
        if not self._running:
            raise ClientError("the producer is not started, or already stopped")
        if timeout_ms is None:
            timeout_ms = self._send_timeout_ms
        size_bytes = len(sending.body)
        sending.producer = self
        sending.future = future
        sending.kind = kind
        sending.oneway = oneway
        sending.attempts = 0
        sending.target = None
        sending.size_bytes = size_bytes
        sending.timeout_ms = timeout_ms
        sending.started = started = self._loop_time()
        sending.deadline = started + timeout_ms / 1000
        self._in_flight += 1
        self._in_flight_bytes += size_bytes
        if size_bytes >= self._compress_from_bytes and kind != _BATCH:
            if size_bytes >= _THREAD_COMPRESS_BYTES:
                self._instance.spawn(self._compress_and_dispatch(sending))
                return
            self._put_compressed(sending, compression.compress(sending.body, level=self._compress_level))
        topic = self._topics.get(sending.topic)
        if topic is not None and topic.targets:
            try:
                target = self._choose(sending, topic)
            except MQError as error:
                self._finish(sending, None, error)
                return
            channel = target.channel
            if channel is not None and channel.open and channel.writable:
                sending.transmit(target, channel, timeout_ms)
                return
            self._instance.spawn(self._dispatch(sending, target))
        else:
            self._instance.spawn(self._dispatch(sending, None))

    def _intercept(self, messages: Sequence[Message]) -> SendContext:
        copies = [
            Message(topic=each.topic, body=each.body, properties=dict(each.properties), flag=each.flag)
            for each in messages
        ]
        context = SendContext(self._namespace.unwrap(self.group), copies)
        call_hooks([interceptor.before_send for interceptor in self._interceptors], context)
        return context

    def _named(self, message: Message) -> Message:
        """Under the cluster's names (DefaultMQProducerImpl: withNamespace, PROPERTY_INSTANCE_ID)."""
        return Message(
            topic=self._namespace.wrap(message.topic),
            body=message.body,
            properties={**message.properties, INSTANCE_ID: self._namespace.name},
            flag=message.flag,
        )

    def _named_queue(self, queue: MessageQueue | None) -> MessageQueue | None:
        return None if queue is None else self._namespace.wrap_queue(queue)

    def _named_selector(self, selector: QueueSelector | None) -> QueueSelector | None:
        """It sees and chooses queues by the program's names."""
        namespace = self._namespace
        if selector is None:
            return None
        return lambda queues, message: namespace.wrap_queue(
            selector(namespace.unwrap_queues(queues), message)
        )

    def _choose(self, sending: _Sending, topic: _Topic) -> _Target:
        """The queue of the next attempt."""
        last, sending.attempts = sending.target, sending.attempts + 1
        queue = sending.pinned
        if sending.select is not None:
            queue = sending.select(topic.queues)
        if queue is None:
            target = topic.chooser.choose(topic.targets, last.broker_name if last is not None else None)
        else:
            found = topic.by_queue.get(queue)
            if found is None:
                raise InvalidMessage(
                    f"{queue} is not a writable queue of topic {sending.topic}", field="queue"
                )
            target = found
        sending.target = target
        return target

    async def _compress_and_dispatch(self, sending: _Sending) -> None:
        body = await asyncio.to_thread(compression.compress, sending.body, level=self._compress_level)
        self._put_compressed(sending, body)
        await self._dispatch(sending, None)

    @staticmethod
    def _put_compressed(sending: _Sending, body: bytes) -> None:
        if len(body) < len(sending.body):
            sending.body = body
            sending.sys_flag |= _COMPRESSED_ZLIB

    async def _dispatch(self, sending: _Sending, target: _Target | None, *, refresh: bool = False) -> None:
        """An attempt that must wait for something first: a route, a connection, a peer that reads slowly."""
        try:
            async with asyncio.timeout_at(sending.deadline):
                if target is None:
                    target = self._choose(sending, await self._find_topic(sending.topic, refresh=refresh))
                address = self._instance.broker_address(target.broker_name)
                if address is None:
                    raise NoRoute(sending.topic, f"broker {target.broker_name} has no address")
                target.channel = channel = await self._instance.remoting.connect(address)
                await channel.drain()
            remaining_ms = int((sending.deadline - self._loop_time()) * 1000)
            sending.transmit(target, channel, max(1, remaining_ms))
        except ClientError as error:
            self._failed(sending, error)
        except TimeoutError:
            where = target.broker_name if target is not None else f"the route of topic {sending.topic}"
            self._finish(sending, None, RequestTimeout(where, sending.timeout_ms))
        except MQError as error:
            self._finish(sending, None, error)
        except asyncio.CancelledError:
            self._finish(sending, None, ConnectionLost(sending.topic, "the producer is stopped"))
            raise

    def _failed(self, sending: _Sending, error: ClientError) -> None:
        """An attempt failed: try another broker if that can help and there is time, else report."""
        target = sending.target
        lost = isinstance(error, (ConnectionLost, RequestTimeout))
        again = target is not None and (lost or (isinstance(error, BrokerError) and error.code in RETRYABLE))
        if again and target is not None:
            self._faults.record(target.broker_name, 0, isolate=True)
            if isinstance(error, BrokerError) and error.code == ResponseCode.GO_AWAY and target.channel:
                target.channel.retire()
        if (
            again
            and self._running
            and sending.pinned is None
            and sending.select is None
            and sending.attempts <= self._retries
            and self._loop_time() + MIN_ATTEMPT_S < sending.deadline
        ):
            log.debug("attempt %d to send to %s failed: %s", sending.attempts, sending.topic, error)
            self._instance.spawn(self._dispatch(sending, None, refresh=True))
        else:
            self._finish(sending, None, error)

    def _finish(self, sending: _Sending, result: SendResult | None, error: BaseException | None) -> None:
        """The last word on a send."""
        self._in_flight -= 1
        self._in_flight_bytes -= sending.size_bytes
        if self._waiting:
            self._wake_one()
        context = sending.context
        if context is not None:
            context.result, context.error = result, error
            context.elapsed_ms = int((self._loop_time() - sending.started) * 1000)
            call_hooks([interceptor.after_send for interceptor in reversed(self._interceptors)], context)
        future = sending.future
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
        if not self._in_flight and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def _room(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_one()
            raise

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _find_topic(self, name: str, *, refresh: bool = False) -> _Topic:
        topic = self._topics.get(name)
        if topic is not None and topic.targets and not refresh:
            return topic
        try:
            route = await self._instance.route(name, refresh=refresh)
        except NoRoute:
            if topic is not None and topic.targets:
                return topic
            route = await self._instance.template_route(name, self._default_topic_queues)
        except ClientError:
            if topic is not None and topic.targets:
                return topic  # the name servers are away; what was known may still do
            raise
        topic = self._topics.get(name)
        if topic is None:
            topic = _Topic(QueueChooser(self._faults, start=int.from_bytes(os.urandom(2), "big")))
            self._topics[name] = topic
        if topic.queues != route.publish_queues:
            self._adopt(topic, route)
        if not topic.targets:
            raise NoRoute(name, "none of its queues is writable")
        return topic

    def _adopt(self, topic: _Topic, route: TopicRoute) -> None:
        topic.queues = route.publish_queues
        topic.targets = [
            _Target(queue, self._namespace.unwrap_queue(queue), self.group, self._default_topic_queues)
            for queue in topic.queues
        ]
        topic.by_queue = {target.queue: target for target in topic.targets}


def _properties_text(message: Message, *, prepared: bool = False) -> tuple[str, str]:
    """The encoded properties with a unique id among them, and that id."""
    properties = message.properties
    if not prepared and TRANSACTION_PREPARED in properties:
        raise InvalidMessage(
            f"only a TransactionProducer sends messages with the property {TRANSACTION_PREPARED}; to forward a"
            " consumed message, leave it out",
            field=TRANSACTION_PREPARED,
        )
    text = encode_properties(properties).decode()
    if "\x01\x02" in text or "\x02\x01" in text or text[0] == "\x01":
        raise InvalidMessage("a property needs a name and a value", field="properties")
    unique_id = properties.get(UNIQ_KEY)
    if unique_id is None:
        unique_id = new_unique_id()
        text = f"{text}UNIQ_KEY\x01{unique_id}\x02"
    if len(text) > MAX_PROPERTIES_BYTES // 4 and len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge("properties", len(text.encode()), MAX_PROPERTIES_BYTES)
    return text, unique_id


def _check_batch(messages: Sequence[Message]) -> str:
    """The topic of the batch. Raises InvalidMessage."""
    if not messages:
        raise InvalidMessage("a batch needs at least one message", field="messages")
    topic, wait = messages[0].topic, messages[0].properties.get(WAIT, "true")
    check_topic(topic)
    if topic in SEND_FORBIDDEN_TOPICS or topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"batches cannot be sent to topic {topic}", field="topic")
    for message in messages:
        if message.topic != topic:
            raise InvalidMessage(f"a batch has one topic, not {topic} and {message.topic}", field="topic")
        if message.properties.get(WAIT, "true") != wait:
            raise InvalidMessage("the messages of a batch must agree on WAIT", field="WAIT")
        if not message.properties.keys().isdisjoint(_TIMED):
            raise InvalidMessage("a message with a delay cannot be sent in a batch", field="messages")
        if message.properties:
            _properties_text(message)
    return topic


def _selecting(
    message: Message, hash_key: str | int | None, selector: QueueSelector | None
) -> Callable[[Sequence[MessageQueue]], MessageQueue]:
    if selector is not None:
        chosen = selector
        return lambda queues: chosen(queues, message)
    number = abs(_java_hash_code(hash_key)) if hash_key is not None else 0
    return lambda queues: queues[number % len(queues)]


def _java_hash_code(key: str | int) -> int:
    """``hashCode`` of a String, or of a Long as long as the key needs one (SelectMessageQueueByHash)."""
    if isinstance(key, str):
        return java_hash(key)
    if -0x80000000 <= key <= 0x7FFFFFFF:
        return key
    folded = (key ^ (key >> 32)) & 0xFFFFFFFF
    return folded - (1 << 32) if folded & 0x80000000 else folded
