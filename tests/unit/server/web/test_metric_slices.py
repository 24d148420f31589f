"""Families of very many series are limited and written in slices, as they would be at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mqspark_server.web import metrics
from mqspark_server.web.families import SHOWN_AT_ONCE, exposition, exposition_in_slices
from mqspark_server.web.metrics import COMPARED_AT_ONCE, _limit
from tests.support.slices import sliced

SERIES = 5_000


def families() -> list[Metric]:
    gauge = GaugeMetricFamily("g", 'a "gauge"\nof two lines', labels=["topic"])
    counter = CounterMetricFamily("c", "a counter", labels=["topic"])
    histogram = HistogramMetricFamily("h", "a histogram", labels=["topic"])
    values = random.Random(1).choices(range(1_000), k=SERIES)
    for number, value in enumerate(values):
        gauge.add_metric([f"t\n{number}"], value)
        counter.add_metric([f"t{number}"], value)
        if number < SERIES // 4:
            histogram.add_metric([f"t{number}"], [("1", value), ("2", value + 1), ("+Inf", value + 1)], value)
    return [gauge, counter, histogram, GaugeMetricFamily("none", "no series", labels=["topic"])]


def test_the_text_of_a_family_is_made_in_slices() -> None:
    for metric in families():
        text, slices = sliced(exposition_in_slices(metric))
        assert text == exposition([metric])
        assert slices >= len(metric.samples) // SHOWN_AT_ONCE


def test_the_largest_series_are_found_in_slices_and_the_others_summed_up() -> None:
    for metric in families()[:2]:
        before = list(metric.samples)
        over, slices = sliced(_limit(metric, 100))
        assert over == SERIES - 100
        assert slices >= 3 * (SERIES // COMPARED_AT_ONCE)  # compared, summed up, freed
        *kept, rest = metric.samples
        assert kept == sorted(before, key=lambda sample: -sample.value)[:100]
        assert rest.labels == {"topic": "_other"}
        assert rest.value == sum(each.value for each in before) - sum(each.value for each in kept)
    assert sliced(_limit(metric, 101)) == (0, 0)


def test_the_largest_histograms_are_found_in_slices() -> None:
    metric = families()[2]
    before = metric.samples
    over, slices = sliced(_limit(metric, 100))
    each = 5
    assert over == len(before) - 100
    assert slices >= len(before) // COMPARED_AT_ONCE
    assert len(metric.samples) == 100 + each
    assert sum(sample.value for sample in metric.samples) == sum(sample.value for sample in before)
    least = min(sample.value for sample in metric.samples[:-each] if sample.name == "h_count")
    assert sum(sample.value > least for sample in before if sample.name == "h_count") < 100 // each


def test_shown_series_are_freed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = families()[0]

    class OneFamily:
        def __init__(self, app: object) -> None:
            pass

        def collect(self) -> Iterator[Metric | None]:
            yield metric

        def limits(self, limit: int, over: int) -> list[Metric]:
            return []

    monkeypatch.setattr(metrics, "_BrokerMetrics", OneFamily)
    app: Any = SimpleNamespace(settings=SimpleNamespace(server=SimpleNamespace(metrics_max_series=10_000)))
    left = [len(metric.samples)]
    left += (len(metric.samples) for _ in metrics.render(app))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= COMPARED_AT_ONCE
