"""What a route means: the queues a producer may choose, those a consumer may read, and the brokers'
addresses.

Facts: RocketMQ's MQClientInstance (topicRouteData2TopicPublishInfo and its neighbours); reference
client-semantics §1.5. No sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mqspark.message import PERM_READ, PERM_WRITE, MessageQueue, parse_number
from mqspark.protocol.bodies import TopicRouteData

__all__ = ["MASTER_ID", "TopicRoute", "address_of"]

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    topic: str
    brokers: dict[str, dict[int, str]]
    """Broker name to broker id to ``ip:port``."""
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, *, max_queues: int | None = None) -> TopicRoute:
        """``max_queues`` a broker when the route is that of the template a topic will be created from."""
        brokers = {
            broker.broker_name: {int(number): address for number, address in broker.broker_addrs.items()}
            for broker in data.broker_datas
        }
        publish: list[MessageQueue] = []
        subscribe: list[MessageQueue] = []
        for queue in sorted(data.queue_datas, key=lambda queue: queue.broker_name):
            name = queue.broker_name
            writable, readable = queue.write_queue_nums, queue.read_queue_nums
            if max_queues is not None:
                writable = readable = min(max_queues, readable)
            # A producer needs the master, a consumer is content with any replica.
            if queue.perm & PERM_WRITE and MASTER_ID in brokers.get(name, {}):
                publish += [MessageQueue(topic, name, number) for number in range(writable)]
            if queue.perm & PERM_READ and brokers.get(name):
                subscribe += [MessageQueue(topic, name, number) for number in range(readable)]
        if data.order_topic_conf:
            publish = _ordered(topic, data.order_topic_conf)
        return cls(topic, brokers, tuple(publish), tuple(subscribe))

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """That broker, else any other with this name, else None."""
        return address_of(self.brokers.get(broker_name), broker_id)

    def master(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(MASTER_ID)


def address_of(addresses: Mapping[int, str] | None, broker_id: int = MASTER_ID) -> str | None:
    """Of the brokers of one name: that one's address, else any other, else None."""
    if not addresses:
        return None
    return addresses.get(broker_id) or next(iter(addresses.values()))


def _ordered(topic: str, configuration: str) -> list[MessageQueue]:
    """``broker-a:4;broker-b:2``: a fixed list, so that a key keeps its queue while brokers come and go."""
    queues: list[MessageQueue] = []
    for item in configuration.split(";"):
        broker_name, _, count = item.rpartition(":")
        if broker_name:
            queues += [MessageQueue(topic, broker_name, number) for number in range(parse_number(count) or 0)]
    return queues
