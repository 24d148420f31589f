"""The public asyncio producer. Facts: RocketMQ's DefaultMQProducerImpl."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Sequence
from typing import Unpack

import msgspec

from mqspark.base.logs import escaping
from mqspark.base.propertystring import item
from mqspark.base.valuetypes import NonNegativeInt, checked
from mqspark.client.delivery.results import SendResult, SettleFuture
from mqspark.client.hooks.hooks import RecallContext, SendContext
from mqspark.client.hooks.hooks import call as call_hooks
from mqspark.client.hooks.trace import MAX_TRACE_BYTES, Tracer, trace_group
from mqspark.client.life import ending
from mqspark.client.life.ending import LoopEnd, Pending
from mqspark.client.life.lifecycle import Lifecycle, Tasks
from mqspark.client.producer.accumulator import Accumulator, Together
from mqspark.client.producer.faults import FaultTable
from mqspark.client.producer.outgoing import (
    PackedBatch,
    QueueSelector,
    as_it_is,
    batch_of,
    body_bytes,
    check_body,
    check_head,
    check_sendable,
    check_way,
    members_of,
    packed,
    properties_text,
    selecting,
)
from mqspark.client.producer.producer_settings import ProducerKeywords, ProducerSettings
from mqspark.client.producer.requests import Requests, is_reply, reply_message
from mqspark.client.producer.send_window import Window
from mqspark.client.producer.sending import Sender, Sending
from mqspark.client.producer.targets import BATCH, PLAIN, REPLY, Targets
from mqspark.client.remoting.channel import Channel
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.instance import LAST_BEAT_S, ClientInstance, InstanceMember
from mqspark.client.remoting.keywords import NAMES, changed, spelled_out
from mqspark.client.remoting.namespaces import Namespace
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.client.typed.typedlistener import TypedMessages
from mqspark.errors import ClientError, MQError, NoRoute, RequestTimeout
from mqspark.message import (
    INSTANCE_ID,
    TRANSACTION_PREPARED_TYPE,
    UNIQ_KEY,
    Message,
    MessageExt,
    MessageQueue,
    check_group,
    check_topic,
    decode_recall_handle,
    new_unique_id,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import RecallMessageRequestHeader, RecallMessageResponseHeader

log = escaping(__name__)

_encode_json = msgspec.json.encode


@checked(
    but=("begin", "begin_batch", "can_begin", "packed", "send", "send_async", "send_batch", "send_oneway"),
    own=NAMES,
)
class Producer(Lifecycle):
    """Sends messages to the topics of a cluster.

    ``timeout_ms`` is the limit of a whole send, including retries and connecting. Raises the subclasses of
    ClientError in ``mqspark.errors``, and InvalidMessage for a message that no broker would accept. Not
    thread-safe: use it on the loop it was started on (``mqspark.Producer`` is the one for threads).
    """

    group: str
    """The producer group, under the cluster's name."""
    settings: ProducerSettings
    """In effect, keywords included."""

    @spelled_out(ProducerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        settings: ProducerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[ProducerKeywords],
    ) -> None:
        """``group`` names the application; brokers ask any producer of the group about its transactions.

        Every field of ``ProducerSettings`` and ``ClientOptions`` may also be given as a keyword, which takes
        precedence. Raises ConfigError, TypeError for an unknown keyword.
        """
        self.settings, self.options = changed(
            settings or ProducerSettings(), options or ClientOptions(), changes
        )
        self._namespace = Namespace(self.options.namespace)
        group = self._namespace.wrap(group)
        check_group(group)
        self.group = group
        self._namesrv = namesrv
        self._send_timeout_ms = self.settings.send_timeout_ms
        self._compress_from_bytes = self.settings.compress_from_bytes
        self._max_message_bytes = self.settings.max_message_bytes
        self._window = Window(self.settings.max_in_flight, self.settings.max_in_flight_bytes)
        self.exit_timeout_ms = self.settings.exit_timeout_ms
        self._loop_end: LoopEnd | None = None
        self._accumulator: Accumulator | None = None
        serializer = self.settings.serializer
        self.typed = None if serializer is None else TypedMessages(serializer, self._namespace.wrap)
        """For the facades."""
        self._interceptors = list(self.settings.interceptors)
        self._tracer: Tracer | None = None
        self._member = _Membership(self)
        self._running = False
        # Set by start:
        self._loop: asyncio.AbstractEventLoop
        self._instance: ClientInstance
        self._tasks: Tasks
        self._targets: Targets
        self._sender: Sender
        self._requests: Requests
        self._asked_topics: set[str]

    # --- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects when the first message is sent. Raises ConfigError without a name server."""
        if self._running:
            return
        self._loop = asyncio.get_running_loop()
        self._instance = instance = ClientInstance.enter(self._member, self._namesrv, self.options)
        faults = FaultTable(instance.clock)
        self._tasks = Tasks(f"producer group {self.group}")
        self._targets = Targets(
            instance,
            self._namespace,
            self.group,
            faults,
            default_topic_queues=self.settings.default_topic_queues,
        )
        self._sender = Sender(
            instance,
            self._targets,
            faults,
            self._window,
            self._tasks,
            self._interceptors,
            self.settings,
        )
        self._requests = Requests(instance.client_id)
        self._asked_topics = set()
        if self.settings.trace:
            group = self._namespace.unwrap(self.group)
            tracer = tracer_of(self._namesrv, group, "PRODUCE", self.settings.trace_topic, self.options)
            try:
                await tracer.start()
            except BaseException:
                await instance.leave(self._member)
                raise
            self._tracer = tracer
            self._interceptors.append(tracer)
        if self.settings.auto_batch is not None:
            self._accumulator = Accumulator(
                self.settings.auto_batch,
                self._begin_together,
                alone_from_bytes=min(self._compress_from_bytes, self._max_message_bytes),
                most_bytes=self._max_message_bytes,
                keeps_messages=self._sees_messages,
            )
        self._running = True
        if not self.is_kept:
            ending.begun(self)
            self._loop_end = LoopEnd(self._end_with_loop)
            await self._loop_end.watch()

    async def stop(self) -> None:
        """Wait for unanswered sends (at most for their timeout), then leave the group. The log names what was not
        sent."""
        await super().stop()

    async def _stop(self) -> None:
        if not self._running:
            return
        if self._accumulator is not None:
            self._accumulator.flush()
            self._accumulator = None
        self._running = False
        self._sender.close()
        self._requests.abandon()
        await self._window.empty()
        if (lost := self._sender.lost()) is not None:
            log.error("producer group %s stops, but %s", self.group, lost)
        if self._tracer is not None:
            self._interceptors.remove(self._tracer)
            await self._tracer.stop()
            self._tracer = None
        await self._tasks.cancel()
        await self._instance.leave(self._member)
        ending.over(self)
        if self._loop_end is not None:
            await self._loop_end.forget()

    async def _end_with_loop(self) -> None:
        try:
            async with asyncio.timeout(self.exit_timeout_ms / 1000):
                await self.stop_at_exit(self.exit_timeout_ms)
        except TimeoutError:
            if (lost := self.left_behind()) is not None:
                log.error("the event loop ends, and %s after %d ms", lost, self.exit_timeout_ms)
            await self._give_up()
        ending.over(self)

    async def _give_up(self) -> None:
        """Leave nothing on a loop that ends."""
        self._running = False
        self._sender.give_up()
        if self._end is not None:
            self._end.cancel()
        await self._tasks.cancel()
        try:
            async with asyncio.timeout(LAST_BEAT_S):
                await self._instance.leave(self._member)
        except TimeoutError:
            log.debug("producer group %s does not leave its brokers", self.group)

    def end_with_program(self) -> Pending | None:
        """For the end of a program that has not stopped it: as far as its loop is not closed."""
        return ending.begin_on(self._loop, functools.partial(self.stop_at_exit, self.exit_timeout_ms))

    def left_behind(self) -> str | None:
        """As ``Lifecycle.left_behind``."""
        if not self._running and not self.is_stopping:
            return None
        waiting = self._accumulator.waiting if self._accumulator is not None else 0
        parts = (f"{waiting} messages wait for a batch" if waiting else None, self._sender.lost())
        lost = ", ".join(part for part in parts if part)
        return f"of producer group {self.group} {lost}" if lost else None

    @property
    def client_id(self) -> str:
        """The id by which brokers know this producer. Raises ClientError unless it is started."""
        self._check_running()
        return self._instance.client_id

    # --- sending ----------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> SendResult:
        """Send and wait for the broker's answer.

        Queues are chosen in turn, unless one is given by ``queue``, by ``hash_key`` (always the same queue while
        the topic's queues do not change) or by ``selector``. Only sends without these three are retried on other
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
        timeout_ms: NonNegativeInt | None = None,
    ) -> asyncio.Future[SendResult]:
        """Like ``send``, but returns the future as soon as there is room in flight.

        Messages to one queue keep their order only if each future is awaited before the next send: after a retry
        or a first connection, a later message may overtake.
        """
        return await self._begin_in_turn(message, queue, hash_key, selector, timeout_ms)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Returns once the message is handed to the connection; its arrival is not confirmed."""
        self._check_running()
        if self.typed is not None:
            message = await self.typed.written(message)
        future: asyncio.Future[None] = self._loop.create_future()
        self.begin(message, future, queue, hash_key, selector, None, oneway=True)
        await future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue, stored together under one acknowledgement."""
        self._check_running()
        if self.typed is not None:
            messages = await self.typed.all_written(messages)
        await self._window.room()
        future: asyncio.Future[SendResult] = self._loop.create_future()
        try:
            self.begin_batch(messages, future, queue, timeout_ms)
        except MQError:
            self._window.decline()
            raise
        return await future

    async def request(
        self,
        message: Message,
        timeout_ms: NonNegativeInt = 3_000,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> MessageExt:
        """Send a message and wait for the reply of its consumer (``reply``); ``timeout_ms`` covers both. Raises
        like ``send``, and RequestTimeout if the message is stored but no reply arrives."""
        self._check_running()
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
        if message.topic not in self._asked_topics:
            # A reply may come through any broker of the topic, and each has to know this client by then.
            check_topic(message.topic)
            await self._targets.find(self._namespace.wrap(message.topic))
            await self._instance.heartbeat()
            self._asked_topics.add(message.topic)
        correlation_id, request, reply = self._requests.open(message, timeout_ms)
        sent: asyncio.Future[SendResult] | None = None
        try:
            sent = await self._begin_in_turn(request, queue, hash_key, selector, timeout_ms, alone=True)
            await asyncio.wait((sent, reply), return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                await sent
            return await reply
        finally:
            self._requests.close(correlation_id)
            if sent is None or not sent.done():
                if sent is not None:
                    sent.cancel()
            elif not sent.cancelled():
                sent.exception()  # the reply has arrived, so the result does not matter

    async def reply(
        self, request: MessageExt, body: bytes | str, *, timeout_ms: NonNegativeInt | None = None
    ) -> SendResult:
        """Answer a consumed request; returns when the waiting client has the reply. Raises InvalidMessage if the
        message is not a request, BrokerError if no client waits any more."""
        message = reply_message(request, body)
        # The broker that stored the request is sure to know its sender.
        self._check_running()
        found = await self._targets.find(self._namespace.wrap(message.topic))
        queues = self._namespace.unwrap_queues(found.queues)
        near = next((queue for queue in queues if queue.broker_name == request.broker_name), None)
        return await (await self._begin_in_turn(message, near, None, None, timeout_ms, alone=True))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a message to ``topic`` can currently be sent to. Raises NoRoute."""
        self._check_running()
        check_topic(topic)
        found = await self._targets.find(self._namespace.wrap(topic), refresh=True)
        return self._namespace.unwrap_queues(found.queues)

    async def recall(self, topic: str, handle: str, *, timeout_ms: NonNegativeInt | None = None) -> str:
        """Cancel a timed message that is not delivered yet, by its ``recall_handle``. Returns its message id.

        Raises InvalidMessage for a malformed handle, BrokerError if it is too late or recall is disabled at the
        broker (recallMessageEnable).
        """
        check_topic(topic)
        _, broker_name, _, message_id = decode_recall_handle(handle)
        self._check_running()
        wrapped = self._namespace.wrap(topic)
        address = (await self._instance.route(wrapped)).master(broker_name)
        if address is None:
            raise NoRoute(topic, f"broker {broker_name} has no address")
        context = RecallContext(self._namespace.unwrap(self.group), topic, message_id, success=False)
        try:
            response = await self._instance.remoting.invoke(
                address,
                RequestCode.RECALL_MESSAGE,
                RecallMessageRequestHeader(
                    topic=wrapped, recall_handle=handle, producer_group=self.group, bname=broker_name
                ),
                timeout_ms=timeout_ms or self._send_timeout_ms,
            )
            context.success, context.region = True, response.ext.get("MSG_REGION")
        finally:
            call_hooks([interceptor.after_recall for interceptor in self._interceptors], context)
        return response.header(RecallMessageResponseHeader).msg_id

    # --- for the facades --------------------------------------------------------------------------------

    def can_begin(self, message: Message) -> bool:
        """Whether the topic's route is known, so that a send need not wait. Callable from any thread. Raises
        InvalidMessage and MessageTooLarge, as ``begin`` would."""
        check_head(message)
        if not self._running or self._namespace or message.topic not in self._targets.topics:
            return False
        check_body(message.body, self._max_message_bytes)
        if message.properties:
            properties_text(message)
        return True

    def begin(
        self,
        message: Message,
        future: SettleFuture,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: NonNegativeInt | None = None,
        *,
        oneway: bool = False,
        prepared: bool = False,
        alone: bool = False,
    ) -> None:
        """Start a send on this loop; ``future`` (of asyncio or concurrent.futures) gets the result or the error.
        ``prepared``: a transactional message whose properties are set. ``alone``: not combined into a batch.

        Raises InvalidMessage, MessageTooLarge at once. Does not wait for room.
        """
        if (
            self._accumulator is not None
            and not (alone or oneway or prepared)
            and hash_key is None
            and selector is None
            and self._accumulator.add(message, future, queue, timeout_ms)
        ):
            return
        check_head(message)
        if queue is not None or hash_key is not None or selector is not None or timeout_ms is not None:
            check_way(queue, hash_key, selector, timeout_ms)
        self._check_running()
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
        if topic not in self._targets.topics:
            check_sendable(topic)
        body = message.body
        check_body(body, self._max_message_bytes)
        sending = Sending()
        if message.properties:
            text, sending.message_id = properties_text(message, prepared=prepared)
        else:
            sending.message_id = new_unique_id()
            text = item(UNIQ_KEY, sending.message_id)
        sending.properties = _encode_json(text)
        sending.context = context
        sending.topic = topic
        sending.body = body
        sending.flag = message.flag
        sending.pinned = queue
        if hash_key is not None or selector is not None:
            sending.select = selecting(message, hash_key, selector)
        else:
            sending.select = None
        sending.sys_flag = TRANSACTION_PREPARED_TYPE if prepared else 0
        self._sender.launch(
            sending,
            future,
            self._send_timeout_ms if timeout_ms is None else timeout_ms,
            kind=REPLY if is_reply(message) else PLAIN,
            oneway=oneway,
        )

    @property
    def _sees_messages(self) -> bool:
        """Whether messages change between the call and the request."""
        return bool(self._interceptors or self._namespace)

    def packed(self, messages: Sequence[Message]) -> Sequence[Message] | PackedBatch:
        """A batch for ``begin_batch``, with as much of the work done as can be in any thread. Raises as
        ``begin_batch``."""
        if not self._sees_messages:
            return batch_of(messages, self._max_message_bytes)
        members_of(messages, self._max_message_bytes)
        return messages

    def begin_batch(
        self,
        batch: Sequence[Message] | PackedBatch,
        future: SettleFuture,
        queue: MessageQueue | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> None:
        """Like ``begin``, for a batch."""
        check_way(queue, None, None, timeout_ms)
        context = None
        if not isinstance(batch, PackedBatch):
            messages = batch
            if self._sees_messages:
                members_of(messages, self._max_message_bytes)
            self._check_running()
            if self._interceptors:
                context = self._intercept(messages)
                messages = context.messages
            if self._namespace:
                messages, queue = [self._named(message) for message in messages], self._named_queue(queue)
            batch = batch_of(messages, self._max_message_bytes)
        self._check_running()
        sending = Sending()
        sending.topic, sending.body, sending.message_id = batch.topic, batch.body, batch.ids
        # The batch itself has no id: RocketMQ would overwrite its members' ids with it.
        sending.properties = b'""'
        sending.context = context
        sending.flag = 0
        sending.pinned = queue
        sending.select = None
        sending.sys_flag = 0
        self._sender.launch(
            sending,
            future,
            self._send_timeout_ms if timeout_ms is None else timeout_ms,
            kind=BATCH,
            oneway=False,
        )

    # --- internal ---------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._running:
            raise ClientError(
                f"the {type(self).__name__} of group {self.group} is not started, or already stopped: use `async with`"
                " or await start() first"
            )

    async def _begin_in_turn(
        self,
        message: Message,
        queue: MessageQueue | None,
        hash_key: str | int | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        prepared: bool = False,
        alone: bool = False,
    ) -> asyncio.Future[SendResult]:
        """Call ``begin`` as soon as there is room in flight."""
        if not self._running:
            self._check_running()
        if self.typed is not None:
            message = await self.typed.written(message)
        body_bytes(message)
        window = self._window
        if window.full:
            await window.room()
        future: asyncio.Future[SendResult] = self._loop.create_future()
        try:
            self.begin(message, future, queue, hash_key, selector, timeout_ms, prepared=prepared, alone=alone)
        except MQError:
            window.decline()
            raise
        return future

    def _begin_together(self, batch: Together) -> None:
        """Send accumulated messages. Never raises: their futures get the error."""
        try:
            if len(batch.futures) == 1:
                self.begin(batch.first, batch, batch.queue, timeout_ms=batch.timeout_ms, alone=True)
            else:
                whole: Sequence[Message] | PackedBatch = batch.members
                if not self._sees_messages:
                    whole = packed(batch.first.topic, batch.members, self._max_message_bytes)
                self.begin_batch(whole, batch, batch.queue, batch.timeout_ms)
        except MQError as error:
            batch.set_exception(error)

    def _intercept(self, messages: Sequence[Message]) -> SendContext:
        context = SendContext(self._namespace.unwrap(self.group), [as_it_is(each) for each in messages])
        call_hooks([interceptor.before_send for interceptor in self._interceptors], context)
        return context

    def _named(self, message: Message) -> Message:
        """The message under the cluster's topic name (DefaultMQProducerImpl: withNamespace,
        PROPERTY_INSTANCE_ID)."""
        return Message(
            topic=self._namespace.wrap(message.topic),
            body=message.body,
            properties={**message.properties, INSTANCE_ID: self._namespace.name},
            flag=message.flag,
        )

    def _named_queue(self, queue: MessageQueue | None) -> MessageQueue | None:
        return None if queue is None else self._namespace.wrap_queue(queue)

    def _named_selector(self, selector: QueueSelector | None) -> QueueSelector | None:
        """A selector that sees and returns queues under the program's topic names."""
        namespace = self._namespace
        if selector is None:
            return None
        return lambda queues, message: namespace.wrap_queue(
            selector(namespace.unwrap_queues(queues), message)
        )

    # --- for the instance -------------------------------------------------------------------------------

    def _kept_topics(self) -> Collection[str]:
        """Topics whose routes are kept up to date."""
        return self._targets.topics.keys()

    def _asked(self, channel: Channel, request: Command) -> bool:
        return request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and self._requests.replied(
            channel, request
        )


class _Membership(InstanceMember):
    """A producer as seen by its instance."""

    def __init__(self, producer: Producer) -> None:
        self.producer_group = producer.group
        self._producer = producer

    def topics(self) -> Collection[str]:
        return self._producer._kept_topics()

    def route_changed(self, route: TopicRoute) -> None:
        self._producer._targets.changed(route)

    def asked(self, channel: Channel, request: Command) -> bool:
        return self._producer._asked(channel, request)

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            log.info("a reply arrived after its request had ended")
            return ResponseCode.SUCCESS, b"", None
        return await super().answer(request)


def tracer_of(
    namesrv: str | Sequence[str] | None,
    group: str,
    kind: str,
    topic: str | None,
    options: ClientOptions | None,
) -> Tracer:
    """For a member of ``group``; ``kind`` is PRODUCE or CONSUME."""
    sender = Producer(
        namesrv,
        group=trace_group(group, kind),
        send_timeout_ms=5_000,
        max_message_bytes=MAX_TRACE_BYTES,
        options=options,
    )
    sender.is_kept = True
    return Tracer(sender, topic)
