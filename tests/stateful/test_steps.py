"""Steps before and behind a stateful operator, and what becomes of results that are taken back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from roster.model.topology import Subtopology
from roster.pipeline.errors import FunctionError, PipelineError
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.missing_values import MissingValues, Seen
from roster.pipeline.tasks.reader import ReaderConfig, ReadTask
from roster.spark.stateful_operators import with_steps
from roster.spark.steps import Filtered, Mapped, Parsed, chained
from roster.state.aggregate import Aggregation
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.tasks.operator_steps import check_keys
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan
from roster.stateful.tasks.task import StatefulTask, StoreKind, TopologyPlan
from tests.state.aggregate_texts import aggregate_of

COLUMNS = StructType([StructField("k", StringType()), StructField("n", LongType())])
ROWS = pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3]})
HOUR = timedelta(hours=1)
ARROW_TEXT = pa.schema([("value", pa.string()), ("key", pa.string())])
TEXT = StructType([StructField("value", StringType()), StructField("key", StringType())])


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "n", pc.multiply(batch["n"], 2))


def test_steps_work_in_their_order() -> None:
    steps = [Parsed(COLUMNS, "value", "PERMISSIVE", ("key",)), Filtered(pc.field("n") > 1)]
    function, columns = chained(steps, TEXT)
    assert columns.names == ["k", "n", "key"]
    assert function is not None
    values = ['{"k": "a", "n": 1}', '{"k": "b", "n": 2}', "broken"]
    found = list(function(pa.record_batch({"value": values, "key": ["x", "y", "z"]})))
    assert pa.Table.from_batches(found).to_pylist() == [{"k": "b", "n": 2, "key": "y"}]
    twice, _ = chained([Mapped(doubled, COLUMNS), Filtered(pc.field("n") > 2), Mapped(doubled, COLUMNS)], COLUMNS)
    assert twice is not None
    assert pa.Table.from_batches(twice(ROWS.to_batches()[0]))["n"].to_pylist() == [8, 12]


def test_a_column_without_a_value_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    missing = MissingValues("shops")

    def counted(*values: str) -> Seen:
        """What a task reports whose pipeline leaves out each row without k."""
        steps = [Parsed(COLUMNS, "value", "PERMISSIVE", ("key",)), Filtered(pc.is_valid(pc.field("k")))]
        function, _ = chained(steps, TEXT)
        found = _Collected()
        records = [pa.record_batch({"value": list(values), "key": [None] * len(values)}, ARROW_TEXT)]
        task = ReadTask(ReaderConfig("b:1", "g"), [[]], function, found, None, records)  # type: ignore[arg-type]
        list(task.read([0]))
        (counts,) = found.values()
        seen: Seen = counts.seen
        return seen

    for batch in ([counted()], [counted('{"K": "a"}'), counted('{"n": 1}')], [counted('{"K": "a"}')]):
        missing.note(*batch)
    missing.note(counted('{"k": "a"}'))
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["shops: no record so far has a value of 'k', 'key'; check the names of columns, and the records"]
    missing = MissingValues("shops")
    missing.note(counted('{"k": "a", "n": 1}'))
    missing.note(counted('{"key": 1}'))
    assert len(caplog.records) == 2
    assert "of 'key';" in caplog.records[1].getMessage(), "k and n had values before"


class _Collected(dict[int, Any]):
    """An accumulator."""

    def add(self, found: dict[int, Any]) -> None:
        self.update(found)


def test_results_go_on_through_the_steps_behind_and_the_state_does_not() -> None:
    operator = Aggregation(("k",), {"n": aggregate_of("sum(n)")})
    plain = operator(ROWS, NoState())
    after = with_steps(operator, ROWS.schema, [Filtered(pc.field("n") > 2), Mapped(doubled, COLUMNS)])
    update = after(ROWS, NoState())
    assert update.results.to_pylist() == [{"k": "a", "n": 8}]
    assert update.changes.equals(plain.changes)
    assert after.result_keys == operator.result_keys
    assert after.layout(ROWS.schema) == operator.layout(ROWS.schema)

    windowed = WindowedAggregation(("k",), {"n": aggregate_of("sum(n)")}, Window("at", HOUR), final=False)
    rows = ROWS.append_column("at", pa.array([0] * len(ROWS), pa.timestamp("us", "UTC")))
    results = with_steps(windowed, rows.schema, [Filtered(pc.field("n") > 2)])(rows, NoState()).results
    assert results.select(["k", "n"]).to_pylist() == [{"k": "a", "n": 4}]
    assert results.schema.field("window_start").type == pa.timestamp("ms", "UTC"), "as without steps: it is in the key"

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no such luck")

    with pytest.raises(FunctionError, match="ValueError: no such luck, given results of the stateful operator"):
        with_steps(operator, ROWS.schema, [Mapped(fails, COLUMNS)])(ROWS, NoState())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Parsed(COLUMNS, "value", "DROP", ()), "mode: 'DROP' is not a mode"),
        (lambda: chained([Parsed(COLUMNS, "valu", "FAILFAST", ())], TEXT), "json_columns: no column 'valu'"),
        (lambda: chained([Parsed(COLUMNS, "n", "FAILFAST", ())], COLUMNS), "json_columns: column 'n' is not text"),
        (lambda: chained([Parsed(TEXT, "value", "FAILFAST", ("key",))], TEXT), "has a field 'key' too"),
        (lambda: Filtered("n > 1"), "filter: 'n > 1' is not an expression of Arrow"),
        (lambda: chained([Filtered(pc.field("m") > 1)], COLUMNS), "filter: .* does not fit: No match for .*m"),
        (
            lambda: check_keys(("k",), TEXT.names),
            "map_arrow: the column 'k' is missing, a part of the records' key",
        ),
    ],
)
def test_steps_that_do_not_fit_are_named(make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make()


def test_results_that_are_taken_back_are_records_without_a_value() -> None:
    at = pa.array([5_000_000, 3_000_000], pa.timestamp("us", "UTC"))
    operator = SessionAggregation(
        ("k",), {"n": aggregate_of("count(*)")}, Window.session("at", timedelta(seconds=3)), final=False
    )
    first = pa.table({"k": ["a"], "at": at.slice(0, 1)})
    state = dict(zip(*(operator(first, NoState()).changes[name].to_pylist() for name in ("key", "value")), strict=True))

    class Known(NoState):
        def multi_get(self, keys: Any) -> list[bytes | None]:
            return [state.get(key) for key in keys]

    update = operator(pa.table({"k": ["a"], "at": at.slice(1, 1)}), Known())
    config = ReaderConfig(bootstrap="nowhere:1", group="g")
    node = OperatorNode(operator, arrow_schema(COLUMNS), "s")
    plan = SubtopologyPlan(Subtopology(0, ("t",), ("s",)), (node,))
    work = TopologyPlan((plan,), {"s": StoreKind(Place(None, "c", "i"), plan.definitions["s"])}, "out")
    (taken_back,) = StatefulTask(config, [], work, {})._outgoing.retracted(update, node)
    addressed = {"topic": "out", "partition": None, "timestamp": None}
    assert taken_back.to_pylist() == [{**addressed, "key": b'["1970-01-01T00:00:05.000000Z","a"]', "value": None}]
    assert [row["n"] for row in update.results.to_pylist()] == [2]
