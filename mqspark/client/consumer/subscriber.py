"""The common interface of all consumers: membership of a group, subscriptions, start and stop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from mqspark.base.clock import wall_ms
from mqspark.base.valuetypes import NonNegativeInt, checked
from mqspark.client.consumer.consumer import GroupConsumer
from mqspark.client.consumer.consumer_settings import ConsumerSettings
from mqspark.client.hooks.hooks import Interceptor
from mqspark.client.hooks.trace import Tracer
from mqspark.client.life.lifecycle import Lifecycle
from mqspark.client.producer.producer import tracer_of
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.keywords import NAMES
from mqspark.client.typed.typedlistener import TypedMessages
from mqspark.errors import ClientError, ConfigError
from mqspark.message import MessageQueue, retry_topic
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command


@checked(own=NAMES)
class Subscriber(Lifecycle):
    """The base of all consumers, and the common part of their ``QueueOwner``."""

    _group: GroupConsumer

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        group: str,
        settings: ConsumerSettings,
        options: ClientOptions,
        *,
        group_type: type[GroupConsumer] = GroupConsumer,
    ) -> None:
        self.options = options
        self._group = group_type(namesrv, settings.in_group(group), options, self)
        self._interceptors: list[Interceptor] = list(settings.interceptors)
        serializer = settings.serializer
        self._typed = None if serializer is None else TypedMessages(serializer, self._group.namespace.wrap)
        self._tracer: Tracer | None = None
        if settings.trace:
            self._tracer = tracer_of(namesrv, group, "CONSUME", settings.trace_topic, options)
            self._interceptors.append(self._tracer)
        self._loop: asyncio.AbstractEventLoop
        self._running = False
        self._started_ms = 0

    # --- life -------------------------------------------------------------------------------------------

    async def _enter(self, *, rebalance: bool, prepare: Callable[[], None] | None = None) -> None:
        """Join the group; ``prepare`` is called once there is an instance. After an error nothing is left behind."""
        self._loop = asyncio.get_running_loop()
        self._started_ms = wall_ms()
        self._running = True
        try:
            if self._tracer is not None:
                await self._tracer.start()
            await self._group.start(rebalance=rebalance, prepare=prepare)
        except BaseException:
            self._running = False
            self._started_ms = 0
            if self._tracer is not None:
                await self._tracer.stop()
            raise

    async def _try_commit(self, write: Awaitable[object]) -> None:
        """A line when commits begin to fail, and one when they succeed again."""
        instance, what = self._group.instance, ("commit", self.group)
        try:
            await write
        except (ClientError, OSError) as error:
            text = "cannot commit offsets of %s, will try again: %s"
            instance.failed(what, error, text, self.group, error)
        else:
            instance.outages.over(what, "offsets of %s are committed again", self.group)

    async def _exit(self) -> None:
        """The last part of ``stop``."""
        if self._tracer is not None:
            await self._tracer.stop()
        await self._group.stop()

    def _check_started(self) -> None:
        """For calls that require a started consumer."""
        if not self._started_ms:
            self._check_running()

    def _check_running(self) -> None:
        if not self._running:
            raise ClientError(
                f"the {type(self).__name__} of group {self.group} is not started, or already stopped: use `async with`"
                " or await start() first"
            )

    # --- public -----------------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The consumer group, under the cluster's name."""
        return self._group.settings.group

    @property
    def client_id(self) -> str:
        """The id by which brokers know this consumer. Raises ClientError before the start."""
        self._check_started()
        return self._group.instance.client_id

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", *, sql: str | None = None) -> None:
        """Subscribe to a topic, before or after the start. All members of a group must have the same
        subscriptions.

        By ``tags``, as text or one by one, or by a SQL92 filter over properties, which the broker applies when it has
        enablePropertyFilter=true. Raises InvalidMessage for a name that no topic can have, ConfigError for ``tags``
        with ``sql``. ``start`` raises ClientError when the broker refuses the filter; after the start that is logged.

        >>> consumer.subscribe("Orders", "created || paid")
        >>> consumer.subscribe("Payments", sql="amount > 3 AND currency IS NOT NULL")
        """
        self._group.subscribe(topic, tags, sql)
        self._resubscribe()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic, before or after the start; its queues go to other members. An unknown topic is
        not an error."""
        self._group.subscriptions.pop(self._group.namespace.wrap(topic), None)
        self._resubscribe()

    def _resubscribe(self) -> None:
        if self._running:
            self._group.tasks.spawn(self._group.subscribed())

    # --- QueueOwner -------------------------------------------------------------------------------------

    def owned(self) -> Collection[MessageQueue]:
        """The queues that are read here now. For the group's rebalance."""
        raise NotImplementedError

    async def claim(self, queues: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Those of the queues that may be read now. For the group's rebalance."""
        return queues

    async def unclaim(self, queues: Sequence[MessageQueue]) -> None:
        """Nothing was claimed: only ordered consumers need locks."""

    async def take(self, queue: MessageQueue, start_offset: int) -> None:
        """Begin to read a queue at that offset. For the group's rebalance."""
        raise NotImplementedError

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Stop reading the queues and commit their progress. For the group's rebalance."""
        raise NotImplementedError

    def group_changed(self) -> None:
        """Nothing to do beyond the rebalance."""

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        """Response code, body and remark for a request of a broker."""
        return (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            b"",
            f"a {type(self).__name__} does not answer {request.code}",
        )


@checked(own=NAMES)
class Listening(Subscriber):
    """A consumer that calls a listener."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        group: str,
        settings: ConsumerSettings,
        options: ClientOptions,
        *,
        group_type: type[GroupConsumer] = GroupConsumer,
    ) -> None:
        super().__init__(namesrv, group, settings, options, group_type=group_type)
        self._unsuspended = asyncio.Event()
        self._unsuspended.set()

    async def _enter(self, *, rebalance: bool, prepare: Callable[[], None] | None = None) -> None:
        if not self._group.subscriptions:
            raise ConfigError(
                f"the {type(self).__name__} of group {self.group} has no topic: subscribe(topic) before starting",
                key="topic",
            )
        if not self._group.broadcasting:
            # The retry topic. A group's members must have the same subscriptions, so all subscribe to it.
            self._group.subscribe(retry_topic(self.group))
        await super()._enter(rebalance=rebalance, prepare=prepare)

    async def stop(self, timeout_ms: NonNegativeInt = 30_000) -> None:
        """Fetch no more, wait up to ``timeout_ms`` for running listeners, then leave the group. Called by a listener,
        it returns at once: the end waits for the listener and counts its outcome."""
        await self._ended_by(functools.partial(self._stop, timeout_ms))

    async def stop_at_exit(self, timeout_ms: int) -> None:
        """As ``Lifecycle.stop_at_exit``."""
        await self.stop(timeout_ms)

    async def _stop(self, timeout_ms: int = 30_000) -> None:
        raise NotImplementedError

    def suspend(self) -> None:
        """Stop fetching until ``resume``; messages that have already arrived are still consumed."""
        self._unsuspended.clear()

    def resume(self) -> None:
        """Fetch again after ``suspend``."""
        self._unsuspended.set()
