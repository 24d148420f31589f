"""Administration: topics, groups, offsets, cluster, brokers. Facts: RocketMQ's DefaultMQAdminExtImpl."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Unpack

import msgspec

from mqspark.client.remoting.identity import ClientKeywords, ClientOptions
from mqspark.client.remoting.instance import ClientInstance, InstanceMember
from mqspark.client.remoting.keywords import changed, spelled_out
from mqspark.client.remoting.lifecycle import Lifecycle
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import BrokerError, ClientError, ConfigError, NoRoute, RequestTimeout
from mqspark.message import (
    DEFAULT_TOPIC,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    MessageQueue,
    check_group,
    check_topic,
    is_system_topic,
)
from mqspark.protocol.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    KVTable,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    decode_body,
    encode_body,
    queue_of,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, Fields
from mqspark.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

__all__ = ["AdminClient", "GroupOffset"]

_ROUTE_POLL_S = 0.02


class GroupOffset(msgspec.Struct, frozen=True):
    """The progress of a group in one queue."""

    committed: int
    """-1 if the group has committed nothing there."""
    max_offset: int

    @property
    def lag(self) -> int:
        """Messages that the group has not committed yet."""
        return self.max_offset - max(self.committed, 0)


class AdminClient(Lifecycle):
    """Queries and changes, as with mqadmin.

    Raises BrokerError when a server refuses, NoRoute for an unknown topic, ConnectionLost or RequestTimeout when
    a server is unreachable. Not thread-safe: use it on the loop it was started on.
    """

    @spelled_out(ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 5_000,
        options: ClientOptions | None = None,
        **changes: Unpack[ClientKeywords],
    ) -> None:
        """``timeout_ms`` is the limit of each request. Every field of ``ClientOptions`` may be given as a keyword, too,
        and then counts. Raises ConfigError, TypeError for an unknown keyword."""
        self._namesrv = namesrv
        self._timeout_ms = timeout_ms
        self.options = changed(options or ClientOptions(), changes)
        self._member = InstanceMember()
        self._instance: ClientInstance
        self._running = False

    async def start(self) -> None:
        """Connects with the first request. Raises ConfigError without a name server. Called again, it does nothing."""
        if not self._running:
            self._instance = ClientInstance.enter(self._member, self._namesrv, self.options)
            self._running = True

    async def stop(self) -> None:
        """Close the connections that nobody else uses. Called again, it does nothing."""
        if self._running:
            self._running = False
            await self._instance.leave(self._member)

    # --- cluster ----------------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers that the name server knows, with the addresses of masters (id 0) and slaves.

        >>> info = await admin.cluster_info()
        >>> info.broker_addr_table["broker-a"].broker_addrs[0]
        '10.0.0.1:10911'
        """
        return decode_body(ClusterInfo, (await self._namesrv_ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def broker_runtime_info(self, address: str) -> dict[str, str]:
        """The values that ``mqadmin brokerStatus`` shows."""
        response = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_body(KVTable, response.body).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """The broker's settings under RocketMQ's names."""
        text = bytes((await self._ask(address, RequestCode.GET_BROKER_CONFIG)).body).decode()
        lines = (line.partition("=") for line in text.splitlines())
        return {key.strip(): value.strip() for key, separator, value in lines if separator}

    async def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the broker at ``address`` (``host:port``), by RocketMQ's names. Raises BrokerError for
        settings that the broker does not take while it runs."""
        body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    # --- topics -----------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        cluster: str | None = None,
        brokers: Collection[str] | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicRoute:
        """Create or change a topic on all masters (of ``cluster``, or those named in ``brokers``).

        ``queues`` is the number of its queues on each broker; ``perm`` is 2 (write), 4 (read) or their sum;
        ``attributes`` are those of RocketMQ, e.g. ``{"message.type": "FIFO"}``. Returns once the name server has its
        route there. Raises InvalidMessage for a name that no topic can have, ConfigError for an unknown cluster or
        broker, RequestTimeout if the route does not come.

        >>> await admin.create_topic("Orders", queues=8)
        """
        check_topic(topic)
        if is_system_topic(topic):
            raise ConfigError(f"{topic} is the name of a system topic", key="topic")
        masters = await self._masters(cluster, brokers)
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            attributes=",".join(f"+{key}={value}" for key, value in (attributes or {}).items()),
        )
        for address in masters.values():
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        return await self._await_route(topic, set(masters), queues)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic from all brokers (of ``cluster``), then from all name servers. A topic that does not exist
        is no error. Raises ConfigError for an unknown cluster."""
        for address in (await self._masters(cluster, None)).values():
            header = DeleteTopicRequestHeader(topic=topic)
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        for address in self._instance.namesrv:
            await self._ask(
                address,
                RequestCode.DELETE_TOPIC_IN_NAMESRV,
                DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster),
            )

    async def topic_list(self) -> list[str]:
        """All topics that the name server knows, system topics included."""
        response = await self._namesrv_ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(TopicList, response.body).topic_list)

    async def topic_route(self, topic: str) -> TopicRoute:
        """The brokers and queues of a topic, as the name server knows them now. Raises NoRoute."""
        return await self._started().route(topic, refresh=True)

    async def topic_config(self, topic: str, address: str) -> TopicConfig:
        """Queue counts, permissions and attributes of a topic at the broker at ``address`` (``host:port``). Raises
        BrokerError TOPIC_NOT_EXIST."""
        header = GetTopicConfigRequestHeader(topic=topic, lo=True)
        return decode_body(TopicConfig, (await self._ask(address, RequestCode.GET_TOPIC_CONFIG, header)).body)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Minimum and maximum offset and last store time (ms since the epoch) of every queue. Raises NoRoute."""
        route = await self.topic_route(topic)
        stats: dict[MessageQueue, TopicOffset] = {}
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        for address in self._route_masters(route):
            response = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
            table = decode_body(TopicStatsTable, response.body).offset_table
            stats |= {queue_of(key): offset for key, offset in table.items()}
        return dict(sorted(stats.items()))

    # --- groups -----------------------------------------------------------------------------------------

    async def create_group(
        self, group: str, *, cluster: str | None = None, config: SubscriptionGroupConfig | None = None
    ) -> None:
        """Create or change a consumer group on all masters. ``config``'s group name is overwritten."""
        check_group(group)
        settings = config or SubscriptionGroupConfig()
        settings.group_name = group
        for address in (await self._masters(cluster, None)).values():
            await self._ask(
                address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(settings)
            )

    async def set_consume_mode(
        self, topic: str, group: str, mode: str, *, share_queues: int = 0, cluster: str | None = None
    ) -> None:
        """Set how consumers that leave the mode to the brokers consume the topic: by ``PULL`` or by ``POP``. With
        POP, each consumer shares the queues of ``share_queues`` neighbours (0: all share all)."""
        body = SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share_queues
        )
        for address in (await self._masters(cluster, None)).values():
            await self._ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(body))

    async def delete_group(
        self, group: str, *, cluster: str | None = None, clean_offsets: bool = True
    ) -> None:
        """Delete a consumer group from all masters (of ``cluster``), with its committed offsets if
        ``clean_offsets``."""
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=clean_offsets)
        for address in (await self._masters(cluster, None)).values():
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_members(self, group: str) -> ConsumerConnection:
        """The live consumers of a group. Raises BrokerError CONSUMER_NOT_ONLINE if there are none."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        offline: BrokerError | None = None
        for address in (await self._masters(None, None)).values():
            try:
                response = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except BrokerError as error:
                offline = error
                continue
            return decode_body(ConsumerConnection, response.body)
        raise offline or NoRoute(group, "there is no broker")

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """The state of a live consumer as ``mqadmin consumerStatus`` shows it: its settings, queues and rates.
        ``client_id`` is one of ``group_members``. Raises BrokerError if no broker has a connection to it."""
        header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id)
        refused: BrokerError | None = None
        for address in (await self._masters(None, None)).values():
            try:
                response = await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
            except BrokerError as error:
                refused = error
                continue
            return decode_body(ConsumerRunningInfo, response.body)
        raise refused or NoRoute(group, "there is no broker")

    async def group_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, GroupOffset]:
        """How far a group is, in one topic or in all that its brokers know it for.

        Raises NoRoute for a topic that does not exist, BrokerError SUBSCRIPTION_GROUP_NOT_EXIST for such a group.
        """
        if topic is not None:
            route = await self.topic_route(topic)
            offsets = await asyncio.gather(
                *(self._group_offset(group, queue) for queue in route.subscribe_queues)
            )
            if all(offset.committed < 0 for offset in offsets):
                await self._check_group_exists(group)
            return dict(zip(route.subscribe_queues, offsets, strict=True))
        found: dict[MessageQueue, GroupOffset] = {}
        header = GetConsumeStatsRequestHeader(consumer_group=group)
        for address in (await self._masters(None, None)).values():
            response = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
            for key, item in decode_body(ConsumeStats, response.body).offset_table.items():
                found[queue_of(key)] = GroupOffset(item.consumer_offset, item.broker_offset)
        if not found:
            await self._check_group_exists(group)
        return dict(sorted(found.items()))

    async def group_lag(self, group: str, topic: str | None = None) -> int:
        """Messages that the group has not committed yet. Raises what ``group_offsets`` does."""
        return sum(offset.lag for offset in (await self.group_offsets(group, topic)).values())

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The offset that the group has committed; None if none."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
            bname=queue.broker_name,
        )
        response = await self._ask(
            await self._address_of(queue),
            RequestCode.QUERY_CONSUMER_OFFSET,
            header,
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return response.header(QueryConsumerOffsetResponseHeader).offset

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the group's committed offset. Live consumers continue from their own positions."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        )
        await self._ask(await self._address_of(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _check_group_exists(self, group: str) -> None:
        """Check that a group without committed offsets exists: it has a live consumer or was created. Sends no
        request that would create it. Raises BrokerError."""
        try:
            await self.topic_route(RETRY_PREFIX + group)
        except NoRoute:
            for address in (await self._masters(None, None)).values():
                response = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
                if group in decode_body(SubscriptionGroupWrapper, response.body).subscription_group_table:
                    return
            remark = f"there is no consumer group {group!r}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark) from None

    async def _group_offset(self, group: str, queue: MessageQueue) -> GroupOffset:
        header = GetMaxOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        response = await self._ask(await self._address_of(queue), RequestCode.GET_MAX_OFFSET, header)
        committed = await self.query_offset(group, queue)
        return GroupOffset(
            -1 if committed is None else committed, response.header(GetMaxOffsetResponseHeader).offset
        )

    # --- internal ---------------------------------------------------------------------------------------

    def _started(self) -> ClientInstance:
        if not self._running:
            raise ClientError(
                "the AdminClient is not started, or already stopped: use `async with` or await start() first"
            )
        return self._instance

    async def _ask(
        self,
        address: str,
        code: int,
        header: Fields = None,
        body: bytes = b"",
        accept: tuple[int, ...] = (ResponseCode.SUCCESS,),
    ) -> Command:
        return await self._started().remoting.invoke(
            address, code, header, body, timeout_ms=self._timeout_ms, accept=accept
        )

    async def _namesrv_ask(self, code: int, header: Fields = None) -> Command:
        return await self._started().ask_namesrv(code, header, timeout_ms=self._timeout_ms)

    async def _masters(self, cluster: str | None, brokers: Collection[str] | None) -> dict[str, str]:
        """Broker name to address."""
        info = await self.cluster_info()
        names: Iterable[str] = info.broker_addr_table
        if cluster is not None:
            if cluster not in info.cluster_addr_table:
                known = ", ".join(sorted(info.cluster_addr_table)) or "none"
                raise ConfigError(f"no cluster {cluster!r}; known: {known}", key="cluster")
            names = info.cluster_addr_table[cluster]
        if brokers is not None:
            unknown = set(brokers) - set(names)
            if unknown:
                raise ConfigError(f"no broker named {', '.join(sorted(unknown))}", key="brokers")
            names = brokers
        masters = {name: info.broker_addr_table[name].broker_addrs.get(0) for name in names}
        found = {name: address for name, address in masters.items() if address}
        if not found:
            raise ClientError("the name server knows no master broker")
        return found

    @staticmethod
    def _route_masters(route: TopicRoute) -> list[str]:
        return [address for name in sorted(route.brokers) if (address := route.master(name)) is not None]

    async def _address_of(self, queue: MessageQueue) -> str:
        route = await self._started().route(queue.topic)
        address = route.address(queue.broker_name)
        if address is None:
            raise NoRoute(queue.topic, f"broker {queue.broker_name} has no address")
        return address

    async def _await_route(self, topic: str, names: set[str], queues: int) -> TopicRoute:
        """Wait for the route: a broker registers a new topic by itself, and until then it is unusable."""
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        while asyncio.get_running_loop().time() < deadline:
            try:
                route = await self.topic_route(topic)
            except NoRoute:
                route = None
            if route is not None:
                counts = dict.fromkeys(names, 0)
                for queue in route.subscribe_queues:
                    counts[queue.broker_name] = counts.get(queue.broker_name, 0) + 1
                if all(counts[name] >= queues for name in names) or not route.subscribe_queues:
                    return route
            await asyncio.sleep(_ROUTE_POLL_S)
        raise RequestTimeout(f"the name server (route of {topic})", self._timeout_ms)
