"""The POP consumer: the brokers hand out messages one pop at a time, and no member of the group owns a queue.
Facts: RocketMQ's DefaultMQPushConsumerImpl.popMessage, ConsumeMessagePopConcurrentlyService, RebalanceImpl."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Unpack

from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.base.valuetypes import NonNegativeInt, checked
from mqspark.client.consumer.consumer_settings import PopConsumerKeywords, PopConsumerSettings
from mqspark.client.consumer.running_info import running_info, stacks
from mqspark.client.consumer.subscriber import Listening
from mqspark.client.delivery.delivery import (
    Around,
    Delivery,
    Ended,
    Listener,
    Outcome,
    Skipped,
    failure_of,
    make_delivery,
)
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.hooks.hooks import Intercepted
from mqspark.client.life.lifecycle import Within
from mqspark.client.pop.popacks import PopAcks
from mqspark.client.pop.popgroup import PULL, AssignedGroup, not_popped
from mqspark.client.pop.popordered import PoppedInOrder
from mqspark.client.pop.popped import Popped, popped_of
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.keywords import NAMES, changed, spelled_out
from mqspark.client.remoting.remoting import level_of
from mqspark.errors import ConfigError, MQError, NoRoute
from mqspark.message import RETRY_PREFIX, TAGS, MessageExt, MessageQueue
from mqspark.protocol.bodies.admin_bodies import PopProcessQueueInfo
from mqspark.protocol.bodies.body import encode_body, queue_key
from mqspark.protocol.bodies.client_bodies import ConsumeFromWhere
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    INIT_MAX,
    INIT_MIN,
    GetConsumerRunningInfoRequestHeader,
    PopMessageRequestHeader,
)

log = escaping(__name__)

RETRY_DELAYS_MS = tuple(
    1000 * seconds
    for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""How long a failed message stays invisible, by the number of its deliveries (popDelayLevel)."""

MAX_IN_FLIGHT = 4
"""Concurrent pops of one queue (or of all of a broker's queues)."""

_POLL_SLACK_MS = 10_000
_FULL_PAUSE_S = 1.0
NO_PROGRESS_PAUSE_S = 0.02
_POP_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
)


class _InTime:
    """Calls the listener only for messages whose invisible time has not expired (``delivery.Around``)."""

    def __init__(self, is_held: Callable[[MessageExt], bool]) -> None:
        self._is_held = is_held

    def begin(self, message: MessageExt) -> None:
        if not self._is_held(message):
            raise Skipped

    def end(self, note: None, outcome: Outcome) -> None:
        """Nothing to do."""


@checked(own=NAMES - {"__init__.listener"})
class PopConsumer(Listening):
    """Calls ``listener`` with each message that the brokers hand out. A group may have more members than its
    topics have queues, and a slow member delays no other.

    The listener is a function (called in up to ``concurrency`` threads) or a coroutine function (as many
    coroutines on the loop). Returning CONSUME_SUCCESS or nothing acknowledges the message; RECONSUME_LATER, a
    ``RetryLater``, an exception or a value that is no outcome makes it visible to the group again after
    10 s, then 30 s, 1 min and so on (``delay_level`` chooses one of these times), with ``reconsume_times``
    counting up; after ``max_reconsume_times`` it goes to the dead-letter topic ``%DLQ%<group>``. No other member gets
    the message for ``invisible_ms``. If a listener takes longer, the message is delivered again, here or elsewhere,
    and the listener's result is ignored.

    ``ordered``: one message of a queue at a time, in the order of the queue, by one member of the group, which
    holds it for as long as its listener takes. A failed message is delivered again, here and before later
    messages of its queue, every ``suspend_queue_ms``; after ``max_reconsume_times`` it goes to the dead-letter
    topic. All members of a group must use the same value.

    The group must be in POP mode for its topics (``AdminClient.set_consume_mode``). Messages sent back while the
    group was in PULL mode are not read. Delivery is at least once, in no order unless ``ordered``. Not
    thread-safe: use it on the loop it was started on.
    """

    _group: AssignedGroup

    settings: PopConsumerSettings
    """In effect, keywords included."""

    @spelled_out(PopConsumerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        listener: Listener,
        settings: PopConsumerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[PopConsumerKeywords],
    ) -> None:
        """Every field of ``PopConsumerSettings`` and ``ClientOptions`` may also be given as a keyword, which takes
        precedence. Raises ConfigError, TypeError for an unknown keyword."""
        self.settings, options = changed(
            settings or PopConsumerSettings(), options or ClientOptions(), changes
        )
        super().__init__(namesrv, group, self.settings, options, group_type=AssignedGroup)
        self._listener = listener if self._typed is None else self._typed.heard(listener)
        self._batch_size = self.settings.pop_batch_size
        self._ordered: PoppedInOrder | None = None
        self._from_first = self.settings.consume_from is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        self._readers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._helping: Counter[MessageQueue] = Counter()
        self._helpers: set[asyncio.Task[None] | None] = set()
        self._last_pop_ms: dict[MessageQueue, int] = {}
        self._held: dict[int, Popped] = {}
        """Keyed by ``id`` of the message."""
        self._process = ProcessQueue(0)
        """Calls require one. Nothing is dropped, because receipts stay valid when the queue is assigned to another
        member."""
        self._room = asyncio.Event()
        self._statistics: ConsumeStatistics
        self._now_s: Callable[[], float]
        self._delivery: Delivery
        self._acks: PopAcks

    # --- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises ConnectionLost or RequestTimeout without a name server; ConfigError without a topic, or when a topic
        is not in POP mode."""
        if self._running:
            return
        topics = [topic for topic in self._group.subscriptions if not topic.startswith(RETRY_PREFIX)]
        await self._enter(rebalance=True, prepare=self._prepare)
        try:
            await self._check_modes(topics)
        except BaseException:
            await self.stop(0)
            raise

    def _prepare(self) -> None:
        self._statistics = ConsumeStatistics(self._group.instance.clock)
        self._now_s = self._group.instance.timers.now_s
        around: list[Around] = [_InTime(self._is_held)]
        if self._interceptors:
            group = self._group.namespace.unwrap(self.group)
            around.append(Intercepted(self._interceptors, group, self.settings.invisible_ms))
        self._delivery = make_delivery(
            self._listener,
            concurrency=self.settings.concurrency,
            finished=self._finished,
            within=Within(self),
            around=around,
            now_s=self._group.instance.timers.now_s,
        )
        self._acks = PopAcks(self._group.instance, self.group)
        if self.settings.ordered:
            self._ordered = PoppedInOrder(
                timers=self._group.instance.timers,
                invisible_ms=self.settings.invisible_ms,
                submit=self._submit,
                forget=self._release,
                renew=lambda work: self._acks.renew(work.topic, work.receipt, self.settings.invisible_ms),
            )
            self._group.tasks.keep(self._ordered.renew_forever)

    async def _check_modes(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                assigned = await self._group.assigned(topic)
            except MQError as error:
                log.warning("cannot query the consume mode of %s for %s yet: %s", topic, self.group, error)
                continue
            if assigned and PULL in assigned.values():
                raise ConfigError(not_popped(topic, self.group), key="topic")

    async def stop(self, timeout_ms: NonNegativeInt = 30_000) -> None:
        """Stop popping, wait up to ``timeout_ms`` for running listeners, acknowledge their messages, and release
        messages that no listener has started. Called by a listener, it returns at once: the end waits for the listener
        and counts its outcome."""
        await super().stop(timeout_ms)

    def _begin_end(self) -> None:
        if self._running and self._ordered is not None:  # the message that ends next is the last one
            self._ordered.stop()

    async def _stop(self, timeout_ms: int = 30_000) -> None:
        if not self._running:
            return
        self._running = False
        for task in (*self._readers.values(), *self._helpers):
            if task is not None:
                task.cancel()
        self._readers.clear()
        if self._ordered is not None:
            self._ordered.stop()
        if not await self._delivery.stop(timeout_ms):
            log.warning("a listener of %s is still running after %d ms", self.group, timeout_ms)
        busy = {id(message) for _, message, _ in self._delivery.running()}
        for number, work in list(self._held.items()):
            if number not in busy:
                self._acks.put_off(work.topic, work.receipt, 0)
        await self._acks.stop()
        await self._exit()

    # --- public -----------------------------------------------------------------------------------------

    def assignment(self) -> list[MessageQueue]:
        """The queues this member pops from; queue id -1 means all queues of a broker."""
        return sorted(self._group.namespace.unwrap_queues(self._readers))

    # --- QueueOwner -------------------------------------------------------------------------------------

    def owned(self) -> Collection[MessageQueue]:
        return self._readers.keys()

    async def take(self, queue: MessageQueue, start_offset: int) -> None:
        if self._running and queue not in self._readers:
            self._readers[queue] = self._group.tasks.keep(functools.partial(self._pop_forever, queue))

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Messages already popped are still consumed here."""
        for queue in queues:
            self._last_pop_ms.pop(queue, None)
            task = self._readers.pop(queue, None)
            if task is not None:
                task.cancel()

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        if request.code != RequestCode.GET_CONSUMER_RUNNING_INFO:
            return await super().answer(request)
        info = running_info(
            self._group, self._started_ms, {}, threads=self.settings.concurrency, statistics=self._statistics
        )
        info.mq_pop_table = {
            queue_key(queue): PopProcessQueueInfo(
                wait_ack_count=len(self._held), last_pop_timestamp=self._last_pop_ms.get(queue, 0)
            )
            for queue in self._readers
        }
        if request.header(GetConsumerRunningInfoRequestHeader).jstack_enable:
            info.jstack = stacks()
        return ResponseCode.SUCCESS, encode_body(info), None

    # --- popping ----------------------------------------------------------------------------------------

    async def _pop_forever(self, queue: MessageQueue) -> None:
        """One long poll after the other; while they return full batches, additional short polls run beside them."""
        while True:
            if await self._pop_once(queue, self.settings.poll_ms) == self._batch_size:
                for _ in range(MAX_IN_FLIGHT - 1 - self._helping[queue]):
                    self._helping[queue] += 1
                    self._helpers.add(self._group.tasks.spawn(self._pop_while_full(queue)))

    async def _pop_while_full(self, queue: MessageQueue) -> None:
        try:
            while queue in self._readers and await self._pop_once(queue, 0) == self._batch_size:
                pass
        finally:
            self._helping[queue] -= 1
            self._helpers.discard(asyncio.current_task())

    def _submit(self, *works: Popped) -> None:
        self._delivery.submit(self._process, [work.message for work in works])

    def _release(self, work: Popped) -> None:
        """The message is no longer held; there may be room for others."""
        del self._held[id(work.message)]
        if len(self._held) < self.settings.max_unacknowledged:
            self._room.set()

    async def _pop_once(self, queue: MessageQueue, poll_ms: int) -> int:
        """When there is room: pop, and pass the messages to the listener. Returns their number."""
        await self._unsuspended.wait()
        while len(self._held) >= self.settings.max_unacknowledged:
            self._room.clear()
            await self._room.wait()
        attempt_id = uuid.uuid4().hex if self.settings.ordered else None
        while True:
            try:
                popped = await self._pop(queue, poll_ms, attempt_id)
                break
            except MQError as error:
                await self._group.calls.recover(queue, error)
                if attempt_id is None or queue not in self._readers:
                    return 0
                # Without an answer it is unknown what was handed out; a retry with the same attempt id gets it
                # again.
        self._group.calls.recovered(queue)
        if popped is None:
            await asyncio.sleep(_FULL_PAUSE_S)
            return 0
        for work in popped:
            self._held[id(work.message)] = work
        if self._ordered is not None:
            self._ordered.add(popped)
        else:
            self._submit(*popped)
        return len(popped)

    async def _pop(self, queue: MessageQueue, poll_ms: int, attempt_id: str | None) -> list[Popped] | None:
        """One request; None if too many polls wait at the broker. Raises MQError."""
        group = self._group
        subscription = group.subscriptions.get(queue.topic)
        address = group.instance.broker_address(queue.broker_name)
        if address is None:
            raise NoRoute(queue.topic, f"broker {queue.broker_name} has no address")
        now_ms = self._last_pop_ms[queue] = wall_ms()
        header = PopMessageRequestHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=min(self._batch_size, max(1, self.settings.max_unacknowledged - len(self._held))),
            invisible_time=self.settings.invisible_ms,
            poll_time=poll_ms,
            born_time=now_ms,
            init_mode=INIT_MIN if self._from_first else INIT_MAX,
            exp_type=subscription.expression_type if subscription else "TAG",
            exp=subscription.sub_string if subscription else "*",
            order=self.settings.ordered,
            attempt_id=attempt_id,
            bname=queue.broker_name,
        )
        group.instance.silence.uses(address)
        began_s = self._now_s()
        response = await group.instance.remoting.invoke(
            address,
            RequestCode.POP_MESSAGE,
            header,
            timeout_ms=poll_ms + _POLL_SLACK_MS,
            poll_ms=poll_ms,
            accept=_POP_CODES,
        )
        if response.code == ResponseCode.POLLING_FULL:
            return None
        if response.code != ResponseCode.SUCCESS:
            await self._pace(queue, response, self._now_s() - began_s)
            return []
        works = popped_of(
            response,
            queue,
            self.group,
            group.namespace,
            group.instance.options.inflate_limits,
            arrived_s=self._now_s(),
        )
        if subscription is None or not subscription.tags_set:
            return works
        # The broker compared hashes, and two tags may share one.
        tags = frozenset(subscription.tags_set)
        wanted = []
        for work in works:
            if work.message.properties.get(TAGS) in tags:
                wanted.append(work)
            else:
                self._acks.ack(work.topic, work.receipt)
        return wanted

    async def _pace(self, queue: MessageQueue, response: Command, took_s: float) -> None:
        """Keep a broker that answers nothing at once from being asked without end. RocketMQ does that when its clock is
        ahead: it takes each poll for one that has come too late."""
        what, outages = ("late", self.group, queue), self._group.instance.outages
        if took_s >= NO_PROGRESS_PAUSE_S:
            outages.over(what, "broker %s waits for messages again", queue.broker_name)
            return
        if response.code == ResponseCode.POLLING_TIMEOUT:
            text = (
                "%s gets nothing from broker %s, which does not wait for messages: %s; are the clocks right?"
            )
            outages.failed(what, None, text, self.group, queue.broker_name, response.remark)
        await asyncio.sleep(NO_PROGRESS_PAUSE_S)

    # --- consuming --------------------------------------------------------------------------------------

    def _is_held(self, message: MessageExt) -> bool:
        work = self._held.get(id(message))
        return work is not None and self._is_ours(work)

    def _is_ours(self, work: Popped) -> bool:
        return self._ordered.is_ours(work) if self._ordered is not None else self._now_s() < work.deadline

    def _finished(self, ended: Iterable[Ended]) -> None:
        for _, message, outcome, elapsed_s in ended:
            self._ended(message, outcome, elapsed_s)

    def _ended(self, message: MessageExt, outcome: Outcome, elapsed_s: float) -> None:
        if isinstance(outcome, Skipped) and not self._running:
            return  # ``stop`` handles it
        work, ordered = self._held[id(message)], self._ordered
        self._release(work)
        if isinstance(outcome, Skipped) or not self._is_ours(work):
            log.warning(
                "%s of %s was not consumed within its %d ms and will be redelivered",
                message.message_id,
                self.group,
                work.receipt.invisible_time_ms,
            )
            if ordered is not None:
                ordered.done(work)
            return
        failure = failure_of(outcome)
        failed = failure is not None
        self._statistics.consumed(message.topic, 1 - failed, int(failed), elapsed_s * 1000)
        self._statistics.sample()
        if failure is None:
            self._acks.ack(work.topic, work.receipt)
            if ordered is not None:
                ordered.done(work)
            return
        log.warning(
            "listener of %s did not consume %s (delivery %d)",
            self.group,
            message.message_id,
            message.reconsume_times + 1,
            exc_info=outcome if isinstance(outcome, BaseException) else None,
        )
        if failure.delay_level < 0 or message.reconsume_times >= self.settings.max_reconsume_times:
            self._acks.spawn(self._send_to_dead_letters(work))
            return
        if ordered is not None:
            self._suspend_queue(ordered, work, failure.suspend_ms)
            return
        level = failure.delay_level or message.reconsume_times
        self._acks.put_off(work.topic, work.receipt, RETRY_DELAYS_MS[min(level, len(RETRY_DELAYS_MS) - 1)])

    def _suspend_queue(self, ordered: PoppedInOrder, work: Popped, pause_ms: int | None) -> None:
        work.message.reconsume_times += 1
        self._held[id(work.message)] = work
        ordered.rest(work, self.settings.suspend_queue_ms if pause_ms is None else pause_ms)

    async def _send_to_dead_letters(self, work: Popped) -> None:
        """Send to the dead-letter topic; if that fails, the message is delivered again."""
        ordered = self._ordered
        try:
            await self._group.calls.send_back(work.message, -1, self.settings.max_reconsume_times)
        except MQError as error:
            log.log(level_of(error), "cannot make %s a dead letter yet: %s", work.message.message_id, error)
            if ordered is not None:
                self._suspend_queue(ordered, work, None)
        else:
            self._acks.ack(work.topic, work.receipt)
            if ordered is not None:
                ordered.done(work)
