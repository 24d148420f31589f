"""Multi-dispatch: one record in more queues than its own (LmqDispatch, MultiDispatchUtils; reference
store-and-broker §19.2).

A producer names light message queues (LMQ) in INNER_MULTI_DISPATCH; the store gives the record an offset in each,
writes those beside the names (INNER_MULTI_QUEUE_OFFSET) and puts the same entry into each. An LMQ is a topic with
one queue and a prefix, known to no topic table.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqspark.errors import InvalidMessage
from mqspark.message import RETRY_PREFIX, SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, parse_number
from mqspark.record import find_property
from mqspark.store.disk.layout import is_storable_topic

__all__ = [
    "DISPATCH_MARK",
    "LMQ_PREFIX",
    "LMQ_QUEUE_ID",
    "allows_dispatch",
    "dispatched_queues",
    "is_lmq",
    "offsets_property",
    "wanted_queues",
]

LMQ_PREFIX = "%LMQ%"
LMQ_QUEUE_ID = 0
DISPATCH_MARK = b"INNER_MULTI_QUEUE_OFFSET\x01"
_SYSTEM_PREFIX = "rmq_sys_"
_WAITING = frozenset({SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC})


def is_lmq(name: str) -> bool:
    """Of a topic or of a group that reads one."""
    return name.startswith(LMQ_PREFIX)


def allows_dispatch(topic: str) -> bool:
    """Whether records of a topic may enter other queues: not those that only wait in it for something else."""
    return not topic.startswith((RETRY_PREFIX, _SYSTEM_PREFIX)) and topic not in _WAITING


def wanted_queues(names: str) -> list[str]:
    """The queues that INNER_MULTI_DISPATCH names. Raises InvalidMessage for what is no LMQ and for one named twice.

    (RocketMQ stores such a message and then cannot dispatch it.)
    """
    queues = [name.strip() for name in names.split(",")]
    for name in queues:
        if not is_lmq(name) or not is_storable_topic(name):
            raise InvalidMessage(
                f"INNER_MULTI_DISPATCH names {name!r}, which is no {LMQ_PREFIX} queue", field="properties"
            )
    if len(set(queues)) < len(queues):
        raise InvalidMessage(f"INNER_MULTI_DISPATCH names a queue twice: {names}", field="properties")
    return queues


def offsets_property(offsets: list[int]) -> bytes:
    return DISPATCH_MARK + ",".join(map(str, offsets)).encode() + b"\x02"


def dispatched_queues(topic: str, properties: bytes) -> Iterator[tuple[str, int]]:
    """(LMQ name, its queue offset) for each queue that a stored record is in besides its own."""
    names = find_property(properties, b"INNER_MULTI_DISPATCH")
    offsets = find_property(properties, DISPATCH_MARK[:-1])
    if names is None or offsets is None or not allows_dispatch(topic):
        return
    pairs = (names.decode("utf-8", "replace").split(","), offsets.split(b","))
    if len(pairs[0]) != len(pairs[1]):
        return
    for name, offset in zip(*pairs, strict=True):
        number = parse_number(offset)
        if is_lmq(name.strip()) and number is not None:
            yield name.strip(), number
