"""Usual records are handed out as ``grpcmessages`` would do it, and all others are left to it."""

from __future__ import annotations

import random
import re
import zlib
from typing import NamedTuple

import pytest

from mqspark.errors import ProtocolError
from mqspark.message import COMPRESSED, MessageQueue, encode_host
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, Connection
from mqspark.record.record import encode_record
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content import handedout
from mqspark_server.proxy.content.handedout import Given, UsualOut, delivered, handed_out

NOW_MS = 1_700_000_000_000
USUAL = b"UNIQ_KEY\x01%s\x02WAIT\x01true\x02BORN_TIMESTAMP\x011\x02"
PIECES = [
    b"UNIQ_KEY\x01", b"XUNIQ_KEY\x01", b"BORN_TIMESTAMP\x01", b"TAGS\x01", b"KEYS\x01", b"color\x01", b"__BORNHOST\x01",
    b"POP_CK\x01", b"WAIT\x01", b"DELAY\x01", b"PGROUP\x01", b"\x01", b"\x02", b"\x02", b"\x02", b"\x02", b"a", b"77",
    b"10.0.0.7", b"\xc3\xa4", b"\xff", b"true",
]  # fmt: skip


class Seen(NamedTuple):
    message: pb.Message
    handle: object
    tags: str | None
    reconsume_times: int
    lite_topic: str
    message_id: str


def record(number: int, properties: bytes, body: bytes = b"body", **more: object) -> bytes:
    fields: dict[str, object] = {
        "topic": "T",
        "body": body,
        "properties": {},
        "queue_id": 1,
        "queue_offset": number,
        "physical_offset": (1 << 30) + number * 1_000,
        "born_timestamp_ms": NOW_MS + number,
        "store_timestamp_ms": NOW_MS + 2,
        "born_host": encode_host("10.1.2.3", 4_567),
        "store_host": encode_host("127.0.0.1", 10_911),
        **more,
    }
    made = encode_record(**fields)
    size = len(made) + len(properties)
    return size.to_bytes(4) + made[4:-2] + len(properties).to_bytes(2) + properties


def answered(body: bytes, count: int = 8, **more: str) -> Command:
    ext = {
        "popTime": str(NOW_MS),
        "invisibleTime": "60000",
        "reviveQid": "3",
        "restNum": "5",
        "startOffsetInfo": "0 1 0",
        "msgOffsetInfo": "0 1 " + ",".join(map(str, range(count))),
        **more,
    }
    frame = encode_response(1, ResponseCode.SUCCESS, ext, body)
    (answer,) = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES).receive_data(frame)
    return answer


def read(answer: Command) -> list[Given]:
    return handed_out(answer, MessageQueue("T", "b-a", -1), "CG")


def seen(given: list[Given]) -> list[Seen]:
    return [
        Seen(
            pb.ReceiveMessageResponse.FromString(delivered(each, NOW_MS)).message,
            each.handle,
            each.tags,
            each.reconsume_times,
            each.lite_topic,
            each.message_id,
        )
        for each in given
    ]


def both_ways(answer: Command, monkeypatch: pytest.MonkeyPatch) -> list[Given]:
    """What is handed out, which is the same where no record counts as usual. Nothing if both raise alike."""
    with monkeypatch.context() as patch:
        patch.setattr(handedout, "usual_record", lambda data, begin: None)
        try:
            others = read(answer)
        except ProtocolError as error:
            patch.undo()
            with pytest.raises(ProtocolError, match=re.escape(str(error))):
                read(answer)
            return []
    given = read(answer)
    assert seen(given) == seen(others)
    assert not any(isinstance(each, UsualOut) for each in others)
    return given


@pytest.mark.parametrize("seed", range(40))
def test_any_properties_are_read_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    usual = 0
    for _ in range(25):
        records = [
            record(
                number,
                b"".join(chance.choices(PIECES, k=chance.randrange(12)))
                + (USUAL % b"0A" if chance.random() < 0.7 else b""),
                body=chance.randbytes(chance.choice((0, 1, 200))),
                reconsume_times=chance.choice((0, 0, 3)),
            )
            for number in range(3)
        ]
        usual += sum(
            isinstance(each, UsualOut) for each in both_ways(answered(b"".join(records)), monkeypatch)
        )
    assert usual


def test_usual_ones_are_read_without_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [
        USUAL % b"0A0B",
        b"TAGS\x01t\x02" + USUAL % b"0C",
        USUAL % b"0D" + b"color\x01red\x02__BORNHOST\x0110.9.9.9\x02",
        b"UNIQ_KEY\x01\x010\x02",
    ]
    given = both_ways(answered(b"".join(map(record, range(4), kinds))), monkeypatch)
    assert [type(each) for each in given] == [UsualOut] * 4
    assert [each.message_id for each in given] == ["0A0B", "0C", "0D", "\x010"]
    assert [each.tags for each in given] == [None, "t", None, None]
    messages = [each.message for each in seen(given)]
    assert [message.system_properties.born_host for message in messages] == [
        *["10.1.2.3"] * 2,
        "10.9.9.9",
        "10.1.2.3",
    ]
    assert dict(messages[2].user_properties) == {"color": "red"}


@pytest.mark.parametrize(
    "other",
    [
        record(1, b"WAIT\x01true\x02"),
        record(1, USUAL % b"0A" + b"KEYS\x01k\x02"),
        record(1, USUAL % b"\xc3\xa4"),
        record(1, USUAL % b"0A", body=zlib.compress(b"long" * 99), sys_flag=COMPRESSED),
        record(1, USUAL % b"0A", born_host=encode_host("::1", 9)),
        record(1, USUAL % b"0A", topic="%RETRY%CG_T"),
        record(1, USUAL % b"0A")[:-5],
        record(1, USUAL % b"0A").replace(b"body", b"b0dy"),
        b"\x00" * 200,
    ],
    ids=["no id", "keys", "no ascii", "compressed", "IPv6", "retry", "cut", "damaged", "zeros"],
)
def test_what_is_not_usual_is_left_with_what_follows(other: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"".join((record(0, USUAL % b"0A"), other, record(2, USUAL % b"0B")))
    offsets = {"startOffsetInfo": "0 1 0;1 1 0", "msgOffsetInfo": "0 1 0,1,2;1 1 1"}
    given = both_ways(answered(body, **offsets), monkeypatch)
    assert given[0].message_id == "0A"
    assert given[-1].message_id in ("0A", "0B")


def test_what_was_not_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for body in (record(0, USUAL % b"0A", topic="Other"), record(9, USUAL % b"0A")):
        with pytest.raises(ProtocolError, match=r"a pop of .* (brings|has no receipt)"):
            read(answered(body))
