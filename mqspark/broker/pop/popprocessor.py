"""Handing out messages by POP (PopMessageProcessor).

No client owns a queue. A pop takes the next messages of any queue, writes a check point for them to the revive
log and hands them out; other consumers do not see them for the invisible time. The answer is sent when the store
has acked the check point. Messages that are not acknowledged in time come back through the group's retry topic
(``mqspark.broker.pop.revive``).

Facts: docs/rocketmq/pop.md#pop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mqspark.base.propertystring import find_property, item
from mqspark.broker.pop.checks import (
    check_group,
    check_invisible_time,
    check_readable,
    check_time,
    check_topic,
    parse_wanted,
)
from mqspark.broker.pop.parked_pops import ANY_QUEUE, Waiter
from mqspark.broker.pop.poporder import PopOrder
from mqspark.broker.pop.revivelog import CheckKey, CheckPoint, ReviveLog
from mqspark.broker.pop.start_offsets import PopOffsets, Step
from mqspark.broker.pop.waking import WakingPops
from mqspark.broker.pull.pull import check_given
from mqspark.broker.state.acks import Deferred
from mqspark.broker.state.heldrequests import Wanted, get_wanted
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.attributes import priority_factor
from mqspark.broker.tables.topics import Topic
from mqspark.errors import InvalidMessage, NotNow, StoreReadOnly, TableFull
from mqspark.message import POP_CK
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response, encode_response_head
from mqspark.protocol.dispatch import Handler, Refusal
from mqspark.protocol.headers.client_headers import PopMessageRequestHeader
from mqspark.protocol.receipts import (
    NORMAL,
    ORDER_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    retry_topic_v1,
    retry_topic_v2,
)
from mqspark.protocol.session import Session
from mqspark.record.record import peek_properties, readdressed
from mqspark.record.recordlayout import queue_offsets, spans
from mqspark.store.messages.fetch import GetResult, GetStatus
from mqspark.store.oldermessages import NotAtHand

MAX_POP_MESSAGES = 32
"""Messages of one pop; RocketMQ refuses larger numbers."""

MAX_UNSYNCED = 100_000
"""Pops whose check points are not on disk yet. Unless the disk hangs, this many take seconds."""

SERVED_AT_ONCE = 8
"""Parked pops that are served in the turn that wakes them; the rest are served between the turns of others, one in a
slice, because a SQL filter may look at many records."""

_MOVED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
_NOTHING_WANTED = (GetStatus.NO_MATCHED_MESSAGE, GetStatus.OFFSET_FOUND_NULL, GetStatus.MESSAGE_WAS_REMOVING)


class Pop(Waiter):
    """A validated pop."""

    __slots__ = ("began_ms", "init_mode", "invisible_time_ms", "max_messages", "order", "was_parked")

    def __init__(
        self,
        session: Session,
        command: Command,
        header: PopMessageRequestHeader,
        wanted: Wanted,
        deadline_ms: int,
        began_ms: int,
    ) -> None:
        super().__init__(
            session,
            command.opaque,
            header.topic,
            header.consumer_group,
            header.queue_id,
            deadline_ms,
            attempt_id=header.attempt_id,
            wanted=wanted,
        )
        self.max_messages = header.max_msg_nums
        self.invisible_time_ms = header.invisible_time
        self.init_mode = header.init_mode
        self.order = header.order
        self.began_ms = began_ms
        self.was_parked = False


class _PopTaking:
    """What one pop has taken so far."""

    __slots__ = (
        "buffers",
        "count",
        "end_offset",
        "message_offsets",
        "order_counts",
        "pop_time_ms",
        "problem",
        "rest",
        "revive_queue",
        "size_bytes",
        "start_offsets",
        "steps",
    )

    def __init__(self, pop_time_ms: int, revive_queue: int) -> None:
        self.pop_time_ms = pop_time_ms
        self.revive_queue = revive_queue
        self.buffers: list[bytes | memoryview] = []
        self.count = 0
        self.size_bytes = 0
        self.rest = 0
        """Messages left in the queues that were examined."""
        self.end_offset = 0
        """End offset of the last check point in the log."""
        self.start_offsets: list[str] = []
        self.message_offsets: list[str] = []
        self.order_counts: list[str] = []
        self.steps: list[Step] = []
        self.problem: Exception | None = None
        """Why existing messages were not handed out."""

    def ext(self, pop: Pop) -> dict[str, str]:
        ext = {
            "popTime": str(self.pop_time_ms),
            "invisibleTime": str(pop.invisible_time_ms),
            "reviveQid": str(self.revive_queue),
            "restNum": str(self.rest),
            "startOffsetInfo": ";".join(self.start_offsets),
            "msgOffsetInfo": ";".join(self.message_offsets),
        }
        if pop.order:
            ext["orderCountInfo"] = ";".join(self.order_counts)
        return ext


class PopProcessor(WakingPops[Pop]):
    def __init__(
        self,
        state: BrokerState,
        log: ReviveLog,
        offsets: PopOffsets,
        order: PopOrder,
        answers: Deferred,
        durably: Deferred,
        name: str = "parkedPops",
    ) -> None:
        """``name``: of the table of parked pops."""
        super().__init__(state, name, RequestCode.POP_MESSAGE, SERVED_AT_ONCE, 1)
        self._order = order
        self._log = log
        self._offsets = offsets
        self._answers = answers
        """Held until the log is acked: answers to clients."""
        self._durably = durably
        """Held until the log is on disk: offsets of groups. Their file is synced whatever the flush type, and
        must not be ahead of the check points that bring messages back."""
        self.given: dict[int, int] = {}
        """session id → bytes sent to it in this turn."""
        self._pops = 0
        self._last_end = 0
        self.handlers: dict[int, Handler] = {RequestCode.POP_MESSAGE: self.pop}

    # --- events ---

    def pop(self, session: Session, command: Command) -> None:
        pop = self._check(session, command)
        if command.is_oneway:
            return
        taking = self._take(pop)
        if taking.count:
            self._answer(pop, taking)
            return
        self._settle(taking)
        if taking.problem is not None:
            raise _refusal(taking.problem)
        try:
            if not self._park(pop):
                raise Refusal(ResponseCode.POLLING_FULL, "NO_MESSAGE_IN_QUEUE", taking.ext(pop))
        except TableFull as error:
            raise Refusal(ResponseCode.POLLING_FULL, str(error), taking.ext(pop)) from None

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Serve parked pops that would read the queue (ANY_QUEUE: the retries), as long as there are messages."""
        for _ in self._serve_grown(topic, group, queue_id):
            continue

    def _serve_grown(self, topic: str, group: str, queue_id: int) -> Iterator[int]:
        for waiting_for in self._waiting_for(topic, group, queue_id):
            while (pop := self.parked.take(topic, group, waiting_for)) is not None:
                if pop.session.room <= 0:  # leave the messages to other consumers
                    self._send_nothing(pop, self._new_taking(pop))
                    continue
                if lapsed := pop.lapsed:
                    self._refuse(pop, Refusal(ResponseCode.NO_PERMISSION, lapsed))
                    continue
                taking = self._take(pop)
                if taking.count:
                    self._answer(pop, taking)
                    yield 1
                    if taking.rest <= 0:
                        return
                    continue
                self._settle(taking)
                if taking.problem is None:
                    self.parked.park(pop, first=True)
                    yield 1
                    break
                self._refuse(pop, taking.problem)
                yield 1

    def _serve_expired(self, pop: Pop) -> int:
        if lapsed := pop.lapsed:
            self._refuse(pop, Refusal(ResponseCode.NO_PERMISSION, lapsed))
            return 1
        taking = self._take(pop)
        if taking.count:
            self._answer(pop, taking)
            return 1
        self._settle(taking)
        if taking.problem is not None:
            self._refuse(pop, taking.problem)
        else:
            self._send_nothing(pop, taking)
        return 1

    def send_away(self) -> None:
        """Nothing is handed out any more: answer what is parked."""
        waiting = [pop for pop in self._expired if pop.session.open] + self.parked.take_all()
        self._expired.clear()
        self._grown.clear()
        for pop in waiting:
            self._send_nothing(pop, self._new_taking(pop))

    def topic_gone(self, refusal: Refusal, topic: str) -> None:
        """The topic is deleted: answer its parked pops."""
        refused = self.parked.refused(topic, lambda pop: self._refuse(pop, refusal))
        self._state.long_work.begin(None, refused)

    def end_turn(self) -> None:
        self.given.clear()

    # --- checks, in RocketMQ's order ---

    def _check(self, session: Session, command: Command) -> Pop:
        state = self._state
        config = state.config
        header = command.header(PopMessageRequestHeader)
        wait_ms = check_time(state, "pop message", header.born_time, header.poll_time)
        check_readable(state, session, command, "pop message")
        if not 0 < header.max_msg_nums <= MAX_POP_MESSAGES:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{config.broker_ip1}] pop message's num is {header.max_msg_nums},"
                f" not 1 to {MAX_POP_MESSAGES}",
            )
        check_invisible_time(state, header.invisible_time, 1)
        if not state.store_config.timer_wheel_enable:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{config.broker_ip1}] pop message is forbidden because timerWheelEnable is false",
            )
        check_topic(state, session, header.topic, header.queue_id)
        check_group(state, session, header.consumer_group)
        state.offsets.admit(session, header.consumer_group, header.topic)
        if header.order:
            self._order.admit(session, header.consumer_group, header.topic, header.attempt_id)
        wanted = parse_wanted(header.exp_type, header.exp)
        check_given(self.given, session, config)
        if len(self._answers) >= config.send_thread_pool_queue_capacity or len(self._durably) >= MAX_UNSYNCED:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {len(self._durably)} pops wait for the disk already; retry later",
            )
        now_ms = state.clock.monotonic_ms()
        return Pop(session, command, header, wanted, now_ms + wait_ms, now_ms)

    def _park(self, pop: Pop) -> bool:
        """False if too many are parked. A pop whose time is up is answered. Raises TableFull."""
        if pop.deadline_ms <= self._state.clock.monotonic_ms():
            self._send_nothing(pop, self._new_taking(pop))
            return True
        pop.was_parked = self.offer(pop)
        return pop.was_parked

    # --- taking messages ---

    def _new_taking(self, pop: Pop) -> _PopTaking:
        if pop.order:
            return _PopTaking(self._state.clock.now_ms(), ORDER_REVIVE_QUEUE)
        self._pops += 1
        return _PopTaking(self._state.clock.now_ms(), self._pops % self._log.queues)

    def _take(self, pop: Pop) -> _PopTaking:
        """Take messages as RocketMQ does: retries first in one of five pops, otherwise when there is room left.
        Ordered messages are retried in their own queue. A pop of a priority topic begins with the queue of the
        highest priority; how many of a hundred do is an attribute of the group."""
        state = self._state
        config = state.config
        taking = self._new_taking(pop)
        topic = state.topics.get(pop.topic)
        if topic is None:  # deleted while the pop was parked
            return taking
        luck = first = state.random.randrange(100)
        probability = config.pop_from_retry_probability
        if topic.order_by_priority and not pop.order and luck < self._priority_percent(pop.group):
            first, probability = 0, config.pop_from_retry_probability_for_priority
        retries_first = luck < probability
        if retries_first and not pop.order:
            self._take_retries(pop, taking, luck, first)
        if pop.queue_id != ANY_QUEUE:
            self._take_queue(pop, taking, topic.name, pop.queue_id, NORMAL)
        else:
            self._take_topic(pop, taking, topic, first, NORMAL)
        if not retries_first and taking.count < pop.max_messages and not pop.order:
            self._take_retries(pop, taking, luck, first)
        return taking

    def _priority_percent(self, group: str) -> int:
        config = self._state.subscriptions.configured(group)
        return priority_factor({} if config is None else config.attributes)

    def _take_retries(self, pop: Pop, taking: _PopTaking, luck: int, first: int) -> None:
        """Take retries of one kind only, as clients expect. When there are two kinds, chance decides which is
        read first."""
        config = self._state.config
        kinds = [(retry_topic_v1(pop.topic, pop.group), RETRY_V1)]
        if config.enable_retry_topic_v2:
            kinds.insert(luck % 2, (retry_topic_v2(pop.topic, pop.group), RETRY_V2))
            if not config.retrieve_message_from_pop_retry_topic_v1:
                del kinds[1 - luck % 2]
        before = taking.count
        for name, flag in kinds:
            topic = self._state.topics.get(name)
            if topic is not None and taking.count == before:
                self._take_topic(pop, taking, topic, first, flag)

    def _take_topic(self, pop: Pop, taking: _PopTaking, topic: Topic, first: int, flag: str) -> None:
        """``first`` 0: the queue of the highest priority comes first; otherwise the order begins that much later."""
        queues = topic.read_queue_nums
        step = -1 if self._state.config.priority_order_asc else 1
        start = first + (queues - 1 if step < 0 else 0)
        for number in range(queues):
            self._take_queue(pop, taking, topic.name, (start + step * number) % queues, flag)

    def _take_queue(self, pop: Pop, taking: _PopTaking, topic: str, queue_id: int, flag: str) -> None:
        try:
            self._take_of_queue(pop, taking, topic, queue_id, flag)
        except NotAtHand:
            # As if there was nothing yet: the queue counts as grown when the messages are there.
            return
        except OSError as error:  # only this pop ends early; it keeps what it has taken
            taking.problem = taking.problem or error

    def _take_of_queue(self, pop: Pop, taking: _PopTaking, topic: str, queue_id: int, flag: str) -> None:
        state = self._state
        offset, is_reset = self._offsets.begin(pop.session, pop.group, topic, queue_id, pop.init_mode)
        if is_reset:
            self._order.clear(topic, pop.group, queue_id)
        if pop.order and self._order.is_blocked(topic, pop.group, queue_id, pop.attempt_id):
            return
        wanted_bytes = state.store_config.max_transfer_bytes_on_message_in_memory - taking.size_bytes
        if taking.count >= pop.max_messages or wanted_bytes <= 0 or taking.problem is not None:
            taking.rest += max(0, state.store.offsets.max_offset(topic, queue_id) - offset)
            return
        wanted_count = pop.max_messages - taking.count
        result = get_wanted(state.store, topic, queue_id, offset, wanted_count, wanted_bytes, pop.wanted)
        if result.status in _MOVED:
            offset = result.next_offset
            self._offsets.void(pop.group, topic, queue_id)
            state.offsets.commit(pop.group, topic, queue_id, offset)
            result = get_wanted(state.store, topic, queue_id, offset, wanted_count, wanted_bytes, pop.wanted)
        if result.status is GetStatus.FOUND:
            self._hand_out(pop, taking, topic, queue_id, offset, result, flag)
        elif result.status in _NOTHING_WANTED and result.next_offset > offset and pop.order:
            state.offsets.commit(pop.group, topic, queue_id, result.next_offset)
        elif result.status in _NOTHING_WANTED and result.next_offset > offset:
            taking.steps.append(self._offsets.step(pop.group, topic, queue_id, result.next_offset))
        taking.rest += max(0, result.max_offset - result.next_offset)

    def _hand_out(
        self,
        pop: Pop,
        taking: _PopTaking,
        topic: str,
        queue_id: int,
        start: int,
        result: GetResult,
        flag: str,
    ) -> None:
        state = self._state
        offsets = queue_offsets(result.buffers)
        committed, start = start, min(start, *offsets)  # a read within an inner batch returns all of it
        if pop.order:
            taking.order_counts += self._order.hand_out(
                topic,
                pop.group,
                queue_id,
                offsets,
                session=pop.session,
                attempt_id=pop.attempt_id,
                pop_time_ms=taking.pop_time_ms,
                invisible_time_ms=pop.invisible_time_ms,
            )
            state.offsets.commit(pop.group, topic, queue_id, committed)
        elif not self._put_check_point(pop, taking, topic, queue_id, start, offsets, result):
            return
        taking.start_offsets.append(f"{flag} {queue_id} {start}")
        taking.message_offsets.append(f"{flag} {queue_id} {','.join(map(str, offsets))}")
        if flag == NORMAL:
            taking.buffers += result.buffers
            taking.size_bytes += result.size_bytes
        else:
            receipt = Receipt(
                start,
                taking.pop_time_ms,
                pop.invisible_time_ms,
                taking.revive_queue,
                flag,
                state.config.broker_name,
                queue_id,
            )
            for record in _as_of_topic(pop.topic, receipt, offsets, result.buffers):
                taking.buffers.append(record)
                taking.size_bytes += len(record)
        taking.count += result.count
        traffic = state.stats.got(topic, pop.group, result.count, result.size_bytes, queue_id)
        if traffic is not None:
            traffic.popped += result.count
        state.slow_readers.served(topic, pop.group, queue_id, result.buffers)

    def _put_check_point(
        self,
        pop: Pop,
        taking: _PopTaking,
        topic: str,
        queue_id: int,
        start: int,
        offsets: list[int],
        result: GetResult,
    ) -> bool:
        """False if it cannot be written: the messages must not be handed out."""
        state = self._state
        key = CheckKey(topic, pop.group, queue_id, start, taking.pop_time_ms, state.config.broker_name)
        check_point = CheckPoint(key, pop.invisible_time_ms, [offset - start for offset in offsets])
        try:
            taking.end_offset = self._log.put_check_point(taking.revive_queue, check_point, pop.session)
            state.stats.was_checked(pop.topic, pop.group)
        except (Refusal, StoreReadOnly, NotNow, InvalidMessage) as error:
            taking.problem = error
            taking.rest += result.count
            return False
        taking.steps.append(self._offsets.step(pop.group, topic, queue_id, result.next_offset))
        return True

    # --- answering ---

    def _count(self, pop: Pop, code: int) -> int:
        """Count an answer; ms since the pop came."""
        took_ms = self._state.clock.monotonic_ms() - pop.began_ms
        rpc = self._state.stats.rpc
        rpc.record(RequestCode.POP_MESSAGE, code, took_ms, waited=pop.was_parked)
        return took_ms

    def _send_nothing(self, pop: Pop, taking: _PopTaking) -> None:
        self._count(pop, ResponseCode.POLLING_TIMEOUT)
        pop.session.send(_nothing(pop, taking))

    def _answer(self, pop: Pop, taking: _PopTaking) -> None:
        """Called when the check points are acked."""
        session, opaque = pop.session, pop.opaque
        self.given[session.id] = self.given.get(session.id, 0) + taking.size_bytes
        ext = taking.ext(pop)
        buffers = taking.buffers
        if pop.order:  # no check point to wait for
            self._count(pop, ResponseCode.SUCCESS)
            size_bytes = sum(map(len, buffers))
            session.send(
                encode_response_head(opaque, ResponseCode.SUCCESS, ext, size_bytes, "FOUND"), *buffers
            )
            return

        def answer(is_acked: bool) -> None:
            self._count(pop, ResponseCode.SUCCESS if is_acked else ResponseCode.SERVICE_NOT_AVAILABLE)
            if is_acked:
                head = encode_response_head(
                    opaque, ResponseCode.SUCCESS, ext, sum(map(len, buffers)), "FOUND"
                )
                session.send(head, *buffers)
            else:
                remark = "the store failed; the messages were not handed out"
                session.send(encode_response(opaque, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark))

        self._settle(taking, answer)

    def _settle(self, taking: _PopTaking, action: Callable[[bool], None] | None = None) -> None:
        """``action`` runs when the check points are acked; the steps take effect when they are on disk. Both
        happen in the order of the pops."""
        self._last_end = max(self._last_end, taking.end_offset)
        if action is not None:
            self._answers.when(self._last_end, action)
        steps, offsets = taking.steps, self._offsets
        if not steps:
            return

        def settle(is_durable: bool) -> None:
            for step in steps:
                offsets.settle(step, is_durable=is_durable)

        self._durably.when(self._last_end, settle)

    def _refuse(self, pop: Pop, problem: Exception) -> None:
        refusal = _refusal(problem)
        self._count(pop, refusal.code)
        pop.session.send(encode_response(pop.opaque, refusal.code, remark=refusal.remark))


def _nothing(pop: Pop, taking: _PopTaking) -> bytes:
    return encode_response(
        pop.opaque, ResponseCode.POLLING_TIMEOUT, taking.ext(pop), remark="NO_MESSAGE_IN_QUEUE"
    )


def _refusal(problem: Exception) -> Refusal:
    if isinstance(problem, Refusal):
        return problem
    if isinstance(problem, OSError):
        return Refusal(ResponseCode.SYSTEM_BUSY, f"the messages cannot be read now: {problem}")
    if isinstance(problem, TableFull):
        return Refusal(ResponseCode.SYSTEM_BUSY, f"no check point could be written: {problem}")
    return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"no check point could be written: {problem}")


def _as_of_topic(
    topic: str, receipt: Receipt, offsets: list[int], buffers: Iterable[memoryview]
) -> Iterable[bytes]:
    """Records of a retry topic, renamed to the topic that the client subscribes to, with the properties for the
    acknowledgement."""
    remaining = iter(offsets)
    for buffer in buffers:
        for begin, _ in spans(buffer):
            offset = next(remaining)
            given = find_property(peek_properties(buffer, begin)[1], POP_CK.encode())
            property_ = b"" if given else item(POP_CK, receipt._replace(offset=offset).encode()).encode()
            yield readdressed(buffer, begin, topic, property_)
