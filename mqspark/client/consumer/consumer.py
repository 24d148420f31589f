"""A member of a consumer group: its subscriptions, queues and start offsets.

Push, pop and lite pull consumers differ in how they process an assigned queue; each implements ``QueueOwner``.
Facts: RocketMQ's RebalanceImpl, RebalancePushImpl.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from mqspark.base.clock import wall_ms
from mqspark.base.logs import escaping
from mqspark.client.consumer.consumer_settings import GroupSettings
from mqspark.client.consumer.offset_stores import BrokerOffsets, LocalOffsets, Offsets
from mqspark.client.consumer.queuecalls import Pulled, QueueCalls
from mqspark.client.consumer.rebalance import RebalanceTimer, plan
from mqspark.client.consumer.roundanswers import RoundAnswers
from mqspark.client.life.lifecycle import Tasks
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.filters import check_filters, subscription_of
from mqspark.client.remoting.instance import ClientInstance, InstanceMember
from mqspark.client.remoting.namespaces import Namespace
from mqspark.client.remoting.remoting import level_of
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import BrokerError, ClientError, ConnectionLost, MQError, NoRoute, RequestTimeout
from mqspark.message import RETRY_PREFIX, MessageQueue, check_group
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    GetConsumerListByGroupResponseBody,
    SubscriptionData,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import GetConsumerListByGroupRequestHeader

log = escaping(__name__)

_RETRY_ROUNDS = 60
"""The number of quick rounds that wait for a retry topic that does not exist yet."""


class QueueOwner(Protocol):
    """The reader of the queues. Each added queue goes through ``claim``, then ``take`` (or ``unclaim``, if it
    cannot be taken after all)."""

    def owned(self) -> Collection[MessageQueue]: ...

    async def claim(self, queues: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """The subset of the queues that may be taken now."""

    async def unclaim(self, queues: Sequence[MessageQueue]) -> None: ...

    async def take(self, queue: MessageQueue, start_offset: int) -> None: ...

    async def give_up(self, queues: Sequence[MessageQueue]) -> None: ...

    def group_changed(self) -> None:
        """Members joined or left, or a connection is new."""

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]: ...


class GroupConsumer(InstanceMember):
    """A member of a consumer group, as seen by its instance (``InstanceMember``) and its owner."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        settings: GroupSettings,
        options: ClientOptions,
        owner: QueueOwner,
    ) -> None:
        self._options = options
        self.namespace = Namespace(self._options.namespace)
        settings = dataclasses.replace(settings, group=self.namespace.wrap(settings.group))
        check_group(settings.group)
        self.settings = settings
        self.consumer_group = settings.group
        self.subscriptions: dict[str, SubscriptionData] = {}
        self._filters: dict[str, SubscriptionData] = {}
        """Filters for topics of assigned queues; they are not part of the group's subscription."""
        self.tasks = Tasks(f"consumer group {settings.group}")
        self.instance: ClientInstance
        self.calls: QueueCalls
        self.offsets: Offsets
        self._namesrv = namesrv
        self._owner = owner
        self._wake = asyncio.Event()
        self._timer: RebalanceTimer
        self._retry_rounds = _RETRY_ROUNDS
        self._answers = RoundAnswers()
        self.rebalancing = False
        """Whether this consumer shares its topics with its group; not if its queues were assigned explicitly."""

    @property
    def broadcasting(self) -> bool:
        return self.settings.broadcasting

    # --- life -------------------------------------------------------------------------------------------

    async def start(self, *, rebalance: bool, prepare: Callable[[], None] | None = None) -> None:
        """Routes, heartbeat, first rebalance. Raises when the cluster is unreachable, after cleaning up, and
        ClientError when a broker refuses a filter. ``prepare`` is called once there is an ``instance``."""
        settings = self.settings
        self.rebalancing = rebalance
        self.instance = instance = ClientInstance.enter(
            self,
            self._namesrv,
            self._options,
            keep_default_name=self.broadcasting,
            is_stream=self.settings.consume_type == ConsumeType.CONSUME_ACTIVELY,
        )
        self.calls = QueueCalls(instance, settings, self.namespace)
        if self.broadcasting:
            directory = settings.local_offsets_directory or Path.home() / ".rocketmq_offsets"
            self.offsets = LocalOffsets(directory, instance.client_id, settings.group)
        else:
            self.offsets = BrokerOffsets(instance, settings.group)
        self._timer = RebalanceTimer(instance.clock, settings.rebalance_interval_ms)
        try:
            if prepare is not None:
                prepare()
            await self.find_routes()
            await instance.heartbeat()
            await self.check_filters()
        except BaseException:
            await self.stop()
            raise
        if rebalance:
            self.tasks.keep(self._rebalance_forever)

    async def stop(self) -> None:
        """Leave the group. Never raises."""
        await self.tasks.cancel()
        await self.instance.leave(self)

    async def subscribed(self) -> None:
        """The subscriptions of a running consumer changed."""
        if not self.rebalancing:
            self.rebalancing = True
            self.tasks.keep(self._rebalance_forever)
        await self.find_routes()
        await self.instance.heartbeat()
        self.group_changed()
        try:
            await self.check_filters()
        except ClientError as error:
            log.error("a subscription of %s receives no messages: %s", self.settings.group, error)

    async def check_filters(self) -> None:
        """Raises ClientError when a broker refuses a filter."""
        wanted = [*self.subscriptions.values(), *self._filters.values()]
        await check_filters(self.instance, self.settings.group, wanted)

    async def find_routes(self) -> None:
        """A topic without a route is not an error: it may be created later."""
        for topic in self.topics():
            try:
                await self.instance.route(topic)
            except NoRoute as error:
                if not topic.startswith(RETRY_PREFIX):
                    log.warning("%s", error)

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", sql: str | None = None) -> None:
        """``tags``: ``A || B``, or an iterable of tags; ``*`` is everything. ``sql``: a SQL92 filter over
        properties instead. The last call for a topic applies."""
        topic = self.namespace.wrap(topic)
        version = wall_ms()
        known = self.subscriptions.get(topic)
        if known is not None:
            version = max(version, known.sub_version + 1)
        self.subscriptions[topic] = subscription_of(topic, tags, sql, version)

    def filter_assigned(self, topics: Iterable[str], tags: str | Iterable[str], sql: str | None) -> None:
        """Like ``subscribe``, for topics whose queues are assigned explicitly; replaces the previous filter."""
        version = wall_ms()
        wrapped = {self.namespace.wrap(topic) for topic in topics}
        self._filters = {topic: subscription_of(topic, tags, sql, version) for topic in wrapped}

    # --- Member -----------------------------------------------------------------------------------------

    def topics(self) -> Collection[str]:
        return dict.fromkeys((*self.subscriptions, *(queue.topic for queue in self._owner.owned())))

    def consumer_data(self) -> ConsumerData | None:
        settings = self.settings
        return ConsumerData(
            group_name=settings.group,
            consume_type=settings.consume_type,
            message_model=settings.message_model,
            consume_from_where=settings.consume_from,
            subscription_data_set=list(self.subscriptions.values()) if self.rebalancing else [],
        )

    def route_changed(self, route: TopicRoute) -> None:
        if route.topic in self.topics():
            self.group_changed()

    def group_changed(self) -> None:
        self._timer.wake()
        self._wake.set()
        self._owner.group_changed()

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]:
        return await self._owner.answer(request)

    # --- rebalance --------------------------------------------------------------------------------------

    async def _rebalance_forever(self) -> None:
        while True:
            wait_ms = self._timer.wait_ms()
            if wait_ms > 0:
                self._wake.clear()
                try:
                    async with asyncio.timeout(wait_ms / 1000):
                        await self._wake.wait()
                except TimeoutError:
                    log.debug("rebalancing %s", self.settings.group)
                continue
            self._timer.begin()
            self._answers = RoundAnswers()
            balanced = True
            for topic in list(self.subscriptions):
                try:
                    balanced &= await self._rebalance(topic)
                    self.instance.outages.over(
                        ("rebalance", self.settings.group, topic),
                        "%s of %s is rebalanced again",
                        topic,
                        self.settings.group,
                    )
                except MQError as error:
                    # The retry topic is created by the first heartbeat, a little later than the others.
                    retry = topic.startswith(RETRY_PREFIX)
                    balanced = balanced and retry and self._retry_rounds <= 0
                    self._retry_rounds -= retry
                    self.instance.outages.failed(
                        ("rebalance", self.settings.group, topic),
                        error,
                        "cannot rebalance %s of %s: %s",
                        topic,
                        self.settings.group,
                        error,
                        level=logging.DEBUG if retry else level_of(error),
                    )
            left = [queue for queue in self._owner.owned() if queue.topic not in self.subscriptions]
            if left:
                await self._owner.give_up(left)
            self._timer.ran(balanced=balanced)

    async def _rebalance(self, topic: str) -> bool:
        route = await self.instance.route(topic)
        members = None if self.broadcasting else await self._members(route)
        owned = [queue for queue in self._owner.owned() if queue.topic == topic]
        change = plan(
            owned,
            route.subscribe_queues,
            client_id=self.instance.client_id,
            members=members,
            allocation=self.settings.allocation,
        )
        if change.drop:
            log.info("%s gives up %s", self.settings.group, change.drop)
            await self._owner.give_up(change.drop)
        silent = self._answers.silent
        add = [queue for queue in change.add if route.address(self.instance.broker_of(queue)) not in silent]
        if add:
            log.info("%s takes %s", self.settings.group, add)
            if members is not None and len(set(members)) > 1:
                await asyncio.sleep(self.settings.takeover_delay_ms / 1000)
            claimed = await self._owner.claim(add)
            taken = await asyncio.gather(*(self._take(queue) for queue in add if queue in claimed))
            return len(claimed) == len(change.add) and all(taken)
        return not change.add

    async def _take(self, queue: MessageQueue) -> bool:
        try:
            await self._owner.take(queue, await self.start_offset(queue))
        except MQError as error:
            group = self.settings.group
            if isinstance(error, (RequestTimeout, ConnectionLost)) and error.address:
                self._answers.silent[error.address] = error
            self.instance.failed(
                ("take", group, queue), error, "%s cannot take %s yet: %s", group, queue, error
            )
            await self._owner.unclaim([queue])
            return False
        group = self.settings.group
        self.instance.outages.over(("take", group, queue), "%s has taken %s", group, queue)
        return True

    async def _members(self, route: TopicRoute) -> list[str]:
        """All client ids of the group, from any broker of the topic."""
        addresses = [each for name in sorted(route.brokers) if (each := route.address(name)) is not None]
        if not addresses:
            raise NoRoute(route.topic, "no broker serves it")
        members = self._answers.members
        if known := [members[address] for address in addresses if address in members]:
            return known[0]
        return await self._answers.ask(addresses, self._members_at)

    async def _members_at(self, address: str) -> list[str]:
        try:
            response = await self.instance.remoting.invoke(
                address,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                GetConsumerListByGroupRequestHeader(consumer_group=self.settings.group),
                timeout_ms=self._options.request_timeout_ms,
            )
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            # The broker received this member's heartbeat, but ignores members of groups that do not exist.
            raise ClientError(
                f"{error}; if this persists, create the group (AdminClient.create_group, mqadmin updateSubGroup) or"
                " turn on autoCreateSubscriptionGroup at the broker"
            ) from error
        found = decode_body(GetConsumerListByGroupResponseBody, response.body).consumer_id_list
        self._answers.members[address] = found
        return found

    # --- offsets ----------------------------------------------------------------------------------------

    async def start_offset(self, queue: MessageQueue) -> int:
        """The committed offset, otherwise according to ``consume_from``. Raises ClientError."""
        committed = await self.offsets.read(queue)
        if committed is not None:
            return committed
        retry = queue.topic.startswith(RETRY_PREFIX)
        consume_from = self.settings.consume_from
        if consume_from is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return 0
        if consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            if retry:
                return await self.calls.max_offset(queue)
            timestamp_ms = self.settings.consume_timestamp_ms
            return await self.calls.offset_for_timestamp(
                queue, self.instance.clock.now_ms() - 30 * 60_000 if timestamp_ms is None else timestamp_ms
            )
        return 0 if retry else await self.calls.max_offset(queue)

    # --- pull -------------------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        commit_offset: int,
        broker_id: int,
        lite: bool,
        at_most: int | None = None,
    ) -> Pulled:
        """``QueueCalls.pull`` with the filter of the queue's topic."""
        subscription = self.subscriptions.get(queue.topic) or self._filters.get(queue.topic)
        return await self.calls.pull(
            queue,
            offset,
            subscription,
            commit_offset=commit_offset,
            broker_id=broker_id,
            lite=lite,
            at_most=at_most,
        )
