"""The queues of a topic as the jobs name them, ``broker:queue``, which options of the source understand."""

from __future__ import annotations

from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from pyspark_pymq.options import ReadOptions


def first_offsets(nameserver: str, topic: str) -> dict[str, int]:
    """The first offset that each queue still has. Raises MQError."""
    return _offsets(nameserver, topic, are_ends=False)


def end_offsets(nameserver: str, topic: str) -> dict[str, int]:
    """The offset of each queue's next message. Raises MQError."""
    return _offsets(nameserver, topic, are_ends=True)


def _offsets(nameserver: str, topic: str, *, are_ends: bool) -> dict[str, int]:
    cluster = ClusterQueues(ReadOptions.parse({"nameserver": nameserver, "topic": topic}, streaming=False))
    try:
        queues = cluster.queues()
        found = cluster.latest(queues) if are_ends else cluster.earliest(queues)
        return {f"{queue.broker_name}:{queue.queue_id}": offset for queue, offset in found.items()}
    finally:
        cluster.client.close()
