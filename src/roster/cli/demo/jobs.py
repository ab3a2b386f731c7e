"""Jobs of the demo's applications, as Arrow functions that run inside the reading task.

Each gets a batch of records (columns key, value, topic, partition, offset, …) and returns partial aggregates; adding up
the partial rows of all batches gives the result, so no shuffle and no state is needed.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

if TYPE_CHECKING:
    from collections.abc import Callable

FLIGHTS_SCHEMA = "carrier string, hour timestamp, flights long, departed long, delay_minutes long"
KEYS_SCHEMA = "key string, records long"
_FLIGHT = pa.schema({"carrier": pa.string(), "time_hour": pa.string(), "dep_delay": pa.int64()})


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


JOBS: dict[str, tuple[Callable[[pa.RecordBatch], pa.RecordBatch], str]] = {
    "flights": (flights_by_carrier_and_hour, FLIGHTS_SCHEMA),
    "keys": (records_by_key, KEYS_SCHEMA),
}
