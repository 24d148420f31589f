"""Cancel a timer message with the handle that its producer received: code 370 (RecallMessageProcessor,
RecallMessageHandle).

A recall is stored as a timer message that names the other one, in the same slot of the wheel. When the slot is
due, neither is delivered.

Facts: docs/rocketmq/later.md#recall.
"""

from __future__ import annotations

from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreReadOnly
from mqspark.message import (
    BORN_TIMESTAMP,
    MSG_REGION,
    PERM_WRITE,
    PRODUCER_GROUP,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    decode_recall_handle,
    is_broker_topic,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers.client_headers import RecallMessageRequestHeader
from mqspark.protocol.session import Session

_TAG = "_RECALL_TAG_"
_BODY = b"0"
_REMARK = "not set any response code"
"""Also of a success: RocketMQ leaves the default remark of a new response."""


class RecallProcessor:
    def __init__(self, state: BrokerState, acks: Acks) -> None:
        self._state = state
        self._acks = acks
        self.handlers: dict[int, Handler] = {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, session: Session, command: Command) -> None:
        header = command.header(RecallMessageRequestHeader)
        state, config = self._state, self._state.config
        if not config.recall_message_enable:
            raise self._refusal(ResponseCode.NO_PERMISSION, "operation is forbidden")
        now_ms = state.clock.now_ms()
        if now_ms < config.start_accept_send_request_time_stamp or not (
            config.broker_permission & PERM_WRITE or config.allow_recall_when_broker_not_writeable
        ):
            raise self._refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "broker service not available")
        if header.topic not in state.topics:
            raise self._refusal(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{header.topic}] not exist")
        if is_broker_topic(header.topic):
            raise self._refusal(ResponseCode.NO_PERMISSION, f"topic[{header.topic}] is the broker's own")
        try:
            topic, broker_name, deliver_ms, unique_id = decode_recall_handle(header.recall_handle)
        except InvalidMessage as error:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, str(error), self._region) from None
        if topic != header.topic:
            raise self._refusal(ResponseCode.ILLEGAL_OPERATION, "topic not match")
        if broker_name != config.broker_name:
            raise self._refusal(ResponseCode.ILLEGAL_OPERATION, "broker service not available")
        if not 0 < deliver_ms - now_ms < state.store_config.timer_max_delay_sec * 1000:
            raise self._refusal(ResponseCode.ILLEGAL_OPERATION, "timestamp invalid")
        key = unique_id
        if state.store_config.append_topic_for_timer_delete_key:
            key = f"{topic}+{unique_id}"
        properties = {
            TAGS: _TAG,
            TIMER_DEL_UNIQKEY: key,
            UNIQ_KEY: unique_id,
            TIMER_DELIVER_MS: str(deliver_ms),
            BORN_TIMESTAMP: str(now_ms),
        }
        if not command.is_oneway:
            self._acks.check_busy(state.config.send_thread_pool_queue_capacity)
        if header.producer_group:
            properties[PRODUCER_GROUP] = header.producer_group
        try:
            draft = Draft(topic, 0, _BODY, properties, now_ms, session.peer_host, session=session)
            stored = state.writer.put(draft)
        except (Refusal, MessageTooLarge, InvalidMessage, StoreReadOnly, NotNow) as error:
            raise self._refusal(ResponseCode.SYSTEM_ERROR, f"execute error: {error}") from None
        if not command.is_oneway:
            answer = ok(command, {"msgId": unique_id, **self._region}, remark=_REMARK)
            self._acks.other(command.code)
            self._acks.waiting.append((stored.end_offset, session, answer))

    @property
    def _region(self) -> dict[str, str]:
        return {MSG_REGION: self._state.config.region_id}

    def _refusal(self, code: int, why: str) -> Refusal:
        return Refusal(code, f"recall failed, {why}", self._region)
