"""Unordered consumption: messages go to the listener as they arrive, failed ones back to the broker.

A failed message is sent back to its broker (CONSUMER_SEND_MSG_BACK), which delivers it again after a delay
through the group's retry topic, or stores it in the dead-letter topic; here it is then finished. If no broker
accepts it, it is delivered again from the cache.

Facts: docs/rocketmq/client.md#concurrent-consumption (ConsumeMessageConcurrentlyService).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.client.delivery.delivery import Around, Chunk, Outcome, Skipped, failure_of, make_delivery
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.client.remoting.lifecycle import Within
from mqspark.client.remoting.pauses import Timers
from mqspark.client.remoting.remoting import level_of
from mqspark.errors import MQError
from mqspark.message import MessageExt

log = escaping(__name__)

SendBack = Callable[[MessageExt, int], Awaitable[None]]
"""Sends a message back to its broker with a delay level. Raises MQError if it is not accepted."""

_EXPIRED_LEVEL = 3
"""The delay level of a message whose listener timed out (ProcessQueue.cleanExpiredMsg)."""


def chunks(process: ProcessQueue, messages: Sequence[MessageExt], batch_size: int) -> list[Chunk]:
    """The listener's arguments; ``batch_size`` 0: single messages, not lists."""
    if not batch_size:
        return [Chunk(process, (message,), message) for message in messages]
    parts = [messages[start : start + batch_size] for start in range(0, len(messages), batch_size)]
    return [Chunk(process, part, part) for part in parts]


class Concurrent:
    """``consumed`` is called with each queue whose cache has shrunk. Belongs to the running loop."""

    def __init__(
        self,
        group: str,
        listener: Callable[[Any], Any],
        send_back: SendBack | None,
        *,
        batch_size: int,
        concurrency: int,
        timers: Timers,
        retry_delay_ms: int,
        consume_timeout_ms: int,
        statistics: ConsumeStatistics,
        consumed: Callable[[ProcessQueue], None],
        within: Within | None = None,
        around: Sequence[Around] = (),
    ) -> None:
        """Without ``send_back`` (broadcasting) a failed message is dropped."""
        self._statistics = statistics
        self._timers = timers
        self._now_s = timers.now_s
        self._group = group
        self._send_back = send_back
        self._batch_size = batch_size
        self._retry_delay_ms = retry_delay_ms
        self._consume_timeout_ms = consume_timeout_ms
        self._consumed = consumed
        self._loop = asyncio.get_running_loop()
        self._delivery = make_delivery(
            listener,
            concurrency=concurrency,
            finished=self._finished,
            within=within,
            around=around,
            now_s=timers.now_s,
        )
        self._returns: set[asyncio.Task[None]] = set()
        self._returning: set[tuple[ProcessQueue, int]] = set()
        """Messages being sent back, so that none is sent twice."""
        self._stopping = False

    def add(self, process: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self._delivery.submit(chunks(process, messages, self._batch_size))

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
        for chunk, since in self._delivery.running():
            if since <= oldest and not chunk.process.dropped:
                messages = self._open(chunk.process, chunk.messages)
                if messages:
                    log.warning(
                        "listener of %s has processed %s for more than %d ms: sent back",
                        self._group,
                        _names(messages),
                        self._consume_timeout_ms,
                    )
                    self._return(chunk.process, messages, _EXPIRED_LEVEL)

    # --- outcomes ---------------------------------------------------------------------------------------

    def _finished(self, chunk: Chunk, outcome: Outcome, elapsed_s: float) -> None:
        process = chunk.process
        if process.dropped or isinstance(outcome, Skipped):
            return
        process.last_consume_ms = wall_ms()
        messages = chunk.messages
        if outcome is None:
            self._statistics.consumed(messages[0].topic, len(messages), 0, elapsed_s * 1000)
            for message in messages:
                process.complete(message)
            self._consumed(process)
            return
        failure = failure_of(outcome)
        done = len(messages) if failure is None else max(0, failure.consumed)
        self._statistics.consumed(
            messages[0].topic, len(messages[:done]), len(messages[done:]), elapsed_s * 1000
        )
        if failure is None:
            for message in messages:
                process.complete(message)
        else:
            for message in messages[:done]:
                process.complete(message)
            failed = self._open(process, messages[done:])
            if failed:
                self._failed(process, failed, failure.delay_level, outcome)
        self._consumed(process)

    def _open(self, process: ProcessQueue, messages: Iterable[MessageExt]) -> list[MessageExt]:
        """The messages that are neither finished nor being sent back."""
        return [
            message
            for message in messages
            if process.holds(message) and (process, message.queue_offset) not in self._returning
        ]

    def _failed(
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
            for message in messages:
                process.complete(message)
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
