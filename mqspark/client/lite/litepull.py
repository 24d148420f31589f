"""The lite pull consumer: the user's program asks for messages. Facts: RocketMQ's DefaultLitePullConsumerImpl and
AssignedMessageQueue."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Unpack

from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.base.valuetypes import NonNegativeInt, checked
from mqspark.client.consumer.consumer_settings import LitePullConsumerKeywords, LitePullConsumerSettings
from mqspark.client.consumer.queuewatch import QueuesListener, QueueWatch
from mqspark.client.consumer.running_info import running_info
from mqspark.client.consumer.subscriber import Subscriber
from mqspark.client.hooks.hooks import let_through, saw_consumed
from mqspark.client.lite.assigned import Assigned, PulledBatch
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.keywords import NAMES, changed, spelled_out
from mqspark.errors import ClientError, ConfigError, MQError
from mqspark.message import MASTER_ID, MessageExt, MessageQueue
from mqspark.protocol.bodies.admin_bodies import GetConsumerStatusBody
from mqspark.protocol.bodies.body import encode_body, queue_key
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import GetConsumerStatusRequestHeader

log = escaping(__name__)


@checked(but=("at_once", "hand", "offer"), own=NAMES)
class LitePullConsumer(Subscriber):
    """``poll`` or ``async for`` the messages of subscribed topics, or of queues that were assigned.

    Either ``subscribe`` (the queues are shared with the group's other members) or ``assign``, never both. A
    message counts as consumed when the next one is requested or ``commit`` is called; with ``auto_commit`` the
    offsets are written every ``auto_commit_interval_ms`` and by ``stop``. When an exception leaves ``async
    with``, the last delivered messages do not count as consumed. Not thread-safe.
    """

    settings: LitePullConsumerSettings
    """In effect, keywords included."""

    @spelled_out(LitePullConsumerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        settings: LitePullConsumerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[LitePullConsumerKeywords],
    ) -> None:
        """Every field of ``LitePullConsumerSettings`` and ``ClientOptions`` may also be given as a keyword, which takes
        precedence. Raises ConfigError, TypeError for an unknown keyword."""
        self.settings, options = changed(
            settings or LitePullConsumerSettings(), options or ClientOptions(), changes
        )
        super().__init__(namesrv, group, self.settings, options)
        self._watch = QueueWatch(
            self.fetch_message_queues, self._group.tasks, self.settings.queues_interval_ms
        )
        self._assigned: dict[MessageQueue, Assigned] = {}
        self._to_assign: list[MessageQueue] | None = None
        self._ready: deque[Assigned] = deque()
        """One entry for each cached batch; entries of queues that have become empty are skipped."""
        self._last: PulledBatch | None = None
        self._offered: PulledBatch | None = None
        """The batch whose messages come next."""
        self._given = 0
        """How many messages of it the program has."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._space: dict[Assigned, asyncio.Future[None]] = {}
        self._paused: dict[MessageQueue, asyncio.Event] = {}

    # --- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises ConnectionLost or RequestTimeout when no name server answers."""
        if self._running:
            return
        await self._enter(rebalance=bool(self._group.subscriptions))
        if self._to_assign is not None:
            try:
                await self._assign_all(self._to_assign)
            except BaseException:
                await self._stop(confirm=False)
                raise
        if self.settings.auto_commit:
            self._group.tasks.keep(self._commit_forever)
        self._watch.start()

    async def stop(self) -> None:
        """With ``auto_commit``, commit everything that was delivered. Then leave the group."""
        await super().stop()

    async def stop_at_exit(self, timeout_ms: int) -> None:
        """As ``Lifecycle.stop_at_exit``. Nobody knows whether the program is done with what it got last."""
        await self._leave(ClientError("the program ends"))

    async def _stop(self, *, confirm: bool = True) -> None:
        if not self._running:
            return
        self._running = False
        self._watch.stop()
        if confirm:
            self._confirm()
        if self.settings.auto_commit:
            try:
                await self._group.offsets.write_at_last(self._uncommitted())
            except (ClientError, OSError) as error:
                log.error(
                    "offsets of %s are not committed, messages will be redelivered: %s", self.group, error
                )
        for assigned in self._assigned.values():
            assigned.task.cancel()
        self._assigned.clear()
        self._ready.clear()
        self._offered = None
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        await self._exit()

    async def _leave(self, error: BaseException | None) -> None:
        await self._ended_by(functools.partial(self._stop, confirm=error is None))

    # --- queue selection --------------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", *, sql: str | None = None) -> None:
        """As with every consumer. Raises ConfigError after ``assign``."""
        if self._to_assign is not None:
            raise ConfigError(
                "this consumer was assigned queues; it cannot subscribe as well", key="subscribe"
            )
        super().subscribe(topic, tags, sql=sql)

    async def assign(
        self, queues: Iterable[MessageQueue], tags: str | Iterable[str] = "*", *, sql: str | None = None
    ) -> None:
        """Read exactly these queues, each from its committed offset, filtered as by ``subscribe``. Raises
        ConfigError after ``subscribe``, ClientError when a broker refuses the filter.
        """
        if self._group.subscriptions:
            raise ConfigError("this consumer is subscribed; it cannot be assigned queues", key="assign")
        to_assign = self._group.namespace.wrap_queues(queues)
        if not to_assign:
            raise ConfigError("assign at least one queue", key="assign")
        self._group.filter_assigned({queue.topic for queue in to_assign}, tags, sql)
        self._to_assign = to_assign
        if self._running:
            await self._group.check_filters()
            await self._assign_all(to_assign)

    async def _assign_all(self, queues: list[MessageQueue]) -> None:
        await self.give_up([queue for queue in self._assigned if queue not in queues])
        for queue in queues:
            if queue not in self._assigned:
                await self._group.instance.route(queue.topic)
                await self.take(queue, await self._group.start_offset(queue))

    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return sorted(self._group.namespace.unwrap_queues(self._assigned))

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, from the name server. Raises NoRoute."""
        self._check_running()
        namespace = self._group.namespace
        route = await self._group.instance.route(namespace.wrap(topic), refresh=True)
        return namespace.unwrap_queues(route.subscribe_queues)

    def on_queues_changed(self, topic: str, listener: QueuesListener | None) -> None:
        """Call ``listener`` when the readable queues of ``topic`` differ from those at the time of this call;
        None stops that. For programs that assign queues; subscribed consumers follow changes by themselves."""
        self._watch.listen(topic, listener)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop fetching these queues; cached messages are still delivered."""
        for queue in self._group.namespace.wrap_queues(queues):
            self._paused.setdefault(queue, asyncio.Event())

    def resume(self, *queues: MessageQueue) -> None:
        """Fetch these queues again after ``pause``."""
        for queue in self._group.namespace.wrap_queues(queues):
            event = self._paused.pop(queue, None)
            if event is not None:
                event.set()

    # --- messages ---------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: NonNegativeInt = 5_000) -> list[MessageExt]:
        """The next messages, all of one queue and in order; an empty list if there are none for ``timeout_ms``.

        The messages of the last call count as consumed. Raises ClientError before the start and after the stop.

        >>> for message in await consumer.poll():
        ...     print(message.body)
        """
        batch = await self.offer(timeout_ms)
        if batch is None:
            return []
        messages = batch.messages[self._given :] if self._given else batch.messages
        self.hand(batch, len(batch.messages))
        return messages

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        return self

    async def __anext__(self) -> MessageExt:
        """Waits without a limit; ends when the consumer is stopped."""
        batch = self.offered() or await self.offer(None)
        if batch is None:
            raise StopAsyncIteration
        message = batch.messages[self._given]
        self.hand(batch, self._given + 1)
        return message

    # --- in two steps, for a program that may be interrupted between them

    async def offer(self, timeout_ms: NonNegativeInt | None) -> PulledBatch | None:
        """The batch whose messages come next, ``given`` of which the program has; it stays the next one until ``hand``
        says that the program has all of them. None after ``timeout_ms`` and when the consumer is stopped. What was
        handed before counts as consumed."""
        if (batch := self._next()) is None:
            self._check_readable(waits=timeout_ms is None)
            deadline = None if timeout_ms is None else self._loop.time() + timeout_ms / 1000
            while (batch := self._next()) is None:
                if not self._running or not await self._arrival(deadline):
                    return None
        if self._typed is not None:
            await self._typed.give(batch.messages)
        return batch

    def at_once(self) -> PulledBatch | None:
        """As ``offer``, if it need not wait."""
        batch = self._next()
        return None if batch is None else self.offered()

    def offered(self) -> PulledBatch | None:
        """What is offered already, if the program may have it at once. Callable in its thread."""
        batch = self._current()
        if batch is not None and self._typed is not None and not self._typed.is_given(batch.messages):
            return None
        return batch

    def _current(self) -> PulledBatch | None:
        self._confirm()
        batch = self._offered
        if (
            batch is None
            or batch.generation != batch.assigned.generation
            or self._given >= len(batch.messages)
        ):
            self._offered = batch = None
        return batch

    @property
    def given(self) -> int:
        """How many messages of the offered batch the program has."""
        return self._given

    def hand(self, batch: PulledBatch, count: int) -> None:
        """The program has the first ``count`` messages of the offered batch. A repetition does nothing."""
        if batch is not self._offered or count <= self._given:
            return
        assigned = batch.assigned
        if batch.generation == assigned.generation:
            if count < len(batch.messages):
                assigned.delivered = batch.messages[count - 1].queue_offset + 1
            else:
                # All that is fetched: what follows it so far was not wanted.
                assigned.delivered = batch.next_offset if assigned.batches else assigned.next_offset
            self._last = batch
        self._given = count

    def check_iterable(self) -> None:
        """Raises ClientError before the start. A stopped consumer ends an iteration but does not start one."""
        self._check_started()

    def _confirm(self) -> None:
        """The delivered messages count as consumed."""
        last, self._last = self._last, None
        if last is not None and last.generation == last.assigned.generation:
            last.assigned.consumed = last.assigned.delivered

    def _check_readable(self, *, waits: bool) -> None:
        """Raises ClientError for a consumer that has nothing to read; a stopped one ends an iteration, which
        ``waits`` without a limit."""
        if not self._running:
            if waits:
                self.check_iterable()
                return
            self._check_running()
        if self._to_assign is None and not self._group.subscriptions:
            raise ClientError(
                f"the LitePullConsumer of group {self.group} has nothing to read: subscribe(topic) or assign(queues)"
            )

    def _next(self) -> PulledBatch | None:
        """The batch whose messages come next, if it is there."""
        batch = self._current()
        while batch is None and (popped := self._pop()) is not None:
            if self._interceptors:
                saw_consumed(self._interceptors, self._group.namespace.unwrap(self.group), popped.messages)
            self._offered, self._given = popped, 0
            batch = self._current()
        return batch

    def _pop(self) -> PulledBatch | None:
        while self._ready:
            assigned = self._ready.popleft()
            if assigned.batches:
                batch = assigned.pop()
                for waiting, space in self._space.items():
                    if not space.done() and not self._is_full(waiting):
                        space.set_result(None)
                return batch
        return None

    async def _arrival(self, deadline: float | None) -> bool:
        """False on a timeout or when the consumer is stopped."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():
                self._wake_one()  # the wake-up was for this waiter, which has just given up
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        return self._running

    # --- offsets ----------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at ``offset``, which must be within the queue (its end included). Raises ClientError."""
        assigned = self._require(queue)
        calls, place = self._group.calls, assigned.queue
        low, high = await calls.min_offset(place), await calls.max_offset(place)
        if not low <= offset <= high:
            raise ClientError(f"offset {offset} of {queue} is not within {low} and {high}")
        self._restart(assigned, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first message that the broker still has. Raises ClientError for a queue that is not
        assigned."""
        assigned = self._require(queue)
        self._restart(assigned, await self._group.calls.min_offset(assigned.queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue behind the last message: only new ones are read. Raises ClientError for a queue that is not
        assigned."""
        assigned = self._require(queue)
        self._restart(assigned, await self._group.calls.max_offset(assigned.queue))

    async def seek_to_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at or after that time (ms since the epoch)."""
        assigned = self._require(queue)
        self._restart(assigned, await self._group.calls.offset_for_timestamp(assigned.queue, timestamp_ms))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after that time (ms since the epoch), or the end of the
        queue. Raises NoRoute, BrokerError."""
        self._check_running()
        place = self._group.namespace.wrap_queue(queue)
        await self._group.instance.route(place.topic)
        return await self._group.calls.offset_for_timestamp(place, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, None if there is none."""
        self._check_running()
        place = self._group.namespace.wrap_queue(queue)
        await self._group.instance.route(place.topic)
        return await self._group.offsets.read(place)

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message to deliver. Raises ClientError for a queue that is not assigned."""
        return self._require(queue).delivered

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the delivered messages, or the given offsets; returns when the broker has stored them."""
        self._check_running()
        if offsets is None:
            self._confirm()
            await self._write(self._uncommitted())
        else:
            for queue, offset in offsets.items():
                if offset < 0:
                    raise ClientError(f"offset {offset} of {queue} cannot be committed")
            wrap = self._group.namespace.wrap_queue
            await self._group.offsets.write({wrap(queue): offset for queue, offset in offsets.items()})

    def _require(self, queue: MessageQueue) -> Assigned:
        assigned = self._assigned.get(self._group.namespace.wrap_queue(queue))
        if assigned is None:
            raise ClientError(f"{queue} is not assigned to this consumer now")
        return assigned

    def _uncommitted(self) -> dict[MessageQueue, int]:
        return {
            queue: assigned.consumed
            for queue, assigned in self._assigned.items()
            if assigned.consumed != assigned.written
        }

    async def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        if offsets:
            for queue in await self._group.offsets.write(offsets):
                assigned = self._assigned.get(queue)
                if assigned is not None:
                    assigned.written = offsets[queue]

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.auto_commit_interval_ms / 1000)
            await self._try_commit(self._write(self._uncommitted()))

    # --- QueueOwner -------------------------------------------------------------------------------------

    def owned(self) -> Collection[MessageQueue]:
        return self._assigned.keys()

    async def take(self, queue: MessageQueue, start_offset: int) -> None:
        if self._running and queue not in self._assigned:
            assigned = Assigned(queue, start_offset)
            self._assigned[queue] = assigned
            assigned.task = self._group.tasks.keep(functools.partial(self._fetch_forever, assigned))

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        offsets: dict[MessageQueue, int] = {}
        for queue in queues:
            assigned = self._assigned.pop(queue, None)
            if assigned is not None:
                assigned.task.cancel()
                if assigned.consumed != assigned.written:
                    offsets[queue] = assigned.consumed
                assigned.restart(assigned.consumed)
        if self.settings.auto_commit:
            await self._try_commit(self._write(offsets))

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            tables = {queue: assigned.info() for queue, assigned in self._assigned.items()}
            info = running_info(self._group, self._started_ms, tables)
            return ResponseCode.SUCCESS, encode_body(info), None
        if request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            topic = request.header(GetConsumerStatusRequestHeader).topic
            offsets = {
                queue_key(queue): assigned.consumed
                for queue, assigned in self._assigned.items()
                if queue.topic == topic
            }
            return ResponseCode.SUCCESS, encode_body(GetConsumerStatusBody(message_queue_table=offsets)), None
        return await super().answer(request)

    # --- fetching ---------------------------------------------------------------------------------------

    def _restart(self, assigned: Assigned, offset: int) -> None:
        assigned.task.cancel()
        assigned.restart(offset)
        if self._assigned.get(assigned.queue) is assigned:
            assigned.task = self._group.tasks.keep(functools.partial(self._fetch_forever, assigned))

    async def _fetch_forever(self, assigned: Assigned) -> None:
        queue = assigned.queue
        while True:
            paused = self._paused.get(queue)
            if paused is not None:
                await paused.wait()
                continue
            if self._is_full(assigned):
                await self._wait_for_space(assigned)
                continue
            assigned.last_pull_ms = wall_ms()
            try:
                pulled = await self._group.pull(
                    queue, assigned.next_offset, commit_offset=0, broker_id=assigned.broker_id, lite=True
                )
            except MQError as error:
                assigned.broker_id = MASTER_ID
                await self._group.calls.recover(queue, error)
                continue
            assigned.broker_id = pulled.suggested_broker_id
            if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
                log.warning("%s continues %s at %d", self.group, queue, pulled.next_offset)
                assigned.restart(pulled.next_offset)
                continue
            floor = assigned.next_offset
            assigned.next_offset = pulled.next_offset
            # A record with several messages is served whole, so it may begin before the requested offset.
            messages = [message for message in pulled.messages if message.queue_offset >= floor]
            if self._interceptors:
                messages = let_through(self._interceptors, messages)
            if messages:
                assigned.put(messages, pulled.next_offset)
                self._ready.append(assigned)
                self._wake_one()
                if self.settings.pull_interval_ms:
                    await asyncio.sleep(self.settings.pull_interval_ms / 1000)
            elif not assigned.batches and assigned.delivered == floor:
                if assigned.consumed == floor:
                    assigned.consumed = pulled.next_offset
                assigned.delivered = pulled.next_offset

    def _is_full(self, assigned: Assigned) -> bool:
        return (
            assigned.cached >= self.settings.max_cached_messages
            or assigned.cached_bytes > self.settings.max_cached_bytes
            or assigned.span > self.settings.max_span
            # A queue without cached messages continues; otherwise a queue that is not read would block all
            # others.
            or (
                assigned.cached > 0
                and sum(each.cached for each in self._assigned.values())
                >= self.settings.max_cached_messages_in_all
            )
        )

    async def _wait_for_space(self, assigned: Assigned) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._space[assigned] = waiter
        try:
            await waiter
        finally:
            del self._space[assigned]

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
