"""Delivers cached messages to the listener with bounded concurrency and reports how each call ended.

A listener is a function (run in threads of its own) or a coroutine function (run on the loop). What a function returns
may still have to be awaited: a lambda or a decorator may hide a coroutine function. Then it is awaited on the loop
while its thread waits. Must not know about offsets, queues or retries: it gets arguments and returns them with their
outcomes.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

from mqspark.base.logs import escaping
from mqspark.base.valuetypes import check_fields
from mqspark.client.delivery.awaiting import awaited, is_coroutine_function
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.life.lifecycle import Within
from mqspark.message import MessageExt

log = escaping(__name__)


class ConsumeStatus(enum.Enum):
    """What a listener may return; None counts as success."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """RocketMQ's name of RECONSUME_LATER for ordered consumers."""
    COMMIT = "COMMIT"
    """For ordered consumers without ``auto_commit``: this message and all earlier ones of its queue are done.
    Otherwise the same as CONSUME_SUCCESS."""
    ROLLBACK = "ROLLBACK"
    """For ordered consumers without ``auto_commit``: all messages of the queue since the last COMMIT are
    delivered again. Otherwise the same as RECONSUME_LATER."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """RECONSUME_LATER with parameters, as a listener's return value."""

    delay_level: int = 0
    """When to redeliver: a delay level of the broker; 0 lets the broker decide by the number of attempts, a
    negative level sends the message to the group's dead-letter topic. Ignored by ordered consumers."""
    consumed: int = 0
    """How many messages of the batch, from its beginning, are done (RocketMQ's ackIndex + 1). Not for ordered
    consumers."""
    suspend_ms: int | None = None
    """For ordered consumers: how long the queue pauses, 10 to 30,000 ms."""

    def __post_init__(self) -> None:
        check_fields(self)


class Skipped(Exception):
    """The outcome of what never reached the listener: its queue was dropped, or the consumer is stopping."""


Returned = ConsumeStatus | RetryLater | None
"""What a listener returns; anything else counts as a failure."""

Listener = Callable[[MessageExt], Returned | Awaitable[Returned]]
"""A function or coroutine function that takes one message."""

BatchListener = Callable[[list[MessageExt]], Returned | Awaitable[Returned]]
"""A function or coroutine function that takes a list of messages."""

Outcome = Returned | BaseException
"""What the listener returned or raised."""

_LATER = RetryLater()
_FAILURES = frozenset(
    {
        ConsumeStatus.RECONSUME_LATER,
        ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
        ConsumeStatus.ROLLBACK,
    }
)


def failure_of(outcome: Outcome) -> RetryLater | None:
    """None for success. An exception is a failure without parameters."""
    if isinstance(outcome, RetryLater):
        return outcome
    failed = (
        outcome in _FAILURES if isinstance(outcome, ConsumeStatus) else isinstance(outcome, BaseException)
    )
    return _LATER if failed else None


def understood(returned: Any) -> Outcome:
    """What a listener returned, as its outcome. Raises TypeError for anything else: a guess would commit by mistake."""
    if returned is None or isinstance(returned, (ConsumeStatus, RetryLater, BaseException)):
        outcome: Outcome = returned
        return outcome
    raise TypeError(
        f"a listener returns nothing, a ConsumeStatus or a RetryLater; {returned!r:.80} counts as a failure"
    )


class Around(Protocol):
    """What is done around each call of the listener, in the thread or the task that calls it."""

    def begin(self, argument: Any) -> Any:
        """Before the call; ``end`` gets what it returns. Raises Skipped if the listener is not to be called."""

    def end(self, note: Any, outcome: Outcome) -> None:
        """After the call, and after what it returned was awaited. Must not raise."""


Ended = tuple[ProcessQueue, Any, Outcome, float]
"""A queue, what the listener got of it, the outcome, and how long the listener took in seconds."""

Finished = Callable[[Iterator[Ended]], None]
"""Called with the calls that have ended since the last time, in their order."""


def _tell(finished: Finished, ended: Sequence[Ended]) -> None:
    """A call whose outcome cannot be handled takes none of the others along."""
    rest = iter(ended)
    for _ in ended:
        try:
            finished(rest)
            return
        except Exception:  # what a listener has done to its message may be its cause
            log.exception("the outcome of a listener's call could not be handled")


def messages_of(argument: Any) -> Sequence[MessageExt]:
    """The messages of a listener's argument: one, or a list."""
    return argument if isinstance(argument, list) else (argument,)


class Delivery(Protocol):
    def submit(self, process: ProcessQueue, arguments: Collection[Any]) -> None:
        """Call the listener with each of these, unless the queue is dropped first."""

    def running(self) -> list[tuple[ProcessQueue, Any, float]]:
        """What listeners are processing, and since when, by ``now_s``."""

    async def run_now(self, argument: Any) -> Outcome:
        """Run the listener at once, outside the order, for CONSUME_MESSAGE_DIRECTLY; raises what the listener
        raises."""

    async def stop(self, timeout_ms: int) -> bool:
        """Start nothing more and wait for running listeners; False if they did not end in time."""


def make_delivery(
    listener: Callable[[Any], Any],
    finished: Finished,
    *,
    concurrency: int,
    within: Within | None = None,
    around: Sequence[Around] = (),
    now_s: Callable[[], float] = time.monotonic,
) -> Delivery:
    """``finished`` is called on the running loop; it gets everything that was submitted before ``stop``. ``now_s``
    reads the monotonic time, from any thread. ``within``: the client whose listener it is. ``around``: the first one
    is the outermost."""
    on_loop = is_coroutine_function(listener)
    # A thread's context begins empty, a task's as that of its maker.
    context = copy_context() if on_loop else Context()
    if within is not None:
        context.run(within.begin)
    kind = _LoopDelivery if on_loop else _ThreadDelivery
    return kind(_DeliveryHeard(listener, around), context, concurrency, finished, now_s)


class _DeliveryHeard:
    """The listener, with what is done around it and its outcome understood."""

    def __init__(self, listener: Callable[[Any], Any], around: Sequence[Around]) -> None:
        self._listener = listener
        self._around = around
        self.here: Callable[[Any], Awaitable[Outcome]] = self._between if around else self._alone
        """Call it on the loop. Raises what the listener raises, Skipped, and TypeError for what is no outcome."""
        self.in_thread = self._between_in_thread if around else self._alone_in_thread
        """As ``here``, in a thread other than that of the loop."""

    async def _alone(self, argument: Any) -> Outcome:
        returned = self._listener(argument)
        while returned is not None and inspect.isawaitable(
            returned
        ):  # ``awaited``, without a coroutine of its own
            returned = await returned
        return understood(returned)

    async def _between(self, argument: Any) -> Outcome:
        notes = [each.begin(argument) for each in self._around]
        outcome: Outcome = None
        try:
            outcome = understood(await awaited(self._listener(argument)))
        except BaseException as error:
            outcome = error
            raise
        finally:
            self._end(notes, outcome)
        return outcome

    def _alone_in_thread(self, argument: Any, loop: asyncio.AbstractEventLoop) -> Outcome:
        returned = self._listener(argument)
        return None if returned is None else _understood_of(returned, loop)

    def _between_in_thread(self, argument: Any, loop: asyncio.AbstractEventLoop) -> Outcome:
        notes = [each.begin(argument) for each in self._around]
        outcome: Outcome = None
        try:
            outcome = _understood_of(self._listener(argument), loop)
        except BaseException as error:
            outcome = error
            raise
        finally:
            self._end(notes, outcome)
        return outcome

    def _end(self, notes: list[Any], outcome: Outcome) -> None:
        for each, note in zip(reversed(self._around), reversed(notes), strict=True):
            each.end(note, outcome)


def _understood_of(returned: Any, loop: asyncio.AbstractEventLoop) -> Outcome:
    """What a listener returned in a thread of its own, awaited if need be."""
    if inspect.isawaitable(returned):
        returned = asyncio.run_coroutine_threadsafe(_settled(returned), loop).result()
    return understood(returned)


async def _settled(returned: Awaitable[Any]) -> Any:
    """As ``awaited``; SystemExit is returned, because raised it would end the loop of all clients."""
    try:
        return await awaited(returned)
    except SystemExit as error:
        return error


_SKIPPED = Skipped()

_CALLS_A_TURN = 64
"""After this many calls without a real wait, a coroutine listener yields to other tasks of the loop."""

Call = tuple[ProcessQueue, Any]
"""What to call the listener with. It gets a copy of a list, which is its own to change."""


class _Caller:
    """A thread or a task that calls the listener."""

    __slots__ = ("call", "since_s")

    def __init__(self) -> None:
        self.since_s = 0.0
        self.call: Call | None = None
        """Set after the time: whoever sees the call sees no older time."""


def _running(callers: Iterable[_Caller]) -> Iterator[tuple[ProcessQueue, Any, float]]:
    for caller in callers:
        call = caller.call
        if call is not None:
            yield *call, caller.since_s


class _Delivery:
    """What both kinds have. Listeners run in copies of ``context``."""

    def __init__(
        self,
        heard: _DeliveryHeard,
        context: Context,
        concurrency: int,
        finished: Finished,
        now_s: Callable[[], float],
    ) -> None:
        self._context = context
        self._now_s = now_s
        self._heard = heard
        self._concurrency = concurrency
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        self._calls: deque[Call] = deque()
        self._stopping = False


class _LoopDelivery(_Delivery):
    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self._workers: set[asyncio.Task[None]] = set()
        self._is_asked = False
        self._callers: set[_Caller] = set()
        self._ended: list[Ended] = []
        self._is_reporting = False
        """The loop is about to report what has ended: a listener may wait long after the next call began."""

    def submit(self, process: ProcessQueue, arguments: Collection[Any]) -> None:
        self._calls.extend(zip(repeat(process), arguments))
        self._employ()

    def _employ(self) -> None:
        """Start one more worker if there is work. Each worker requests the next one before it begins; that
        happens about when it first has to wait, so a listener that never waits keeps only one busy."""
        self._is_asked = False
        if self._calls and len(self._callers) < self._concurrency:
            caller = _Caller()
            self._callers.add(caller)
            worker = self._loop.create_task(self._work(caller), context=self._context.copy())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self, caller: _Caller) -> None:
        try:
            await self._call_as(caller)
        finally:
            # At once: until the task has ended, what is submitted would wait for a worker that looks no more.
            self._callers.discard(caller)

    async def _call_as(self, caller: _Caller) -> None:
        turns = 0
        while True:
            if not self._calls:
                self._report()  # what has ended may bring the next call of its queue
                if not self._calls:
                    return
            call = process, argument = self._calls.popleft()
            if self._calls and not self._is_asked:
                self._is_asked = True
                self._loop.call_soon(self._employ)
            outcome: Outcome = _SKIPPED
            elapsed_s = 0.0
            if not process.dropped:
                since_s = caller.since_s = self._now_s()
                caller.call = call
                try:
                    outcome = await self._heard.here([*argument] if argument.__class__ is list else argument)
                except (Exception, SystemExit) as error:
                    outcome = error
                except asyncio.CancelledError as error:
                    if self._stopping:
                        raise
                    outcome = error  # raised by the listener: a failure like any other
                caller.call = None
                elapsed_s = self._now_s() - since_s
            self._ended.append((process, argument, outcome, elapsed_s))
            if not self._is_reporting:
                self._is_reporting = True
                self._loop.call_soon(self._report_now)
            turns += 1
            if turns % _CALLS_A_TURN == 0:
                await asyncio.sleep(0)

    def _report_now(self) -> None:
        self._is_reporting = False
        self._report()

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        if ended:
            _tell(self._finished, ended)

    def running(self) -> list[tuple[ProcessQueue, Any, float]]:
        return list(_running(self._callers))

    async def run_now(self, argument: Any) -> Outcome:
        return await self._loop.create_task(self._run_now(argument), context=self._context.copy())

    async def _run_now(self, argument: Any) -> Outcome:
        try:
            return await self._heard.here(argument)
        except SystemExit as error:  # raised by a task, it would end the loop
            return error

    async def stop(self, timeout_ms: int) -> bool:
        self._stopping = True
        self._ended += [(process, argument, _SKIPPED, 0.0) for process, argument in self._calls]
        self._calls.clear()
        late: set[asyncio.Task[None]] = set()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=timeout_ms / 1000)
        for worker in late:
            worker.cancel()
        self._report()
        return not late


class _ThreadDelivery(_Delivery):
    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Each item wakes one thread; a surplus item is harmless, a missing one is not."""
        self._ended: deque[Ended] = deque()
        self._is_looked_after = False
        """The loop is about to look at what has ended and at what is left."""
        self._threads: list[threading.Thread] = []
        self._callers: list[_Caller] = []
        self._outstanding = 0

    def submit(self, process: ProcessQueue, arguments: Collection[Any]) -> None:
        self._outstanding += len(arguments)
        self._calls.extend(zip(repeat(process), arguments))
        self._wake()
        while len(self._threads) < min(self._outstanding, self._concurrency):
            # Daemon threads: a listener that never returns must not keep the process from exiting.
            name = f"mqspark-listener-{len(self._threads)}"
            caller = _Caller()
            thread = threading.Thread(
                target=self._context.copy().run, args=(self._work, caller), name=name, daemon=True
            )
            self._callers.append(caller)
            self._threads.append(thread)
            thread.start()

    def _wake(self) -> None:
        """Wake a thread unless one is about to look for work."""
        if self._wakes.empty():
            self._wakes.put(None)

    def _work(self, caller: _Caller) -> None:
        calls, ended, now_s, loop = self._calls, self._ended, self._now_s, self._loop
        heard = self._heard.in_thread
        since_s = now_s()
        while True:
            try:
                call = process, argument = calls.popleft()
            except IndexError:
                if self._stopping:
                    return
                self._wakes.get()
                since_s = now_s()
                continue
            # The listener may wait: the loop runs then, and wakes a thread for the next call. With a listener that
            # does not wait it runs when all is done, and no other thread has to.
            if calls and not self._is_looked_after and not self._look_after():
                return
            outcome: Outcome = _SKIPPED
            elapsed_s = 0.0
            if not (self._stopping or process.dropped):
                caller.since_s = since_s
                caller.call = call
                try:
                    outcome = heard([*argument] if argument.__class__ is list else argument, loop)
                except BaseException as error:
                    outcome = error
                caller.call = None
                now = now_s()
                elapsed_s = now - since_s
                since_s = now
            ended.append((process, argument, outcome, elapsed_s))
            if not self._is_looked_after and not self._look_after():
                return

    def _look_after(self) -> bool:
        """In a thread: have the loop look. False if it is closed: there is nobody to report to any more. The flag is
        read after something has changed here, and cleared before the loop looks: so once is enough."""
        self._is_looked_after = True
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:
            return False
        return True

    def _look(self) -> None:
        self._is_looked_after = False
        if self._calls:
            self._wake()
        self._report()

    def _report(self) -> None:
        take = self._ended.popleft
        ended = [take() for _ in range(len(self._ended))]
        if ended:
            self._outstanding -= len(ended)
            _tell(self._finished, ended)

    def running(self) -> list[tuple[ProcessQueue, Any, float]]:
        return list(_running(self._callers))

    async def run_now(self, argument: Any) -> Outcome:
        call = self._context.copy().run
        return await asyncio.to_thread(call, self._heard.in_thread, argument, self._loop)

    async def stop(self, timeout_ms: int) -> bool:
        self._stopping = True
        for _ in self._threads:
            self._wakes.put(None)
        ended = await asyncio.to_thread(self._join, self._loop.time() + timeout_ms / 1000)
        self._report()
        return ended

    def _join(self, deadline: float) -> bool:
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._loop.time()))
        return not any(thread.is_alive() for thread in self._threads)
