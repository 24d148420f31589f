"""The blocking admin."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

from mqspark.client import admin
from mqspark.client.admin import GroupOffset
from mqspark.client.remoting.identity import ClientKeywords, ClientOptions
from mqspark.client.remoting.keywords import spelled_out
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.client.sync.facade import Facade, documented_by
from mqspark.message import PERM_READ, PERM_WRITE, MessageQueue
from mqspark.protocol.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
)

__all__ = ["AdminClient"]


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

    def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        return self._call(self._aio.running_info, group, client_id)

    def group_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, GroupOffset]:
        return self._call(self._aio.group_offsets, group, topic)

    def group_lag(self, group: str, topic: str | None = None) -> int:
        return self._call(self._aio.group_lag, group, topic)

    def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self._call(self._aio.query_offset, group, queue)

    def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self._call(self._aio.update_offset, group, queue, offset)
