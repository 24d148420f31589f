"""What a route means: the queues a producer may choose, those a consumer may read, and the brokers' addresses.

What a route says is not believed as it is: whoever registers with a name server writes it. Counts and addresses
that no broker can have are left out, and queues are spans, not lists, so that a route costs what its brokers
cost.

Facts: RocketMQ's MQClientInstance (topicRouteData2TopicPublishInfo and its neighbours). No sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mqspark.errors import BadRoute
from mqspark.logs import printable, sparing
from mqspark.message import PERM_READ, PERM_WRITE, MessageQueue, Queues, parse_number
from mqspark.names import is_address
from mqspark.protocol.bodies.topic_bodies import QueueData, TopicRouteData

__all__ = [
    "MASTER_ID",
    "MAX_QUEUES",
    "MAX_ROUTE_QUEUES",
    "Queues",
    "BrokerReplica",
    "TopicRoute",
    "address_of",
    "replica_of",
    "sound_queues",
]

MASTER_ID = 0

MAX_QUEUES = 65_536
"""Maximum queues of a topic on one broker: the limit of mqspark brokers."""

MAX_ROUTE_QUEUES = 4 * MAX_QUEUES
"""Maximum queues of a topic on all brokers."""

_log = sparing(__name__)


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
            f"broker {printable(odd.broker_name, 80)} is said to have {odd.read_queue_nums} queues to read"
            f" and {odd.write_queue_nums} to write, and may have {MAX_QUEUES}"
        )
        if not sound:
            raise BadRoute(topic, what)
        _log.warning("the route of topic %s: %s; it is left out", topic, what)
    for count in (
        sum(data.read_queue_nums for data in sound),
        sum(data.write_queue_nums for data in sound),
    ):
        if count > MAX_ROUTE_QUEUES:
            raise BadRoute(topic, f"it names {count} queues, and a client takes {MAX_ROUTE_QUEUES}")
    return sound


@dataclass(frozen=True, slots=True)
class TopicRoute:
    topic: str
    brokers: dict[str, dict[int, str]]
    """Broker name to broker id to ``ip:port``."""
    publish_queues: Sequence[MessageQueue]
    subscribe_queues: Sequence[MessageQueue]

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
        return cls(topic, brokers, Queues(topic, ordered), Queues(topic, subscribe.items()))

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """That broker, else any other with this name, else None."""
        return address_of(self.brokers.get(broker_name), broker_id)

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
