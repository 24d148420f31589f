"""Families of metrics with the labels that all of one server have."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

__all__ = ["AT_ONCE", "NODE", "OTHER", "Families"]

NODE = ("cluster", "node_type", "node_id")

OTHER = "_other"
"""The topic and group of the series that sums up all series beyond the limit."""

AT_ONCE = 256
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
