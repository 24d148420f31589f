"""Acknowledge popped messages, one at a time or in batches, and change their invisible time (AckMessageProcessor,
ChangeInvisibleTimeProcessor).

An acknowledgement is a record of the revive log. All acknowledgements of one check point in one turn become one
record at the end of the turn. Each is answered when the store has acked the record.

Facts: docs/rocketmq/pop.md#acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mqspark.broker.pop.ackrun import STORED, AckedTogether, AckRecord, AckRun, AckRuns, not_stored
from mqspark.broker.pop.checks import check_invisible_time
from mqspark.broker.pop.poporder import ILLEGAL, PopOrder
from mqspark.broker.pop.revivelog import MAX_CHECK_POINT_MESSAGES, CheckKey, CheckPoint, ReviveLog
from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreReadOnly, TableFull
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import BatchAck, BatchAckMessageRequestBody
from mqspark.protocol.codes import FAQ, RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.dispatch import Handler, Refusal, failure, ok
from mqspark.protocol.headers.client_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from mqspark.protocol.receipts import ORDER_REVIVE_QUEUE, Receipt, parse_receipt, real_topic
from mqspark.protocol.session import Session

MAX_AHEAD_MS = 1_000
"""Receipts are no farther ahead of the clock: each change of a message in the same millisecond adds one."""
MAX_BITS = 1 << 16
"""Bits of one entry of a batch. A check point has 32 messages, but a filter may have selected them from a wide
range."""


MAX_ENTRIES = 1_024
"""Entries of one batch. One entry holds a pop's messages of one queue, so clients never combine this many."""
MAX_OFFSETS = 16 * MAX_ENTRIES
"""Messages of one batch."""


class LiteAcks(Protocol):
    """Acknowledgements of lite topics, which are kept elsewhere."""

    def ack(self, session: Session, command: Command, header: AckMessageRequestHeader) -> bytes: ...

    def change(
        self, session: Session, command: Command, header: ChangeInvisibleTimeRequestHeader
    ) -> bytes: ...


class AckProcessor:
    def __init__(
        self,
        state: BrokerState,
        log: ReviveLog,
        order: PopOrder,
        acks: Acks,
        freed: Callable[[str, str, int], None],
    ) -> None:
        """``freed(topic, group, queue id)`` is called when a queue of ordered pops is no longer blocked."""
        self._state = state
        self.lite: LiteAcks | None = None
        """Takes what names a lite topic."""
        self._order = order
        self._freed = freed
        self._log = log
        self._acks = acks
        self.records: dict[tuple[CheckKey, int, int], AckRecord] = {}
        """(check point, revive queue, invisible time) → the record to write at the end of this turn."""
        self._known: dict[tuple[object, ...], AckRecord] = {}
        """(topic, group, receipt) of ``AckedTogether`` → its record of this turn, which takes more without looks at
        tables."""
        self.handlers: dict[int, Handler] = {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible_time,
        }

    # --- events ---

    def ack(self, session: Session, command: Command) -> bytes | None:
        header = command.header(AckMessageRequestHeader)
        if header.lite_topic and self.lite is not None:
            return self.lite.ack(session, command, header)
        self._check_offset(session, header.topic, header.queue_id, header.offset)
        receipt = parse_receipt(header.extra_info)
        if receipt.is_order:
            queue = header.topic, header.consumer_group, header.queue_id
            self._ack_in_order(*queue, [header.offset], receipt.pop_time_ms)
            return ok(command)
        self._check_busy()
        key = _key(header.topic, header.consumer_group, header.queue_id, receipt)
        record = self._record(session, key, receipt, [header.offset])
        if not command.is_oneway:
            record.answers.append((session, command.code, command.opaque, (record,)))
        return None

    def take_run(self, session: Session, run: AckRun) -> None:
        """Each as ``ack`` does it. What does not wait for the store is answered when this returns."""
        known = self._known
        for acked in run.acks:
            record = known.get(acked[:3])
            if record is not None and not self._is_busy and record.takes(acked.offsets):
                run.waiting.append((record, acked.numbers))
                continue
            try:
                low, high = limits = self._limits(session, acked.topic, acked.receipt.queue_id)
                if (
                    not acked.receipt.is_order  # each of these is answered at once, for itself
                    and low <= min(acked.offsets)
                    and max(acked.offsets) <= high
                ):
                    self._take_together(session, run, acked, limits)
                    continue
            except Exception as error:
                self._refuse(session, run, acked.numbers, error)
                continue
            for number, offset in zip(acked.numbers, acked.offsets, strict=True):
                try:
                    self._check_offset(session, acked.topic, acked.receipt.queue_id, offset)
                    self._take_together(session, run, acked._replace(numbers=[number], offsets=[offset]))
                except Exception as error:
                    self._refuse(session, run, [number], error)
        if run.waiting:
            self._last_record().runs.append(run)

    def _take_together(
        self, session: Session, run: AckRun, acked: AckedTogether, limits: tuple[int, int] | None = None
    ) -> None:
        """Messages with offsets that there are; ``limits``: of all offsets of the queue. Raises Refusal, TableFull."""
        topic, group, receipt, numbers, offsets = acked
        if receipt.is_order:
            self._ack_in_order(topic, group, receipt.queue_id, offsets, receipt.pop_time_ms)
            rpc = self._state.stats.rpc
            rpc.record(RequestCode.ACK_MESSAGE, ResponseCode.SUCCESS, 0, len(numbers))
            return
        self._check_busy()
        record = self._record(session, _key(topic, group, receipt.queue_id, receipt), receipt, offsets)
        if limits is not None:
            record.limits = limits
            self._known[acked[:3]] = record
        run.waiting.append((record, numbers))

    def _refuse(self, session: Session, run: AckRun, numbers: Sequence[int], error: Exception) -> None:
        command = Command(RequestCode.ACK_MESSAGE)
        frame = failure(session, command, error)
        for _ in numbers:
            self._state.stats.rpc.refused(command, frame)
        run.refuse(numbers, frame)

    def _last_record(self) -> AckRecord:
        """Records are written in the order of their first acknowledgement: what is put there is answered when all are
        written."""
        return next(reversed(self.records.values()))

    def batch_ack(self, session: Session, command: Command) -> bytes | None:
        """Entries with unknown queues or offsets are skipped."""
        body = decode_body(BatchAckMessageRequestBody, command.body) if command.body else None
        if body is None or not body.acks:
            raise Refusal(ResponseCode.NO_MESSAGE, "the batch has no acknowledgements")
        if len(body.acks) > MAX_ENTRIES:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has {len(body.acks)} entries, the limit is {MAX_ENTRIES}",
            )
        count = sum(map(_count, body.acks))
        if count > MAX_OFFSETS:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"the batch names {count} messages, the limit is {MAX_OFFSETS}"
            )
        self._check_busy()
        broker_name = body.broker_name or self._state.config.broker_name
        own: list[AckRecord] = []
        for entry in body.acks:
            topic = real_topic(entry.topic, entry.consumer_group, entry.retry)
            offsets = self._existing(topic, entry)
            if entry.revive_queue_id == ORDER_REVIVE_QUEUE:
                self._ack_in_order(topic, entry.consumer_group, entry.queue_id, offsets, entry.pop_time)
                continue
            if not offsets:
                continue
            receipt = Receipt(
                entry.start_offset,
                entry.pop_time,
                entry.invisible_time,
                entry.revive_queue_id,
                entry.retry,
                broker_name,
                entry.queue_id,
            )
            key = _key(topic, entry.consumer_group, entry.queue_id, receipt)
            own.append(self._record(session, key, receipt, offsets))
        if not own:
            return ok(command)
        if not command.is_oneway:
            self._last_record().answers.append((session, command.code, command.opaque, own))
        return None

    def change_invisible_time(self, session: Session, command: Command) -> bytes | None:
        """Store a new check point for this one message, then acknowledge the old one."""
        state = self._state
        header = command.header(ChangeInvisibleTimeRequestHeader)
        if header.lite_topic and self.lite is not None:
            return self.lite.change(session, command, header)
        low, high = self._limits(session, header.topic, header.queue_id)
        if not low <= header.offset < high:
            raise Refusal(ResponseCode.NO_MESSAGE, f"there is no message {header.offset} in {low}~{high}")
        check_invisible_time(state, header.invisible_time, 0)
        receipt = parse_receipt(header.extra_info)
        if receipt.is_order:
            return ok(command, self._change_in_order(header, receipt.pop_time_ms))
        queue = self._revive_queue(receipt)
        now_ms = state.clock.now_ms()
        if receipt.visible_again_ms <= now_ms:
            raise Refusal(
                ResponseCode.NO_MESSAGE,
                f"the receipt expired {now_ms - receipt.visible_again_ms} ms ago: others may have the message",
            )
        self._check_busy()
        old = _key(header.topic, header.consumer_group, header.queue_id, receipt)
        # A check point's time is part of its key, so the new check point must have a different time: a later one, but
        # not if the clock has gone back. The message would be invisible until the clock is there again.
        has_gone_back = receipt.pop_time_ms > now_ms + MAX_AHEAD_MS
        pop_time_ms = now_ms if has_gone_back else max(now_ms, receipt.pop_time_ms + 1)
        new = old._replace(start_offset=header.offset, pop_time_ms=pop_time_ms)
        try:
            owner = self._log.admit_ack(session, queue, old, receipt.invisible_time_ms)
            check_point = CheckPoint(new, header.invisible_time, [0])
            end_offset = self._log.put_check_point(queue, check_point, session)
            state.stats.was_checked(header.topic, header.consumer_group)
            acked_end = self._log.put_ack(queue, old, receipt.invisible_time_ms, [header.offset], owner)
            end_offset = max(end_offset, acked_end)
        except TableFull:
            raise
        except (StoreReadOnly, NotNow, InvalidMessage) as error:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"the invisible time could not be changed: {error}"
            ) from None
        if not command.is_oneway:
            answer = ChangeInvisibleTimeResponseHeader(
                pop_time=pop_time_ms, invisible_time=header.invisible_time, revive_qid=receipt.revive_queue
            )
            self._acks.other(command.code)
            self._acks.waiting.append((end_offset, session, ok(command, answer)))
        return None

    def end_turn(self) -> None:
        """Write the acknowledgements of this turn; called before the store's commit."""
        if not self.records:
            return
        records = self.records.copy()
        self.records.clear()
        self._known.clear()
        waiting = self._acks.waiting
        store_problem: Exception | None = None
        end_offset = 0
        for (key, revive_queue, invisible_time_ms), record in records.items():
            record.problem = store_problem
            self._state.acknowledgements.release(record.owner, entries=record.held)
            offsets = list(record.offsets) if store_problem is None else []
            try:
                for first in range(0, len(offsets), MAX_CHECK_POINT_MESSAGES):
                    some = offsets[first : first + MAX_CHECK_POINT_MESSAGES]
                    end_offset = self._log.put_ack(revive_queue, key, invisible_time_ms, some, record.owner)
            except (StoreReadOnly, NotNow) as error:
                record.problem = store_problem = error
            except (Refusal, InvalidMessage, MessageTooLarge) as error:
                record.problem = error  # other records are written all the same
            for session, code, opaque, waited_for in record.answers:
                problem = next((each.problem for each in waited_for if each.problem is not None), None)
                if problem is None:
                    self._acks.other(code)
                    waiting.append((end_offset, session, encode_response(opaque, ResponseCode.SUCCESS)))
                else:
                    session.send(not_stored(opaque, problem))
            if record.runs:
                self._written(record.runs, end_offset)

    def _written(self, runs: list[AckRun], end_offset: int) -> None:
        """Their records are in the log, or could not be put there."""
        waiting, messages = AckRuns(), 0
        for run in runs:
            if count := run.written():
                waiting.runs.append(run)
                messages += count
            else:
                run.done()
        if messages:
            self._acks.other(RequestCode.ACK_MESSAGE, messages)
            self._acks.add_run(end_offset, waiting, messages, STORED, waits=True)

    # --- ordered pops ---

    def _ack_in_order(
        self, topic: str, group: str, queue_id: int, wanted: Iterable[int], pop_time_ms: int
    ) -> None:
        """Processed at once, before the next pop, which could return one of these messages. Raises Refusal."""
        offsets, is_acked = self._state.offsets, False
        try:
            for offset in wanted:
                committed = offsets.query(group, topic, queue_id)
                if offset < committed:
                    continue
                reached = self._order.ack(topic, group, queue_id, offset, pop_time_ms)
                if reached == ILLEGAL:
                    raise Refusal(
                        ResponseCode.MESSAGE_ILLEGAL,
                        f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed}, commit:{offset}",
                    )
                if reached is not None:
                    is_acked = True
                    self._state.stats.were_acked(topic, group, 1)
                    if offsets.pending_reset(group, topic, queue_id) is None:
                        offsets.commit(group, topic, queue_id, reached)
        finally:
            if is_acked and not self._order.is_blocked(topic, group, queue_id):
                self._freed(topic, group, queue_id)

    def _change_in_order(
        self, header: ChangeInvisibleTimeRequestHeader, pop_time_ms: int
    ) -> ChangeInvisibleTimeResponseHeader:
        """Raises Refusal."""
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        state = self._state
        if header.offset < state.offsets.query(group, topic, queue_id):  # already acknowledged
            return ChangeInvisibleTimeResponseHeader()
        visible_ms = state.clock.now_ms() + header.invisible_time
        if not self._order.change(topic, group, queue_id, header.offset, pop_time_ms, visible_ms):
            raise Refusal(ResponseCode.NO_MESSAGE, "the message was handed out again or was never handed out")
        return ChangeInvisibleTimeResponseHeader(
            pop_time=pop_time_ms, invisible_time=visible_ms - pop_time_ms, revive_qid=ORDER_REVIVE_QUEUE
        )

    # --- inside ---

    @property
    def _is_busy(self) -> bool:
        acks = self._acks
        return len(acks.waiting) + acks.more >= self._state.config.send_thread_pool_queue_capacity

    def _check_busy(self) -> None:
        if self._is_busy:
            self._acks.check_busy(self._state.config.send_thread_pool_queue_capacity)

    def _record(self, session: Session, key: CheckKey, receipt: Receipt, offsets: Iterable[int]) -> AckRecord:
        """The record with these offsets. Raises TableFull when the user has too many."""
        revive_queue = self._revive_queue(receipt)
        place = key, revive_queue, receipt.invisible_time_ms
        found = self.records.get(place)
        record = AckRecord() if found is None else found
        known = record.offsets
        new = [offset for offset in offsets if offset not in known]
        if len(known) + len(new) > record.room:
            more = -(-(len(known) + len(new)) // MAX_CHECK_POINT_MESSAGES) - record.held
            shares = self._state.acknowledgements
            owner = self._log.admit_ack(session, revive_queue, key, receipt.invisible_time_ms, more)
            if not record.held:
                record.owner = owner
            shares.hold(record.owner, entries=more)
            record.held += more
            record.room = record.held * MAX_CHECK_POINT_MESSAGES
        for offset in new:
            known[offset] = None
        if found is None:
            self.records[place] = record
        return record

    def _revive_queue(self, receipt: Receipt) -> int:
        if not 0 <= receipt.revive_queue < self._log.queues:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the receipt names revive queue {receipt.revive_queue} of {self._log.queues}",
            )
        return receipt.revive_queue

    def _check_offset(self, session: Session, topic: str, queue_id: int, offset: int) -> None:
        """Raises Refusal."""
        low, high = self._limits(session, topic, queue_id)
        if not low <= offset <= high:
            raise Refusal(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )

    def _limits(self, session: Session, name: str, queue_id: int) -> tuple[int, int]:
        """The queue's first offset and its end offset (exclusive). Raises Refusal."""
        state = self._state
        topic = state.topics.get(name)
        if topic is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}")
        if not 0 <= queue_id < topic.read_queue_nums:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{name}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{session.peer}]",
            )
        low, high = state.store.offsets.bounds(name, queue_id)
        return max(0, low), high

    def _existing(self, topic: str, entry: BatchAck) -> list[int]:
        store = self._state.store
        low, high = store.offsets.bounds(topic, entry.queue_id)
        if self._state.topics.get(topic) is None or not _count(entry):
            return []
        return [offset for offset in _offsets(entry) if low <= offset < high]


def _key(topic: str, group: str, queue_id: int, receipt: Receipt) -> CheckKey:
    return CheckKey(topic, group, queue_id, receipt.start_offset, receipt.pop_time_ms, receipt.broker_name)


def _count(entry: BatchAck) -> int:
    """Messages of an entry; 0 for one that is too wide."""
    return int.from_bytes(entry.bit_set).bit_count() if len(entry.bit_set) * 8 <= MAX_BITS else 0


def _offsets(entry: BatchAck) -> Iterable[int]:
    """Takes time for the bits that are set, not for all."""
    bits = int.from_bytes(entry.bit_set, "little")
    while bits:
        lowest = bits & -bits
        yield entry.start_offset + lowest.bit_length() - 1
        bits ^= lowest
