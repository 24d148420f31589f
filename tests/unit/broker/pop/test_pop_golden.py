"""Recorded POP conversations of the Java client with a real RocketMQ, given to our broker at the recorded times: the
same messages, under the same receipts, in the same state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqspark.message import MessageExt, encode_properties
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, Connection
from mqspark.protocol.receipts import parse_message_offsets, parse_start_offsets
from mqspark.record.record import decode_records
from tests.support.store_tools import put
from tests.unit.broker_kit import Bench, Peer
from tests.unit.pop_kit import ACK, CHANGE, POP, pop

FRAMES = Path(__file__).parents[3] / "golden" / "frames"
QUERY_ASSIGNMENT, SET_MODE, SEND, HEARTBEAT = (
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.HEART_BEAT,
)
REPLAYED = {POP, ACK, CHANGE, QUERY_ASSIGNMENT, SET_MODE, SEND, HEARTBEAT}


class Event(NamedTuple):
    """A frame between a client and the broker."""

    at_ms: int
    conn: int
    is_request: bool
    frame: bytes
    command: Command


def recorded(name: str) -> list[Event]:
    events = []
    for line in (FRAMES / f"{name}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        frame = bytes.fromhex(entry["frame_hex"])
        (command,) = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES).receive_data(frame)
        from_client = entry["dir"] == "c2s"
        if entry["peer"] == "broker" and from_client != command.is_response:
            events.append(Event(entry["t_ms"], entry["conn"], from_client, frame, command))
    return events


def answers(events: list[Event]) -> dict[tuple[int, int], Event]:
    return {(one.conn, one.command.opaque): one for one in events if not one.is_request}


def requests(events: list[Event], *codes: int) -> list[Event]:
    return [one for one in events if one.is_request and one.command.code in codes]


class Replay:
    """Requests of a recording at their times. ``ours``: (connection, opaque) → the answer."""

    def __init__(self, bench: Bench, events: list[Event]) -> None:
        self.bench = bench
        self.expected = answers(events)
        first = requests(events, POP)[0]
        self._start_ms = int(first.command.ext["bornTime"]) - first.at_ms
        self._peers: dict[int, Peer] = {}
        self.ours: dict[tuple[int, int], Command] = {}

    def until(self, wall_ms: int) -> None:
        while (left_ms := wall_ms - self.bench.clock.wall_ms) > 0:
            self.bench.later(min(left_ms, 200))
            self._listen()

    def give(self, event: Event) -> Command | None:
        """The answer, if there is one at once. A pop that was served at once is served at the very same time: its
        receipts are in the requests that follow."""
        expected = self.expected.get((event.conn, event.command.opaque))
        wall_ms = self._start_ms + event.at_ms
        if event.command.code == POP and expected is not None and expected.at_ms - event.at_ms < 100:
            wall_ms = int(expected.command.ext["popTime"])
        self.until(wall_ms)
        if event.conn not in self._peers:
            self._peers[event.conn] = self.bench.peer()
        self._peers[event.conn].give_frame(event.frame)
        self.bench.broker.turn()
        self.bench.housekeeping()
        self._listen()
        return self.ours.get((event.conn, event.command.opaque))

    def _listen(self) -> None:
        for conn, peer in self._peers.items():
            for command in peer.heard():
                if command.is_response:
                    self.ours[conn, command.opaque] = command


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, broker_name="broker-g", broker_cluster_name="GoldenCluster")


def begin(bench: Bench, events: list[Event], topic: str, group: str, mode: str) -> Replay:
    replay = Replay(bench, events)
    bench.clock.wall_ms = int(requests(events, POP)[0].command.ext["bornTime"]) - 60_000
    for name in (topic, f"%RETRY%{group}"):
        bench.broker.state.topics.put(TopicConfig(name, 2 if name == topic else 1, 2, 6))
    body = {"consumerGroup": group, "mode": mode, "popShareQueueNum": 0, "topic": topic}
    assert bench.peer().ask(SET_MODE, {}, json.dumps(body).encode()).code == 0
    return replay


def assignments(body: bytes | memoryview) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(bytes(body))["messageQueueAssignments"]
    return found


def messages(answer: Command) -> list[MessageExt]:
    return decode_records(bytes(answer.body))


def test_all_messages_are_popped_and_acknowledged(bench: Bench) -> None:
    events = recorded("push_pop")
    replay = begin(bench, events, "FrPop", "CG_pop", "POP")
    for event in requests(events, *REPLAYED):
        ours = replay.give(event)
        expected = replay.expected.get((event.conn, event.command.opaque))
        if event.command.code == POP or expected is None:
            continue
        assert ours is not None
        assert (ours.code, ours.ext.keys()) == (expected.command.code, expected.command.ext.keys()), event
        if event.command.code == QUERY_ASSIGNMENT:
            assert assignments(ours.body) == assignments(expected.command.body)
    # How many messages one waiting pop gets is a matter of luck; which ones all get is not.
    found, wanted = [], []
    for place, expected in replay.expected.items():
        if "msgOffsetInfo" in expected.command.ext:
            wanted += [(m.queue_id, m.queue_offset, m.body, m.tags) for m in messages(expected.command)]
            assert replay.ours[place].ext.keys() == expected.command.ext.keys()
    for ours in replay.ours.values():
        if ours.ext.get("msgOffsetInfo"):
            found += [(m.queue_id, m.queue_offset, m.body, m.tags) for m in messages(ours)]
    assert sorted(found) == sorted(wanted)


def test_failed_messages_come_back(bench: Bench) -> None:
    events = recorded("push_pop_retry")
    topic, group = "FrPopRetry", "CG_popretry"
    retry_topic = f"%RETRY%{group}_{topic}"
    replay = begin(bench, events, topic, group, "POP")
    first = replay.expected[requests(events, POP)[0].conn, requests(events, POP)[0].command.opaque]
    (old,) = [m for m in messages(first.command) if "POP_CK" in m.properties]
    put_retried(bench, retry_topic, old)
    pop(bench, bench.peer(), topic=topic, group="another")  # the recorded pop was the broker's second

    pops = []
    for event in requests(events, *REPLAYED):
        ours = replay.give(event)
        expected = replay.expected.get((event.conn, event.command.opaque))
        if event.command.code == POP:
            pops.append((event.conn, event.command.opaque))
        elif expected is not None:
            assert ours is not None
            assert (ours.code, ours.ext.keys()) == (expected.command.code, expected.command.ext.keys()), event
            if event.command.code == QUERY_ASSIGNMENT:
                assert assignments(ours.body) == assignments(expected.command.body)
            if event.command.code == CHANGE:
                for name in ("invisibleTime", "reviveQid"):
                    assert ours.ext[name] == expected.command.ext[name]
    compared = 0
    for place in pops:
        if place not in replay.expected or place not in replay.ours:
            continue
        theirs, ours = replay.expected[place].command, replay.ours[place]
        assert (ours.code, ours.remark, ours.ext.keys()) == (theirs.code, theirs.remark, theirs.ext.keys())
        for parse, name in (
            (parse_start_offsets, "startOffsetInfo"),
            (parse_message_offsets, "msgOffsetInfo"),
        ):
            assert parse(ours.ext[name]) == parse(theirs.ext[name])
        for name in ("invisibleTime", "restNum"):
            assert ours.ext[name] == theirs.ext[name]
        assert shown(ours) == shown(theirs)
        compared += 1
    assert compared == 4


def put_retried(bench: Bench, retry_topic: str, message: MessageExt) -> None:
    bench.broker.state.topics.ensure(retry_topic, 1)
    properties = {name: value for name, value in message.properties.items() if name != "POP_CK"}
    put(
        bench.store,
        retry_topic,
        0,
        message.body,
        encode_properties(properties),
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=b"\x7f\x00\x00\x01\x00\x00\x2e\x87",
        reconsume_times=message.reconsume_times,
    )
    bench.broker.turn()


def shown(answer: Command) -> list[tuple[object, ...]]:
    """What an application sees of the messages. Their receipts name pops of their own times."""
    return sorted(
        (
            m.topic,
            m.queue_id,
            m.queue_offset,
            m.body,
            m.reconsume_times,
            sorted(m.properties.keys() - {"1ST_POP_TIME", "ORIGIN_GROUP"}),  # the latter since RocketMQ 5.4
            m.tags,
            m.keys,
        )
        for m in (messages(answer) if answer.code == 0 else [])
    )
