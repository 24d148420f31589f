"""Durations by class."""

from __future__ import annotations

from mqspark_server.net.durations import Durations


def test_each_bound_counts_what_took_at_most_as_long() -> None:
    times = Durations()
    for duration_s in (0.0, 0.001, 0.0011, 60.0):
        times.record(duration_s)
    buckets = dict(times.buckets())
    assert (buckets["0.0001"], buckets["0.001"], buckets["0.002"]) == (1, 2, 3)
    assert (buckets["10.0"], buckets["+Inf"]) == (3, 4)
    assert round(times.total_s, 4) == 60.0021
