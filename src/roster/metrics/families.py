"""Metrics as prometheus_client has them, made of plain values, and the page that Prometheus scrapes."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from roster.http.pages import Answer, Page
from roster.model.timers import BOUNDS, Durations

F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)
L = TypeVar("L", bound=tuple[object, ...])

MOST_PARTITIONS = 50_000
"""Above so many partitions there are sums only: each has several series."""


def gauge(name: str, text: str, labels: Sequence[str], values: Mapping[L, float | None]) -> GaugeMetricFamily:
    """Return a metric. values: by a tuple of the labels; None has no series."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def counter(name: str, text: str, labels: Sequence[str], values: Mapping[L, float | None]) -> CounterMetricFamily:
    """Return a metric, likewise."""
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: F, values: Mapping[L, float | None]) -> F:
    for label_values, value in values.items():
        if value is not None:
            family.add_metric([str(label) for label in label_values], value)
    return family


def histogram(name: str, text: str, labels: Sequence[str], values: Mapping[L, Durations]) -> HistogramMetricFamily:
    """Return a metric. values: by a tuple of the labels."""
    family, limits = HistogramMetricFamily(name, text, labels=labels), [*map(str, BOUNDS), "+Inf"]
    for label_values, durations in values.items():
        buckets = list(zip(limits, accumulate(durations.counts), strict=True))
        family.add_metric([str(label) for label in label_values], buckets, durations.seconds)
    return family


def metrics_page(registry: CollectorRegistry) -> Page:
    """Return the page `/metrics` of a registry."""
    return Page("/metrics", lambda _: Answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST), threads=2)
