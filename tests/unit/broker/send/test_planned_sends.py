"""Sends of a learned layout are stored and answered as if each was read in full, whatever changes in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqspark.base.propertystring import Properties
from mqspark.protocol import command as commands
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import BINARY, JSON, Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.layouts import HeaderLayouts
from tests.unit.broker_kit import SEND, Bench, send_ext

KEY = "7F0000010BAD18B4AAC2000000000{:03}"


class Twin:
    """A broker that learns layouts, and one that reads every request in full. Both get the same."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.benches = [Bench(directory / name) for name in ("learning", "reading")]
        self.layouts = [HeaderLayouts(learning_cost=0), HeaderLayouts()]
        self.layouts[1].credit = -(1 << 60)
        self.peers = [bench.peer() for bench in self.benches]
        self.read: list[str | None] = []
        """The property strings that the learning broker has searched."""
        self._opaque = 0

    def ask(
        self,
        ext: dict[str, str],
        body: bytes = b"body",
        *,
        code: int = SEND,
        serialize_type: int = JSON,
        oneway: bool = False,
    ) -> Command | None:
        self._opaque += 1
        frame = encode_request(code, self._opaque, ext, body, serialize_type=serialize_type, oneway=oneway)
        answers = []
        for number, peer in enumerate(self.peers):
            self.monkeypatch.setattr(commands, "layouts", self.layouts[number])
            with self.monkeypatch.context() as patch:
                if not number:
                    patch.setattr("mqspark.broker.send.send.Properties", counting(self.read))
                if number or self._opaque % 3 == 0:
                    peer.give_frame(frame)
                else:
                    peer.give_bytes(frame)
                self.benches[number].broker.turn()
            answers.append(b"".join(peer.session.take()))
        assert answers[0] == answers[1]
        return Connection().receive_data(answers[0])[0] if answers[0] else None

    def both(self, change: Callable[[Bench], object]) -> None:
        for bench in self.benches:
            change(bench)

    def check(self) -> None:
        """Both logs hold the same bytes; both count the same."""
        logs, counts = [], []
        for bench in self.benches:
            logs.append([bench.records("T", queue_id) for queue_id in range(8)])
            topic = bench.broker.state.topics.get("T")
            assert topic is not None
            counts.append((topic.put_count, topic.put_bytes, topic.up_to_1k, topic.up_to_4k, topic.counted))
            counts[-1] += (bench.broker.state.stats.put_messages, bench.store.appender.put_count)
        assert logs[0] == logs[1]
        assert counts[0] == counts[1]


def counting(read: list[str | None]) -> type[Properties]:
    class Counting(Properties, frozen=True):
        @staticmethod
        def of(text: str | None) -> Properties:
            read.append(text)
            return Properties.of(text)

    return Counting


@pytest.fixture
def twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Twin]:
    twin = Twin(tmp_path, monkeypatch)
    yield twin
    twin.check()
    twin.both(Bench.close)


def ext(number: int, queue_id: int = 0, around: str = "WAIT\x01true\x02", **more: str) -> dict[str, str]:
    properties = f"TAGS\x01a\x02UNIQ_KEY\x01{KEY.format(number)}\x02{around}"
    return send_ext(
        queue_id=queue_id, properties=properties, **{"g": str(1_700_000_000_000 + number), **more}
    )


OLD = dict(zip("abcdefghijkm", (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "batch",
), strict=True))  # fmt: skip


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize("code", [SEND, RequestCode.SEND_MESSAGE])
def test_the_third_send_of_a_client_is_not_read(twin: Twin, serialize_type: int, code: int) -> None:
    """The first one is learned and the second one planned."""
    for number in range(8):
        fields = ext(number, number % 4)
        if code != SEND:
            fields = {OLD[name]: value for name, value in fields.items()}
        answer = twin.ask(fields, bytes([number]), code=code, serialize_type=serialize_type)
        assert answer is not None
        assert answer.ext["transactionId"] == KEY.format(number)
    assert len(twin.read) == 2


@pytest.mark.parametrize(
    "around",
    [
        "WAIT\x01false\x02",
        "WAIT\x01true",
        "TAGS\x01\x02KEYS\x01k\x02",
        "CLUSTER\x01x\x02",
        "DELAY\x011\x02",
        "KEYS\x01a_b\x02",
        "__SHARDINGKEY\x01s\x02",
        "UNIQ_KEY\x01other\x02",
        "UNIQ_KEY\x01\x02",
        "TRAN_MSG\x01true\x02",
        "é\x01ü\x02",
    ],
)
def test_whatever_is_around_the_unique_id(twin: Twin, around: str) -> None:
    for number in range(4):
        twin.ask(ext(number, around=around))


@pytest.mark.parametrize(
    "more",
    [
        {"e": "x"},
        {"e": "7"},
        {"g": "17000000000x0"},
        {"f": "4"},
        {"j": "3"},
        {"m": "true"},
        {"d": "x"},
        {"b": "%"},
        {"i": "UNIQ_KEY\x01" + "DELAY" * 6 + "CLUSTER"},
        {"i": "UNIQ_KEY\x01abc-def"},
    ],
)
def test_a_request_of_its_own_among_others(twin: Twin, more: dict[str, str]) -> None:
    for number in range(3):
        twin.ask(ext(number))
    twin.ask(ext(3, **more))
    twin.ask(ext(4, **more))
    twin.ask(ext(5))
    twin.ask(ext(6), b"")
    twin.ask(ext(7), b"x" * 5000)
    twin.ask(ext(8), b"x" * 2000)
    for number in range(3):
        twin.ask(ext(number), oneway=True)


def test_keys_that_differ_are_one_text(twin: Twin) -> None:
    for number in range(6):
        twin.ask(ext(number, around=f"KEYS\x01order{number}\x02"), serialize_type=BINARY)
    assert len(twin.layouts[0].known) == 1
    assert [len(alike) for alike in twin.layouts[0].known.values()] == [1]


def test_changes_of_the_topic(twin: Twin) -> None:
    def put(**fields: object) -> Callable[[Bench], object]:
        config = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)
        for name, value in fields.items():
            setattr(config, name, value)
        return lambda bench: bench.broker.state.topics.put(config)

    for number in range(3):
        twin.ask(ext(number, 3))
    twin.both(put(read_queue_nums=2, write_queue_nums=2))
    refused = twin.ask(ext(3, 3))
    assert refused is not None
    assert refused.code == ResponseCode.INVALID_PARAMETER
    twin.both(put(topic_filter_type="MULTI_TAG"))
    twin.ask(ext(4, 3))
    twin.both(put(order=True))
    twin.ask(ext(5, 3))
    twin.both(put(attributes={"cleanup.policy": "COMPACTION"}))
    refused = twin.ask(ext(6, 3))
    assert refused is not None
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL


def test_changes_of_settings(twin: Twin) -> None:
    for number, (name, value) in enumerate(
        [
            ("trace_on", False),
            ("trace_on", True),
            ("send_thread_pool_queue_capacity", 0),
            ("send_thread_pool_queue_capacity", 10_000),
            ("start_accept_send_request_time_stamp", 1 << 60),
            ("start_accept_send_request_time_stamp", 0),
        ]
    ):
        for each in range(3):
            twin.ask(ext(10 * number + each))

        def change(bench: Bench, name: str = name, value: object = value) -> None:
            setattr(bench.config, name, value)
            bench.broker.requests.refresh_settings()

        twin.both(change)
        for each in range(3):
            twin.ask(ext(10 * number + each + 5))


def test_two_brokers_of_one_process_have_their_own_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "layouts", HeaderLayouts())
    benches = [Bench(tmp_path / str(port), listen_port=port, broker_name=f"b{port}") for port in (1, 2)]
    for number in range(6):
        for bench in benches:
            assert bench.peer().ask(SEND, ext(number), b"x").code == 0
    for bench in benches:
        assert len(bench.records("T")) == 6
        bench.close()
