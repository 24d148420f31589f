"""Serving pulls (PullMessageProcessor).

A pull is validated once. Then it is served, or parked and served again when its queue grows. Records are sent as
memoryviews of the store's files; their content is read only for the properties that a filter needs.

Facts: docs/rocketmq/broker.md#pull.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.broker.config import BrokerConfig
from mqspark.broker.pull.elsewhere import ReadsElsewhere
from mqspark.broker.pull.held_pulls import HeldPulls
from mqspark.broker.pull.parked_pulls import ParkedPulls, Pull
from mqspark.broker.state.groups import TAG
from mqspark.broker.state.heldrequests import Wanted, get_selected
from mqspark.broker.state.state import BrokerState
from mqspark.broker.statictopic.logicreads import LogicRead, PullOutcome
from mqspark.broker.stats.rpctimes import Rpc
from mqspark.errors import InvalidFilter, InvalidMessage, NotNow
from mqspark.filter.sql import SQL92, SqlFilter, compile_sql
from mqspark.filter.tags import tag_codes
from mqspark.message import MASTER_ID, PERM_READ
from mqspark.protocol.bodies.client_bodies import ConsumeType
from mqspark.protocol.codes import FAQ, PullFlag, RequestCode, ResponseCode
from mqspark.protocol.command import ONEWAY_FLAG, Command, encode_response, encode_response_head
from mqspark.protocol.dispatch import Handler, Refusal
from mqspark.protocol.headers.client_headers import PullMessageRequestHeader
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work
from mqspark.record.recordlayout import record_position
from mqspark.store.messages.fetch import GetResult, GetStatus
from mqspark.store.queue.consumequeue import ENTRY_BYTES

_log = sparing(__name__)

"""Bits of a pull's sysFlag (PullSysFlag)."""

FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST, FORBIDDEN_SUBSCRIPTION = (
    1,
    2,
    3,
    4,
    5,
)

WOKEN_AT_ONCE = 64
"""Parked pulls that are served in the turn that wakes them; the rest are served between other turns."""
SERVED_AT_ONCE = 16
LEFT_AT_ONCE = 256
"""Parked pulls of one queue that leave it in one turn because it has grown."""
EXAMINED_AT_ONCE = 128
"""Parked pulls that are examined in one turn because of their time; more are examined between other turns."""

BULK_BYTES_PER_TURN = 8 * 1024 * 1024
"""Bytes of bulk pulls that one connection gets in one turn, so that the data waiting for its socket stays bounded
however many bulk pulls it has in flight."""


_CODES = {
    "FOUND": ResponseCode.SUCCESS,
    "NO_MATCHED_MESSAGE": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "MESSAGE_WAS_REMOVING": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "OFFSET_FOUND_NULL": ResponseCode.PULL_NOT_FOUND,
    "OFFSET_OVERFLOW_ONE": ResponseCode.PULL_NOT_FOUND,
    "OFFSET_OVERFLOW_BADLY": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_TOO_SMALL": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_RESET": ResponseCode.PULL_OFFSET_MOVED,
}
"""Store status → response code. The two statuses of an empty queue also depend on the offset."""


_PULL = int(RequestCode.PULL_MESSAGE)
FAR_BEHIND = 4_096
"""A group that is fewer messages behind the end of a queue counts as reading from memory; others are checked."""


def check_port(session: Session, command: Command) -> None:
    """Raises Refusal."""
    if session.fast:
        raise Refusal(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {command.code} not supported on the fast port",
        )


def check_given(given: Mapping[int, int], session: Session, config: BrokerConfig) -> None:
    """``given``: session id → bytes sent to it in this turn. Raises Refusal."""
    if given.get(session.id, 0) > config.pull_bytes_per_turn:
        raise Refusal(
            ResponseCode.SYSTEM_BUSY, "[OVERLOAD] this connection asks for more than it takes; retry later"
        )


def not_parsed(problem: object) -> Refusal:
    """The answer to a request whose filter expression is none."""
    return Refusal(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {problem}"
    )


def check_expression_type(config: BrokerConfig, kind: str | None) -> None:
    """Refuse types other than tags where they are not enabled. Raises Refusal."""
    if kind != SQL92:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
        )
    if not config.enable_property_filter:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind}:"
            " set enablePropertyFilter=true on the broker",
        )


def _forbidden(remark: str, kind: int) -> Refusal:
    return Refusal(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(kind)})


class PullRole(Protocol):
    """What the part of this broker in its set means for pulls."""

    @property
    def is_slave(self) -> bool: ...

    def has_master(self) -> bool:
        """Whether the master of a slave is there."""

    def why_unsure(self) -> str:
        """Why parked pulls are not answered now, or ''."""

    def is_acting(self) -> bool:
        """Whether a slave is the master of consumers."""


class PullProcessor:
    def __init__(self, state: BrokerState, role: PullRole) -> None:
        self._state = state
        self._elsewhere = ReadsElsewhere(state)
        self._role = role
        self._get = state.store.reads.get
        self._at_once = state.stats.rpc.row(Rpc(_PULL, int(ResponseCode.SUCCESS), waited=False))
        self.parked = ParkedPulls(
            state.clock,
            Limit(state.config, "max_parked_bytes"),
            Limit(state.config, "pull_thread_pool_queue_capacity"),
        )
        self.held = HeldPulls(state.clock)
        self._woken: deque[tuple[Pull, Callable[[Pull], None]]] = deque()
        """Pulls that are no longer parked and not served yet."""
        self._woken_now = 0
        self._grown: dict[tuple[str, int], tuple[int, int]] = {}
        """Queues with more pulls to wake than leave the parked ones at once: their max offsets, and how many of their
        pulls are still to be looked for."""
        self._is_serving = False
        self.given: dict[int, int] = {}
        """session id → bytes sent to it in this turn."""
        self.handlers: dict[int, Handler] = {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull,
        }

    # --- events ---

    def pull(self, session: Session, command: Command) -> None:
        state = self._state
        config = state.config
        check_port(session, command)
        if self._role.is_slave and not config.slave_read_enable and not self._role.is_acting():
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, this slave serves no pulls: set slaveReadEnable=true on it",
            )
        header = command.header(PullMessageRequestHeader)
        if command.flag & ONEWAY_FLAG:
            return
        pull = self._check(session, command, header)
        logic = pull.logic
        check_given(self.given, session, config)
        if logic is not None and not logic.is_local:
            self._elsewhere.pull(session, command, header, pull, logic)
            return
        if state.cold_reads.must_wait(pull.group):
            pull.grant = state.grant(session, command.code)
            if self._waits(pull):
                return
        reset = state.offsets.take_reset(pull.group, pull.topic, pull.queue_id)
        if reset is not None:  # the client's commit offset is from before the reset
            self._answer_reset(pull, reset)
            return
        if header.sys_flag & PullFlag.COMMIT and header.commit_offset >= 0:
            queue_id, commit_offset = pull.queue_id, header.commit_offset
            if logic is not None:
                queue_id, commit_offset = logic.committed(commit_offset)
            if commit_offset >= 0:
                state.offsets.admit(session, pull.group, pull.topic, queue_id)
                state.offsets.commit(pull.group, pull.topic, queue_id, commit_offset, session)
        suspend = header.sys_flag & PullFlag.SUSPEND != 0
        if not self._serve(pull, may_wait=suspend):
            if self.parked.count + len(self._woken) >= config.pull_thread_pool_queue_capacity:
                raise Refusal(
                    ResponseCode.SYSTEM_BUSY,
                    f"[OVERLOAD] {self.parked.count} pulls are parked already; retry later",
                )
            self.parked.admit(pull)
            pull.grant = state.grant(session, command.code)
            wait_ms = (
                header.suspend_timeout_millis
                if config.long_polling_enable
                else config.short_polling_time_mills
            )
            pull.began_ms = state.clock.monotonic_ms()
            pull.deadline_ms = pull.began_ms + max(0, wait_ms)
            self.parked.park(pull)

    def arrived(self, arrivals: Iterable[tuple[str, int, int]]) -> None:
        """Queues have grown: (topic, queue id, new max offset) each."""
        parked = self.parked
        if not parked.requests:
            return
        for topic, queue_id, max_offset in arrivals:
            for pull in self._leaving(topic, queue_id, max_offset, parked.waiting(topic, queue_id)):
                self._wake(pull, self._serve_woken)
        self._serve_rest()

    def _leaving(self, topic: str, queue_id: int, max_offset: int, waiting: int) -> list[Pull]:
        """The next pulls that a grown queue wakes, of so many; those that do not match may be parked again behind
        them."""
        due = self.parked.arrived(topic, queue_id, max_offset, min(LEFT_AT_ONCE, waiting))
        if len(due) == LEFT_AT_ONCE < waiting:
            self._grown[topic, queue_id] = max_offset, waiting - LEFT_AT_ONCE
        return due

    def answer_resets(self, group: str, topic: str) -> None:
        """The group's offsets were reset: answer its parked pulls at once."""
        self._wake_all(group, topic, self._answer_woken_reset)

    def remapped(self, topic: str) -> None:
        """The queues of a static topic have moved: its parked pulls ask again."""
        self._wake_all(None, topic, self._put_off)

    def topic_gone(self, topic: str) -> None:
        """The topic is deleted: its parked pulls are answered. A new topic of the name has other messages at their
        offsets."""
        self._wake_all(None, topic, self._answer_gone)

    def _answer_gone(self, pull: Pull) -> None:
        code = ResponseCode.TOPIC_NOT_EXIST
        self._answered(pull, code, self._state.clock.monotonic_ms())
        remark = f"topic[{pull.topic}] not exist, apply first please! {FAQ}"
        pull.session.send(encode_response(pull.opaque, code, remark=remark))

    def _answer_woken_reset(self, pull: Pull) -> None:
        reset = self._state.offsets.take_reset(pull.group, pull.topic, pull.queue_id)
        if reset is None:
            self.parked.park(pull)
        else:
            self._answer_reset(pull, reset)

    def _waits(self, pull: Pull) -> bool:
        """Hold a pull that would read cold data although its group has had its share. False if it would not. Raises
        Refusal for a push consumer, which waits by itself."""
        state = self._state
        if not state.store.reads.is_in_cold_area(pull.topic, pull.queue_id, pull.offset):
            return False
        group = state.clients.consumer(pull.group)
        is_push = group is not None and group.consume_type == ConsumeType.CONSUME_PASSIVELY
        if not is_push and self.held.hold(pull):
            return True
        raise Refusal(
            ResponseCode.SYSTEM_BUSY, "This consumer group is reading cold data. It has been flow control"
        )

    def _serve_held(self, pull: Pull) -> None:
        reset = self._state.offsets.take_reset(pull.group, pull.topic, pull.queue_id)
        if reset is not None:
            self._answer_reset(pull, reset)
        else:
            pull.max_messages = 1
            self._serve_parked(pull, may_wait=False)

    def expire(self) -> None:
        self._elsewhere.expire()
        for pull in self.held.due():
            self._wake(pull, self._serve_held)
        for pull in self.parked.expired(EXAMINED_AT_ONCE):
            self._wake(pull, self._serve_expired)
        self._serve_rest()

    # --- waking many pulls ---

    def _serve_woken(self, pull: Pull) -> None:
        if not self._serve_parked(pull, may_wait=True, woken=True):
            self.parked.park(pull)

    def _serve_expired(self, pull: Pull) -> None:
        self._serve_parked(pull, may_wait=False)

    def _wake(self, pull: Pull, serve: Callable[[Pull], None]) -> None:
        """Serve at once, unless the pull is one of many or has to read records."""
        if self._woken_now < WOKEN_AT_ONCE and not isinstance(pull.wanted, SqlFilter):
            self._woken_now += 1
            if pull.session.open:
                serve(pull)
        else:
            self._woken.append((pull, serve))

    def _wake_all(self, group: str | None, topic: str, serve: Callable[[Pull], None]) -> None:
        """Wake the group's pulls of any queue of the topic; None: those of all groups. There may be very many."""
        self._state.long_work.begin(None, self._waking_all(self.parked.leaving(group, topic), serve))

    def _waking_all(self, leaving: Iterator[list[Pull]], serve: Callable[[Pull], None]) -> Work[None]:
        for pulls in leaving:
            self._woken.extend((pull, serve) for pull in pulls)
            self._serve_rest()
            yield

    def _serve_rest(self) -> None:
        self._woken_now = 0
        if (self._woken or self._grown) and not self._is_serving:
            self._is_serving = True
            self._state.long_work.begin(None, self._serve_in_slices())

    def _serve_in_slices(self) -> Work[None]:
        served = 0
        while self._woken or self._more_woken() or self._more_expired():
            pull, serve = self._woken.popleft()
            if pull.session.open:
                try:
                    serve(pull)
                except Exception:
                    _log.exception("a pull of %s could not be served", pull.session.peer)
            served += 1  # one of a closed connection, too: there may be very many
            is_more = self._woken or self._grown
            if is_more and (isinstance(pull.wanted, SqlFilter) or served % SERVED_AT_ONCE == 0):
                yield
        self._is_serving = False

    def _more_woken(self) -> bool:
        while self._grown:
            queue, rest = self._grown.popitem()
            if due := self._leaving(*queue, *rest):
                self._woken.extend((pull, self._serve_woken) for pull in due)
                return True
        return False

    def _more_expired(self) -> bool:
        due = self.parked.expired(EXAMINED_AT_ONCE)
        self._woken.extend((pull, self._serve_expired) for pull in due)
        return bool(due)

    def end_turn(self) -> None:
        self.given.clear()

    # --- checks, in RocketMQ's order ---

    def _check(self, session: Session, command: Command, header: PullMessageRequestHeader) -> Pull:
        state = self._state
        config = state.config
        if not config.broker_permission & PERM_READ:
            raise _forbidden(
                f"the broker[{config.broker_ip1}] pulling message is forbidden", FORBIDDEN_BROKER
            )
        if command.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise _forbidden(
                f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden", FORBIDDEN_BROKER
            )
        group_name = header.consumer_group
        group = state.subscriptions.find(group_name, session)
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group_name}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise _forbidden(f"subscription group no permission, {group_name}", FORBIDDEN_GROUP)
        topic = state.topics.get(header.topic)
        if topic is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {FAQ}"
            )
        if not topic.readable:
            raise _forbidden(f"the topic[{topic.name}] pulling message is forbidden", FORBIDDEN_TOPIC)
        logic: LogicRead | None = None
        if (static := state.mappings.find(topic.name, header.lo)) is not None:
            logic = LogicRead(static, header.queue_id, header.queue_offset, header.commit_offset)
            header.queue_id, header.queue_offset = logic.queue_id, logic.offset
            header.max_msg_nums = logic.limited(header.max_msg_nums)
        is_local = logic is None or logic.is_local
        if is_local and not 0 <= header.queue_id < topic.read_queue_nums:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{topic.name}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{session.peer}]",
            )
        return Pull(
            session,
            command.opaque,
            group.group_name,  # shared, not the request's copy: a pull may wait long
            topic.name,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            self._expression(header)
            if header.sys_flag & PullFlag.SUBSCRIPTION
            else self._subscription(header),
            topic.sys_flag,
            group.group_sys_flag,
            header.mqspark_bulk is True,
            logic,
            command.code,
        )

    def _expression(self, header: PullMessageRequestHeader) -> Wanted:
        """Parse the filter expression of the request."""
        kind = header.expression_type
        wanted: Wanted
        try:
            if not kind or kind == TAG:
                return tag_codes[header.subscription]
            wanted = compile_sql(header.subscription) if kind == SQL92 else None
        except (InvalidMessage, InvalidFilter) as error:
            raise not_parsed(error) from None
        check_expression_type(self._state.config, kind)
        return wanted

    def _subscription(self, header: PullMessageRequestHeader) -> Wanted:
        """The subscription from the group's heartbeats."""
        state = self._state
        group = state.clients.consumer(header.consumer_group)
        if group is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        group_config = state.subscriptions.configured(group.name)
        if group.broadcasting and group_config is not None and not group_config.consume_broadcast_enable:
            raise _forbidden(
                f"the consumer group[{group.name}] can not consume by broadcast way", FORBIDDEN_BROADCAST
            )
        if state.subscriptions.is_read_forbidden(group.name, header.topic):
            raise _forbidden(
                f"the consumer group[{group.name}] is forbidden for topic[{header.topic}]",
                FORBIDDEN_SUBSCRIPTION,
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.version < header.sub_version:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if subscription.is_tag:
            return subscription.wanted()
        try:
            wanted = subscription.wanted()
        except InvalidFilter as error:
            raise Refusal(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"the broker's consumer filter data is not exist! Your expression may be wrong: {error}",
            ) from None
        check_expression_type(state.config, subscription.data.expression_type)
        return wanted

    # --- serving ---

    def _serve_parked(self, pull: Pull, *, may_wait: bool, woken: bool = False) -> bool:
        """Like ``_serve``, but an error of the disk fails only this pull, and there is no caller to raise to."""
        try:
            if pull.session.room <= 0:
                self._put_off(pull)
                return True
            if pull.is_refused():
                return True
            if reason := self._role.why_unsure():
                raise NotNow(reason)
            return self._serve(pull, may_wait=may_wait, woken=woken)
        except (OSError, NotNow) as error:
            remark = f"the messages cannot be read now: {error}"
            pull.session.send(encode_response(pull.opaque, ResponseCode.SYSTEM_BUSY, remark=remark))
            return True

    def _serve(self, pull: Pull, *, may_wait: bool, woken: bool = False) -> bool:
        """Answer the pull. False if it found nothing and may wait; then nothing was answered."""
        state = self._state
        began_ms = state.clock.monotonic_ms()
        limits = state.store_config
        wanted = pull.wanted
        max_messages = min(pull.max_messages, limits.max_transfer_count_on_message_in_memory)
        max_bytes = limits.max_transfer_bytes_on_message_in_memory
        max_examined = max(max_messages, limits.max_filter_message_size // ENTRY_BYTES)
        bulk = pull.bulk and self.given.get(pull.session.id, 0) < BULK_BYTES_PER_TURN
        if bulk:
            max_messages = max(max_messages, min(pull.max_messages, limits.max_transfer_count_on_bulk_read))
            max_bytes = max(max_bytes, limits.max_transfer_bytes_on_bulk_read)
        if isinstance(wanted, SqlFilter):
            result = get_selected(
                state.store,
                pull.topic,
                pull.queue_id,
                pull.offset,
                max_messages,
                max_bytes,
                wanted,
                max_examined,
            )
        else:
            result = self._get(
                pull.topic, pull.queue_id, pull.offset, max_messages, max_bytes, wanted, bulk=bulk
            )
        status = result.status.name
        session = pull.session
        if result.cold_bytes:
            state.cold_reads.served(pull.group, result.cold_bytes)
        if result.status is GetStatus.FOUND:
            size_bytes = result.size_bytes
            head = self._head(pull, ResponseCode.SUCCESS, status, result.next_offset, result, size_bytes)
            session.send_sized(head, result.buffers, size_bytes)
            self.given[session.id] = self.given.get(session.id, 0) + size_bytes
            took_ms = state.clock.monotonic_ms() - began_ms
            state.stats.got(pull.topic, pull.group, result.count, size_bytes, pull.queue_id, took_ms)
            if took_ms == 0 and pull.began_ms < 0 and pull.code == _PULL:
                self._at_once.quick += 1
            else:
                self._answered(pull, ResponseCode.SUCCESS, began_ms)
            if result.max_offset - result.next_offset > FAR_BEHIND:
                self._count_disk_read(pull, result)
            state.offsets.pulled(session, pull.group, pull.topic, pull.queue_id, result.next_offset)
            state.slow_readers.served(pull.topic, pull.group, pull.queue_id, result.buffers)
            return True
        code = _CODES.get(status)
        if code is None:  # NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE
            status = "NO_MESSAGE_IN_QUEUE"  # a queue without any messages counts as empty
            code = ResponseCode.PULL_OFFSET_MOVED if pull.offset else ResponseCode.PULL_NOT_FOUND
        next_offset = result.next_offset
        if self._role.is_slave:
            if result.status is GetStatus.OFFSET_OVERFLOW_BADLY:
                next_offset = result.max_offset  # a slave is behind, its queue is not young
            code, next_offset = self._on_a_slave(pull, code, next_offset, self._role.has_master())
        if pull.logic is not None and pull.logic.is_read(pull.offset, result.max_offset):
            code = ResponseCode.PULL_RETRY_IMMEDIATELY  # goes on with the next part of the logic queue
        if may_wait and code is ResponseCode.PULL_NOT_FOUND:
            return False
        if woken and status == "NO_MATCHED_MESSAGE" and next_offset >= result.max_offset:
            # The messages do not match. Skip them, and do not make the client ask again.
            pull.offset = next_offset
            return False
        if code is ResponseCode.PULL_NOT_FOUND and pull.offset != pull.first_offset:
            code, status = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
        state.stats.pulls_missed += 1
        self._answered(pull, code, began_ms)
        session.send(self._head(pull, code, status, next_offset, result, 0))
        return True

    def _answered(self, pull: Pull, code: int, began_ms: int) -> None:
        """Count the answer. A pull that was parked is as old as its wait."""
        waited = pull.began_ms >= 0
        took_ms = self._state.clock.monotonic_ms() - (pull.began_ms if waited else began_ms)
        self._state.stats.rpc.record(pull.code, code, took_ms, waited=waited)

    def _count_disk_read(self, pull: Pull, result: GetResult) -> None:
        if self._is_on_disk(result):
            self._state.stats.read_from_disk(pull.topic, pull.group, result.count, result.size_bytes)

    def _is_on_disk(self, result: GetResult) -> bool:
        """Whether the messages are probably no longer in memory."""
        last = result.buffers[-1]
        return not self._state.memory.has(record_position(last) + len(last))

    def _on_a_slave(
        self, pull: Pull, code: ResponseCode, next_offset: int, has_master: bool
    ) -> tuple[ResponseCode, int]:
        """Code and next offset when nothing was found. The master may have more than its slave, so it is asked while
        it is there. (RocketMQ's slave sends its clients there even when it is gone, so they ask without a pause.)"""
        if code is ResponseCode.PULL_OFFSET_MOVED and not self._state.config.offset_check_in_slave:
            code, next_offset = ResponseCode.PULL_NOT_FOUND, pull.offset
        return ResponseCode.PULL_RETRY_IMMEDIATELY if has_master else code, next_offset

    def _suggested(self, pull: Pull, result: GetResult) -> int:
        """The id of the broker to pull from next: a slave while this one reads what is probably not in memory."""
        state = self._state
        if not state.config.slave_read_enable:
            return MASTER_ID
        group = state.subscriptions.configured(pull.group)
        if group is None:
            return MASTER_ID
        if result.buffers and self._is_on_disk(result):
            return group.which_broker_when_consume_slowly
        return group.broker_id

    def _put_off(self, pull: Pull) -> None:
        """The client has not read its earlier answers. It asks again when it has."""
        self._send_to(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset, "NO_MATCHED_MESSAGE")

    def _answer_reset(self, pull: Pull, offset: int) -> None:
        self._send_to(pull, ResponseCode.PULL_OFFSET_MOVED, offset, "OFFSET_RESET")

    def _send_to(self, pull: Pull, code: int, offset: int, status: str) -> None:
        """Send the client to an offset of its queue."""
        store = self._state.store
        min_offset = max(0, store.offsets.min_offset(pull.topic, pull.queue_id))
        max_offset = store.offsets.max_offset(pull.topic, pull.queue_id)
        delta = None
        if pull.logic is not None:
            same = pull.logic.same(PullOutcome(code, offset, min_offset, max_offset))
            _, offset, min_offset, max_offset, delta = same
        ext = self._ext(pull, offset, min_offset, max_offset, delta)
        pull.session.send(encode_response_head(pull.opaque, code, ext, 0, status))

    def _head(
        self, pull: Pull, code: int, status: str, next_offset: int, result: GetResult, size_bytes: int
    ) -> bytes:
        min_offset, max_offset = max(0, result.min_offset), result.max_offset
        remark: str | None = status
        delta = None
        if pull.logic is not None:
            found = PullOutcome(code, next_offset, min_offset, max_offset)
            code, next_offset, min_offset, max_offset, delta = pull.logic.shown(pull.offset, found)
            remark = status if code == ResponseCode.SUCCESS else None
        ext = self._ext(pull, next_offset, min_offset, max_offset, delta)
        if self._state.config.slave_read_enable:
            ext["suggestWhichBrokerId"] = str(self._suggested(pull, result))
        return encode_response_head(pull.opaque, code, ext, size_bytes, remark)

    def _ext(
        self, pull: Pull, next_offset: int, min_offset: int, max_offset: int, delta: int | None
    ) -> dict[str, str]:
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(min_offset),
            "maxOffset": str(max_offset),
            "topicSysFlag": str(pull.topic_sys_flag),
            "groupSysFlag": str(pull.group_sys_flag),
        }
        if delta is not None:
            ext["offsetDelta"] = str(delta)
        return ext
