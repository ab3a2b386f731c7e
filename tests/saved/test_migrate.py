"""State taken to a new group by a function, held against a plain computation of all records."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, functions
from pyspark.sql.streaming import StatefulProcessor

from roster.spark import KafkaSink, Pipeline, PipelineError, State, Window
from roster.spark.state import Export, export, migrate_state
from tests.librdkafka import idempotent_producer
from tests.saved.groups_with_state import rows, send, totals_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

AT = pa.timestamp("us", "UTC")
STEP = timedelta(minutes=10)


def timed(batch: pa.RecordBatch) -> pa.RecordBatch:
    n = batch["value"].cast(pa.string()).cast(pa.int64())
    at = pa.array([each * STEP // timedelta(microseconds=1) for each in n.to_pylist()], AT)
    return pa.RecordBatch.from_arrays([batch["key"].cast(pa.string()), n, at], ["shop", "price", "at"])


def by_day(rows: DataFrame) -> DataFrame:
    import shops  # type: ignore[import-not-found] # the page's module

    return shops.by_day(rows, "totals", "entries")  # type: ignore[no-any-return]


def without_revenue(rows: DataFrame, store: str, part: str) -> DataFrame:
    return by_day(rows).drop("revenue").withColumn("orders", functions.col("orders").cast("int"))


def elsewhere(rows: DataFrame, store: str, part: str) -> DataFrame:
    return by_day(rows).withColumn("partition", functions.col("partition") + 7)


def twice(rows: DataFrame, store: str, part: str) -> DataFrame:
    return by_day(rows).unionAll(by_day(rows))


PAGE = Path(__file__).parents[2] / "docs" / "state" / "changes.md"


@pytest.mark.gate
def test_state_goes_on_as_a_function_has_made_it(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out = topics.create(2), topics.create(1)
    old, new = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))
    sent = send(topics, topic, 2, range(300))

    def pipeline(group: str, size: str) -> Pipeline:
        made = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / group)))
        made.map_arrow(timed, "shop string, price long, at timestamp")
        window = Window("at", size, grace="1000 days")
        totals = {"orders": "count(*)", "revenue": "sum(price)"}
        made.aggregate("shop", totals, window=window, results="updates", store="totals")
        return made.write(KafkaSink(topics.bootstrap, out))

    pipeline(old, "1 hour").run(available_now=True)
    with pytest.raises(PipelineError, match=r"window .*1:00:00.*by roster.spark.state.migrate_state"):
        pipeline(old, "1 day").run(available_now=True)
    described = pipeline(new, "1 day").describe_state()
    (code,) = re.findall(r"```python\n(# shops.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "shops.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    import shops

    def migrate(function: Any, via: str, definition: Any = described) -> int:
        return migrate_state(spark, topics.bootstrap, old, new, function, definition, str(tmp_path / via))

    for number, (function, given, message) in enumerate(
        (
            (
                shops.by_day,
                {"sums": described["totals"]},
                "definition: there is no store 'sums' to make it of. The stores of",
            ),
            (without_revenue, described, "entries: revenue bigint is missing; orders is int, not bigint"),
            (elsewhere, described, "there are rows of partition "),
            (twice, described, "two rows have the same key"),
        )
    ):
        with pytest.raises(PipelineError, match=message):
            migrate(function, f"wrong-{number}", given)
        assert topics.committed(new) == {}
    assert migrate(shops.by_day, "via")
    with pytest.raises(PipelineError, match=r"via is not empty\. Name an empty folder"):
        migrate(shops.by_day, "via")
    assert topics.committed(new) == topics.committed(old)
    sent += send(topics, topic, 2, range(250, 400))
    pipeline(new, "1 day").run(available_now=True)
    expected: dict[tuple[str, datetime], tuple[int, int]] = {}
    for _, _, name, n in sent:
        day = datetime.fromtimestamp(n * STEP.total_seconds() // 86_400 * 86_400, UTC)
        count, total = expected.get((name, day), (0, 0))
        expected[name, day] = count + 1, total + n
    found = rows(export(spark, topics.bootstrap, new, str(tmp_path / "last")), "totals")
    assert {(row["shop"], row["window_start"]): (row["orders"], row["revenue"]) for row in found} == expected
    assert all(row["window_end"] - row["window_start"] == timedelta(days=1) for row in found)


class Keeper(StatefulProcessor):
    """A value, a list, a map and a timer for each key."""

    def init(self, handle):
        self.handle = handle
        self.sum = handle.getValueState("sum", "n bigint")
        self.few = handle.getListState("few", "n bigint, at array<string>")
        self.kinds = handle.getMapState("kinds", "kind int", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            (before,) = self.sum.get() or (0,)
            self.sum.update((before + row.price,))
            self.few.appendValue((row.price, [key[0], "x"]))
            self.kinds.updateValue((row.price % 3,), (row.price,))
            self.handle.registerTimer(4_000_000_000_000 + row.price)
        yield Row(shop=key[0], n=self.sum.get()[0])

    def close(self):
        pass


def lists_of(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each key, in their order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["key"]["shop"], []).append(row)
    return found


PARTS = {"variables/sum", "variables/few", "variables/kinds", "timers"}


def a_thousand_more(rows: DataFrame, store: str, part: str) -> DataFrame:
    """Of the sums, and one shop less."""
    PARTS.remove(part)
    rows = rows.where("key.shop != 'k3'")
    if part == "variables/few":
        return rows.orderBy(functions.rand(1))
    if part != "variables/sum":
        return rows
    return rows.withColumn("value", functions.struct((functions.col("value.n") + 1000).alias("n")))


@pytest.mark.gate
def test_variables_lists_maps_and_timers_pass_a_function(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, out = topics.create(2), topics.create(1)
    old, new = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))
    sent = send(topics, topic, 2, range(60))

    def pipeline(group: str) -> Pipeline:
        made = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / group)))
        made.map_arrow(timed, "shop string, price long, at timestamp")
        made.transform_with_state(Keeper(), "shop", "shop string, n long", time_mode="ProcessingTime", store="kept")
        return made.write(KafkaSink(topics.bootstrap, out))

    pipeline(old).run(available_now=True)
    made = pipeline(new)
    via = tmp_path / "via"
    migrate_state(spark, topics.bootstrap, old, new, a_thousand_more, made.describe_state(), str(via))
    assert not PARTS
    before = Export.open(str(via / "export"))
    later = [("k3", 7), ("k4", 8), ("k5", 9)]
    producer = idempotent_producer(topics.bootstrap)
    for name, n in later:
        producer.produce(topic, str(n), name, partition=int(name[1:]) % 2)
    assert producer.flush(60) == 0
    made.run(available_now=True)
    after = export(spark, topics.bootstrap, new, str(tmp_path / "after"))
    sums = {row["key"]["shop"]: row["value"]["n"] for row in rows(after, "kept", "variables/sum")}
    expected = {name: total + 1000 for name, (_, total) in totals_of(sent).items() if name != "k3"}
    for name, n in later:
        expected[name] = expected.get(name, 0) + n
    assert sums == expected
    for part in ("variables/few", "timers"):
        was = [row for row in rows(before, "kept", part) if row["key"]["shop"] not in ("k3", "k4", "k5")]
        now = [row for row in rows(after, "kept", part) if row["key"]["shop"] not in ("k3", "k4", "k5")]
        assert lists_of(now) == lists_of(was) != {}
    kinds = {
        (row["key"]["shop"], row["user_map_key"]["kind"]): row["user_map_value"]["n"]
        for row in rows(after, "kept", "variables/kinds")
    }
    newest = {(name, n % 3): n for _, _, name, n in sent if name != "k3"} | {(name, n % 3): n for name, n in later}
    assert kinds == newest


def as_it_is(rows: DataFrame, store: str, part: str) -> DataFrame:
    return rows


@pytest.mark.gate
def test_rows_of_a_join_pass_a_function_as_they_are(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    left, right, out = topics.create(2), topics.create(2), topics.create(1)
    old, new = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))
    producer = idempotent_producer(topics.bootstrap)
    for n in range(60):
        at = datetime.fromtimestamp(n, UTC).isoformat()
        row = {"k": f"k{n % 7}", "at2": at, "m": n} if n % 3 else {"k": f"k{n % 7}", "at": at, "n": n}
        producer.produce(right if n % 3 else left, json.dumps(row), f"k{n % 7}", partition=n % 7 % 2)
    assert producer.flush(60) == 0

    def pipeline(group: str) -> Pipeline:
        made = Pipeline(spark, topics.bootstrap, group, left, state=State(dir=str(tmp_path / group)))
        made.json_columns("k string, at timestamp, n long")
        times = {"column": "at", "other_column": "at2", "within": "20 seconds", "grace": "1000 days"}
        made.join(right, "k", "k string, at2 timestamp, m long", how="left", **times)
        return made.write(KafkaSink(topics.bootstrap, out))

    pipeline(old).run(available_now=True)
    via = tmp_path / "via"
    migrate_state(spark, topics.bootstrap, old, new, as_it_is, pipeline(new).describe_state(), str(via))
    before = Export.open(str(via / "export"))
    pipeline(new).run(available_now=True)
    after = export(spark, topics.bootstrap, new, str(tmp_path / "after"))
    for part, count in (("left", 20), ("right", 40)):
        was, now = (sorted(map(str, rows(found, "join", part))) for found in (before, after))
        assert now == was
        assert len(was) == count
