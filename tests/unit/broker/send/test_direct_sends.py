"""Plain sends of clients in the broker's process: the same records as by requests, and what takes the long way."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqspark.base.propertystring import text_of
from mqspark.broker.send.directsends import _Alike, _forms
from mqspark.broker.state.acks import DirectRun
from mqspark.message import MAX_PROPERTIES_BYTES, PRIORITY
from mqspark.protocol.codes import ResponseCode
from mqspark.store.messages.append import PlainMessage
from tests.support.extension_examples import KeysRequired
from tests.support.invariants import validate
from tests.unit.auth_kit import authority
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.test_extensions import having

BORN_MS = 1_700_000_000_000
OWN = {"color": "red", "TAGS": "a", "UNIQ_KEY": "7F0000010BAD18B4AAC2000000000001", "PGROUP": "T"}


class Told(DirectRun):
    def __init__(self) -> None:
        self.outcomes: list[int] = []

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        self.outcomes.append(ResponseCode.SUCCESS)

    def failed(self, code: int, remark: str) -> None:
        self.outcomes.append(code)


def peer_of(bench: Bench) -> Peer:
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(properties="UNIQ_KEY\x01A\x02"), b"first").code == 0
    return peer


def message(bench: Bench, sender: object = None, **more: str) -> PlainMessage | None:
    direct = bench.broker.direct
    topic = direct.topic("T")
    if topic is None:
        return None
    properties = {**OWN, **more}
    return direct.message(topic, 1, BORN_MS, text_of(properties), properties["TAGS"], b"body", sender)


def put(bench: Bench, peer: Peer, messages: Sequence[Any], told: DirectRun) -> list[Any]:
    topic = bench.broker.direct.topic("T")
    assert topic is not None
    places = bench.broker.direct.put(peer.session, messages, [topic] * len(messages), told)
    bench.broker.turn()
    return [(queue_offset, sender) for _, _, queue_offset, _, sender in places]


def test_what_is_stored_is_what_a_request_stores(tmp_path: Path) -> None:
    bench, told = Bench(tmp_path), Told()
    peer = peer_of(bench)
    assert peer.ask(SEND, send_ext(queue_id=1, properties=text_of(OWN)), b"body").code == 0
    assert put(bench, peer, [message(bench, "me"), message(bench, "you")], told) == [(1, "me"), (2, "you")]
    assert told.outcomes == [ResponseCode.SUCCESS]
    by_request, *direct = bench.records("T", 1)
    assert len(direct) == 2
    for each in direct:
        for name in ("topic", "body", "properties", "born_timestamp_ms", "born_host", "sys_flag", "flag"):
            assert getattr(each, name) == getattr(by_request, name), name
    assert bench.broker.state.stats.put_messages == 4
    validate(bench.broker)


def test_messages_that_a_broker_has_to_look_at_are_not_plain(bench: Bench) -> None:
    assert message(bench) is None  # there is no topic
    peer_of(bench)
    assert message(bench) is not None
    for special in ({"DELAY": "3"}, {PRIORITY: "1"}, {"TRAN_MSG": "true"}, {"TIMER_DELIVER_MS": "1"}):
        assert message(bench, **special) is None, special
    assert message(bench, long="x" * MAX_PROPERTIES_BYTES) is None
    topic = bench.broker.direct.topic("T")
    assert topic is not None
    assert bench.broker.direct.message(topic, topic.queue_limit, 0, "", "", b"", None) is None


@pytest.mark.parametrize("stands_around", ["extensions", "users"])
def test_the_way_is_closed_where_something_stands_around_sends(tmp_path: Path, stands_around: str) -> None:
    if stands_around == "users":
        bench = Bench(tmp_path, new_authority=lambda: authority(tmp_path / "auth"))
    else:
        bench = Bench(tmp_path, extensions=having(KeysRequired()))
    assert not bench.broker.direct.is_open
    bench.close()
    other = Bench(tmp_path / "other")
    peer_of(other)
    other.config.start_accept_send_request_time_stamp = other.clock.now_ms() + 1
    other.broker.requests.refresh_settings()
    assert put(other, other.peer(), [message(other)], Told()) == []


def test_no_more_are_taken_than_may_wait(tmp_path: Path) -> None:
    bench, runs = Bench(tmp_path, sync=True, send_thread_pool_queue_capacity=3), [Told() for _ in range(3)]
    peer = peer_of(bench)
    bench.flush()
    assert [len(put(bench, peer, [message(bench)] * 2, run)) for run in runs] == [2, 1, 0]
    assert [run.outcomes for run in runs] == [[], [], []]
    bench.flush()
    assert [run.outcomes for run in runs] == [[0], [0], []]


def test_a_guarantee_that_is_not_met_is_told(tmp_path: Path) -> None:
    bench, told = Bench(tmp_path, sync=True), Told()
    peer = peer_of(bench)
    bench.flush()
    put(bench, peer, [message(bench)] * 2, told)
    bench.later(bench.config.sync_flush_timeout + 1)
    assert told.outcomes == [ResponseCode.FLUSH_DISK_TIMEOUT]
    put(bench, peer, [message(bench)], told)
    bench.broker.acks.fail("the disk is gone")
    assert told.outcomes[1:] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert len(bench.broker.acks) == 0


def test_forms_weigh_what_they_take() -> None:
    kept = dict(_forms)
    _forms.clear()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2_000):
            assert _forms[_Alike(f"T{number:04d}" + "x" * (number % 100), number, f"t{number}", 0, b"s")]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1.1 * _forms.bytes
    _forms.clear()
    _forms.update(kept)
    _forms.bytes = sum(_forms.size_of(key, value) for key, value in kept.items())
