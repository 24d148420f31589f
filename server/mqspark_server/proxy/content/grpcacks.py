"""AckMessage. Clients acknowledge message by message, so there are as many of these calls as there are messages: the
request for one message, and its response, are bytes. What is not of this form becomes an object, as every other request
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from mqspark.base.bounded import Memo
from mqspark.errors import ProtocolError
from mqspark.message import MAX_DIGITS
from mqspark.protocol.receipts import Receipt, parse_receipt, real_topic
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.receipthandles import POP_PARTS
from mqspark_server.proxy.content.resources import group_of, topic_of
from mqspark_server.proxy.content.wirefields import sized, tag, varint
from mqspark_server.proxy.grpcstatus import OK, status

_REQUEST, _ENTRY = pb.AckMessageRequest.DESCRIPTOR, pb.AckMessageEntry.DESCRIPTOR
_GROUP, _TOPIC, _ENTRIES = (tag(_REQUEST, name)[0] for name in ("group", "topic", "entries"))
_ID, _HANDLE = tag(_ENTRY, "message_id")[0], tag(_ENTRY, "receipt_handle")[0]
_RESPONSE = pb.AckMessageResponse(status=OK).SerializeToString() + tag(
    pb.AckMessageResponse.DESCRIPTOR, "entries"
)
_OUTCOME = tag(pb.AckMessageResultEntry.DESCRIPTOR, "status") + sized(OK.SerializeToString())
"""What an outcome has besides the fields of the entry, which have the same numbers."""


class SingleAck(NamedTuple):
    request: bytes
    resources: bytes
    """Its group and topic."""
    entry: bytes
    handle: bytes

    @property
    def whole(self) -> pb.AckMessageRequest:
        request: pb.AckMessageRequest = pb.AckMessageRequest.FromString(self.request)
        return request

    def parts(self) -> tuple[bytes, int] | None:
        """What the handle shares with others of its pop and queue, and the offset. None: it has another form."""
        pop, _, position = self.handle.rpartition(b" ")
        pop, _, offset = pop.rpartition(b" ")
        if not offset.isdigit() or not position.isdigit() or len(offset) > MAX_DIGITS:
            return None
        return pop, int(offset)


def parse_ack(data: bytes) -> SingleAck | pb.AckMessageRequest:
    """Raises DecodeError."""
    return _single(data) or pb.AckMessageRequest.FromString(data)


def _single(data: bytes) -> SingleAck | None:
    """The usual order of the fields. A string below 128 bytes has one byte for its length."""
    try:
        topic = 2 + data[1]
        entries = topic + 2 + data[topic + 1]
        begin, size = entries + 2, data[entries + 1]
        if size >= 0x80:
            size, begin = size & 0x7F | data[begin] << 7, begin + 1
        handle = begin + 2 + data[begin + 1]
        if (
            (data[1] | data[topic + 1]) >= 0x80
            or data[0] != _GROUP
            or data[topic] != _TOPIC
            or data[entries] != _ENTRIES
            or data[begin] != _ID
            or data[handle] != _HANDLE
            or begin + size != len(data)
            or handle + 2 + data[handle + 1] != len(data)
        ):
            return None
    except IndexError:
        return None
    entry, resources = data[begin:], data[:entries]
    if not entry.isascii():
        return None
    _resources[resources]
    return SingleAck(data, resources, entry, data[handle + 2 :])


_resources: Memo[bytes, pb.AckMessageRequest] = Memo(
    "grpc.ackResources", pb.AckMessageRequest.FromString, weigh=lambda given, _: 1_000 + 8 * len(given)
)
"""Group and topic of requests: calls repeat them. Raises DecodeError."""


class AckedPop(Struct, eq=False):
    """What acknowledgements of messages share that one pop has handed out of one queue."""

    stored_in: str
    group: str
    receipt: Receipt
    """Without an offset."""


def _acked_pop(of: tuple[bytes, bytes]) -> AckedPop:
    """Raises GrpcRefusal, ProtocolError."""
    resources, pop = of
    if pop.count(b" ") != POP_PARTS - 1:
        raise ProtocolError("a receipt handle of another form")
    request = _resources[resources]
    topic, group = topic_of(request.topic), group_of(request.group)
    receipt = parse_receipt(pop.decode("ascii"))
    return AckedPop(real_topic(topic, group, receipt.retry), group, receipt)


acked_pops: Memo[tuple[bytes, bytes], AckedPop] = Memo(
    "grpc.acks", _acked_pop, weigh=lambda of, acked: 1_000 + 4 * len(of[0]) + 4 * len(of[1])
)
"""By ``SingleAck.resources`` and the pop's part of the handle."""


def acknowledged(entry: bytes) -> bytes:
    """The response to a ``SingleAck`` with this entry."""
    return b"".join((_RESPONSE, varint(len(entry) + len(_OUTCOME)), entry, _OUTCOME))


def ack_response(
    entries: Sequence[pb.AckMessageEntry], outcomes: Sequence[pb.Status]
) -> pb.AckMessageResponse:
    response = pb.AckMessageResponse()
    for entry, outcome in zip(entries, outcomes, strict=True):
        response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=outcome)
    codes = [*{outcome.code for outcome in outcomes}]
    if codes == [pb.OK]:
        response.status.CopyFrom(OK)
    elif codes:
        response.status.CopyFrom(status(codes[0] if len(codes) == 1 else pb.MULTIPLE_RESULTS))
    else:
        response.status.CopyFrom(status(pb.INTERNAL_SERVER_ERROR, "ack message result is empty"))
    return response
