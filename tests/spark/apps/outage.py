"""Windows of a minute behind a repartition topic, as a process that starts in a second: see `stateful.py`."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from roster.state.windows import Window, WindowedAggregation
from tests.spark.apps.stateful import main
from tests.state.aggregate_texts import aggregate_of

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
WINDOW = Window("at", timedelta(minutes=1), grace=timedelta(seconds=10))
COUNTS = WindowedAggregation(("k",), {"n": aggregate_of("count(*)")}, WINDOW, final=True)


def rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    values = [json.loads(value) for value in batch["value"].to_pylist()]
    given = [{"k": value["region"], "at": datetime.fromisoformat(value["at"])} for value in values]
    yield pa.RecordBatch.from_pylist(given, COLUMNS)


if __name__ == "__main__":
    main(COUNTS, COLUMNS, rows)
