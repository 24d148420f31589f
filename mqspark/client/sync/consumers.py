"""Blocking consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Unpack

from mqspark.base.valuetypes import checked
from mqspark.client.consumer import subscriber
from mqspark.client.consumer.consumer_settings import (
    LitePullConsumerKeywords,
    LitePullConsumerSettings,
    PopConsumerKeywords,
    PopConsumerSettings,
    PushConsumerKeywords,
    PushConsumerSettings,
)
from mqspark.client.consumer.queuewatch import QueuesListener
from mqspark.client.delivery.delivery import BatchListener, Listener
from mqspark.client.lite import litepull
from mqspark.client.lite.assigned import PulledBatch
from mqspark.client.pop import pop
from mqspark.client.push import push
from mqspark.client.remoting.identity import ClientOptions
from mqspark.client.remoting.keywords import NAMES, spelled_out
from mqspark.client.sync.facade import Facade, documented_by
from mqspark.message import MessageExt, MessageQueue


@checked(own=NAMES)
@documented_by(subscriber.Subscriber)
class _Consumer(Facade):
    """The common part of all blocking consumers."""

    _aio: subscriber.Subscriber

    @property
    def group(self) -> str:
        return self._aio.group

    @property
    def client_id(self) -> str:
        """The id by which brokers know this consumer. Raises ClientError before the start."""
        return self._aio.client_id

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", *, sql: str | None = None) -> None:
        """Before or after the start. All members of a group must subscribe to the same.

        By ``tags``, e.g. ``A || B``, or by a SQL92 filter over properties, e.g. ``sql="a > 3 AND b IS NOT NULL"``.
        """
        self._do(self._aio.subscribe, topic, tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        self._do(self._aio.unsubscribe, topic)


@checked(own=NAMES)
@documented_by(subscriber.Listening)
class _Listening(_Consumer):
    """Consumers that call a listener: a function in threads of its own, or a coroutine function on the background
    loop."""

    _aio: subscriber.Listening

    def stop(self, timeout_ms: int = 30_000) -> None:
        """Stop fetching, wait up to ``timeout_ms`` for running listeners, commit their progress, then leave the
        group."""
        self._end(self._aio.stop, timeout_ms)

    def suspend(self) -> None:
        """Stop fetching until ``resume``; messages that have already arrived are still consumed."""
        self._do(self._aio.suspend)

    def resume(self) -> None:
        self._do(self._aio.resume)


@checked(own=NAMES)
@documented_by(push.PushConsumer)
class PushConsumer(_Listening):
    """The blocking ``mqspark.aio.PushConsumer``; takes the same arguments. Safe to use from many threads.

    A listener that is a function runs in threads of its own, a coroutine function on the background loop.
    """

    _aio: push.PushConsumer

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
        """As ``mqspark.aio.PushConsumer``."""
        self._aio = push.PushConsumer(
            namesrv,
            group=group,
            listener=listener,
            batch_listener=batch_listener,
            settings=settings,
            options=options,
            **changes,
        )

    @property
    def settings(self) -> PushConsumerSettings:
        """In effect, keywords included."""
        return self._aio.settings

    def assignment(self) -> list[MessageQueue]:
        """The queues currently assigned, including those of the retry topic."""
        return self._do(self._aio.assignment)

    def progress(self) -> dict[MessageQueue, int]:
        """For each queue, the offset up to which it is consumed, as in the next commit."""
        return self._do(self._aio.progress)


@checked(own=NAMES)
@documented_by(pop.PopConsumer)
class PopConsumer(_Listening):
    """The blocking ``mqspark.aio.PopConsumer``; takes the same arguments. Safe to use from many threads.

    A listener that is a function runs in threads of its own, a coroutine function on the background loop.
    """

    _aio: pop.PopConsumer

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
        """As ``mqspark.aio.PopConsumer``."""
        self._aio = pop.PopConsumer(
            namesrv, group=group, listener=listener, settings=settings, options=options, **changes
        )

    @property
    def settings(self) -> PopConsumerSettings:
        """In effect, keywords included."""
        return self._aio.settings

    def assignment(self) -> list[MessageQueue]:
        """The queues this member pops from; queue id -1 means all queues of a broker."""
        return self._do(self._aio.assignment)


@checked(own=NAMES)
@documented_by(litepull.LitePullConsumer)
class LitePullConsumer(_Consumer):
    """The blocking ``mqspark.aio.LitePullConsumer``; takes the same arguments. For one thread at a time."""

    _aio: litepull.LitePullConsumer
    _handed: tuple[PulledBatch, int] | None = None
    """How many messages of which batch were handed to the program last. The line that sets it and the ``return`` after
    it contain no call, so that no interruption by a signal comes between them: what a program was not handed is offered
    again, and not committed."""

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
        """As ``mqspark.aio.LitePullConsumer``."""
        self._aio = litepull.LitePullConsumer(
            namesrv, group=group, settings=settings, options=options, **changes
        )

    @property
    def settings(self) -> LitePullConsumerSettings:
        """In effect, keywords included."""
        return self._aio.settings

    def assign(
        self, queues: Iterable[MessageQueue], tags: str | Iterable[str] = "*", *, sql: str | None = None
    ) -> None:
        """Read exactly these queues, each from its committed offset, filtered as by ``subscribe``. Raises
        ConfigError after ``subscribe``.
        """
        if self._thread is None:
            # It only stores them, so there is nothing to wait for.
            asyncio.run(self._aio.assign(queues, tags, sql=sql))
        else:
            self._call(self._aio.assign, queues, tags, sql=sql)

    def on_queues_changed(self, topic: str, listener: QueuesListener | None) -> None:
        """Call ``listener`` (on the background loop) when the readable queues of ``topic`` change; None stops that."""
        self._do(self._aio.on_queues_changed, topic, listener)

    def assignment(self) -> list[MessageQueue]:
        return self._do(self._aio.assignment)

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, from the name server. Raises NoRoute."""
        return self._call(self._aio.fetch_message_queues, topic)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop fetching these queues; cached messages are still delivered."""
        self._do(self._aio.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        self._do(self._aio.resume, *queues)

    def poll(self, timeout_ms: int = 5_000) -> list[MessageExt]:
        """The next messages, all of one queue and in order; an empty list if there are none for ``timeout_ms``."""
        offer = self._call(self._offer, timeout_ms)
        if offer is None:
            return []
        batch, given = offer
        messages = batch.messages[given:]
        handed = (batch, len(batch.messages))
        self._handed = handed
        return messages

    def __iter__(self) -> Iterator[MessageExt]:
        return self

    def __next__(self) -> MessageExt:
        """Waits without a limit; ends when the consumer is stopped. Raises ClientError before the start."""
        if self._thread is None:
            self._aio.check_iterable()
            raise StopIteration
        self._tell()
        # Within a batch no change of threads is needed.
        batch = self._aio.offered()
        given = self._aio.given
        if batch is None:
            offer = self._thread.call(self._offer(None))
            if offer is None:
                raise StopIteration
            batch, given = offer
        message = batch.messages[given]
        handed = (batch, given + 1)
        self._handed = handed
        return message

    def _tell(self) -> None:
        """The program has what it was handed. May be interrupted and repeated."""
        if self._handed is not None:
            self._aio.hand(*self._handed)

    async def _offer(self, timeout_ms: int | None) -> tuple[PulledBatch, int] | None:
        self._tell()
        batch = await self._aio.offer(timeout_ms)
        return None if batch is None else (batch, self._aio.given)

    def stop(self) -> None:
        """With ``auto_commit``, commit everything that was delivered. Then leave the group."""
        self._tell()
        super().stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell()
        super().__exit__(kind, error, trace)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at ``offset``, which must be within the queue (its end included). Raises ClientError."""
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
        """The group's committed offset, None if there is none."""
        return self._call(self._aio.committed, queue)

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message to deliver. Raises ClientError for a queue that is not assigned."""
        self._tell()
        return self._do(self._aio.position, queue)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the delivered messages, or the given offsets; returns when the broker has stored them."""
        self._tell()
        self._call(self._aio.commit, offsets)
