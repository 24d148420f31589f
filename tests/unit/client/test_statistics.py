"""Rates over the last minute, by topic."""

from mqspark.client.delivery.statistics import ConsumeStatistics
from mqspark.protocol.bodies.admin_bodies import ConsumeRates
from mqspark.testing import FakeClock


def test_rates_are_those_of_the_last_minute() -> None:
    clock = FakeClock()
    statistics = ConsumeStatistics(clock)
    assert statistics.status("T") == ConsumeRates()
    statistics.pulled("T", 30, 20.0)
    statistics.pulled("T", 10, 40.0)
    statistics.consumed("T", 32, 0, 5.0)
    statistics.consumed("T", 0, 8, 15.0)
    clock.advance(4_000)
    status = statistics.status("T")
    assert (status.pull_tps, status.pull_rt) == (10.0, 30.0)
    assert (status.consume_ok_tps, status.consume_failed_tps, status.consume_rt) == (8.0, 2.0, 10.0)
    assert status.consume_failed_msgs == 8
    assert statistics.status("U") == ConsumeRates()
    for _ in range(40):
        clock.advance(2_000)
        statistics.sample()
    quiet = statistics.status("T")
    assert (quiet.pull_tps, quiet.consume_ok_tps, quiet.consume_rt) == (0.0, 0.0, 0.0)
    assert quiet.consume_failed_msgs == 8
    for _ in range(80):
        clock.advance(1_000)
        statistics.sample()
        statistics.consumed("T", 5, 0, 1.0)
    busy = statistics.status("T")
    assert 4.5 <= busy.consume_ok_tps <= 5.5
    assert busy.consume_rt == 1.0
