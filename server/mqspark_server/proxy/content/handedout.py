"""Popped messages, with the handles that clients get (ConsumerProcessor)."""

from __future__ import annotations

from typing import NamedTuple

from mqspark.base.logs import escaping
from mqspark.client.pop.popped import popped_of
from mqspark.client.remoting.namespaces import Namespace
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.message import MULTI_DISPATCH, MULTI_QUEUE_OFFSET, MessageExt, MessageQueue, parse_number
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import PopMessageResponseHeader
from mqspark.protocol.receipts import NORMAL, Receipt
from mqspark.record.record import decode_pull
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.grpcmessages import put_message
from mqspark_server.proxy.content.receipthandles import ReceiptHandle

log = escaping(__name__)


class HandedOut(NamedTuple):
    message: MessageExt
    handle: ReceiptHandle


def handed_out(response: Command, queue: MessageQueue, group: str) -> list[HandedOut]:
    """The messages of an answer to a pop. Damaged ones are left to come again. Raises ProtocolError."""
    popped = popped_of(response, queue, group, Namespace(""), arrived_s=0)
    return [
        HandedOut(each.message, ReceiptHandle(each.receipt, each.message.physical_offset)) for each in popped
    ]


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
    given = []
    for message, count in zip(messages, counts, strict=True):
        offset = parse_number(message.properties.get(MULTI_QUEUE_OFFSET))
        if offset is None or "," in message.properties.get(MULTI_DISPATCH, ","):
            raise ProtocolError(f"{message.message_id} of {topic} is not a message of one lite topic")
        receipt = Receipt(
            0, answer.pop_time, answer.invisible_time, answer.revive_qid, NORMAL, broker_name, 0, offset
        )
        message.reconsume_times = parse_number(count) or 0
        given.append(HandedOut(message, ReceiptHandle(receipt, message.physical_offset)))
    return given


def delivered(given: HandedOut, now_ms: int) -> pb.ReceiveMessageResponse:
    """As the client gets it; ``now_ms`` as for ``stored_message``."""
    made = pb.ReceiveMessageResponse()
    put_message(made.message, given.message, now_ms)
    system = made.message.system_properties
    system.receipt_handle, system.queue_offset = given.handle.encode(), given.handle.receipt.offset
    return made
