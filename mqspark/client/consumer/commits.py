"""The order in which a group's offsets are committed.

RocketMQ 5.5.0 creates the offset table of a group and topic without a lock (ConsumerOffsetManager.commitOffset).
When several first commits arrive at once, it acknowledges all and keeps only some.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.message import MessageQueue


def commit_waves(queues: Iterable[MessageQueue]) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """Splits the queues into one for each broker and topic, and the rest, which may follow when those are answered."""
    first: dict[tuple[str, str], MessageQueue] = {}
    rest = [q for q in queues if first.setdefault((q.broker_name, q.topic), q) != q]
    return list(first.values()), rest
