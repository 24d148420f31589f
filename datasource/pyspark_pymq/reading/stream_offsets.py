"""The progress of a query: the offset JSON in Spark's checkpoint, and arithmetic on it. Pure functions.

    {"v":1, "q":{topic:{"broker:queue":next offset}}, "from":{topic:{"broker:queue":first offset}}}

Spark compares offsets as text, so keys are sorted and the same position always gives the same text. ``from``
holds the start of each queue that is new in this batch. That makes the start of a query durable: Spark stores
only the *end* of batch 0 and calls ``initialOffset`` again after a crash, but the stored end contains the
matching start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mqspark.arrow.cluster.queueranges import Offsets, QueueRange
from mqspark.errors import MQError
from mqspark.message import MessageQueue

VERSION = 1


@dataclass(frozen=True, slots=True)
class Positions:
    """One position of a query: ``offsets``, and the starts of queues that are new in the batch ending here."""

    offsets: Offsets
    begun: Offsets = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"q": _nested(self.offsets), "v": VERSION}
        if self.begun:
            document["from"] = _nested(self.begun)
        return dict(sorted(document.items()))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Positions:
        """Raises MQError for a checkpoint of another source or of a later version."""
        if document.get("v") != VERSION:
            raise MQError(
                f"the checkpoint holds an offset of version {document.get('v')!r}; this pymq source reads {VERSION}: "
                "use the version that wrote it, or a new checkpointLocation"
            )
        try:
            return cls(_flat(document["q"]), _flat(document.get("from", {})))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise MQError(f"the checkpoint's offset is damaged: {document!r}") from None


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for queue, offset in sorted(offsets.items()):
        nested.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = int(offset)
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> Offsets:
    offsets = {}
    for topic, queues in nested.items():
        for name, offset in queues.items():
            broker, _, queue_id = name.rpartition(":")
            offsets[MessageQueue(topic, broker, int(queue_id))] = int(offset)
    return offsets


def batch_ranges(start: Positions, end: Positions) -> list[QueueRange]:
    """The ranges of a micro-batch. Raises MQError if a queue would run backwards."""
    ranges = []
    for queue, until in sorted(end.offsets.items()):
        begin = end.begun.get(queue, start.offsets.get(queue))
        if begin is None:
            raise MQError(f"{queue}: the batch's end has no start; the checkpoint is not of this query")
        if until < begin:
            raise MQError(
                f"{queue.topic} queue {queue.queue_id} of {queue.broker_name}: the batch would end at {until}, before "
                f"its start {begin}; the checkpoint and the topic do not belong together"
            )
        if until > begin:
            ranges.append(QueueRange(queue, begin, until))
    return ranges


def limit_rows(start: Offsets, latest: Offsets, max_rows: int) -> Offsets:
    """``latest``, limited so that about ``max_rows`` are read: each queue with a backlog gets one row and a share
    of the rest.

    Deterministic. Exceeds ``max_rows`` only if more queues than that have a backlog.
    """
    backlog = {
        queue: latest[queue] - start[queue] for queue in sorted(latest) if latest[queue] > start[queue]
    }
    if sum(backlog.values()) <= max_rows:
        return dict(latest)
    spare = max(0, max_rows - len(backlog))
    total = sum(backlog.values()) - len(backlog)
    shares = {queue: 1 + spare * (rows - 1) // max(1, total) for queue, rows in backlog.items()}
    left = max_rows - sum(shares.values())
    for queue in sorted(backlog, key=lambda queue: (-(spare * (backlog[queue] - 1) % max(1, total)), queue)):
        if left <= 0:
            break
        if shares[queue] < backlog[queue]:
            shares[queue] += 1
            left -= 1
    return {queue: start[queue] + shares[queue] if queue in shares else latest[queue] for queue in latest}
