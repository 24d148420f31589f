"""How long sends took, as tools show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqspark.broker.stats.puttimes import PutTimes
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

TOOL_PATTERN = re.compile(r"\[([^]]+)\]:(\d+)")
"""How RocketMQ's exporter takes putMessageDistributeTime apart: by spaces, colons and brackets."""


@pytest.fixture(params=[True, False], ids=["sync", "async"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, sync=request.param)


def counted(classes: str) -> dict[str, int]:
    return {name: int(count) for name, count in TOOL_PATTERN.findall(classes) if int(count)}


def test_a_time_is_in_the_class_that_holds_it() -> None:
    times = PutTimes()
    for time_ms in (0, 1, 9, 10, 49, 50, 199, 200, 999, 1000, 9999, 10_000, 60_000):
        times.record(time_ms, 1)
    assert counted(times.classes()) == {}
    assert (times.below(0.99), times.longest_ms) == (0.0, 60_000)
    times.end_period()
    assert counted(times.classes()) == {
        "<=0ms": 1, "0~10ms": 2, "10~50ms": 2, "50~100ms": 1, "100~200ms": 1, "200~500ms": 1, "500ms~1s": 1,
        "1~2s": 1, "5~10s": 1, "10s~": 2,
    }  # fmt: skip
    assert len(times.classes().split(" ")) == len(TOOL_PATTERN.findall(times.classes())) == 13
    times.end_period()
    assert counted(times.classes()) == {}


def test_shares() -> None:
    times = PutTimes()
    times.record(0, 980)
    times.record(7, 15)
    times.record(30_000, 5)
    times.end_period()
    assert [times.below(share) for share in (0.5, 0.98, 0.99, 0.999)] == [0.0, 0.0, 7.0, 30_000.0]


def test_sends_of_a_minute_are_shown(bench: Bench, peer: Peer) -> None:
    for _ in range(3):
        peer.ask(SEND, send_ext(), b"a")
    assert counted(bench.broker.runtime_info()["putMessageDistributeTime"]) == {}
    bench.run_for(60_000, step_ms=1_000)
    table = bench.broker.runtime_info()
    assert counted(table["putMessageDistributeTime"]) == {"<=0ms": 3}
    assert (table["putMessageEntireTimeMax"], table["putLatency99"], table["putLatency999"]) == (
        "0", "0.00", "0.00",
    )  # fmt: skip


def test_a_send_takes_until_its_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    first, second = bench.peer(fast=True), bench.peer(fast=True)
    first.give(SEND, send_ext(), b"a")
    bench.broker.turn()
    bench.clock.advance(30)
    second.give(SEND, send_ext(), b"b")
    bench.broker.turn()
    bench.clock.advance(130)
    bench.flush()
    assert [answer.code for peer in (first, second) for answer in peer.heard()] == [0, 0]
    bench.run_for(60_000, step_ms=1_000)
    table = bench.broker.runtime_info()
    assert counted(table["putMessageDistributeTime"]) == {"100~200ms": 2}
    assert (table["putMessageEntireTimeMax"], table["putLatency99"]) == ("160", "169.00")
