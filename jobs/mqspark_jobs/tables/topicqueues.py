"""The queues of a topic as live tables name them, ``broker:queue``: where they begin and end, how far a group is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.cluster.queueranges import Offsets
from mqspark.client.blocking import BlockingClient
from mqspark.message import MessageQueue
from pyspark_pymq.options import ReadOptions


@dataclass(frozen=True, slots=True)
class TopicSpan:
    firsts: dict[str, int]
    """The first offset that each queue still has, in the archive if there is one."""
    ends: dict[str, int]
    """The offset of each queue's next message."""


class TableTopic:
    """Methods raise MQError."""

    def __init__(self, options: Mapping[str, str], *, client: BlockingClient | None = None) -> None:
        """``options``: of a batch read. ``client``: of the cluster, shared with others; None: one of its own."""
        parsed = ReadOptions.parse(options, streaming=False)
        self._topic = parsed.topics.names[0]
        self._cluster = ClusterQueues(parsed, client=client)
        self._published: Offsets = {}

    @property
    def client(self) -> BlockingClient:
        return self._cluster.client

    def bounds(self, reached: Mapping[str, int] = MappingProxyType({})) -> TopicSpan:
        """``reached``: how far queues were read. The master of one that ends before that is asked, and waited for: a
        slave may not have copied it yet. Raises NoRoute when it stays away."""
        queues = self._cluster.queues()
        firsts, ends = self._cluster.earliest(queues), self._cluster.latest(queues)
        short = {queue: queues[queue] for queue, end in ends.items() if end < reached.get(_name(queue), end)}
        if short:
            ends |= self._cluster.latest(self._cluster.await_masters(short))
        return TopicSpan(_named(firsts), _named(ends))

    def publish(self, ends: Mapping[str, int]) -> None:
        """Publish these as the offsets of the option ``group``, best effort and only forward."""
        offsets = {}
        for name, offset in ends.items():
            broker, _, queue_id = name.rpartition(":")
            offsets[MessageQueue(self._topic, broker, int(queue_id))] = offset
        self._cluster.publish(offsets, self._published)

    def close(self) -> None:
        self._cluster.client.close()


def queue_bounds(options: Mapping[str, str], reached: Mapping[str, int]) -> TopicSpan:
    """The queues of the topic of a batch read with these options. ``reached``: as for ``TableTopic.bounds``. Raises
    MQError."""
    topic = TableTopic(options)
    try:
        return topic.bounds(reached)
    finally:
        topic.close()


def _named(offsets: Offsets) -> dict[str, int]:
    return {_name(queue): offset for queue, offset in offsets.items()}


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"
