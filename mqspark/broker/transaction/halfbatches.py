"""Half messages that hold a whole batch: transactions of thousands of rows at the cost of a few messages.

RocketMQ has no transactional batches; this is an extension. A producer sends the body of a batch send as *one*
prepared message. Its property ``MQSPARK_BATCH`` gives the number of messages and their system flags
(``count:flags``). Until it is decided it is a half message like any other, with the same op message in the end.
Its commit appends every message of the batch to the real queue, each with the offset of the half message
(prepared transaction offset). From that offset a start finds which messages of a commit were stored before a
crash.

Such a transaction is never checked: it stays open until its producer decides, or until it is older than
fileReservedTime. Must not know sockets or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mqspark.base.propertystring import joined
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft, StoredPosition
from mqspark.broker.transaction.halfmessages import Half
from mqspark.errors import InvalidMessage
from mqspark.message import (
    CLUSTER,
    COMPRESSED,
    COMPRESSION_MASK,
    DELAY,
    MAX_PROPERTIES_BYTES,
    MSG_REGION,
    MULTI_QUEUE_OFFSET,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    SINK_DECISIONS_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRACE_ON,
    TRANS_HALF_TOPIC,
    TRANSACTION_BATCH,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED,
    decode_properties,
    encode_stored_properties,
)
from mqspark.record.batchitems import split_batch
from mqspark.record.record import PendingRecord
from mqspark.store.messages.membertable import BatchMembers, batch_members

MAX_MEMBERS = 0x7FFF
"""The records of one commit stay far below a segment of the log; a BatchCQ record holds no more, either."""
_PROPERTIES_ROOM = 32
"""Room for a separator and for the CRC that the store may append."""
_FLAGS = COMPRESSED | COMPRESSION_MASK
_MARKS = (MSG_REGION, TRACE_ON, CLUSTER)
_NOT_IN_A_BATCH = frozenset(
    {
        DELAY,
        MULTI_QUEUE_OFFSET,
        TIMER_DELAY_MS,
        TIMER_DELAY_SEC,
        TIMER_DELIVER_MS,
        TRANSACTION_PREPARED,
        TRANSACTION_BATCH,
    }
)
_MARKS_OF_THESE = (
    b"DELAY",
    b"TIMER_",
    b"TRAN_MSG",
    MULTI_QUEUE_OFFSET.encode(),
    TRANSACTION_BATCH.encode(),
)
"""Each of these names contains one of them."""

Item = tuple[int, bytes, bytes]
"""Flag, body, properties."""


class Members(NamedTuple):
    topic: str
    queue_id: int
    sys_flag: int
    suffix: bytes
    """Properties that the broker appends."""
    body: bytes

    @property
    def items(self) -> list[Item]:
        return [
            (flag, body, joined(properties, self.suffix)) for flag, body, properties in split_batch(self.body)
        ]

    @property
    def together(self) -> Sequence[Item] | BatchMembers:
        """The same members, as columns when there are many."""
        many = batch_members(self.body)
        return self.items if many is None else many.with_suffix(self.suffix)


def member_count(half: Half) -> int:
    """The number of messages in the half message; 0 for an ordinary one."""
    return _count_and_flags(half.properties.get(TRANSACTION_BATCH))[0]


def check_batch(draft: Draft) -> None:
    """Raises InvalidMessage for a half message that claims to hold a batch and could not be committed as one."""
    text = draft.properties.get(TRANSACTION_BATCH)
    if text is None or draft.topic != TRANS_HALF_TOPIC:
        return
    count, flags = _count_and_flags(text)
    if not 0 < count <= MAX_MEMBERS or flags & ~_FLAGS:
        raise InvalidMessage(
            f"{TRANSACTION_BATCH}={text}: count:flags with 1 to {MAX_MEMBERS} messages is needed",
            field="properties",
        )
    if draft.properties.get(REAL_TOPIC) == SINK_DECISIONS_TOPIC:
        # The members of a batch themselves say which query they belong to.
        raise InvalidMessage(f"{SINK_DECISIONS_TOPIC} takes no batches", field="topic")
    if not _NOT_IN_A_BATCH.isdisjoint(draft.properties.keys() - {TRANSACTION_PREPARED, TRANSACTION_BATCH}):
        raise InvalidMessage("a transactional batch cannot be delayed", field="properties")
    found, largest, marked = _look(bytes(draft.body))
    if found != count:
        raise InvalidMessage(
            f"the batch holds {found} messages, {TRANSACTION_BATCH} says {count}", field="body"
        )
    most = MAX_PROPERTIES_BYTES - len(_suffix(draft.properties)) - _PROPERTIES_ROOM
    if largest > most:
        raise InvalidMessage(f"properties of {largest} bytes exceed {most}", field="properties")
    for properties in marked:
        if not _NOT_IN_A_BATCH.isdisjoint(decode_properties(properties)):
            raise InvalidMessage(
                "a message of a transactional batch is neither delayed nor a transaction, and in no light queue",
                field="properties",
            )


def _look(body: bytes) -> tuple[int, int, list[bytes]]:
    """The number of members, the length of the longest properties, and the members that may have one of the names
    in ``_NOT_IN_A_BATCH``."""
    many = batch_members(body)
    if many is not None and not many.any_has(*_MARKS_OF_THESE):
        return len(many), many.largest[1], []
    items = split_batch(body)
    marked = [properties for _, _, properties in items if any(mark in properties for mark in _MARKS_OF_THESE)]
    return len(items), max((len(properties) for _, _, properties in items), default=0), marked


def members(half: Half) -> Members | None:
    """The messages that its commit appends to its queue; None if the half message does not name its target.

    Properties as in an ordinary batch send: each message's own, then those that the broker appends.
    """
    target = half.real_queue
    if target is None:
        return None
    _, flags = _count_and_flags(half.properties.get(TRANSACTION_BATCH))
    return Members(*target, flags | TRANSACTION_COMMIT_TYPE, _suffix(half.properties), bytes(half.parts.body))


def _inner_properties(half: Half) -> bytes:
    """Properties of the single record that its commit is in a BatchCQ topic."""
    own = (REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_PREPARED, TRANSACTION_BATCH)
    return encode_stored_properties(
        {name: value for name, value in half.properties.items() if name not in own}
    )


def commit_batch(state: BrokerState, half: Half, items: Sequence[Item] | None = None) -> StoredPosition:
    """Store all its messages, or the given ones. Raises what ``Appender.put`` raises; InvalidMessage also if
    the half message does not name its target."""
    batch = members(half)
    if batch is None:
        raise InvalidMessage("the half message names no real topic and queue", field="properties")
    parts, topic = half.parts, state.topics.get(batch.topic)
    if topic is None or not topic.inner_batch:
        record = PendingRecord(
            topic=batch.topic,
            queue_id=batch.queue_id,
            born_timestamp_ms=parts.born_timestamp_ms,
            born_host=parts.born_host,
            sys_flag=batch.sys_flag,
            prepared_offset=parts.physical_offset,
        )
        return state.writer.put_batch(record, batch.together if items is None else items)
    # One record is never stored in part; a start finds it by the half message's identity.
    count = member_count(half)
    state.store.appender.use_batch_queues(topic.name)
    record = PendingRecord(
        topic=topic.name,
        queue_id=batch.queue_id,
        born_timestamp_ms=parts.born_timestamp_ms,
        born_host=parts.born_host,
        body=parts.body,
        properties=_inner_properties(half),
        sys_flag=batch.sys_flag,
    )
    stored = StoredPosition(*state.store.appender.put_inner_batch(record, count))
    state.stats.put_messages += count
    topic.count(stored.size_bytes, messages=count)
    return stored


def still_missing(items: Sequence[Item], found: Sequence[tuple[bytes, bytes]]) -> list[Item]:
    """The ``items`` that are not among ``found`` (body and properties, in queue order); a crash can leave any
    subset. Equal items are interchangeable. The store may have appended a CRC to the properties."""
    rest, index = [], 0
    for item in items:
        if index < len(found) and found[index][0] == item[1] and found[index][1].startswith(item[2]):
            index += 1
        else:
            rest.append(item)
    return rest


def _suffix(properties: dict[str, str]) -> bytes:
    return encode_stored_properties({name: properties[name] for name in _MARKS if name in properties})


def _count_and_flags(text: str | None) -> tuple[int, int]:
    count, colon, flags = (text or "").partition(":")
    if not colon or not (count.isascii() and count.isdigit() and flags.isascii() and flags.isdigit()):
        return 0, 0
    return (int(count), int(flags)) if len(count) < 10 and len(flags) < 10 else (0, 0)
