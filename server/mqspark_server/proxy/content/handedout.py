"""Popped messages, with the handles that clients get (ConsumerProcessor)."""

from __future__ import annotations

from typing import NamedTuple

from mqspark.base.logs import escaping
from mqspark.client.pop.popped import PopAnswer, PoppedFrom
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.message import (
    LITE_TOPIC,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    POP_CK,
    MessageExt,
    MessageQueue,
    parse_number,
)
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import PopMessageResponseHeader
from mqspark.protocol.receipts import NORMAL, Receipt, parse_receipt
from mqspark.record.record import decode_pull
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.grpcmessages import assembled, encoded_message, may_inflate, topic_field
from mqspark_server.proxy.content.receipthandles import ReceiptHandle
from mqspark_server.proxy.content.usualrecords import UsualRecord, usual_record
from mqspark_server.proxy.content.wirefields import tag, varint

log = escaping(__name__)


class _Handed:
    """A message's handle in parts: but for offset and position it is that of all of one pop and queue."""

    __slots__ = ("_pop", "_text", "offset", "position")
    _pop: Receipt
    _text: str
    """``_pop`` as handles have it, without an offset."""
    offset: int
    """In its queue, or that of its lite topic."""
    position: int

    @property
    def handle(self) -> ReceiptHandle:
        return ReceiptHandle(self._pop._replace(offset=self.offset), self.position)

    @property
    def receipt_handle(self) -> str:
        """As ``handle`` is written."""
        return f"{self._text} {self.offset} {self.position}"


class HandedOut(_Handed):
    """A message, and its handle."""

    __slots__ = ("message",)

    def __init__(self, message: MessageExt, pop: Receipt, text: str, offset: int) -> None:
        self.message = message
        self._pop = pop
        self._text = text
        self.offset = offset
        self.position = message.physical_offset

    @property
    def may_inflate(self) -> bool:
        return may_inflate(self.message)

    @property
    def message_id(self) -> str:
        return self.message.message_id

    @property
    def lite_topic(self) -> str:
        return self.message.properties.get(LITE_TOPIC, "")

    @property
    def tags(self) -> str | None:
        return self.message.tags

    @property
    def reconsume_times(self) -> int:
        return self.message.reconsume_times

    def encoded(self, now_ms: int) -> bytes:
        """``now_ms`` as for ``stored_message``."""
        return encoded_message(self.message, now_ms, self.offset, self.receipt_handle)


class _Place(NamedTuple):
    """What the usual messages of one queue share."""

    topic: bytes
    """As a field of the message."""
    pop: Receipt
    text: str
    offsets: frozenset[int]


class UsualOut(_Handed):
    """A usual message, and its handle."""

    __slots__ = ("_encoded", "_id", "reconsume_times", "tags")
    may_inflate = False
    lite_topic = ""

    def __init__(self, record: UsualRecord, place: _Place) -> None:
        (
            _, _, queue_id, offset, position, times, born_ms, stored_ms, unique_id, born_host, store_host, body, form,
        ) = record  # fmt: skip
        self._pop = place.pop
        self._text = text = place.text
        self.offset = offset
        self.position = position
        self.reconsume_times = times
        self.tags = form.tags
        self._id = unique_id
        handle = b"%b %d %d" % (text.encode(), offset, position)
        self._encoded = assembled(
            place.topic, form.extras, unique_id, born_ms, born_host, stored_ms, store_host, queue_id, offset, times,
            handle, body,
        )  # fmt: skip

    @property
    def message_id(self) -> str:
        return self._id.decode()

    def encoded(self, now_ms: int) -> bytes:
        return self._encoded


Given = HandedOut | UsualOut


def handed_out(response: Command, queue: MessageQueue, group: str) -> list[Given]:
    """The messages of an answer to a pop. Damaged ones are left to come again. Raises ProtocolError."""
    answer = PopAnswer(response, queue, group)
    popped: list[Given] = []
    begin = _usual(answer, popped)
    texts: dict[Receipt, str] = {}
    for message in answer.messages(begin):
        origin = answer.origin(message)
        given = message.properties.get(POP_CK)
        if given is None:
            pop, offset = answer.pop_of(message, origin), int(message.queue_offset)
        else:
            receipt = parse_receipt(given)
            pop, offset = receipt._replace(offset=-1), receipt.offset
        text = texts.get(pop)
        if text is None:
            text = texts[pop] = pop.encode()
        message.topic = origin.topic
        popped.append(HandedOut(message, pop, text, offset))
    return popped


def _usual(answer: PopAnswer, popped: list[Given]) -> int:
    """Take the usual records before the first other one. Returns where that begins."""
    data = answer.body if isinstance(answer.body, bytes) else bytes(answer.body)
    begin, stored_in, queue_id = 0, b"", -1
    place: _Place | None = None
    while (record := usual_record(data, begin)) is not None:
        if record[1] != stored_in or record[2] != queue_id:
            _, stored_in, queue_id, *_ = record
            place = _place(answer.origin_of(stored_in.decode("utf-8", "replace"), queue_id))
        if place is None or record[3] not in place.offsets:
            break
        popped.append(UsualOut(record, place))
        begin = record[0]
    return begin


def _place(origin: PoppedFrom) -> _Place | None:
    """None: there are no receipts, or the answer counts the deliveries of each message."""
    pop = origin.pop
    if pop is None or pop.is_order:
        return None
    return _Place(topic_field(origin.topic), pop, pop.encode(), frozenset(origin.offsets))


def lite_handed_out(response: Command, topic: str, broker_name: str) -> list[Given]:
    """The same of a pop of lite topics, whose answer counts the deliveries of the messages in their order
    (MQClientAPIImpl.processPopLiteResponse). Raises ProtocolError."""
    answer = response.header(PopMessageResponseHeader)
    damaged: list[InvalidMessage] = []
    messages, _ = decode_pull(response.body, broker_name=broker_name, damaged=damaged)
    for error in damaged:
        log.error("a pop of the lite topics of %s: %s; it is left to be redelivered", topic, error)
    counts = (answer.order_count_info or "").split(";")
    if damaged or len(counts) != len(messages):
        counts = ["0"] * len(messages)
    pop = Receipt(0, answer.pop_time, answer.invisible_time, answer.revive_qid, NORMAL, broker_name, 0)
    given, text = list[Given](), pop.encode()
    for message, count in zip(messages, counts, strict=True):
        offset = parse_number(message.properties.get(MULTI_QUEUE_OFFSET))
        if offset is None or "," in message.properties.get(MULTI_DISPATCH, ","):
            raise ProtocolError(f"{message.message_id} of {topic} is not a message of one lite topic")
        message.reconsume_times = parse_number(count) or 0
        given.append(HandedOut(message, pop, text, offset))
    return given


_RECEIVED = tag(pb.ReceiveMessageResponse.DESCRIPTOR, "message")


def delivered(given: Given, now_ms: int) -> bytes:
    """A ReceiveMessageResponse; ``now_ms`` as for ``stored_message``."""
    made = given.encoded(now_ms)
    return b"%b%b%b" % (_RECEIVED, varint(len(made)), made)
