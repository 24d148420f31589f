"""Routes of topics and live brokers (RouteInfoManager).

    brokers   broker name → cluster, addresses by broker id (0 is the master)
    topics    topic → broker name → queues and permission
    mappings  static topic → broker name → the logic queues that it leads
    clusters  cluster → broker names
    live      (cluster, address) → last sign of life, data version, connection

Time and connections are passed in. Answers to queries are built from the tables; ``generation`` changes with
every change that a query could see.

Any client can register, so every table has a limit (NamesrvConfig), and the numbers of a topic are checked. A
live broker is not replaced by a registration from another host: it can be replaced once its connection has
ended or it has been silent for brokerTakeoverSilence. RocketMQ lets the last registration win. An address of a cluster
is one broker: one that registers there under another name has given up its former one.

Facts: docs/rocketmq/nameserver.md#routes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from sys import intern
from types import MappingProxyType

from mqspark.base.bounded import ENTRY_BYTES, Ledger, text_bytes, weigh
from mqspark.base.clock import Clock
from mqspark.base.config import INT64_MAX, Limit
from mqspark.base.keyorder import KeyOrder
from mqspark.base.logs import printable, sparing
from mqspark.base.names import is_address
from mqspark.message import MASTER_ID, MEMBER_GROUP_PREFIX, PERM_READ, PERM_WRITE
from mqspark.namesrv.config import NamesrvConfig
from mqspark.protocol.bodies.replica_bodies import MAX_REPLICAS
from mqspark.protocol.bodies.topic_bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.cluster_headers import NotifyMinBrokerIdChangeRequestHeader
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work, finished

UNIT, UNIT_SUB = 0x1, 0x2
"""Bits of topicSysFlag (TopicSysFlag)."""

MAX_TIMEOUT_FACTOR = 10
"""A broker may ask for a timeout of up to this multiple of brokerExpiryTimeout."""
_PERM_BITS = 0xF
TOPICS_A_SLICE = 256
LONGEST_PERIOD_MS = 60_000
"""The longest time between two registrations of a broker (BrokerController)."""
PAGES_A_SLICE = 4
"""Pages of names that a list of topics looks at in one slice: up to 2,048 topics."""
_UNKNOWN_VERSION = DataVersion(state_version=-1, timestamp=-1, counter=-1)
"""Version of a broker whose topics are not complete yet."""

_log = sparing(__name__, lines=20)


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
    topics: set[str] = field(default_factory=set)
    """Topics with a route to it."""

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
    """The last sign of life from the host that registered it."""
    vouched_ms: int = 0
    """The last one from another host."""

    def last_sign_ms(self, most_ms: int) -> int:
        """The last sign of life. One from another host counts for ``most_ms`` after the last one from its own."""
        return max(self.last_seen_ms, min(self.vouched_ms, self.last_seen_ms + most_ms))


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """The answer to a registration; a slave learns its master from it."""

    ha_address: str | None = None
    master_address: str | None = None


def keep_zone(route: TopicRouteData, zone: str) -> None:
    """Remove the brokers of other zones from a route. Zone names are compared without regard to case. Brokers without a
    master stay, because consumers must be able to read their messages (ZoneRouteRPCHook). No broker may be left."""
    away = {
        broker.broker_name
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs and (broker.zone_name or "").lower() != zone.lower()
    }
    route.broker_datas = [broker for broker in route.broker_datas if broker.broker_name not in away]
    route.queue_datas = [queues for queues in route.queue_datas if queues.broker_name not in away]


class RouteTable:
    def __init__(self, config: NamesrvConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._brokers: dict[str, BrokerSet] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._in_order = KeyOrder[str]()
        """Their names."""
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self.ledger = Ledger(
            "topicQueueMappings",
            Limit(config, "max_mapping_table_bytes"),
            "RouteTable._mappings",
        )
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self._keys_by_session: dict[int, set[tuple[str, str]]] = {}
        """Session id → keys of the brokers that may have registered last over it."""
        self._removed_brokers: deque[tuple[str, set[str]]] = deque()
        """Removed brokers, with the topics whose routes still contain them."""
        self._without_master: dict[str, None] = {}
        """Names of brokers with an acting master, some of whose topics are not read-only yet."""
        self._notices: dict[tuple[str, str], NotifyMinBrokerIdChangeRequestHeader] = {}
        """(broker name, address) → the notice for that broker. A newer notice replaces an older one."""
        self.route_count = 0
        """Number of topics in ``BrokerSet.topics`` and in ``_removed_brokers``."""
        self.generation = 0

    # --- events ---

    def register(
        self,
        broker: BrokerIdentity,
        topics: Mapping[str, TopicConfig],
        data_version: DataVersion,
        *,
        mappings: Mapping[str, TopicQueueMappingInfo] = MappingProxyType({}),
        ha_address: str,
        session: Session | None,
        timeout_ms: int | None = None,
        acting_master: bool | None = None,
        zone: str | None = None,
    ) -> Work[RegistrationResult]:
        """Raises Refusal, also for a first registration of one topic only: an incremental update without a base."""
        brokers = self._brokers.get(broker.name)
        first = brokers is None
        if brokers is None:
            brokers = BrokerSet(broker.cluster, broker.name)
        addresses = brokers.addresses
        key = (broker.cluster, broker.address)
        known_address = addresses.get(broker.broker_id)
        rival = None
        if known_address is not None and known_address != broker.address:
            rival = self._live.get((brokers.cluster, known_address))
        previous = self._live.get(key)
        if rival is not None and not self._gives_way(rival, data_version, session):
            self._give_up(previous, session)
            return RegistrationResult()
        if known_address is None and len(topics) == 1:
            raise _refusal("register broker failed")
        self._check_room(broker, brokers, previous, session)
        if previous is not None and previous.identity.name != broker.name:
            # Nobody else would ever take its former name out of routes.
            self._give_up(previous, session)
            _log_taken(broker, previous, session)
            previous = None
        elif previous is not None:
            self._check_gone(previous, session)

        least = min(addresses, default=MASTER_ID)
        if first:
            self._brokers[broker.name] = brokers
            self._clusters.setdefault(broker.cluster, set()).add(broker.name)
        brokers.acting_master = bool(acting_master)
        brokers.zone = zone
        for other_id in [key for key, address in addresses.items() if address == broker.address]:
            del addresses[other_id]  # the replica may have changed its role
        addresses[broker.broker_id] = broker.address
        live = self._live[key] = LiveBroker(
            broker,
            session,
            previous.data_version if previous is not None else _UNKNOWN_VERSION,
            ha_address,
            self._patience_ms(timeout_ms),
            self._clock.monotonic_ms(),
        )
        if session is not None:
            self._keys_by_session.setdefault(session.id, set()).add(key)

        prime_slave = (
            acting_master is not None and broker.broker_id != MASTER_ID and broker.broker_id == min(addresses)
        )
        self.generation += 1
        if broker.broker_id == MASTER_ID or prime_slave:
            yield from self._store_topics(
                brokers,
                live,
                topics,
                mappings,
                complete=self._config.delete_topic_with_broker_registration and len(topics) > 1,
                overwrite=first or previous is None or previous.data_version != data_version,
                read_only=prime_slave and brokers.acting_master,
            )
        live.data_version = data_version
        self.generation += 1
        if broker.broker_id < least and self._live.get(key) is live:
            self._notify(brokers, appeared=live)
        return RegistrationResult() if broker.broker_id == MASTER_ID else self._master_of(brokers)

    def _patience_ms(self, asked_ms: int | None) -> int:
        usual_ms = self._config.broker_expiry_timeout
        return min(max(asked_ms or usual_ms, 1), usual_ms * MAX_TIMEOUT_FACTOR)

    def _give_up(self, live: LiveBroker | None, session: Session | None) -> None:
        """What is registered at this address is no more. Raises Refusal while it is alive on another host."""
        if live is not None:
            self._check_gone(live, session)
            self.unregister(live.identity)

    def _master_of(self, brokers: BrokerSet) -> RegistrationResult:
        """What a slave is told of its master."""
        address = brokers.addresses.get(MASTER_ID)
        master = None if address is None else self._live.get((brokers.cluster, address))
        return RegistrationResult() if master is None else RegistrationResult(master.ha_address, address)

    def _gives_way(self, rival: LiveBroker, version: DataVersion, session: Session | None) -> bool:
        """Whether another address of a broker id may be replaced. Raises Refusal while it lives. A controller's new
        master has a higher epoch than the old one."""
        theirs, own = rival.data_version.state_version, version.state_version
        if theirs <= own and not 0 < theirs < own:
            self._check_gone(rival, session)
        return theirs <= own

    def _check_gone(self, live: LiveBroker, session: Session | None) -> None:
        """Raise Refusal while that broker is alive over a connection from another host. A broker on the same
        host may have restarted before its old connection ended."""
        if live.session is None or _is_from(live, session):
            return
        silent_ms = self._clock.monotonic_ms() - live.last_seen_ms
        if silent_ms < self._config.broker_takeover_silence:
            name, address = live.identity.name, live.identity.address
            raise _refusal(
                f"broker {name} with id {live.identity.broker_id} is registered from {address} by {live.session.peer},"
                f" which was last heard {silent_ms} ms ago"
            )

    def _check_room(
        self, broker: BrokerIdentity, brokers: BrokerSet, previous: LiveBroker | None, session: Session | None
    ) -> None:
        if not is_address(broker.address):
            raise _refusal(f"brokerAddr {printable(broker.address, 80)} is not host:port")
        if brokers.addresses:
            _check_cluster(broker, brokers)
        config = self._config
        if previous is None and len(self._live) >= config.max_brokers:
            raise _refusal(f"{len(self._live)} brokers are registered already (maxBrokers)")
        if broker.broker_id < 0:
            raise _refusal(f"brokerId {broker.broker_id} is negative")
        if broker.broker_id not in brokers.addresses and len(brokers.addresses) >= MAX_REPLICAS:
            raise _refusal(f"broker {broker.name} has {MAX_REPLICAS} replicas already")
        over = self._keys_by_session.get(session.id, ()) if session is not None else ()
        if (broker.cluster, broker.address) not in over and len(over) >= config.max_brokers_per_connection:
            raise _refusal(
                f"{len(over)} brokers are registered over this connection already (maxBrokersPerConnection)"
            )

    def _store_topics(
        self,
        brokers: BrokerSet,
        live: LiveBroker,
        topics: Mapping[str, TopicConfig],
        mappings: Mapping[str, TopicQueueMappingInfo],
        *,
        complete: bool,
        overwrite: bool,
        read_only: bool,
    ) -> Work[None]:
        name = brokers.name
        if complete:
            for topic in brokers.topics - topics.keys():
                self._drop_queues(topic, name)
        odd = surplus = 0
        # Most topics of a broker are alike: they share what is replaced, and never modified.
        known: dict[tuple[int, int, int, int], QueueData] = {}
        for number, (topic, config) in enumerate(topics.items()):
            if number % TOPICS_A_SLICE == TOPICS_A_SLICE - 1:
                self.generation += 1
                yield
                if self._live.get((live.identity.cluster, live.identity.address)) is not live:
                    return  # removed or registered again meanwhile
            if not overwrite and topic in brokers.topics:
                continue
            perm = config.perm & ~PERM_WRITE if read_only else config.perm
            like = (config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag)
            data = known.get(like)
            if data is None:
                data = known[like] = QueueData(name, *like)
            if not self._is_sound(data):
                odd += 1
                _log.warning("topic %s of broker %s is ignored: %s", printable(topic, 80), name, data)
            elif not self._put_queues(topic, brokers, data):
                surplus += 1
            elif mappings or self._mappings:
                self._put_mapping(topic, name, mappings.get(topic))
        if surplus:
            _log.error(
                "%d topics of broker %s are left out: it has %d, and there are %d routes",
                surplus,
                name,
                len(brokers.topics),
                self.route_count,
            )

    def _put_mapping(self, topic: str, broker_name: str, info: TopicQueueMappingInfo | None) -> None:
        """Set or remove the mapping of a topic. ``info`` None: the topic is not static on this broker, or no longer."""
        self._drop_mapping(topic, broker_name)
        if info is None:
            return
        size_bytes = _mapping_bytes(topic, info)
        if not self._is_sound_mapping(broker_name, info):
            _log.warning(
                "the mapping of topic %s of broker %s is ignored: %s",
                printable(topic, 80),
                broker_name,
                printable(repr(info), 400),
            )
        elif not self.ledger.has_room(size_bytes):
            _log.error(
                "the mapping of topic %s of broker %s is left out (maxMappingTableBytes)",
                printable(topic, 80),
                broker_name,
            )
        else:
            self.ledger.note(size_bytes)
            self._mappings.setdefault(topic, {})[broker_name] = info

    def _is_sound_mapping(self, broker_name: str, info: TopicQueueMappingInfo) -> bool:
        """A broker registers its own mapping only. (RocketMQ's name server files it under any name in it.)"""
        most = self._config.max_queues_per_topic
        return (
            info.bname == broker_name
            and 0 <= info.total_queues <= most
            and all(
                0 <= number < info.total_queues and 0 <= queue_id < most
                for number, queue_id in info.curr_id_map.items()
            )
        )

    def _drop_mapping(self, topic: str, broker_name: str) -> None:
        infos = self._mappings.get(topic)
        if infos is not None and (info := infos.pop(broker_name, None)) is not None:
            self.ledger.free(_mapping_bytes(topic, info))
            if not infos:
                del self._mappings[topic]

    def _is_sound(self, data: QueueData) -> bool:
        most = self._config.max_queues_per_topic
        return (
            0 <= data.read_queue_nums <= most
            and 0 <= data.write_queue_nums <= most
            and 0 <= data.perm <= _PERM_BITS
        )

    def _put_queues(self, topic: str, brokers: BrokerSet, data: QueueData) -> bool:
        """Returns False when there was no room."""
        if topic not in brokers.topics:
            config = self._config
            if len(brokers.topics) >= config.max_topics_per_broker or self.route_count >= config.max_routes:
                return False
            topic = intern(topic)  # one text for all brokers of a topic
            brokers.topics.add(topic)
            self.route_count += 1
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = {}
            self._in_order.add(topic)
        queues[brokers.name] = data
        return True

    def refresh(self, cluster: str, address: str, session: Session) -> None:
        """Handle a heartbeat (904) or a version query (322). An unknown broker stays unknown. A broker's heartbeats may
        come from another host than its registrations, by NAT or a second interface, and keep it in routes until it
        should have registered again. Longer they do not, and they keep no successor away: anybody can send them."""
        live = self._live.get((cluster, address))
        if live is None:
            return
        now_ms = self._clock.monotonic_ms()
        if _is_from(live, session):
            live.last_seen_ms = now_ms
        else:
            live.vouched_ms = now_ms

    def leave(self, broker: BrokerIdentity, session: Session) -> None:
        """Unregister a broker at its own request. Raises Refusal when it is alive on another host."""
        brokers = self._brokers.get(broker.name)
        if brokers is not None:
            _check_cluster(broker, brokers)
        live = self._live.get((broker.cluster, broker.address))
        if live is not None:
            self._check_gone(live, session)
        if live is not None and live.identity.name != broker.name:
            raise _refusal(f"{broker.address} is not an address of broker {broker.name}")
        self.unregister(broker)

    def unregister(self, broker: BrokerIdentity) -> None:
        self._live.pop((broker.cluster, broker.address), None)
        brokers = self._brokers.get(broker.name)
        if brokers is None:
            return
        gone = [key for key, address in brokers.addresses.items() if address == broker.address]
        for broker_id in gone:
            del brokers.addresses[broker_id]
        self.generation += 1
        if brokers.addresses:
            if brokers.acting_master and min(gone, default=INT64_MAX) < min(brokers.addresses):
                self._notify(brokers, offline=broker.address)
            if brokers.acting_master and MASTER_ID not in brokers.addresses:
                if len(brokers.topics) < TOPICS_A_SLICE:
                    finished(self._make_read_only(broker.name))
                else:
                    self._without_master[broker.name] = None
            return
        del self._brokers[broker.name]
        self._removed_brokers.append((broker.name, brokers.topics))
        if len(self._removed_brokers) == 1 and len(brokers.topics) < TOPICS_A_SLICE:
            finished(self._remove())
        names = self._clusters.get(brokers.cluster)
        if names is not None:
            names.discard(broker.name)
            if not names:
                del self._clusters[brokers.cluster]

    def _notify(
        self, brokers: BrokerSet, *, appeared: LiveBroker | None = None, offline: str | None = None
    ) -> None:
        """The smallest id of a broker name has changed, with notifyMinBrokerIdChanged. If a broker appeared, the others
        are notified; if one disappeared, all remaining ones are (RouteInfoManager.chooseBrokerAddrsToNotify)."""
        if not self._config.notify_min_broker_id_changed:
            return
        addresses = brokers.addresses
        least = min(addresses)
        header = NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=least,
            min_broker_addr=addresses[least],
            offline_broker_addr=offline,
            ha_broker_addr=None if appeared is None else appeared.ha_address,
        )
        for broker_id, address in addresses.items():
            if offline is None and broker_id == least and len(addresses) > 1:
                continue
            if len(self._notices) >= self._config.max_brokers:
                _log.warning("the broker at %s is not notified that %d is the smallest id", address, least)
                continue
            self._notices[brokers.name, address] = header

    def take_notices(self) -> list[tuple[str, NotifyMinBrokerIdChangeRequestHeader]]:
        """(address, notice) of the notices to send since the last call."""
        notices, self._notices = self._notices, {}
        return [(address, header) for (_, address), header in notices.items()]

    def disconnected(self, session: Session) -> list[BrokerIdentity]:
        """Unregister the brokers that last registered over this connection."""
        gone = [
            live.identity
            for key in self._keys_by_session.pop(session.id, ())
            if (live := self._live.get(key)) is not None and live.session is session
        ]
        for identity in gone:
            self.unregister(identity)
        return gone

    def pardon(self, missed_ms: int) -> None:
        """This process was paused for so long: what brokers have sent meanwhile is still to be read."""
        now_ms = self._clock.monotonic_ms()
        for live in self._live.values():
            live.last_seen_ms = min(now_ms, live.last_seen_ms + missed_ms)
            live.vouched_ms = min(now_ms, live.vouched_ms + missed_ms)

    def expire(self) -> list[LiveBroker]:
        """Unregister the brokers that were silent for longer than their timeout."""
        now_ms = self._clock.monotonic_ms()
        # A registration from elsewhere is refused until its own connection was silent for long enough.
        most_ms = self._config.broker_takeover_silence + LONGEST_PERIOD_MS
        silent = [
            live for live in self._live.values() if live.last_sign_ms(most_ms) + live.timeout_ms < now_ms
        ]
        for live in silent:
            self.unregister(live.identity)
        return silent

    def merge_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> None:
        """REGISTER_TOPIC_IN_NAMESRV (217): only for known brokers."""
        for queue_data in queue_datas:
            brokers = self._brokers.get(queue_data.broker_name)
            if brokers is not None and self._is_sound(queue_data):
                self._put_queues(topic, brokers, queue_data)
                self.generation += 1

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic everywhere, or only on the brokers of one cluster."""
        if cluster:
            for name in self._clusters.get(cluster, ()):
                self._drop_queues(topic, name)
        else:
            for name in list(self._topics.get(topic, ())):
                self._drop_queues(topic, name)
        self.generation += 1

    def wipe_write_perm(self, broker_name: str) -> Work[int]:
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> Work[int]:
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(
        self, broker_name: str, change: Callable[[int], int], unless: Callable[[], bool] = lambda: False
    ) -> Work[int]:
        """Change the permission of all topics of a broker. Returns their number. Stops when ``unless`` returns True."""
        count = 0
        brokers = self._brokers.get(broker_name)
        for number, topic in enumerate(list(brokers.topics) if brokers is not None else ()):
            if number % TOPICS_A_SLICE == TOPICS_A_SLICE - 1:
                yield
            if unless():
                break
            queues = self._topics.get(topic, {})
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

    @property
    def sweep_waits(self) -> bool:
        """Whether ``sweep`` has to be called, because a broker was removed or has lost its master."""
        return bool(self._removed_brokers or self._without_master)

    def sweep(self) -> Work[None]:
        """Remove unregistered brokers from the routes of their topics, and make the topics of brokers without a master
        read-only."""
        while self._without_master:
            name = next(iter(self._without_master))
            del self._without_master[name]
            yield from self._make_read_only(name)
        yield from self._remove()

    def _make_read_only(self, broker_name: str) -> Work[None]:
        """Make the topics of a broker without a master read-only, unless the master comes back meanwhile."""

        def is_back() -> bool:
            brokers = self._brokers.get(broker_name)
            return brokers is None or MASTER_ID in brokers.addresses

        yield from self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE, unless=is_back)

    def _remove(self) -> Work[None]:
        done = 0
        while self._removed_brokers:
            name, topics = self._removed_brokers[0]
            while topics:
                done += 1
                if done % TOPICS_A_SLICE == 0:
                    yield
                if not topics:
                    break
                topic = topics.pop()
                self.route_count -= 1
                again = self._brokers.get(name)
                queues = self._topics.get(topic)
                if queues is not None and (again is None or topic not in again.topics):
                    queues.pop(name, None)
                    self._drop_mapping(topic, name)
                    if not queues:
                        self._forget(topic)
            if self._removed_brokers and self._removed_brokers[0][1] is topics:
                self._removed_brokers.popleft()
        self.generation += 1

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic)
        if queues is not None and queues.pop(broker_name, None) is not None:
            self._drop_mapping(topic, broker_name)
            if not queues:
                self._forget(topic)
            brokers = self._brokers.get(broker_name)
            if brokers is not None and topic in brokers.topics:
                brokers.topics.discard(topic)
                self.route_count -= 1

    def _forget(self, topic: str) -> None:
        del self._topics[topic]
        self._in_order.remove(topic)

    # --- queries ---

    def route(self, topic: str) -> TopicRouteData | None:
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [
            self._routed(topic, brokers, queue_data)
            for name, queue_data in queues.items()
            if (brokers := self._brokers.get(name)) is not None
        ]
        if not brokers:
            return None
        queue_datas = [data for name, data in queues.items() if name in self._brokers]
        mappings = self._mappings.get(topic)
        return TopicRouteData(
            broker_datas=brokers,
            queue_datas=queue_datas,
            filter_server_table={},
            topic_queue_mapping_by_broker=None if mappings is None else dict(mappings),
        )

    def _routed(self, topic: str, brokers: BrokerSet, queue_data: QueueData) -> BrokerData:
        """The replicas as a route shows them: an acting master has the master's id
        (RouteInfoManager.pickupTopicRouteData)."""
        data = brokers.data
        if (
            self._config.support_acting_master
            and brokers.acting_master
            and MASTER_ID not in brokers.addresses
            and not queue_data.perm & PERM_WRITE
            and not topic.startswith(MEMBER_GROUP_PREFIX)
        ):
            acting = min(brokers.addresses)
            others = {key: address for key, address in data.broker_addrs.items() if key != acting}
            data.broker_addrs = {MASTER_ID: brokers.addresses[acting], **others}
        return data

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

    def topic_names(self) -> KeyOrder[str]:
        """In ascending order; nothing is copied."""
        return self._in_order

    def all_topics(self) -> Work[list[str]]:
        found: list[str] = []
        for number, page in enumerate(self._in_order.pages(), 1):
            found += page
            if number % PAGES_A_SLICE == 0:
                yield
        return found

    def topics_of_cluster(self, cluster: str) -> Work[list[str]]:
        names = self._clusters.get(cluster, set())
        return self._topics_with(lambda queues: not names.isdisjoint(queues))

    def _topics_with(self, is_wanted: Callable[[dict[str, QueueData]], bool]) -> Work[list[str]]:
        """In the order of their names. Topics may come and go between two slices."""
        found: list[str] = []
        for number, page in enumerate(self._in_order.pages(), 1):
            for topic in page:
                queues = self._topics.get(topic)
                if queues is not None and is_wanted(queues):
                    found.append(topic)
            if number % PAGES_A_SLICE == 0:
                yield
        return found

    def system_topics(self) -> tuple[list[str], str | None]:
        """Cluster and broker names, and the address of one broker (RouteInfoManager.getSystemTopicList)."""
        names = []
        for cluster, brokers in self._clusters.items():
            names.append(cluster)
            names.extend(sorted(brokers))
        address = next((a for brokers in self._brokers.values() for a in brokers.addresses.values()), None)
        return names, address

    def unit_topics(self, *, unit: bool | None, unit_sub: bool | None) -> Work[list[str]]:
        """Topics by their unit bits; None accepts either value."""

        def is_wanted(queues: dict[str, QueueData]) -> bool:
            flag = next(iter(queues.values())).topic_sys_flag
            return unit in (None, bool(flag & UNIT)) and unit_sub in (None, bool(flag & UNIT_SUB))

        return self._topics_with(is_wanted)


def _check_cluster(broker: BrokerIdentity, brokers: BrokerSet) -> None:
    """Raises Refusal."""
    if broker.cluster != brokers.cluster:
        raise _refusal(f"broker {broker.name} belongs to cluster {brokers.cluster}, not to {broker.cluster}")


def _mapping_bytes(topic: str, info: TopicQueueMappingInfo) -> int:
    return 2 * ENTRY_BYTES + text_bytes(topic) + weigh(info)


def _is_from(live: LiveBroker, session: Session | None) -> bool:
    """Whether nobody on another host than that of the session is connected as this broker."""
    return live.session is None or not live.session.open or _host(live.session) == _host(session)


def _host(session: Session | None) -> str | None:
    return None if session is None else session.peer.rpartition(":")[0]


def _log_taken(broker: BrokerIdentity, former: LiveBroker, session: Session | None) -> None:
    _log.warning(
        "broker %s has registered from %s at %s, the address of broker %s, which is in no route any more: if"
        " both are alive they take turns, and need addresses of their own (brokerIP1, listenPort)",
        printable(broker.name, 80),
        "nowhere" if session is None else session.peer,
        broker.address,
        printable(former.identity.name, 80),
    )


def _refusal(remark: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, remark)
