"""Popped messages, with the handles that clients get (ConsumerProcessor)."""

from __future__ import annotations

from mqspark.base.logs import escaping
from mqspark.client.pop.popped import PopAnswer
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.message import MULTI_DISPATCH, MULTI_QUEUE_OFFSET, POP_CK, MessageExt, MessageQueue, parse_number
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import PopMessageResponseHeader
from mqspark.protocol.receipts import NORMAL, Receipt, parse_receipt
from mqspark.record.record import decode_pull
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.grpcmessages import encoded_message
from mqspark_server.proxy.content.receipthandles import ReceiptHandle
from mqspark_server.proxy.content.wirefields import tag, varint

log = escaping(__name__)


class HandedOut:
    """A message, and its handle in parts: but for offset and position it is that of all of one pop and queue."""

    __slots__ = ("_offset", "_pop", "_text", "message")

    def __init__(self, message: MessageExt, pop: Receipt, text: str, offset: int) -> None:
        """``text``: ``pop`` as handles have it, without an offset."""
        self.message = message
        self._pop = pop
        self._text = text
        self._offset = offset

    @property
    def handle(self) -> ReceiptHandle:
        return ReceiptHandle(self._pop._replace(offset=self._offset), self.message.physical_offset)

    @property
    def offset(self) -> int:
        """In its queue, or that of its lite topic."""
        return self._offset

    @property
    def receipt_handle(self) -> str:
        """As ``handle`` is written."""
        return f"{self._text} {self._offset} {self.message.physical_offset}"


def handed_out(response: Command, queue: MessageQueue, group: str) -> list[HandedOut]:
    """The messages of an answer to a pop. Damaged ones are left to come again. Raises ProtocolError."""
    answer = PopAnswer(response, queue, group)
    texts: dict[Receipt, str] = {}
    popped = []
    for message in answer.messages():
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


def lite_handed_out(response: Command, topic: str, broker_name: str) -> list[HandedOut]:
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
    given, text = [], pop.encode()
    for message, count in zip(messages, counts, strict=True):
        offset = parse_number(message.properties.get(MULTI_QUEUE_OFFSET))
        if offset is None or "," in message.properties.get(MULTI_DISPATCH, ","):
            raise ProtocolError(f"{message.message_id} of {topic} is not a message of one lite topic")
        message.reconsume_times = parse_number(count) or 0
        given.append(HandedOut(message, pop, text, offset))
    return given


_RECEIVED = tag(pb.ReceiveMessageResponse.DESCRIPTOR, "message")


def delivered(given: HandedOut, now_ms: int) -> bytes:
    """A ReceiveMessageResponse; ``now_ms`` as for ``stored_message``."""
    made = encoded_message(given.message, now_ms, given.offset, given.receipt_handle)
    return b"".join((_RECEIVED, varint(len(made)), made))
