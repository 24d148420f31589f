"""Storing what producers send (SendMessageProcessor, AbstractSendMessageProcessor).

The path of a single ordinary message is short: the properties of a topic are cached (``Topic``), the property
string is searched and extended but not parsed, and the answer is preformatted and waits in ``Acks``. A property
string with a name that the broker handles specially goes through ``_own``, which parses it. What was found out for a
request serves the next ones of the same layout (``mqspark.broker.send.sendruns``).

Facts: docs/rocketmq/broker.md#send.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mqspark.base.propertystring import ITEM_END, Properties, mark
from mqspark.base.shares import NOBODY
from mqspark.broker.send.directsends import DirectSends
from mqspark.broker.send.schemaguard import SchemaGuard
from mqspark.broker.send.sendback import dead_letter_topic, retry_limit
from mqspark.broker.send.sendruns import SendPlan, SendRuns
from mqspark.broker.state.acks import Acks, Receiver
from mqspark.broker.state.litenames import checked_lite_queue
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft, StoredPosition
from mqspark.broker.statictopic.logicqueues import LogicQueue, sent_offset
from mqspark.broker.statictopic.mappings import StaticTopic
from mqspark.broker.tables.topics import NORMAL, UNIT, UNIT_SUB, Topic
from mqspark.broker.timer.delays import delay_level
from mqspark.broker.transaction.halfmessages import divert_prepared
from mqspark.errors import (
    InvalidMessage,
    MessageTooLarge,
    NoResources,
    NotNow,
    StoreReadOnly,
    TableFull,
    TooFewReplicas,
)
from mqspark.message import (
    BORN_HOST,
    BORN_TIMESTAMP,
    CLUSTER,
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    HOST_FLAGS,
    INNER_BATCH,
    KEYS,
    LITE_TOPIC,
    MAX_TOPIC_LENGTH,
    MSG_REGION,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    MULTI_TAGS,
    NEED_UNWRAP,
    PERM_WRITE,
    PRIORITY,
    REAL_TOPIC,
    RETRY_PREFIX,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    TRACE_ON,
    TRANS_HALF_TOPIC,
    TRANSACTION_BATCH,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    WAIT,
    check_topic,
    decode_properties,
    encode_recall_handle,
    encode_stored_properties,
    is_broker_topic,
    java_hashes,
    parse_number,
    parse_priority,
)
from mqspark.protocol.codes import FAQ, Reason, RequestCode, ResponseCode
from mqspark.protocol.command import ONEWAY_FLAG, Command, SentFrames, encode_response, send_response_frame
from mqspark.protocol.dispatch import Handler, Refusal
from mqspark.protocol.headers.client_headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from mqspark.protocol.layouts import STAMP, HeaderLayout
from mqspark.protocol.session import Session
from mqspark.record.batchitems import split_batch
from mqspark.record.record import PendingRecord
from mqspark.store.messages.append import PlainForm
from mqspark.store.messages.membertable import BatchMembers, batch_members
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, is_lmq

MAX_BATCH_TOPIC_LENGTH = MAX_TOPIC_LENGTH

_SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)
"""Comparing with a member of an enumeration takes ten times as long."""
_TIMED = frozenset((TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS))
_OTHER_TYPES = _TIMED | {DELAY, SHARDING_KEY}
"""A message with one of these properties is no priority message."""
_UNAVAILABLE_FLAGS = NEED_UNWRAP | INNER_BATCH
_MARKS_OF_MEMBERS = (b"TRAN_MSG", MULTI_QUEUE_OFFSET.encode())
"""Texts in properties of a batch's members, which then are looked at one by one."""
_KEYS, _WAIT, _SHARDING_KEY = mark(KEYS), mark(WAIT), mark(SHARDING_KEY)
_BORN = mark(BORN_TIMESTAMP), mark(BORN_HOST)
_WAIT_TRUE = f"{_WAIT}true"
_BROKER_FLAGS = _UNAVAILABLE_FLAGS | HOST_FLAGS


SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2


def _wire_names(header_type: type[SendHeader]) -> list[str]:
    wire = dict(zip(header_type.__struct_fields__, header_type.__struct_encode_fields__, strict=True))
    return [wire[name] for name in ("queue_id", "born_timestamp", "properties")]


_VALUES = {each: _wire_names(each) for each in (SendMessageRequestHeader, SendMessageRequestHeaderV2)}
"""The fields in which sends of one plan may differ."""


class Destination(Struct, frozen=True, gc=False):
    """Where a message is stored, and with which system flag."""

    topic: Topic
    queue_id: int
    sys_flag: int
    logic: LogicQueue | None
    """The logic queue of a static topic that its sender named."""

    def told(self, queue_offset: int) -> tuple[int, int]:
        """The queue id and offset that its sender is told."""
        if self.logic is None:
            return self.queue_id, queue_offset
        return self.logic.number, sent_offset(self.logic.leader, queue_offset)


class ForeignRecords(Protocol):
    """Takes what acting slaves of other names send to the revive topic (``mqspark.broker.pop.foreignchecks``)."""

    @property
    def topic(self) -> str: ...

    def store(self, session: Session, queue_id: int, properties: str, body: bytes | memoryview) -> int: ...


def _may_name_ours(text: str) -> bool:
    """Whether one of these properties concerns the broker, or a value contains the name of one."""
    return (
        "MSG_REGION" in text
        or "TRACE_ON" in text
        or "CLUSTER" in text
        or "DELAY" in text
        or "TIMER_" in text
        or "TRAN_MSG" in text
        or "POP_CK" in text
    )


def _without_born(text: str) -> str:
    """Without the names under which a proxy says when and where a message was born."""
    for marked in _BORN:
        text = text.replace(marked, ITEM_END)
    return text


def _is_prepared(text: str) -> bool:
    return "TRAN_MSG" in text and decode_properties(text).get(TRANSACTION_PREPARED, "").lower() == "true"


class SendProcessor:
    def __init__(
        self,
        state: BrokerState,
        acks: Acks,
        store_host: bytes,
        once_known: Callable[[Session], Receiver],
        *,
        all_wait: bool = False,
    ) -> None:
        """``once_known(session)`` returns a receiver that forwards answers once a name server knows the topics as
        they are now. ``all_wait``: a message is stored only when its guarantee is met, whatever its sender says."""
        self._state = state
        self._acks = acks
        self._waiting, self._unsafe = acks.waiting, acks.unsafe
        self._once_known = once_known
        self._all_wait = all_wait
        self._id_prefix = store_host.hex().upper()
        self._topic = state.topics.get
        self._static_topics, self._mapping = state.mappings.table, state.mappings.find
        self._put = state.store.appender.put
        self.guard = SchemaGuard(state.stats, state.store_config)
        self.runs = SendRuns(state, acks, self.guard)
        self.direct = DirectSends(state, acks, lambda text: PRIORITY in text or self._is_special(text))
        self.foreign: ForeignRecords | None = None
        """Set with enableSlaveActingMaster."""
        self.refresh_settings()
        self.handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE: self._send_old,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def refresh_settings(self) -> None:
        """Take over settings that may change at run time and are cached for speed."""
        config = self._state.config
        self._start_ms = config.start_accept_send_request_time_stamp
        self._capacity = config.send_thread_pool_queue_capacity
        self._trace = {MSG_REGION: config.region_id, TRACE_ON: "true" if config.trace_on else "false"}
        self._marks = {
            MSG_REGION: config.region_id,
            CLUSTER: config.broker_cluster_name,
            TRACE_ON: self._trace[TRACE_ON],
        }
        self._suffix = encode_stored_properties(self._marks).decode()
        self._plain_answer = config.trace_on
        self._region = config.region_id
        sent = SentFrames(config.region_id, self._id_prefix) if config.trace_on else None
        self._sent: Callable[[int, int, int, int, str], bytes] = (
            self._untraced_frame if sent is None else sent.frame
        )
        self.runs.refresh(self._capacity, sent)
        self.direct.refresh(self._capacity, self._suffix, starts_late=self._start_ms > 0)
        self._multi_dispatch = self._state.store_config.multi_dispatch

    @property
    def why_refusing(self) -> str | None:
        """Why every send is refused although the store takes messages, or None."""
        if self._state.clock.now_ms() >= self._start_ms:
            return None
        return f"broker unable to service, until time {self._start_ms} (ms since the epoch)"

    def _send_old(self, session: Session, command: Command) -> None:
        """A request with the long names of the header's fields."""
        before = len(self._waiting) + len(self._unsafe)
        self.send(session, command)
        if len(self._waiting) + len(self._unsafe) > before and not command.flag & ONEWAY_FLAG:
            self._acks.other(command.code)

    def send(self, session: Session, command: Command) -> None:
        layout = command.layout
        if layout is not None:
            plan = layout.plan
            if isinstance(plan, SendPlan) and self.runs.put(session, command, plan):
                return
        header: SendHeader
        if command.code == _SEND_MESSAGE:
            header = command.header(SendMessageRequestHeader)
        else:
            header = command.header(SendMessageRequestHeaderV2)
        if len(self._waiting) + self._acks.more >= self._capacity:
            raise self._refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy, start flow control for a while: {self._capacity} sends wait for the disk",
            )
        topic = self._topic(header.topic)
        if topic is None:
            self._first_send(session, command, header)
            return
        if not topic.plain or self._start_ms:
            if self.foreign is not None and topic.name == self.foreign.topic and not header.batch:
                self._store_foreign(self.foreign, session, command, header)
                return
            topic = self._admit(session, header, topic)
        if topic.validation and command.body:
            self._check_payload(topic, header, command.body)
        to = self._destination(session, header, topic)
        if header.batch:
            self._send_batch(session, command, header, to)
            return
        properties = Properties.of(header.properties)
        if properties.may_be_special and to.logic is None and properties.has(PRIORITY):
            properties, to = self._by_priority(properties, to)  # a logic queue is its sender's choice
        if (
            topic.retry_of is not None
            or to.sys_flag & TRANSACTION_MASK
            or (properties.may_be_special and self._is_special(properties.text))
        ):
            self._send_draft(session, command, header, to, properties)
        else:
            self._send_plain(session, command, header, to, properties)

    def _check_payload(self, topic: Topic, header: SendHeader, body: bytes | memoryview) -> None:
        """Checks a message, or the batch of a transaction. Raises Refusal."""
        text = header.properties or ""
        if TRANSACTION_BATCH in text and _is_prepared(text) and not header.reconsume_times:
            flags = decode_properties(text).get(TRANSACTION_BATCH, "").partition(":")[2]
            self.guard.check_batch(topic, parse_number(flags) or 0, body)
        elif not header.batch:
            self.guard.check(topic, header.sys_flag, body)

    def _destination(self, session: Session, header: SendHeader, topic: Topic) -> Destination:
        """Raises Refusal."""
        queue_id, logic = header.queue_id, None
        if self._static_topics and (static := self._mapping(header.topic, header.lo)) is not None:
            logic = self._logic_queue(static, queue_id)
            queue_id = logic.leader.queue_id
        if queue_id >= topic.queue_limit:
            raise self._wrong_queue(session, queue_id, topic)
        if queue_id < 0:
            queue_id = self._any_queue(topic)
        sys_flag = header.sys_flag
        if sys_flag & _BROKER_FLAGS:
            if sys_flag & _UNAVAILABLE_FLAGS:
                raise self._refusal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"sysFlag {sys_flag:#x} has the inner batch bit, which only the broker sets",
                )
            # These bits give the length of the hosts in a record, which the sender cannot choose.
            sys_flag &= ~_BROKER_FLAGS
        if topic.multi_tag:
            sys_flag |= MULTI_TAGS
        return Destination(topic, queue_id, sys_flag, logic)

    @staticmethod
    def _by_priority(properties: Properties, to: Destination) -> tuple[Properties, Destination]:
        """The queue of a message with a priority is that of its number, or the last one. A message of another type
        (TopicMessageType.parseFromMessageProperty) loses its priority."""
        found = properties.decoded()
        priority = parse_priority(found.get(PRIORITY))
        if priority is None:
            return properties, to
        if found.get(TRANSACTION_PREPARED) == "true" or not _OTHER_TYPES.isdisjoint(found):
            return properties.without(PRIORITY), to
        return properties, replace(to, queue_id=min(priority, max(1, to.topic.write_queue_nums) - 1))

    def _is_special(self, text: str) -> bool:
        """Whether one of these properties may concern the broker."""
        return _may_name_ours(text) or (
            self._multi_dispatch and ("INNER_MULTI" in text or LITE_TOPIC in text)
        )

    def _plan(
        self,
        layout: HeaderLayout,
        command: Command,
        header: SendHeader,
        to: Destination,
        properties: Properties,
        record: PendingRecord,
    ) -> SendPlan | None:
        """For the sends to come, when this one was stored as an ordinary message and only its unique id makes its
        properties differ from theirs."""
        topic = to.topic
        if not topic.plain or self._start_ms or to.logic is not None:
            return None
        if properties.may_be_special and Properties.of(_without_born(properties.text)).may_be_special:
            return None
        if command.flag & ONEWAY_FLAG or self._topic(topic.name) is not topic:
            return None
        places = [layout.place(name) for name in _VALUES[type(header)]]
        number, born, key = (None if place is None else command.values[place] for place in places)
        if number is None or born is None or key is None or key.decode() != properties.unique_id:
            return None
        before, after = properties.around_id(self._suffix)
        between = None
        if layout.is_stamped:
            between, stamped, after = after.rpartition(STAMP)
            if not stamped or not after.startswith(born):
                return None
            between, after = between + stamped, after[len(born) :]
        return SendPlan(
            self.runs.settings,
            self._state.topics.generation,
            topic,
            itemgetter(*places),
            PlainForm.of(record, before, after, between),
            self._waits(properties),
            command.code,
        )

    def _send_plain(
        self, session: Session, command: Command, header: SendHeader, to: Destination, properties: Properties
    ) -> None:
        """A message without a property that concerns the broker."""
        topic = to.topic
        if not properties.unique_id:
            properties = properties.plus_id(self._state.new_unique_id())
        if topic.needs_key and not properties.last(_KEYS):
            raise self._needs_key()
        tags = properties.tags
        record = PendingRecord(
            topic=header.topic,
            queue_id=to.queue_id,
            born_timestamp_ms=header.born_timestamp,
            born_host=session.peer_host,
            body=command.body or self._body(command),
            properties=properties.encoded(self._suffix),
            tags_code=java_hashes[tags] if tags else 0,
            sys_flag=to.sys_flag,
            flag=header.flag,
            reconsume_times=header.reconsume_times or 0,
        )
        of_kind = properties.may_be_special and properties.has(_SHARDING_KEY)
        try:
            queue_offset, physical_offset, end_offset = self._put(record)
        except (MessageTooLarge, InvalidMessage, StoreReadOnly, NotNow) as error:
            raise self._store_refusal(error) from None
        self._state.stats.put_messages += 1
        size_bytes = end_offset - physical_offset
        if size_bytes > 4096 or of_kind:
            topic.count(size_bytes, self._kind(properties) if of_kind else NORMAL)
        else:
            topic.put_bytes += size_bytes
            if size_bytes <= 1024:
                topic.up_to_1k += 1
            else:
                topic.up_to_4k += 1
        layout = command.layout
        if layout is not None and layout.around_key is not None:
            layout.plan = self._plan(layout, command, header, to, properties, record)
        if not command.flag & ONEWAY_FLAG:
            queue_id = to.queue_id
            if to.logic is not None:
                queue_id, queue_offset = to.told(queue_offset)
            frame = self._sent(command.opaque, physical_offset, queue_id, queue_offset, properties.unique_id)
            waits = _WAIT_TRUE in properties.text or self._waits(properties)
            (self._waiting if waits else self._unsafe).append((end_offset, session, frame))

    def _first_send(self, session: Session, command: Command, header: SendHeader) -> None:
        """The first send to a topic, which creates it. Its producer may ask a name server for it as soon as it is
        answered."""
        self._body(command)  # what is refused creates no topic
        self._admit(session, header, None)
        before = [len(answers) for answers in (self._waiting, self._unsafe)]
        self.send(session, command)
        for answers, count in zip((self._waiting, self._unsafe), before, strict=True):
            if len(answers) > count:
                end_offset, _, frame = answers.pop()
                answers.append((end_offset, self._once_known(session), frame))

    def _waits(self, properties: Properties) -> bool:
        """Whether a sender waits for disk and slaves (Message.isWaitStoreMsgOK): it does unless it says otherwise."""
        return self._all_wait or (properties.last(_WAIT) or "true").lower() == "true"

    def admit(self, session: Session, header: SendHeader) -> tuple[Topic, int]:
        """Topic and queue id of a message that does not come through ``send``, after the same checks."""
        topic = self._topic(header.topic)
        if topic is None or not topic.plain or self._start_ms:
            topic = self._admit(session, header, topic)
        queue_id = header.queue_id
        if queue_id >= topic.queue_limit:
            raise self._wrong_queue(session, queue_id, topic)
        return topic, queue_id if queue_id >= 0 else self._any_queue(topic)

    def _logic_queue(self, static: StaticTopic, number: int) -> LogicQueue:
        """The logic queue that a message is for; any that this broker leads if its sender leaves it to the broker.
        Raises Refusal."""
        if number < 0 and static.led:
            number = static.led[self._state.random.randrange(len(static.led))]
        return static.leading(number)

    def _any_queue(self, topic: Topic) -> int:
        return self._state.random.randrange(max(1, topic.write_queue_nums))

    def _wrong_queue(self, session: Session, queue_id: int, topic: Topic) -> Refusal:
        return self._refusal(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, {topic.describe()} Producer: {session.peer}",
        )

    def _send_draft(
        self,
        session: Session,
        command: Command,
        header: SendHeader,
        to: Destination,
        sent: Properties,
    ) -> None:
        """A message with a property that concerns the broker."""
        topic, draft = to.topic, self._draft(session, command, header, to, sent)
        unique_id = draft.properties[UNIQ_KEY]
        # The sender and the checks of a transaction rely on the half message.
        is_transactional = to.sys_flag & TRANSACTION_MASK or TRANSACTION_PREPARED in draft.properties
        is_dead = draft.topic != topic.name
        if is_transactional:
            self._prepare(draft)
        is_half, halves = draft.topic == TRANS_HALF_TOPIC, self._state.halves
        try:
            user = halves.admit(session, unique_id) if is_half else NOBODY
            stored = self._state.writer.put(draft)
        except (MessageTooLarge, InvalidMessage, StoreReadOnly, NotNow) as error:
            raise self._store_refusal(error) from None
        if is_half:
            halves.began(user, (unique_id, draft.born_timestamp_ms, draft.born_host))
            self._state.stats.events(topic.name).halves += 1
        if is_dead and topic.retry_of is not None:
            self._state.stats.became_dead(topic.name, topic.retry_of)
        if command.is_oneway:
            return
        queue_id, queue_offset = to.told(stored.queue_offset)
        if draft.topic != topic.name:  # an offset elsewhere is no one of the logic queue
            queue_offset = stored.queue_offset
        frame = self._answer(
            command.opaque,
            f"{self._id_prefix}{stored.physical_offset:016X}",
            queue_id,
            queue_offset,
            unique_id,
            self._region,
            self._recall_handle(draft, unique_id),
        )
        waits = is_transactional or self._waits(sent)
        (self._waiting if waits else self._unsafe).append((stored.end_offset, session, frame))

    def _draft(
        self, session: Session, command: Command, header: SendHeader, to: Destination, sent: Properties
    ) -> Draft:
        """The message with the broker's properties; for the dead letter topic when its group gives it up."""
        topic = to.topic
        properties = self._own(sent)
        if not properties.get(UNIQ_KEY):
            properties[UNIQ_KEY] = self._state.new_unique_id()
        if topic.needs_key and not properties.get(KEYS):
            raise self._needs_key()
        properties.update(self._marks)
        target, target_queue = topic.name, to.queue_id
        if topic.retry_of is not None:
            for name in (DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID):  # brokers alone set them
                properties.pop(name, None)
        if topic.retry_of is not None and self._is_dead(session, header, command.version, topic.retry_of):
            target, target_queue = dead_letter_topic(self._state, topic.retry_of).name, 0
            if TRANSACTION_BATCH not in properties:  # which is not delayed, and says so by having no delay
                properties[DELAY] = "-1"
            properties.pop(PRIORITY, None)
        if self._multi_dispatch:
            self._dispatch_lite(topic, properties)
        return Draft(
            target,
            target_queue,
            self._body(command),
            properties,
            header.born_timestamp,
            session.peer_host,
            to.sys_flag,
            header.flag,
            header.reconsume_times or 0,
            session=session,
        )

    def _store_foreign(
        self, foreign: ForeignRecords, session: Session, command: Command, header: SendHeader
    ) -> None:
        """A record of the revive topic, from an acting slave of another name."""
        begin = self._state.store.log.position
        try:
            end_offset = foreign.store(session, header.queue_id, header.properties or "", command.body)
        except (MessageTooLarge, InvalidMessage, StoreReadOnly, NotNow) as error:
            raise self._store_refusal(error) from None
        if not command.is_oneway:
            message_id = f"{self._id_prefix}{begin:016X}"
            frame = self._answer(command.opaque, message_id, header.queue_id, 0, None, self._region)
            self._waiting.append((end_offset, session, frame))

    def _dispatch_lite(self, topic: Topic, properties: dict[str, str]) -> None:
        """Let a message that names a lite topic enter its queue. Raises Refusal."""
        lite_topic = properties.get(LITE_TOPIC)
        if lite_topic:
            queue = checked_lite_queue(topic.name, lite_topic)
            if queue is None:
                raise self._refusal(
                    ResponseCode.MESSAGE_ILLEGAL, f"{lite_topic[:80]!r} is not a name of a lite topic"
                )
            properties[MULTI_DISPATCH] = queue
        config, store = self._state.store_config, self._state.store
        if not config.enable_lmq_quota or len(store.table.light) < config.max_lmq_consume_queue_num:
            return
        for name in properties.get(MULTI_DISPATCH, "").split(","):
            if is_lmq(name) and not store.offsets.has_queue(name, LMQ_QUEUE_ID):
                raise self._refusal(
                    ResponseCode.LMQ_QUOTA_EXCEEDED,
                    "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded.",
                )

    @staticmethod
    def _kind(shared: Properties) -> str:
        """The message type of a batch."""
        return "fifo" if shared.has(_SHARDING_KEY) else NORMAL

    def _recall_handle(self, draft: Draft, unique_id: str) -> str | None:
        """The recall handle of a delayed message."""
        if draft.topic != TIMER_TOPIC:
            return None
        topic, due_ms = draft.properties.get(REAL_TOPIC), parse_number(draft.properties.get(TIMER_OUT_MS))
        if topic is None or due_ms is None or topic.startswith(RETRY_PREFIX):
            return None
        # The handle's text is parsed as a delivery time again.
        return encode_recall_handle(topic, self._state.config.broker_name, due_ms + 1, unique_id)

    def _prepare(self, draft: Draft) -> None:
        """Turn a prepared message into a half message."""
        properties = draft.properties
        if properties.get(TRANSACTION_PREPARED, "").lower() != "true":
            if draft.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT_TYPE):
                raise self._refusal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"sysFlag {draft.sys_flag:#x} says transaction, but the property"
                    f" {TRANSACTION_PREPARED} does not",
                )
            # Only the broker may mark a message as committed.
            draft.sys_flag &= ~TRANSACTION_MASK
        elif delay_level(properties.get(DELAY)) > 0 and draft.reconsume_times > 0:
            # A consumer's retry of a committed message, by a client that keeps all properties. What is no level is
            # refused for all: no commit could carry it out.
            draft.sys_flag &= ~TRANSACTION_MASK
        elif self._state.config.reject_transaction_message:
            raise self._refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._state.config.broker_ip1}] sending transaction message is forbidden",
            )
        else:
            divert_prepared(draft)

    def _body(self, command: Command) -> bytes | memoryview:
        if not command.body:
            raise self._refusal(ResponseCode.SYSTEM_ERROR, "the message has no body")
        return command.body

    def _send_batch(
        self,
        session: Session,
        command: Command,
        header: SendHeader,
        to: Destination,
    ) -> None:
        topic = to.topic
        if to.sys_flag & TRANSACTION_MASK:
            raise self._refusal(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be transactional")
        if len(topic.name) > MAX_BATCH_TOPIC_LENGTH or topic.retry_of is not None:
            raise self._refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support topic {topic.name}"
            )
        shared = Properties.of(header.properties)
        if topic.inner_batch or _may_name_ours(shared.text):
            shared = Properties.of(encode_stored_properties(self._own(shared)).decode())
            self._check_batch(shared.text)
        unique_id = shared.unique_id or None
        body = self._body(command)
        limit = self._state.store_config.max_message_size
        if len(body) > limit:
            raise self._refusal(
                ResponseCode.SYSTEM_ERROR, f"a batch of {len(body)} bytes exceeds the limit of {limit}"
            )
        try:
            # Each member is stored with only its own properties: the batch's id does not hide its own (RocketMQ
            # since 5.4).
            many = self._batch_members(topic, body)
            members = [] if many is not None else split_batch(body)
            if topic.validation:
                bodies = [each for _, each, _ in members] if many is None else many.bodies()
                self.guard.check_members(topic, to.sys_flag, bodies)
            record = PendingRecord(
                topic=header.topic,
                queue_id=to.queue_id,
                born_timestamp_ms=header.born_timestamp,
                born_host=session.peer_host,
                sys_flag=to.sys_flag,
                reconsume_times=header.reconsume_times or 0,
            )
            if many is not None:
                count = len(many)
                first_offset, positions, end_offset = self._state.store.appender.put_members(record, many)
                physical_offsets = positions.astype(">i8").tobytes()
            else:
                count = len(members)
                for _, _, properties in members:
                    if any(mark in properties for mark in _MARKS_OF_MEMBERS):
                        self._check_member(properties.decode())
                if topic.inner_batch:
                    self._send_inner_batch(session, command, record, to, shared, count)
                    return
                first_offset, places, end_offset = self._state.store.appender.put_batch(record, members)
                physical_offsets = struct.pack(f">{count}q", *places)
        except UnicodeDecodeError:
            raise self._refusal(ResponseCode.MESSAGE_ILLEGAL, "a member's properties are not UTF-8") from None
        except MessageTooLarge as error:  # RocketMQ: 13 for a single message, 1 for a batch
            self._state.stats.put_failures += 1
            raise self._refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except (InvalidMessage, StoreReadOnly, NotNow) as error:
            raise self._store_refusal(error) from None
        self._state.stats.put_messages += count
        size_bytes = end_offset - int.from_bytes(physical_offsets[:8], "big")
        topic.count(size_bytes, self._kind(shared), count)
        if not command.flag & ONEWAY_FLAG:
            if command.code != _SEND_MESSAGE:
                self._acks.other(command.code)
            prefix = self._id_prefix
            ids = physical_offsets.hex(",", 8).upper()
            ids = prefix + ids.replace(",", f",{prefix}")
            queue_id, first_offset = to.told(first_offset)
            frame = self._answer(command.opaque, ids, queue_id, first_offset, unique_id, self._region)
            (self._waiting if self._waits(shared) else self._unsafe).append((end_offset, session, frame))

    @staticmethod
    def _batch_members(topic: Topic, body: bytes | memoryview) -> BatchMembers | None:
        """The members of a large batch as columns; None if a member needs individual handling."""
        if topic.inner_batch:
            return None
        many = batch_members(body)
        return None if many is None or many.any_has(*_MARKS_OF_MEMBERS) else many

    def _send_inner_batch(
        self,
        session: Session,
        command: Command,
        record: PendingRecord,
        to: Destination,
        shared: Properties,
        count: int,
    ) -> None:
        """A batch that stays one record. Raises what ``Appender.put`` raises."""
        if not shared.unique_id:
            shared = shared.plus_id(self._state.new_unique_id())
        unique_id, tags = shared.unique_id, shared.tags
        together = replace(
            record,
            body=command.body,
            properties=shared.encoded(self._suffix),
            tags_code=java_hashes[tags] if tags else 0,
        )
        stored = StoredPosition(*self._state.store.appender.put_inner_batch(together, count))
        self._state.stats.put_messages += count
        to.topic.count(stored.size_bytes, self._kind(shared), count)
        if not command.is_oneway:
            if command.code != _SEND_MESSAGE:
                self._acks.other(command.code)
            queue_id, queue_offset = to.told(stored.queue_offset)
            ext = {
                "msgId": f"{self._id_prefix}{stored.physical_offset:016X}",
                "queueId": str(queue_id),
                "queueOffset": str(queue_offset),
                "batchUniqId": unique_id,
                "transactionId": unique_id,
                **self._trace,
            }
            frame = encode_response(command.opaque, ResponseCode.SUCCESS, ext)
            self._waiting.append((stored.end_offset, session, frame))

    def _untraced_frame(
        self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int, unique_id: str
    ) -> bytes:
        message_id = f"{self._id_prefix}{physical_offset:016X}"
        return self._answer(opaque, message_id, queue_id, queue_offset, unique_id, self._region)

    def _answer(
        self,
        opaque: int,
        ids: str,
        queue_id: int,
        queue_offset: int,
        unique_id: str | None,
        region: str,
        recall_handle: str | None = None,
    ) -> bytes:
        if self._plain_answer and recall_handle is None:
            return send_response_frame(opaque, ids, queue_id, queue_offset, unique_id, region)
        ext = {"msgId": ids, "queueId": str(queue_id), "queueOffset": str(queue_offset), **self._trace}
        if unique_id is not None:
            ext["transactionId"] = unique_id
        if recall_handle is not None:
            ext["recallHandle"] = recall_handle
        return encode_response(opaque, ResponseCode.SUCCESS, ext)

    # --- uncommon cases ---

    def _admit(self, session: Session, header: SendHeader, topic: Topic | None) -> Topic:
        """The checks for a new topic or one with a rule of its own, in RocketMQ's order."""
        state = self._state
        if (refusing := self.why_refusing) is not None:
            raise self._refusal(ResponseCode.SYSTEM_ERROR, refusing, Reason.NOT_NOW)
        if topic is not None and topic.order and not state.config.broker_permission & PERM_WRITE:
            raise self._refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{state.config.broker_ip1}] sending message is forbidden",
            )
        if topic is None:
            topic = self._created(session, header)
        if topic.send_forbidden and topic.name != state.config.msg_trace_topic_name:
            raise self._forbidden(topic.name)
        text = header.properties or ""
        if topic.commits_only and (
            header.batch or not _is_prepared(text) or "DELAY" in text or "TIMER_" in text
        ):
            raise self._refusal(
                ResponseCode.NO_PERMISSION,
                f"topic[{topic.name}] takes transactional messages only, without a delay",
            )
        if topic.inner_batch:
            try:
                state.store.appender.use_batch_queues(topic.name)
            except InvalidMessage as error:
                raise self._store_refusal(error) from None
        return topic

    def _created(self, session: Session, header: SendHeader) -> Topic:
        """A topic that a send creates. Raises Refusal."""
        topics = self._state.topics
        try:
            check_topic(header.topic)
        except InvalidMessage as error:
            raise self._refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if is_broker_topic(header.topic):
            raise self._forbidden(header.topic)
        is_retry = header.topic.startswith(RETRY_PREFIX)
        flag = (UNIT_SUB if is_retry else UNIT) if header.unit_mode else 0
        topic = topics.auto_create(
            header.topic, header.default_topic, header.default_topic_queue_nums, session, sys_flag=flag
        )
        if topic is None and is_retry:
            topic = topics.ensure(header.topic, 1, sys_flag=flag, session=session)
        if topic is None:
            raise self._refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!{FAQ}",
            )
        return topic

    def _needs_key(self) -> Refusal:
        return self._refusal(ResponseCode.MESSAGE_ILLEGAL, "a message of a compaction topic needs KEYS")

    def _forbidden(self, topic: str) -> Refusal:
        return self._refusal(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")

    def _is_dead(self, session: Session, header: SendHeader, version: int, group: str) -> bool:
        """Whether a message for the retry topic of ``group`` is a dead letter: it has had all its attempts, or
        the group consumes in order. Ordered consumers retry locally and send back only messages they give up."""
        config = self._state.subscriptions.find(group, session)
        if config is None:
            raise self._refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        limit = retry_limit(config, version, header.max_reconsume_times)
        return (header.reconsume_times or 0) > limit or self._state.locks.is_held(group)

    def _check_batch(self, text: str) -> None:
        """Check the batch's own properties. A delay of a single member is stored but has no effect
        (DefaultMessageStore.asyncPutMessages); RocketMQ's client refuses to send one."""
        properties = decode_properties(text) if "DELAY" in text or "TIMER_DELIVER_MS" in text else {}
        if delay_level(properties.get(DELAY)) > 0 or not _TIMED.isdisjoint(properties):
            raise self._refusal(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be delayed")
        self._check_member(text)

    def _check_member(self, text: str) -> None:
        if _is_prepared(text):
            raise self._refusal(ResponseCode.MESSAGE_ILLEGAL, "a message of a batch cannot be transactional")
        if (
            self._multi_dispatch
            and MULTI_QUEUE_OFFSET in text
            and MULTI_QUEUE_OFFSET in decode_properties(text)
        ):
            raise self._refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a message of a batch enters no light queue, and has no {MULTI_QUEUE_OFFSET}",
            )

    def _own(self, sent: Properties) -> dict[str, str]:
        """The sender's properties without those that the broker sets itself, and without POP_CK."""
        properties = sent.decoded()
        for name in (MSG_REGION, TRACE_ON, CLUSTER, "POP_CK"):
            properties.pop(name, None)
        return properties

    def _store_refusal(self, error: Exception) -> Refusal:
        self._state.stats.put_failures += 1
        if isinstance(error, InvalidMessage | MessageTooLarge):
            return self._refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        if isinstance(error, NoResources | TableFull):
            code = ResponseCode.SYSTEM_BUSY
        elif isinstance(error, TooFewReplicas):
            code = ResponseCode.SYSTEM_ERROR
        return self._refusal(code, str(error))

    def _refusal(self, code: int, remark: str, reason: Reason | None = None) -> Refusal:
        return Refusal(code, remark, self._trace, reason=reason)
