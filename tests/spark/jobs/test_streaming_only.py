"""What is refused or warned of in a transform, by its plan; the frames come from where a pipeline's come from."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from roster.spark import PipelineError
from roster.spark.jobs.streaming_only import checked, notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


def records(spark: SparkSession) -> DataFrame:
    source: Any = spark.range(0, 1, 1, 1).mapInArrow(lambda rows: rows, "id long")
    return source.selectExpr("id", "timestamp_seconds(id) AS at", "'k' AS key")


@pytest.mark.parametrize(
    "transform",
    [
        lambda df: df.withWatermark("at", "1 minute"),
        lambda df: df.where("id > 0").withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).count(),
        lambda df: df.withWatermark("at", "1 minute").dropDuplicates(["key"]),
    ],
)
def test_a_watermark_is_refused_with_the_way_out(
    spark: SparkSession, transform: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises(
        PipelineError,
        match=r"transform: withWatermark\('at'\) needs state.*Leave it out\. The pipeline.s own aggregate",
    ):
        checked(transform, records(spark))
    assert records(spark).withWatermark("at", "1 minute").columns == ["id", "at", "key"], "elsewhere it works"


def test_withwatermark_is_pysparks_own_except_while_a_transform_is_checked() -> None:
    own = ClassicDataFrame.withWatermark
    frame: Any = None

    def outer(df: DataFrame) -> DataFrame:
        assert ClassicDataFrame.withWatermark is not own
        other = threading.Thread(target=checked, args=(lambda df: df, df))
        other.start()
        other.join()
        assert ClassicDataFrame.withWatermark is not own, "this check goes on"
        return df

    checked(outer, frame)
    assert ClassicDataFrame.withWatermark is own
    with pytest.raises(ZeroDivisionError):
        checked(lambda df: 1 / 0, frame)
    assert ClassicDataFrame.withWatermark is own


def test_withwatermark_of_another_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(*_: Any) -> None: ...

    frame: Any = None
    checked(lambda df: monkeypatch.setattr(ClassicDataFrame, "withWatermark", theirs), frame)
    assert ClassicDataFrame.withWatermark is theirs
    checked(lambda df: df, frame)
    assert ClassicDataFrame.withWatermark is theirs


def test_a_replacement_that_another_library_puts_back_notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    frame: Any = None

    class Frame:
        def withWatermark(self, eventTime: str, delayThreshold: str) -> None:
            calls.append(eventTime)

    monkeypatch.setattr(ClassicDataFrame, "withWatermark", Frame.withWatermark)
    left: list[Any] = []
    checked(lambda df: left.append(ClassicDataFrame.withWatermark), frame)  # type: ignore[arg-type]
    monkeypatch.setattr(ClassicDataFrame, "withWatermark", left[0])
    transform: Any = lambda df: ClassicDataFrame.withWatermark(df, "at", "1 minute")  # noqa: E731
    with pytest.raises(PipelineError, match=r"withWatermark\('at'\) needs"):
        checked(transform, Frame())  # type: ignore[arg-type]
    assert calls == ["at"]


@pytest.mark.parametrize(
    ("transform", "noted"),
    [
        (lambda df: df.dropDuplicates(["key"]), ["dropDuplicates"]),
        (lambda df: df.select("key").distinct().where("key > ''"), ["dropDuplicates"]),
        (lambda df: df.groupBy(F.window("at", "1 minute")).count(), ["a time window"]),
        (lambda df: df.groupBy(F.session_window("at", "1 minute")).count(), ["a time window"]),
        (lambda df: df.groupBy("key").agg(F.avg("id"), F.sum("id")), ["avg()"]),
        (lambda df: df.groupBy("key").agg(F.countDistinct("id")), ["count(distinct)"]),
        (lambda df: df.groupBy("key").agg(F.percentile_approx("id", 0.5)), ["percentile_approx()"]),
        (lambda df: df.groupBy("key").agg(F.count("*"), F.sum("id"), F.min("id"), F.max("id")), []),
        (lambda df: df.orderBy("id").limit(1), []),
    ],
)
def test_results_of_one_batch_only_are_noted(
    spark: SparkSession, transform: Callable[[DataFrame], DataFrame], noted: list[str]
) -> None:
    found = checked(transform, records(spark))[1]
    assert [line[: len(start)] for line, start in zip(found, noted, strict=True)] == noted


def test_what_is_done_to_another_table_is_not_noted(spark: SparkSession) -> None:
    others = spark.range(3).dropDuplicates().groupBy("id").agg(F.avg("id").alias("mean"))
    assert notes(records(spark).join(others, "id")) == []
