"""Plans of streaming DataFrames: the leaf that stands for a topic's records, and a batch's records in its place.

All that reads or builds plans of Catalyst is here: Spark has no public way to do so. It holds for PySpark 4.0 to 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from roster.pipeline.errors import PipelineError, reason_of

MARK = "roster.source"
"""Option of a leaf that names its source."""
_COLUMNS = (
    "cast(null as binary) key",
    "cast(null as binary) value",
    "cast(null as string) topic",
    "cast(null as int) partition",
    "cast(null as bigint) offset",
    "timestamp",
    "cast(null as int) timestampType",
)
_HEADERS = "cast(null as array<struct<key:string,value:binary>>) headers"
_LEAF = "StreamingRelationV2"
_WATERMARK = "EventTimeWatermark"
_ROW_BY_ROW = {
    *("Project", "Filter", "Generate", "Expand", "SubqueryAlias", "View", "ResolvedHint", "Sample"),
    *("MapInPandas", "MapInArrow", "PythonMapInArrow", "Repartition", "RepartitionByExpression"),
    *("Join", "Union", _WATERMARK, _LEAF),
}
"""Nodes whose rows follow from one batch alone; of joins those with a table, of unions those of one source."""
_OF_STATE = {
    "Aggregate": "groupBy().agg(): use aggregate(keys, aggregates, window=...) of Pipeline",
    "Distinct": "distinct(): use deduplicate(keys, within=...) of Pipeline",
    "Deduplicate": "dropDuplicates(): use deduplicate(keys, within=...) of Pipeline",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark(): use deduplicate(keys, within=...) of Pipeline",
    "TransformWithStateInPySpark": "transformWithState(): use transform_with_state(...) of Pipeline",
    "TransformWithStateInPandas": "transformWithStateInPandas(): use transform_with_state(...) of Pipeline",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState(): use apply_in_pandas_with_state(...) of Pipeline",
    "Sort": "orderBy(): a stream has no order",
    **dict.fromkeys(("GlobalLimit", "LocalLimit"), "limit(): a stream has no end"),
    "CollectMetrics": "observe(): its metrics are not collected; leave it out",
}


def leaf(spark: SparkSession, source: str, *, headers: bool) -> DataFrame:
    """Return a streaming frame with the columns of Spark's Kafka source, marked with the name of a source.

    It is never run: `on_batch` puts a batch's records in its place.
    """
    columns = (*_COLUMNS, _HEADERS) if headers else _COLUMNS
    return spark.readStream.format("rate").option(MARK, source).load().selectExpr(*columns)


def sources_of(df: DataFrame) -> tuple[set[str], list[Mapping[str, str]]]:
    """Return the marks of the leaves of a streaming frame, and the options of leaves of Spark's own Kafka source.

    Raises PipelineError for a frame that does not stream, and for leaves of other sources.
    """
    if not isinstance(df, ClassicDataFrame):
        raise PipelineError(
            f"{type(df).__name__} is not a DataFrame of a classic session", field="write_stream", fix="Pass a DataFrame"
        )
    marks: set[str] = set()
    kafka: list[Mapping[str, str]] = []
    for node in _nodes(_analyzed(df)):
        if (options := _options(node)) is None:
            continue
        if MARK in options:
            marks.add(options[MARK])
        elif node.sourceName() == "kafka":
            kafka.append(options)
        else:
            raise PipelineError(
                f"the frame reads the source {node.sourceName()!r}",
                field="write_stream",
                fix="Read Kafka by read_stream, and other sources by Spark's own queries",
            )
    if not marks and not kafka:
        raise PipelineError(
            "the frame is not one of a stream", field="write_stream", fix="Make it of read_stream(spark)"
        )
    return marks, kafka


def check_row_by_row(df: DataFrame, output_mode: str) -> None:
    """Raise PipelineError for all that needs more than the rows of one batch, and for what Spark refuses itself."""
    plan, jvm = _analyzed(df), cast("Any", df.sparkSession)._jvm
    problems = []
    for node in _nodes(plan):
        name = _kind(node)
        if not node.isStreaming():
            continue
        if name == "Join" and node.left().isStreaming() and node.right().isStreaming():
            problems.append("join() of two streams: use join(...) of Pipeline")
        elif name not in _ROW_BY_ROW:
            problems.append(_OF_STATE.get(name, f"{name} has no counterpart"))
    if problems:
        raise PipelineError(
            f"the frame keeps state or needs more than one batch: {'; '.join(dict.fromkeys(problems))}",
            field="write_stream",
            fix="Write that part as a Pipeline, or leave it out",
        )
    spark_sql: Any = jvm.org.apache.spark.sql
    try:
        mode = getattr(spark_sql.streaming.OutputMode, output_mode.title())()
        spark_sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
    except AnalysisException as error:
        raise PipelineError(f"Spark: {reason_of(error)}", field="write_stream") from None


def on_batch(df: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Return the function that applies what a streaming frame says to a batch's records."""
    spark: Any = df.sparkSession
    plan_over = _over_records(_analyzed(df), spark._jvm)

    def applied(batch: DataFrame) -> DataFrame:
        plan = plan_over(_analyzed(batch))
        return ClassicDataFrame(
            spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark
        )

    return applied


def _over_records(node: Any, jvm: Any) -> Callable[[Any], Any]:
    """Return what makes a plan of this one: a batch's plan in place of its leaves, and no watermarks.

    The plan is walked here, once: each call into the JVM costs a batch time.
    """
    if not node.isStreaming():
        return lambda _: node
    children, kind = _members(node.children()), _kind(node)
    if kind == _WATERMARK:
        return _over_records(children[0], jvm)
    if kind == _LEAF or (kind == "Project" and MARK in (_options(children[0]) or ())):
        columns = _members(node.output())
        return lambda batch: _records(columns, batch, jvm)
    parts = [_over_records(child, jvm) for child in children]
    return lambda batch: node.withNewChildren(jvm.PythonUtils.toSeq([part(batch) for part in parts]))


def _records(columns: Sequence[Any], batch: Any, jvm: Any) -> Any:
    """Return the batch's records under the names and ids of a leaf's columns."""
    by_name = {column.name(): column for column in _members(batch.output())}
    catalyst, to_seq = jvm.org.apache.spark.sql.catalyst, jvm.PythonUtils.toSeq
    none, nothing = jvm.scala.Option.apply(None), to_seq([])
    named = [
        catalyst.expressions.Alias(by_name[own.name()], own.name(), own.exprId(), nothing, none, nothing)
        for own in columns
    ]
    return catalyst.plans.logical.Project(to_seq(named), batch)


def _analyzed(df: Any) -> Any:
    return df._jdf.queryExecution().analyzed()


def _nodes(node: Any) -> Iterator[Any]:
    """Yield a plan's nodes, down to its leaves."""
    yield node
    for child in _members(node.children()):
        yield from _nodes(child)


def _members(seq: Any) -> list[Any]:
    return [seq.apply(number) for number in range(seq.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _options(node: Any) -> dict[str, str] | None:
    """Return the options of a leaf, by names in lower case as Spark keeps them; None for other nodes."""
    if _kind(node) != _LEAF:
        return None
    return {str(name).lower(): str(value) for name, value in node.extraOptions().items()}
