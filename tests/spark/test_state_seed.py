"""State begun with a table that never was one."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from roster.cli.root import run
from roster.spark import KafkaSink, Pipeline, PipelineError, State
from roster.spark.state import export, seed_state
from tests.spark.test_state_export import numbers, rows
from tests.spark.test_state_import_elsewhere import name_of, produce

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_a_group_adds_to_the_totals_of_a_warehouse(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
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
    (tmp_path / "state.json").write_text(json.dumps(described))
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("roster.spark.session", lambda _: spark, raising=False)
    command = ["state", "import", str(tmp_path / "warehouse"), "--group", group, "-b", topics.bootstrap]
    command += ["--definition", str(tmp_path / "state.json")]
    assert run([*command, "--offsets", "latest"]) == 2
    assert "--definition: needs --offsets and --topic" in capsys.readouterr().err
    assert run([*command, "--topic", topic, "--offsets", json.dumps(begin)]) == 0
    assert f"47 records; group {group} goes on from" in capsys.readouterr().out, "41 keys, a definition for each task"
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
    refused(r"table: the key name 'k1' is there 2 times", table.union(table.where("name = 'k1'")))
    refused(r"table: the key name None has no value", table.selectExpr("nullif(name, 'k1') as name", "n", "total"))
    refused(r"store: the pipeline has no store 'x'\. Name one of totals", store="x")
    refused(r"definition: it describes no state", definition={})
    refused(r"offsets: .*offsets of .*-9, which this cluster", offsets={topic: {"9": 1}})
    refused(r"keyed_by: there is no key column 'shop' among name", keyed_by="shop")
    assert not [name for name in topics.admin.list_topics(internal=True) if name.startswith(other)]


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
