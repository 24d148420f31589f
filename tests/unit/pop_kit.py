"""Talking POP to a broker without sockets."""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from mqspark.message import MessageExt
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.receipts import Receipt, parse_message_offsets, parse_start_offsets, real_topic
from mqspark.record.record import decode_records
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

POP, ACK, BATCH_ACK, CHANGE = (
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
INVISIBLE_MS = 60_000


class Popped(NamedTuple):
    """One message in a client's hands."""

    message: MessageExt
    topic: str
    """Where it is stored: what an acknowledgement names."""
    receipt: Receipt

    @property
    def body(self) -> bytes:
        return self.message.body


def put(bench: Bench, *bodies: str, topic: str = "T", queue_id: int = 0, tag: str = "") -> None:
    peer = bench.peer()
    for body in bodies:
        peer.ask(SEND, send_ext(topic, queue_id, f"TAGS\x01{tag}\x02" if tag else ""), body.encode())


def pop_ext(bench: Bench, topic: str = "T", group: str = "CG", **more: str) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": str(INVISIBLE_MS),
        "pollTime": "0",
        "bornTime": str(bench.clock.now_ms()),
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        **more,
    }


def handed_out(answer: Command, topic: str = "T", group: str = "CG") -> list[Popped]:
    """As a client reads an answer: what it says of offsets and the messages must agree."""
    if answer.code != 0:
        assert not len(answer.body)
        return []
    ext = answer.ext
    starts = parse_start_offsets(ext["startOffsetInfo"])
    offsets = parse_message_offsets(ext["msgOffsetInfo"])
    assert set(starts) == set(offsets)
    messages = decode_records(bytes(answer.body))
    assert all(message.topic == topic for message in messages)
    expected = [(*place, offset) for place, numbers in offsets.items() for offset in numbers]
    assert [(m.queue_id, m.queue_offset) for m in messages] == [place[1:] for place in expected]
    popped = []
    for message, (retry, queue_id, offset) in zip(messages, expected, strict=True):
        receipt = Receipt(
            starts[retry, queue_id],
            int(ext["popTime"]),
            int(ext["invisibleTime"]),
            int(ext["reviveQid"]),
            retry,
            "b-a",
            queue_id,
            offset,
        )
        if retry != "0":
            assert message.properties["POP_CK"] == receipt.encode()
        popped.append(Popped(message, real_topic(topic, group, retry), receipt))
    return popped


def pop(bench: Bench, peer: Peer, topic: str = "T", group: str = "CG", **more: str) -> list[Popped]:
    return handed_out(peer.ask(POP, pop_ext(bench, topic, group, **more)), topic, group)


def ack_ext(popped: Popped, group: str = "CG", **more: str) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": popped.topic,
        "queueId": str(popped.receipt.queue_id),
        "offset": str(popped.receipt.offset),
        "extraInfo": popped.receipt.encode(),
        **more,
    }


def change(peer: Peer, popped: Popped, invisible_ms: int, group: str = "CG") -> Popped | Command:
    """The message under its new receipt, or the refusal."""
    answer = peer.ask(CHANGE, ack_ext(popped, group, invisibleTime=str(invisible_ms)))
    if answer.code:
        return answer
    receipt = popped.receipt._replace(
        start_offset=popped.receipt.offset,
        pop_time_ms=int(answer.ext["popTime"]),
        invisible_time_ms=int(answer.ext["invisibleTime"]),
        revive_queue=int(answer.ext["reviveQid"]),
    )
    return popped._replace(receipt=receipt)


def settle(bench: Bench) -> None:
    """Let everything that is on its way to the disk arrive."""
    for _ in range(4):
        bench.broker.turn()
        while bench.broker.work_waits:
            bench.broker.work()
        bench.housekeeping()


def pass_time(bench: Bench, ms: int, step_ms: int = 500) -> None:
    """Let the broker live through it."""
    for _ in range(0, ms, step_ms):
        bench.later(step_ms)
        bench.housekeeping()


def batch_body(popped: list[Popped], group: str = "CG") -> bytes:
    """A batch of acknowledgements, as a proxy groups them: by check point."""
    entries: dict[Receipt, list[int]] = {}
    topics: dict[Receipt, str] = {}
    for one in popped:
        key = one.receipt._replace(offset=-1)
        entries.setdefault(key, []).append(one.receipt.offset)
        topics[key] = one.message.topic
    acks = []
    for receipt, offsets in entries.items():
        bits = bytearray((max(offsets) - receipt.start_offset) // 8 + 1)
        for offset in offsets:
            place = offset - receipt.start_offset
            bits[place // 8] |= 1 << place % 8
        acks.append(
            {
                "c": group,
                "t": topics[receipt],
                "r": receipt.retry,
                "so": receipt.start_offset,
                "q": receipt.queue_id,
                "rq": receipt.revive_queue,
                "pt": receipt.pop_time_ms,
                "it": receipt.invisible_time_ms,
                "b": base64.b64encode(bytes(bits)).decode(),
            }
        )
    return json.dumps({"brokerName": "b-a", "acks": acks}).encode()
