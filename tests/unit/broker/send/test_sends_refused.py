"""``sends_refused``: why a broker refuses the sends that it should take, whatever the reason is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.broker.config import BrokerRole
from mqspark.broker.replication.term import Term
from mqspark.protocol.codes import RequestCode, ResponseCode
from tests.support.clocks import ManualClock
from tests.unit.broker_kit import Bench, send_ext

SUCCESS = ResponseCode.SUCCESS


def sent(bench: Bench) -> int:
    return bench.peer().ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"x").code


def test_a_broker_that_takes_messages(bench: Bench) -> None:
    assert sent(bench) == SUCCESS
    assert bench.broker.sends_refused is None


def test_until_a_time_that_the_operator_has_set(tmp_path: Path) -> None:
    start_ms = ManualClock().now_ms() + 60_000
    bench = Bench(tmp_path, start_accept_send_request_time_stamp=start_ms)
    assert sent(bench) != SUCCESS
    assert str(start_ms) in str(bench.broker.sends_refused)
    bench.clock.advance(60_000)
    assert sent(bench) == SUCCESS
    assert bench.broker.sends_refused is None


def test_too_few_replicas(tmp_path: Path) -> None:
    bench = Bench(tmp_path, broker_role=BrokerRole.SYNC_MASTER, min_in_sync_replicas=2, in_sync_replicas=2)
    assert sent(bench) != SUCCESS
    assert "minInSyncReplicas=2" in str(bench.broker.sends_refused)


@pytest.mark.parametrize("holds", [False, True])
def test_a_master_whose_lease_has_ended(tmp_path: Path, holds: bool) -> None:
    bench = Bench(tmp_path, start=False, broker_role=BrokerRole.SYNC_MASTER)
    bench.term = term = Term(bench.clock, 1, 10_000)
    term.begin(3, 1, "127.0.0.1:10911")
    term.decided({1}, 1)
    term.renewed(bench.clock.monotonic_ms())
    bench.open()
    assert bench.broker.sends_refused is None
    bench.clock.advance(20_000)
    if holds:
        term.renewed(bench.clock.monotonic_ms())
    bench.broker.tick()
    assert (bench.broker.sends_refused is None) == holds


def test_a_slave_is_no_refusing_broker(tmp_path: Path) -> None:
    start_ms = ManualClock().now_ms() + 60_000
    bench = Bench(
        tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1, start_accept_send_request_time_stamp=start_ms
    )
    assert bench.broker.sends_refused is None
