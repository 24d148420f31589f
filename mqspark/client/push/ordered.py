"""Consuming each queue in its order: one message (or batch) at a time, and only under the broker's lock.

``OrderedQueue`` decides what may run; ``Ordered`` passes it to the listener and keeps the locks. A failed message
pauses its queue and is delivered again, here, before any later one.

Facts: docs/rocketmq/client.md#ordered-consumption (ConsumeMessageOrderlyService, RebalanceImpl.lockAll).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from mqspark.base.clock import SystemClock, wall_ms
from mqspark.base.logs import escaping
from mqspark.client.consumer.consumer_settings import PushConsumerSettings
from mqspark.client.delivery.delivery import (
    ConsumeStatus,
    Delivery,
    Ended,
    Finished,
    Outcome,
    Skipped,
    failure_of,
    messages_of,
)
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.life.timers import Timer, Timers
from mqspark.client.push.concurrent import SendBack
from mqspark.client.remoting.remoting import level_of
from mqspark.errors import MQError
from mqspark.message import MessageExt, MessageQueue

log = escaping(__name__)

LOCK_LIFETIME_MS = 30_000
"""A queue counts as locked for this long after a renewal; the broker keeps a lock for 60 s (RebalanceImpl)."""
_DEAD_LETTER_LEVEL = -1
_SUSPEND_MS = (10, 30_000)


class Locks(Protocol):
    async def lock(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, bool]:
        """Take or renew locks; False where another member holds one. Queues whose broker did not answer are
        absent."""

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Never raises."""


class OrderedQueue:
    """The messages of one queue that wait or run, and whether the queue may be served. Times are monotonic ms."""

    __slots__ = (
        "_batch_size",
        "_locked_ms",
        "_needs_lock",
        "closing",
        "held",
        "lapsed",
        "process",
        "resume_ms",
        "running",
        "running_of",
        "waiting",
    )

    def __init__(self, *, batch_size: int, needs_lock: bool) -> None:
        self._batch_size = batch_size
        self._needs_lock = needs_lock
        self._locked_ms: int | None = None
        self.process: ProcessQueue | None = None
        self.waiting: deque[MessageExt] = deque()
        self.running: Sequence[MessageExt] = ()
        """With the listener now. No other message of this queue runs meanwhile, not even after ``restart``."""
        self.running_of: ProcessQueue | None = None
        """The process that the running messages were taken from last."""
        self.held: list[MessageExt] = []
        """The listener has returned for them but has not returned COMMIT yet; they come before ``running``."""
        self.resume_ms = 0
        """The queue pauses until then."""
        self.lapsed = False
        """The lock was lost: another member may have consumed further, so the cache is invalid."""
        self.closing = False

    def locked(self, now_ms: int) -> bool:
        if not self._needs_lock:
            return True
        return self._locked_ms is not None and now_ms - self._locked_ms <= LOCK_LIFETIME_MS

    def renewed(self, asked_ms: int) -> None:
        """The broker confirmed the lock in answer to a request sent at ``asked_ms``."""
        if self._locked_ms is not None and not self.locked(asked_ms):
            self.lapsed = True
        self._locked_ms = asked_ms

    def lost(self) -> None:
        """The broker reports that another member holds the lock."""
        self._locked_ms = None
        self.lapsed = True

    def restart(self, process: ProcessQueue) -> None:
        """Continue with ``process``; waiting messages are dropped, running ones are waited for."""
        self.process = process
        self.waiting.clear()
        self.held.clear()
        self.lapsed = False
        self.resume_ms = 0

    def add(self, messages: Sequence[MessageExt]) -> None:
        self.waiting.extend(messages)

    def next(self, now_ms: int) -> Sequence[MessageExt]:
        """The next messages for the listener; none while some are running, while the queue pauses, or without a
        lock."""
        if self.running or self.closing or self.lapsed or now_ms < self.resume_ms or not self.locked(now_ms):
            return ()
        waiting = self.waiting
        self.running = [waiting.popleft() for _ in range(min(len(waiting), self._batch_size))]
        self.running_of = self.process
        return self.running

    def done(self, process: ProcessQueue) -> None:
        """The running messages and those held before them are consumed. Ignored unless ``process``, from which they
        were taken, is still the current one."""
        messages, self.running = self.running, ()
        if self._current(process):
            process.complete(*self.held, *messages)
            self.held.clear()

    def hold(self, process: ProcessQueue) -> None:
        """The listener has returned; whether the messages are consumed is decided later."""
        messages, self.running = self.running, ()
        if self._current(process):
            self.held += messages

    def put_back(self, process: ProcessQueue, resume_ms: int) -> None:
        """The running messages failed and are first in line after the pause."""
        messages, self.running = self.running, ()
        if self._current(process):
            for message in messages:
                message.reconsume_times += 1
            self.waiting.extendleft(reversed(messages))
            self.resume_ms = resume_ms

    def roll_back(self, process: ProcessQueue, resume_ms: int) -> None:
        """The running and the held messages are first in line after the pause. Their retry counts do not change,
        because the failure of no single message is known (ProcessQueue.rollback)."""
        messages, self.running = self.running, ()
        if self._current(process):
            self.waiting.extendleft(reversed((*self.held, *messages)))
            self.held.clear()
            self.resume_ms = resume_ms

    def _current(self, process: ProcessQueue) -> bool:
        return process is self.process and not process.dropped


class Ordered:
    """The queues of one consumer. ``consumed`` is called with each queue whose cache has shrunk, ``regained``
    with each queue whose lock was lost and regained; it must ``restart`` the queue at the group's offset. Belongs
    to the running loop."""

    def __init__(
        self,
        group: str,
        settings: PushConsumerSettings,
        deliver: Callable[[Finished], Delivery],
        send_back: SendBack | None,
        locks: Locks | None,
        *,
        batch_size: int,
        timers: Timers,
        statistics: ConsumeStatistics,
        consumed: Callable[[ProcessQueue], None],
        regained: Callable[[MessageQueue], Awaitable[None]],
    ) -> None:
        """As ``Concurrent``. Without ``locks`` and ``send_back`` (broadcasting) no queue needs a lock, and no message
        is given up."""
        self._statistics = statistics
        self._group = group
        self._locks = locks
        self._send_back = send_back
        self._clock = SystemClock()
        """Locks use real time: moving the clock of a test does not change what brokers know of connected clients."""
        self._timing = timers
        self._batch_size = batch_size
        self._settings = settings
        self._consumed = consumed
        self._regained = regained
        self._queues: dict[MessageQueue, OrderedQueue] = {}
        self._of: dict[ProcessQueue, OrderedQueue] = {}
        self._idle: dict[OrderedQueue, asyncio.Future[None]] = {}
        self._timers: dict[OrderedQueue, Timer] = {}
        self._giving_up: set[asyncio.Task[None]] = set()
        self._renew_now = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._delivery = deliver(self._finished)
        self._stopping = False

    # --- queues -----------------------------------------------------------------------------------------

    async def claim(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Lock queues that are about to be taken. Returns the locked ones."""
        # A queue that is still being given up cannot be locked until that is finished.
        free = [queue for queue in queues if queue not in self._queues]
        for queue in free:
            self._queues[queue] = OrderedQueue(
                batch_size=max(1, self._batch_size), needs_lock=self._locks is not None
            )
        if self._locks is None:
            return set(free)
        await self._ask(free)
        claimed = {queue for queue in free if self._queues[queue].locked(self._clock.monotonic_ms())}
        for queue in free:
            if queue not in claimed:
                del self._queues[queue]
        return claimed

    async def unclaim(self, queues: Collection[MessageQueue]) -> None:
        """Release locks."""
        for queue in queues:
            ordered = self._queues.pop(queue, None)
            if ordered is not None:
                self._forget(ordered)
        if self._locks is not None:
            await self._locks.unlock(queues)

    def restart(self, queue: MessageQueue, process: ProcessQueue) -> None:
        """Serve a claimed queue from ``process``."""
        ordered = self._queues[queue]
        self._forget(ordered)
        ordered.restart(process)
        self._of[process] = ordered

    def _forget(self, ordered: OrderedQueue) -> None:
        """Its process is no longer served; running messages end in ``_finished``."""
        timer = self._timers.pop(ordered, None)
        if timer is not None:
            timer.cancel()
        process = ordered.process
        if process is not None and not (ordered.running and ordered.running_of is process):
            self._of.pop(process, None)

    def add(self, process: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        ordered = self._of.get(process)
        if ordered is not None:
            ordered.add(messages)
            self._advance(ordered)

    def readable(self, queue: MessageQueue) -> bool:
        """Whether the queue should be pulled now."""
        ordered = self._queues.get(queue)
        return ordered is not None and not ordered.lapsed and ordered.locked(self._clock.monotonic_ms())

    def locked(self, queue: MessageQueue) -> bool:
        ordered = self._queues.get(queue)
        return ordered is not None and ordered.locked(self._clock.monotonic_ms())

    async def unclaim_idle(self) -> None:
        """Release all locks except those of queues that a listener is still processing. Those expire later,
        because late delivery is better than a wrong order."""
        await self.unclaim([queue for queue, ordered in self._queues.items() if not ordered.running])

    async def settle(self, queue: MessageQueue) -> None:
        """Start nothing more of a queue and wait until nothing of it runs. Its lock is renewed meanwhile."""
        ordered = self._queues.get(queue)
        if ordered is None:
            return
        ordered.closing = True
        if ordered.running:
            self._idle[ordered] = waiter = self._loop.create_future()
            await waiter

    async def run_now(self, argument: Any) -> Outcome:
        return await self._delivery.run_now(argument)

    async def stop(self, timeout_ms: int) -> bool:
        """Start nothing more and wait for listeners. The locks stay until ``unclaim``. False if that did not end
        in time."""
        self._stopping = True
        deadline = self._loop.time() + timeout_ms / 1000
        ended = await self._delivery.stop(timeout_ms)
        if self._giving_up:
            _, late = await asyncio.wait(self._giving_up, timeout=max(0.0, deadline - self._loop.time()))
            ended = ended and not late
        return ended

    # --- locks ------------------------------------------------------------------------------------------

    def renew_soon(self) -> None:
        """A connection is new, or the group changed: a broker may have lost the locks."""
        self._renew_now.set()

    async def renew_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.lock_interval_ms / 1000):
                    await self._renew_now.wait()
            except TimeoutError:
                log.debug("renewing the locks of %s", self._group)
            self._renew_now.clear()
            await self._ask(list(self._queues))
            for queue, ordered in list(self._queues.items()):
                if ordered.lapsed and ordered.process is not None:
                    ordered.process.drop()
                    if ordered.locked(self._clock.monotonic_ms()) and not ordered.closing:
                        log.warning("%s has the lock of %s again, after losing it", self._group, queue)
                        await self._regained(queue)
                self._advance(ordered)

    async def _ask(self, queues: Collection[MessageQueue]) -> None:
        if self._locks is None or not queues:
            return
        asked_ms = self._clock.monotonic_ms()
        for queue, is_ours in (await self._locks.lock(queues)).items():
            ordered = self._queues.get(queue)
            if ordered is None:
                continue
            if is_ours:
                ordered.renewed(asked_ms)
            else:
                ordered.lost()

    # --- running ----------------------------------------------------------------------------------------

    def _advance(self, ordered: OrderedQueue) -> None:
        process = ordered.process
        if self._stopping or process is None:
            return
        now_ms = self._clock.monotonic_ms()
        messages = ordered.next(now_ms)
        if messages:
            argument = messages if self._batch_size else messages[0]
            self._delivery.submit(process, [argument])
        elif now_ms < ordered.resume_ms and ordered not in self._timers:
            pause_s = (ordered.resume_ms - now_ms) / 1000
            self._timers[ordered] = self._timing.call_later(pause_s, self._rested, ordered)

    def _rested(self, ordered: OrderedQueue) -> None:
        del self._timers[ordered]
        ordered.resume_ms = 0
        self._advance(ordered)

    def _finished(self, ended: Iterable[Ended]) -> None:
        for process, argument, outcome, elapsed_s in ended:
            self._ended(process, messages_of(argument), outcome, elapsed_s)

    def _ended(
        self, process: ProcessQueue, messages: Sequence[MessageExt], outcome: Outcome, elapsed_s: float
    ) -> None:
        ordered = self._of[process]
        failure = failure_of(outcome)
        if not isinstance(outcome, Skipped):
            process.last_consume_ms = wall_ms()
            count, failed = len(messages), failure is not None
            self._statistics.consumed(
                messages[0].topic, 0 if failed else count, count if failed else 0, elapsed_s * 1000
            )
        if isinstance(outcome, Skipped):
            ordered.put_back(process, 0)
        elif failure is None:
            self._succeeded(ordered, process, commit=outcome is ConsumeStatus.COMMIT)
        elif outcome is ConsumeStatus.ROLLBACK and not self._settings.auto_commit:
            ordered.roll_back(process, self._clock.monotonic_ms() + self._settings.suspend_queue_ms)
        else:
            limit = self._settings.max_reconsume_times
            log.warning(
                "listener of %s did not consume %s (delivery %d)",
                self._group,
                ", ".join(message.message_id for message in messages),
                messages[0].reconsume_times + 1,
                exc_info=outcome if isinstance(outcome, BaseException) else None,
            )
            pause_ms = self._settings.suspend_queue_ms if failure.suspend_ms is None else failure.suspend_ms
            if (
                limit is not None
                and self._send_back is not None
                and all(message.reconsume_times >= limit for message in messages)
            ):
                task = self._loop.create_task(self._give_up(ordered, process, self._send_back, pause_ms))
                self._giving_up.add(task)
                task.add_done_callback(self._giving_up.discard)
                return
            self._suspend(ordered, process, pause_ms)
        self._settled(ordered, process)

    def _succeeded(self, ordered: OrderedQueue, process: ProcessQueue, *, commit: bool) -> None:
        if commit or self._settings.auto_commit:
            ordered.done(process)
        else:
            ordered.hold(process)

    async def _give_up(
        self, ordered: OrderedQueue, process: ProcessQueue, send_back: SendBack, pause_ms: int
    ) -> None:
        """Send to the dead-letter topic; the queue waits for that."""
        try:
            for message in ordered.running:
                await send_back(message, _DEAD_LETTER_LEVEL)
        except MQError as error:
            log.log(
                level_of(error),
                "cannot give up a message of %s, delivered here again: %s",
                self._group,
                error,
            )
            self._suspend(ordered, process, pause_ms)
        else:
            self._succeeded(ordered, process, commit=False)
        self._settled(ordered, process)

    def _suspend(self, ordered: OrderedQueue, process: ProcessQueue, pause_ms: int) -> None:
        least, most = _SUSPEND_MS
        pause_ms = min(max(pause_ms, least), most)
        ordered.put_back(process, self._clock.monotonic_ms() + pause_ms)

    def _settled(self, ordered: OrderedQueue, process: ProcessQueue) -> None:
        if process is not ordered.process or process.dropped:
            self._of.pop(process, None)
        waiter = self._idle.pop(ordered, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._consumed(process)
        self._advance(ordered)
