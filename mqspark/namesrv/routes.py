"""Which broker serves which topic, and who is alive (RouteInfoManager; reference store-and-broker §15).

    brokers   broker name → cluster, addresses by broker id (0 is the master)
    topics    topic → broker name → queues and permission
    clusters  cluster → broker names
    live      (cluster, address) → last sign of life, data version, connection

Time and connections come in as events. Answers to queries are built from the tables; ``generation`` moves
with every change that a query could see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mqspark.clock import Clock
from mqspark.message import PERM_READ, PERM_WRITE
from mqspark.namesrv.config import NamesrvConfig
from mqspark.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRouteData,
)
from mqspark.protocol.session import Session

__all__ = ["MASTER_ID", "BrokerIdentity", "LiveBroker", "RegistrationResult", "RouteTable"]

MASTER_ID = 0
UNIT, UNIT_SUB = 0x1, 0x2
"""Bits of topicSysFlag (TopicSysFlag)."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    cluster: str
    name: str
    broker_id: int
    address: str


@dataclass(slots=True)
class BrokerSet:
    """All replicas of one broker name."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    zone: str | None = None
    acting_master: bool = False

    @property
    def data(self) -> BrokerData:
        return BrokerData(
            cluster=self.cluster,
            broker_name=self.name,
            broker_addrs=dict(sorted(self.addresses.items())),
            zone_name=self.zone,
            enable_acting_master=self.acting_master,
        )


@dataclass(slots=True)
class LiveBroker:
    identity: BrokerIdentity
    session: Session | None
    data_version: DataVersion
    ha_address: str
    timeout_ms: int
    last_seen_ms: int


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """What a slave is told of its master."""

    ha_address: str | None = None
    master_address: str | None = None


class RouteTable:
    def __init__(self, config: NamesrvConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._brokers: dict[str, BrokerSet] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self.generation = 0

    # --- events ---

    def register(
        self,
        broker: BrokerIdentity,
        topics: Mapping[str, TopicConfig],
        data_version: DataVersion,
        *,
        ha_address: str,
        session: Session | None,
        timeout_ms: int | None = None,
        acting_master: bool | None = None,
        zone: str | None = None,
    ) -> RegistrationResult | None:
        """None refuses: a broker's first registration carries one topic only, so it is an increment to
        nothing."""
        brokers = self._brokers.get(broker.name)
        first = brokers is None
        if brokers is None:
            brokers = BrokerSet(broker.cluster, broker.name)
        addresses = brokers.addresses
        known_address = addresses.get(broker.broker_id)
        if known_address is not None and known_address != broker.address:
            rival = self._live.get((broker.cluster, known_address))
            if rival is not None and rival.data_version.state_version > data_version.state_version:
                self._live.pop((broker.cluster, broker.address), None)
                return RegistrationResult()
        if known_address is None and len(topics) == 1:
            return None

        self._brokers[broker.name] = brokers
        self._clusters.setdefault(broker.cluster, set()).add(broker.name)
        brokers.acting_master = bool(acting_master)
        brokers.zone = zone
        for other_id in [key for key, address in addresses.items() if address == broker.address]:
            if other_id != broker.broker_id:  # the replica has changed its role
                del addresses[other_id]
        addresses[broker.broker_id] = broker.address

        previous = self._live.get((broker.cluster, broker.address))
        prime_slave = (
            acting_master is not None and broker.broker_id != MASTER_ID and broker.broker_id == min(addresses)
        )
        if broker.broker_id == MASTER_ID or prime_slave:
            self._store_topics(
                broker.name,
                topics,
                complete=self._config.delete_topic_with_broker_registration and len(topics) > 1,
                overwrite=first or previous is None or previous.data_version != data_version,
                read_only=prime_slave and brokers.acting_master,
            )
        self._live[(broker.cluster, broker.address)] = LiveBroker(
            broker,
            session,
            data_version,
            ha_address,
            timeout_ms or self._config.broker_expiry_timeout,
            self._clock.monotonic_ms(),
        )
        self.generation += 1
        if broker.broker_id == MASTER_ID:
            return RegistrationResult()
        master_address = addresses.get(MASTER_ID)
        master = None if master_address is None else self._live.get((broker.cluster, master_address))
        return (
            RegistrationResult() if master is None else RegistrationResult(master.ha_address, master_address)
        )

    def _store_topics(
        self,
        broker_name: str,
        topics: Mapping[str, TopicConfig],
        *,
        complete: bool,
        overwrite: bool,
        read_only: bool,
    ) -> None:
        if complete:
            for topic in [topic for topic, queues in self._topics.items() if broker_name in queues]:
                if topic not in topics:
                    self._drop_queues(topic, broker_name)
        for topic, config in topics.items():
            queues = self._topics.setdefault(topic, {})
            if overwrite or broker_name not in queues:
                queues[broker_name] = QueueData(
                    broker_name=broker_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm & ~PERM_WRITE if read_only else config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )

    def refresh(self, cluster: str, address: str) -> None:
        """A heartbeat (904) or a version query (322); an unknown broker stays unknown."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.last_seen_ms = self._clock.monotonic_ms()

    def unregister(self, broker: BrokerIdentity) -> None:
        self._live.pop((broker.cluster, broker.address), None)
        brokers = self._brokers.get(broker.name)
        if brokers is None:
            return
        for broker_id in [key for key, address in brokers.addresses.items() if address == broker.address]:
            del brokers.addresses[broker_id]
        self.generation += 1
        if brokers.addresses:
            if brokers.acting_master and MASTER_ID not in brokers.addresses:
                self._change_perm(broker.name, lambda perm: perm & ~PERM_WRITE)
            return
        del self._brokers[broker.name]
        names = self._clusters.get(brokers.cluster)
        if names is not None:
            names.discard(broker.name)
            if not names:
                del self._clusters[brokers.cluster]
        for topic in [topic for topic, queues in self._topics.items() if broker.name in queues]:
            self._drop_queues(topic, broker.name)

    def disconnected(self, session: Session) -> list[BrokerIdentity]:
        """The brokers that last registered over this connection are gone with it."""
        gone = [live.identity for live in self._live.values() if live.session is session]
        for identity in gone:
            self.unregister(identity)
        return gone

    def expire(self) -> list[LiveBroker]:
        """Brokers that were silent for longer than their timeout, unregistered."""
        now_ms = self._clock.monotonic_ms()
        silent = [live for live in self._live.values() if live.last_seen_ms + live.timeout_ms < now_ms]
        for live in silent:
            self.unregister(live.identity)
        return silent

    def merge_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> None:
        """REGISTER_TOPIC_IN_NAMESRV (217): only for brokers that are known."""
        for queue_data in queue_datas:
            if queue_data.broker_name in self._brokers:
                self._topics.setdefault(topic, {})[queue_data.broker_name] = queue_data
                self.generation += 1

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Everywhere, or only on the brokers of one cluster."""
        if cluster:
            for name in self._clusters.get(cluster, ()):
                self._drop_queues(topic, name)
        else:
            self._topics.pop(topic, None)
        self.generation += 1

    def wipe_write_perm(self, broker_name: str) -> int:
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        """The number of topics that the broker has."""
        count = 0
        for queues in self._topics.values():
            old = queues.get(broker_name)
            if old is not None:
                count += 1
                queues[broker_name] = QueueData(
                    broker_name=broker_name,
                    read_queue_nums=old.read_queue_nums,
                    write_queue_nums=old.write_queue_nums,
                    perm=change(old.perm),
                    topic_sys_flag=old.topic_sys_flag,
                )
        self.generation += 1
        return count

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic)
        if queues is not None:
            queues.pop(broker_name, None)
            if not queues:
                del self._topics[topic]

    # --- queries ---

    def route(self, topic: str) -> TopicRouteData | None:
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [brokers.data for name in queues if (brokers := self._brokers.get(name)) is not None]
        if not brokers:
            return None
        return TopicRouteData(broker_datas=brokers, queue_datas=list(queues.values()), filter_server_table={})

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: brokers.data for name, brokers in self._brokers.items()},
            cluster_addr_table={cluster: sorted(names) for cluster, names in self._clusters.items()},
        )

    def broker_data(self, broker_name: str) -> BrokerData | None:
        brokers = self._brokers.get(broker_name)
        return None if brokers is None else brokers.data

    def live_brokers(self) -> list[LiveBroker]:
        return list(self._live.values())

    def topic_names(self) -> list[str]:
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Cluster and broker names, and one broker's address (RouteInfoManager.getSystemTopicList)."""
        names = []
        for cluster, brokers in self._clusters.items():
            names.append(cluster)
            names.extend(sorted(brokers))
        address = next((a for brokers in self._brokers.values() for a in brokers.addresses.values()), None)
        return names, address

    def unit_topics(self, *, unit: bool | None, unit_sub: bool | None) -> list[str]:
        """Topics by their unit bits; None does not care."""
        found = []
        for topic, queues in self._topics.items():
            flag = next(iter(queues.values())).topic_sys_flag
            if unit in (None, bool(flag & UNIT)) and unit_sub in (None, bool(flag & UNIT_SUB)):
                found.append(topic)
        return found
