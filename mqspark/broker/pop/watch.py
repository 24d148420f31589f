"""Requests that look at POP's messages without taking them: peek, notification, polling info
(PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mqspark.broker.pop.checks import check_group, check_readable, check_time, check_topic
from mqspark.broker.pop.parked_pops import ANY_QUEUE, Waiter
from mqspark.broker.pop.poporder import PopOrder
from mqspark.broker.pop.popprocessor import MAX_POP_MESSAGES, PopProcessor
from mqspark.broker.pop.start_offsets import PopOffsets
from mqspark.broker.pop.waking import WakingPops
from mqspark.broker.state.state import BrokerState
from mqspark.errors import TableFull
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response, encode_response_head
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers.client_headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageResponseHeader,
)
from mqspark.protocol.receipts import retry_topic_v1, retry_topic_v2
from mqspark.protocol.session import Session
from mqspark.store.messages.fetch import GetStatus

SEEN_AT_ONCE = 32
"""Queues that are looked at for parked notifications in one slice, or those of one notification."""
_ANSWER_STEPS = 4
"""Queues that are looked at in the time that an answer takes."""


class _Notification(Waiter):
    """A request that is answered when there is something to pop."""

    __slots__ = ("order",)

    def __init__(
        self, session: Session, command: Command, header: NotificationRequestHeader, deadline_ms: int
    ) -> None:
        super().__init__(
            session,
            command.opaque,
            header.topic,
            header.consumer_group,
            header.queue_id,
            deadline_ms,
            attempt_id=header.attempt_id,
        )
        self.order = header.order


class LiteNotifications(Protocol):
    """Notifications of lite consumers, which are kept elsewhere."""

    def notify(
        self, session: Session, command: Command, header: NotificationRequestHeader, wait_ms: int
    ) -> bytes | None: ...


class PopWatchProcessor(WakingPops[_Notification]):
    def __init__(self, state: BrokerState, pops: PopProcessor, offsets: PopOffsets, order: PopOrder) -> None:
        super().__init__(state, "parkedNotifications", RequestCode.NOTIFICATION, SEEN_AT_ONCE, SEEN_AT_ONCE)
        self.lite: LiteNotifications | None = None
        """Takes the notifications of lite consumers."""
        self._order = order
        self._pops = pops
        self._offsets = offsets
        self.handlers: dict[int, Handler] = {
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    # --- peek ---

    def topic_gone(self, refusal: Refusal, topic: str) -> None:
        """The topic is deleted: answer its parked notifications."""
        refused = self.parked.refused(topic, lambda waiter: _refuse(waiter, refusal))
        self._state.long_work.begin(None, refused)

    def peek(self, session: Session, command: Command) -> bytes | None:
        state = self._state
        header = command.header(PeekMessageRequestHeader)
        check_readable(state, session, command, "peeking message")
        check_topic(state, session, header.topic, header.queue_id)
        check_group(state, session, header.consumer_group)
        if not 0 < header.max_msg_nums <= MAX_POP_MESSAGES:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums={header.max_msg_nums} is not between 1 and {MAX_POP_MESSAGES}",
            )
        buffers: list[memoryview] = []
        count = size_bytes = rest = 0
        max_bytes = state.store_config.max_transfer_bytes_on_message_in_memory
        luck = state.random.randrange(100)
        for topic, queue_id in self._queues(header.topic, header.consumer_group, header.queue_id, luck):
            offset = self._offsets.peek(header.consumer_group, topic, queue_id)
            rest += max(0, state.store.offsets.max_offset(topic, queue_id) - offset)
            if count >= header.max_msg_nums or size_bytes >= max_bytes:
                continue
            wanted = header.max_msg_nums - count
            result = state.store.reads.get(topic, queue_id, offset, wanted, max_bytes - size_bytes)
            if result.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY):
                result = state.store.reads.get(
                    topic, queue_id, result.next_offset, wanted, max_bytes - size_bytes
                )
            buffers += result.buffers
            count += result.count
            size_bytes += result.size_bytes
        answer = PopMessageResponseHeader(rest_num=rest)
        if not buffers:
            return encode_response(
                command.opaque, ResponseCode.PULL_NOT_FOUND, answer, remark="NO_MESSAGE_IN_QUEUE"
            )
        if not command.is_oneway:
            head = encode_response_head(command.opaque, ResponseCode.SUCCESS, answer, size_bytes, "FOUND")
            session.send(head, *buffers)
            state.stats.got(header.topic, header.consumer_group, count, size_bytes)
        return None

    # --- notification ---

    def notify(self, session: Session, command: Command) -> bytes | None:
        state = self._state
        header = command.header(NotificationRequestHeader)
        wait_ms = check_time(state, "notification", header.born_time, header.poll_time)
        check_readable(state, session, command, "peeking message")
        check_topic(state, session, header.topic, header.queue_id)
        check_group(state, session, header.consumer_group)
        if header.is_lite_consumer and self.lite is not None:
            return self.lite.notify(session, command, header, wait_ms)
        waiter = _Notification(session, command, header, state.clock.monotonic_ms() + wait_ms)
        has_message, _ = self._look(waiter)
        if has_message or wait_ms <= 0 or command.is_oneway:
            return ok(command, NotificationResponseHeader(has_msg=has_message))
        remark = None
        try:
            if self.offer(waiter):
                return None
        except TableFull as error:
            remark = str(error)
        full = NotificationResponseHeader(has_msg=False, polling_full=True)
        return ok(command, full, remark=remark)

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Notify one waiter for any queue and one for this queue (ANY_QUEUE: one for each), if messages are still
        there."""
        if (topic, group) in self.parked:
            self._grown[topic, group, queue_id] = None
            self._serve_parked()

    def _serve_expired(self, waiter: _Notification) -> int:
        if waiter.is_refused():
            return 1
        has_message, seen = self._look(waiter)
        _answer(waiter, has_message=has_message)
        return seen + _ANSWER_STEPS

    def _serve_grown(self, topic: str, group: str, queue_id: int) -> Iterator[int]:
        """Each may look at all queues of its topic."""
        for waiting_for in self._waiting_for(topic, group, queue_id):
            while (waiter := self.parked.take(topic, group, waiting_for)) is not None:
                if not waiter.is_refused():
                    break
            if waiter is None:
                continue
            has_message, seen = self._look(waiter)
            if has_message:
                _answer(waiter, has_message=True)
                seen += _ANSWER_STEPS
            else:
                self.parked.park(waiter, first=True)
            yield seen

    def _look(self, waiter: _Notification) -> tuple[bool, int]:
        """Whether there is a message for it, and the number of queues that were looked at."""
        store, order, group = self._state.store, self._order, waiter.group
        seen = 0
        for topic, queue_id in self._queues(waiter.topic, group, waiter.queue_id, 0):
            seen += 1
            if store.offsets.max_offset(topic, queue_id) > self._offsets.peek(
                group, topic, queue_id
            ) and not (waiter.order and order.is_blocked(topic, group, queue_id, waiter.attempt_id)):
                return True, seen
        return False, seen

    # --- polling info ---

    def polling_info(self, session: Session, command: Command) -> bytes:
        """The number of pops parked for exactly this topic, group and queue id."""
        state = self._state
        header = command.header(PollingInfoRequestHeader)
        check_readable(state, session, command, "peeking message")
        check_topic(state, session, header.topic, header.queue_id)
        check_group(state, session, header.consumer_group)
        waiting = self._pops.parked.waiting(header.topic, header.consumer_group, header.queue_id)
        return ok(command, PollingInfoResponseHeader(polling_num=waiting))

    # --- inside ---

    def _queues(self, name: str, group: str, queue_id: int, luck: int) -> Iterator[tuple[str, int]]:
        """The queues that a pop would read; retries first in one of five cases."""
        config = self._state.config
        retries = [retry_topic_v1(name, group)]
        if config.enable_retry_topic_v2:
            v2 = retry_topic_v2(name, group)
            retries = [v2, *retries] if config.retrieve_message_from_pop_retry_topic_v1 else [v2]
        topics = [name, *retries] if luck % 5 else [*retries, name]
        for topic_name in topics:
            topic = self._state.topics.get(topic_name)
            if topic is None:
                continue
            if topic_name == name and queue_id != ANY_QUEUE:
                yield name, queue_id
                continue
            queues = topic.read_queue_nums
            for number in range(queues):
                yield topic_name, (luck + number) % queues


def _refuse(waiter: _Notification, refusal: Refusal) -> None:
    waiter.session.send(encode_response(waiter.opaque, refusal.code, remark=refusal.remark))


def _answer(waiter: _Notification, *, has_message: bool) -> None:
    header = NotificationResponseHeader(has_msg=has_message)
    waiter.session.send(encode_response(waiter.opaque, ResponseCode.SUCCESS, header))
