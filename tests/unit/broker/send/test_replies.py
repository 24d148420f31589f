"""Replies to requests: passed on to who waits, stored, answered when they are taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.message import encode_properties
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import HeartbeatData, ProducerData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import ReplyMessageRequestHeader
from mqspark.record.record import decode_records
from tests.unit.broker_kit import Bench, Peer, send_ext

FRAMES = Path(__file__).parents[3] / "golden" / "frames"
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
TOPIC = "C_REPLY_TOPIC"


def requester(bench: Bench, client_id: str = "me") -> Peer:
    peer = bench.peer()
    data = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData("PG")])
    peer.ask(RequestCode.HEART_BEAT, body=encode_body(data))
    return peer


def reply_ext(client_id: str | None = "me", **more: str) -> dict[str, str]:
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "TTL": "3000", "UNIQ_KEY": "U"}
    if client_id is not None:
        properties["REPLY_TO_CLIENT"] = client_id
    return send_ext(TOPIC, properties=encode_properties(properties).decode(), **more)


def give(bench: Bench, peer: Peer, ext: dict[str, str], body: bytes = b"pong") -> int:
    opaque = peer.give(RequestCode.SEND_REPLY_MESSAGE_V2, ext, body)
    bench.broker.turn()
    return opaque


def stored(bench: Bench) -> list[bytes]:
    result = bench.store.reads.get(TOPIC, 0, 0, 100, 1 << 20)
    return [message.body for message in decode_records(b"".join(result.buffers))]


def test_a_reply_is_pushed_stored_and_then_answered(bench: Bench) -> None:
    waiting, replier = requester(bench), bench.peer()
    opaque = give(bench, replier, reply_ext(h="7"))
    (push,) = waiting.heard()
    assert (push.code, bytes(push.body), push.is_oneway) == (PUSH, b"pong", False)
    header = push.header(ReplyMessageRequestHeader)
    assert (header.topic, header.flag, header.queue_id) == (TOPIC, 7, 0)
    assert header.born_host == replier.session.peer
    assert header.store_host == "127.0.0.1:10911"
    assert header.store_timestamp == bench.clock.now_ms()
    assert dict(item.split("\x01") for item in (header.properties or "").split("\x02") if item) == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c-1",
        "TTL": "3000",
        "UNIQ_KEY": "U",
        "REPLY_TO_CLIENT": "me",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "PUSH_REPLY_TIME": str(bench.clock.now_ms()),
    }
    assert not replier.heard()
    waiting.give_frame(encode_response(push.opaque, ResponseCode.SUCCESS))
    (answer,) = replier.heard()
    assert (answer.code, answer.opaque) == (0, opaque)
    assert answer.ext.keys() == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
    assert len(answer.ext["msgId"]) == 32
    assert stored(bench) == [b"pong"]


def test_the_push_has_the_fields_of_a_real_one(bench: Bench) -> None:
    rows = [json.loads(line) for line in (FRAMES / "request_reply.jsonl").read_text().splitlines()]
    frames = [Connection().receive_data(bytes.fromhex(row["frame_hex"]))[0] for row in rows]
    recorded = next(command for command in frames if command.code == PUSH)
    waiting = requester(bench)
    give(bench, bench.peer(), reply_ext())
    (push,) = waiting.heard()
    assert push.ext.keys() == recorded.ext.keys()


@pytest.mark.parametrize(
    ("client_id", "remark"), [(None, "REPLY_TO_CLIENT"), ("who", "channel of <who> not found")]
)
def test_nobody_waits(bench: Bench, client_id: str | None, remark: str) -> None:
    requester(bench)
    replier = bench.peer()
    give(bench, replier, reply_ext(client_id))
    (answer,) = replier.heard()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")
    assert stored(bench) == [b"pong"]


def refuse(bench: Bench, waiting: Peer, push: Command) -> None:
    waiting.give_frame(encode_response(push.opaque, ResponseCode.SYSTEM_ERROR, remark="not mine"))


def leave(bench: Bench, waiting: Peer, push: Command) -> None:
    waiting.disconnect()


def be_silent(bench: Bench, waiting: Peer, push: Command) -> None:
    bench.later(10_001)


@pytest.mark.parametrize(
    ("how", "why"),
    [(refuse, "not mine"), (leave, "the client's connection is gone"), (be_silent, "no answer in time")],
)
def test_one_that_is_not_taken(bench: Bench, how: object, why: str) -> None:
    waiting, replier = requester(bench), bench.peer()
    give(bench, replier, reply_ext())
    (push,) = waiting.heard()
    how(bench, waiting, push)  # type: ignore[operator]
    (answer,) = replier.heard()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert why in (answer.remark or "")


def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_reply_message_enable=False)
    waiting, replier = requester(bench), bench.peer()
    give(bench, replier, reply_ext())
    (push,) = waiting.heard()
    waiting.give_frame(encode_response(push.opaque, ResponseCode.SUCCESS))
    assert replier.heard()[0].ext["msgId"] == "0"
    assert stored(bench) == []


@pytest.mark.parametrize(
    ("change", "body", "code"),
    [({"b": "Nope", "c": "none"}, b"x", 17), ({"e": "9"}, b"x", 29), ({}, b"", 1)],
)
def test_what_cannot_be_taken_is_refused(
    bench: Bench, change: dict[str, str], body: bytes, code: int
) -> None:
    waiting, replier = requester(bench), bench.peer()
    give(bench, replier, {**reply_ext(), **change}, body)
    assert [answer.code for answer in replier.heard()] == [code]
    assert not waiting.heard()
    assert not stored(bench)
