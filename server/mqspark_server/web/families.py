"""Families of metrics with the labels that all metrics of one server have."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from mqspark.protocol.extending import Extensions

NODE = ("cluster", "node_type", "node_id")

OTHER = "_other"
"""The topic and group of the series that sums up all series beyond the limit."""

SERIES_AT_ONCE = 256
"""Series that are made in one slice."""


class Families:
    """``node``: the values of NODE, with which the values of every series begin."""

    def __init__(self, node: tuple[str, str, str]) -> None:
        self.node = node

    def gauge(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"rocketmq_{name}", text, labels=(*NODE, *labels))

    def counter(self, name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"rocketmq_{name}", text, labels=(*NODE, *labels))

    def histogram(self, name: str, text: str, *labels: str) -> HistogramMetricFamily:
        return HistogramMetricFamily(f"rocketmq_{name}", text, labels=(*NODE, *labels))


def extension_calls(
    extensions: Extensions | None, node: tuple[str, ...], labels: tuple[str, ...] = NODE
) -> Iterator[CounterMetricFamily]:
    """Counts of the calls of each extension by result; nothing without extensions. ``node``: the values of
    ``labels``."""
    if extensions is None:
        return
    for name, text, attribute in (
        ("calls", "calls of an extension", "calls"),
        ("errors", "calls of an extension that failed", "errors"),
        ("refusals", "requests that an extension refused", "refusals"),
        ("slow_calls", "calls of an extension that took over a tenth of a second", "slow"),
    ):
        counter = CounterMetricFamily(f"mqspark_extension_{name}", text, labels=(*labels, "extension"))
        for counts in extensions.counts.values():
            counter.add_metric((*node, counts.name), getattr(counts, attribute))
        yield counter
