"""What clients say of messages that they have: AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue
(AckMessageActivity, ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity).

The receipt of a message that is renewed is no longer the one that the client got: the newest one is meant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from mqspark.broker.pop.ackrun import AckedTogether, AckRun
from mqspark.errors import ProtocolError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    ConsumerSendMsgBackRequestHeader,
)
from mqspark.protocol.receipts import Receipt, real_topic
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S, Link, ProxyBackend
from mqspark_server.proxy.clients.grpccalls import GrpcCall
from mqspark_server.proxy.clients.grpcclients import GrpcClient, GrpcClients
from mqspark_server.proxy.clients.renewals import ClientKey, ReceiptPlace, Renewals, place_of
from mqspark_server.proxy.clients.turnacks import TurnAcks
from mqspark_server.proxy.content.grpcacks import SingleAck, ack_response, acked_pops
from mqspark_server.proxy.content.receipthandles import ReceiptHandle, parse_handle, parse_parts
from mqspark_server.proxy.content.resources import group_of, topic_of
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal, ack_refusal, checked, refusal_of

MAX_INVISIBLE_MS = 12 * 3_600_000
"""maxInvisibleTimeMills"""
ACKS_AT_ONCE = 64
"""Entries of one request that are with brokers at the same time."""
MAX_ACKS = 1_024
"""Entries of one request. A client acknowledges what it has received, 32 at a time at most."""

_TO_DEAD_LETTERS = -1
T = TypeVar("T")


def invisible_ms_of(duration: Duration, least_ms: int = 0) -> int:
    """Raises GrpcRefusal."""
    invisible_ms: int = duration.ToMilliseconds()
    if invisible_ms < least_ms:
        raise GrpcRefusal(pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least_ms}")
    if invisible_ms > MAX_INVISIBLE_MS:
        raise GrpcRefusal(
            pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {MAX_INVISIBLE_MS}"
        )
    return invisible_ms


def ack_at_once(call: GrpcCall, request: SingleAck | pb.AckMessageRequest) -> bool:
    """``ack_message`` for messages of one broker that are not renewed."""
    if isinstance(request, SingleAck):
        if _ack_with_turn(call, request):
            return True
        whole = request.whole
        if not ack_at_once(call, whole):
            call.serve(whole)
        return True
    entries, renewals = request.entries, call.shared.renewals
    if not 0 < len(entries) <= ACKS_AT_ONCE or renewals.held_by(call.client.key):
        return False
    topic, group = topic_of(request.topic), group_of(request.group)
    outcomes, acks = [OK] * len(entries), _Acks(topic, group)
    now_ms = call.backend.clock.now_ms()
    for number, entry in enumerate(entries):
        if entry.lite_topic:
            return False
        try:
            receipt, offset, _ = _parsed(parse_parts, entry.receipt_handle)
            _check_time(receipt, now_ms)
        except GrpcRefusal as refused:
            outcomes[number] = refused.status
        else:
            acks.add(number, receipt, offset)
    if len(acks.of_brokers) != 1:
        return False
    ((broker, of_broker),) = acks.of_brokers.items()
    run = _AtOnce(call, entries, outcomes, of_broker.values())
    if not call.client.link.acknowledge(broker, run):
        return False
    if not run.waiting and not run.asked:
        run.done()
    return True


def _ack_with_turn(call: GrpcCall, given: SingleAck) -> bool:
    """False: something about it is unusual."""
    client, renewals, parts = call.client, call.shared.renewals, given.parts()
    if parts is None or (renewals and renewals.held_by(client.key)):
        return False
    try:
        pop = acked_pops[given.resources, parts[0]]
    except (GrpcRefusal, ProtocolError):
        return False
    if pop.receipt.visible_again_ms <= call.backend.clock.now_ms():
        return False
    broker = pop.receipt.broker_name
    acks = client.acks.get(broker)
    if acks is None:
        acks = client.acks[broker] = TurnAcks()
        client.link.at_turn_end(partial(_tell, client, broker))
    acks.add(call, given, pop, parts[1])
    return True


def _tell(client: GrpcClient, broker: str) -> None:
    client.acks.pop(broker).tell(client.link, broker)


class _AtOnce(AckRun):
    """Answers a call when it is done. A function in its place would be garbage that only a collection finds."""

    __slots__ = ("_call", "_entries", "_outcomes")

    def __init__(
        self,
        call: GrpcCall,
        entries: Sequence[pb.AckMessageEntry],
        outcomes: list[pb.Status],
        acks: Iterable[AckedTogether],
    ) -> None:
        super().__init__(acks)
        self._call = call
        self._entries = entries
        self._outcomes = outcomes

    def done(self) -> None:
        for number, answer in self.answers.items():
            self._outcomes[number] = ack_refusal(answer).status
        self._call.answer(ack_response(self._entries, self._outcomes).SerializeToString())


async def ack_message(call: GrpcCall, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
    """Each entry has its own outcome."""
    topic, group = topic_of(request.topic), group_of(request.group)
    entries, outcomes = request.entries, list[pb.Status]()
    if len(entries) > MAX_ACKS:
        raise GrpcRefusal(
            pb.BAD_REQUEST, f"{len(entries)} acknowledgements in one request, at most {MAX_ACKS}"
        )
    for first in range(0, len(entries), ACKS_AT_ONCE):
        outcomes += await _acknowledged(call, topic, group, entries[first : first + ACKS_AT_ONCE])
    return ack_response(entries, outcomes)


class _Acks:
    """The acknowledgements of one call, by what brokers have handed out together."""

    def __init__(self, topic: str, group: str) -> None:
        self._topic = topic
        self._group = group
        self.of_brokers: dict[str, dict[Receipt, AckedTogether]] = {}

    def add(self, number: int, receipt: Receipt, offset: int) -> None:
        """``receipt``: without an offset."""
        of_broker = self.of_brokers.setdefault(receipt.broker_name, {})
        acked = of_broker.get(receipt)
        if acked is None:
            stored_in = real_topic(self._topic, self._group, receipt.retry)
            of_broker[receipt] = AckedTogether(stored_in, self._group, receipt, [number], [offset])
        else:
            acked.numbers.append(number)
            acked.offsets.append(offset)


async def _acknowledged(
    call: GrpcCall, topic: str, group: str, entries: Sequence[pb.AckMessageEntry]
) -> list[pb.Status]:
    outcomes, acks = [OK] * len(entries), _Acks(topic, group)
    singly: list[tuple[int, str, ReceiptHandle]] = []
    for number, entry in enumerate(entries):
        try:
            handle = await taken(call, topic, group, entry.receipt_handle, entry.lite_topic)
        except GrpcRefusal as refused:
            outcomes[number] = refused.status
            continue
        if entry.lite_topic:
            singly.append((number, entry.lite_topic, handle))
        else:
            acks.add(number, handle.receipt._replace(offset=-1), handle.receipt.offset)
    for broker, of_broker in acks.of_brokers.items():
        answers = await _without_requests(call.client.link, broker, of_broker.values())
        if answers is not None:
            for number, answer in answers.items():
                outcomes[number] = ack_refusal(answer).status
            continue
        for receipt, acked in of_broker.items():
            for number, offset in zip(acked.numbers, acked.offsets, strict=True):
                singly.append((number, "", ReceiptHandle(receipt._replace(offset=offset), -1)))
    if singly:
        await _acknowledge_singly(call, topic, group, singly, outcomes)
    return outcomes


async def _acknowledge_singly(
    call: GrpcCall,
    topic: str,
    group: str,
    given: Sequence[tuple[int, str, ReceiptHandle]],
    outcomes: list[pb.Status],
) -> None:
    """By a request for each: its number among the outcomes, its lite topic and handle."""
    link = call.client.link
    asked = [acknowledge(link, place_of(group, topic, lite, handle), handle) for _, lite, handle in given]
    results = await asyncio.gather(*asked, return_exceptions=True)
    for (number, _, _), result in zip(given, results, strict=True):
        if isinstance(result, GrpcRefusal):
            outcomes[number] = result.status
        elif result is not None:
            raise result


async def _without_requests(
    link: Link, broker: str, acks: Iterable[AckedTogether]
) -> Mapping[int, Command | Exception] | None:
    """What the broker says instead of success, by the numbers of messages. None: requests have to be made."""
    run = _AwaitedAcks(acks)
    if not link.acknowledge(broker, run):
        return None
    if run.waiting or run.asked:
        await run.stored
    return run.answers


class _AwaitedAcks(AckRun):
    __slots__ = ("stored",)

    def __init__(self, acks: Iterable[AckedTogether]) -> None:
        super().__init__(acks)
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> None:
        if not self.stored.done():
            self.stored.set_result(None)


async def change_invisible_duration(
    call: GrpcCall, request: pb.ChangeInvisibleDurationRequest
) -> pb.ChangeInvisibleDurationResponse:
    topic, group = topic_of(request.topic), group_of(request.group)
    invisible_ms = invisible_ms_of(request.invisible_duration)
    handle = await taken(call, topic, group, request.receipt_handle, request.lite_topic)
    place = place_of(group, topic, request.lite_topic, handle)
    changed = await change_receipt(call.client.link, place, handle, invisible_ms, suspend=request.suspend)
    if changed is None:
        raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, "changeInvisibleDuration failed: status is abnormal")
    return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.encode())


async def forward_to_dead_letters(
    call: GrpcCall, request: pb.ForwardMessageToDeadLetterQueueRequest
) -> pb.ForwardMessageToDeadLetterQueueResponse:
    topic, group = topic_of(request.topic), group_of(request.group)
    handle = await taken(call, topic, group, request.receipt_handle, request.lite_topic)
    place = place_of(group, topic, request.lite_topic, handle)
    await forward(call.client.link, place, handle, request.message_id)
    return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)


async def taken(call: GrpcCall, topic: str, group: str, text: str, lite_topic: str) -> ReceiptHandle:
    """The handle with which to name the message that a client's handle names; it is not renewed any more. Raises
    GrpcRefusal."""
    handle = _parsed(parse_handle, text)
    renewals, key = call.shared.renewals, call.client.key
    if renewals.held_by(key):
        handle = await renewals.take(key, place_of(group, topic, lite_topic, handle), handle)
    _check_time(handle.receipt, call.backend.clock.now_ms())
    return handle


def _parsed(parse: Callable[[str], T], text: str) -> T:
    """Raises GrpcRefusal."""
    try:
        return parse(text)
    except ProtocolError as error:
        raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(error)) from None


def _check_time(receipt: Receipt, now_ms: int) -> None:
    """Raises GrpcRefusal."""
    if receipt.pop_time_ms + receipt.invisible_time_ms <= now_ms:
        raise GrpcRefusal(pb.INVALID_RECEIPT_HANDLE, "receipt handle is expired")


def renewals_for(backend: ProxyBackend, clients: GrpcClients) -> Renewals:
    """Renewals over the links of the clients."""

    async def changed(
        key: ClientKey, place: ReceiptPlace, handle: ReceiptHandle, invisible_ms: int
    ) -> ReceiptHandle | None:
        client = clients.find(key)
        return None if client is None else await change_receipt(client.link, place, handle, invisible_ms)

    def is_here(key: ClientKey) -> bool:
        client = clients.find(key)
        return client is not None and client.is_here

    return Renewals(backend.clock, changed, is_here)


# --- requests to brokers --------------------------------------------------------------------------------------


def _stored_in(place: ReceiptPlace) -> str:
    return real_topic(place.topic, place.group, place.retry)


async def acknowledge(link: Link, place: ReceiptPlace, handle: ReceiptHandle) -> None:
    """Raises GrpcRefusal."""
    header = AckMessageRequestHeader(
        consumer_group=place.group,
        topic=_stored_in(place),
        queue_id=place.queue_id,
        extra_info=handle.encode(),
        offset=place.offset,
        lite_topic=place.lite_topic or None,
        bname=place.broker_name,
    )
    answer = await link.request(
        place.broker_name, RequestCode.ACK_MESSAGE, header, timeout_s=ANSWER_TIMEOUT_S
    )
    if answer.code != ResponseCode.SUCCESS:
        raise ack_refusal(answer)


async def change_receipt(
    link: Link, place: ReceiptPlace, handle: ReceiptHandle, invisible_ms: int, *, suspend: bool = False
) -> ReceiptHandle | None:
    """The new handle; None if the broker does not know the old one. ``suspend``: the rest of a lite topic waits, too.
    Raises GrpcRefusal."""
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=place.group,
        topic=_stored_in(place),
        queue_id=place.queue_id,
        extra_info=handle.encode(),
        offset=place.offset,
        invisible_time=invisible_ms,
        lite_topic=place.lite_topic or None,
        suspend=suspend,
        bname=place.broker_name,
    )
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    answer = await link.request(place.broker_name, code, header, timeout_s=ANSWER_TIMEOUT_S)
    if answer.code == ResponseCode.NO_MESSAGE:
        return None
    try:
        changed = checked(answer).header(ChangeInvisibleTimeResponseHeader)
    except ProtocolError as error:
        raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(error)) from None
    return handle.changed(changed.pop_time, changed.invisible_time, changed.revive_qid)


async def forward(link: Link, place: ReceiptPlace, handle: ReceiptHandle, message_id: str) -> None:
    """Make a message a dead letter, and acknowledge it. Raises GrpcRefusal."""
    if handle.position < 0:
        raise GrpcRefusal(pb.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
    header = ConsumerSendMsgBackRequestHeader(
        offset=handle.position,
        group=place.group,
        delay_level=_TO_DEAD_LETTERS,
        origin_msg_id=message_id or None,
        origin_topic=_stored_in(place),
        max_reconsume_times=0,
        bname=place.broker_name,
    )
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    answer = await link.request(place.broker_name, code, header, timeout_s=ANSWER_TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer)
    await acknowledge(link, place, handle)
