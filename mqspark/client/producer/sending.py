"""Sends in flight: attempts, answers, retries on other brokers, and the final result of each.

The common case creates no task and no dict: the route, the connection and the constant part of the header are
found by one look-up, and the response settles the caller's future. Everything else (no route yet, no connection,
a large body to compress, a retry) goes through ``Sender._dispatch``. Facts: RocketMQ's
DefaultMQProducerImpl.sendDefaultImpl.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.client.delivery.results import RETRYABLE, STATUSES, SendResult, SendStatus, SettleFuture
from mqspark.client.hooks.hooks import Interceptor, SendContext
from mqspark.client.hooks.hooks import call as call_hooks
from mqspark.client.life.lifecycle import Tasks
from mqspark.client.producer.faults import SLOW_MS, FaultTable
from mqspark.client.producer.producer_settings import ProducerSettings
from mqspark.client.producer.send_window import Window
from mqspark.client.producer.targets import BATCH, CODES, PublishTopic, Target, Targets
from mqspark.client.remoting.channel import Channel, Outcome
from mqspark.client.remoting.instance import ClientInstance
from mqspark.client.remoting.topic_routes import is_logic_broker
from mqspark.errors import (
    BrokerError,
    ClientError,
    ConnectionLost,
    InvalidMessage,
    MQError,
    NoRoute,
    RequestTimeout,
)
from mqspark.message import COMPRESSED, COMPRESSION_SHIFT, MessageQueue, QueueOffset
from mqspark.protocol.binding import BINDING, Binder
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import SendMessageResponseHeader
from mqspark.record import compression

log = escaping(__name__)

_SEND_OK = SendStatus.SEND_OK

FAILOVER_POLL_S = 0.1
"""Interval of route look-ups for a topic that has lost its last writable queue."""
SAME_BROKER_S = 0.1
"""The pause before the second attempt at a topic's only broker; the next one is twice as long."""
MIN_ATTEMPT_S = 0.02
"""With less time left, another attempt would probably only duplicate the message; also, timers may fire some ms
early."""

_COMPRESSED_ZLIB = COMPRESSED | compression.ZLIB << COMPRESSION_SHIFT
LOOK_UP_S = 1.0
"""Interval of look-ups of routes because of addresses where nobody listens or answers."""

_THREAD_COMPRESS_BYTES = 128 * 1024
"""Compressing this much takes milliseconds, which would block the event loop."""

_decode_text = msgspec.json.Decoder(str).decode

_OUTDATED = frozenset(
    {ResponseCode.INVALID_PARAMETER, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION}
)
"""Answers of a broker that has no such queue, no such topic, or writes to it no more."""

_TOPICS_NAMED = 5
"""In the line about what is lost."""

_PREFIX = struct.Struct(">ii")
_BINDING = BINDING.encode()


class Sending:
    """One message (or batch) in flight; called with the outcome of its latest attempt."""

    __slots__ = (
        "attempts", "body", "context", "deadline", "flag", "future", "has_looked", "kind", "message_id",
        "oneway", "pinned", "properties", "select", "sender", "size_bytes", "started", "sys_flag", "target",
        "timeout_ms", "topic",
    )  # fmt: skip

    sender: Sender
    future: SettleFuture
    topic: str
    body: bytes
    properties: bytes
    context: SendContext | None
    """Passed to interceptors; None if there are none."""
    message_id: str
    flag: int
    sys_flag: int
    kind: int
    oneway: bool
    pinned: MessageQueue | None
    select: Callable[[Sequence[MessageQueue]], MessageQueue] | None
    target: Target | None
    has_looked: bool
    """Whether the route was looked up because the broker has no such queue."""
    attempts: int
    size_bytes: int
    started: float
    deadline: float
    timeout_ms: int

    def transmit(self, target: Target, channel: Channel, timeout_ms: int) -> None:
        opaque = channel.next_opaque()
        body = self.body
        properties = self.properties
        born_ms = wall_ms()
        binder = channel.binder
        if binder is not None:
            properties = b"%b,%b" % (properties, self._signed(binder, target, born_ms))
        header = b'%b%d","h":"%d","f":"%d","i":%b},"opaque":%d}' % (
            target.heads[2 * self.kind + self.oneway],
            born_ms,
            self.flag,
            self.sys_flag,
            properties,
            opaque,
        )
        length = len(header)
        if self.oneway:
            channel.write(_PREFIX.pack(4 + length + len(body), length), header, body)
            self.sender.finish(self, None, None)
        else:
            channel.submit(
                opaque, timeout_ms, self, _PREFIX.pack(4 + length + len(body), length), header, body
            )

    def _signed(self, binder: Binder, target: Target, born_ms: int) -> bytes:
        """The fields that sign this attempt. Signed are the fields in the order of their names, then the body."""
        kind, body = self.kind, self.body
        text = _decode_text(self.properties)
        values = str(self.sys_flag), str(born_ms), str(self.flag), text
        names, after = target.shapes[kind]
        shape = f"{names}{len(values[0])},{len(values[1])},{len(values[2])},{len(text)}{after}"
        described = binder.description(CODES[kind], born_ms, len(body), shape)
        first, last = target.contents[kind]
        content = b"%b%b%b%b" % (described.encode(), first, "".join(values).encode(), last)
        return b'"%b":"%b","Signature":"%b"' % (
            _BINDING,
            described.encode(),
            binder.signature(content, body).encode(),
        )

    def __call__(self, outcome: Outcome) -> None:
        sender = self.sender
        target = self.target
        if target is None:
            raise AssertionError("an outcome before the first attempt")
        if isinstance(outcome, Command):
            status = _SEND_OK if outcome.code == 0 else STATUSES.get(outcome.code)
            if status is not None:
                latency_ms = (sender.now() - self.started) * 1000
                if latency_ms >= SLOW_MS:
                    sender.faults.record(target.broker_name, latency_ms)
                try:
                    header = outcome.header(SendMessageResponseHeader)
                except MQError as error:
                    sender.finish(self, None, error)
                    return
                context = self.context
                if context is not None:
                    context.broker_address = target.channel.address if target.channel else None
                    context.region = outcome.ext.get("MSG_REGION")
                    context.trace_on = outcome.ext.get("TRACE_ON") != "false"
                queue = target.shown
                if header.queue_id != queue.queue_id:
                    queue = queue._replace(queue_id=header.queue_id)
                sender.finish(
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
            sender.failed(self, BrokerError(outcome.code, outcome.remark, address=address))
        else:
            sender.failed(self, outcome)


class Sender:
    """All sends in flight of one producer. Belongs to the running loop."""

    def __init__(
        self,
        instance: ClientInstance,
        targets: Targets,
        faults: FaultTable,
        window: Window,
        tasks: Tasks,
        interceptors: Sequence[Interceptor],
        settings: ProducerSettings,
    ) -> None:
        self.now = asyncio.get_running_loop().time
        self.faults = faults
        self.targets = targets
        self._instance = instance
        self._window = window
        self._tasks = tasks
        self._interceptors = interceptors
        self._retries = settings.retries
        self._attempt_timeout_ms = settings.attempt_timeout_ms
        self._compress_from_bytes = settings.compress_from_bytes
        self._compress_level = settings.compress_level
        self._closing = self._is_given_up = False
        self._lost: Counter[str] = Counter()
        """Sends that failed since ``close``, by topic: their callers may not look any more."""
        self._next_look_s = 0.0
        self._silence = instance.silence

    def launch(
        self, sending: Sending, future: SettleFuture, timeout_ms: int, *, kind: int, oneway: bool
    ) -> None:
        """Start the first attempt of a prepared ``sending``. Does not wait for room."""
        size_bytes = len(sending.body)
        sending.sender = self
        sending.future = future
        sending.kind = kind
        sending.oneway = oneway
        sending.attempts = 0
        sending.target = None
        sending.has_looked = False
        sending.size_bytes = size_bytes
        sending.timeout_ms = timeout_ms
        sending.started = started = self.now()
        sending.deadline = started + timeout_ms / 1000
        window = self._window
        window.count += 1
        window.size_bytes += size_bytes
        if not self._silence.is_armed:
            self._silence.arm()
        if size_bytes >= self._compress_from_bytes and kind != BATCH:
            if size_bytes >= _THREAD_COMPRESS_BYTES:
                self._carry(sending, functools.partial(self._dispatch, sending, None, compress=True))
                return
            self._put_compressed(sending, compression.compress(sending.body, level=self._compress_level))
        topic = self.targets.topics.get(sending.topic)
        if topic is not None and topic.targets and _has_pinned(topic, sending):
            try:
                target = self._choose(sending, topic)
            except Exception as error:
                self.finish(sending, None, error)
                return
            channel = target.channel
            if channel is not None and channel.open and channel.writable:
                sending.transmit(target, channel, self._limit(sending, timeout_ms))
                return
            self._carry(sending, functools.partial(self._dispatch, sending, target))
        else:
            self._carry(sending, functools.partial(self._dispatch, sending, None))

    async def _topic(self, sending: Sending, *, refresh: bool) -> PublishTopic:
        """Its topic; the route is looked up again if it has no queue like the one that the caller chose, which may be
        new. Raises what ``Targets.find`` raises."""
        topic = await self.targets.find(sending.topic, refresh=refresh)
        if not refresh and not _has_pinned(topic, sending):
            topic = await self.targets.find(sending.topic, refresh=True)
        return topic

    def close(self) -> None:
        """Failures from now on are not retried."""
        self._closing = True

    def give_up(self) -> None:
        """Nothing is begun any more."""
        self._closing = self._is_given_up = True

    def lost(self) -> str | None:
        """What was not sent since ``close``, or is not yet acknowledged."""
        waiting = f"{self._window.count} sends are not acknowledged" if self._window.count else ""
        topics = ", ".join(f"{count} to {topic}" for topic, count in self._lost.most_common(_TOPICS_NAMED))
        failed = f"{self._lost.total()} sends have failed ({topics})" if self._lost else ""
        return ", ".join(part for part in (waiting, failed) if part) or None

    def _choose(self, sending: Sending, topic: PublishTopic) -> Target:
        """The queue for the next attempt."""
        last, sending.attempts = sending.target, sending.attempts + 1
        queue = sending.pinned
        if sending.select is not None:
            try:
                queue = sending.select(topic.queues)
            except Exception as error:
                raise ClientError(
                    f"the selector chose no queue of topic {sending.topic}: {type(error).__name__}: {error}"
                ) from error
        if queue is None:
            target = topic.chooser.choose(
                topic.candidates() if topic.many else topic.targets,
                last.broker_name if last is not None else None,
            )
        else:
            found = topic.target_of(queue)
            if found is None:
                raise InvalidMessage(
                    f"{queue} is not a writable queue of topic {sending.topic}", field="queue"
                )
            target = found
        sending.target = target
        return target

    def _limit(self, sending: Sending, remaining_ms: int) -> int:
        """The milliseconds of one attempt: while another may follow, a silent broker must leave time for it
        (sendMsgMaxTimeoutPerRequest)."""
        if self._attempt_timeout_ms is None or not self._may_retry(sending):
            return remaining_ms
        return min(self._attempt_timeout_ms, remaining_ms)

    def _may_retry(self, sending: Sending) -> bool:
        return sending.pinned is None and sending.select is None and sending.attempts <= self._retries

    @staticmethod
    def _put_compressed(sending: Sending, body: bytes) -> None:
        if len(body) < len(sending.body):
            sending.body = body
            sending.sys_flag |= _COMPRESSED_ZLIB

    async def _dispatch(
        self, sending: Sending, target: Target | None, *, refresh: bool = False, compress: bool = False
    ) -> None:
        """An attempt that must wait first: for compression in a thread, a route, a connection or a slow peer. It
        always resolves the send unless it is cancelled, because ``stop`` waits for it."""
        try:
            async with asyncio.timeout_at(sending.deadline):
                if compress and not sending.sys_flag & COMPRESSED:
                    self._put_compressed(sending, await self._compressed(sending.body))
                if target is None:
                    target = self._choose(sending, await self._topic(sending, refresh=refresh))
                address = self._instance.broker_address(target.broker_name)
                if address is None:  # the route has changed since the queue was chosen, and nothing was sent
                    target = self._choose(sending, await self.targets.find(sending.topic, refresh=True))
                    address = self._instance.broker_address(target.broker_name)
                if address is None:
                    raise NoRoute(sending.topic, f"broker {target.broker_name} has no address")
                self._silence.uses(address)
                target.channel = channel = await self._instance.remoting.connect(address)
                await channel.drain()
            remaining_ms = int((sending.deadline - self.now()) * 1000)
            sending.transmit(target, channel, self._limit(sending, max(1, remaining_ms)))
        except ClientError as error:
            self.failed(sending, error)
        except TimeoutError:
            where = target.broker_name if target is not None else f"the route of topic {sending.topic}"
            self._look_up(sending.topic)
            self.finish(sending, None, RequestTimeout(where, sending.timeout_ms))
        except Exception as error:
            self.finish(sending, None, error)

    def _carry(self, sending: Sending, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A task that resolves the send. The end of an event loop cancels all tasks, also those that have not begun;
        what the program has handed over is sent all the same."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                return
            if not self._is_given_up and self.now() + MIN_ATTEMPT_S < sending.deadline:
                self._carry(sending, work)
            else:
                self.finish(sending, None, ConnectionLost(sending.topic, "the producer is stopped"))

        self._tasks.spawn(work()).add_done_callback(ended)

    async def _compressed(self, body: bytes) -> bytes:
        try:
            return await asyncio.to_thread(compression.compress, body, level=self._compress_level)
        except RuntimeError:  # the program ends, and no thread is begun any more
            return compression.compress(body, level=self._compress_level)

    def failed(self, sending: Sending, error: ClientError) -> None:
        """An attempt failed: try another broker if that may help and time is left, otherwise report the error."""
        target = sending.target
        lost = isinstance(error, (ConnectionLost, RequestTimeout))
        again = target is not None and (lost or (isinstance(error, BrokerError) and error.code in RETRYABLE))
        moved = target is not None and _may_have_moved(target, error)
        if again and target is not None and not moved:
            self.faults.record(target.broker_name, 0, isolate=True)
            if isinstance(error, BrokerError) and error.code == ResponseCode.GO_AWAY and target.channel:
                target.channel.retire()
        if (
            again
            and not self._closing
            and (moved or self._may_retry(sending))
            and self.now() + MIN_ATTEMPT_S < sending.deadline
        ):
            log.debug("attempt %d to send to %s failed: %s", sending.attempts, sending.topic, error)
            self._retry(sending, error, moved=moved)
        elif self._may_be_outdated(sending, error):
            sending.has_looked = True
            self._carry(sending, functools.partial(self._choose_again, sending, error))
        elif isinstance(error, NoRoute) and self._is_failing_over(sending):
            asyncio.get_running_loop().call_later(FAILOVER_POLL_S, self._look_again, sending, error)
        else:
            if isinstance(error, RequestTimeout) or (isinstance(error, ConnectionLost) and not error.made):
                self._look_up(sending.topic)
            self.finish(sending, None, error)

    def _may_be_outdated(self, sending: Sending, error: ClientError) -> bool:
        """Whether the broker refused because the topic's queues are others by now. Nothing was stored, and once in a
        send the route is looked up for that, whoever chose the queue."""
        return (
            isinstance(error, BrokerError)
            and error.code in _OUTDATED
            and sending.target is not None
            and not sending.has_looked
            and not self._closing
            and self.now() + SAME_BROKER_S + MIN_ATTEMPT_S < sending.deadline
        )

    async def _choose_again(self, sending: Sending, error: ClientError) -> None:
        """Send to a queue of the present route; if that is the known one, the broker refused the message itself."""
        refused = sending.target
        try:
            async with asyncio.timeout_at(sending.deadline):
                for pause_s in (0, SAME_BROKER_S):  # a broker tells name servers of a change a moment later
                    await asyncio.sleep(pause_s)
                    topic = await self.targets.find(sending.topic, refresh=True)
                    if refused is None or topic.target_of(refused.queue) is not refused:
                        await self._dispatch(sending, None)
                        return
        except (ClientError, TimeoutError) as failure:
            log.debug("the route of %s is not refreshed: %s", sending.topic, failure)
        self.finish(sending, None, error)

    def _look_up(self, topic: str) -> None:
        """Look the route up again, because its address is dead or silent. Later sends may need another address, also
        those to a queue that the caller chose, which are not retried."""
        if self.now() >= self._next_look_s and not self._closing:
            self._next_look_s = self.now() + LOOK_UP_S
            self._tasks.spawn(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            await self.targets.find(topic, refresh=True)
        except ClientError as error:
            log.debug("the route of %s is not refreshed: %s", topic, error)

    def _retry(self, sending: Sending, error: ClientError, *, moved: bool) -> None:
        """Make the next attempt; after a pause if it can only go to a broker that has just refused, which may be
        waiting for a replica or for its disk, or to a logic queue that is moving."""
        topic = self.targets.topics.get(sending.topic)
        pause_s = SAME_BROKER_S * sending.attempts
        if (
            moved or (isinstance(error, BrokerError) and topic is not None and topic.has_one_broker)
        ) and self.now() + pause_s + MIN_ATTEMPT_S < sending.deadline:
            asyncio.get_running_loop().call_later(pause_s, self._look_again, sending, error)
        else:
            self._carry(sending, functools.partial(self._dispatch, sending, None, refresh=True))

    def _is_failing_over(self, sending: Sending) -> bool:
        """Whether the topic may have writable queues again before the time of the send is over."""
        topic, now = self.targets.topics.get(sending.topic), self.now()
        return (
            topic is not None
            and topic.is_failing_over(now)
            and not self._closing
            and now + FAILOVER_POLL_S + MIN_ATTEMPT_S < sending.deadline
        )

    def _look_again(self, sending: Sending, error: ClientError) -> None:
        if self._closing:
            self.finish(sending, None, error)
        else:
            self._carry(sending, functools.partial(self._dispatch, sending, None, refresh=True))

    def finish(self, sending: Sending, result: SendResult | None, error: BaseException | None) -> None:
        """Resolve a send."""
        if error is not None and self._closing:
            self._lost[sending.topic] += 1
        self._window.leave(sending.size_bytes)
        context = sending.context
        if context is not None:
            context.result, context.error = result, error
            context.elapsed_ms = int((self.now() - sending.started) * 1000)
            call_hooks([interceptor.after_send for interceptor in reversed(self._interceptors)], context)
        future = sending.future
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)


def _has_pinned(topic: PublishTopic, sending: Sending) -> bool:
    """Whether the topic has the queue that the caller chose, if one was chosen."""
    return sending.pinned is None or topic.target_of(sending.pinned) is not None


def _may_have_moved(target: Target, error: ClientError) -> bool:
    """Whether another broker may lead the logic queue now. Nothing was stored."""
    if not is_logic_broker(target.queue.broker_name):
        return False
    if isinstance(error, ConnectionLost):
        return not error.made
    return isinstance(error, BrokerError) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE
