"""A pipeline whose functions and operators fail at records; as a program, one whose driver is killed by itself.

    dead_letters.py BOOTSTRAP GROUP TOPIC OUT LETTERS STATE_DIR KILLED_AT

It reads all that is there, in small batches. KILLED_AT: the number of the batch whose results, state and dead letters
are written, and not committed: then it gets a SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roster.spark import Pipeline

COLUMNS = "id long, user string, page string, amount long"
TOO_LARGE = 2**63 - 1


def refuse(rows: pa.RecordBatch, column: str, wrong: str) -> None:
    """Raise for the first row with this text in a column."""
    for row in rows.to_pylist():
        if row[column] == wrong:
            raise ValueError(f"no {wrong} {row['id']}")


def parsed(records: pa.RecordBatch) -> pa.RecordBatch:
    """Two rows of each record, the second one with no amount."""
    rows = [json.loads(value) for value in records["value"].to_pylist()]
    schema = pa.schema([("id", pa.int64()), ("user", pa.string()), ("page", pa.string()), ("amount", pa.int64())])
    made = pa.RecordBatch.from_pylist([each for row in rows for each in (row, row | {"amount": 0})], schema)
    refuse(made, "page", "bad")
    return made


class Counts(StatefulProcessor):
    """Numbers the rows of a user; raises when an amount is that number."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (n,) = self.seen.get() or (0,)
            self.seen.update((n + 1,))
            if row.amount == n + 1:
                raise KeyError(row.id)
            yield Row(id=row.id, user=key[0], page=row.page, amount=row.amount)

    def close(self) -> None:
        pass


def numbered(rows: pa.RecordBatch) -> pa.RecordBatch:
    refuse(rows, "page", "result")
    return rows


def arrived(rows: pa.RecordBatch) -> pa.RecordBatch:
    refuse(rows, "page", "arrived")
    return rows.filter(pc.field("page") != "nowhere")


def pages(spark: Any, bootstrap: str, group: str, topic: str, out: str, letters: str, directory: str) -> Pipeline:
    from roster.spark import KafkaSink, Pipeline, State

    return (
        Pipeline(
            *(spark, bootstrap, group, topic),
            dead_letter_topic=letters,
            consumer={"session.timeout.ms": 6_000},
            max_offsets_per_batch=60,
            state=State(dir=directory),
        )
        .map_arrow(parsed, COLUMNS)
        .transform_with_state(Counts(), "user", COLUMNS, store="counts")
        .map_arrow(numbered, COLUMNS)
        .repartition("page", partitions=2)
        .map_arrow(arrived, COLUMNS)
        .aggregate("page", {"total": "sum(amount)", "rows": "count(*)"}, store="pages")
        .write(KafkaSink(bootstrap, out))
    )


def main() -> None:
    from roster.sinks.kafka_transactions import TransactionalSink
    from roster.spark import session

    *arguments, killed_at = sys.argv[1:]
    commit, calls = TransactionalSink.commit_batch, count(1)

    def dying(sink: TransactionalSink, written: None, batch: Any) -> Any:
        if next(calls) == int(killed_at):
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(sink, written, batch)

    TransactionalSink.commit_batch = dying  # type: ignore[method-assign]
    pages(session("dead-letters", "local[1]", spark_driver_memory="512m"), *arguments).run(available_now=True)


if __name__ == "__main__":
    main()
