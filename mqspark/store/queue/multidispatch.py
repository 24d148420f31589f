"""Multi-dispatch: one record in several queues (LmqDispatch, MultiDispatchUtils).

A producer names light message queues (LMQ) in INNER_MULTI_DISPATCH. The store assigns the record an offset in
each, writes the offsets beside the names (INNER_MULTI_QUEUE_OFFSET) and adds the same entry to each. An LMQ
is a topic with one queue and a name prefix, and is in no topic table.

Facts: docs/rocketmq/store.md#dispatch.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqspark.base.propertystring import NAME_END, find_property, item
from mqspark.errors import InvalidMessage
from mqspark.message import (
    LMQ_PREFIX,
    MULTI_QUEUE_OFFSET,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    parse_number,
)
from mqspark.store.disk.layout import is_storable_topic

LMQ_QUEUE_ID = 0
DISPATCH_MARK = f"{MULTI_QUEUE_OFFSET}{NAME_END}".encode()
MAX_DISPATCHED = 256
"""Queues that one message may enter besides its own: each may have to be created."""
_WAITING = frozenset({SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC})


def is_lmq(name: str) -> bool:
    """Whether it is the name of an LMQ, or of a group that reads one."""
    return name.startswith(LMQ_PREFIX)


def allows_dispatch(topic: str) -> bool:
    """Whether records of a topic may enter other queues. Records that only wait in a system topic may not."""
    return not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) and topic not in _WAITING


def wanted_queues(names: str) -> list[str]:
    """The queues that INNER_MULTI_DISPATCH names. Raises InvalidMessage for a name that is not an LMQ, for a
    repeated one, and for too many.

    (RocketMQ stores such a message and then cannot dispatch it; it has no limit of their number.)
    """
    queues = [name.strip() for name in names.split(",")]
    if len(queues) > MAX_DISPATCHED:
        raise InvalidMessage(
            f"INNER_MULTI_DISPATCH names {len(queues)} queues, the limit is {MAX_DISPATCHED}",
            field="properties",
        )
    for name in queues:
        if not is_lmq(name) or not is_storable_topic(name):
            raise InvalidMessage(
                f"INNER_MULTI_DISPATCH names {name!r}, which is not a {LMQ_PREFIX} queue", field="properties"
            )
    if len(set(queues)) < len(queues):
        raise InvalidMessage(f"INNER_MULTI_DISPATCH names a queue twice: {names}", field="properties")
    return queues


def offsets_property(offsets: list[int]) -> bytes:
    return item(MULTI_QUEUE_OFFSET, ",".join(map(str, offsets))).encode()


def dispatched_queues(topic: str, properties: bytes) -> Iterator[tuple[str, int]]:
    """(LMQ name, queue offset) for each additional queue of a stored record."""
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
