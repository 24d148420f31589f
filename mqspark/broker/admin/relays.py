"""Requests of tools that the broker relays to live consumers (Broker2Client, AdminBrokerProcessor).

307  running info                   → 307 to one client; its answer is returned unchanged
309  consume a message directly     → 309 to one client, with the message from the log
222  reset offsets                  → stored here, or 220 to every client (useServerSideResetOffset)
223  progress of a group's clients  → 221 to all of them; the answers are merged
308  offsets of other groups, to correct a group's own; no client is asked
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mqspark.broker.admin.inspection import QUEUES_AT_ONCE
from mqspark.broker.state.calls import CallFailed, Calls
from mqspark.broker.state.groups import GroupMember
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.consumer_offsets import is_brokers_own
from mqspark.errors import InvalidMessage, MQError
from mqspark.message import MessageQueue, decode_offset_id
from mqspark.protocol.binding import BINDING
from mqspark.protocol.bodies.admin_bodies import (
    GetConsumerStatusBody,
    QueryCorrectionOffsetBody,
    QueueOffsetForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from mqspark.protocol.bodies.body import decode_body, encode_in_slices, queue_key
from mqspark.protocol.codes import Language, RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request_head, encode_response
from mqspark.protocol.dispatch import Handler, Refusal, answer_later, ok_in_slices
from mqspark.protocol.headers.client_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.protocol.signature import ACCESS_KEY, ON_BEHALF_OF, SECURITY_TOKEN, SIGNATURE
from mqspark.protocol.slices import ESSENTIAL, Slices, Work

_CALL_TIMEOUT_MS = 10_000
_STATUS_TIMEOUT_MS = 5_000
_RUNNING_INFO_VERSION = 62
"""V3_1_8_SNAPSHOT: older clients do not know 307 and 309 (MQVersion)."""
_RESET_VERSION = 28
"""V3_0_7_SNAPSHOT: older clients do not know 220 and 221."""
_PERSONAL = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, BINDING, ON_BEHALF_OF})
"""Fields by which a requester proves who it is, or says for whom it asks: a client must not get them."""
RESET_AT_ONCE = 64
SOUGHT_AT_ONCE = 8
"""Queues in which an offset is looked for by time in one slice."""
MEMBERS_AT_ONCE = 64
_NO_CORRECTION = (1 << 63) - 1
"""The group is already behind all others."""


class RelayProcessor:
    """``answer_resets`` is called with (group, topic) when parked pulls of the pair must return the reset offset."""

    def __init__(self, state: BrokerState, calls: Calls, answer_resets: Callable[[str, str], None]) -> None:
        self._state = state
        self._calls = calls
        self._answer_resets = answer_resets
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction_offset,
        }

    # --- to one client ---

    def running_info(self, session: Session, command: Command) -> None:
        header = command.header(GetConsumerRunningInfoRequestHeader)
        member = self._member(header.consumer_group, header.client_id)
        self._relay(session, command, member, header.consumer_group, command.ext, command.body)

    def consume_directly(self, session: Session, command: Command) -> None:
        header = command.header(ConsumeMessageDirectlyResultRequestHeader)
        member = self._member(header.consumer_group, header.client_id or "")
        state = self._state
        try:
            _, _, physical_offset = decode_offset_id(header.msg_id or "")
        except InvalidMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"msgId is not a broker's message id: {error}") from None
        record = state.store.reads.record_at(physical_offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message with id {header.msg_id} in this broker")
        ext = {**command.ext, "brokerName": state.config.broker_name}
        topic = state.topics.get(header.topic) if header.topic else None
        if topic is not None:
            ext["topicSysFlag"] = str(topic.sys_flag)
        group = state.subscriptions.configured(header.consumer_group)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        self._relay(session, command, member, header.consumer_group, ext, record)

    def _member(self, group_name: str, client_id: str) -> GroupMember:
        group = self._state.clients.consumer(group_name)
        member = None if group is None else group.members.get(client_id)
        if member is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online")
        _require_version(member, _RUNNING_INFO_VERSION)
        return member

    def _relay(
        self,
        session: Session,
        command: Command,
        member: GroupMember,
        group: str,
        ext: Mapping[str, str],
        body: bytes | memoryview,
    ) -> None:
        """Send the client the same request and forward its answer to the requester."""
        opaque, is_oneway = command.opaque, command.is_oneway

        def done(answer: Command | CallFailed) -> None:
            if is_oneway:
                return
            if isinstance(answer, Command):
                try:
                    frame = encode_response(
                        opaque, answer.code, answer.ext, bytes(answer.body), answer.remark
                    )
                except MQError as error:
                    remark = f"consumer <{group}> <{member.client_id}> sent a malformed answer: {error}"
                    frame = encode_response(opaque, ResponseCode.SYSTEM_ERROR, remark=remark)
            elif answer is CallFailed.TIMEOUT:
                remark = f"consumer <{group}> <{member.client_id}> Timeout: {_CALL_TIMEOUT_MS} ms"
                frame = encode_response(opaque, ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
            else:
                remark = f"invoke consumer <{group}> <{member.client_id}> Exception: {answer.value}"
                frame = encode_response(opaque, ResponseCode.SYSTEM_ERROR, remark=remark)
            session.send(frame)

        ext = {name: value for name, value in ext.items() if name not in _PERSONAL}
        self._calls.ask(member.session, command.code, ext, body, _CALL_TIMEOUT_MS, done, session)

    # --- to all clients of a group ---

    def consumer_status(self, session: Session, command: Command) -> Slices:
        header = command.header(GetConsumerStatusRequestHeader)
        group = self._state.clients.consumer(header.group)
        if group is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        members = list(group.members.values())
        for member in members:
            _require_version(member, _RESET_VERSION)
        if header.client_addr:
            members = [member for member in members if member.client_id == header.client_addr]
        body = GetConsumerStatusBody()
        missing = len(members)

        def finish() -> None:
            if not command.is_oneway:
                work = answer_later(session, command, ok_in_slices(command, body))
                self._state.long_work.begin(session, work)

        def done(client_id: str, answer: Command | CallFailed) -> None:
            nonlocal missing
            missing -= 1
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS and answer.body:
                table = _message_queue_table(answer)
                if table is not None:
                    body.consumer_table[client_id] = table
            if not missing:
                finish()

        if not members:
            finish()
        request = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        for number, member in enumerate(members, 1):
            self._calls.ask(
                member.session,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                request,
                b"",
                _STATUS_TIMEOUT_MS,
                lambda answer, client_id=member.client_id: done(client_id, answer),  # type: ignore[misc]
                session,
            )
            if number % MEMBERS_AT_ONCE == 0:
                yield
        return None

    def reset_offset(self, session: Session, command: Command) -> Slices:
        header = command.header(ResetOffsetRequestHeader)
        state = self._state
        topic = state.topics.get(header.topic)
        if topic is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if header.group not in state.subscriptions:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
        if is_brokers_own(topic.name, header.group):
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"only the broker sets the offsets of {header.group} in {topic.name}",
            )
        if (static := state.mappings.find(topic.name, header.lo)) is not None:
            if static.has_moved and (header.timestamp >= 0 or header.queue_id >= 0):
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"the queues of static topic {topic.name} have moved: a group can be reset to their ends only,"
                    " or by committing offsets of its logic queues",
                )
            if header.queue_id >= 0:
                header.queue_id = static.leading(header.queue_id).leader.queue_id
        if header.queue_id >= topic.read_queue_nums:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"topic {topic.name} has no queue {header.queue_id}"
            )
        queue_ids = range(topic.read_queue_nums) if header.queue_id < 0 else [header.queue_id]
        targets, at_once = {}, QUEUES_AT_ONCE if header.timestamp < 0 else SOUGHT_AT_ONCE
        for queue_id in queue_ids:
            targets[queue_id] = self._target(header, queue_id)
            if queue_id % at_once == at_once - 1:
                yield
        if state.config.use_server_side_reset_offset:
            for queue_id, offset in targets.items():
                state.offsets.reset(session, header.group, topic.name, queue_id, offset)
                if queue_id % RESET_AT_ONCE == RESET_AT_ONCE - 1:
                    yield ESSENTIAL
            self._answer_resets(header.group, topic.name)
        else:
            targets = yield from self._push_reset(header, targets, is_c=command.language == Language.CPP)
        body = ResetOffsetBody(offset_table=(yield from self._table(topic.name, targets)))
        return (yield from ok_in_slices(command, body))

    def _target(self, header: ResetOffsetRequestHeader, queue_id: int) -> int:
        store = self._state.store
        low, high = store.offsets.bounds(header.topic, queue_id)
        if header.queue_id >= 0 and header.offset is not None and header.offset != -1:
            if not low <= header.offset <= high + 1:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
                )
            return header.offset
        if header.timestamp < 0:
            return high
        return store.offsets.offset_by_timestamp(header.topic, queue_id, header.timestamp)

    def _push_reset(
        self, header: ResetOffsetRequestHeader, targets: Mapping[int, int], *, is_c: bool
    ) -> Work[dict[int, int]]:
        """Tell the clients (220); without ``isForce`` no queue goes forward."""
        state = self._state
        offsets = {}
        for queue_id, target in targets.items():
            committed = state.offsets.query(header.group, header.topic, queue_id)
            if committed < 0:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
            offsets[queue_id] = max(0, target if header.is_force else min(target, committed))
            if queue_id % RESET_AT_ONCE == RESET_AT_ONCE - 1:
                yield
        group = state.clients.consumer(header.group)
        if group is None:
            raise Refusal(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic}"
                f" Timestamp: {header.timestamp}",
            )
        members = list(group.members.values())
        for member in members:
            _require_version(member, _RESET_VERSION)
        request = ResetOffsetRequestHeader(topic=header.topic, group=header.group, timestamp=header.timestamp)
        table = ResetOffsetBody(offset_table=(yield from self._table(header.topic, offsets)))
        table_for_c = yield from self._table_for_c(header.topic, offsets)
        encoded: dict[bool, bytes] = {}
        for number, member in enumerate(members):
            # RocketMQ goes by the tool's language; here the consumer's decides, because the consumer must parse
            # the body.
            for_c = is_c or member.language == Language.CPP
            if for_c not in encoded:
                encoded[for_c] = b"".join((yield from encode_in_slices(table_for_c if for_c else table)))
            head = encode_request_head(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                member.session.next_opaque(),
                request,
                len(encoded[for_c]),
                oneway=True,
            )
            member.session.send(head, encoded[for_c])  # all clients share one body
            if number % MEMBERS_AT_ONCE == MEMBERS_AT_ONCE - 1:
                yield ESSENTIAL
        return offsets

    def _table(self, topic: str, offsets: Mapping[int, int]) -> Work[dict[str, int]]:
        name = self._state.config.broker_name
        table: dict[str, int] = {}
        for number, (queue_id, offset) in enumerate(offsets.items(), 1):
            table[queue_key(MessageQueue(topic, name, queue_id))] = offset
            if number % RESET_AT_ONCE == 0:
                yield
        return table

    def _table_for_c(self, topic: str, offsets: Mapping[int, int]) -> Work[ResetOffsetBodyForC]:
        name = self._state.config.broker_name
        table = ResetOffsetBodyForC()
        for number, (queue_id, offset) in enumerate(offsets.items(), 1):
            queue = QueueOffsetForC(topic=topic, broker_name=name, queue_id=queue_id, offset=offset)
            table.offset_table.append(queue)
            if number % RESET_AT_ONCE == 0:
                yield
        return table

    # --- without asking a client ---

    def correction_offset(self, session: Session, command: Command) -> Slices:
        """For each queue, the smallest offset that any group has committed. RocketMQ permanently deletes the
        offsets of the groups in ``filterGroups``; here they are only excluded from the minimum."""
        header = command.header(QueryCorrectionOffsetHeader)
        state = self._state
        left_out = set((header.filter_groups or "").split(","))
        smallest: dict[int, int] = {}
        done = 0
        for group in (yield from state.offsets.groups_of(header.topic)):
            if group in left_out:
                continue
            for queue_id, offset in state.offsets.queues(group, header.topic).items():
                if offset >= state.store.offsets.min_offset(header.topic, queue_id):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
                done += 1
                if done % QUEUES_AT_ONCE == 0:
                    yield
        for queue_id, offset in state.offsets.queues(header.compare_group, header.topic).items():
            if smallest.get(queue_id, _NO_CORRECTION) > offset:
                smallest[queue_id] = _NO_CORRECTION
        body = QueryCorrectionOffsetBody(correction_offsets=smallest)
        return (yield from ok_in_slices(command, body))


def _require_version(member: GroupMember, version: int) -> None:
    if member.version < version:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"the client {member.client_id} does not support this feature. version={member.version}",
        )


def _message_queue_table(answer: Command) -> dict[str, int] | None:
    """None for a malformed answer; the other clients' answers still count."""
    try:
        return decode_body(GetConsumerStatusBody, answer.body).message_queue_table
    except MQError:
        return None
