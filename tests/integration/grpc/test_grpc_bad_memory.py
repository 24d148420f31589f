"""Bad input by the thousand, to a broker in a process of its own: each gets its code, and what the process holds at its
highest stays where it was."""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from mqspark.client.sync import AdminClient
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from mqspark_server.proxy.methods.grpcreceipts import MAX_ACKS
from tests.support.barehttp2 import (
    BEGIN,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME,
    HEADERS,
    SETTINGS,
    frame,
    header_block,
)
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.grpcclients import BareCaller, bare_caller, message, receive_request, resource
from tests.support.processes import set_options

NORMAL, OTHER = "memory-normal", "memory-other"
TIMES = 200
BOMB_BYTES = 64 << 20
"""What a bomb inflates to."""
MOST_BYTES = 56 << 20

Codes = set[int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("memory")
    with mqspark_cluster(folder, *set_options({"grpcEnable": True})) as running:
        with AdminClient(running.namesrv) as admin:
            for topic in (NORMAL, OTHER):
                admin.create_topic(topic, attributes={"message.type": "NORMAL"})
        yield running


class Peak:
    """The highest that a process has held since ``reset``, beyond what it held then."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def reset(self) -> int:
        (self._folder / "clear_refs").write_text("5")
        return self.bytes

    @property
    def bytes(self) -> int:
        status = (self._folder / "status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _entry(handle: str) -> pb.AckMessageEntry:
    return pb.AckMessageEntry(message_id="id", receipt_handle=handle)


def _ack(caller: BareCaller, topic: str, *handles: str) -> Codes:
    request = pb.AckMessageRequest(
        group=resource("readers"), topic=resource(topic), entries=map(_entry, handles)
    )
    answer = caller.AckMessage(request)
    return {answer.status.code, *(each.status.code for each in answer.entries)}


def unknown_handles(caller: BareCaller, address: str) -> Codes:
    """The codes of full requests."""
    codes = set()
    for _ in range(20 * TIMES // MAX_ACKS):
        codes |= _ack(caller, NORMAL, *(f"{os.urandom(40).hex()} {number}" for number in range(MAX_ACKS)))
    return codes


def _handle(popped_ms: int, broker: str = "broker-a", queue: int = 0) -> str:
    return f"0 {popped_ms} 60000 0 0 {broker} {queue} 0 0"


def expired_handles(caller: BareCaller, address: str) -> Codes:
    codes = set()
    for number in range(TIMES):
        change = pb.ChangeInvisibleDurationRequest(
            topic=resource(NORMAL), group=resource("readers"), receipt_handle=_handle(1_000_000 + number)
        )
        change.invisible_duration.FromSeconds(20)
        codes.add(caller.ChangeInvisibleDuration(change).status.code)
    return codes


def foreign_handles(caller: BareCaller, address: str) -> Codes:
    now_ms = int(time.time() * 1000)
    return _ack(caller, OTHER, *(_handle(now_ms - number, f"broker-{number}") for number in range(TIMES)))


def illegal_names(caller: BareCaller, address: str) -> Codes:
    codes = set()
    for number in range(TIMES):
        for name in (f"{number} {'t' * 1_000}", f"{number}/../x"):
            codes.add(caller.QueryRoute(pb.QueryRouteRequest(topic=resource(name))).status.code)
    return codes


def absent_names(caller: BareCaller, address: str) -> Codes:
    codes = set()
    for number in range(2 * TIMES):
        name = resource(f"absent-{number:0>100}")
        codes.add(caller.QueryRoute(pb.QueryRouteRequest(topic=name)).status.code)
    return codes


def wrong_types(caller: BareCaller, address: str) -> Codes:
    given = pb.SendMessageRequest(messages=[message(NORMAL, bytes(1 << 16), message_group="g")])
    return {caller.SendMessage(given).status.code for _ in range(TIMES)}


def too_large(caller: BareCaller, address: str) -> Codes:
    given = pb.SendMessageRequest(messages=[message(NORMAL, bytes((4 << 20) + 1))])
    return {caller.SendMessage(given).status.code for _ in range(10)}


def compressed_bombs(caller: BareCaller, address: str) -> Codes:
    bomb = pb.SendMessageRequest(messages=[message(NORMAL, bytes(BOMB_BYTES))])
    with pytest.raises(grpc.RpcError) as refused:
        caller.SendMessage(bomb, compression=grpc.Compression.Gzip)
    return {refused.value.code().value[0]}


def bodies_that_are_bombs(caller: BareCaller, address: str) -> Codes:
    """They are stored as any others, and handed out as they are."""
    bomb = gzip.compress(bytes(BOMB_BYTES))
    given = message(NORMAL, bomb, body_encoding=pb.GZIP)
    codes = {caller.SendMessage(pb.SendMessageRequest(messages=[given])).status.code for _ in range(4)}
    answers = list(caller.ReceiveMessage(receive_request(NORMAL, "bombed"), timeout=30))
    got = [each.message for each in answers if each.HasField("message")]
    assert {(each.body == bomb, each.system_properties.body_encoding) for each in got} == {(True, pb.GZIP)}
    return codes


def half_closed_streams(caller: BareCaller, address: str) -> Codes:
    """Each announces a message of 4 MiB and has the beginning of it. Half of them end there, and are told so."""
    host, _, port = address.rpartition(":")
    part = struct.pack(">BI", 0, 4 << 20) + bytes(16_000)
    block = header_block(f"/{SERVICE}/SendMessage", x_mq_client_id="half")
    said = b""
    with socket.create_connection((host, int(port)), timeout=2) as bare:
        with contextlib.suppress(TimeoutError, ConnectionError):
            bare.sendall(BEGIN + frame(SETTINGS, 0, 0))
            for number in range(TIMES):
                stream, ends = 2 * number + 1, END_STREAM if number % 2 else 0
                bare.sendall(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, ends, stream, part))
            while more := bare.recv(1 << 16):
                said += more
    assert [*kinds_of(said)].count(HEADERS) == TIMES // 2
    return {caller.QueryRoute(pb.QueryRouteRequest(topic=resource("absent"))).status.code}


def kinds_of(said: bytes) -> Iterator[int]:
    """The kinds of the frames."""
    at = 0
    while len(said) - at >= FRAME.size:
        high, low, kind, _, _ = FRAME.unpack_from(said, at)
        at += FRAME.size + (high << 8 | low)
        yield kind


BAD: dict[Callable[[BareCaller, str], Codes], Codes] = {
    unknown_handles: {pb.INTERNAL_SERVER_ERROR},
    expired_handles: {pb.INVALID_RECEIPT_HANDLE},
    foreign_handles: {pb.BAD_REQUEST},
    illegal_names: {pb.ILLEGAL_TOPIC},
    absent_names: {pb.TOPIC_NOT_FOUND},
    wrong_types: {pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE},
    too_large: {pb.MESSAGE_BODY_TOO_LARGE},
    compressed_bombs: {grpc.StatusCode.UNIMPLEMENTED.value[0]},
    bodies_that_are_bombs: {pb.OK},
    half_closed_streams: {pb.TOPIC_NOT_FOUND},
}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
def test_bad_input_gets_its_code_and_takes_no_memory(
    cluster: Cluster, bad: Callable[[BareCaller, str], Codes]
) -> None:
    peak = Peak(cluster.broker_pid)
    with bare_caller(cluster.grpc) as caller:
        before = peak.reset()
        assert bad(caller, cluster.grpc) == BAD[bad]
        assert peak.bytes - before < MOST_BYTES
        absent = caller.QueryRoute(pb.QueryRouteRequest(topic=resource("absent")))
        assert absent.status.code == pb.TOPIC_NOT_FOUND
