"""What a route means: the queues a producer may choose, those a consumer may read, and the brokers' addresses.

Routes are not trusted, because anyone who registers with a name server writes them. Counts and addresses that no
broker can have are left out. Queues are spans instead of lists, so the cost of a route is that of its brokers.

Facts: RocketMQ's MQClientInstance (topicRouteData2TopicPublishInfo and its neighbours). No sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mqspark.base.logs import printable, sparing
from mqspark.base.names import is_address, is_sound
from mqspark.errors import BadRoute
from mqspark.message import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    MessageExt,
    MessageQueue,
    QueueOffset,
    Queues,
    parse_number,
)
from mqspark.protocol.bodies.topic_bodies import (
    MAX_QUEUES,
    MAX_ROUTE_QUEUES,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)

LOGIC_PREFIX = "__syslo__"
"""Begins the names under which clients see the logic queues of static topics
(MixAll.LOGICAL_QUEUE_MOCK_BROKER_PREFIX)."""
GLOBAL_SCOPE = "__global__"

_log = sparing(__name__)


def place_in_logic_queue(messages: Iterable[MessageExt], queue: MessageQueue, delta: int | None) -> None:
    """Give pulled messages, which say where they are stored, their places in a logic queue (PullAPIWrapper)."""
    for message in messages:
        message.queue_id = queue.queue_id
        message.queue_offset = QueueOffset(message.queue_offset + (delta or 0))


def is_logic_broker(name: str) -> bool:
    """Whether it stands for the logic queues of a static topic, whose brokers change."""
    return name.startswith(LOGIC_PREFIX)


def sound_queues(topic: str, queue_datas: Iterable[QueueData]) -> list[QueueData]:
    """The entries with valid queue counts; the log names the others. Raises BadRoute when none is valid, or when the
    sum exceeds the client's limit."""
    sound: list[QueueData] = []
    odd: QueueData | None = None
    for data in queue_datas:
        if 0 <= data.read_queue_nums <= MAX_QUEUES and 0 <= data.write_queue_nums <= MAX_QUEUES:
            sound.append(data)
        else:
            odd = data
    if odd is not None:
        what = (
            f"broker {printable(odd.broker_name, 80)} has {odd.read_queue_nums} read queues"
            f" and {odd.write_queue_nums} write queues; 0 to {MAX_QUEUES} are possible"
        )
        if not sound:
            raise BadRoute(topic, what)
        _log.warning("the route of topic %s: %s; it is left out", topic, what)
    for count in (
        sum(data.read_queue_nums for data in sound),
        sum(data.write_queue_nums for data in sound),
    ):
        if count > MAX_ROUTE_QUEUES:
            raise BadRoute(
                topic, f"it has {count} queues, more than the client's limit of {MAX_ROUTE_QUEUES}"
            )
    return sound


@dataclass(frozen=True, slots=True)
class TopicRoute:
    topic: str
    brokers: dict[str, dict[int, str]]
    """Broker name to broker id to ``ip:port``."""
    publish_queues: Sequence[MessageQueue]
    subscribe_queues: Sequence[MessageQueue]
    leaders: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """For a static topic: logic broker to logic queue id to the broker that leads the queue."""

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, *, max_queues: int | None = None) -> TopicRoute:
        """``max_queues`` a broker when the route is that of the template a topic will be created from. Raises
        BadRoute."""
        brokers = {
            broker.broker_name: _sound_addresses(topic, broker.broker_name, broker.broker_addrs)
            for broker in data.broker_datas
        }
        publish: dict[str, int] = {}
        subscribe: dict[str, int] = {}
        queue_datas = sound_queues(topic, data.queue_datas)
        for queue in sorted(queue_datas, key=lambda queue: queue.broker_name):
            name = queue.broker_name
            writable, readable = queue.write_queue_nums, queue.read_queue_nums
            if max_queues is not None:
                writable = readable = min(max_queues, readable)
            # A producer needs the master, a consumer is content with any replica.
            if queue.perm & PERM_WRITE and MASTER_ID in brokers.get(name, {}):
                publish[name] = writable
            if queue.perm & PERM_READ and brokers.get(name):
                subscribe[name] = readable
        ordered = publish.items()
        if data.order_topic_conf:
            ordered = _ordered(topic, data.order_topic_conf).items()
        elif data.topic_queue_mapping_by_broker:
            counts, leaders = _logic_queues(topic, data.topic_queue_mapping_by_broker.values())
            queues = Queues(topic, sorted(counts.items()))
            return cls(topic, brokers, queues, queues, leaders)
        return cls(topic, brokers, Queues(topic, ordered), Queues(topic, subscribe.items()))

    @property
    def is_static(self) -> bool:
        """Whether its queues are logic queues."""
        return bool(self.leaders)

    def broker_of(self, queue: MessageQueue) -> str:
        """The broker that serves the queue: of a logic queue its leader, as far as the route knows one."""
        name = queue.broker_name
        return self.leaders.get(name, {}).get(queue.queue_id, name)

    def broker_at(self, address: str) -> str | None:
        """The broker, any of whose replicas has the address."""
        return next((name for name, ids in self.brokers.items() if address in ids.values()), None)

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """That broker, else any other with this name, else None."""
        return address_of(self.brokers.get(broker_name), broker_id)

    @property
    def masters(self) -> dict[str, str]:
        """Addresses by the names of their brokers, in the order of these."""
        return {name: ids[MASTER_ID] for name, ids in sorted(self.brokers.items()) if MASTER_ID in ids}

    def master(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(MASTER_ID)


class BrokerReplica(NamedTuple):
    """The address of any broker of that name."""

    broker_id: int
    address: str


def replica_of(addresses: Mapping[int, str] | None, broker_id: int = MASTER_ID) -> BrokerReplica | None:
    """The address of the broker with that id; for a missing slave the next id, else the lowest
    (MQClientInstance.findBrokerAddressInSubscribe); None if there is none."""
    if not addresses:
        return None
    wanted = (broker_id,) if broker_id == MASTER_ID else (broker_id, broker_id + 1)
    number = next((each for each in wanted if each in addresses), min(addresses))
    return BrokerReplica(number, addresses[number])


def address_of(addresses: Mapping[int, str] | None, broker_id: int = MASTER_ID) -> str | None:
    """The address of ``replica_of``."""
    replica = replica_of(addresses, broker_id)
    return None if replica is None else replica.address


def _sound_addresses(topic: str, broker_name: str, addresses: Mapping[int, str]) -> dict[int, str]:
    sound = {int(number): address for number, address in addresses.items() if is_address(address)}
    if len(sound) < len(addresses):
        odd = next(address for address in addresses.values() if not is_address(address))
        _log.warning(
            "the route of topic %s: %s, an address of broker %s, is not host:port; it is left out",
            topic,
            printable(odd, 80),
            printable(broker_name, 80),
        )
    return sound


def _logic_queues(
    topic: str, mappings: Iterable[TopicQueueMappingInfo]
) -> tuple[dict[str, int], dict[str, dict[int, str]]]:
    """The number of logic queues by logic broker, and who leads each: the broker with the highest epoch
    (topicRouteData2EndpointsForStaticTopic). Raises BadRoute."""
    counts: dict[str, int] = {}
    leaders: dict[str, dict[int, str]] = {}
    for info in sorted(mappings, key=lambda info: info.epoch):
        if not 0 <= info.total_queues <= MAX_QUEUES or not is_sound(info.scope) or not info.bname:
            what = f"the mapping of broker {printable(info.bname or '', 80)} has {info.total_queues} queues"
            raise BadRoute(topic, what)
        name = LOGIC_PREFIX + (info.scope[2:] if info.scope == GLOBAL_SCOPE else info.scope)
        counts[name] = max(counts.get(name, 0), info.total_queues)
        leaders.setdefault(name, {}).update(
            (number, info.bname) for number in info.curr_id_map if 0 <= number < info.total_queues
        )
    if sum(counts.values()) > MAX_ROUTE_QUEUES:
        raise BadRoute(
            topic, f"it has {sum(counts.values())} queues, more than the client's limit of {MAX_ROUTE_QUEUES}"
        )
    return counts, leaders


def _ordered(topic: str, configuration: str) -> dict[str, int]:
    """``broker-a:4;broker-b:2``: a fixed list, so that a key keeps its queue while brokers come and go. Raises
    BadRoute."""
    counts: dict[str, int] = {}
    for item in configuration.split(";"):
        broker_name, _, count = item.rpartition(":")
        if broker_name:
            counts[broker_name] = parse_number(count) or 0
    return {
        data.broker_name: data.write_queue_nums
        for data in sound_queues(topic, [QueueData(name, 0, number, 0) for name, number in counts.items()])
    }
