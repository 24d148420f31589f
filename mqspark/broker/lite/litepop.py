"""Pops of lite topics, and their acknowledgements (PopLiteMessageProcessor, AckMessageProcessor.ackLite,
ChangeInvisibleTimeProcessor.processChangeInvisibleTimeForLite).

A pop names a client, and reads the lite queues that the client's events name. Each queue is read in order: it is
blocked for the group until what was handed out is acknowledged or its time is up. That state is in memory only; after
a restart a message may come again, as in RocketMQ.
"""

from __future__ import annotations

from mqspark.base.logs import sparing
from mqspark.broker.lite.liteclients import EVENTS_AT_ONCE, LiteClients
from mqspark.broker.lite.liteparked import LiteParked, LiteWaiter
from mqspark.broker.pop.checks import check_invisible_time, check_readable, check_time
from mqspark.broker.pop.poporder import ILLEGAL, PopOrder
from mqspark.broker.pop.popprocessor import MAX_POP_MESSAGES, SERVED_AT_ONCE
from mqspark.broker.pop.start_offsets import PopOffsets
from mqspark.broker.state.litenames import bound_topic, is_lite_type, lite_queue
from mqspark.broker.state.state import BrokerState
from mqspark.errors import NotNow, TableFull
from mqspark.protocol.codes import FAQ, RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response, encode_response_head
from mqspark.protocol.dispatch import Refusal, ok
from mqspark.protocol.headers.client_headers import (
    INIT_MAX,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopLiteMessageRequestHeader,
)
from mqspark.protocol.receipts import ORDER_REVIVE_QUEUE, parse_receipt
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work
from mqspark.store.messages.fetch import GetResult, GetStatus
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID

_MOVED = frozenset(
    {
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)

_log = sparing(__name__)


class LitePop(LiteWaiter):
    """A validated pop. Times are monotonic."""

    __slots__ = ("attempt_id", "began_ms", "invisible_ms", "looked_at", "max_messages", "was_parked")

    def __init__(
        self, session: Session, opaque: int, header: PopLiteMessageRequestHeader, now_ms: int, wait_ms: int
    ) -> None:
        super().__init__(
            session,
            opaque,
            header.client_id,
            header.consumer_group,
            header.topic,
            now_ms + wait_ms,
            header.attempt_id,
        )
        self.max_messages = header.max_msg_num
        self.invisible_ms = header.invisible_time
        self.attempt_id = header.attempt_id
        self.began_ms = now_ms
        self.was_parked = False
        self.looked_at = 0
        """Events that were looked at when it was served last. After EVENTS_AT_ONCE there may be more."""


class _LiteTaking:
    """What one pop has taken so far."""

    __slots__ = ("buffers", "count", "counts", "pop_time_ms", "size_bytes")

    def __init__(self, pop_time_ms: int) -> None:
        self.pop_time_ms = pop_time_ms
        self.buffers: list[memoryview] = []
        self.count = 0
        self.size_bytes = 0
        self.counts: list[str] = []
        """How often each message was handed out before."""

    def ext(self, pop: LitePop) -> dict[str, str]:
        return {
            "popTime": str(self.pop_time_ms),
            "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(ORDER_REVIVE_QUEUE),
            "orderCountInfo": ";".join(self.counts),
        }


class LitePops:
    def __init__(
        self, state: BrokerState, clients: LiteClients, order: PopOrder, offsets: PopOffsets
    ) -> None:
        self._state = state
        self._clients = clients
        self._order = order
        self._offsets = offsets
        self.parked: LiteParked[LitePop] = LiteParked(
            state, clients, "parkedLitePops", RequestCode.POP_LITE_MESSAGE, "LitePops._woken"
        )
        self._woken: dict[str, None] = {}
        """Clients with parked pops and new events."""
        self._is_serving = False

    # --- requests ---

    def pop(self, session: Session, command: Command) -> bytes | None:
        pop = self._check(session, command)
        if command.is_oneway or self._serve(pop):
            return None
        code, remark = ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"
        if pop.deadline_ms > pop.began_ms:
            try:
                if self.parked.offer(pop):
                    pop.was_parked = True
                    if pop.looked_at >= EVENTS_AT_ONCE:
                        self.wake(pop.client_id)
                    return None
            except TableFull as error:
                remark = str(error)
            code = ResponseCode.POLLING_FULL
        return self._nothing(pop, code, remark)

    def ack(self, session: Session, command: Command, header: AckMessageRequestHeader) -> bytes:
        """An acknowledgement that names a lite topic. Raises Refusal."""
        state, group, lite_topic = self._state, header.consumer_group, header.lite_topic or ""
        config = state.subscriptions.configured(group)
        if config is None or bound_topic(config) != header.topic:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        queue = lite_queue(header.topic, lite_topic)
        if header.offset > state.store.offsets.max_offset(queue, LMQ_QUEUE_ID):
            raise Refusal(ResponseCode.NO_MESSAGE, "ack offset illegal.")
        receipt = parse_receipt(header.extra_info)
        if header.queue_id != LMQ_QUEUE_ID or not receipt.is_order:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "ack queue illegal.")
        if header.offset < state.offsets.query(group, queue, LMQ_QUEUE_ID):
            return ok(command)
        reached = self._order.ack(queue, group, LMQ_QUEUE_ID, header.offset, receipt.pop_time_ms)
        if reached == ILLEGAL:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "ack offset illegal.")
        if reached is not None:
            if state.offsets.pending_reset(group, queue, LMQ_QUEUE_ID) is None:
                state.offsets.commit(group, queue, LMQ_QUEUE_ID, reached)
            if not self._order.is_blocked(queue, group, LMQ_QUEUE_ID):
                self.freed(queue, group)
        state.stats.were_acked(header.topic, group, 1)
        return ok(command)

    def change(self, session: Session, command: Command, header: ChangeInvisibleTimeRequestHeader) -> bytes:
        """A change of the invisible time that names a lite topic. Raises Refusal."""
        state, group = self._state, header.consumer_group
        queue = lite_queue(header.topic, header.lite_topic or "")
        if header.offset > state.store.offsets.max_offset(queue, LMQ_QUEUE_ID):
            raise Refusal(ResponseCode.NO_MESSAGE, "")
        if header.offset < state.offsets.query(group, queue, LMQ_QUEUE_ID):
            return ok(command, ChangeInvisibleTimeResponseHeader())
        check_invisible_time(state, header.invisible_time, 0)
        receipt = parse_receipt(header.extra_info)
        visible_ms = state.clock.now_ms() + header.invisible_time
        if header.suspend:
            self._order.suspend(queue, group, LMQ_QUEUE_ID, receipt.pop_time_ms, visible_ms)
        else:
            self._order.change(queue, group, LMQ_QUEUE_ID, header.offset, receipt.pop_time_ms, visible_ms)
        answer = ChangeInvisibleTimeResponseHeader(
            pop_time=receipt.pop_time_ms,
            invisible_time=visible_ms - receipt.pop_time_ms,
            revive_qid=ORDER_REVIVE_QUEUE,
        )
        return ok(command, answer)

    # --- events ---

    def freed(self, queue: str, group: str) -> None:
        """The queue is no longer blocked for the group: there may be more to read."""
        state = self._state
        committed = state.offsets.query(group, queue, LMQ_QUEUE_ID)
        if state.store.offsets.max_offset(queue, LMQ_QUEUE_ID) > committed:
            self._clients.dispatch(queue, group)

    def wake(self, client_id: str) -> None:
        if client_id in self.parked:
            self._woken[client_id] = None
            if not self._is_serving:
                self._is_serving = True
                self._state.long_work.begin(None, self._serve_woken())

    def expire(self) -> None:
        for pop in self.parked.expired():
            pop.session.send(self._nothing(pop, ResponseCode.POLLING_TIMEOUT))

    def _serve_woken(self) -> Work[None]:
        served = 0
        while self._woken:
            client_id = next(iter(self._woken))
            del self._woken[client_id]
            pop = self.parked.first(client_id)
            if pop is None:
                continue
            try:
                if pop.is_refused() or self._serve(pop):
                    self.parked.remove(pop)
                elif pop.looked_at >= EVENTS_AT_ONCE:
                    self._woken[client_id] = None
            except Exception:
                _log.exception("a parked pop of lite topics could not be served")
            served += 1
            if served % SERVED_AT_ONCE == 0:
                yield
        self._is_serving = False

    # --- checks, in RocketMQ's order ---

    def _check(self, session: Session, command: Command) -> LitePop:
        state, config = self._state, self._state.config
        header = command.header(PopLiteMessageRequestHeader)
        wait_ms = check_time(state, "pop message", header.born_time, header.poll_time)
        check_readable(state, session, command, "pop message")
        if not 0 < header.max_msg_num <= MAX_POP_MESSAGES:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{config.broker_ip1}] pop message's num is greater than {MAX_POP_MESSAGES}",
            )
        topic = state.topics.get(header.topic)
        if topic is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"topic [{header.topic}] not exist, apply first please! {FAQ}"
            )
        if not topic.readable:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"the topic [{header.topic}] peeking message is forbidden"
            )
        if not is_lite_type(topic.config):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"the topic [{header.topic}] message type not match"
            )
        group = state.subscriptions.find(header.consumer_group, session)
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}"
            )
        if bound_topic(group) != header.topic:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {header.consumer_group}"
            )
        self._clients.check(header.client_id, session)
        check_invisible_time(state, header.invisible_time, 1)
        return LitePop(session, command.opaque, header, state.clock.monotonic_ms(), max(0, wait_ms))

    # --- serving ---

    def _serve(self, pop: LitePop) -> bool:
        """Answer the pop, if there is a message for it."""
        state = self._state
        taking = _LiteTaking(state.clock.now_ms())
        pop.looked_at = 0
        for queue in self._clients.events_of(pop.client_id, pop.group, pop.topic):
            pop.looked_at += 1
            try:
                self._take(pop, taking, queue)
            except (OSError, NotNow) as error:
                _log.error("lite queue %s cannot be read now: %s", queue, error)
                self._clients.put_back(pop.client_id, queue)
                break
            if taking.count >= pop.max_messages:
                break
        if not taking.count:
            return False
        head = encode_response_head(
            pop.opaque, ResponseCode.SUCCESS, taking.ext(pop), taking.size_bytes, "FOUND"
        )
        pop.session.send(head, *taking.buffers)
        self._count(pop, ResponseCode.SUCCESS)
        state.stats.got(pop.topic, pop.group, taking.count, taking.size_bytes)
        return True

    def _take(self, pop: LitePop, taking: _LiteTaking, queue: str) -> None:
        state, group = self._state, pop.group
        is_moved = state.offsets.pending_reset(group, queue, LMQ_QUEUE_ID) is not None
        if not is_moved and self._order.is_blocked(queue, group, LMQ_QUEUE_ID, pop.attempt_id):
            return  # there is a new event when it is free
        room_bytes = state.store_config.max_transfer_bytes_on_message_in_memory - taking.size_bytes
        if room_bytes <= 0:
            self._clients.put_back(pop.client_id, queue)
            return
        state.offsets.admit(pop.session, group, queue, LMQ_QUEUE_ID)
        self._order.admit(pop.session, group, queue, pop.attempt_id)
        offset, is_reset = self._offsets.begin(pop.session, group, queue, LMQ_QUEUE_ID, INIT_MAX)
        if is_reset:
            self._order.clear(queue, group, LMQ_QUEUE_ID)
        wanted = pop.max_messages - taking.count
        result = state.store.reads.get(queue, LMQ_QUEUE_ID, offset, wanted, room_bytes)
        if result.status in _MOVED and result.next_offset != offset:
            offset = max(0, result.next_offset)
            state.offsets.commit(group, queue, LMQ_QUEUE_ID, offset)
            result = state.store.reads.get(queue, LMQ_QUEUE_ID, offset, wanted, room_bytes)
        if result.status is GetStatus.FOUND:
            self._hand_out(pop, taking, queue, result)

    def _hand_out(self, pop: LitePop, taking: _LiteTaking, queue: str, result: GetResult) -> None:
        offsets = list(range(result.next_offset - result.count, result.next_offset))
        self._order.hand_out(
            queue,
            pop.group,
            LMQ_QUEUE_ID,
            offsets,
            session=pop.session,
            attempt_id=pop.attempt_id,
            pop_time_ms=taking.pop_time_ms,
            invisible_time_ms=pop.invisible_ms,
        )
        before = self._order.counts(queue, pop.group, LMQ_QUEUE_ID)
        taking.counts += [str(before.get(offset, 0)) for offset in offsets]
        taking.buffers += result.buffers
        taking.size_bytes += result.size_bytes
        taking.count += result.count

    def _nothing(self, pop: LitePop, code: int, remark: str = "NO_MESSAGE_IN_QUEUE") -> bytes:
        self._count(pop, code)
        ext = _LiteTaking(self._state.clock.now_ms()).ext(pop)
        return encode_response(pop.opaque, code, ext, remark=remark)

    def _count(self, pop: LitePop, code: int) -> None:
        took_ms = self._state.clock.monotonic_ms() - pop.began_ms
        self._state.stats.rpc.record(RequestCode.POP_LITE_MESSAGE, code, took_ms, waited=pop.was_parked)
