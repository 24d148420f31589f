"""The blocking admin."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Unpack

from mqspark.base.valuetypes import checked
from mqspark.client import admin
from mqspark.client.admin import GroupOffset, QueueRead
from mqspark.client.remoting.identity import ClientKeywords, ClientOptions
from mqspark.client.remoting.keywords import spelled_out
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.client.sync.facade import Facade, documented_by
from mqspark.message import PERM_READ, PERM_WRITE, TOOLS_GROUP, MessageExt, MessageQueue
from mqspark.protocol.bodies.admin_bodies import BrokerStatsData, ConsumerRunningInfo, TopicOffset
from mqspark.protocol.bodies.client_bodies import ConsumerConnection, ProducerConnection, ProducerInfo
from mqspark.protocol.bodies.replica_bodies import HARuntimeInfo
from mqspark.protocol.bodies.topic_bodies import ClusterInfo, SubscriptionGroupConfig, TopicConfig
from mqspark.protocol.command import Command, Fields


@checked()
@documented_by(admin.AdminClient)
class AdminClient(Facade):
    """The blocking ``mqspark.aio.AdminClient``; its methods are described there."""

    _aio: admin.AdminClient

    @spelled_out(ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 5_000,
        options: ClientOptions | None = None,
        **changes: Unpack[ClientKeywords],
    ) -> None:
        """As ``mqspark.aio.AdminClient``."""
        self._aio = admin.AdminClient(namesrv, timeout_ms=timeout_ms, options=options, **changes)

    def cluster_info(self) -> ClusterInfo:
        return self._call(self._aio.cluster_info)

    def broker_runtime_info(self, address: str) -> dict[str, str]:
        return self._call(self._aio.broker_runtime_info, address)

    def broker_config(self, address: str) -> dict[str, str]:
        return self._call(self._aio.broker_config, address)

    def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        self._call(self._aio.update_broker_config, address, settings)

    def broker_stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        return self._call(self._aio.broker_stats, address, name, key)

    def ha_status(self, address: str) -> HARuntimeInfo:
        return self._call(self._aio.ha_status, address)

    def clean_up(self, address: str, what: Literal["queues", "topics", "log"]) -> None:
        self._call(self._aio.clean_up, address, what)

    def set_writable(self, broker_name: str, *, writable: bool) -> int:
        return self._call(self._aio.set_writable, broker_name, writable=writable)

    @property
    def namesrv(self) -> list[str]:
        return self._aio.namesrv

    def namesrv_config(self, address: str) -> dict[str, str]:
        return self._call(self._aio.namesrv_config, address)

    def update_namesrv_config(self, address: str, settings: Mapping[str, str]) -> None:
        self._call(self._aio.update_namesrv_config, address, settings)

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        read_queues: int | None = None,
        write_queues: int | None = None,
        cluster: str | None = None,
        brokers: Collection[str] | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicRoute:
        return self._call(
            self._aio.create_topic,
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            cluster=cluster,
            brokers=brokers,
            perm=perm,
            order=order,
            attributes=attributes,
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        self._call(self._aio.delete_topic, topic, cluster=cluster)

    def topic_list(self, *, cluster: str | None = None) -> list[str]:
        return self._call(self._aio.topic_list, cluster=cluster)

    def topic_route(self, topic: str) -> TopicRoute:
        return self._call(self._aio.topic_route, topic)

    def topic_config(self, topic: str, address: str) -> TopicConfig:
        return self._call(self._aio.topic_config, topic, address)

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        return self._call(self._aio.topic_stats, topic)

    def topic_groups(self, topic: str) -> list[str]:
        return self._call(self._aio.topic_groups, topic)

    def topic_producers(self, topic: str, group: str) -> ProducerConnection:
        return self._call(self._aio.topic_producers, topic, group)

    def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        return self._call(self._aio.producers, address)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self._call(self._aio.offset_at, queue, timestamp_ms)

    def queue_bounds(self, queue: MessageQueue) -> tuple[int, int]:
        return self._call(self._aio.queue_bounds, queue)

    def read(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str = "*",
        expression_type: str = "TAG",
        wait_ms: int = 0,
        group: str = TOOLS_GROUP,
    ) -> QueueRead:
        return self._call(
            self._aio.read,
            queue,
            offset,
            max_messages=max_messages,
            expression=expression,
            expression_type=expression_type,
            wait_ms=wait_ms,
            group=group,
        )

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
    ) -> list[MessageExt]:
        return self._call(
            self._aio.messages_by_key,
            topic,
            key,
            unique=unique,
            max_messages=max_messages,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )

    def messages_by_tag(
        self,
        topic: str,
        tag: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
    ) -> list[MessageExt]:
        return self._call(
            self._aio.messages_by_tag,
            topic,
            tag,
            max_messages=max_messages,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )

    def message_by_offset_id(self, message_id: str) -> MessageExt:
        return self._call(self._aio.message_by_offset_id, message_id)

    def groups(self) -> dict[str, SubscriptionGroupConfig]:
        return self._call(self._aio.groups)

    def group_config(self, group: str, address: str) -> SubscriptionGroupConfig:
        return self._call(self._aio.group_config, group, address)

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

    def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        return self._call(self._aio.running_info, group, client_id)

    def group_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, GroupOffset]:
        return self._call(self._aio.group_offsets, group, topic)

    def group_lag(self, group: str, topic: str | None = None) -> int:
        return self._call(self._aio.group_lag, group, topic)

    def consumed_topics(self, group: str) -> set[str]:
        return self._call(self._aio.consumed_topics, group)

    def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self._call(self._aio.query_offset, group, queue)

    def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self._call(self._aio.update_offset, group, queue, offset)

    def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        return self._call(self._aio.reset_offsets, group, topic, timestamp_ms)

    def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self._call(self._aio.reset_offset, group, queue, offset)

    def clone_offsets(self, source: str, target: str, topic: str) -> None:
        self._call(self._aio.clone_offsets, source, target, topic)

    def ask(self, address: str, code: int, header: Fields = None, body: bytes = b"") -> Command:
        return self._call(self._aio.ask, address, code, header, body)
