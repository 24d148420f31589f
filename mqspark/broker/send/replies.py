"""Replies to requests: the broker forwards a reply to the client that waits for it (ReplyMessageProcessor).

A request is an ordinary message whose properties name the waiting client. The consumer's reply arrives as
SEND_REPLY_MESSAGE, is forwarded to that client as PUSH_REPLY_MESSAGE_TO_CLIENT over its own connection, and is
answered when the client has accepted it. It is also stored in the cluster's reply topic.

Facts: docs/rocketmq/broker.md#replies.
"""

from __future__ import annotations

from mqspark.base.logs import sparing
from mqspark.broker.send.send import SendHeader, SendProcessor
from mqspark.broker.state.calls import CallFailed, Done
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft, StoredPosition
from mqspark.broker.tables.topics import Topic
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreReadOnly
from mqspark.message import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    HOST_FLAGS,
    INNER_BATCH,
    MSG_REGION,
    MULTI_DISPATCH,
    NEED_UNWRAP,
    POP_CK,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    TRACE_ON,
    TRANSACTION_MASK,
    decode_properties,
    encode_offset_id,
    encode_stored_properties,
    format_host,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.dispatch import Handler, Refusal
from mqspark.protocol.headers.client_headers import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from mqspark.protocol.named import check_header
from mqspark.protocol.session import Session

_RESERVED_FLAGS = TRANSACTION_MASK | HOST_FLAGS | NEED_UNWRAP | INNER_BATCH
"""Flags that a sender must not set. A start would take the queues of a topic with a stored inner batch for BatchCQ."""
_NOT_STORED = frozenset({MULTI_DISPATCH, POP_CK, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID})
"""Properties that a stored reply does not have: its sender may write to its topic, not to light queues, and a receipt
or the origin of a dead letter is the broker's."""

_log = sparing(__name__)

PUSH_TIMEOUT_MS = 10_000
"""Broker2Client.callClient."""


class ReplyProcessor:
    def __init__(self, state: BrokerState, sends: SendProcessor, store_host: bytes) -> None:
        self._state = state
        self._sends = sends
        self._store_host = store_host
        self.handlers: dict[int, Handler] = {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def reply(self, session: Session, command: Command) -> None:
        header: SendHeader
        if command.code == RequestCode.SEND_REPLY_MESSAGE:
            header = command.header(SendMessageRequestHeader)
        else:
            header = command.header(SendMessageRequestHeaderV2)
        check_header(header)  # its names are forwarded to a client
        trace = self._trace()
        if not command.body:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "the reply has no body", trace)
        topic, queue_id = self._sends.admit(session, header)
        properties = {**decode_properties(header.properties or ""), **trace}
        answer = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0", **trace}
        opaque, is_oneway = command.opaque, command.is_oneway
        client_id = properties.get(REPLY_TO_CLIENT)

        def done(taken: Command | CallFailed) -> None:
            if is_oneway:
                return
            if isinstance(taken, Command) and taken.code == ResponseCode.SUCCESS:
                session.send(encode_response(opaque, ResponseCode.SUCCESS, answer))
                return
            why = (taken.remark or f"code {taken.code}") if isinstance(taken, Command) else taken.value
            remark = f"push reply message to {client_id} fail: {why}"
            session.send(encode_response(opaque, ResponseCode.SYSTEM_ERROR, trace, remark=remark))

        try:
            self._push(session, command, header, properties, done)
        finally:
            # The reply is stored whether a client waits for it or not.
            if self._state.config.store_reply_message_enable:
                stored = self._store(session, command, header, topic, queue_id, properties)
                if stored is not None:
                    answer["msgId"] = encode_offset_id(self._store_host, stored.physical_offset)
                    answer["queueOffset"] = str(stored.queue_offset)

    def _push(
        self, session: Session, command: Command, header: SendHeader, properties: dict[str, str], done: Done
    ) -> None:
        """Raises Refusal when the client cannot be reached."""
        state, trace = self._state, self._trace()
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            remark = f"reply message properties[{REPLY_TO_CLIENT}] is null"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark, trace)
        requester = state.clients.producer_session(client_id)
        if requester is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark, trace)
        now_ms = state.clock.now_ms()
        push = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=format_host(session.peer_host),
            store_host=format_host(self._store_host),
            properties=encode_stored_properties({**properties, PUSH_REPLY_TIME: str(now_ms)}).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode or False,
            store_timestamp=now_ms,
        )
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        state.calls.ask(requester, code, push, command.body, PUSH_TIMEOUT_MS, done, session)

    def _store(
        self,
        session: Session,
        command: Command,
        header: SendHeader,
        topic: Topic,
        queue_id: int,
        properties: dict[str, str],
    ) -> StoredPosition | None:
        """None, with a log line, if the reply cannot be stored; only its delivery counts."""
        draft = Draft(
            topic.name,
            queue_id,
            command.body,
            {name: value for name, value in properties.items() if name not in _NOT_STORED},
            header.born_timestamp,
            session.peer_host,
            header.sys_flag & ~_RESERVED_FLAGS,
            header.flag,
            header.reconsume_times or 0,
            session=session,
        )
        try:
            return self._state.writer.put(draft)
        except (MessageTooLarge, InvalidMessage, StoreReadOnly, NotNow, Refusal) as error:
            _log.warning("a reply of %s is not stored: %s", session.peer, error)
            return None

    def _trace(self) -> dict[str, str]:
        config = self._state.config
        return {MSG_REGION: config.region_id, TRACE_ON: "true" if config.trace_on else "false"}
