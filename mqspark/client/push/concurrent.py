"""Unordered consumption: messages go to the listener as they arrive, failed ones back to the broker.

A failed message is sent back to its broker (CONSUMER_SEND_MSG_BACK), which delivers it again after a delay
through the group's retry topic, or stores it in the dead-letter topic; here it is then finished. If no broker
accepts it, it is delivered again from the cache.

Facts: docs/rocketmq/client.md#concurrent-consumption (ConsumeMessageConcurrentlyService).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.client.consumer.consumer_settings import PushConsumerSettings
from mqspark.client.delivery.delivery import (
    Delivery,
    Ended,
    Finished,
    Outcome,
    RetryLater,
    Skipped,
    failure_of,
    messages_of,
)
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.life.timers import Timers
from mqspark.client.remoting.remoting import level_of
from mqspark.errors import MQError
from mqspark.message import MessageExt

log = escaping(__name__)

SendBack = Callable[[MessageExt, int], Awaitable[None]]
"""Sends a message back to its broker with a delay level. Raises MQError if it is not accepted."""

_EXPIRED_LEVEL = 3
"""The delay level of a message whose listener timed out (ProcessQueue.cleanExpiredMsg)."""


@dataclass(slots=True)
class _Successes:
    """Messages of a queue that the listener consumed one after the other: a fast one leaves many."""

    process: ProcessQueue
    topic: str
    """In the queue of a group's retries it may change from message to message."""
    messages: list[MessageExt] = field(default_factory=list)
    calls: int = 0
    elapsed_s: float = 0.0


_NO_QUEUE = ProcessQueue(0)


class Concurrent:
    """``consumed`` is called with each queue whose cache has shrunk. Belongs to the running loop."""

    def __init__(
        self,
        group: str,
        settings: PushConsumerSettings,
        deliver: Callable[[Finished], Delivery],
        send_back: SendBack | None,
        *,
        batch_size: int,
        timers: Timers,
        statistics: ConsumeStatistics,
        consumed: Callable[[ProcessQueue], None],
    ) -> None:
        """``deliver`` makes what calls the listener. Without ``send_back`` (broadcasting) a failed message is
        dropped."""
        self._statistics = statistics
        self._timers = timers
        self._now_s = timers.now_s
        self._group = group
        self._send_back = send_back
        self._batch_size = batch_size
        self._retry_delay_ms = settings.retry_delay_ms
        self._consume_timeout_ms = settings.consume_timeout_ms
        self._consumed = consumed
        self._loop = asyncio.get_running_loop()
        self._delivery = deliver(self._finished)
        self._returns: set[asyncio.Task[None]] = set()
        self._returning: set[tuple[ProcessQueue, int]] = set()
        """Messages being sent back, so that none is sent twice."""
        self._stopping = False

    def add(self, process: ProcessQueue, messages: list[MessageExt]) -> None:
        size = self._batch_size
        if size:
            parts = [messages[start : start + size] for start in range(0, len(messages), size)]
            self._delivery.submit(process, parts)
        else:
            self._delivery.submit(process, messages)

    async def run_now(self, argument: Any) -> Outcome:
        return await self._delivery.run_now(argument)

    async def stop(self, timeout_ms: int) -> bool:
        """Start nothing more; wait for listeners, and until their failed messages have been sent back. False if
        that did not end in time."""
        self._stopping = True
        deadline = self._loop.time() + timeout_ms / 1000
        ended = await self._delivery.stop(timeout_ms)
        if self._returns:
            _, late = await asyncio.wait(self._returns, timeout=max(0.0, deadline - self._loop.time()))
            ended = ended and not late
        return ended

    def expire(self) -> None:
        """Send back messages whose listener has exceeded its time. The listener continues, but its result is
        ignored."""
        oldest = self._now_s() - self._consume_timeout_ms / 1000
        for process, argument, since in self._delivery.running():
            if since <= oldest and not process.dropped:
                messages = self._open(process, messages_of(argument))
                if messages:
                    log.warning(
                        "listener of %s has processed %s for more than %d ms: sent back",
                        self._group,
                        _names(messages),
                        self._consume_timeout_ms,
                    )
                    self._return(process, messages, _EXPIRED_LEVEL)

    # --- outcomes ---------------------------------------------------------------------------------------

    def _finished(self, ended: Iterable[Ended]) -> None:
        now_ms = wall_ms()
        run = _Successes(_NO_QUEUE, "")
        for process, argument, outcome, elapsed_s in ended:
            if process.dropped or isinstance(outcome, Skipped):
                continue
            messages = messages_of(argument)
            topic = messages[0].topic
            if process is not run.process or topic != run.topic:
                self._succeeded(run)
                process.last_consume_ms = now_ms
                run = _Successes(process, topic)
            failure = None if outcome is None else failure_of(outcome)
            if failure is None:
                run.messages += messages
                run.calls += 1
                run.elapsed_s += elapsed_s
            else:
                self._succeeded(run)  # first: a message that was delivered twice may be among them
                run = _Successes(process, topic)
                self._failed(process, messages, failure, outcome, elapsed_s)
        self._succeeded(run)

    def _succeeded(self, run: _Successes) -> None:
        if run.calls:
            elapsed_ms = run.elapsed_s * 1000
            self._statistics.consumed(run.topic, len(run.messages), 0, elapsed_ms, calls=run.calls)
            run.process.complete(*run.messages)
            self._consumed(run.process)

    def _failed(
        self,
        process: ProcessQueue,
        messages: Sequence[MessageExt],
        failure: RetryLater,
        outcome: Outcome,
        elapsed_s: float,
    ) -> None:
        done = max(0, failure.consumed)
        left = messages[done:]
        self._statistics.consumed(messages[0].topic, len(messages) - len(left), len(left), elapsed_s * 1000)
        process.complete(*messages[:done])
        if failed := self._open(process, left):
            self._retry(process, failed, failure.delay_level, outcome)
        self._consumed(process)

    def _open(self, process: ProcessQueue, messages: Iterable[MessageExt]) -> list[MessageExt]:
        """The messages that are neither finished nor being sent back."""
        return [
            message
            for message in messages
            if process.holds(message) and (process, message.queue_offset) not in self._returning
        ]

    def _retry(
        self, process: ProcessQueue, messages: list[MessageExt], delay_level: int, outcome: Outcome
    ) -> None:
        log.warning(
            "listener of %s did not consume %s (delivery %d)%s",
            self._group,
            _names(messages),
            messages[0].reconsume_times + 1,
            "" if self._send_back else "; a broadcasting consumer drops it",
            exc_info=outcome if isinstance(outcome, BaseException) else None,
        )
        if self._send_back is None:
            process.complete(*messages)
        else:
            self._return(process, messages, delay_level)

    def _return(self, process: ProcessQueue, messages: list[MessageExt], delay_level: int) -> None:
        # At once: a message that was delivered again has two listeners, and one check finds both late.
        self._returning.update((process, message.queue_offset) for message in messages)
        task = self._loop.create_task(self._return_all(process, messages, delay_level))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _return_all(self, process: ProcessQueue, messages: list[MessageExt], delay_level: int) -> None:
        taken = await asyncio.gather(
            *(self._return_one(process, message, delay_level) for message in messages)
        )
        left = [message for message, is_taken in zip(messages, taken, strict=True) if not is_taken]
        if left:
            self._timers.call_later(self._retry_delay_ms / 1000, self._deliver_again, process, left)
        self._consumed(process)

    async def _return_one(self, process: ProcessQueue, message: MessageExt, delay_level: int) -> bool:
        if self._send_back is None:
            raise AssertionError("a broadcasting consumer sends nothing back")
        try:
            await self._send_back(message, delay_level)
        except MQError as error:
            log.log(
                level_of(error),
                "cannot send %s back for %s, delivered here again in %d ms: %s",
                message.message_id,
                self._group,
                self._retry_delay_ms,
                error,
            )
            message.reconsume_times += 1
            return False
        finally:
            self._returning.discard((process, message.queue_offset))
        process.complete(message)
        return True

    def _deliver_again(self, process: ProcessQueue, messages: list[MessageExt]) -> None:
        if not self._stopping and not process.dropped:
            # A listener that timed out may have ended meanwhile.
            self.add(process, self._open(process, messages))


def _names(messages: Sequence[MessageExt]) -> str:
    return ", ".join(message.message_id for message in messages)
