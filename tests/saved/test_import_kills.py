"""An import whose process is killed behind each of its steps: it is whole, or has not happened and is run again."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.spark import Pipeline, PipelineError
from roster.spark.state import export, import_state, seed_state
from tests.saved.groups_with_state import rows, sales
from tests.spark.apps import importing
from tests.spark.programs import Application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(400)]


def test_an_import_that_is_killed_is_whole_or_is_run_again(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Each import but the first meets what the one before has left."""
    topic = topics.create(4)
    old, new = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))
    told = Pipeline(spark, topics.bootstrap, old, topic).map_arrow(sales, "shop string, price long")
    told.aggregate("shop", {"orders": "count(*)"}, store="totals")
    totals = [(f"shop {n}", n) for n in range(300)]
    table = spark.createDataFrame(totals, "shop string, orders bigint")
    seed_state(spark, topics.bootstrap, old, told.describe_state(), table, topics=topic, offsets="earliest")
    place = str(tmp_path / "e")
    export(spark, topics.bootstrap, old, place)
    topics.admin.create_partitions(topic, 6)
    program = Path(importing.__file__)
    assert [*importing.STEPS][-1] == "commit"
    for step in importing.STEPS:
        assert topics.committed(new) == {}
        with Application(program, topics.bootstrap, new, place, step, log=tmp_path / step) as killed:
            assert killed.process.wait(200) == -signal.SIGKILL, (tmp_path / step).read_text()[-3000:]
    with pytest.raises(PipelineError, match="has an offset of"):
        import_state(spark, topics.bootstrap, new, place)
    found = export(spark, topics.bootstrap, new, str(tmp_path / "new"))
    assert found.manifest.stores["totals"].partitions == 6
    assert sorted((row["shop"], row["orders"]) for row in rows(found, "totals")) == sorted(totals)
