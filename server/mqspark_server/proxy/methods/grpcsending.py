"""SendMessage: messages of all types, one or a batch of one queue (SendMessageActivity, ProducerProcessor of RocketMQ's
proxy)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from mqspark.base.clock import wall_ms
from mqspark.base.propertystring import text_of
from mqspark.broker.transaction.halfmessages import IMMUNITY_SECONDS
from mqspark.errors import InvalidMessage
from mqspark.message import (
    BORN_TIMESTAMP,
    COMPRESSED,
    DELAY,
    KEYS,
    LITE_TOPIC,
    PERM_WRITE,
    PRIORITY,
    PRODUCER_GROUP,
    SET_BY_BROKERS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    TRANSACTION_PREPARED_TYPE,
    UNIQ_KEY,
    Message,
    MessageQueue,
    decode_offset_id,
    decode_recall_handle,
    encode_properties,
    java_hash,
)
from mqspark.protocol.bodies.topic_bodies import TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from mqspark.record.batchitems import encode_batch
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpccalls import GrpcCall, of_each
from mqspark_server.proxy.clients.grpchalves import GrpcHalf
from mqspark_server.proxy.content.instants import millis_of
from mqspark_server.proxy.content.resources import has_control, topic_of
from mqspark_server.proxy.content.systemkeys import BORN_HOST, SYSTEM_KEYS, TRACE_CONTEXT
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal, checked, refusal, status
from mqspark_server.proxy.methods.grpclite import check_lite_topic

MAX_BATCH = 1_024
"""Messages of one request."""
MAX_USER_PROPERTIES = 128
MAX_USER_PROPERTY_BYTES = 16 * 1024
_MAX_LETTER_BYTES = 4
"""In UTF-8."""
MAX_MESSAGE_GROUP_BYTES = 63
MAX_DELAY_MS = 24 * 3600 * 1000
MAX_RECOVERY_S = 3600
"""Limits of the proxy (ProxyConfig)."""
_OURS = SET_BY_BROKERS | {SHARDING_KEY, TRACE_CONTEXT, IMMUNITY_SECONDS}
"""Further keys that user properties must not have: they would become fields of the message."""

_NOT_DURABLE: dict[int, pb.Code] = {
    ResponseCode.FLUSH_DISK_TIMEOUT: pb.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: pb.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
}
"""The message is stored, and may be lost."""
_SENT = pb.SendMessageResponse(status=OK, entries=[pb.SendResultEntry(status=OK)]).SerializeToString()
"""Half as expensive to complete as a response that is made of its fields."""
_MAY_BE_PLAIN = frozenset({pb.NORMAL, pb.MESSAGE_TYPE_UNSPECIFIED})
_NO_QUEUE = "no writable queue"
_turns = itertools.count()
"""Messages without a message group go to the queues in turn."""


def send_at_once(call: GrpcCall, request: pb.SendMessageRequest) -> bool:
    """Send one plain message. False: it is not plain, or something about it has to be asked for."""
    direct, given = call.client.link.direct, request.messages
    if len(given) != 1 or given[0].system_properties.message_type not in _MAY_BE_PLAIN:
        return False
    message = given[0]
    name = topic_of(message.topic)
    topic = direct.topic(name)
    if topic is None:
        return False
    body = _checked_body(call, message)
    properties = _properties(call, message, name)
    kind = _kind(properties)
    if kind != "NORMAL":
        return False
    _check_type(kind, topic.message_type)
    if not topic.queues:
        raise GrpcRefusal(pb.FORBIDDEN, _NO_QUEUE)
    return direct.send(
        topic,
        next(_turns) % topic.queues,
        int(properties[BORN_TIMESTAMP]),
        text_of(properties),
        properties.get(TAGS, ""),
        body,
        _sys_flag(message, kind),
        _Sent(call, request),
    )


class _Sent:
    """A message on its way, which one of the methods ends."""

    __slots__ = ("_call", "_request")

    def __init__(self, call: GrpcCall, request: pb.SendMessageRequest) -> None:
        self._call = call
        self._request = request

    @property
    def is_over(self) -> bool:
        return self._call.is_over

    def stored(self, queue_offset: int) -> None:
        message_id = self._request.messages[0].system_properties.message_id
        self._call.answer(_sent(message_id, queue_offset).SerializeToString())

    def failed(self, code: int, remark: str) -> None:
        self._call.answer(_failed(code, remark).SerializeToString())

    def refused(self, error: Exception) -> None:
        refusal = (
            error if isinstance(error, GrpcRefusal) else GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(error))
        )
        self._call.answer(pb.SendMessageResponse(status=refusal.status).SerializeToString())

    def take_long_way(self) -> None:
        self._call.serve(self._request)


async def send_message(call: GrpcCall, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
    given = request.messages
    if not given:
        raise GrpcRefusal(pb.MESSAGE_CORRUPTED, "no message to send")
    if len(given) > MAX_BATCH:
        raise GrpcRefusal(pb.BAD_REQUEST, f"{len(given)} messages in one request, at most {MAX_BATCH}")
    topic = topic_of(given[0].topic)
    messages = await of_each(given, lambda each: _message(call, each, topic))
    kind = _kind(messages[0].properties)
    if any(_kind(each.properties) != kind for each in messages[1:]):
        raise GrpcRefusal(pb.MESSAGE_CORRUPTED, "the messages of a batch are of one type")
    await check_type(call, topic, kind)
    queue = _choose(await call.backend.route(topic), topic, messages)
    is_batch = len(messages) > 1
    answer = await call.request(
        queue.broker_name,
        RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2,
        SendMessageRequestHeaderV2.of(
            topic,
            topic,
            queue.queue_id,
            int(messages[0].properties[BORN_TIMESTAMP]),
            encode_properties(messages[0].properties).decode(),
            sys_flag=_sys_flag(given[0], kind),
            batch=is_batch,
        ),
        encode_batch(messages) if is_batch else messages[0].body,
    )
    if answer.code != ResponseCode.SUCCESS:
        return _failed(answer.code, answer.remark or "")
    stored = answer.header(SendMessageResponseHeader)
    if kind == "TRANSACTION":
        _, _, position = decode_offset_id(stored.msg_id)
        half = GrpcHalf(queue.broker_name, stored.queue_offset, position)
        call.shared.halves.note(topic, messages[0].properties[UNIQ_KEY], half)
    response = _sent(",".join([each.properties[UNIQ_KEY] for each in messages]), stored.queue_offset)
    if stored.recall_handle:
        response.entries[0].recall_handle = stored.recall_handle
    return response


def _sent(message_id: str, offset: int) -> pb.SendMessageResponse:
    response: pb.SendMessageResponse = pb.SendMessageResponse.FromString(_SENT)
    entry = response.entries[0]
    entry.message_id = entry.transaction_id = message_id
    entry.offset = offset
    return response


def _failed(answered: int, remark: str) -> pb.SendMessageResponse:
    """``answered``: the broker's response code."""
    code = _NOT_DURABLE.get(answered)
    if code is None:
        return pb.SendMessageResponse(status=refusal(answered, remark).status)
    return pb.SendMessageResponse(
        status=status(code), entries=[pb.SendResultEntry(status=status(code, remark))]
    )


async def recall_message(call: GrpcCall, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
    topic = topic_of(request.topic)
    await check_type(call, topic, "DELAY")
    try:
        _, broker_name, _, _ = decode_recall_handle(request.recall_handle)
    except InvalidMessage as error:
        raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(error)) from None
    header = RecallMessageRequestHeader(
        topic=topic, recall_handle=request.recall_handle, producer_group=topic
    )
    answer = checked(await call.request(broker_name, RequestCode.RECALL_MESSAGE, header))
    return pb.RecallMessageResponse(status=OK, message_id=answer.header(RecallMessageResponseHeader).msg_id)


async def check_type(call: GrpcCall, topic: str, kind: str) -> None:
    """Raises GrpcRefusal unless the topic takes messages of this type. What it takes is for those who may use it."""
    call.client.link.rights.see(topic)
    _check_type(kind, await call.backend.message_type(topic))


def _check_type(kind: str, accepted: str) -> None:
    if kind != accepted and accepted != "MIXED":
        raise GrpcRefusal(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {accepted}, but actual type is {kind}",
        )


def _kind(properties: Mapping[str, str]) -> str:
    """The type of a message, by its properties (TopicMessageType.parseFromMessageProperty)."""
    if properties.get(TRANSACTION_PREPARED) == "true":
        return "TRANSACTION"
    if TIMER_DELIVER_MS in properties or DELAY in properties:
        return "DELAY"
    if SHARDING_KEY in properties:
        return "FIFO"
    if PRIORITY in properties:
        return "PRIORITY"
    return "LITE" if LITE_TOPIC in properties else "NORMAL"


def _sys_flag(message: pb.Message, kind: str) -> int:
    flag = TRANSACTION_PREPARED_TYPE if kind == "TRANSACTION" else 0
    return flag | (COMPRESSED if message.system_properties.body_encoding == pb.GZIP else 0)


def _born_ms(message: pb.Message) -> int:
    if message.system_properties.HasField("born_timestamp"):
        return millis_of(message.system_properties.born_timestamp)
    return wall_ms()


def _message(call: GrpcCall, given: pb.Message, topic: str) -> Message:
    """Raises GrpcRefusal for what the proxy refuses."""
    if given.topic.name != topic:
        raise GrpcRefusal(pb.MESSAGE_CORRUPTED, "topic in message is not same")
    return Message(topic=topic, body=_checked_body(call, given), properties=_properties(call, given, topic))


def _checked_body(call: GrpcCall, given: pb.Message) -> bytes:
    body: bytes = given.body
    most = call.backend.max_message_bytes
    if not body:
        raise GrpcRefusal(pb.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > most:
        raise GrpcRefusal(pb.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {most}")
    return body


def _properties(call: GrpcCall, given: pb.Message, topic: str) -> dict[str, str]:
    system = given.system_properties
    properties = _user_properties(given)
    if tag := system.tag:
        properties[TAGS] = tag
    if keys := system.keys:
        properties[KEYS] = " ".join(keys)
    message_id: str = system.message_id
    if not message_id.strip():
        raise GrpcRefusal(pb.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if has_control(message_id):
        raise GrpcRefusal(pb.ILLEGAL_MESSAGE_ID, "message id cannot contain control character")
    properties[UNIQ_KEY] = message_id
    if system.message_type == pb.TRANSACTION:
        properties[TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            if seconds > MAX_RECOVERY_S:
                raise GrpcRefusal(
                    pb.BAD_REQUEST,
                    f"the max transaction recovery time of message is too large, max is {MAX_RECOVERY_S}",
                )
            properties[IMMUNITY_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        deliver_ms = millis_of(system.delivery_timestamp, pb.ILLEGAL_DELIVERY_TIME)
        if deliver_ms - wall_ms() > MAX_DELAY_MS:
            raise GrpcRefusal(
                pb.ILLEGAL_DELIVERY_TIME,
                f"the max delay time of message is too large, max is {MAX_DELAY_MS}",
            )
        properties[TIMER_DELIVER_MS] = str(deliver_ms)
    properties[PRODUCER_GROUP] = topic
    if system.message_group:
        _check_message_group(system.message_group)
        properties[SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        if system.priority < 0:
            raise GrpcRefusal(pb.BAD_REQUEST, "the priority of a message cannot be negative")
        properties[PRIORITY] = str(system.priority)
    if system.lite_topic:
        check_lite_topic(system.lite_topic)
        properties[LITE_TOPIC] = system.lite_topic
    if system.trace_context:
        if has_control(system.trace_context):
            raise GrpcRefusal(pb.BAD_REQUEST, "trace context cannot contain control character")
        properties[TRACE_CONTEXT] = system.trace_context
    host = system.born_host.strip()
    properties[BORN_HOST] = host if host and not has_control(host) else call.client.caller.address[0]
    properties[BORN_TIMESTAMP] = str(_born_ms(given))
    return properties


def _user_properties(given: pb.Message) -> dict[str, str]:
    system, own = given.system_properties, given.user_properties
    if not own and not system.tag and not system.keys:
        return {}
    if len(own) > MAX_USER_PROPERTIES:
        raise GrpcRefusal(
            pb.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {MAX_USER_PROPERTIES}"
        )
    _check_size(system, own)
    for key, value in own.items():
        if key in SYSTEM_KEYS or key in _OURS:
            raise GrpcRefusal(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {key}")
        for what, text in (("key", key), ("value", value)):
            if has_control(text):
                raise GrpcRefusal(
                    pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
                    f"the {what} of property cannot contain control character",
                )
    _check_tag(system.tag)
    for key in system.keys:
        if key and not key.strip():
            raise GrpcRefusal(pb.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
        if has_control(key):
            raise GrpcRefusal(pb.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")
    return dict(own)


def _check_size(system: pb.SystemProperties, own: Mapping[str, str]) -> None:
    """Before anybody looks at the letters: those of a request can be millions, as its keys. A key takes a place also
    when it is empty. Raises GrpcRefusal."""
    keys, tag = system.keys, system.tag
    size = len(keys)
    if size <= MAX_USER_PROPERTY_BYTES:
        letters = len(tag) + sum(map(len, keys)) + sum(map(len, own)) + sum(map(len, own.values()))
        if letters * _MAX_LETTER_BYTES <= MAX_USER_PROPERTY_BYTES:
            return
        size = sum(len(text.encode()) for text in (*own, *own.values(), *keys, tag))
    if size > MAX_USER_PROPERTY_BYTES:
        raise GrpcRefusal(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {MAX_USER_PROPERTY_BYTES}",
        )


def _check_tag(tag: str) -> None:
    if tag and not tag.strip():
        raise GrpcRefusal(pb.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise GrpcRefusal(pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if has_control(tag):
        raise GrpcRefusal(pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")


def _check_message_group(group: str) -> None:
    if not group.strip():
        raise GrpcRefusal(pb.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace")
    if len(group.encode()) > MAX_MESSAGE_GROUP_BYTES:
        raise GrpcRefusal(
            pb.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {MAX_MESSAGE_GROUP_BYTES + 1}"
        )
    if has_control(group):
        raise GrpcRefusal(pb.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character")


def _choose(route: TopicRouteData, topic: str, messages: Sequence[Message]) -> MessageQueue:
    """The queue of the message group, or the next one. Raises GrpcRefusal when the topic has none to write to."""
    writable = [each for each in route.queue_datas if each.perm & PERM_WRITE and each.write_queue_nums > 0]
    if not writable:
        raise GrpcRefusal(pb.FORBIDDEN, _NO_QUEUE)
    if len(writable) > 1:
        writable.sort(key=lambda each: each.broker_name)
    count = sum(each.write_queue_nums for each in writable)
    group = messages[0].properties.get(SHARDING_KEY) if len(messages) == 1 else None
    place = next(_turns) % count if group is None else consistent_hash(java_hash(group), count)
    for each in writable:
        if place < each.write_queue_nums:
            return MessageQueue(topic, each.broker_name, place)
        place -= each.write_queue_nums
    raise RuntimeError("the queues are fewer than their sum")


def consistent_hash(value: int, buckets: int) -> int:
    """The bucket of a number (Guava's Hashing.consistentHash): with one more bucket, few numbers move."""
    state, chosen = value & 0xFFFFFFFFFFFFFFFF, 0
    while True:
        state = (2862933555777941757 * state + 1) & 0xFFFFFFFFFFFFFFFF
        candidate = int((chosen + 1) / (((state >> 33) + 1) / 2147483648.0))
        if not 0 <= candidate < buckets:
            return chosen
        chosen = candidate
