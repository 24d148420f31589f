"""Families of metrics with the labels that all metrics of one server have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from mqspark.base.histogram import Histogram
from mqspark.protocol.extending import Extensions
from mqspark.protocol.slices import Work

CONTENT_TYPE = CONTENT_TYPE_LATEST

NODE = ("cluster", "node_type", "node_id")

OTHER = "_other"
"""The topic and group of the series that sums up all series beyond the limit."""

SERIES_AT_ONCE = 16
"""Label values of which series are made in one slice, several each."""

SHOWN_AT_ONCE = 32
"""Series that become text in one slice."""


class Families:
    """``node``: the values of ``labels``, with which the values of every series begin. ``prefix`` is put in front of
    every name."""

    def __init__(
        self, node: tuple[str, ...], labels: tuple[str, ...] = NODE, prefix: str = "rocketmq_"
    ) -> None:
        self.node = node
        self._labels = labels
        self._prefix = prefix

    def gauge(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{self._prefix}{name}", text, labels=(*self._labels, *labels))

    def counter(self, name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"{self._prefix}{name}", text, labels=(*self._labels, *labels))

    def histogram(self, name: str, text: str, *labels: str) -> HistogramMetricFamily:
        return HistogramMetricFamily(f"{self._prefix}{name}", text, labels=(*self._labels, *labels))

    def level(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        """A gauge of one series."""
        gauge = self.gauge(name, text)
        gauge.add_metric(self.node, float(value))
        return gauge

    def count(self, name: str, text: str, value: float) -> CounterMetricFamily:
        """A counter of one series."""
        counter = self.counter(name, text)
        counter.add_metric(self.node, value)
        return counter

    def spread(self, name: str, text: str, values: Histogram) -> HistogramMetricFamily:
        """A histogram of one series."""
        histogram = self.histogram(name, text)
        histogram.add_metric(self.node, values.buckets(), values.total)
        return histogram

    def levels(self, name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
        """A gauge with a series for each value of a label."""
        gauge = self.gauge(name, text, label)
        for each, value in values.items():
            gauge.add_metric((*self.node, each), value)
        return gauge

    def counts(self, name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
        """A counter with a series for each value of a label."""
        counter = self.counter(name, text, label)
        for each, value in values.items():
            counter.add_metric((*self.node, each), value)
        return counter


def extension_calls(extensions: Extensions | None, families: Families) -> Iterator[CounterMetricFamily]:
    """Counts of the calls of each extension by result; nothing without extensions."""
    if extensions is None:
        return
    for name, text, attribute in (
        ("calls", "calls of an extension", "calls"),
        ("errors", "calls of an extension that failed", "errors"),
        ("refusals", "requests that an extension refused", "refusals"),
        ("slow_calls", "calls of an extension that took over a tenth of a second", "slow"),
    ):
        values = {each.name: getattr(each, attribute) for each in extensions.counts.values()}
        yield families.counts(f"extension_{name}", text, "extension", values)


def exposition(metrics: Iterable[Metric]) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(_Collected(metrics))
    return generate_latest(registry)


def exposition_in_slices(metric: Metric) -> Work[bytes]:
    """``exposition`` of one family, which may have very many series."""
    samples, parts = metric.samples, list[bytes]()
    for first in range(0, max(len(samples), 1), SHOWN_AT_ONCE):
        some = copy(metric)
        some.samples = samples[first : first + SHOWN_AT_ONCE]
        text = exposition([some])
        parts.append(text.split(b"\n", _HEAD_LINES)[_HEAD_LINES] if first else text)
        yield
    return b"".join(parts)


_HEAD_LINES = 2
"""HELP and TYPE."""


class _Collected:
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._metrics
