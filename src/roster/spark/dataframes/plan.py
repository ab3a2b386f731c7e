"""Plans of streaming DataFrames: the leaf that stands for a topic's records, and a batch's rows in its place.

Spark has no public way to read or build plans of Catalyst. `operators` and `user_code` read the nodes that keep state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from py4j.java_gateway import JavaClass
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from roster.pipeline.errors import PipelineError, reason_of
from roster.spark.column_expressions import Java, analyzed, class_of, members, names_of, scala_object, short, text_of
from roster.spark.jobs.spark_jobs import check_session

FIELD = "write_stream"
"""The field of errors about a frame."""
MARK = "roster.source"
"""Option of a leaf that names its source."""
_COLUMNS = (
    "key binary; value binary; topic string; partition int; offset bigint; timestamp timestamp; timestampType int"
)
_HEADERS = ";headers array<struct<key:string,value:binary>>"
_UNREAD = "raise_error('a frame of read_stream is written by write_stream(df), in place of df.writeStream')"
_LEAF = "StreamingRelationV2"
WATERMARK = "EventTimeWatermark"
OBSERVED = "CollectMetrics"
"""The kinds of nodes that `withWatermark` and `observe` make."""
_ROW_BY_ROW = {
    *("Project", "Filter", "Generate", "Expand", "SubqueryAlias", "View", "PipeOperator"),
    *("MapInPandas", "MapInArrow", "PythonMapInArrow", "Repartition", "RepartitionByExpression"),
    *("ResolvedHint", "Sample", "Join", "Union", OBSERVED, WATERMARK, _LEAF),
}
"""Nodes whose rows follow from one batch alone; of joins those with a table."""
_OF_A_FUNCTION = {"Project", "Generate", "SubqueryAlias", "OneRowRelation"}
"""Nodes of a lateral subquery, whose rows are then those of functions like `explode`."""
_REFUSED = {
    "UpdateEventTimeWatermarkColumn": ("results have no other time here", "Leave out eventTimeColumnName"),
    "Sort": ("a stream has no order", "Order each batch in foreachBatch, or leave it out"),
    **dict.fromkeys(("GlobalLimit", "LocalLimit"), ("a stream has no end", "Limit each batch in foreachBatch")),
}
"""Why a node is refused, and the way out."""
_METHODS = {
    "Aggregate": ("groupBy", "groupingExpressions"),
    "Distinct": ("distinct", ""),
    "Deduplicate": ("dropDuplicates", "keys"),
    "DeduplicateWithinWatermark": ("dropDuplicatesWithinWatermark", "keys"),
    "Join": ("join", "expressions"),
    "Sort": ("orderBy", "order"),
    "GlobalLimit": ("limit", "expressions"),
    "LocalLimit": ("limit", "expressions"),
    "TransformWithStateInPySpark": ("transformWithState", ""),
    "TransformWithStateInPandas": ("transformWithStateInPandas", ""),
    "FlatMapGroupsInPandasWithState": ("applyInPandasWithState", ""),
    "UpdateEventTimeWatermarkColumn": ("transformWithState", ""),
    "Window": ("over", "windowExpressions"),
}
"""The method that makes a node, and the node's method that gives what it was called with."""
_MOVING = ("Repartition", "RepartitionByExpression")

_WIDE = ("Exchange", "Sort ", "Union", "Coalesce", "CartesianProduct", "GlobalLimit", "CollectLimit", "TakeOrdered")
"""Physical nodes whose partitions are not those of their input."""

_ROW_BYTES = 8
"""What Spark adds to the columns of a row in its estimates."""
_MOST_ROWS = (1 << 31) - 1

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

    @property
    def is_row_by_row(self) -> bool:
        """True if its rows follow from one batch alone, as far as the kinds of nodes tell."""
        if self.kind == "LateralJoin":
            return {node.kind for node in Node.of(self.java.right().plan()).all()} <= _OF_A_FUNCTION
        return self.kind in _ROW_BY_ROW

    @cached_property
    def is_leaf(self) -> bool:
        """True if a batch's records take its place."""
        is_mark = self.kind == "Project" and self.children[0].kind == _LEAF and MARK in self.children[0].options
        return self.kind == _LEAF or is_mark

    @cached_property
    def options(self) -> Mapping[str, str]:
        """Options of a leaf's source, by names in lower case as Spark keeps them; of other nodes none."""
        if self.kind != _LEAF:
            return self.children[0].options if self.is_leaf else {}
        mapper = JavaClass("com.fasterxml.jackson.databind.ObjectMapper", self.java._gateway_client)
        return dict(json.loads(mapper().writeValueAsString(self.java.extraOptions())))


Topics = Callable[[Node], Sequence[str] | None]
"""The topics of a leaf; None if all records are of them."""


def leaf(spark: SparkSession, source: str, *, headers: bool) -> DataFrame:
    """Return a streaming frame with the columns of Spark's Kafka source, marked with the name of a source.

    It is never run: `on_batch` puts a batch's records in its place.
    """
    columns = [column.split() for column in (_COLUMNS + _HEADERS * headers).split(";")]
    values = [f"cast({_UNREAD} as {kind}) {name}" for name, kind in columns]
    return spark.readStream.format("rate").option(MARK, source).load().selectExpr(*values)


@dataclass(frozen=True)
class Plan:
    """The analyzed plan of a frame, walked once: each call into the JVM costs a start time."""

    df: DataFrame
    root: Node
    jvm: Java

    @classmethod
    def of(cls, df: DataFrame) -> Plan:
        """Return a frame's plan. Raises PipelineError for anything but a frame of a classic session."""
        if not isinstance(df, ClassicDataFrame):
            if hasattr(df, "sparkSession"):
                check_session(df.sparkSession)
            problem = f"{type(df).__name__} is not a DataFrame of a classic session"
            raise PipelineError(problem, field=FIELD, fix="Pass a DataFrame")
        jvm = names_of(cast("Any", df.sparkSession)._jvm)
        return cls(df, Node.of(_without_names_of_queries(analyzed(df), jvm)), jvm)

    def keeps_state(self, with_state: Collection[str]) -> bool:
        """Return True if a node of one of these kinds has a stream's rows."""
        return any(node.kind in with_state and node.is_streaming for node in self.root.all())

    def sources(self) -> list[Mapping[str, str]]:
        """Return the options of the leaves of a streaming frame: of each its mark, or those of Spark's Kafka source.

        Raises PipelineError for a frame that does not stream, and for leaves of other sources.
        """
        leaves = [node for node in self.root.all() if node.kind == _LEAF]
        for node in leaves:
            if MARK not in node.options and node.java.sourceName() != "kafka":
                problem = f"the frame reads the source {node.java.sourceName()!r}"
                fix = "Read Kafka by read_stream, and other sources by Spark's own queries"
                raise PipelineError(problem, field=FIELD, fix=fix)
        if not leaves:
            fix = "Make it of read_stream(spark)"
            raise PipelineError("the frame is not one of a stream", field=FIELD, fix=fix)
        return [node.options for node in leaves]


def _without_names_of_queries(plan: Java, jvm: Java) -> Java:
    """Return a plan with the queries that WITH names in the places where they are used, as Spark runs most of them."""
    if "WithCTE" not in plan.toString():
        return plan
    kind = "org.apache.spark.sql.catalyst.optimizer.InlineCTE"
    count = jvm.java.lang.Class.forName(kind).getConstructors()[0].getParameterCount()  # another one in each release
    inlined_always = [True, *[False] * (count - 1)]
    return jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(*inlined_always).apply(plan)


def without_counterpart(plan: Plan, with_state: Collection[str]) -> list[PipelineError]:
    """Return the problems with nodes that have no counterpart. with_state: the kinds that keep state and have one."""
    problems = {}
    for node in plan.root.all():
        if node.is_streaming and node.kind not in with_state and not node.is_row_by_row:
            why, fix = _REFUSED.get(node.kind, ("it has no counterpart", "Do it to each batch in foreachBatch"))
            problems[shown(node)] = PipelineError(f"{shown(node)}: {why}", field=FIELD, fix=fix)
    return list(problems.values())


def refused_by_spark(plan: Plan, output_mode: str) -> list[PipelineError]:
    """Return the problem that Spark itself has with a frame in this mode, if it has one."""
    spark_sql: Java = plan.jvm.org.apache.spark.sql
    try:
        mode = getattr(spark_sql.streaming.OutputMode, output_mode.title())()
        spark_sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan.root.java, mode)
    except AnalysisException as error:
        return [PipelineError(f"Spark: {reason_of(error)}", field=FIELD)]
    return []


def shown(node: Node) -> str:
    """Return a node as errors name it: the method, what it was called with, and the user's line if Spark knows it."""
    method, given = _METHODS.get(node.kind, (node.kind, ""))
    text = ", ".join(text_of(argument) for argument in members(getattr(node.java, given)())) if given else ""
    place = _place_of(node.java)
    return f"{method}({short(text)})" + (f" at {place}" if place else "")


def _place_of(node: Java) -> str:
    """Return where a node was written, "" if Spark does not know it.

    PySpark keeps lines with columns, not with the methods of frames; Spark's parser keeps those of SQL text.
    """
    origins = [
        node.origin(),
        *(expression.origin() for top in members(node.expressions()) for expression in all_of(top)),
    ]
    for origin in origins:
        if (context := origin.pysparkErrorContext()).isDefined():
            return Path(str(context.get()._2()).split("\n")[0]).name
    for origin in origins:
        if origin.line().isDefined() and origin.sqlText().isDefined() and "\n" in str(origin.sqlText().get()):
            return f"line {origin.line().get()} of the SQL text"
    return ""


def all_of(expression: Java) -> Iterator[Java]:
    """Yield an expression and all in it."""
    yield expression
    for child in members(expression.children()):
        yield from all_of(child)


def on_batch(plan: Plan, topics: Topics) -> Callable[[DataFrame], DataFrame]:
    """Return the function that applies what a streaming frame says to a batch's records."""
    return applying(plan_over(plan.root, plan.jvm, topics), plan.df.sparkSession)


def applying(over: PlanOver, spark: Any) -> Callable[[DataFrame], DataFrame]:
    """Return what makes a plan over another one as a function of DataFrames."""
    return lambda batch: frame_of(over(analyzed(batch)), spark)


def frame_of(plan: Java, spark: Any) -> DataFrame:
    """Return a frame of an analyzed plan."""
    datasets = names_of(spark._jvm).org.apache.spark.sql.classic.Dataset
    return ClassicDataFrame(datasets.ofRows(spark._jsparkSession, plan), spark)


def plan_over(
    node: Node, jvm: Java, topics: Topics, stop: Node | None = None, at_stop: PlanOver | None = None
) -> PlanOver:
    """Return what makes a plan of this one: a batch's plan in place of its leaves, and no watermarks.

    stop: `at_stop` makes what takes the place of this node. The plan is walked here, once: each call into the JVM costs
    a batch time.
    """
    if node is stop:
        assert at_stop is not None
        return at_stop
    if not node.is_streaming:
        return lambda _: node.java
    if node.kind == WATERMARK:
        return plan_over(node.children[0], jvm, topics, stop, at_stop)
    if node.is_leaf:
        return _leaf_over(node, jvm, topics(node))
    parts = [plan_over(child, jvm, topics, stop, at_stop) for child in node.children]
    return lambda batch: node.java.withNewChildren(jvm.PythonUtils.toSeq([part(batch) for part in parts]))


def _leaf_over(node: Node, jvm: Java, topics: Sequence[str] | None) -> PlanOver:
    """Return what takes the place of a leaf: a batch's records of these topics, None: all."""
    columns = members(node.java.output())
    if topics is None:
        return lambda batch: placed(columns, batch, jvm)
    expressions, logical = (
        jvm.org.apache.spark.sql.catalyst.expressions,
        jvm.org.apache.spark.sql.catalyst.plans.logical,
    )
    topic = next(column for column in columns if column.name() == "topic")
    names = jvm.PythonUtils.toSeq([expressions.Literal.create(name, topic.dataType()) for name in topics])
    return lambda batch: logical.Filter(expressions.In(topic, names), placed(columns, batch, jvm))


@dataclass(frozen=True)
class Narrow:
    """A way to a node on which rows stay in their partition; `over` makes the node's plan.

    start: a leaf, or an operator with state.
    """

    start: Node
    over: PlanOver


def narrow_ways(node: Node, jvm: Java, stops: Mapping[Node, PlanOver] = MappingProxyType({})) -> list[Narrow]:
    """Return the ways to a node from the leaves: several where there is a union.

    stops: what takes the place of these nodes, where ways begin, too. Tables are joined by broadcast, and repartition()
    is left out.
    """
    if node in stops:
        return [Narrow(node, stops[node])]
    if node.is_leaf:
        columns = members(node.java.output())
        return [Narrow(node, lambda batch: placed(columns, batch, jvm))]
    if node.kind == WATERMARK or node.kind in _MOVING:
        return narrow_ways(node.children[0], jvm, stops)
    ways = [(child, way) for child in node.children if child.is_streaming for way in narrow_ways(child, jvm, stops)]
    over_child = _as_in_union if node.kind == "Union" else _with_child
    return [Narrow(way.start, over_child(node, child, way.over, jvm)) for child, way in ways]


def _as_in_union(union: Node, child: Node, over: PlanOver, jvm: Java) -> PlanOver:
    """Return what makes the rows of one child of a union, by the names and ids of its columns."""
    pairs = zip(members(child.java.output()), members(union.java.output()), strict=True)
    columns = [(own, column.name(), column.exprId()) for own, column in pairs]
    return lambda records: projected(columns, over(records), jvm)


def _with_child(node: Node, child: Node, over: PlanOver, jvm: Java) -> PlanOver:
    """Return what makes a node's plan with another streaming child; the others are tables."""
    others = [
        _broadcast(other.java, jvm) if node.kind == "Join" and not is_broadcast(other) else other.java
        for other in node.children
    ]
    place = node.children.index(child)

    def made(records: Java) -> Java:
        parts = [*others[:place], over(records), *others[place + 1 :]]
        return node.java.withNewChildren(jvm.PythonUtils.toSeq(parts))

    return made


def is_broadcast(table: Node) -> bool:
    """Return True for a table with the user's own hint to broadcast it."""
    node = table
    while node.kind != "ResolvedHint" and len(node.children) == 1:
        (node,) = node.children
    return node.kind == "ResolvedHint" and "=broadcast)" in str(node.java.hints().toString())


def most_broadcast(plan: Plan) -> int:
    """Return the bytes up to which Spark broadcasts a table without a hint; negative for none."""
    session: Java = plan.df.sparkSession
    return int(session._jsparkSession.sessionState().conf().autoBroadcastJoinThreshold())


def size_of(table: Node, plan: Plan, enough: int) -> int:
    """Return the bytes of a joined table's columns that a frame uses, as Spark estimates them.

    Where Spark does not know them, rows are counted, until they have more than `enough`.
    """
    used = {column.exprId().id() for column in members(plan.root.java.output())}
    for node in plan.root.all():
        if node.is_streaming:
            used |= {column.exprId().id() for column in members(node.java.references().toSeq())}
    columns = [column for column in members(table.java.output()) if column.exprId().id() in used]
    logical: Java = plan.jvm.org.apache.spark.sql.catalyst.plans.logical
    needed = logical.Project(plan.jvm.PythonUtils.toSeq(columns), table.java) if columns else table.java
    session: Java = plan.df.sparkSession
    frame: Java = frame_of(needed, session)
    optimized = frame._jdf.queryExecution().optimizedPlan()
    unknown = int(session._jsparkSession.sessionState().conf().defaultSizeInBytes())
    if all(_bytes(leaf) < unknown for leaf in members(optimized.collectLeaves())):
        return _bytes(optimized)
    row = _ROW_BYTES + int(needed.schema().defaultSize())
    return row * int(frame.limit(min(max(enough, 0) // row + 1, _MOST_ROWS)).count())


def _bytes(plan: Java) -> int:
    return int(str(plan.stats().sizeInBytes()))


def _broadcast(table: Java, jvm: Java) -> Java:
    """Return a table's plan with the hint that each task gets the whole of it."""
    logical = jvm.org.apache.spark.sql.catalyst.plans.logical
    return logical.ResolvedHint(table, logical.HintInfo(jvm.scala.Option.apply(scala_object(logical, "BROADCAST"))))


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


def conjuncts(condition: Java) -> Iterator[Java]:
    """Yield the conditions that AND joins, in order: Spark asks each of the rows that are left."""
    if class_of(condition) == "And":
        for side in members(condition.children()):
            yield from conjuncts(side)
    else:
        yield condition


def moves_rows(df: Any) -> list[str]:
    """Return what of a frame's physical plan would take rows out of their partition."""
    moved, below = [], None
    for line in df._jdf.queryExecution().executedPlan().toString().splitlines():
        node = line.lstrip(" +-:*()0123456789|")
        depth = len(line) - len(node)
        if below is not None and depth > below:
            continue
        below = depth if node.startswith("BroadcastExchange") else None
        if node.startswith(_WIDE):
            moved.append(node.split("(")[0].split(" ")[0])
    return moved
