"""Check points of brokers of other names: their acting slaves send them here to be stored, and their messages are
requested when they become visible again (EscapeBridge.putMessageToSpecificQueue, PopReviveService.getBizMessage).

A record comes as a send to the revive topic. It is never stored as received: it is parsed, checked and encoded again.
With users only a broker's user may send there. Without users such a record allows nothing that a pop, an
acknowledgement and a send to the retry topic do not.

Must not know connections, nor when messages are revived.
"""

from __future__ import annotations

from mqspark.base.names import is_sound
from mqspark.broker.pop.checks import check_group
from mqspark.broker.pop.revivelog import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    CheckKey,
    ReviveLog,
    parse_ack,
    parse_check_point,
)
from mqspark.broker.state.state import BrokerState
from mqspark.broker.statictopic.peers import Question
from mqspark.errors import InvalidMessage, NotNow
from mqspark.message import (
    REVIVE_GROUP,
    TAGS,
    TIMER_DELIVER_MS,
    MessageQueue,
    decode_properties,
    parse_number,
)
from mqspark.protocol.codes import FAQ, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.client_headers import pull_header
from mqspark.protocol.headers.header import to_ext
from mqspark.protocol.receipts import normal_topic
from mqspark.protocol.session import Session
from mqspark.record.record import Parts, Verdict, check_record, is_inner_batch, take_apart
from mqspark.record.recordlayout import record_size


class ForeignChecks:
    """Takes records of the revive topic that acting slaves of other names send."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._log = ReviveLog(state)

    @property
    def topic(self) -> str:
        return self._log.topic

    def store(self, session: Session, queue_id: int, properties: str, body: bytes | memoryview) -> int:
        """The end offset of the record. Raises Refusal, and what ``Writer.put`` raises."""
        if not 0 <= queue_id < self._log.queues:
            raise _illegal(f"the revive topic has no queue {queue_id}")
        table = decode_properties(properties)
        own_name = self._state.config.broker_name
        tag = table.get(TAGS)
        try:
            if tag == CK_TAG:
                check_point = parse_check_point(body, own_name)
                self._check(session, check_point.key, check_point.revive_time_ms)
                if not check_point.diffs:
                    raise _illegal("a check point without messages")
                return self._log.put_check_point(queue_id, check_point)
            if tag not in (ACK_TAG, BATCH_ACK_TAG):
                raise _illegal("neither a check point nor an acknowledgement")
            key, offsets = parse_ack(body, own_name)
        except InvalidMessage as error:
            raise _illegal(str(error)) from None
        revive_ms = parse_number(table.get(TIMER_DELIVER_MS)) or 0
        self._check(session, key, revive_ms)
        return self._log.put_ack(queue_id, key, revive_ms - key.pop_time_ms, offsets)

    def _check(self, session: Session, key: CheckKey, revive_ms: int) -> None:
        """Raises Refusal."""
        state = self._state
        if key.broker_name == state.config.broker_name:
            raise Refusal(ResponseCode.NO_PERMISSION, "this broker writes its check points itself")
        if not is_sound(key.broker_name):
            raise _illegal("the broker has no sound name")
        topic = normal_topic(key.topic, key.group)
        if state.topics.get(topic) is None:  # nobody would find the messages in its retry topic
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}"
            )
        check_group(state, session, key.group)
        ahead_ms = revive_ms - state.clock.now_ms()
        if revive_ms < key.pop_time_ms or ahead_ms > state.store_config.timer_max_delay_sec * 1000:
            raise _illegal(f"messages that are visible again in {ahead_ms} ms")


def _illegal(why: str) -> Refusal:
    """Not MESSAGE_ILLEGAL: another broker may take it."""
    return Refusal(ResponseCode.INVALID_PARAMETER, f"no record of the revive log: {why[:200]}")


def pull_question(key: CheckKey, offset: int) -> Question:
    """Asks the broker of a check point for one of its messages. The group exists everywhere."""
    queue = MessageQueue(key.topic, "", key.queue_id)
    header = pull_header(REVIVE_GROUP, queue, offset, max_messages=1)
    return Question(key.broker_name, RequestCode.PULL_MESSAGE, to_ext(header), any_replica=True)


def is_at(record: Parts, offset: int) -> bool:
    """Whether the record is what a read of this offset of its queue returns: an inner batch has several offsets."""
    return record.queue_offset == offset or (record.queue_offset < offset and is_inner_batch(record))


def found_record(answer: Command, key: CheckKey, offset: int) -> Parts | None:
    """The message; None when it no longer exists. Raises NotNow."""
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        return None
    if answer.code != ResponseCode.SUCCESS:
        remark = (answer.remark or "")[:200]
        raise NotNow(f"broker {key.broker_name} does not give message {offset}: code {answer.code}, {remark}")
    body = memoryview(answer.body)
    if check_record(body, 0, len(body), verify_crc=True).verdict is Verdict.VALID:
        record = take_apart(body[: record_size(body)])
        if (record.topic, record.queue_id) == (key.topic, key.queue_id) and is_at(record, offset):
            return record
    raise NotNow(f"broker {key.broker_name} returned something else than message {offset}")
