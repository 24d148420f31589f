"""The push consumer: pulls ahead, passes messages to a listener, commits in order. Facts: RocketMQ's
DefaultMQPushConsumerImpl. ``concurrent`` and ``ordered`` handle the listener's results."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.base.valuetypes import NonNegativeInt, checked
from mqspark.client.consumer.consumer_settings import (
    ANYBODYS_MESSAGES,
    PushConsumerKeywords,
    PushConsumerSettings,
)
from mqspark.client.consumer.running_info import running_info
from mqspark.client.consumer.subscriber import Listening
from mqspark.client.delivery.delivery import Around, BatchListener, Listener, Outcome, make_delivery
from mqspark.client.delivery.flow import Flow
from mqspark.client.delivery.process_queue import FlowLimits, ProcessQueue
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.hooks.hooks import Intercepted, let_through
from mqspark.client.life.lifecycle import Within
from mqspark.client.push.answers import answer
from mqspark.client.push.concurrent import Concurrent
from mqspark.client.push.locking import BrokerLocks
from mqspark.client.push.ordered import Ordered
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.keywords import NAMES, changed, spelled_out
from mqspark.client.remoting.remoting import level_of
from mqspark.errors import ClientError, ConfigError, MQError
from mqspark.message import MASTER_ID, MessageExt, MessageQueue, dlq_topic
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo, ProcessQueueInfo
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command

log = escaping(__name__)

_UNREADABLE_PAUSE_S = 0.2
"""Pause before a queue without a lock is checked again."""
_EXPIRE_INTERVAL_MS = 60_000


class _Reader:
    """One assigned queue."""

    __slots__ = ("broker_id", "has_backlog", "process", "queue", "task")

    def __init__(self, queue: MessageQueue, process: ProcessQueue) -> None:
        self.queue = queue
        self.process = process
        self.broker_id = MASTER_ID
        self.has_backlog = False
        """The last pull brought as much as any broker gives: a larger one is worth it."""
        self.task: asyncio.Task[None]


@checked(own=NAMES)
class PushConsumer(Listening):
    """Calls ``listener`` with each message of the topics it is subscribed to.

    The listener is a function (called in up to ``concurrency`` threads) or a coroutine function (as many
    coroutines on the loop). Returning CONSUME_SUCCESS or nothing means done; RECONSUME_LATER, a ``RetryLater``,
    an exception or a value that is no outcome mean that the message is delivered again. With ``batch_listener``
    instead, lists of up to ``batch_size`` messages of one queue are passed, and succeed or fail as a whole.

    A failed message goes back to its broker, which delivers it to the group again after 10 s, then 30 s, 1 min
    and so on, with ``reconsume_times`` counting up, and after ``max_reconsume_times`` puts it into the
    dead-letter topic ``%DLQ%<group>``. A listener that takes longer than ``consume_timeout_ms`` counts as failed,
    too. If the broker does not accept a message, it is delivered again here, every ``retry_delay_ms``. A
    broadcasting consumer drops failed messages.

    ``ordered``: one message (or batch) of a queue at a time, in the order of the queue, by one member of the
    group: the queues are locked at their brokers. A failed message is delivered again, before later messages of
    its queue, every ``suspend_queue_ms``, and sent to the dead-letter topic after ``max_reconsume_times`` if that
    is set. Without ``auto_commit`` a message counts as consumed only when the listener returns COMMIT, for this
    message and all earlier ones of the queue; after ROLLBACK all messages since the last COMMIT are delivered
    again. At most ``max_cached_messages`` may wait for a COMMIT: they are cached here, and pulling stops at the
    limit.

    Delivery is at least once. Not thread-safe: use it on the loop it was started on.
    """

    settings: PushConsumerSettings
    """In effect, keywords included."""

    @spelled_out(PushConsumerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        listener: Listener | None = None,
        batch_listener: BatchListener | None = None,
        settings: PushConsumerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[PushConsumerKeywords],
    ) -> None:
        """Takes either ``listener`` or ``batch_listener``. Every field of ``PushConsumerSettings`` and
        ``ClientOptions`` may also be given as a keyword, which takes precedence. Raises ConfigError, TypeError for an
        unknown keyword.
        """
        self.settings, options = changed(
            settings or PushConsumerSettings(), options or ClientOptions(), changes
        )
        if (listener is None) == (batch_listener is None):
            raise ConfigError("give either listener or batch_listener", key="listener")
        if not callable(listener or batch_listener):
            raise ConfigError("a listener is a function", key="listener")
        super().__init__(namesrv, group, self.settings, options)
        settings = self.settings
        self._listener: Listener = listener or batch_listener  # type: ignore[assignment] # either is given
        if self._typed is not None:
            self._listener = self._typed.heard(self._listener)
        self._batch_size = settings.batch_size if batch_listener is not None else 0
        """0: the listener takes single messages."""
        self._flow = Flow(
            FlowLimits(
                settings.max_cached_messages,
                settings.max_cached_bytes,
                sys.maxsize if settings.ordered else settings.max_span,
            ),
            settings.max_cached_messages_per_topic,
            settings.max_cached_bytes_per_topic,
        )
        self._readers: dict[MessageQueue, _Reader] = {}
        self._leaving: dict[MessageQueue, _Reader] = {}
        """Being given up, while their listener still processes the last message (ordered consumers)."""
        self._consumption: Concurrent | Ordered
        self._statistics: ConsumeStatistics
        self._ordered: Ordered | None = None

    # --- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises ConnectionLost or RequestTimeout without a name server, ConfigError without a topic."""
        if self._running:
            return
        await self._enter(rebalance=True, prepare=self._prepare)
        tasks = self._group.tasks
        tasks.keep(self._persist_forever)
        if self._ordered is not None:
            tasks.keep(self._ordered.renew_forever)
        else:
            tasks.keep(self._expire_forever)

    def _prepare(self) -> None:
        """Called before the first queue is assigned."""
        group, settings, timers = self._group, self.settings, self._group.instance.timers
        self._statistics = ConsumeStatistics(group.instance.clock)
        around = list[Around]()
        if self._interceptors:
            name = group.namespace.unwrap(self.group)
            around.append(Intercepted(self._interceptors, name, settings.consume_timeout_ms))
        deliver = functools.partial(
            make_delivery,
            self._listener,
            concurrency=settings.concurrency,
            within=Within(self),
            around=around,
            now_s=timers.now_s,
        )
        send_back = None if group.broadcasting else self._send_back
        if settings.ordered:
            self._consumption = self._ordered = Ordered(
                self.group,
                settings,
                deliver,
                send_back,
                None if group.broadcasting else BrokerLocks(group.instance, self.group),
                batch_size=self._batch_size,
                timers=timers,
                statistics=self._statistics,
                consumed=self._flow.consumed,
                regained=self._regained,
            )
        else:
            self._consumption = Concurrent(
                self.group,
                settings,
                deliver,
                send_back,
                batch_size=self._batch_size,
                timers=timers,
                statistics=self._statistics,
                consumed=self._flow.consumed,
            )

    async def stop(self, timeout_ms: NonNegativeInt = 30_000) -> None:
        """Stops pulling, waits up to ``timeout_ms`` for running listeners, commits, leaves the group. Called by a
        listener, it returns at once: the end waits for the listener and counts its outcome.

        Messages that no listener has started are redelivered, here or elsewhere.
        """
        await super().stop(timeout_ms)

    async def _stop(self, timeout_ms: int = 30_000) -> None:
        if not self._running:
            return
        self._running = False
        for reader in self._readers.values():
            reader.task.cancel()
        if not await self._consumption.stop(timeout_ms):
            log.warning("a listener of %s is still running after %d ms", self.group, timeout_ms)
        leaving = {
            queue: reader.process.commit_offset
            for queue, reader in self._leaving.items()
            if not reader.process.dropped
        }
        try:
            await self._group.offsets.write_at_last({**self.consumed_offsets(), **leaving})
        except (ClientError, OSError) as error:
            log.error("offsets of %s are not committed, messages will be redelivered: %s", self.group, error)
        for reader in (*self._readers.values(), *self._leaving.values()):
            reader.process.drop()
        if self._ordered is not None:
            await self._ordered.unclaim_idle()
        self._readers.clear()
        self._leaving.clear()
        await self._exit()

    # --- public -----------------------------------------------------------------------------------------

    def assignment(self) -> list[MessageQueue]:
        """The queues currently assigned, including those of the retry topic."""
        return sorted(self._group.namespace.unwrap_queues(self._readers))

    def progress(self) -> dict[MessageQueue, int]:
        """For each queue, the offset up to which it is consumed, as in the next commit."""
        unwrap = self._group.namespace.unwrap_queue
        return {unwrap(queue): offset for queue, offset in self.consumed_offsets().items()}

    # --- QueueOwner -------------------------------------------------------------------------------------

    def owned(self) -> Collection[MessageQueue]:
        return self._readers.keys()

    async def claim(self, queues: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        return queues if self._ordered is None else await self._ordered.claim(queues)

    async def unclaim(self, queues: Sequence[MessageQueue]) -> None:
        if self._ordered is not None:
            await self._ordered.unclaim(queues)

    async def take(self, queue: MessageQueue, start_offset: int) -> None:
        if not self._running or queue in self._readers:
            return
        reader = _Reader(queue, ProcessQueue(start_offset))
        self._readers[queue] = reader
        if self._ordered is not None:
            self._ordered.restart(queue, reader.process)
        self._flow.share(self._readers)
        reader.task = self._keep_reading(reader)

    def _keep_reading(self, reader: _Reader) -> asyncio.Task[None]:
        return self._group.tasks.keep(functools.partial(self._read_forever, reader))

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        offsets: dict[MessageQueue, int] = {}
        for queue in queues:
            reader = self._readers.pop(queue, None)
            if reader is None:
                continue
            reader.task.cancel()
            if self._ordered is not None:
                self._leaving[queue] = reader
                self._group.tasks.spawn(self._hand_over(reader, self._ordered))
            else:
                offsets[queue] = reader.process.commit_offset
                reader.process.drop()
        self._flow.share(self._readers)
        await self._write(offsets)

    async def _hand_over(self, reader: _Reader, ordered: Ordered) -> None:
        """Hand a locked queue over: the next member starts when the listener here is done and its offset is
        committed."""
        queue, process = reader.queue, reader.process
        await ordered.settle(queue)
        if not process.dropped and ordered.locked(queue):
            await self._write({queue: process.commit_offset})
        process.drop()
        await ordered.unclaim([queue])
        self._leaving.pop(queue, None)

    async def _regained(self, queue: MessageQueue) -> None:
        """The lost lock of a queue was regained: continue at the group's offset."""
        reader = self._readers.get(queue)
        if reader is None or self._ordered is None:
            return
        try:
            start_offset = await self._group.start_offset(queue)
        except MQError as error:
            log.log(level_of(error), "cannot continue %s of %s yet: %s", queue, self.group, error)
            return
        reader.process = ProcessQueue(start_offset)
        self._ordered.restart(queue, reader.process)

    def group_changed(self) -> None:
        """Members joined or left, or a connection is new: locks are renewed soon."""
        if self._ordered is not None:
            self._ordered.renew_soon()

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        return await answer(self, request)

    # --- reading ----------------------------------------------------------------------------------------

    async def _read_forever(self, reader: _Reader) -> None:
        group, queue, ordered = self._group, reader.queue, self._ordered
        while True:
            process = reader.process
            if not self._unsuspended.is_set():
                await self._unsuspended.wait()
                continue
            if ordered is not None and (process.dropped or not ordered.readable(queue)):
                await asyncio.sleep(_UNREADABLE_PAUSE_S)
                continue
            limits = self._flow.limits(queue.topic)
            if process.is_full(limits):
                await self._flow.space(process, limits)
                continue
            process.last_pull_ms = wall_ms()
            asked = process.next_offset
            began = self._loop.time()
            try:
                pulled = await group.pull(
                    queue,
                    asked,
                    commit_offset=process.commit_offset,
                    broker_id=reader.broker_id,
                    lite=False,
                    at_most=self._at_most(reader, limits),
                )
            except MQError as error:
                reader.broker_id = MASTER_ID
                await group.calls.recover(queue, error)
                continue
            if process.dropped:
                continue
            if pulled.messages:
                elapsed_ms = (self._loop.time() - began) * 1000
                self._statistics.pulled(pulled.messages[0].topic, len(pulled.messages), elapsed_ms)
            reader.broker_id = pulled.suggested_broker_id
            reader.has_backlog = len(pulled.messages) >= ANYBODYS_MESSAGES
            if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
                log.warning("%s continues %s at %d, not %d", self.group, queue, pulled.next_offset, asked)
                await self._move(reader, pulled.next_offset)
            elif pulled.code == ResponseCode.SUCCESS:
                messages = pulled.messages
                if self._interceptors:
                    messages = let_through(self._interceptors, messages)
                self._consumption.add(process, process.put(messages, pulled.next_offset))
                if self.settings.pull_interval_ms:
                    await asyncio.sleep(self.settings.pull_interval_ms / 1000)
            else:
                process.advance(pulled.next_offset)

    def _at_most(self, reader: _Reader, limits: FlowLimits) -> int:
        """How many messages to pull: with a backlog what may be cached, otherwise what RocketMQ's clients ask for."""
        most = ANYBODYS_MESSAGES
        if reader.has_backlog:
            most = max(most, reader.process.room(limits))
        return min(most, self.settings.pull_batch_size)

    async def _send_back(self, message: MessageExt, delay_level: int) -> None:
        await self._group.calls.send_back(message, delay_level, self.settings.max_reconsume_times)

    async def _expire_forever(self) -> None:
        interval_s = min(self.settings.consume_timeout_ms, _EXPIRE_INTERVAL_MS) / 1000
        while True:
            await self._group.instance.timers.sleep(interval_s)
            if isinstance(self._consumption, Concurrent):
                self._consumption.expire()

    async def _move(self, reader: _Reader, offset: int) -> None:
        """Continue at ``offset``, drop the cache, and commit the offset."""
        reader.process.drop()
        reader.process = ProcessQueue(offset)
        if self._ordered is not None:
            self._ordered.restart(reader.queue, reader.process)
        await self._write({reader.queue: offset})

    # --- offsets ----------------------------------------------------------------------------------------

    async def _persist_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.persist_interval_ms / 1000)
            self._statistics.sample()
            await self._persist()

    async def _persist(self) -> None:
        await self._write(self.consumed_offsets())

    async def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        if offsets:
            await self._try_commit(self._group.offsets.write(offsets))

    # --- what the broker may ask ------------------------------------------------------------------------

    @property
    def is_ordered(self) -> bool:
        """Whether queues are consumed in their order."""
        return self.settings.ordered

    @property
    def auto_commit(self) -> bool:
        """Whether a consumed message is committed without a COMMIT."""
        return self.settings.auto_commit

    def running_info(self) -> ConsumerRunningInfo:
        """Settings, subscriptions and queues, as ``mqadmin consumerStatus`` shows them."""
        return running_info(
            self._group,
            self._started_ms,
            {queue: self._queue_info(reader) for queue, reader in self._readers.items()},
            ordered=self.settings.ordered,
            threads=self.settings.concurrency,
            statistics=self._statistics,
        )

    def _queue_info(self, reader: _Reader) -> ProcessQueueInfo:
        process = reader.process
        return ProcessQueueInfo(
            commit_offset=process.commit_offset,
            cached_msg_min_offset=process.min_offset,
            cached_msg_max_offset=process.max_offset,
            cached_msg_count=process.message_count,
            cached_msg_size_in_mib=process.size_bytes >> 20,
            locked=self._ordered is not None and self._ordered.locked(reader.queue),
            droped=process.dropped,
            last_pull_timestamp=process.last_pull_ms,
            last_consume_timestamp=process.last_consume_ms,
        )

    def consumed_offsets(self) -> dict[MessageQueue, int]:
        """As ``progress``, under the cluster's names."""
        ordered = self._ordered
        return {
            queue: reader.process.commit_offset
            for queue, reader in self._readers.items()
            # If the lock of a queue is lost or overdue, another member may own the group's progress in it.
            if not reader.process.dropped and (ordered is None or ordered.locked(queue))
        }

    def consumes(self, topic: str) -> bool:
        """Whether the group subscribes to the topic; also its retries and dead letters, which tools hand in again."""
        return topic in self._group.subscriptions or topic == dlq_topic(self.group)

    async def consume_now(self, message: MessageExt) -> Outcome:
        """Call the listener with one message, as a tool asks (CONSUME_MESSAGE_DIRECTLY)."""
        self._group.calls.show(message)
        return await self._consumption.run_now([message] if self._batch_size else message)

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at ``offset``, as a tool asks (RESET_CONSUMER_CLIENT_OFFSET)."""
        reader = self._readers.get(queue)
        if reader is not None:
            log.warning("offset of %s for %s is reset to %d", queue, self.group, offset)
            reader.task.cancel()  # it may wait at the broker for messages behind the old offset
            try:
                await self._move(reader, offset)
            finally:
                if self._readers.get(queue) is reader:  # it may have been given up meanwhile
                    reader.task = self._keep_reading(reader)
