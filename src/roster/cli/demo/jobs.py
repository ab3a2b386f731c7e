"""Jobs of the demos: what a pipeline computes, and the plain computation of the same file.

Jobs without state are Arrow functions that run inside the reading task. Each gets a batch of records (columns key,
value, topic, partition, offset, …) and returns partial aggregates; adding up the partial rows of all batches gives the
result, so no shuffle is needed. Jobs with state have totals of each aircraft, and delays of each carrier in windows of
a day that begin every six hours; flights without a tail number belong to no aircraft.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.json as pajson

from roster._json import JsonObject
from roster.cli.demo.oracle import Figures, Group, Groups
from roster.client import Admin
from roster.model import TopicPartition, parse_addresses
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import Settings
from roster.spark import KafkaSink, ParquetSink, Pipeline, Window
from roster.state.changelog import latest

if TYPE_CHECKING:
    from roster.cli.load.source import Source

_FLIGHT = pa.schema({"carrier": pa.string(), "time_hour": pa.string(), "dep_delay": pa.int64()})
DAY, EVERY = timedelta(days=1), timedelta(hours=6)
GRACE = timedelta(days=2)
"""Flights of a day come in the order in which they left, those that were cancelled at its end."""
_TOTALS = {"flights": "count(*)", "departed": "count(dep_delay)", "minutes": "sum(dep_delay)"}


@dataclass(frozen=True, slots=True)
class Job:
    """A consumer group, the topic it reads, and what it computes.

    key: columns of the file that the loader keys records by. build: completes a pipeline that reads `topic`, for a
    bootstrap address and the directory of the output. results: reads the output, from the same two. expected: the plain
    computation, of the flights or of another file. store, output: the store and the topic of the results of a job with
    state.
    """

    name: str
    group: str
    topic: str
    key: tuple[str, ...]
    build: Callable[[Pipeline, str, Path], Pipeline]
    results: Callable[[str, Path], Groups]
    expected: Callable[[Any], Groups]
    nouns: str = "groups"
    store: str = ""
    output: str = ""

    @property
    def changelog(self) -> str:
        """The topic that has the state."""
        return f"{self.group}-{self.store}-changelog"


def flights_by_carrier_and_hour(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Flights, those of them that left (the others have no delay), and their minutes of delay, by carrier and hour."""
    lines = b"\n".join(batch.column("value").to_pylist())
    flights = pajson.read_json(
        io.BytesIO(lines),
        read_options=pajson.ReadOptions(use_threads=False),
        parse_options=pajson.ParseOptions(explicit_schema=_FLIGHT, unexpected_field_behavior="ignore"),
    )
    groups = flights.group_by(["carrier", "time_hour"], use_threads=False).aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")]
    )
    hours = pc.strptime(groups["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "us").cast(pa.timestamp("us", "UTC"))
    return _one_batch(
        {
            "carrier": groups["carrier"],
            "hour": hours,
            "flights": groups["count_all"],
            "departed": groups["dep_delay_count"],
            "delay_minutes": pc.fill_null(groups["dep_delay_sum"], 0),
        }
    )


def records_by_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Count the records of each key; null is a key too."""
    keys = pa.table({"key": batch.column("key").cast(pa.string())})
    groups = keys.group_by("key", use_threads=False).aggregate([([], "count_all")])
    return _one_batch({"key": groups["key"], "records": groups["count_all"]})


def _one_batch(columns: dict[str, pa.ChunkedArray]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: column.combine_chunks() for name, column in columns.items()})


def flights_in_file(flights: pd.DataFrame) -> Groups:
    """Flights, departures and minutes of delay by (carrier, hour in seconds since the epoch), by pandas."""
    hour = pd.to_datetime(flights["time_hour"], utc=True).astype("int64") // 10**9
    groups = flights.groupby(["carrier", hour])["dep_delay"].agg(["size", "count", "sum"])
    return {group: Figures(size, (count, int(total))) for group, size, count, total in groups.itertuples(name=None)}


def keys_in_file(source: Source) -> Groups:
    """Records by key, counted one by one."""
    source.check()
    counts: Counter[bytes | None] = Counter()
    for records in source.batches():
        counts.update(records["key"].to_pylist())
    return {(None if key is None else key.decode(),): Figures(count) for key, count in counts.items()}


def flights_in_output(path: Path) -> Groups:
    """The same as `flights_in_file`, added up from the partial rows the applications wrote."""
    rows = _added_up(path, ["carrier", "hour"], ["flights", "departed", "delay_minutes"])
    return {
        (row["carrier"], int(row["hour"].timestamp())): Figures(
            row["flights_sum"], (row["departed_sum"], row["delay_minutes_sum"])
        )
        for row in rows
    }


def keys_in_output(path: Path) -> Groups:
    """The same as `keys_in_file`, added up from the partial rows the applications wrote."""
    return {(row["key"],): Figures(row["records_sum"]) for row in _added_up(path, ["key"], ["records"])}


def _added_up(path: Path, by: list[str], sums: list[str]) -> list[JsonObject]:
    table = pads.dataset(path, format="parquet").to_table() if path.is_dir() else None
    if not table:
        return []
    rows: list[JsonObject] = table.group_by(by).aggregate([(name, "sum") for name in sums]).to_pylist()
    return rows


SUMS: dict[str, tuple[Callable[[pa.RecordBatch], pa.RecordBatch], str]] = {
    "flights": (
        flights_by_carrier_and_hour,
        "carrier string, hour timestamp, flights long, departed long, delay_minutes long",
    ),
    "keys": (records_by_key, "key string, records long"),
}
"""Functions of partial aggregates, and what they return, with Spark's types."""


def _added(name: str) -> Callable[[Pipeline, str, Path], Pipeline]:
    return lambda pipeline, _, output: pipeline.map_arrow(*SUMS[name]).write(ParquetSink(output))


FLIGHTS = Job(
    name="flights",
    group="demo",
    topic="flights",
    key=("carrier", "tailnum"),
    build=_added("flights"),
    expected=flights_in_file,
    results=lambda _, output: flights_in_output(output),
)
KEYS = Job(
    name="keys",
    group="demo",
    topic="records",
    key=(),
    build=_added("keys"),
    expected=keys_in_file,
    results=lambda _, output: keys_in_output(output),
)


def _by_aircraft(pipeline: Pipeline, bootstrap: str, _: Path) -> Pipeline:
    flights = pipeline.json_columns("tailnum string, dep_delay long, distance long")
    totals = flights.filter(pc.field("tailnum").is_valid()).aggregate(
        "tailnum", {**_TOTALS, "miles": "sum(distance)"}, store=AIRCRAFT.store
    )
    return totals.write(KafkaSink(bootstrap, AIRCRAFT.output))


def _by_carrier(pipeline: Pipeline, bootstrap: str, _: Path) -> Pipeline:
    flights = pipeline.json_columns("carrier string, time_hour timestamp, dep_delay long")
    window = Window("time_hour", DAY, every=EVERY, grace=GRACE)
    delays = flights.aggregate("carrier", _TOTALS, window=window, store=CARRIERS.store)
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
    starts = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[ns, UTC]").astype("int64") // 10**9
    every, length = int(EVERY.total_seconds()), int(DAY.total_seconds())
    last = starts // every * every
    copies = [flights.assign(start=last - back) for back in range(0, length, every)]
    groups = pd.concat(copies).groupby(["carrier", "start"])["dep_delay"].agg(["size", "count", "sum"])
    return {group: Figures(size, (count, int(total))) for group, size, count, total in groups.itertuples(name=None)}


def totals_of(values: Iterable[bytes]) -> Groups:
    """Return the totals in output records."""
    return _groups(values, lambda row: (row["tailnum"],), ("departed", "minutes", "miles"))


def windows_of(values: Iterable[bytes]) -> Groups:
    """Return the delays in output records."""
    key_of = lambda row: (row["carrier"], int(pd.Timestamp(row["window_start"]).timestamp()))  # noqa: E731
    return _groups(values, key_of, ("departed", "minutes"))


def _groups(values: Iterable[bytes], group_of: Callable[[JsonObject], Group], sums: tuple[str, ...]) -> Groups:
    rows = [json.loads(value) for value in values]
    return {group_of(row): Figures(row["flights"], tuple(row[name] or 0 for name in sums)) for row in rows}


def last_values(bootstrap: str, topic: str) -> list[bytes]:
    """Return the last value of each key of a topic, of committed transactions. Raises ClientError, FetchError."""
    with Admin(bootstrap) as admin:
        partitions = [
            TopicPartition(topic, partition.partition) for partition in admin.describe_topic(topic).partitions
        ]
        begins, ends = admin.beginning_offsets(partitions), admin.stable_offsets(partitions)
    ranges = [(*tp, begins[tp], ends[tp]) for tp in partitions if begins[tp] < ends[tp]]
    if not ranges:
        return []
    batches = list(read_ranges(parse_addresses(bootstrap), "demo", ranges, Settings(is_committed=True)))
    values: list[bytes] = latest(pa.Table.from_batches(batches))["value"].drop_null().to_pylist()
    return values


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
