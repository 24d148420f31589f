"""Recovery of half messages at start: which are decided, which copy of a transaction counts, and which commits
were stored without their op message.

A crash loses what was only in memory: up to transactionOpBatchInterval of decisions, and some seconds of the
group's offsets. Both are recovered from the log, so that nothing is committed twice.

Facts: docs/rocketmq/later.md#transaction-checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mqspark.broker.service import READ_BYTES, READ_MESSAGES
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.consumer_offsets import NOT_FOUND
from mqspark.broker.transaction.halfbatches import Item, member_count, members, still_missing
from mqspark.broker.transaction.halfmessages import (
    Decisions,
    Half,
    Identity,
    op_offsets,
)
from mqspark.message import (
    DELAY,
    SCHEDULE_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_TOPIC,
    TRANS_GROUP,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_FIRST_OFFSET,
    TRANSACTION_MASK,
    parse_number,
)
from mqspark.record.record import Parts, take_apart
from mqspark.record.recordlayout import spans
from mqspark.store.queue.delaylevels import DelayLevels
from mqspark.store.store import MessageStore

_COPY_MARKS = (TRANSACTION_CHECK_TIMES.encode(), TRANSACTION_FIRST_OFFSET.encode())


@dataclass(slots=True)
class Recovered:
    decisions: Decisions
    copies: dict[Identity, int] = field(default_factory=dict)
    """The current copy of each open transaction that was stored again."""
    unwritten: list[int] = field(default_factory=list)
    """Decided half messages that no op message names."""
    rests: list[tuple[Half, list[Item]]] = field(default_factory=list)
    """Batches whose commit a crash left incomplete, and the missing messages, in the order of their half
    messages."""


def recover(state: BrokerState) -> Recovered:
    store = state.store
    half_end = store.offsets.max_offset(TRANS_HALF_TOPIC, 0)
    base, op_base = (_saved_offset(state, topic) for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC))
    recovered = Recovered(Decisions(base, op_base))
    decisions = recovered.decisions
    done_before: set[int] = set()
    for op in _read(store, TRANS_OP_HALF_TOPIC, 0, op_base, store.offsets.max_offset(TRANS_OP_HALF_TOPIC, 0)):
        offsets = [offset for offset in op_offsets(op.body) if offset < half_end]
        decisions.note_op(op.queue_offset, offsets)
        done_before.update(offset for offset in offsets if not decisions.decide(offset))
    _find_copies(store, recovered, half_end, done_before)
    levels = len(DelayLevels(state.store_config.message_delay_level).delays_ms)
    _find_commits(store, recovered, half_end, levels)
    return recovered


def _saved_offset(state: BrokerState, topic: str) -> int:
    low, high = max(0, state.store.offsets.min_offset(topic, 0)), state.store.offsets.max_offset(topic, 0)
    saved = state.offsets.query(TRANS_GROUP, topic, 0)
    return low if saved == NOT_FOUND else max(low, min(saved, high))


def _find_copies(store: MessageStore, recovered: Recovered, half_end: int, done_before: set[int]) -> None:
    """Before a crash a message may have been stored again whose first copy is read again now. Of all copies only
    the last counts, and if one is decided all are, back to where it was resumed."""
    decisions = recovered.decisions
    base = decisions.base
    copies: dict[Identity, int] = {}
    for parts in _read(store, TRANS_HALF_TOPIC, 0, base, half_end, _COPY_MARKS):
        half = Half(parts)
        if half.is_copy:
            copies[half.identity] = half.offset
    if not copies:
        return
    chains: dict[Identity, list[int]] = {}
    closed: set[Identity] = set()
    for parts in _read(store, TRANS_HALF_TOPIC, 0, base, 1 + max(copies.values())):
        half = Half(parts)
        if half.identity not in copies:
            continue
        if half.is_resumed:
            for offset in chains.pop(half.identity, ()):
                decisions.decide(offset)
            closed.discard(half.identity)
        chains.setdefault(half.identity, []).append(half.offset)
        if half.is_copy and half.first_offset in done_before:
            closed.add(half.identity)
    for identity, offsets in chains.items():
        is_closed = identity in closed or any(decisions.is_decided(offset) for offset in offsets)
        for offset in offsets if is_closed else offsets[:-1]:
            decisions.decide(offset)
        if not is_closed:
            recovered.copies[identity] = offsets[-1]


def _find_commits(store: MessageStore, recovered: Recovered, half_end: int, levels: int) -> None:
    """A commit is stored after its half message, in its target queue or, if delayed, in the queue where it waits."""
    decisions = recovered.decisions
    open_halves: dict[tuple[str, int], tuple[int, dict[Identity, int]]] = {}
    batches: dict[int, _OpenBatch] = {}
    for parts in _read(store, TRANS_HALF_TOPIC, 0, decisions.base, half_end):
        if decisions.is_decided(parts.queue_offset):
            continue
        half = Half(parts)
        for queue in _destinations(half, levels):
            _, halves = open_halves.setdefault(queue, (parts.physical_offset, {}))
            halves[half.identity] = half.offset
        if half.is_batch:
            batches[parts.physical_offset] = _OpenBatch(half, member_count(half))
    for (topic, queue_id), (first_position, halves) in open_halves.items():
        start = store.offsets.offset_by_position(topic, queue_id, first_position)
        for parts in _read(store, topic, queue_id, start, store.offsets.max_offset(topic, queue_id)):
            if parts.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT_TYPE:
                continue
            batch = batches.get(parts.prepared_offset)
            if batch is not None:
                batch.found.append(parts.queue_offset)
                if len(batch.found) == batch.count:
                    del batches[parts.prepared_offset]
                    decisions.decide(batch.half.offset)
                    recovered.copies.pop(batch.half.identity, None)
                    recovered.unwritten.append(batch.half.offset)
                continue
            identity = Half(parts).identity
            offset = halves.get(identity)
            if offset is not None and decisions.decide(offset):
                recovered.copies.pop(identity, None)
                recovered.unwritten.append(offset)
    recovered.rests += [
        (batch.half, _open_members(store, batch)) for _, batch in sorted(batches.items()) if batch.found
    ]


@dataclass(slots=True)
class _OpenBatch:
    """An open half message that holds a batch, and the queue offsets of its messages that are stored."""

    half: Half
    count: int
    found: list[int] = field(default_factory=list)


def _open_members(store: MessageStore, batch: _OpenBatch) -> list[Item]:
    whole = members(batch.half)
    if whole is None:
        return []
    found = [
        (bytes(parts.body), parts.properties)
        for parts in _read(store, whole.topic, whole.queue_id, batch.found[0], batch.found[-1] + 1)
        if parts.prepared_offset == batch.half.parts.physical_offset
    ]
    return still_missing(whole.items, found)


def _destinations(half: Half, levels: int) -> list[tuple[str, int]]:
    """Queues in which the commit of a half message may be stored; ``levels``: the number of delay levels."""
    queues = [] if half.real_queue is None else [half.real_queue]
    # Its producer's text, which may have thousands of digits. No commit carries out a level of more than ten.
    level = parse_number(half.properties.get(DELAY, "").removeprefix("+").lstrip("0"))
    if level:
        queues.append((SCHEDULE_TOPIC, min(level, levels) - 1))
    if not half.properties.keys().isdisjoint((TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS)):
        queues.append((TIMER_TOPIC, 0))
    return queues


def _read(
    store: MessageStore, topic: str, queue_id: int, offset: int, end: int, marks: tuple[bytes, ...] = ()
) -> Iterator[Parts]:
    """Visible records of a queue from ``offset`` to ``end``; with ``marks``, at least those that contain one of
    them."""
    while offset < end:
        result = store.reads.get(topic, queue_id, offset, READ_MESSAGES, READ_BYTES)
        for buffer in result.buffers:
            if marks:
                raw = bytes(buffer)
                if not any(mark in raw for mark in marks):
                    continue
            for begin, high in spans(buffer):
                parts = take_apart(buffer[begin:high])
                if parts.queue_offset < end:
                    yield parts
        if result.next_offset <= offset:
            return
        offset = result.next_offset
