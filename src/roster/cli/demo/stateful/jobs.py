"""What the stateful demo computes, as pipelines and as plain computations of the same file.

Two groups: totals of each aircraft, and delays of each carrier in windows of a day, of which one begins every six
hours. Flights without a tail number belong to no aircraft.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from roster.cli.demo.oracle import Figures, Group, Groups, read_columns
from roster.client import Admin
from roster.model import TopicPartition, parse_addresses
from roster.records.fetch import read_ranges
from roster.records.ranges import Settings
from roster.spark import KafkaSink, Pipeline, Window
from roster.state.changelog import last_per_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

DAY, EVERY = timedelta(days=1), timedelta(hours=6)
GRACE = timedelta(days=2)
"""Flights of a day come in the order in which they left, those that were cancelled at its end."""


@dataclass(frozen=True, slots=True)
class Job:
    """A group with its input topic, keyed by a column, its store and its output topic.

    columns: of the values, with Spark's types. declare: adds the operators to a pipeline with these columns. expected:
    the plain computation. group_of: the group of an output record. sums: its other figures but `flights`.
    """

    group: str
    topic: str
    key: str
    store: str
    output: str
    columns: str
    declare: Callable[[Pipeline], Pipeline]
    expected: Callable[[pd.DataFrame], Groups]
    group_of: Callable[[Mapping[str, Any]], Group]
    sums: tuple[str, ...]
    nouns: str

    @property
    def changelog(self) -> str:
        """The topic that has the state."""
        return f"{self.group}-{self.store}-changelog"

    def pipeline(self, pipeline: Pipeline, bootstrap: str) -> Pipeline:
        """Complete a pipeline that reads `topic`."""
        return self.declare(pipeline.json_columns(self.columns)).write(KafkaSink(bootstrap, self.output))

    def results(self, bootstrap: str) -> Groups:
        """Return the last result of each key in the output topic, of committed transactions."""
        return self.groups(last_values(bootstrap, self.output))

    def groups(self, values: Iterable[bytes]) -> Groups:
        """Return the groups of output records."""
        rows = [json.loads(value) for value in values]
        return {
            self.group_of(row): Figures(row["flights"], tuple(row[name] or 0 for name in self.sums)) for row in rows
        }


def _by_aircraft(pipeline: Pipeline) -> Pipeline:
    totals = {
        "flights": "count(*)",
        "departed": "count(dep_delay)",
        "minutes": "sum(dep_delay)",
        "miles": "sum(distance)",
    }
    return pipeline.filter(pc.field("tailnum").is_valid()).aggregate("tailnum", totals, store="totals")


def _by_carrier(pipeline: Pipeline) -> Pipeline:
    window = Window("time_hour", DAY, every=EVERY, grace=GRACE)
    delays = {"flights": "count(*)", "departed": "count(dep_delay)", "minutes": "sum(dep_delay)"}
    return pipeline.aggregate("carrier", delays, window=window, store="delays")


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


def flights_in_file(path: Path) -> pd.DataFrame:
    """Read the columns that the plain computations need; NA is null."""
    columns = ["carrier", "tailnum", "time_hour", "dep_delay", "distance"]
    return read_columns(path, columns)


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


JOBS = (
    Job(
        group="aircraft",
        topic="flights-by-aircraft",
        key="tailnum",
        store="totals",
        output="totals-by-aircraft",
        columns="tailnum string, dep_delay long, distance long",
        declare=_by_aircraft,
        expected=totals_in_file,
        group_of=lambda row: (row["tailnum"],),
        sums=("departed", "minutes", "miles"),
        nouns="aircraft",
    ),
    Job(
        group="carriers",
        topic="flights-by-carrier",
        key="carrier",
        store="delays",
        output="delays-by-carrier",
        columns="carrier string, time_hour timestamp, dep_delay long",
        declare=_by_carrier,
        expected=windows_in_file,
        group_of=lambda row: (row["carrier"], int(pd.Timestamp(row["window_start"]).timestamp())),
        sums=("departed", "minutes"),
        nouns="windows of carriers",
    ),
)
