"""What every consumer of a group does: subscriptions, its share of the queues, where to start, pulling.

Push and lite pull consumers differ in what they do with a queue once it is theirs: they say so through
``QueueOwner``. Facts: RocketMQ's RebalanceImpl, RebalancePushImpl, PullAPIWrapper; reference client-semantics
§3.2, §3.4, §3.6.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import random
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from mqspark.client.allocate import Allocation, Averagely
from mqspark.client.filters import check_filters, require_sql, subscription_of
from mqspark.client.instance import ClientInstance, ClientOptions
from mqspark.client.namespaces import Namespace
from mqspark.client.offsets import BrokerOffsets, LocalOffsets, Offsets
from mqspark.client.rebalance import RebalanceTimer, plan
from mqspark.client.routes import MASTER_ID, TopicRoute
from mqspark.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    ConnectionLost,
    MQError,
    NoRoute,
    RequestTimeout,
)
from mqspark.filter.sql import SQL92
from mqspark.message import (
    INNER_BATCH,
    RETRY_PREFIX,
    RETRY_TOPIC,
    TAGS,
    MessageExt,
    MessageQueue,
    check_group,
)
from mqspark.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    GetConsumerListByGroupResponseBody,
    MessageModel,
    ProducerData,
    SubscriptionData,
    decode_body,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from mqspark.record import decode_records

__all__ = ["ConsumeFromWhere", "GroupConsumer", "GroupSettings", "MessageModel", "Pulled", "QueueOwner"]

log = logging.getLogger(__name__)

COMMIT_FLAG, SUSPEND_FLAG, SUBSCRIPTION_FLAG, LITE_FLAG = 0x1, 0x2, 0x4, 0x10
"""Bits of a pull's sysFlag (PullSysFlag)."""

_MAX_PULL_BYTES = 256 * 1024
"""``maxMsgBytes`` of a pull; today's brokers go by their own limit."""
_OFFSET_TIMEOUT_MS = 5_000
_RETRY_ROUNDS = 60
"""So many rounds in quick succession are spent on a retry topic that is not there yet."""
_LONG_POLL_SLACK_MS = 15_000
"""A long poll is given up this long after the broker should have answered."""


_members: weakref.WeakValueDictionary[tuple[str, str], GroupConsumer] = weakref.WeakValueDictionary()
"""Who is running in this process, by client id and group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    group: str
    consume_type: ConsumeType
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int | None = None
    """For CONSUME_FROM_TIMESTAMP; half an hour before the start when None."""
    allocation: Allocation = field(default_factory=Averagely)
    rebalance_interval_ms: int = 20_000
    pull_batch_size: int = 32
    suspend_ms: int = 15_000
    """How long the broker may keep a pull waiting for messages."""
    local_offsets_directory: Path | None = None
    takeover_delay_ms: int = 200
    """A queue that another member had is read after this: its offset is on the way to the broker."""


class Pulled(NamedTuple):
    code: int
    """SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY or PULL_OFFSET_MOVED."""
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int


class QueueOwner(Protocol):
    """Who reads the queues. Each that is added goes through ``claim``, then ``take`` (or ``unclaim``, when it cannot
    be taken after all)."""

    def owned(self) -> Collection[MessageQueue]: ...

    async def claim(self, queues: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Those of the queues that may be taken now."""

    async def unclaim(self, queues: Sequence[MessageQueue]) -> None: ...

    async def take(self, queue: MessageQueue, start_offset: int) -> None: ...

    async def give_up(self, queues: Sequence[MessageQueue]) -> None: ...

    def group_changed(self) -> None:
        """Members came or went, or a connection is new."""

    async def answer(self, request: Command) -> tuple[int, bytes, str | None]: ...


class GroupConsumer:
    """A member of a consumer group, as its instance (``Member``) and its owner see it."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        settings: GroupSettings,
        options: ClientOptions | None,
        owner: QueueOwner,
    ) -> None:
        self._options = options or ClientOptions()
        self.namespace = Namespace(self._options.namespace)
        settings = dataclasses.replace(settings, group=self.namespace.wrap(settings.group))
        check_group(settings.group)
        self.settings = settings
        self.subscriptions: dict[str, SubscriptionData] = {}
        self._filters: dict[str, SubscriptionData] = {}
        """What is wanted of the topics of queues that were assigned: nothing that the group must know."""
        self.instance: ClientInstance
        self.offsets: Offsets
        self._namesrv = namesrv
        self._owner = owner
        self._wake = asyncio.Event()
        self._timer: RebalanceTimer
        self._retry_rounds = _RETRY_ROUNDS
        self.rebalancing = False
        """Whether this consumer shares its topics with its group (not so when it was given queues)."""

    @property
    def broadcasting(self) -> bool:
        return self.settings.message_model is MessageModel.BROADCASTING

    # --- life -------------------------------------------------------------------------------------------

    async def start(self, *, rebalance: bool, prepare: Callable[[], None] | None = None) -> None:
        """Routes, heartbeat, first rebalance. Raises what a missing cluster raises, after cleaning up, and
        ClientError when a broker refuses a filter. ``prepare`` is called when there is an ``instance``.
        """
        settings = self.settings
        self.rebalancing = rebalance
        self.instance = ClientInstance(self._namesrv, self._options, keep_default_name=self.broadcasting)
        if self.broadcasting:
            directory = settings.local_offsets_directory or Path.home() / ".rocketmq_offsets"
            self.offsets = LocalOffsets(directory, self.instance.client_id, settings.group)
        else:
            self.offsets = BrokerOffsets(self.instance, settings.group)
        self._timer = RebalanceTimer(self.instance.clock, interval_ms=settings.rebalance_interval_ms)
        self._hold_name()
        if prepare is not None:
            prepare()
        self.instance.join(self)
        try:
            await self.find_routes()
            await self.instance.start()
            await self.instance.heartbeat()
            await self.check_filters()
        except BaseException:
            await self.stop()
            raise
        if rebalance:
            self.instance.spawn(self._rebalance_forever())

    def _hold_name(self) -> None:
        """Two members of a group under one name would take each other's connection and offsets."""
        key = (self.instance.client_id, self.settings.group)
        if key in _members:
            raise ConfigError(
                f"group {self.settings.group} has a member {self.instance.client_id} in this process already; give one"
                " of them another instance_name (ClientOptions)",
                key="instance_name",
            )
        _members[key] = self

    async def stop(self) -> None:
        """Leaves the group. Never raises."""
        _members.pop((self.instance.client_id, self.settings.group), None)
        await self.instance.stop()

    async def subscribed(self) -> None:
        """A running consumer changed what it subscribes to."""
        if not self.rebalancing:
            self.rebalancing = True
            self.instance.spawn(self._rebalance_forever())
        await self.find_routes()
        await self.instance.heartbeat()
        self.group_changed()
        try:
            await self.check_filters()
        except ClientError as error:
            log.error("a subscription of %s brings nothing: %s", self.settings.group, error)

    async def check_filters(self) -> None:
        """Raises ClientError when a broker refuses a filter."""
        wanted = [*self.subscriptions.values(), *self._filters.values()]
        await check_filters(self.instance, self.settings.group, wanted)

    async def find_routes(self) -> None:
        """A topic without one is no error: it may be created later."""
        for topic in self.topics():
            try:
                await self.instance.route(topic)
            except NoRoute as error:
                if not topic.startswith(RETRY_PREFIX):
                    log.warning("%s", error)

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", sql: str | None = None) -> None:
        """``tags``: ``A || B``, or the tags one by one; ``*`` is everything. ``sql``: a SQL92 filter over
        properties instead. The last call for a topic holds.
        """
        topic = self.namespace.wrap(topic)
        version = self._now_ms()
        known = self.subscriptions.get(topic)
        if known is not None:
            version = max(version, known.sub_version + 1)
        self.subscriptions[topic] = subscription_of(topic, tags, sql, version)

    def filter_assigned(self, topics: Iterable[str], tags: str | Iterable[str], sql: str | None) -> None:
        """The same for topics of which queues are assigned; replaces what was said before."""
        version = self._now_ms()
        wrapped = {self.namespace.wrap(topic) for topic in topics}
        self._filters = {topic: subscription_of(topic, tags, sql, version) for topic in wrapped}

    @staticmethod
    def _now_ms() -> int:
        return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)

    # --- Member -----------------------------------------------------------------------------------------

    def topics(self) -> Collection[str]:
        return {*self.subscriptions, *(queue.topic for queue in self._owner.owned())}

    def producer_data(self) -> ProducerData | None:
        return None

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
                    log.debug("time to rebalance %s", self.settings.group)
                continue
            self._timer.begin()
            balanced = True
            for topic in list(self.subscriptions):
                try:
                    balanced &= await self._rebalance(topic)
                except MQError as error:
                    # The retry topic comes into being with the first heartbeat, a little later than the others.
                    retry = topic.startswith(RETRY_PREFIX)
                    balanced = balanced and retry and self._retry_rounds <= 0
                    self._retry_rounds -= retry
                    log.log(
                        logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.WARNING,
                        "cannot rebalance %s of %s: %s",
                        topic,
                        self.settings.group,
                        error,
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
        if change.add:
            log.info("%s takes %s", self.settings.group, change.add)
            if members is not None and len(set(members)) > 1:
                await asyncio.sleep(self.settings.takeover_delay_ms / 1000)
            claimed = await self._owner.claim(change.add)
            taken = await asyncio.gather(*(self._take(queue) for queue in claimed))
            return len(claimed) == len(change.add) and all(taken)
        return True

    async def _take(self, queue: MessageQueue) -> bool:
        try:
            await self._owner.take(queue, await self.start_offset(queue))
        except MQError as error:
            log.warning("%s cannot take %s yet: %s", self.settings.group, queue, error)
            await self._owner.unclaim([queue])
            return False
        return True

    async def _members(self, route: TopicRoute) -> list[str]:
        """All client ids of the group, from any broker of the topic."""
        names = sorted(route.brokers)
        if not names:
            raise NoRoute(route.topic, "no broker serves it")
        address = route.address(random.choice(names))  # noqa: S311 - spreads load, guards nothing
        if address is None:
            raise NoRoute(route.topic, "no broker serves it")
        response = await self.instance.remoting.invoke(
            address,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            GetConsumerListByGroupRequestHeader(consumer_group=self.settings.group),
            timeout_ms=self._options.request_timeout_ms,
        )
        return decode_body(GetConsumerListByGroupResponseBody, response.body).consumer_id_list

    # --- offsets ----------------------------------------------------------------------------------------

    async def start_offset(self, queue: MessageQueue) -> int:
        """The committed offset, else what ``consume_from`` says. Raises ClientError."""
        committed = await self.offsets.read(queue)
        if committed is not None:
            return committed
        retry = queue.topic.startswith(RETRY_PREFIX)
        consume_from = self.settings.consume_from
        if consume_from is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return 0
        if consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            if retry:
                return await self.max_offset(queue)
            timestamp_ms = self.settings.consume_timestamp_ms
            return await self.offset_for_timestamp(
                queue, self._now_ms() - 30 * 60_000 if timestamp_ms is None else timestamp_ms
            )
        return 0 if retry else await self.max_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last message."""
        header = GetMaxOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        response = await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)
        return response.header(GetMaxOffsetResponseHeader).offset

    async def min_offset(self, queue: MessageQueue) -> int:
        header = GetMinOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        response = await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)
        return response.header(GetMinOffsetResponseHeader).offset

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Of the first message stored at or after ``timestamp_ms``, the end of the queue without one."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, bname=queue.broker_name
        )
        response = await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return response.header(SearchOffsetResponseHeader).offset

    async def _ask(self, queue: MessageQueue, code: int, header: Header) -> Command:
        address = await self._address(queue, MASTER_ID)
        return await self.instance.remoting.invoke(address, code, header, timeout_ms=_OFFSET_TIMEOUT_MS)

    async def _address(self, queue: MessageQueue, broker_id: int) -> str:
        address = self.instance.broker_address(queue.broker_name, broker_id)
        if address is None:
            route = await self.instance.route(queue.topic, refresh=True)
            address = route.address(queue.broker_name, broker_id)
        if address is None:
            raise NoRoute(queue.topic, f"broker {queue.broker_name} has no address")
        return address

    async def recover(self, queue: MessageQueue, error: MQError) -> None:
        """After a failed pull: a pause, and where the broker is now if it was not there."""
        log.warning("cannot pull %s for %s: %s", queue, self.settings.group, error)
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(_FLOW_CONTROL_PAUSE_S)
            return
        await asyncio.sleep(_ERROR_PAUSE_S)
        if isinstance(error, (ConnectionLost, RequestTimeout)):
            try:
                await self.instance.route(queue.topic, refresh=True)
            except MQError as failure:
                log.warning("cannot refresh the route of %s: %s", queue.topic, failure)

    # --- sending back -----------------------------------------------------------------------------------

    async def send_back(self, message: MessageExt, delay_level: int, max_reconsume_times: int | None) -> None:
        """Give a message that was not consumed to its broker, which delivers it to the group again after
        ``delay_level`` (0: by the number of times), or keeps it as a dead letter when it was delivered too often
        (None: as the group's configuration says) or the level is negative. Raises ClientError when it is not taken.
        """
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self.settings.group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self.namespace.wrap(message.topic),
            max_reconsume_times=max_reconsume_times,
            bname=message.broker_name,
        )
        await self._ask(self.namespace.wrap_queue(message.queue), RequestCode.CONSUMER_SEND_MSG_BACK, header)

    # --- pull -------------------------------------------------------------------------------------------

    async def pull(
        self, queue: MessageQueue, offset: int, *, commit_offset: int, broker_id: int, lite: bool
    ) -> Pulled:
        """One long poll. Raises BrokerError for a response that is none of Pulled's codes, ClientError when the
        broker is too old for the filter.

        ``commit_offset`` above 0 is committed on the way (clustering only).
        """
        subscription = self.subscriptions.get(queue.topic) or self._filters.get(queue.topic)
        address = await self._address(queue, broker_id)
        expression_type = "TAG"
        if subscription is not None and subscription.expression_type == SQL92:
            require_sql(self.instance, address)
            expression_type = SQL92
        flags = SUSPEND_FLAG
        if lite:
            flags |= SUBSCRIPTION_FLAG | LITE_FLAG
        if commit_offset > 0 and broker_id == MASTER_ID and not self.broadcasting:
            flags |= COMMIT_FLAG
        else:
            commit_offset = 0
        header = PullMessageRequestHeader(
            consumer_group=self.settings.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=self.settings.pull_batch_size,
            sys_flag=flags,
            commit_offset=commit_offset,
            suspend_timeout_millis=self.settings.suspend_ms,
            sub_version=0 if lite or subscription is None else subscription.sub_version,
            subscription=(subscription.sub_string if subscription else "*") if lite else None,
            expression_type=expression_type,
            max_msg_bytes=_MAX_PULL_BYTES,
            bname=queue.broker_name,
        )
        response = await self.instance.remoting.invoke(
            address,
            RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE,
            header,
            timeout_ms=self.settings.suspend_ms + _LONG_POLL_SLACK_MS,
            accept=_PULL_CODES,
        )
        answer = response.header(PullMessageResponseHeader)
        messages: list[MessageExt] = []
        if response.code == ResponseCode.SUCCESS:
            messages = decode_records(response.body, broker_name=queue.broker_name)
            if messages and messages[0].sys_flag & INNER_BATCH:
                # The broker gives the record that the offset is in: what comes before it was consumed.
                messages = [
                    message
                    for message in messages
                    if message.queue_offset >= offset or not message.sys_flag & INNER_BATCH
                ]
            if subscription is not None and subscription.tags_set:
                # The broker compared hashes; two tags may share one.
                tags = frozenset(subscription.tags_set)
                messages = [message for message in messages if message.properties.get(TAGS) in tags]
            if self.namespace or queue.topic.startswith(RETRY_PREFIX):
                for message in messages:
                    self.show(message)
        return Pulled(
            response.code,
            messages,
            answer.next_begin_offset,
            answer.min_offset,
            answer.max_offset,
            answer.suggest_which_broker_id,
        )

    def show(self, message: MessageExt) -> None:
        """Give a message the topic by which the program knows it: the first one, of a message that comes again."""
        topic = message.topic
        if topic.startswith(RETRY_PREFIX):
            topic = message.properties.get(RETRY_TOPIC, topic)
        message.topic = self.namespace.unwrap(topic)


_FLOW_CONTROL_PAUSE_S = 0.02
_ERROR_PAUSE_S = 1.0
"""Until a failed pull is tried again (pullTimeDelayMillsWhen*)."""

_PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be positive", key=name)
