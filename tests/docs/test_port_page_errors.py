"""What the pages on moving to Roster say of errors, held against the errors themselves."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from roster.pipeline.options import Options
from roster.spark import KafkaSink, Pipeline, PipelineError, write_stream
from roster.spark.jobs.spark_jobs import check_session
from roster.spark.stateful_operators import check_options

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES = [Path(__file__).parents[2] / "docs" / "how-to" / f"from-{name}.md" for name in (
    "structured-streaming", "kafka-streams", "quix-streams",
)]  # fmt: skip
NO_SPARK: Any = None  # nothing is run
COUNT = {"n": "count(*)"}


def pipeline() -> Pipeline:
    return Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"])


def two_sinks() -> object:
    sink = KafkaSink("127.0.0.1:9092", "out")
    return pipeline().write(sink).write(sink)


def joined(how: str) -> object:
    return pipeline().join(*("u", "a", "a int"), within="1 hour", column="at", other_column="at2", how=how)


def transformed() -> object:
    options = Options(spark=None, bootstrap="127.0.0.1:9092", group="g", topics=("t",))
    return check_options(options, has_transform=True)


ERRORS: dict[str, Callable[[], object]] = {
    "a transform's rows leave the task that has their state": transformed,
    "the aggregate before it sends running updates": lambda: (
        pipeline().aggregate("a", COUNT).aggregate("a", COUNT, store="b")
    ),
    "the pipeline has a sink already": two_sinks,
}
"""Texts of errors on the pages."""
FIELDS: dict[str, Callable[[], object]] = {
    "`how` is refused": lambda: joined("right"),
    "`results` is refused": lambda: pipeline().aggregate("a", COUNT, results="complete"),
}
"""What the pages say of errors that begin with the name of an argument."""
BY_SPARK = {"`aggregates` names the function"}
"""The same of what Spark analyses: tests/stateful/test_aggregates.py holds them."""


def refusals() -> str:
    """The last column of the tables of what is not there."""
    tables = [page.read_text().partition("| not there | what says so |")[2] for page in PAGES]
    assert all(tables)
    return "\n".join(re.findall(r"\| ([^|]*) \|$", "\n".join(tables), re.MULTILINE))


@pytest.mark.parametrize("text", ERRORS)
def test_errors_have_the_text_that_the_pages_show(text: str) -> None:
    assert f"`{text}`" in refusals()
    with pytest.raises(PipelineError) as caught:
        ERRORS[text]()
    assert text in str(caught.value)


@pytest.mark.parametrize("text", FIELDS)
def test_arguments_that_the_pages_call_refused_are_named_by_the_error(text: str) -> None:
    assert text in refusals()
    with pytest.raises(PipelineError) as caught:
        FIELDS[text]()
    assert caught.value.field == text.split("`")[1]


def test_no_text_of_an_error_on_the_pages_is_without_a_test() -> None:
    assert set(re.findall(r"`([a-z']+(?: [a-z']+)+)`", refusals())) == set(ERRORS)
    assert set(re.findall(r"`\w+` (?:is refused|names the function)", refusals())) == {*FIELDS, *BY_SPARK}


def test_spark_connect_and_methods_of_sparks_are_refused_by_name() -> None:
    with pytest.raises(PipelineError, match="not Spark Connect"):
        check_session(object())  # type: ignore[arg-type]
    frame: Any = SimpleNamespace(sparkSession=object())
    with pytest.raises(PipelineError, match="not Spark Connect"):
        write_stream(frame).queryName("g").format("kafka").option("topic", "t").start()
    streaming: Any = pipeline()
    with pytest.raises(AttributeError, match="'withWatermark'; it is Spark's: read_stream"):
        streaming.withWatermark("at", "1 hour")
