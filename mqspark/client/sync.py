"""The client for programs without an event loop: the same objects, blocking, safe to use from many threads.

All of them share one background thread with a loop (``LoopThread``), which lives as long as one of them is
open.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import importlib.util
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from mqspark.client import admin, litepull, pop, producer, push, transaction
from mqspark.client.admin import GroupOffset
from mqspark.client.producer import QueueSelector, SendResult, SendStatus
from mqspark.client.routes import TopicRoute
from mqspark.client.transaction import (
    Check,
    Execute,
    TransactionResult,
    TransactionState,
    is_coroutine_function,
    state_of,
)
from mqspark.errors import ClientError
from mqspark.message import PERM_READ, PERM_WRITE, Message, MessageExt, MessageQueue
from mqspark.protocol.bodies import (
    ClusterInfo,
    ConsumerConnection,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
)

__all__ = [
    "AdminClient",
    "LitePullConsumer",
    "LoopThread",
    "PopConsumer",
    "Producer",
    "PushConsumer",
    "TransactionProducer",
]

T = TypeVar("T")
S = TypeVar("S", bound="_Facade")


class LoopThread:
    """A thread with an event loop, counted: ``acquire`` starts it, the last ``release`` ends it."""

    _lock = threading.Lock()
    _current: LoopThread | None = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._users = 0
        self._loop = _new_loop()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake_scheduled = False
        self._thread = threading.Thread(target=self._run, name="mqspark-client", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        with cls._lock:
            thread = cls._current
            # A forked child has the object but not the thread.
            if thread is None or thread._pid != os.getpid():
                thread = cls._current = cls()
            thread._users += 1
            return thread

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if LoopThread._current is self:
                LoopThread._current = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; interrupted, it is cancelled."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a coroutine cannot call the blocking client; use mqspark.aio there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run a function on the loop soon; many posts share one wake-up. It must not raise."""
        self._posted.append((function, arguments))
        # The order of these lines and of _run_posted's first two is what makes one wake-up enough.
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        self._wake_scheduled = False
        posted = self._posted
        while posted:
            function, arguments = posted.popleft()
            function(*arguments)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's when it is installed: a fifth less CPU a message."""
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


class _Facade:
    """start, stop, ``with``."""

    _aio: Any
    _thread: LoopThread | None = None

    def start(self) -> None:
        if self._thread is not None:
            return
        thread = LoopThread.acquire()
        try:
            thread.call(self._aio.start())
        except BaseException:
            thread.release()
            raise
        self._thread = thread

    def stop(self) -> None:
        self._stop(self._aio.stop)

    def _stop(self, stop: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(stop(*arguments))
            finally:
                thread.release()

    def __enter__(self: S) -> S:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(self._aio.__aexit__, kind, error, trace)

    @property
    def _running(self) -> LoopThread:
        if self._thread is None:
            raise ClientError(f"the {type(self).__name__} is not started, or already stopped")
        return self._thread

    def _call(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any) -> T:
        return self._running.call(work(*arguments, **options))


class _Room:
    """How much may be in flight, for callers in any thread.

    Who finds it full waits until half of it is free: a change of threads for each message would cost more than
    the message.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages = 0
        self._bytes = 0
        self._blocked = False
        self._half_free = threading.Condition()

    def take(self, size_bytes: int) -> None:
        with self._half_free:
            while self._messages >= self._max_messages or self._bytes >= self._max_bytes:
                self._blocked = True
                self._half_free.wait()
            self._messages += 1
            self._bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        with self._half_free:
            self._messages -= 1
            self._bytes -= size_bytes
            if (
                self._blocked
                and 2 * self._messages <= self._max_messages
                and 2 * self._bytes <= self._max_bytes
            ):
                self._blocked = False
                self._half_free.notify_all()


class Producer(_Facade):
    """The blocking ``mqspark.aio.Producer``; takes the same arguments. Safe to use from many threads."""

    _aio: producer.Producer

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        max_in_flight: int = 1_024,
        max_in_flight_bytes: int = 100 * 1024 * 1024,
        **options: Any,
    ) -> None:
        self._aio = producer.Producer(
            namesrv,
            group=group,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            **options,
        )
        self._room = _Room(max_in_flight, max_in_flight_bytes)

    @property
    def group(self) -> str:
        return self._aio.group

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait for the broker's word; see ``mqspark.aio.Producer.send``."""
        return self.send_async(
            message, queue=queue, hash_key=hash_key, selector=selector, timeout_ms=timeout_ms
        ).result()

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """The future of a send; blocks only while too much is in flight. Errors come out of the future."""
        return self._begin(len(message.body), self._aio.begin, message, queue, hash_key, selector, timeout_ms)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Hand a message to the connection; nobody will say whether it arrived."""
        self._call(self._aio.send_oneway, message, queue=queue, hash_key=hash_key, selector=selector)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """All of one topic to one queue, stored together, under one acknowledgement."""
        size_bytes = sum(len(message.body) for message in messages)
        return self._begin(size_bytes, self._aio.begin_batch, messages, queue, timeout_ms).result()

    def request(
        self,
        message: Message,
        timeout_ms: int = 3_000,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> MessageExt:
        """Send a message and wait for the reply of whoever consumes it; see ``mqspark.aio.Producer.request``."""
        return self._call(
            self._aio.request, message, timeout_ms, queue=queue, hash_key=hash_key, selector=selector
        )

    def reply(self, request: MessageExt, body: bytes | str, *, timeout_ms: int | None = None) -> SendResult:
        """Answer a request that was consumed; see ``mqspark.aio.Producer.reply``."""
        return self._call(self._aio.reply, request, body, timeout_ms=timeout_ms)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a message to ``topic`` can go to now. Raises NoRoute."""
        return self._call(self._aio.queues, topic)

    def recall(self, topic: str, handle: str, *, timeout_ms: int | None = None) -> str:
        """Take a timed message back that is not delivered yet; see ``mqspark.aio.Producer.recall``."""
        return self._call(self._aio.recall, topic, handle, timeout_ms=timeout_ms)

    def _begin(
        self, size_bytes: int, begin: Callable[..., None], what: Any, *arguments: Any
    ) -> concurrent.futures.Future[SendResult]:
        thread = self._running
        room = self._room
        room.take(size_bytes)
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        future.add_done_callback(lambda _: room.give(size_bytes))
        thread.post(_begin, begin, what, future, arguments)
        return future


def _begin(
    begin: Callable[..., None],
    what: Any,
    future: concurrent.futures.Future[SendResult],
    arguments: tuple[Any, ...],
) -> None:
    try:
        begin(what, future, *arguments)
    except Exception as error:
        future.set_exception(error)


class TransactionProducer(Producer):
    """The blocking ``mqspark.aio.TransactionProducer``; takes the same arguments. Safe to use from many threads.

    An ``execute`` that is a function runs in the thread that calls ``send_in_transaction``, where its connections to
    databases are; a ``check`` that is a function in threads of its own; coroutine functions on the background loop.
    """

    _aio: transaction.TransactionProducer

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        check: Check,
        execute: Execute | None = None,
        max_in_flight: int = 1_024,
        max_in_flight_bytes: int = 100 * 1024 * 1024,
        **options: Any,
    ) -> None:
        self._aio = transaction.TransactionProducer(
            namesrv,
            group=group,
            check=check,
            execute=execute,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            **options,
        )
        self._room = _Room(max_in_flight, max_in_flight_bytes)

    def stop(self, timeout_ms: int = 30_000) -> None:
        """Waits up to ``timeout_ms`` for checks that run, and for sends as ``Producer``."""
        self._stop(self._aio.stop, timeout_ms)

    def send_in_transaction(
        self,
        message: Message,
        *,
        execute: Execute | None = None,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionResult:
        """Prepare the message, run the local transaction, tell the broker what came of it; see
        ``mqspark.aio.TransactionProducer.send_in_transaction``."""
        function = self._aio.local_transaction(execute)
        how: dict[str, Any] = {
            "queue": queue,
            "hash_key": hash_key,
            "selector": selector,
            "timeout_ms": timeout_ms,
        }
        if is_coroutine_function(function):
            return self._call(self._aio.send_in_transaction, message, execute=function, **how)
        prepared = self._call(self._aio.prepare, message, **how)
        if prepared.result.status is not SendStatus.SEND_OK:
            return self._call(self._aio.end, prepared, TransactionState.ROLLBACK)
        try:
            state = state_of(function(prepared.message))
        except Exception as error:
            self._call(self._aio.end, prepared, TransactionState.UNKNOWN, error)
            raise
        return self._call(self._aio.end, prepared, state)


class PushConsumer(_Facade):
    """The blocking ``mqspark.aio.PushConsumer``; takes the same arguments.

    A listener that is a function runs in threads of its own, a coroutine function on the background loop.
    """

    _aio: push.PushConsumer

    def __init__(self, namesrv: str | Sequence[str] | None = None, *, group: str, **options: Any) -> None:
        self._aio = push.PushConsumer(namesrv, group=group, **options)

    def stop(self, timeout_ms: int = 30_000) -> None:
        """Stops pulling, waits up to ``timeout_ms`` for running listeners, commits, leaves the group."""
        self._stop(self._aio.stop, timeout_ms)

    @property
    def group(self) -> str:
        return self._aio.group

    @property
    def client_id(self) -> str:
        return self._aio.client_id

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", *, sql: str | None = None) -> None:
        """Before or after the start. All members of a group must subscribe to the same.

        By ``tags``, e.g. ``A || B``, or by a SQL92 filter over properties, e.g. ``sql="a > 3 AND b IS NOT NULL"``.
        """
        self._do(functools.partial(self._aio.subscribe, topic, tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        self._do(self._aio.unsubscribe, topic)

    def suspend(self) -> None:
        """Pull no more until ``resume``; what is cached is still consumed."""
        self._do(self._aio.suspend)

    def resume(self) -> None:
        self._do(self._aio.resume)

    def assignment(self) -> list[MessageQueue]:
        return self._do(self._aio.assignment)

    def progress(self) -> dict[MessageQueue, int]:
        """Up to where each queue is consumed: what the next commit says."""
        return self._do(self._aio.progress)

    def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        return _do(self._thread, function, *arguments)


class PopConsumer(_Facade):
    """The blocking ``mqspark.aio.PopConsumer``; takes the same arguments.

    A listener that is a function runs in threads of its own, a coroutine function on the background loop.
    """

    _aio: pop.PopConsumer

    def __init__(self, namesrv: str | Sequence[str] | None = None, *, group: str, **options: Any) -> None:
        self._aio = pop.PopConsumer(namesrv, group=group, **options)

    def stop(self, timeout_ms: int = 30_000) -> None:
        """Pops no more, waits up to ``timeout_ms`` for running listeners, acknowledges what they did."""
        self._stop(self._aio.stop, timeout_ms)

    @property
    def group(self) -> str:
        return self._aio.group

    @property
    def client_id(self) -> str:
        return self._aio.client_id

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", *, sql: str | None = None) -> None:
        """Before or after the start. All members of a group must subscribe to the same.

        By ``tags``, e.g. ``A || B``, or by a SQL92 filter over properties, e.g. ``sql="a > 3 AND b IS NOT NULL"``.
        """
        _do(self._thread, functools.partial(self._aio.subscribe, topic, tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        _do(self._thread, self._aio.unsubscribe, topic)

    def suspend(self) -> None:
        """Pop no more until ``resume``; what is held is still consumed."""
        _do(self._thread, self._aio.suspend)

    def resume(self) -> None:
        _do(self._thread, self._aio.resume)

    def assignment(self) -> list[MessageQueue]:
        """What this member pops from; queue id -1 is all queues of a broker."""
        return _do(self._thread, self._aio.assignment)


def _do(thread: LoopThread | None, function: Callable[..., T], *arguments: Any) -> T:
    """Call a plain method of an object on its loop, or here while it has none."""
    if thread is None:
        return function(*arguments)

    async def work() -> T:
        return function(*arguments)

    return thread.call(work())


class LitePullConsumer(_Facade):
    """The blocking ``mqspark.aio.LitePullConsumer``; takes the same arguments. For one thread at a time."""

    _aio: litepull.LitePullConsumer

    def __init__(self, namesrv: str | Sequence[str] | None = None, *, group: str, **options: Any) -> None:
        self._aio = litepull.LitePullConsumer(namesrv, group=group, **options)

    @property
    def group(self) -> str:
        return self._aio.group

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", *, sql: str | None = None) -> None:
        """Before or after the start. Raises ConfigError after ``assign``.

        By ``tags``, e.g. ``A || B``, or by a SQL92 filter over properties, e.g. ``sql="a > 3 AND b IS NOT NULL"``.
        """
        _do(self._thread, functools.partial(self._aio.subscribe, topic, tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        _do(self._thread, self._aio.unsubscribe, topic)

    def assign(
        self, queues: Iterable[MessageQueue], tags: str | Iterable[str] = "*", *, sql: str | None = None
    ) -> None:
        """Read exactly these queues, each from its committed offset, filtered as by ``subscribe``. Raises
        ConfigError after ``subscribe``.
        """
        if self._thread is None:
            # Only notes them: there is nothing to wait for yet.
            asyncio.run(self._aio.assign(queues, tags, sql=sql))
        else:
            self._call(self._aio.assign, queues, tags, sql=sql)

    def on_queues_changed(self, topic: str, listener: litepull.QueuesListener | None) -> None:
        """Call ``listener`` (on the background loop) when the readable queues of ``topic`` change; None ends that."""
        _do(self._thread, self._aio.on_queues_changed, topic, listener)

    def assignment(self) -> list[MessageQueue]:
        return _do(self._thread, self._aio.assignment)

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, from the name server. Raises NoRoute."""
        return self._call(self._aio.fetch_message_queues, topic)

    def pause(self, *queues: MessageQueue) -> None:
        """Fetch no more of these queues; what is cached is still handed out."""
        _do(self._thread, self._aio.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        _do(self._thread, self._aio.resume, *queues)

    def poll(self, timeout_ms: int = 5_000) -> list[MessageExt]:
        """The next messages, all of one queue and in order; none when there are none for ``timeout_ms``."""
        return self._call(self._aio.poll, timeout_ms)

    def __iter__(self) -> Iterator[MessageExt]:
        return self

    def __next__(self) -> MessageExt:
        """Waits as long as it takes; ends when the consumer is stopped."""
        if self._thread is None:
            raise StopIteration
        # Within a batch no thread has to be changed.
        message = self._aio.next_cached()
        if message is not None:
            return message
        try:
            return self._thread.call(self._aio.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at ``offset``, which must be within the queue (its end included). Raises ClientError."""
        self._call(self._aio.seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._call(self._aio.seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._call(self._aio.seek_to_end, queue)

    def seek_to_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """The first message stored at or after that time."""
        self._call(self._aio.seek_to_timestamp, queue, timestamp_ms)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self._call(self._aio.offset_for_timestamp, queue, timestamp_ms)

    def committed(self, queue: MessageQueue) -> int | None:
        """What the group has committed, None when nothing."""
        return self._call(self._aio.committed, queue)

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message to be handed out. Raises ClientError for a queue of others."""
        return _do(self._thread, self._aio.position, queue)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Write what was handed out, or the given offsets; returns when the broker has them."""
        self._call(self._aio.commit, offsets)


class AdminClient(_Facade):
    """The blocking ``mqspark.aio.AdminClient``; its methods are described there."""

    _aio: admin.AdminClient

    def __init__(self, namesrv: str | Sequence[str] | None = None, **options: Any) -> None:
        self._aio = admin.AdminClient(namesrv, **options)

    def cluster_info(self) -> ClusterInfo:
        return self._call(self._aio.cluster_info)

    def broker_runtime_info(self, address: str) -> dict[str, str]:
        return self._call(self._aio.broker_runtime_info, address)

    def broker_config(self, address: str) -> dict[str, str]:
        return self._call(self._aio.broker_config, address)

    def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        self._call(self._aio.update_broker_config, address, settings)

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        cluster: str | None = None,
        brokers: Collection[str] | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicRoute:
        return self._call(
            self._aio.create_topic,
            topic,
            queues=queues,
            cluster=cluster,
            brokers=brokers,
            perm=perm,
            attributes=attributes,
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        self._call(self._aio.delete_topic, topic, cluster=cluster)

    def topic_list(self) -> list[str]:
        return self._call(self._aio.topic_list)

    def topic_route(self, topic: str) -> TopicRoute:
        return self._call(self._aio.topic_route, topic)

    def topic_config(self, topic: str, address: str) -> TopicConfig:
        return self._call(self._aio.topic_config, topic, address)

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        return self._call(self._aio.topic_stats, topic)

    def create_group(
        self, group: str, *, cluster: str | None = None, config: SubscriptionGroupConfig | None = None
    ) -> None:
        self._call(self._aio.create_group, group, cluster=cluster, config=config)

    def set_consume_mode(
        self, topic: str, group: str, mode: str, *, share_queues: int = 0, cluster: str | None = None
    ) -> None:
        self._call(self._aio.set_consume_mode, topic, group, mode, share_queues=share_queues, cluster=cluster)

    def delete_group(self, group: str, *, cluster: str | None = None, clean_offsets: bool = True) -> None:
        self._call(self._aio.delete_group, group, cluster=cluster, clean_offsets=clean_offsets)

    def group_members(self, group: str) -> ConsumerConnection:
        return self._call(self._aio.group_members, group)

    def group_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, GroupOffset]:
        return self._call(self._aio.group_offsets, group, topic)

    def group_lag(self, group: str, topic: str | None = None) -> int:
        return self._call(self._aio.group_lag, group, topic)

    def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self._call(self._aio.query_offset, group, queue)

    def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self._call(self._aio.update_offset, group, queue, offset)
