"""Metrics as prometheus_client has them, made of plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

MOST_PARTITIONS = 50_000
"""Above so many partitions there are sums only: each has several series."""


def gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float | None]) -> GaugeMetricFamily:
    """Return a metric. values: by a tuple of the labels; None has no series."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in values.items():
        if value is not None:
            family.add_metric([str(label) for label in of], value)
    return family


def histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    bounds: Sequence[float],
    values: Mapping[Any, tuple[Sequence[int], float]],
) -> HistogramMetricFamily:
    """Return a metric. values: by a tuple of the labels; numbers by class, one more than bounds, and the sum."""
    family = HistogramMetricFamily(name, text, labels=labels)
    limits = [*map(str, bounds), "+Inf"]
    for of, (counts, total) in values.items():
        family.add_metric([str(label) for label in of], list(zip(limits, accumulate(counts), strict=True)), total)
    return family
