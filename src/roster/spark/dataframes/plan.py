"""Plans of streaming DataFrames: the leaf that stands for a topic's records, and a batch's rows in its place.

Spark has no public way to read or build plans of Catalyst. `operators` and `user_code` read the nodes that keep state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from roster.pipeline.errors import PipelineError, reason_of
from roster.spark.column_expressions import class_of, members

Java: TypeAlias = Any
"""An object of the JVM, as py4j gives it."""
FIELD = "write_stream"
"""The field of errors about a frame."""
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
    *("Join", "Union", "CollectMetrics", _WATERMARK, _LEAF),
}
"""Nodes whose rows follow from one batch alone; of joins those with a table, of unions those of one source."""
_REFUSED = {
    "UpdateEventTimeWatermarkColumn": "transformWithState(eventTimeColumnName=...): leave it out",
    "Sort": "orderBy(): a stream has no order",
    **dict.fromkeys(("GlobalLimit", "LocalLimit"), "limit(): a stream has no end"),
}
_MOVING = ("Repartition", "RepartitionByExpression")

_WIDE = ("Exchange", "Sort ", "Union", "Coalesce", "CartesianProduct", "GlobalLimit", "CollectLimit", "TakeOrdered")
"""Physical nodes whose partitions are not those of their input."""

PlanOver = Callable[[Java], Java]
"""Makes a plan of another one, which takes the place of one of its nodes."""


@dataclass(eq=False)
class Node:
    """A node of an analyzed plan, with Catalyst's object."""

    java: Java
    kind: str
    children: list[Node] = field(repr=False)

    @classmethod
    def of(cls, java: Java) -> Node:
        """Return the node and all below it."""
        return cls(java, class_of(java), [cls.of(child) for child in members(java.children())])

    def all(self) -> Iterator[Node]:
        """Yield the node and all below it."""
        yield self
        for child in self.children:
            yield from child.all()

    @cached_property
    def is_streaming(self) -> bool:
        """True if its rows come of a stream."""
        return bool(self.java.isStreaming())

    @cached_property
    def is_leaf(self) -> bool:
        """True if a batch's records take its place."""
        return self.kind == _LEAF or (self.kind == "Project" and MARK in (_options(self.children[0]) or ()))


def leaf(spark: SparkSession, source: str, *, headers: bool) -> DataFrame:
    """Return a streaming frame with the columns of Spark's Kafka source, marked with the name of a source.

    It is never run: `on_batch` puts a batch's records in its place.
    """
    columns = (*_COLUMNS, _HEADERS) if headers else _COLUMNS
    return spark.readStream.format("rate").option(MARK, source).load().selectExpr(*columns)


@dataclass(frozen=True)
class Plan:
    """The analyzed plan of a frame, walked once: each call into the JVM costs a start time."""

    df: DataFrame
    root: Node

    @classmethod
    def of(cls, df: DataFrame) -> Plan:
        """Return a frame's plan. Raises PipelineError for what is no frame of a classic session."""
        if not isinstance(df, ClassicDataFrame):
            problem = f"{type(df).__name__} is not a DataFrame of a classic session"
            raise PipelineError(problem, field=FIELD, fix="Pass a DataFrame")
        return cls(df, Node.of(analyzed(df)))

    @property
    def jvm(self) -> Java:
        """The gateway to the session's JVM."""
        return cast("Any", self.df.sparkSession)._jvm

    def keeps_state(self, with_state: Collection[str]) -> bool:
        """Return True if a node of one of these kinds has a stream's rows."""
        return any(node.kind in with_state and node.is_streaming for node in self.root.all())

    def sources(self) -> tuple[set[str], list[Mapping[str, str]]]:
        """Return the marks of the leaves of a streaming frame, and the options of leaves of Spark's own Kafka source.

        Raises PipelineError for a frame that does not stream, and for leaves of other sources.
        """
        marks: set[str] = set()
        kafka: list[Mapping[str, str]] = []
        for node in self.root.all():
            if (options := _options(node)) is None:
                continue
            if MARK in options:
                marks.add(options[MARK])
            elif node.java.sourceName() == "kafka":
                kafka.append(options)
            else:
                problem = f"the frame reads the source {node.java.sourceName()!r}"
                fix = "Read Kafka by read_stream, and other sources by Spark's own queries"
                raise PipelineError(problem, field=FIELD, fix=fix)
        if not marks and not kafka:
            fix = "Make it of read_stream(spark)"
            raise PipelineError("the frame is not one of a stream", field=FIELD, fix=fix)
        return marks, kafka


def check_streaming(plan: Plan, output_mode: str, with_state: Collection[str]) -> None:
    """Raise PipelineError for nodes without a counterpart, and for a frame that Spark itself refuses.

    with_state: the kinds of nodes that keep state and have a counterpart.
    """
    problems = []
    for node in plan.root.all():
        if not node.is_streaming or node.kind in with_state:
            continue
        if node.kind == "Join" and all(child.is_streaming for child in node.children):
            problems.append("join() of two streams: use join(...) of Pipeline")
        elif node.kind not in _ROW_BY_ROW:
            problems.append(_REFUSED.get(node.kind, f"{node.kind} has no counterpart"))
    if problems:
        raise PipelineError(
            f"the frame needs what no group can give it: {'; '.join(dict.fromkeys(problems))}",
            field=FIELD,
            fix="Write that part as a Pipeline, or leave it out",
        )
    spark_sql: Java = plan.jvm.org.apache.spark.sql
    try:
        mode = getattr(spark_sql.streaming.OutputMode, output_mode.title())()
        spark_sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan.root.java, mode)
    except AnalysisException as error:
        raise PipelineError(f"Spark: {reason_of(error)}", field=FIELD) from None


def on_batch(plan: Plan) -> Callable[[DataFrame], DataFrame]:
    """Return the function that applies what a streaming frame says to a batch's records."""
    return applying(plan_over(plan.root, plan.jvm), plan.df.sparkSession)


def applying(over: PlanOver, spark: Any) -> Callable[[DataFrame], DataFrame]:
    """Return what makes a plan over another one as a function of DataFrames."""

    def applied(batch: DataFrame) -> DataFrame:
        plan = over(analyzed(batch))
        return ClassicDataFrame(
            spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark
        )

    return applied


def plan_over(
    node: Node, jvm: Java, stop: Node | None = None, at_stop: PlanOver | None = None, *, is_narrow: bool = False
) -> PlanOver:
    """Return what makes a plan of this one: a batch's plan in place of its leaves, and no watermarks.

    stop: `at_stop` makes what takes the place of this node. is_narrow: rows stay in their partition: tables are joined
    by broadcast, and repartition() is left out. The plan is walked here, once: each call into the JVM costs a batch
    time.
    """
    if node is stop:
        assert at_stop is not None
        return at_stop
    if not node.is_streaming:
        return lambda _: node.java
    if node.kind == _WATERMARK or (is_narrow and node.kind in _MOVING):
        return plan_over(node.children[0], jvm, stop, at_stop, is_narrow=is_narrow)
    if node.is_leaf:
        columns = members(node.java.output())
        return lambda batch: placed(columns, batch, jvm)
    parts = [plan_over(child, jvm, stop, at_stop, is_narrow=is_narrow) for child in node.children]
    if is_narrow and node.kind == "Join":
        parts = [
            part if child.is_streaming else _broadcast(child.java, jvm)
            for part, child in zip(parts, node.children, strict=True)
        ]
    return lambda batch: node.java.withNewChildren(jvm.PythonUtils.toSeq([part(batch) for part in parts]))


def _broadcast(table: Java, jvm: Java) -> PlanOver:
    """Return a table's plan with the hint that each task gets the whole of it."""
    logical = jvm.org.apache.spark.sql.catalyst.plans.logical
    hinted = logical.ResolvedHint(table, logical.HintInfo(jvm.scala.Option.apply(scala_object(logical, "BROADCAST"))))
    return lambda _: hinted


def placed(columns: Sequence[Java], batch: Java, jvm: Java) -> Java:
    """Return a plan's rows under the names and ids of these columns, found by their names."""
    by_name = {column.name(): column for column in members(batch.output())}
    return projected([(by_name[own.name()], own.name(), own.exprId()) for own in columns], batch, jvm)


def projected(columns: Sequence[tuple[Java, str, Java]], plan: Java, jvm: Java) -> Java:
    """Return a plan with these columns over another one: expression, name, and id; None: a new one."""
    named = [alias_of(value, name, jvm, own) for value, name, own in columns]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(named), plan)


def alias_of(value: Java, name: str, jvm: Java, own: Java = None) -> Java:
    """Return an expression under a name; own: its id, None: a new one."""
    expressions, nothing = jvm.org.apache.spark.sql.catalyst.expressions, jvm.PythonUtils.toSeq([])
    number = expressions.NamedExpression.newExprId() if own is None else own
    return expressions.Alias(value, name, number, nothing, jvm.scala.Option.apply(None), nothing)


def scala_object(package: Java, name: str) -> Java:
    """Return an object of Scala's."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def analyzed(df: Any) -> Java:
    """Return the analyzed plan."""
    return df._jdf.queryExecution().analyzed()


def moves_rows(df: Any) -> list[str]:
    """Return what of a frame's physical plan would take rows out of their partition."""
    found, below = [], None
    for line in df._jdf.queryExecution().executedPlan().toString().splitlines():
        node = line.lstrip(" +-:*()0123456789|")
        depth = len(line) - len(node)
        if below is not None and depth > below:
            continue
        below = depth if node.startswith("BroadcastExchange") else None
        if node.startswith(_WIDE):
            found.append(node.split("(")[0].split(" ")[0])
    return found


def _options(node: Node) -> dict[str, str] | None:
    """Return the options of a leaf, by names in lower case as Spark keeps them; None for other nodes."""
    if node.kind != _LEAF:
        return None
    return {str(name).lower(): str(value) for name, value in node.java.extraOptions().items()}
