"""Jobs with state: totals of each aircraft, and delays of each carrier in windows of a day that begin every six hours.

Flights without a tail number belong to no aircraft.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from roster.cli.demo.jobs import Job
from roster.cli.demo.oracle import Figures, Group, Groups
from roster.client import Admin
from roster.model import TopicPartition, parse_addresses
from roster.records.fetch import read_ranges
from roster.records.ranges import Settings
from roster.spark import KafkaSink, Pipeline, Window
from roster.state.changelog import last_per_key

if TYPE_CHECKING:
    from pathlib import Path

DAY, EVERY = timedelta(days=1), timedelta(hours=6)
GRACE = timedelta(days=2)
"""Flights of a day come in the order in which they left, those that were cancelled at its end."""
_SUMS = {"flights": "count(*)", "departed": "count(dep_delay)", "minutes": "sum(dep_delay)"}


def _by_aircraft(pipeline: Pipeline, bootstrap: str, _: Path) -> Pipeline:
    flights = pipeline.json_columns("tailnum string, dep_delay long, distance long")
    totals = flights.filter(pc.field("tailnum").is_valid()).aggregate(
        "tailnum", {**_SUMS, "miles": "sum(distance)"}, store=AIRCRAFT.store
    )
    return totals.write(KafkaSink(bootstrap, AIRCRAFT.output))


def _by_carrier(pipeline: Pipeline, bootstrap: str, _: Path) -> Pipeline:
    flights = pipeline.json_columns("carrier string, time_hour timestamp, dep_delay long")
    window = Window("time_hour", DAY, every=EVERY, grace=GRACE)
    delays = flights.aggregate("carrier", _SUMS, window=window, store=CARRIERS.store)
    return delays.write(KafkaSink(bootstrap, CARRIERS.output))


def totals_in_file(flights: pd.DataFrame) -> Groups:
    """Flights, departures, minutes of delay and miles of each aircraft, by pandas."""
    groups = (
        flights.dropna(subset="tailnum")
        .groupby("tailnum")
        .agg(
            flights=("carrier", "size"),
            departed=("dep_delay", "count"),
            minutes=("dep_delay", "sum"),
            miles=("distance", "sum"),
        )
    )
    return {
        (row.Index,): Figures(row.flights, (row.departed, int(row.minutes), int(row.miles)))
        for row in groups.itertuples()
    }


def windows_in_file(flights: pd.DataFrame) -> Groups:
    """Flights, departures and minutes of delay of each carrier and window, by its start in seconds, by pandas."""
    at = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[ns, UTC]").astype("int64") // 10**9
    every, length = int(EVERY.total_seconds()), int(DAY.total_seconds())
    last = at // every * every
    copies = [flights.assign(start=last - back) for back in range(0, length, every)]
    groups = pd.concat(copies).groupby(["carrier", "start"])["dep_delay"].agg(["size", "count", "sum"])
    return {group: Figures(size, (count, int(total))) for group, size, count, total in groups.itertuples(name=None)}


def totals_of(values: Iterable[bytes]) -> Groups:
    """Return the totals in output records."""
    return _groups(values, lambda row: (row["tailnum"],), ("departed", "minutes", "miles"))


def windows_of(values: Iterable[bytes]) -> Groups:
    """Return the delays in output records."""
    at = lambda row: (row["carrier"], int(pd.Timestamp(row["window_start"]).timestamp()))  # noqa: E731
    return _groups(values, at, ("departed", "minutes"))


def _groups(values: Iterable[bytes], group_of: Callable[[Mapping[str, Any]], Group], sums: tuple[str, ...]) -> Groups:
    rows = [json.loads(value) for value in values]
    return {group_of(row): Figures(row["flights"], tuple(row[name] or 0 for name in sums)) for row in rows}


def last_values(bootstrap: str, topic: str) -> list[bytes]:
    """Return the last value of each key of a topic, of committed transactions. Raises ClientError, FetchError."""
    with Admin(bootstrap) as admin:
        partitions = [TopicPartition(topic, each.partition) for each in admin.describe_topic(topic).partitions]
        begins, ends = admin.beginning_offsets(partitions), admin.stable_offsets(partitions)
    ranges = [(*tp, begins[tp], ends[tp]) for tp in partitions if begins[tp] < ends[tp]]
    if not ranges:
        return []
    batches = list(read_ranges(parse_addresses(bootstrap), "demo", ranges, Settings(is_committed=True)))
    _, values = last_per_key(pa.Table.from_batches(batches).select(["key", "value"]))
    return [value for value in values if value is not None]


AIRCRAFT: Job = Job(
    name="aircraft",
    group="aircraft",
    topic="flights-by-aircraft",
    key=("tailnum",),
    build=_by_aircraft,
    expected=totals_in_file,
    results=lambda bootstrap, _: totals_of(last_values(bootstrap, AIRCRAFT.output)),
    nouns="aircraft",
    store="totals",
    output="totals-by-aircraft",
)
CARRIERS: Job = Job(
    name="carriers",
    group="carriers",
    topic="flights-by-carrier",
    key=("carrier",),
    build=_by_carrier,
    expected=windows_in_file,
    results=lambda bootstrap, _: windows_of(last_values(bootstrap, CARRIERS.output)),
    nouns="windows of carriers",
    store="delays",
    output="delays-by-carrier",
)
