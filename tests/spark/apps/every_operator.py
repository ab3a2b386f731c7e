"""The driver of a pipeline with each kind of store as a process; its arguments are those of stateful.py.

Each record's number goes through all operators of the first sub-topology as it came, and by number modulo GROUPS
through a topic to the totals of the second one. Nothing is late and no time to live or timer ends, so that each store
follows from the records that were read.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from roster.model.topology import Subtopology, repartition_topic
from roster.spark.processor.code import Given
from roster.spark.processor.operator import ProcessorOperator
from roster.state.aggregate import Aggregation
from roster.state.deduplicate import Deduplication
from roster.state.processor.batch import Plan, TimeMode
from roster.state.sessions import SessionAggregation
from roster.state.stream_join import StreamJoin, in_columns, joined_columns
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.tasks.operator_steps import _WithSteps
from roster.stateful.tasks.repartition import RepartitionTopic
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan
from tests.spark.apps.stateful import KEYS, main
from tests.state.aggregate_texts import aggregate_of

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS, PAUSE_AFTER, FAR = 7, 300, 4_000_000_000_000
"""Numbers from one pause of event time to the next; time of the first timer, in ms."""
AT = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("g", pa.int64()), ("pair", pa.int64()), ("at", AT)])
LEFT = pa.schema([COLUMNS.field(name) for name in ("k", "n", "at")])
RIGHT = pa.schema([("k", pa.int64()), ("m", pa.int64()), ("at2", AT)])
JOINED = joined_columns(LEFT, RIGHT)
EVER, GAP, WINDOW = timedelta(days=1000), timedelta(seconds=45), timedelta(seconds=100)
WITHIN = timedelta(seconds=40)
SUMS = {"count": aggregate_of("count(*)"), "sum": aggregate_of("sum(n)")}
PASSED = "by-g"
_NUMBER = StructType([StructField("n", LongType())])


def seconds_of(n: int) -> int:
    return n + 1000 * (n // PAUSE_AFTER)


def is_right(n: int) -> bool:
    """Whether a number is a row of the join's right side: its key's numbers change sides."""
    return n // KEYS % 2 == 1


def rows_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    n = batch["value"].cast(pa.string()).cast(pa.int64()).to_pylist()
    columns = {
        "k": [each % KEYS for each in n],
        "n": n,
        "g": [each % GROUPS for each in n],
        "pair": [each // (2 * KEYS) for each in n],
        "at": pa.array([1_000_000 * seconds_of(each) for each in n], AT),
    }
    yield pa.RecordBatch.from_pydict(columns, schema=COLUMNS)


@dataclass(frozen=True)
class Beside(_WithSteps):
    """An operator that keeps its state, while rows pass as they came."""

    def __call__(self, table: pa.Table, store: Any, /) -> Any:
        return replace(self.operator(self.given_of(table), store), results=table)

    def given_of(self, table: pa.Table) -> pa.Table:
        return table


class BesideJoin(Beside):
    """A join whose sides are rows of one topic."""

    def sides(self, columns: pa.Schema) -> tuple[pa.Schema, pa.Schema] | None:
        return self.operator.sides(JOINED)  # type: ignore[attr-defined,no-any-return]

    def given_of(self, table: pa.Table) -> pa.Table:
        right = pa.array([is_right(n) for n in table["n"].to_pylist()], pa.bool_())
        sides = table.filter(pc.invert(right)).select(LEFT.names), table.filter(right).select(LEFT.names)
        return pa.Table.from_batches(
            [
                in_columns(batch.rename_columns(names), JOINED, is_other=names == RIGHT.names)
                for side, names in zip(sides, (LEFT.names, RIGHT.names), strict=True)
                for batch in side.to_batches()
            ],
            schema=JOINED,
        )


class Keeper(StatefulProcessor):
    """Has a timer of each number since the last one that is a multiple of 4, and the last number."""

    def init(self, handle):
        self.handle = handle
        self.last = handle.getValueState("last", _NUMBER)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.n % 4 == 0:
                for timer in list(self.handle.listTimers()):
                    self.handle.deleteTimer(timer)
            else:
                self.handle.registerTimer(FAR + row.n)
            self.last.update((row.n,))
        return iter([])

    def close(self):
        pass


def plans(topic: str, group: str) -> list[SubtopologyPlan]:
    given = Given(pickle.dumps(Keeper()), pa.schema([("k", pa.int64())]), TimeMode.PROCESSING, "UTC", {})
    keeper = ProcessorOperator(Plan(("k",), TimeMode.PROCESSING), given).prepared()
    join = StreamJoin(("k",), ("at", "at2"), ("m",), WITHIN, EVER, "left")
    operators = {
        "ids": Deduplication(("k", "pair"), "at", EVER),
        "counts": Aggregation(("k",), SUMS),
        "windows": WindowedAggregation(("k",), SUMS, Window("at", WINDOW, grace=EVER), final=False),
        "sessions": SessionAggregation(("k",), SUMS, Window.session("at", GAP, grace=EVER), final=False),
        "timers": keeper,
        "pairs": join,
    }
    nodes = tuple(
        OperatorNode((BesideJoin if each is join else Beside)(each, COLUMNS, None, COLUMNS), COLUMNS, store)  # type: ignore[arg-type]
        for store, each in operators.items()
    )
    passed, first = repartition_topic(group, PASSED), Subtopology(0, (topic,))
    repartition = RepartitionTopic(first, passed, ("g",), COLUMNS, partitions=4)
    totals = OperatorNode(Aggregation(("g",), SUMS), COLUMNS, "totals")
    return [
        SubtopologyPlan(replace(first, stores=tuple(operators)), nodes, repartition_sink=repartition),
        SubtopologyPlan(Subtopology(1, (passed,), ("totals",)), (totals,), repartition_source=repartition),
    ]


if __name__ == "__main__":
    main(function=rows_of, plans_of=plans)
