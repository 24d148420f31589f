"""Recorded requests of real clients and tools, given to our cores: the same codes, fields and bodies come
back.

A recording begins in the middle of a cluster's life, so topics that it takes for granted are created first,
and answers that depend on messages or offsets of before are only checked for being one of the answers in
question.
"""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import pytest

from mqspark.base.clock import SystemClock
from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerConfig
from mqspark.message import encode_host
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import QueueData, TopicConfig, TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.session import Session
from mqspark.store.config import StoreConfig
from mqspark.store.store import MessageStore
from tests.unit.broker_kit import last_registration

RECORDINGS = sorted((pathlib.Path(__file__).parents[2] / "golden" / "frames").glob("*.jsonl"))

PULL_OUTCOMES = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}
DEPENDS_ON_THE_PAST: dict[int, set[int]] = {
    RequestCode.PULL_MESSAGE: PULL_OUTCOMES,
    RequestCode.LITE_PULL_MESSAGE: PULL_OUTCOMES,
    RequestCode.QUERY_CONSUMER_OFFSET: {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND},
    RequestCode.QUERY_MESSAGE: {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND},
    RequestCode.VIEW_MESSAGE_BY_ID: {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR},
    RequestCode.CONSUMER_SEND_MSG_BACK: {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR},
    RequestCode.QUERY_CONSUME_QUEUE: {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR},
    RequestCode.GET_CONSUMER_CONNECTION_LIST: {ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE},
    RequestCode.GET_PRODUCER_CONNECTION_LIST: {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {
        ResponseCode.SUCCESS,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    },
    RequestCode.GET_ROUTEINFO_BY_TOPIC: {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST},
    RequestCode.GET_CONSUMER_RUNNING_INFO: {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR},
    RequestCode.POP_MESSAGE: {ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT},
    RequestCode.ACK_MESSAGE: {ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE},
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: {
        ResponseCode.SUCCESS,
        ResponseCode.NO_MESSAGE,
        ResponseCode.TOPIC_NOT_EXIST,
    },
}
LATER = {
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.POP_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.SEND_REPLY_MESSAGE_V2,
}
"""May be answered after the end of the recording: parked, when the name servers know, when a client answers."""


class RecordedClock(SystemClock):
    """Wall time is that of the recording: a pop and a send say when they were sent."""

    shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def follow(self, request: Command) -> None:
        name = {RequestCode.POP_MESSAGE: "bornTime", RequestCode.SEND_MESSAGE_V2: "g"}.get(request.code)
        born_ms = request.ext.get(name) if name is not None else None
        if born_ms is not None and born_ms.isdigit():
            self.shift_ms += int(born_ms) - self.now_ms()


def one(data: bytes) -> Command:
    (command,) = Connection().receive_data(data)
    return command


class Recording:
    def __init__(self, path: pathlib.Path) -> None:
        self.requests: list[tuple[int, str, Command]] = []
        self.answers: dict[tuple[int, int], Command] = {}
        for line in path.read_text().splitlines():
            record = json.loads(line)
            command = one(bytes.fromhex(record["frame_hex"]))
            if record["dir"] == "c2s" and not command.is_response:
                self.requests.append((record["conn"], record["peer"], command))
            elif record["dir"] == "s2c" and command.is_response:
                self.answers[record["conn"], command.opaque] = command

    def topics(self) -> dict[str, QueueData]:
        """What must exist for the recorded answers."""
        topics: dict[str, QueueData] = {}
        for conn, _, request in self.requests:
            answer = self.answers.get((conn, request.opaque))
            topic = request.ext.get("topic") or request.ext.get("b")
            if request.code == RequestCode.SET_MESSAGE_REQUEST_MODE:
                topic = json.loads(bytes(request.body))["topic"]
            if answer is None or topic is None or answer.code == ResponseCode.TOPIC_NOT_EXIST:
                continue
            if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                topics[topic] = decode_body(TopicRouteData, answer.body).queue_datas[0]
            elif request.code in (310, 320, 10, 11, 361, 401):
                topics.setdefault(topic, QueueData("broker-g", 4, 4, 6))
        return topics


def is_explained(request: Command, expected: Command, ours: Command) -> bool:
    if "not available yet" in (ours.remark or ""):
        return True
    outcomes = DEPENDS_ON_THE_PAST.get(request.code, set())
    return {expected.code, ours.code} <= outcomes


def body_members(body: bytes | memoryview) -> set[str]:
    document: Any = fastjson.loads(body)
    return set(document)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_answers_are_those_of_the_recording(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    recording = Recording(path)
    clock = RecordedClock()
    store_config = StoreConfig(store_path_root_dir=str(tmp_path))
    store = MessageStore(store_config, clock, store_host=encode_host("127.0.0.1", 11911))
    store.open()
    try:
        config = BrokerConfig(
            broker_ip1="127.0.0.1",
            broker_name="broker-g",
            broker_cluster_name="GoldenCluster",
            listen_port=11911,
            auto_create_topic_enable=True,
            enable_property_filter=True,
            recall_message_enable=True,
        )
        broker = BrokerCore(config, store, clock, random=random.Random(1))
        for name, queues in recording.topics().items():
            if broker.state.topics.get(name) is None:
                topic = TopicConfig(name, queues.read_queue_nums, queues.write_queue_nums, queues.perm)
                broker.state.topics.put(topic)
        name_server = NameServer(NamesrvConfig(), clock)
        registration = last_registration(broker)
        registrar = Session(0, "127.0.0.1", 4000, [])
        name_server.connected(registrar)
        name_server.received(registrar, [one(encode_request(103, 1, registration.header, registration.body))])
        check(recording, broker, name_server, clock)
    finally:
        store.close()


def check(recording: Recording, broker: BrokerCore, name_server: NameServer, clock: RecordedClock) -> None:
    sessions: dict[tuple[int, str], Session] = {}
    conns: dict[int, int] = {}
    given: dict[tuple[int, int], Command] = {}
    for conn, peer, request in recording.requests:
        core = name_server if peer == "namesrv" else broker
        session = sessions.get((conn, peer))
        if session is None:
            number = len(sessions) + 1
            session = sessions[conn, peer] = Session(number, "127.0.0.1", 5000 + number, core.outbox)
            conns[number] = conn
            core.connected(session)
        clock.follow(request)
        core.received(session, [request])
        while core.work():
            pass
        core.turn()
        for written in core.outbox:
            for command in Connection().receive_data(b"".join(written.take())):
                if command.is_response:
                    given[conns[written.id], command.opaque] = command
        core.outbox.clear()
    for conn, _, request in recording.requests:
        expected, ours = recording.answers.get((conn, request.opaque)), given.get((conn, request.opaque))
        if request.is_oneway:
            assert ours is None, request
        elif ours is None:
            assert request.code in LATER, request
        elif expected is not None and ours.code != expected.code:
            assert is_explained(request, expected, ours), (request, expected, ours)
        elif expected is not None:
            assert set(expected.ext) <= set(ours.ext), (request, expected.ext, ours.ext)
            if expected.body[:1] == b"{" and request.code != RequestCode.REGISTER_BROKER:
                assert body_members(expected.body) <= body_members(ours.body), request
