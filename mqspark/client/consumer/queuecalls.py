"""Requests of a consumer to the broker of a queue: offsets, pulls, sending messages back. Facts: RocketMQ's
PullAPIWrapper, MQAdminImpl."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from mqspark.base.logs import escaping
from mqspark.client.consumer.consumer_settings import ANYBODYS_MESSAGES, GroupSettings
from mqspark.client.producer.faults import FaultTable
from mqspark.client.remoting.filters import require_sql
from mqspark.client.remoting.instance import ClientInstance
from mqspark.client.remoting.namespaces import Namespace
from mqspark.client.remoting.pullanswers import check_messages, check_offsets
from mqspark.client.remoting.topic_routes import (
    BrokerReplica,
    is_logic_broker,
    place_in_logic_queue,
    replica_of,
)
from mqspark.errors import BrokerError, ConnectionLost, InvalidMessage, MQError, NoRoute, RequestTimeout
from mqspark.filter.sql import SQL92
from mqspark.message import INNER_BATCH, MASTER_ID, RETRY_PREFIX, RETRY_TOPIC, TAGS, MessageExt, MessageQueue
from mqspark.protocol.bodies.client_bodies import SubscriptionData
from mqspark.protocol.codes import PULL_ANSWERS, PullFlag, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    ConsumerSendMsgBackRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from mqspark.protocol.headers.header import Header
from mqspark.record.compression import InflateLimits
from mqspark.record.record import decode_pull

log = escaping(__name__)

DAMAGE_PATIENCE_MS = 30_000
"""For so long a damaged message is pulled again before it is left out. mqspark's brokers notice damage of what they
have just written within ten seconds."""
_MAX_PULL_BYTES = 256 * 1024
"""``maxMsgBytes`` of a pull; current brokers use their own limit."""
_OFFSET_TIMEOUT_MS = 5_000
_LONG_POLL_SLACK_MS = 15_000
"""A long poll times out this long after the broker should have answered."""
_FLOW_CONTROL_PAUSE_S = 0.02
_NO_PROGRESS_PAUSE_S = 0.02
_MOVED_PAUSE_S = 0.05
_LONGEST_MOVED_PAUSE_S = 10.0
"""The second move of an offset without a message in between waits; each further one twice as long."""
_ERROR_PAUSE_S = 1.0
"""Pause before a failed pull is retried (pullTimeDelayMillsWhen*)."""


class Pulled(NamedTuple):
    code: int
    """SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY or PULL_OFFSET_MOVED."""
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int


class QueueCalls:
    """The calls of one group."""

    def __init__(self, instance: ClientInstance, settings: GroupSettings, namespace: Namespace) -> None:
        self._instance = instance
        self._settings = settings
        self._namespace = namespace
        self._masters = FaultTable(instance.clock)
        """Masters that do not answer, and until when slaves are read in their place."""
        self._damaged: dict[MessageQueue, tuple[int, int]] = {}
        """Queues in which a damaged message comes next: the offset pulled from, and when that began (monotonic ms)."""

        self._moves: dict[MessageQueue, int] = {}
        """Queues whose offset a broker has moved, and how often since their last message."""

    # --- offsets ----------------------------------------------------------------------------------------

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last message; 0 where brokers return -1, for none."""
        header = GetMaxOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        response = await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)
        return max(0, response.header(GetMaxOffsetResponseHeader).offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The smallest readable offset; also 0 for a BatchCQ queue that never had a message, for which brokers
        return -1 (BatchConsumeQueue)."""
        header = GetMinOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        response = await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)
        return max(0, response.header(GetMinOffsetResponseHeader).offset)

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after ``timestamp_ms``, or the end of the queue."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            boundary_type="LOWER",
            bname=queue.broker_name,
        )
        response = await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return max(0, response.header(SearchOffsetResponseHeader).offset)

    async def _ask(self, queue: MessageQueue, code: int, header: Header) -> Command:
        remoting = self._instance.remoting
        address = (await self._replica(queue, MASTER_ID)).address
        try:
            return await remoting.invoke(address, code, header, timeout_ms=_OFFSET_TIMEOUT_MS)
        except BrokerError as error:
            if not await self._instance.has_moved(queue, error):
                raise
        address = (await self._replica(queue, MASTER_ID)).address
        return await remoting.invoke(address, code, header, timeout_ms=_OFFSET_TIMEOUT_MS)

    async def _replica(self, queue: MessageQueue, broker_id: int) -> BrokerReplica:
        replica = replica_of(self._instance.replicas(self._instance.broker_of(queue)), broker_id)
        if replica is None:
            route = await self._instance.route(queue.topic, refresh=True)
            replica = replica_of(route.brokers.get(route.broker_of(queue)), broker_id)
        if replica is None:
            raise NoRoute(queue.topic, f"broker {queue.broker_name} has no address")
        return replica

    async def _readable(self, queue: MessageQueue, broker_id: int) -> BrokerReplica:
        """The replica to pull from: a slave in the place of a master that did not answer lately."""
        replicas = self._instance.replicas(self._instance.broker_of(queue))
        master = replicas.get(MASTER_ID)
        if broker_id == MASTER_ID and master is not None and not self._masters.available(master):
            slaves = {number: address for number, address in replicas.items() if number != MASTER_ID}
            if (slave := replica_of(slaves)) is not None:
                return slave
        return await self._replica(queue, broker_id)

    async def recover(self, queue: MessageQueue, error: MQError) -> None:
        """After a failed pull: pause, and refresh the route if the broker was not found."""
        group = self._settings.group
        self._instance.failed(("pull", group, queue), error, "cannot pull %s for %s: %s", queue, group, error)
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(_FLOW_CONTROL_PAUSE_S)
            return
        await asyncio.sleep(_ERROR_PAUSE_S)
        moved = isinstance(error, BrokerError) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE
        if moved or isinstance(error, (ConnectionLost, RequestTimeout)):
            try:
                await self._instance.route(queue.topic, refresh=True)
            except MQError as failure:
                what = "cannot refresh the route of %s: %s"
                self._instance.failed(("route", queue.topic), failure, what, queue.topic, failure)

    def recovered(self, queue: MessageQueue) -> None:
        """A pull was answered."""
        group = self._settings.group
        self._instance.outages.over(("pull", group, queue), "%s is pulled again for %s", queue, group)

    # --- sending back -----------------------------------------------------------------------------------

    async def send_back(self, message: MessageExt, delay_level: int, max_reconsume_times: int | None) -> None:
        """Send back a message that could not be processed. The broker delivers it to the group again after
        ``delay_level`` (0: according to the number of attempts), or stores it as a dead letter if it was
        delivered too often (None: the group's configuration) or the level is negative. Raises ClientError if the
        broker does not accept it."""
        queue = self._namespace.wrap_queue(message.queue)
        if is_logic_broker(queue.broker_name):
            # The message is where it was stored, whoever leads its queue now.
            route = await self._instance.route(queue.topic)
            stored_at = route.broker_at(message.store_host)
            if stored_at is None:
                raise NoRoute(queue.topic, f"no broker of it has the address {message.store_host}")
            queue = queue._replace(broker_name=stored_at)
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._settings.group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self._namespace.wrap(message.topic),
            max_reconsume_times=max_reconsume_times,
            bname=queue.broker_name,
        )
        await self._ask(queue, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    # --- pull -------------------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData | None,
        *,
        commit_offset: int,
        broker_id: int,
        lite: bool,
        at_most: int | None = None,
    ) -> Pulled:
        """One long poll. Raises BrokerError for a response code other than Pulled's, ClientError if the broker is
        too old for the filter.

        ``at_most``: messages, instead of the setting. ``commit_offset`` above 0 is committed with the request
        (clustering only, and by masters only). While a master does not answer, one of its slaves is asked. A slave may
        be behind: only a master moves the reader's offset back.
        """
        replica = await self._readable(queue, broker_id)
        if replica.broker_id != MASTER_ID or self._settings.broadcasting:
            commit_offset = 0
        header = self._pull_header(
            queue,
            offset,
            subscription,
            replica,
            max(commit_offset, 0),
            lite=lite,
            at_most=at_most or self._settings.pull_batch_size,
        )
        self._instance.silence.uses(replica.address)
        clock = self._instance.clock
        began_ms = clock.monotonic_ms()
        response = await self._pulled_from(replica, queue, header, broker_id, lite=lite)
        code = response.code
        answer = response.header(PullMessageResponseHeader)
        messages: list[MessageExt] = []
        next_offset = check_offsets(queue, offset, code, answer)
        if replica.broker_id != MASTER_ID:
            next_offset = max(offset, next_offset)
            if code == ResponseCode.PULL_OFFSET_MOVED:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
            if code == ResponseCode.PULL_RETRY_IMMEDIATELY and next_offset == offset:
                await asyncio.sleep(_ERROR_PAUSE_S)
        if response.code == ResponseCode.SUCCESS:
            limits = self._instance.options.inflate_limits
            messages, rest = self._decoded(queue, offset, response.body, limits)
            if rest is not None:
                next_offset = rest + (answer.offset_delta or 0)
            if is_logic_broker(queue.broker_name):
                place_in_logic_queue(messages, queue, answer.offset_delta)
            check_messages(queue, offset, next_offset, messages)
            messages = self._wanted(messages, queue, offset, subscription)
        self.recovered(queue)
        await self._pace(queue, code, is_stuck=next_offset == offset, took_ms=clock.monotonic_ms() - began_ms)
        return Pulled(
            code,
            messages,
            next_offset,
            answer.min_offset,
            answer.max_offset,
            answer.suggest_which_broker_id,
        )

    def _pull_header(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData | None,
        replica: BrokerReplica,
        commit_offset: int,
        *,
        lite: bool,
        at_most: int,
    ) -> PullMessageRequestHeader:
        """Raises ClientError if the broker is too old for the filter."""
        expression_type = "TAG"
        if subscription is not None and subscription.expression_type == SQL92:
            require_sql(self._instance, replica.address)
            expression_type = SQL92
        flags = PullFlag.SUSPEND
        if lite:
            flags |= PullFlag.SUBSCRIPTION | PullFlag.LITE_PULL
        if commit_offset:
            flags |= PullFlag.COMMIT
        return PullMessageRequestHeader(
            consumer_group=self._settings.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=at_most,
            sys_flag=flags,
            commit_offset=commit_offset,
            suspend_timeout_millis=self._settings.suspend_ms,
            sub_version=0 if lite or subscription is None else subscription.sub_version,
            subscription=(subscription.sub_string if subscription else "*") if lite else None,
            expression_type=expression_type,
            max_msg_bytes=_MAX_PULL_BYTES,
            bname=queue.broker_name,
            mqspark_bulk=at_most > ANYBODYS_MESSAGES or None,
        )

    async def _pulled_from(
        self,
        replica: BrokerReplica,
        queue: MessageQueue,
        header: PullMessageRequestHeader,
        broker_id: int,
        *,
        lite: bool,
    ) -> Command:
        """The answer of one replica; ``broker_id``: the one that was to be asked."""
        try:
            return await self._instance.remoting.invoke(
                replica.address,
                RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE,
                header,
                timeout_ms=self._settings.suspend_ms + _LONG_POLL_SLACK_MS,
                poll_ms=self._settings.suspend_ms,
                accept=PULL_ANSWERS,
            )
        except (ConnectionLost, RequestTimeout):
            if replica.broker_id == MASTER_ID:
                self._masters.record(replica.address, 0, isolate=True)
            raise
        except BrokerError:
            if broker_id == MASTER_ID != replica.broker_id:  # a slave that serves no pulls is no help
                master = self._instance.replicas(self._instance.broker_of(queue)).get(MASTER_ID)
                if master is not None:
                    self._masters.forgive(master)
            raise

    def _wanted(
        self,
        messages: list[MessageExt],
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData | None,
    ) -> list[MessageExt]:
        """Those that the reader asked for, as it knows them."""
        if messages and messages[0].sys_flag & INNER_BATCH:
            # The broker returns the whole record that contains the offset; earlier messages in it were already
            # consumed.
            messages = [
                message
                for message in messages
                if message.queue_offset >= offset or not message.sys_flag & INNER_BATCH
            ]
        if subscription is not None and subscription.tags_set:
            # The broker compared hashes, and two tags may share one.
            tags = frozenset(subscription.tags_set)
            messages = [message for message in messages if message.properties.get(TAGS) in tags]
        if self._namespace or queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                self.show(message)
        return messages

    async def _pace(self, queue: MessageQueue, code: int, *, is_stuck: bool, took_ms: int) -> None:
        """Keep a broker that sends the reader to and fro, or answers nothing at once, from being asked without end."""
        if code == ResponseCode.PULL_OFFSET_MOVED:
            moves = self._moves[queue] = self._moves.get(queue, 0) + 1
            if moves > 1:
                await asyncio.sleep(min(_MOVED_PAUSE_S * 2 ** min(moves, 16), _LONGEST_MOVED_PAUSE_S))
        elif code == ResponseCode.SUCCESS:
            self._moves.pop(queue, None)
        elif is_stuck and took_ms < _NO_PROGRESS_PAUSE_S * 1000:
            await asyncio.sleep(_NO_PROGRESS_PAUSE_S)

    def _decoded(
        self, queue: MessageQueue, offset: int, body: bytes | memoryview, limits: InflateLimits
    ) -> tuple[list[MessageExt], int | None]:
        """``decode_pull``. A broker may heal a damaged message, or leave it out once it notices the damage. One that
        goes on sending it would stop the queue for ever, so in the end the message is left out here, in the log.
        Raises InvalidMessage before."""
        now_ms = self._instance.clock.monotonic_ms()
        since = self._damaged.get(queue)
        is_over = since is not None and since[0] == offset and now_ms - since[1] >= DAMAGE_PATIENCE_MS
        damaged: list[InvalidMessage] = []
        try:
            decoded = decode_pull(
                body, broker_name=queue.broker_name, limits=limits, damaged=damaged if is_over else None
            )
        except InvalidMessage:
            if since is None or since[0] != offset:
                self._damaged[queue] = offset, now_ms
            raise
        self._damaged.pop(queue, None)
        for error in damaged:
            log.error("a message of %s is left out: %s", queue, error)
        return decoded

    def show(self, message: MessageExt) -> None:
        """Set the topic under which the program knows the message: the original one if it is a retry."""
        topic = message.topic
        if topic.startswith(RETRY_PREFIX):
            topic = message.properties.get(RETRY_TOPIC, topic)
        message.topic = self._namespace.unwrap(topic)
