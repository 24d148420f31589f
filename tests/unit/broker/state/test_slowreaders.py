"""disableConsumeIfConsumerReadSlowly: who reads far behind the end of the log is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqspark.broker.state.slowreaders import CHECK_INTERVAL_MS
from mqspark.protocol.codes import ResponseCode
from tests.unit.broker_kit import SEND, Bench, send_ext


def bench_of(tmp_path: Path, **settings: Any) -> Bench:
    bench = Bench(tmp_path, consumer_fallbehind_threshold=2_000, **settings)
    for _ in range(4):
        assert bench.peer().ask(SEND, send_ext("T"), b"x" * 1_000).code == 0
    return bench


def pull(bench: Bench, offset: int, count: int = 1) -> int:
    return bench.peer().pull(offset=offset, maxMsgNums=str(count)).code


def checked(bench: Bench) -> None:
    bench.later(CHECK_INTERVAL_MS)


def test_a_slow_group_may_not_consume_and_that_is_kept(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, disable_consume_if_consumer_read_slowly=True)
    assert pull(bench, 0) == 0
    assert pull(bench, 1) == 0  # still allowed until the next check
    checked(bench)
    assert pull(bench, 2) == ResponseCode.NO_PERMISSION
    bench.close()
    bench.open()
    assert pull(bench, 2) == ResponseCode.NO_PERMISSION
    assert bench.broker.state.slow_readers.ledger.entries == 0


def test_who_has_caught_up_by_then_goes_on(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, disable_consume_if_consumer_read_slowly=True)
    assert pull(bench, 0) == 0
    assert bench.broker.state.slow_readers.ledger.entries == 1
    assert pull(bench, 1, count=3) == 0
    assert bench.broker.state.slow_readers.ledger.entries == 0
    checked(bench)
    assert pull(bench, 3) == 0


def test_nobody_is_stopped_by_default(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    assert pull(bench, 0) == 0
    checked(bench)
    assert pull(bench, 1) == 0
