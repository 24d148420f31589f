"""Requests that waited too long: which are refused after which time, and with what."""

from __future__ import annotations

import pytest

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from tests.unit.broker_kit import Bench, Peer, send_ext


def requests(*codes: int, oneway: bool = False) -> list[Command]:
    frames = [
        encode_request(code, opaque, send_ext(), b"body", oneway=oneway)
        for opaque, code in enumerate(codes, start=1)
    ]
    return Connection().receive_data(b"".join(frames))


def sift(bench: Bench, peer: Peer, commands: list[Command], age_ms: int) -> list[int]:
    """Codes of what is still to be handled."""
    return [command.code for command in bench.broker.requests.overload.sift(peer.session, commands, age_ms)]


@pytest.mark.parametrize(
    ("code", "limit_ms"),
    [
        (RequestCode.SEND_MESSAGE, 200),
        (RequestCode.SEND_MESSAGE_V2, 200),
        (RequestCode.SEND_BATCH_MESSAGE, 200),
        (RequestCode.CONSUMER_SEND_MSG_BACK, 200),
        (RequestCode.RECALL_MESSAGE, 200),
        (RequestCode.PULL_MESSAGE, 5_000),
        (RequestCode.POP_MESSAGE, 5_000),
        (RequestCode.LITE_PULL_MESSAGE, 5_000),
        (RequestCode.HEART_BEAT, 31_000),
        (RequestCode.END_TRANSACTION, 3_000),
        (RequestCode.ACK_MESSAGE, 3_000),
        (RequestCode.BATCH_ACK_MESSAGE, 3_000),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, 5_000),
        (RequestCode.GET_BROKER_RUNTIME_INFO, 5_000),
    ],
)
def test_each_kind_has_its_time(bench: Bench, peer: Peer, code: int, limit_ms: int) -> None:
    assert sift(bench, peer, requests(code), limit_ms - 1) == [code]
    assert not peer.heard()
    assert sift(bench, peer, requests(code), limit_ms) == []
    (answer,) = peer.heard()
    assert (answer.opaque, answer.code) == (1, ResponseCode.SYSTEM_BUSY)
    assert answer.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while,"
        f" period in queue: {limit_ms}ms, size of queue: 0"
    )


def test_others_go_on(bench: Bench, peer: Peer) -> None:
    codes = [RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET]
    assert sift(bench, peer, requests(*codes), 250) == codes[1:]
    assert sift(bench, peer, requests(RequestCode.UPDATE_CONSUMER_OFFSET), 1 << 40) == [codes[2]]
    (answer,) = peer.heard()
    assert answer.remark is not None
    assert answer.remark.endswith("size of queue: 2")


def test_oneway_sends_are_dropped_in_silence(bench: Bench, peer: Peer) -> None:
    assert sift(bench, peer, requests(RequestCode.SEND_MESSAGE_V2, oneway=True), 200) == []
    assert not peer.heard()
    assert bench.broker.requests.overload.refused_count == 1


def test_the_times_are_settings(bench: Bench, peer: Peer) -> None:
    overload = bench.broker.requests.overload
    assert overload.patience_ms == 200
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"waitTimeMillsInSendQueue=50\n")
    assert answer.code == ResponseCode.SUCCESS
    assert overload.patience_ms == 50
    assert sift(bench, peer, requests(RequestCode.SEND_MESSAGE_V2), 60) == []
    assert peer.heard()
    peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerFastFailureEnable=false\n")
    assert overload.patience_ms > 1 << 60
    send = RequestCode.SEND_MESSAGE_V2
    assert sift(bench, peer, requests(send), 1 << 40) == [send]


def test_times_must_be_positive(bench: Bench) -> None:
    answer = bench.peer().ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"waitTimeMillsInPullQueue=0\n")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert bench.config.wait_time_mills_in_pull_queue == 5_000
