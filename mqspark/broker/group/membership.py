"""Requests by which clients report themselves and query each other: 34, 35, 38, 41, 42 and 46, and 40 sent to
them (ClientManageProcessor, ConsumerManageProcessor)."""

from __future__ import annotations

from collections.abc import Iterator

from mqspark.broker.config import BrokerConfig
from mqspark.broker.pull.pull import check_expression_type
from mqspark.broker.state.groups import TAG, ConsumerGroup
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.topics import UNIT_SUB
from mqspark.errors import InvalidFilter, InvalidMessage, TableFull
from mqspark.filter.sql import compile_sql
from mqspark.filter.tags import parse_tags
from mqspark.message import MessageQueue, check_group, retry_topic
from mqspark.protocol.bodies.body import Queue, decode_body
from mqspark.protocol.bodies.client_bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
    UnlockBatchRequestBody,
)
from mqspark.protocol.bodies.longtables import Parts, count_in, decode_long, parts_of_list
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.dispatch import Handler, Refusal, ok, ok_in_slices
from mqspark.protocol.headers.client_headers import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import ESSENTIAL, LongWork, Slices, Work

MAX_HEARTBEAT_OBJECTS = 16_384
"""Groups and subscriptions of one heartbeat."""

MAX_HEARTBEAT_BYTES = 4 << 20
"""Bytes of one heartbeat: so many groups and subscriptions with tags of usual length. A group with its subscriptions is
decoded in one slice."""

MAX_EXPRESSION = 128 * 1024
"""Characters of a subscription's expression; its tags are parsed in one slice."""

MAX_CODES = 16_384
"""Tags, and hashes of tags, that come with one subscription."""

SEEN_AT_ONCE = 64
"""Groups and subscriptions of a heartbeat that are processed in one slice."""

NOTIFIED_AT_ONCE = 32
"""Members of a group that are notified of a change in one slice."""

QUEUES_AT_ONCE = 128
"""Queues locked or unlocked in one slice."""

MAX_LOCKED = 16_384
"""Queues that one request may lock or unlock."""


def _notify_members(group: ConsumerGroup) -> Work[None]:
    """Tell every member to rebalance now (40, one-way), once per connection. Connections with too much unread
    data are skipped."""
    header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group.name)
    told: set[int] = set()
    for number, member in enumerate(list(group.members.values()), 1):
        session = member.session
        if session.id not in told:
            told.add(session.id)
            if session.room > 0:
                session.send(
                    encode_request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, session.next_opaque(), header, oneway=True
                    )
                )
        if number % NOTIFIED_AT_ONCE == 0:
            yield


class MemberNotices:
    """Tells the members of changed groups about it at the end of the turn, once however many members joined or left."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.changed: dict[str, ConsumerGroup] = {}
        self._is_notifying = False

    def note(self, group: ConsumerGroup) -> None:
        """The members of this group have changed."""
        if self._config.notify_consumer_ids_changed_enable:
            self.changed[group.name] = group

    def end_turn(self, long_work: LongWork) -> None:
        if self.changed and not self._is_notifying:
            self._is_notifying = True
            long_work.begin(None, self._notify())

    def _notify(self) -> Work[None]:
        notified = 0
        while self.changed:
            yield from _notify_members(self.changed.pop(next(iter(self.changed))))
            notified += 1
            if notified % NOTIFIED_AT_ONCE == 0:
                yield
        self._is_notifying = False


class MembershipProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.handlers: dict[int, Handler] = {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def heartbeat(self, session: Session, command: Command) -> Slices:
        if len(command.body) > MAX_HEARTBEAT_BYTES:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat has {len(command.body)} bytes, the limit is {MAX_HEARTBEAT_BYTES}",
            )
        objects = count_in(command.body, b"{")
        if objects > MAX_HEARTBEAT_OBJECTS:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat has {objects} groups and subscriptions, the limit is {MAX_HEARTBEAT_OBJECTS}",
            )
        began_ms = self._state.clock.monotonic_ms()
        data = yield from decode_long(HeartbeatData, command.body, "consumerDataSet", _parts_of_consumers)
        client_id = data.client_id
        if not client_id:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "the heartbeat names no clientID")
        clients = self._state.clients
        clients.check_holder(client_id, session)
        consumers, producers = data.consumer_data_set or [], data.producer_data_set or []
        named, most = len(consumers) + len(producers), self._state.config.max_groups_per_heartbeat
        if named > most:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat names {named} groups, maxGroupsPerHeartbeat is {most}",
            )
        changed = False
        full: TableFull | None = None
        new_groups = done = 0
        for consumer in consumers:
            if done >= SEEN_AT_ONCE:
                done = 0
                yield
            done += 1 + len(consumer.subscription_data_set or ())
            name = consumer.group_name
            try:
                if name not in self._state.subscriptions:
                    new_groups += 1
                    self._check_new_groups(new_groups)
                if not self._prepare_group(consumer, session):
                    continue
                changed |= yield from self._consume(session, command, data, consumer)
            except TableFull as error:  # the other groups are still joined
                full = error
        for producer in producers:
            if done >= SEEN_AT_ONCE:
                done = 0
                yield
            done += 1
            if producer.group_name:
                try:
                    clients.produce(
                        producer.group_name, client_id, session, command.language, command.version
                    )
                except TableFull as error:
                    full = error
        self._state.stats.registered(began_ms, consumers=bool(consumers), producers=bool(producers))
        if full is not None:
            raise full
        is_sub_change = changed or not data.heartbeat_fingerprint
        return ok(
            command,
            {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if is_sub_change else "false"},
        )

    def _check_new_groups(self, count: int) -> None:
        """Raises TableFull."""
        state = self._state
        most = state.config.max_new_groups_per_heartbeat
        if count > most:
            raise state.subscriptions.ledger.refuse(
                most, most, "maxNewGroupsPerHeartbeat", of=" made by one heartbeat"
            )

    def _consume(
        self, session: Session, command: Command, data: HeartbeatData, consumer: ConsumerData
    ) -> Work[bool]:
        """Returns whether the client has to send its subscriptions. Raises TableFull."""
        clients, client_id, name = self._state.clients, data.client_id, consumer.group_name
        changed = False
        if data.heartbeat_fingerprint:
            known = not data.without_sub or clients.refresh(name, client_id, session)
            changed = clients.fingerprint(name, client_id) != data.heartbeat_fingerprint or not known
            if data.without_sub:
                return changed
        for each in consumer.subscription_data_set or ():
            _check_expression(each)
        prepared = yield from clients.prepare(consumer)
        config = self._state.subscriptions.configured(name)
        clients.consume(
            consumer,
            client_id,
            session,
            command.language,
            command.version,
            notify=config is None or config.notify_consumer_ids_changed_enable,
            fingerprint=data.heartbeat_fingerprint or None,
            prepared=prepared,
        )
        return changed

    def _prepare_group(self, consumer: ConsumerData, session: Session) -> bool:
        """Prepare the group and its retry topic. False skips an unknown group that may not be created."""
        name = consumer.group_name
        state = self._state
        if not name or (config := state.subscriptions.find(name, session)) is None:
            return False
        try:
            check_group(name)
        except InvalidMessage:
            return False
        if config.retry_queue_nums > 0:
            state.topics.ensure(
                retry_topic(name),
                config.retry_queue_nums,
                sys_flag=UNIT_SUB if consumer.unit_mode else 0,
                needed=True,  # one per group, and groups are limited
            )
        return True

    def unregister(self, session: Session, command: Command) -> bytes:
        header = command.header(UnregisterClientRequestHeader)
        self._state.clients.check_holder(header.client_id, session)
        self._state.clients.unregister(header.client_id, header.producer_group, header.consumer_group)
        return ok(command, {})

    def consumer_list(self, session: Session, command: Command) -> Slices:
        header = command.header(GetConsumerListByGroupRequestHeader)
        group = self._state.clients.consumer(header.consumer_group)
        if group is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        body = GetConsumerListByGroupResponseBody(consumer_id_list=list(group.members))
        return (yield from ok_in_slices(command, body, {}))

    def check_config(self, session: Session, command: Command) -> bytes:
        body = decode_body(CheckClientRequestBody, command.body)
        data = body.subscription_data
        if data is not None:
            try:
                if not data.expression_type or data.expression_type == TAG:
                    parse_tags(data.sub_string)
                else:
                    check_expression_type(self._state.config, data.expression_type)
                    compile_sql(data.sub_string)
            except (InvalidMessage, InvalidFilter) as error:
                raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        return ok(command)

    def lock(self, session: Session, command: Command) -> Slices:
        _check_size(command)
        body = yield from decode_long(LockBatchRequestBody, command.body, "mqSet")
        self._state.clients.check_holder(body.client_id or "", session)
        locked: list[Queue] = []
        for queues in _queues(body):
            group, client_id = body.consumer_group or "", body.client_id or ""
            held = self._state.locks.lock(group, client_id, queues, session)
            locked += map(Queue.of, held)
            if len(queues) == QUEUES_AT_ONCE:
                yield
        return (yield from ok_in_slices(command, LockBatchResponseBody(lock_ok_mq_set=locked)))

    def unlock(self, session: Session, command: Command) -> Slices:
        _check_size(command)
        body = yield from decode_long(UnlockBatchRequestBody, command.body, "mqSet")
        self._state.clients.check_holder(body.client_id or "", session)
        for queues in _queues(body):
            self._state.locks.unlock(body.consumer_group or "", body.client_id or "", queues)
            if len(queues) == QUEUES_AT_ONCE:
                yield ESSENTIAL
        return ok(command)


def _parts_of_consumers(text: bytes, member: str) -> Parts:
    return parts_of_list(text, member, max_entry_bytes=MAX_HEARTBEAT_BYTES)


def _check_expression(data: SubscriptionData) -> None:
    length, codes = len(data.sub_string or ""), max(len(data.tags_set), len(data.code_set))
    if length > MAX_EXPRESSION or codes > MAX_CODES:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"the subscription of {data.topic} has an expression of {length} characters and {codes} tags,"
            f" the limits are {MAX_EXPRESSION} and {MAX_CODES}",
        )


def _check_size(command: Command) -> None:
    count = count_in(command.body, b"{") - 1
    if count > MAX_LOCKED:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"the request names {count} queues, the limit is {MAX_LOCKED}"
        )


def _queues(body: LockBatchRequestBody) -> Iterator[list[MessageQueue]]:
    """Chunks of QUEUES_AT_ONCE queues."""
    for first in range(0, len(body.mq_set), QUEUES_AT_ONCE):
        yield [queue.queue for queue in body.mq_set[first : first + QUEUES_AT_ONCE]]
