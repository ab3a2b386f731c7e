"""State begun with a table that never was one."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row, functions
from pyspark.sql.streaming import StatefulProcessor

from roster.spark import KafkaSink, Pipeline, PipelineError, State, Window
from roster.spark.state import export, seed_state
from tests.librdkafka import idempotent_producer
from tests.saved.groups_with_state import name_of, numbers, produce, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.gate
def test_a_group_adds_to_the_totals_of_a_warehouse(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(6)
    group, other = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))

    def pipeline(group: str) -> Pipeline:
        made = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / group)))
        made.map_arrow(numbers, "name string, n long, at timestamp")
        made.aggregate("name", {"n": "count(*)", "total": "sum(n)"}, store="totals")
        return made.write(KafkaSink(topics.bootstrap, topics.create(1)))

    produce(topics, topic, range(50))  # which the warehouse has
    begin = {topic: {str(at.partition): end for at, end in topics.ends(topic).items()}}
    before = [("only here", 7, 70), *((name_of(n), 2, 2 * n) for n in range(40))]
    table = spark.createDataFrame(before, "name string, n bigint, total bigint")
    described = json.loads(json.dumps(pipeline(group).describe_state()))
    table.repartition(3).write.parquet(str(tmp_path / "warehouse"))
    warehouse = str(tmp_path / "warehouse")
    written = seed_state(spark, topics.bootstrap, group, described, warehouse, topics=topic, offsets=begin)
    assert written == 47, "41 keys, a definition for each task"
    produce(topics, topic, range(30, 130))
    pipeline(group).run(available_now=True)
    counts, totals = Counter[str](), Counter[str]()
    for name, n, total in [*before, *((name_of(n), 2, 2 * n) for n in range(30, 130))]:
        counts[name] += n
        totals[name] += total
    found = export(spark, topics.bootstrap, group, str(tmp_path / "e"))
    assert {row["name"]: (row["n"], row["total"]) for row in rows(found, "totals")} == {
        name: (counts[name], totals[name]) for name in counts
    }

    def refused(message: str, table: Any = table, **given: Any) -> None:
        with pytest.raises(PipelineError, match=message):
            seed_state(
                spark,
                topics.bootstrap,
                other,
                **{"definition": described, "table": table, "topics": topic, "offsets": "latest"} | given,
            )

    wrong = table.selectExpr("name", "cast(n as int) as n", "1 as more")
    differences = r"total bigint is missing; n is int, not bigint; more int is too many\. Select and cast them"
    refused(differences, wrong)
    refused(r"table: the key name 'k1' is there more than once", table.union(table.where("name = 'k1'")))
    refused(r"table: the key name None has no value", table.selectExpr("nullif(name, 'k1') as name", "n", "total"))
    refused(r"store: the pipeline has no store 'x'\. Name one of totals", store="x")
    refused(r"definition: it describes no state", definition={})
    refused(r"offsets: .*offsets of .*-9, which this cluster", offsets={topic: {"9": 1}})
    refused(r"keyed_by: there is no key column 'shop' among name", keyed_by="shop")
    assert not [name for name in topics.admin.list_topics(internal=True) if name.startswith(other)]


class Keeper(StatefulProcessor):
    """The sum of each name, and all its numbers."""

    def init(self, handle):
        self.sum = handle.getValueState("sum", "n bigint")
        self.all = handle.getListState("all", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            (before,) = self.sum.get() or (0,)
            self.sum.update((before + row.n,))
            self.all.appendValue((row.n,))
        yield Row(name=key[0])

    def close(self):
        pass


@pytest.mark.gate
def test_tables_become_sessions_sides_of_a_join_and_variables(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, lefts, rights = (topics.create(3) for _ in range(3))
    now = datetime.now(UTC)

    def pipeline(declare: Any, read: str = topic, read_columns: Any = None) -> tuple[str, Pipeline]:
        group = f"g-{uuid.uuid4().hex[:8]}"
        made = Pipeline(spark, topics.bootstrap, group, read, state=State(dir=str(tmp_path / group)))
        if read_columns is None:
            made.map_arrow(numbers, "name string, n long, at timestamp")
        else:
            made.json_columns(read_columns)
        declare(made)
        return group, made.write(KafkaSink(topics.bootstrap, topics.create(1)))

    def seed(group: str, made: Pipeline, table: Any, read: Any = topic) -> int:
        described = json.loads(json.dumps(made.describe_state()))
        return seed_state(spark, topics.bootstrap, group, described, table, topics=read, offsets="earliest")

    def kept(group: str, made: Pipeline) -> Any:
        made.run(available_now=True)
        return export(spark, topics.bootstrap, group, str(tmp_path / f"{group}-e"))

    produce(topics, topic, range(30, 43))  # each twice
    # Open sessions of an hour's gap; rows of now go on with the second of each name.
    gap = timedelta(hours=1)
    begun = [now - timedelta(days=1), now - timedelta(minutes=9)]
    sessions = [(begin, begin + gap, name_of(n), 2, n) for n in range(40) for begin in begun]
    columns = "window_start timestamp, window_end timestamp, name string, c bigint, total bigint"
    aggregates = {"c": "count(*)", "total": "sum(n)"}
    window = Window.session("at", gap, grace="10 days")
    of_sessions = pipeline(lambda made: made.aggregate("name", aggregates, window=window, store="s"))
    table = spark.createDataFrame(sessions, columns)
    for wrong, message in (
        (table.withColumn("window_end", table.window_start), "a session that is shorter than its gap"),
        *(
            (
                table.union(spark.createDataFrame([(begin, begin + gap, name_of(1), 1, 1)], columns)),
                "a session that the next one would go on with",
            )
            for begin in (now, begun[1] + gap)
        ),
        (table.withColumn("window_end", functions.lit(None).cast("timestamp")), "has no value of window_end"),
        (table.union(table), "is there more than once"),
    ):
        with pytest.raises(PipelineError, match=f"table: the key window_start .*name 'k[0-9]*' .*{message}"):
            seed(*of_sessions, wrong)
    assert seed(*of_sessions, table.repartition(4)) == 40 + 40 + 3, "sessions and their ends by name, definitions"
    found = {(row["name"], row["window_start"]): (row["c"], row["total"]) for row in rows(kept(*of_sessions), "s")}
    expected = {(name_of(n), begin): (2, n) for n in range(40) for begin in begun}
    for n in range(30, 40):
        expected[name_of(n), begun[1]] = (4, 3 * n)
    assert {key: value for key, value in found.items() if key in expected} == expected
    assert len(found) == 83

    of_keeper = pipeline(lambda made: made.transform_with_state(Keeper(), "name", "name string", store="k"))
    sums = spark.createDataFrame(
        [((name_of(n),), (n,)) for n in range(40)], "key struct<name string>, value struct<n bigint>"
    )
    elements = [((name_of(n),), (n - back,), 9 - back) for back in range(3) for n in range(40)]
    lists = spark.createDataFrame(elements, "key struct<name string>, list_element struct<n bigint>, position bigint")
    for tables, message in (
        (sums, r"table: the state of transform_with_state has several parts\. Give a dict"),
        ({"x": sums}, r"table: 'k' has no part 'x'\. Name sum, all, timers, initial"),
        ({"all": lists.drop("position")}, "table: its columns are not those of 'k', 'all': position bigint is missing"),
        ({"sum": sums.union(sums)}, r"table: the key key Row\(name='k.*'\) is there more than once"),
        ({"all": lists.withColumn("position", functions.lit(None).cast("long"))}, "a row has no value of position"),
        ({}, "table: there is no table"),
    ):
        with pytest.raises(PipelineError, match=message):
            seed(*of_keeper, tables)
    seed(*of_keeper, {"sum": sums, "all": lists.repartition(5)})
    after = kept(*of_keeper)
    read = {name_of(n): n for n in range(30, 43)}
    known = {name_of(n): n for n in range(40)}
    assert {row["key"]["name"]: row["value"]["n"] for row in rows(after, "k", "variables/sum")} == {
        name: known.get(name, 0) + 2 * read.get(name, 0) for name in {**known, **read}
    }
    found_lists: dict[str, list[int]] = {}
    for row in rows(after, "k", "variables/all"):
        found_lists.setdefault(row["key"]["name"], []).append(row["list_element"]["n"])
    expected_lists = {name: [n - 2, n - 1, n] for name, n in known.items()}
    for name, n in read.items():
        expected_lists[name] = [*expected_lists.get(name, ()), n, n]
    assert found_lists == expected_lists

    times = {"column": "at", "other_column": "at2", "within": "20 seconds", "grace": "1000 days"}
    of_join = pipeline(
        lambda made: made.join(rights, "k", "k string, at2 timestamp, m long", how="left", **times),
        lefts,
        "k string, at timestamp, n long",
    )
    waiting = [(name_of(n), now, n, True) for n in range(40)]
    spark.createDataFrame(waiting, "k string, at timestamp, n bigint, waits boolean").write.parquet(
        str(tmp_path / "join/left")
    )
    definition, folder = of_join[1].describe_state(), str(tmp_path / "join")
    where: dict[str, Any] = {"topics": [lefts, rights], "offsets": "earliest"}
    written = seed_state(spark, topics.bootstrap, of_join[0], definition, folder, **where)
    assert written == 83, "40 rows, and that they wait; a definition for each task"
    producer = idempotent_producer(topics.bootstrap, {"partitioner": "murmur2_random"})
    for n in range(30, 43):
        row = {"k": name_of(n), "at2": (now + timedelta(seconds=n - 30)).isoformat(), "m": n}
        producer.produce(rights, json.dumps(row), name_of(n))
    assert producer.flush(60) == 0
    after = kept(*of_join)
    assert {row["k"]: row["waits"] for row in rows(after, "join", "left")} == {
        name_of(n): not 30 <= n < 40 for n in range(40)
    }
    assert len(rows(after, "join", "right")) == 13


def test_what_no_table_can_be_is_refused(spark: SparkSession) -> None:
    def described(declare: Any) -> Any:
        made = Pipeline(spark, "127.0.0.1:1", "g", "t")
        made.map_arrow(numbers, "name string, n long, at timestamp")
        declare(made)
        return made.describe_state()

    none = described(lambda _: None)
    with pytest.raises(PipelineError, match="definition: it describes no state"):
        seed_state(spark, "127.0.0.1:1", "g", none, spark.range(1), topics="t", offsets="latest")
    for declare, columns, message in (
        (lambda made: made.repartition("n").aggregate("n", {"c": "count(*)"}), "n", "a pipeline with repartition"),
        (lambda made: made.aggregate("n", {"c": "count(*)"}), "n", r"key may be n \(murmur2\); n as int64 \(murmur2\)"),
        (lambda made: made.aggregate(["n", "name"], {"c": "count(*)"}), "n,name", r"key may be n \(m.*; n, name \(mur"),
    ):
        table = spark.createDataFrame([], "n bigint, name string, c bigint").select(*columns.split(","), "c")
        with pytest.raises(PipelineError, match=message):
            seed_state(spark, "127.0.0.1:1", "g", described(declare), table, topics="t", offsets="latest")
