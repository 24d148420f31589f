"""Administration: topics, groups, offsets, cluster, brokers. Facts: RocketMQ's DefaultMQAdminExtImpl."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal, Unpack
from urllib.parse import urlencode

import msgspec

from mqspark.base.names import bracketed
from mqspark.base.valuetypes import NonNegativeInt, PositiveInt, checked
from mqspark.client.life.lifecycle import Lifecycle
from mqspark.client.remoting.client_options import ClientKeywords, ClientOptions
from mqspark.client.remoting.indexwalk import EVER_MS, IndexWalk
from mqspark.client.remoting.instance import ClientInstance, InstanceMember
from mqspark.client.remoting.keywords import changed, spelled_out
from mqspark.client.remoting.longanswers import decoded_in_turns, merged, read_in_turns, topic_names
from mqspark.client.remoting.pullanswers import check_messages, check_offsets, committed_in
from mqspark.client.remoting.topic_routes import TopicRoute, is_logic_broker, place_in_logic_queue
from mqspark.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    ConnectionLost,
    NoRoute,
    NoSchemaRegistry,
    NoSuchTopic,
    ProtocolError,
    RequestTimeout,
)
from mqspark.message import (
    CLIENT_TOPIC_QUEUES,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    SCHEMAS_TOPIC,
    TOOLS_GROUP,
    UNIQ_KEY,
    MessageExt,
    MessageQueue,
    check_group,
    check_topic,
    decode_offset_id,
    has_key,
    is_system_topic,
    parse_number,
    split_tags,
)
from mqspark.protocol.bodies.admin_bodies import (
    BrokerStatsData,
    ConsumerRunningInfo,
    ConsumeStats,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
)
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_of
from mqspark.protocol.bodies.client_bodies import (
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    SetMessageRequestModeRequestBody,
)
from mqspark.protocol.bodies.longtables import parts_of_names
from mqspark.protocol.bodies.replica_bodies import HARuntimeInfo
from mqspark.protocol.bodies.topic_bodies import (
    ClusterInfo,
    GroupList,
    KVTable,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
)
from mqspark.protocol.codes import PULL_ANSWERS, RequestCode, ResponseCode
from mqspark.protocol.command import Command, Fields
from mqspark.protocol.headers.admin_headers import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    SchemaRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from mqspark.protocol.headers.client_headers import (
    UNIQUE_KEY_QUERY,
    CloneGroupOffsetRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    GetProducerConnectionListRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
    pull_header,
)
from mqspark.protocol.headers.cluster_headers import (
    AddWritePermOfBrokerRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetTopicsByClusterRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from mqspark.protocol.headers.header import to_ext
from mqspark.protocol.schemaoperations import OPERATIONS, STATUS_FIELD

_ROUTE_POLL_S = 0.02
QUEUES_AT_ONCE = 64
_CLEANINGS = {
    "queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "topics": RequestCode.CLEAN_UNUSED_TOPIC,
    "log": RequestCode.DELETE_EXPIRED_COMMITLOG,
}


class GroupOffset(msgspec.Struct, frozen=True):
    """The progress of a group in one queue."""

    committed: int
    """-1 if the group has committed nothing there."""
    max_offset: int

    @property
    def lag(self) -> int:
        """Messages that the group has not committed yet."""
        return self.max_offset - max(self.committed, 0)


class SchemaAnswer(msgspec.Struct, frozen=True):
    """An answer of the schema registry: the status of HTTP, and JSON or the text of a schema."""

    status: int
    body: bytes


class QueueRead(msgspec.Struct, frozen=True):
    """The outcome of one read of a queue."""

    messages: list[MessageExt]
    next_offset: int
    """The offset of the next read. Messages that the filter leaves out are before it."""
    min_offset: int
    max_offset: int


@checked()
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
        timeout_ms: PositiveInt = 5_000,
        options: ClientOptions | None = None,
        **changes: Unpack[ClientKeywords],
    ) -> None:
        """``timeout_ms`` is the limit of each request. Every field of ``ClientOptions`` may also be given as a
        keyword, which takes precedence. Raises ConfigError, TypeError for an unknown keyword."""
        self._namesrv = namesrv
        self._timeout_ms = timeout_ms
        self.options = changed(options or ClientOptions(), changes)
        self._member = InstanceMember()
        self._instance: ClientInstance
        self._running = False

    async def start(self) -> None:
        """Connections open with the first request. A second call does nothing. Raises ConfigError without a name
        server."""
        if not self._running:
            self._instance = ClientInstance.enter(self._member, self._namesrv, self.options)
            self._running = True

    async def stop(self) -> None:
        """Close the connections that nobody else uses. A second call does nothing."""
        await super().stop()

    async def _stop(self) -> None:
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
        return settings_in((await self._ask(address, RequestCode.GET_BROKER_CONFIG)).body)

    async def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the broker at ``address`` (``host:port``), by RocketMQ's names. Raises BrokerError for
        settings that the broker does not take while it runs."""
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=lines_of(settings))

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One counter of a broker over the last minute, hour and day. ``name`` is RocketMQ's, e.g. TOPIC_PUT_NUMS with
        a topic as ``key`` or GROUP_GET_NUMS with ``topic@group``. Raises BrokerError for a counter without a value."""
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        response = await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return decode_body(BrokerStatsData, response.body)

    async def ha_status(self, address: str) -> HARuntimeInfo:
        """The replication state of the broker at ``address``: the slaves and their positions, or a slave's own."""
        return decode_body(HARuntimeInfo, (await self._ask(address, RequestCode.GET_BROKER_HA_STATUS)).body)

    async def clean_up(self, address: str, what: Literal["queues", "topics", "log"]) -> None:
        """Make a broker remove expired queue files, unused topics or expired files of the log now."""
        await self._ask(address, _CLEANINGS[what])

    async def set_writable(self, broker_name: str, *, writable: bool) -> int:
        """Allow or forbid sends to the broker, at every name server; returns the number of its topics. While it is
        not writable, producers avoid the broker and consumers read what it still has."""
        if writable:
            header: Fields = AddWritePermOfBrokerRequestHeader(broker_name=broker_name)
            answers = await self._ask_every_namesrv(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
            counts = [answer.ext.get("addTopicCount", "0") for answer in answers]
        else:
            header = WipeWritePermOfBrokerRequestHeader(broker_name=broker_name)
            answers = await self._ask_every_namesrv(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
            counts = [answer.ext.get("wipeTopicCount", "0") for answer in answers]
        return max((parse_number(count) or 0 for count in counts), default=0)

    @property
    def namesrv(self) -> list[str]:
        """The addresses of the name servers."""
        return list(self._started().namesrv)

    async def namesrv_config(self, address: str) -> dict[str, str]:
        """The settings of the name server at ``address``, under RocketMQ's names."""
        return settings_in((await self._ask(address, RequestCode.GET_NAMESRV_CONFIG)).body)

    async def update_namesrv_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the name server at ``address``. Raises BrokerError for those that it does not take."""
        await self._ask(address, RequestCode.UPDATE_NAMESRV_CONFIG, body=lines_of(settings))

    # --- schemas ----------------------------------------------------------------------------------------

    async def ask_schemas(
        self,
        operation: str,
        *,
        subject: str | None = None,
        version: str | int | None = None,
        schema_id: int | str | None = None,
        options: str | Mapping[str, str] = "",
        body: bytes = b"",
    ) -> SchemaAnswer:
        """The answer of the schema registry to an operation (a name of ``protocol.schemaoperations.OPERATIONS``), as
        its HTTP API gives it, also when that is an error. A slave answers what only reads when its master is down.

        Raises ConfigError for an operation that does not exist, NoSchemaRegistry when no broker keeps a registry, or
        several do.

        >>> answer = await admin.ask_schemas("list_versions", subject="Orders-value")
        """
        asked = OPERATIONS.get(operation)
        if asked is None:
            raise ConfigError(f"there is no operation {operation!r} of a schema registry", key="operation")
        header = SchemaRequestHeader(
            operation,
            subject,
            None if version is None else str(version),
            None if schema_id is None else str(schema_id),
            options if isinstance(options, str) else urlencode(options),
        )
        replicas = await self._registry_replicas()
        if asked.code == RequestCode.CHANGE_SCHEMAS:
            replicas = replicas[:1]
        for number, address in enumerate(replicas, 1):
            try:
                answer = await self._ask(address, asked.code, header, body)
            except (ConnectionLost, RequestTimeout):
                if number == len(replicas):
                    raise
            else:
                return SchemaAnswer(parse_number(answer.ext.get(STATUS_FIELD)) or 500, bytes(answer.body))
        raise NoSchemaRegistry("the broker that keeps the schema registry has no address")

    async def _registry_replicas(self) -> list[str]:
        """The addresses of the broker that keeps the schema registry, its master first."""
        try:
            route = await self._started().route(SCHEMAS_TOPIC, refresh=True)
        except NoSuchTopic:
            raise NoSchemaRegistry(
                "no broker keeps a schema registry: set schemaRegistryEnable=true on one, or start the one that does"
            ) from None
        if len(route.brokers) > 1:
            raise NoSchemaRegistry(several_registries(route.brokers))
        return [address for each in route.brokers.values() for _, address in sorted(each.items())]

    # --- topics -----------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        queues: PositiveInt = CLIENT_TOPIC_QUEUES,
        read_queues: PositiveInt | None = None,
        write_queues: PositiveInt | None = None,
        cluster: str | None = None,
        brokers: Collection[str] | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicRoute:
        """Create or change a topic on all masters (of ``cluster``, or those named in ``brokers``).

        ``queues`` is the number of its queues on each broker, unless ``read_queues`` or ``write_queues`` says
        otherwise for one of the two; ``perm`` is 2 (write), 4 (read) or their sum;
        ``attributes`` are those of RocketMQ, e.g. ``{"message.type": "FIFO"}``. Returns once the name server has its
        route there. Raises InvalidMessage for a name that no topic can have, ConfigError for an unknown cluster or
        broker, RequestTimeout if the route does not come.

        >>> await admin.create_topic("Orders", queues=8)
        """
        check_topic(topic)
        if is_system_topic(topic):
            raise ConfigError(f"{topic} is the name of a system topic", key="topic")
        masters = await self._masters(cluster, brokers)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read_queues or queues,
            write_queue_nums=write_queues or queues,
            perm=perm,
            order=order,
        )
        added = ",".join(f"+{key}={value}" for key, value in (attributes or {}).items())
        header = config.creation(attributes=added)
        for address in masters.values():
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        return await self._await_route(topic, set(masters), read_queues or queues)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic from all brokers (of ``cluster``), then from all name servers. A topic that does not exist
        is no error. Raises ConfigError for an unknown cluster."""
        for address in (await self._masters(cluster, None)).values():
            at_broker = DeleteTopicRequestHeader(topic=topic)
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, at_broker)
        header = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        await self._ask_every_namesrv(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def topic_list(self, *, cluster: str | None = None) -> list[str]:
        """All topics that the name server knows, or those of ``cluster``; system topics included."""
        if cluster is None:
            response = await self._namesrv_ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            header = GetTopicsByClusterRequestHeader(cluster=cluster)
            response = await self._namesrv_ask(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        return await topic_names(response.body)

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

        def read(part: bytes) -> None:
            table = decode_body(TopicStatsTable, part).offset_table
            stats.update((queue_of(key), offset) for key, offset in table.items())

        for address in route.masters.values():
            response = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
            await read_in_turns(response.body, "offsetTable", read)
        return dict(sorted(stats.items()))

    async def topic_groups(self, topic: str) -> list[str]:
        """The consumer groups that have an offset in the topic or a live member that subscribes to it. Raises
        NoRoute."""
        runs: list[list[str]] = []
        header = QueryTopicConsumeByWhoRequestHeader(topic=topic)

        def read(part: bytes) -> None:
            runs.append(sorted(decode_body(GroupList, part).group_list))

        for address in (await self.topic_route(topic)).masters.values():
            response = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            await read_in_turns(response.body, "groupList", read, parts_of_names)
        return list(dict.fromkeys(await merged(runs)))

    async def topic_producers(self, topic: str, group: str) -> ProducerConnection:
        """The live producers of ``group``. Raises NoRoute for an unknown topic, BrokerError if there is none."""
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        refused: BrokerError | None = None
        for address in (await self.topic_route(topic)).masters.values():
            try:
                response = await self._ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            except BrokerError as error:
                refused = error
                continue
            return await decoded_in_turns(ProducerConnection, response.body, "connectionSet")
        raise refused or NoRoute(topic, "there is no broker")

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """All live producers of the broker at ``address``, by producer group."""
        response = await self._ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return decode_body(ProducerTableInfo, response.body).data

    # --- messages ---------------------------------------------------------------------------------------

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message that was stored at or after the time; the end of the queue if all are
        older. Raises NoRoute."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, bname=queue.broker_name
        )
        address = await self._address_of(queue)
        response = await self._ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return max(0, response.header(SearchOffsetResponseHeader).offset)

    async def queue_bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset of a queue, and the one after its last message. Raises NoRoute."""
        address = await self._address_of(queue)
        low = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
        high = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
        first, last = await asyncio.gather(
            self._ask(address, RequestCode.GET_MIN_OFFSET, low),
            self._ask(address, RequestCode.GET_MAX_OFFSET, high),
        )
        return (
            max(0, first.header(GetMinOffsetResponseHeader).offset),
            max(0, last.header(GetMaxOffsetResponseHeader).offset),
        )

    async def read(
        self,
        queue: MessageQueue,
        offset: NonNegativeInt,
        *,
        max_messages: PositiveInt = 32,
        expression: str = "*",
        expression_type: str = "TAG",
        wait_ms: NonNegativeInt = 0,
        group: str = TOOLS_GROUP,
    ) -> QueueRead:
        """Messages of a queue from ``offset`` on, without being a member of a group and without committing.

        ``expression`` filters by tags, or with ``expression_type="SQL92"`` by properties. ``wait_ms``: how long the
        broker may wait for a message where there is none. Raises NoRoute, BrokerError.
        """
        header = pull_header(
            group,
            queue,
            offset,
            max_messages=max_messages,
            expression=expression,
            expression_type=expression_type,
            suspend_ms=wait_ms,
        )
        response = await self._started().remoting.invoke(
            await self._address_of(queue),
            RequestCode.PULL_MESSAGE,
            header,
            timeout_ms=self._timeout_ms + wait_ms,
            accept=PULL_ANSWERS,
        )
        found = response.header(PullMessageResponseHeader)
        following = check_offsets(queue, offset, response.code, found)
        if response.code != ResponseCode.SUCCESS:
            return QueueRead([], following, found.min_offset, found.max_offset)
        from mqspark.record.record import decode_pull

        messages, rest = decode_pull(
            response.body, broker_name=queue.broker_name, limits=self.options.inflate_limits
        )
        if is_logic_broker(queue.broker_name):
            place_in_logic_queue(messages, queue, found.offset_delta)
        next_offset = following if rest is None else rest + (found.offset_delta or 0)
        check_messages(queue, offset, next_offset, messages)
        if expression_type == "TAG" and expression != "*":
            tags = set(split_tags(expression))  # brokers compare hashes
            messages = [message for message in messages if message.tags in tags]
        messages = [message for message in messages if message.queue_offset >= offset]
        return QueueRead(messages, next_offset, found.min_offset, found.max_offset)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        max_messages: PositiveInt = 32,
        begin_ms: int = 0,
        end_ms: int = EVER_MS,
    ) -> list[MessageExt]:
        """Messages with that key, oldest first; with ``unique`` those with that unique id. Each broker gives the newest
        ``max_messages``, by as many requests as it takes. Raises NoRoute."""
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=max_messages, begin_timestamp=begin_ms, end_timestamp=end_ms
        )

        def is_meant(message: MessageExt) -> bool:  # RocketMQ compares hashes
            return message.topic == topic and _has_key(message, key, unique=unique)

        return await self._look_up(header, is_meant, unique=unique)

    async def messages_by_tag(
        self,
        topic: str,
        tag: str,
        *,
        max_messages: PositiveInt = 32,
        begin_ms: int = 0,
        end_ms: int = EVER_MS,
    ) -> list[MessageExt]:
        """Messages with that tag, oldest first, by the brokers' index. Each broker gives the newest
        ``max_messages``, by as many requests as it takes. A RocketMQ before 5.5 finds none. Raises NoRoute."""
        header = QueryMessageRequestHeader(
            topic=topic,
            key=tag,
            max_num=max_messages,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            index_type="T",
        )
        return await self._look_up(
            header, lambda message: message.topic == topic and message.tags == tag, unique=False
        )

    async def _look_up(
        self, header: QueryMessageRequestHeader, is_meant: Callable[[MessageExt], bool], *, unique: bool
    ) -> list[MessageExt]:
        """What the index of each broker finds, oldest first. A unique key needs one answer, in which it comes first."""
        from mqspark.record.record import decode_records

        route = await self.topic_route(header.topic)
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        found: list[MessageExt] = []
        for name in sorted(route.brokers):
            address = route.address(name)
            if address is None:
                continue
            walk, here = IndexWalk(header, address), list[MessageExt]()
            while walk.header is not None and len(here) < header.max_num:
                fields = to_ext(walk.header)
                if unique:
                    fields[UNIQUE_KEY_QUERY] = "true"
                response = await self._ask(address, RequestCode.QUERY_MESSAGE, fields, accept=accept)
                page = walk.take(response.body if response.code == ResponseCode.SUCCESS else b"")
                messages = decode_records(page, broker_name=name, limits=self.options.inflate_limits)
                here += reversed([message for message in messages if is_meant(message)])
                if unique:
                    break
            found += here[: header.max_num]
        return sorted(found, key=lambda message: (message.store_timestamp_ms, message.physical_offset))

    async def message_by_offset_id(self, message_id: str) -> MessageExt:
        """The message with the id that its broker gave it, which contains the broker's address and the place in its
        log. Raises InvalidMessage for text that is no such id, BrokerError if there is no such message."""
        from mqspark.record.record import decode_record

        host, port, offset = decode_offset_id(message_id)
        address = f"{bracketed(host)}:{port}"
        response = await self._ask(
            address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset)
        )
        message = decode_record(response.body, limits=self.options.inflate_limits)
        if message.physical_offset != offset:
            raise ProtocolError(
                f"{address} gives the message at {message.physical_offset} of its log for the one at {offset}"
            )
        return message

    # --- groups -----------------------------------------------------------------------------------------

    async def groups(self, names: Collection[str] | None = None) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups of all masters, those of the brokers themselves included, or those of ``names`` that are
        there."""
        found: dict[str, SubscriptionGroupConfig] = {}
        runs: list[list[str]] = []

        def read(groups: dict[str, SubscriptionGroupConfig]) -> None:
            chosen = groups if names is None else {name: groups[name] for name in names if name in groups}
            found.update(chosen)
            runs.append(sorted(chosen))

        await self._read_groups(read)
        return {name: found[name] for name in await merged(runs)}

    async def group_names(self) -> list[str]:
        """The names of all consumer groups of all masters, in order, those of the brokers themselves included."""
        runs: list[list[str]] = []
        await self._read_groups(lambda groups: runs.append(sorted(groups)))
        return list(dict.fromkeys(await merged(runs)))

    async def _read_groups(self, read: Callable[[dict[str, SubscriptionGroupConfig]], None]) -> None:
        """Reads the settings of all groups, some at a time: to free those of very many at once takes as long as to read
        them."""
        for address in (await self._masters(None, None)).values():
            response = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            await read_in_turns(
                response.body,
                "subscriptionGroupTable",
                lambda part: read(decode_body(SubscriptionGroupWrapper, part).subscription_group_table),
            )

    async def group_config(self, group: str, address: str) -> SubscriptionGroupConfig:
        """The settings of a group at the broker at ``address``. Raises BrokerError if it has no such group; a broker
        that creates groups by itself creates it."""
        header = GetSubscriptionGroupConfigRequestHeader(group=group)
        response = await self._ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        return decode_body(SubscriptionGroupConfig, response.body)

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
        self,
        topic: str,
        group: str,
        mode: str,
        *,
        share_queues: NonNegativeInt = 0,
        cluster: str | None = None,
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
            return await decoded_in_turns(ConsumerConnection, response.body, "connectionSet")
        raise offline or NoRoute(group, "there is no broker")

    async def running_info(
        self, group: str, client_id: str, *, with_stacks: bool = False
    ) -> ConsumerRunningInfo:
        """The state of a live consumer as ``mqadmin consumerStatus`` shows it: its settings, queues and rates,
        ``with_stacks`` of its threads. ``client_id`` is one of ``group_members``. Raises BrokerError if no broker has a
        connection to it."""
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=with_stacks
        )
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
        """The progress of a group, in one topic or in all topics for which its brokers have offsets.

        Raises NoRoute for a topic that does not exist, BrokerError SUBSCRIPTION_GROUP_NOT_EXIST for a group that does
        not.
        """
        if topic is not None:
            route = await self.topic_route(topic)
            offsets: list[GroupOffset] = []
            queues = iter(route.subscribe_queues)
            while some := list(islice(queues, QUEUES_AT_ONCE)):
                offsets += await asyncio.gather(*(self._group_offset(group, queue) for queue in some))
            if all(offset.committed < 0 for offset in offsets):
                await self._check_group_exists(group)
            return dict(zip(route.subscribe_queues, offsets, strict=True))
        found: dict[MessageQueue, GroupOffset] = {}
        header = GetConsumeStatsRequestHeader(consumer_group=group)

        def read(part: bytes) -> None:
            for key, item in decode_body(ConsumeStats, part).offset_table.items():
                found[queue_of(key)] = GroupOffset(item.consumer_offset, item.broker_offset)

        for address in (await self._masters(None, None)).values():
            response = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
            await read_in_turns(response.body, "offsetTable", read)
        if not found:
            await self._check_group_exists(group)
        for topic in {queue.topic for queue in found}:
            try:
                route = await self._started().route(topic)
            except NoRoute:
                continue  # its brokers are away, or it was deleted
            if route.is_static:  # brokers know the physical queues only
                found = {queue: offset for queue, offset in found.items() if queue.topic != topic}
                for queue in route.subscribe_queues:
                    found[queue] = await self._group_offset(group, queue)
        return dict(sorted(found.items()))

    async def group_lag(self, group: str, topic: str | None = None) -> int:
        """Messages that the group has not committed yet. Raises what ``group_offsets`` does."""
        return sum(offset.lag for offset in (await self.group_offsets(group, topic)).values())

    async def consumed_topics(self, group: str) -> set[str]:
        """The topics that the group subscribes to, or has offsets for."""
        topics: set[str] = set()
        try:
            topics |= (await self.group_members(group)).subscription_table.keys()
        except BrokerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
        try:
            topics |= {queue.topic for queue in await self.group_offsets(group)}
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
        return topics

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
        return committed_in(response)

    async def update_offset(self, group: str, queue: MessageQueue, offset: NonNegativeInt) -> None:
        """Set the group's committed offset. Live consumers continue from their own positions."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        )
        await self._ask(await self._address_of(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Move a group to the time in every queue of a topic, forward or back, live members included; returns the new
        offsets. 0 is the beginning, -1 the end. Raises NoRoute, BrokerError."""
        moved: dict[MessageQueue, int] = {}
        header = ResetOffsetRequestHeader(group=group, topic=topic, timestamp=timestamp_ms, is_force=True)
        for address in (await self.topic_route(topic)).masters.values():
            response = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            table = iter(decode_body(ResetOffsetBody, response.body).offset_table.items())
            while some := list(islice(table, QUEUES_AT_ONCE)):
                moved |= {queue_of(key): offset for key, offset in some}
                await asyncio.sleep(0)
        return dict(sorted(moved.items()))

    async def reset_offset(self, group: str, queue: MessageQueue, offset: NonNegativeInt) -> None:
        """Move a group to an offset of one queue, live members included. Brokers with ``useServerSideResetOffset``
        (the default) can do that; others move all queues, so check first. Raises NoRoute, BrokerError."""
        header = ResetOffsetRequestHeader(
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=offset,
            timestamp=0,
            is_force=True,
            bname=queue.broker_name,
        )
        address = await self._address_of(queue)
        await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    async def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Give the group ``target`` the committed offsets of ``source`` in a topic. Raises NoRoute, BrokerError."""
        header = CloneGroupOffsetRequestHeader(src_group=source, dest_group=target, topic=topic, offline=True)
        for address in (await self.topic_route(topic)).masters.values():
            await self._ask(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def _check_group_exists(self, group: str) -> None:
        """Check that a group without committed offsets exists: it has a live consumer or was created. Sends no
        request that would create it. Raises BrokerError."""
        try:
            await self.topic_route(RETRY_PREFIX + group)
        except NoRoute:
            if await self.groups([group]):
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
            -1 if committed is None else committed,
            max(0, response.header(GetMaxOffsetResponseHeader).offset),
        )

    # --- anything else ----------------------------------------------------------------------------------

    async def ask(self, address: str, code: int, header: Fields = None, body: bytes = b"") -> Command:
        """The answer of the server at ``address`` to any request (``mqspark.protocol.codes``), for requests without a
        method here. Raises BrokerError when the server refuses."""
        return await self._ask(address, code, header, body)

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

    async def _ask_every_namesrv(self, code: int, header: Fields) -> list[Command]:
        """Change all name servers, and raise the first error afterwards: one that is away keeps no other from it."""
        outcomes = await asyncio.gather(
            *(self._ask(address, code, header) for address in self.namesrv), return_exceptions=True
        )
        answers: list[Command] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            answers.append(outcome)
        return answers

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

    async def _address_of(self, queue: MessageQueue) -> str:
        route = await self._started().route(queue.topic)
        address = route.address(route.broker_of(queue))
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


def settings_in(body: bytes | memoryview) -> dict[str, str]:
    """Those of a server, by RocketMQ's names."""
    lines = (line.partition("=") for line in bytes(body).decode(errors="replace").splitlines())
    return {key.strip(): value.strip() for key, separator, value in lines if separator}


def several_registries(brokers: Iterable[str]) -> str:
    """Why a schema registry answers nothing."""
    names = ", ".join(sorted(brokers))
    return f"the brokers {names} keep a schema registry each: set schemaRegistryEnable=false on all but one"


def lines_of(settings: Mapping[str, str]) -> bytes:
    """Raises ConfigError for a value that would be a second setting."""
    for key, value in settings.items():
        if "=" in key or len(f"{key}={value}.".splitlines()) > 1:  # as servers read them
            raise ConfigError(f"{key[:80]!r}: a setting is one line, KEY=VALUE", key=key)
    return "".join(f"{key}={value}\n" for key, value in settings.items()).encode()


def _has_key(message: MessageExt, key: str, *, unique: bool) -> bool:
    if unique:
        return message.properties.get(UNIQ_KEY) == key or message.offset_message_id == key
    return has_key(message.properties, key)
