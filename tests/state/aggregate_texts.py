"""Aggregates of one column by their texts, such as `sum(n)`, without a JVM that parses them."""

from __future__ import annotations

import re

from roster.state.aggregate_functions import FUNCTIONS, Aggregate, Kind
from roster.state.collected import BOUND, sketch_size

FURTHER = {Kind.COLLECT_LIST: (BOUND,), Kind.COLLECT_SET: (BOUND,), Kind.APPROX_COUNT_DISTINCT: (sketch_size(0.05),)}


def aggregate_of(text: str) -> Aggregate:
    """Return the aggregate that `Pipeline.aggregate` makes of a text."""
    match = re.fullmatch(r"(\w+)\((.+)\)", text)
    assert match is not None, text
    kind = FUNCTIONS[match[1]]
    return Aggregate(kind, match[2], arguments=FURTHER.get(kind, ()))
