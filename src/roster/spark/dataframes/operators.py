"""Operators with state of a streaming frame's plan: what Roster keeps, the rows it needs, and what it gives back."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StringType, StructType

from roster._errors import RosterError
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema
from roster.spark.aggregate_columns import aggregate_of
from roster.spark.column_expressions import (
    Java,
    analyzed,
    class_of,
    literal_of,
    members,
    names_of,
    short,
    text_of,
    type_of,
)
from roster.spark.dataframes.plan import (
    FIELD,
    WATERMARK,
    Narrow,
    Node,
    Plan,
    PlanOver,
    is_broadcast,
    most_broadcast,
    narrow_ways,
    projected,
    refused_by_spark,
    shown,
    size_of,
    without_counterpart,
)
from roster.spark.dataframes.source_options import raise_all
from roster.spark.dataframes.windows import SESSION, bounds_of, is_window, longest, made_at, time_in, time_of, window_of
from roster.spark.stateful_operators import Stateful
from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import ALL_ROWS, Aggregate, Kind
from roster.state.deduplicate import Deduplication
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState, StateError
from roster.state.windows import END, START, SessionWindow, Window, WindowedAggregation

_OWN = (START, END, "session")
"""Columns that windows make."""
_DELAY = "spark.watermarkDelayMs"
"""Mark in the metadata of columns of event time."""
_CODE = ("TransformWithStateInPySpark", "TransformWithStateInPandas", "FlatMapGroupsInPandasWithState")
_AS_KEYS = ("string", "binary", "boolean", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz")
_AS_TEXT = ("float", "double", "decimal")
"""Types of keys that are text in the state, and come back as they were."""


Values = list[tuple[Java, Callable[[dict[str, Java]], Java]]]
"""Expressions of a plan, and what makes the value of each of the results' attributes by name."""


@dataclass
class Rows:
    """The columns of an operator's rows: by name, an expression over what is below it."""

    columns: dict[str, Java] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    """Types of the keys that are text in the state."""
    time: Java | None = None
    """The time without which a row is in no window; None if the plan below leaves such rows out."""

    def add(self, name: str, expression: Java, taken: Iterable[str] = _OWN) -> str:
        """Add a column, unless there is one of this expression; return its name."""
        known = (
            name for name, other in self.columns.items() if name not in self.text and other.semanticEquals(expression)
        )
        if (same := next(known, None)) is not None:
            return same
        name = self.free(name, taken)
        self.columns[name] = expression
        return name

    def free(self, name: str, taken: Iterable[str]) -> str:
        """Return a name that no other column has in any case, and that Spark finds without quotes."""
        name = name.replace(".", " ").replace("`", "'")
        used = {other.lower() for other in (*self.columns, *taken)}
        while name.lower() in used:
            name += "_"
        return name

    def add_key(self, name: str, expression: Java) -> str:
        """Add a key. Raises PipelineError for a type that cannot be one."""
        kind = expression.dataType().typeName()
        plain = "decimal" if kind.startswith("decimal") else kind
        if plain not in (*_AS_KEYS, *_AS_TEXT):
            raise PipelineError(
                f"{name} is a key of the type {expression.dataType().simpleString()}",
                field=FIELD,
                fix="Name its fields, or make text of it",
            )
        name = self.free(name, _OWN)
        self.columns[name] = expression
        if plain in _AS_TEXT:
            self.text[name] = expression.dataType().simpleString()
        return name

    def with_text(self, df: DataFrame) -> DataFrame:
        """Make text of the keys that need it; 0 has one sign, as Spark groups it."""
        made = {}
        for name, kind in self.text.items():
            if df.schema[name].dataType != StringType():
                key = F.col(_quoted(name))
                made[name] = (key + F.lit(0).cast(kind) if kind in ("float", "double") else key).cast("string")
        return df.withColumns(made) if made else df

    def without_text(self, df: DataFrame) -> DataFrame:
        """Give keys their types back."""
        made = {name: F.col(_quoted(name)).cast(kind) for name, kind in self.text.items()}
        return df.withColumns(made) if made else df


@dataclass
class Kept:
    """An operator with state, in the words of Roster.

    node: of the plan. below: the node whose rows it takes. rows: their columns. keys: those that place the rows, () if
    they may be anywhere. operator: None for one that keeps nothing.
    results: makes the columns of the results, as Spark has them, of those of the rows. outputs: makes the node's own
    output of attributes of the results. kind: names the store where nothing else does. sides: of a join, the node of
    each and the columns of its rows, in place of `below` and those of `rows`. rest: conditions of outputs. delay: how
    far event times of results to come may be behind the operator's time, None if by any time.
    """

    node: Node
    below: Node
    rows: Rows
    keys: tuple[str, ...]
    operator: Any
    results: Callable[[StructType], StructType]
    outputs: Callable[[dict[str, Java]], list[tuple[Java, str, Java]]]
    kind: str
    has_updates: bool = False
    text: str = ""
    name: str = ""
    sides: Sequence[tuple[Node, Mapping[str, Java]]] = ()
    rest: Sequence[Java] = ()
    delay: timedelta | None = None

    def stateful(self) -> Stateful:
        """Return the operator for the pipeline."""
        if isinstance(self.operator, Stateful):
            return replace(self.operator, store=self.name)
        return Stateful(self.operator, self.name, has_updates=self.has_updates, is_by_key=self.has_updates)

    def ways(self, side: int, jvm: Java, stops: Mapping[Node, PlanOver]) -> list[Narrow]:
        """Return the ways to the operator's rows, of one side of a join; `stops` as for `narrow_ways`."""
        below, columns = self.sides[side] if self.sides else (self.below, self.rows.columns)
        named = [(expression, name, None) for name, expression in columns.items()]

        def rows(over: PlanOver) -> PlanOver:
            return lambda records: projected(named, self._with_time(over(records), jvm), jvm)

        return [Narrow(way.start, rows(way.over)) for way in narrow_ways(below, jvm, stops)]

    def _with_time(self, plan: Java, jvm: Java) -> Java:
        if self.rows.time is None:
            return plan
        has_time = jvm.org.apache.spark.sql.catalyst.expressions.IsNotNull(self.rows.time)
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Filter(has_time, plan)

    def behind(self, results: Results) -> tuple[PlanOver, Callable[[DataFrame], DataFrame]]:
        """Return what makes the node's plan of a plan with the results, and what is done with their frame before."""
        jvm, fixed = results.jvm, results.attributes
        expressions: Java = jvm.org.apache.spark.sql.catalyst.expressions
        filtered: Java = jvm.org.apache.spark.sql.catalyst.plans.logical.Filter
        is_nullable = {own.exprId().id(): own.nullable() for own in members(self.node.java.output())}
        outputs = self.outputs(fixed)
        for place, (value, name, own) in enumerate(outputs):
            if value.nullable() != is_nullable.get(own.id(), value.nullable()):
                as_in_spark = expressions.KnownNotNull if value.nullable() else expressions.KnownNullable
                outputs[place] = (as_in_spark(value), name, own)

        def over(made: Java) -> Java:
            by_name = {column.name(): column for column in members(made.output())}
            plan = projected([(by_name[name], name, column.exprId()) for name, column in fixed.items()], made, jvm)
            plan = projected(outputs, plan, jvm)
            return functools.reduce(lambda rows, condition: filtered(condition, rows), self.rest, plan)

        return over, self.rows.without_text


@dataclass(frozen=True)
class Results:
    """The results of the last operator: their columns, and attributes of them by name."""

    columns: StructType
    attributes: dict[str, Java]
    jvm: Java

    @classmethod
    def of(cls, kept: Kept, columns: StructType, spark: Any) -> Results:
        """Return those with these columns, keys with their types."""
        template = analyzed(kept.rows.without_text(spark.createDataFrame([], columns)))
        return cls(columns, {column.name(): column for column in members(template.output())}, names_of(spark._jvm))


Maker = Callable[[Node, Node, Sequence[Node], str, Java], Kept]
"""Makes an operator of a node, of the plan's root, the nodes above, the output mode and the JVM."""
Makers = Mapping[str, Maker]


def operators_of(plan: Plan, mode: str, makers: Makers) -> tuple[list[Kept], list[str]]:
    """Return a plan's operators with state, those in front of another one before it, and what is said of joined tables.

    The last one gets the rows of all others, if there are others. makers: by the kind of node.

    Raises one PipelineError for all that Roster lacks, and for what Spark itself refuses.
    """
    problems = without_counterpart(plan, makers)

    def made(node: Node, above: Sequence[Node]) -> Kept | None:
        if (maker := _maker_of(node, makers)) is None:
            return None
        try:
            return maker(node, plan.root, above, mode, plan.jvm)
        except PipelineError as error:
            problems.append(PipelineError(f"{shown(node)}: {error.problem}", field=FIELD, fix=error.fix))
        return None

    kept = [*_kept_in(plan.root, (), (), made)]
    problems += [] if problems else refused_by_spark(plan, mode)
    kept += _union_of(plan.root, kept)
    tables = list(_tables(kept[-1].node, plan)) if kept else []
    raise_all([*problems, *(table for table in tables if isinstance(table, PipelineError)), *_name(kept, plan.root)])
    return kept, [table for table in tables if isinstance(table, str)]


def _kept_in(
    node: Node, above: Sequence[Node], parts: Collection[Node], made: Callable[[Node, Sequence[Node]], Kept | None]
) -> Iterator[Kept]:
    """Yield the operators at a node and below it, those in front of another one first.

    parts: nodes of the operator behind. made: makes the operator of a node; None: it keeps no state.
    """
    kept = None if node in parts else made(node, above)
    if kept is not None:
        starts = [side for side, _ in kept.sides] or [kept.below]
        parts = {*node.all()}.difference(*(start.all() for start in starts))
    for child in node.children:
        if child.is_streaming:
            yield from _kept_in(child, [*above, node], parts, made)
    if kept is not None:
        yield kept


def _union_of(root: Node, kept: Sequence[Kept]) -> Iterator[Kept]:
    """Yield the union of several operators' rows, or of one's and a stream's, if none of the operators takes them."""
    node, above, nodes = root, list[Node](), [operator.node for operator in kept]
    while kept and node not in nodes:
        streaming = [child for child in node.children if child.is_streaming]
        if len(streaming) > 1:
            rows, outputs = _rows_used(node, root, above)
            yield Kept(node, node, rows, (), None, _same, outputs, "united")
            return
        above.append(node)
        (node,) = streaming


def _tables(below: Node, plan: Plan) -> Iterator[str | PipelineError]:
    """Yield the tables that rows are joined with in front of an operator: what is said of each, or a problem."""
    limit = most_broadcast(plan)
    for node in below.all():
        tables = [child for child in node.children if not child.is_streaming]
        for table in tables if node.kind == "Join" and node.is_streaming else ():
            name = f"the table ({short(', '.join(str(column.name()) for column in members(table.java.output())))})"
            if is_broadcast(table):
                yield f"Spark: {name} goes to each task whole, by its own hint"
            elif (size := size_of(table, plan, limit)) <= limit:
                yield f"Spark: {name}, {size:,} bytes of it, goes to each task whole"
            else:
                yield PipelineError(
                    f"{shown(node)}: {name} has {size:,} bytes or more, and spark.sql.autoBroadcastJoinThreshold is"
                    f" {limit:,}, so Spark would take rows out of their tasks",
                    field=FIELD,
                    fix="Give it by F.broadcast(table) if each executor can hold it, raise the setting, or join it"
                    " behind the operators with state",
                )


def _maker_of(node: Node, makers: Makers) -> Maker | None:
    """Return what makes an operator of a node, None if it keeps no state: a join with a table is none."""
    is_table_join = node.kind == "Join" and not all(child.is_streaming for child in node.children)
    return None if is_table_join else makers.get(node.kind)


def between(node: Node, stop: Node) -> list[Node]:
    """Return a node and those that its rows come through, down to another one."""
    nodes = []
    while node is not stop:
        nodes.append(node)
        node = next(child for child in node.children if child.is_streaming)
    return nodes


def _name(kept: Sequence[Kept], root: Node) -> Iterator[PipelineError]:
    """Name the stores: by the nearest alias above an operator, else by its kind. Yield the problem with two of one."""
    _name_in(root, "", {operator.node: operator for operator in kept})
    names = [operator.name for operator in kept]
    if twice := [name for name in names if names.count(name) > 1]:
        yield PipelineError(
            f"two operators keep state by the name {twice[0]!r}",
            field=FIELD,
            fix='Name each by an alias of its result, such as .agg(...).alias("totals"): the name stays with the state',
        )


def _name_in(node: Node, alias: str, kept: Mapping[Node, Kept]) -> None:
    """Name the operators at a node and below it. alias: the one above it that names none yet, "" without."""
    if node.kind == "SubqueryAlias" and node.children[0].kind != "View":
        alias = str(node.java.identifier().name())
    elif node in kept:
        kept[node].name, alias = alias or kept[node].kind, ""
    elif len(node.children) > 1 and node.kind == "Union":
        alias = ""
    for child in node.children:
        _name_in(child, alias, kept)


class Grouping:
    """What a groupBy() groups by: keys, at most one window, and what they are of the results."""

    def __init__(self, node: Node, outputs: Sequence[Java], mode: str, jvm: Java) -> None:
        (self.below,) = node.children
        self._child, self._outputs, self._jvm = self.below, outputs, jvm
        self._is_final = mode == "append"
        self._watermark = watermark_of(self._child)
        self.rows, self.keys, self.text = Rows(), list[str](), list[str]()
        self.values: Values = []
        self.window: Window | SessionWindow | None = None
        self.time: DataType | None = None
        for expression in members(node.java.groupingExpressions()):
            (self._add_window if is_window(expression) else self._add_key)(expression)
        self.text.append(f"by {', '.join(self.keys)}" if self.keys else "over all rows")
        if not self.keys:
            self.keys.append(self.rows.add_key("all", literal_of("", "StringType", jvm)))

    def _add_key(self, expression: Java) -> None:
        key = self.rows.add_key(_name_of(expression, self._outputs, self._jvm), expression)
        self.keys.append(key)
        self.values.append((expression, lambda by_name: by_name[key]))

    def _add_window(self, expression: Java) -> None:
        jvm = self._jvm
        is_session = SESSION in json.loads(expression.metadata().json())
        if is_session and (self._watermark is None or not self._is_final):
            fix = 'Use outputMode("append") with a watermark'
            raise PipelineError("sessions that are not final, which Spark has not either", field=FIELD, fix=fix)
        if self._watermark is None:
            self._bounds_as_keys(expression)
            self.text.append("windows that never close, as there is no watermark")
            return
        if self.window is not None:
            raise PipelineError("two windows in one groupBy()", field=FIELD, fix="Use one")
        delay = self._watermark[1]
        if (made := made_at(expression, self._child)) is None:
            grace = delay + longest(expression, self._child)
            _, end = self._bounds_as_keys(expression)
            self.window = Window(end, timedelta(milliseconds=1), grace=grace)
            self.text.append(f"windows made earlier, final {grace} after their ends")
            return
        struct, node = made
        time = time_in(struct)
        try:
            self.window, shown = window_of(struct, self.rows.add(text_of(time), time), delay, jvm)
        except StateError as error:
            raise PipelineError(str(error), field=FIELD) from None
        if node.kind == "Expand":
            # Roster deals rows to overlapping windows itself, so that each goes to its task once.
            self.below, self.rows.time = node.children[0], time
        self.time = type_of(expression.dataType())["start"].dataType  # type: ignore[index]
        self.text.append(shown)
        self.values.append((expression, _struct(START, END, jvm)))

    def _bounds_as_keys(self, window: Java) -> tuple[str, str]:
        """Return the keys that tell windows apart."""
        bounds = zip(("start", "end"), bounds_of(window, self._jvm), strict=True)
        start, end = (self.rows.add_key(f"{window.name()} {part}", bound) for part, bound in bounds)
        self.keys += [start, end]
        self.values.append((window, _struct(start, end, self._jvm)))
        return start, end

    def operator(self, aggregates: Mapping[str, Aggregate]) -> Any:
        """Return Roster's operator. Raises PipelineError for one whose results are never final."""
        keys, is_final = tuple(self.keys), self._is_final
        if isinstance(self.window, SessionWindow):
            return SessionAggregation(keys, aggregates, self.window, is_final)
        if self.window is not None:
            return WindowedAggregation(keys, aggregates, self.window, is_final)
        if is_final:
            fix = 'Put withWatermark(...) in front of it and window(...) into groupBy(), or use outputMode("update")'
            own = "by the time of the watermark itself, or by a window made earlier"
            raise PipelineError(own if self._watermark else "its results are never final", field=FIELD, fix=fix)
        return Aggregation(keys, aggregates)


@dataclass
class Totals:
    """What a groupBy() computes: its functions by name, their types, and the calls in a plan that they are."""

    group: Grouping
    outputs: Sequence[Java]
    functions: dict[str, Aggregate] = field(default_factory=dict)
    types: dict[str, DataType] = field(default_factory=dict)
    calls: list[tuple[Java, str]] = field(default_factory=list)

    @classmethod
    def of(cls, node: Node, mode: str, jvm: Java) -> Totals:
        """Return those of an aggregate's node. Raises PipelineError for functions that Roster lacks."""
        outputs = members(node.java.aggregateExpressions())
        totals, problems = cls(Grouping(node, outputs, mode, jvm), outputs), list[PipelineError]()
        for output in outputs:
            for call in _calls(output):
                if not any(call.semanticEquals(other) for other, _ in totals.calls):
                    is_whole = class_of(output) == "Alias" and class_of(output.child()) == "AggregateExpression"
                    name = str(output.name()) if is_whole else text_of(call)
                    try:
                        totals._add(name, call, jvm)
                    except PipelineError as error:
                        problems.append(error)
        raise_all(problems)
        return totals

    def _add(self, name: str, call: Java, jvm: Java) -> None:
        while name.lower() in {other.lower() for other in (*self.functions, *self.group.rows.columns, *_OWN)}:
            name += "_"
        self.functions[name] = aggregate_of(call, self.group.rows.add, jvm)
        self.types[name] = type_of(call.dataType())
        self.calls.append((call, name))

    def of_results(self, by_name: dict[str, Java], jvm: Java) -> list[tuple[Java, str, Java]]:
        """Return the node's outputs over attributes of the results: each with its name and id."""
        values = [(expression, value(by_name)) for expression, value in self.group.values]
        values += [(call, by_name[name]) for call, name in self.calls]
        return [(replaced(unnamed(own), values, jvm), own.name(), own.exprId()) for own in self.outputs]


def _aggregate(node: Node, root: Node, above: Sequence[Node], mode: str, jvm: Java) -> Kept:
    totals = Totals.of(node, mode, jvm)
    group, is_final = totals.group, mode == "append"
    operator = group.operator(totals.functions or {"rows": Aggregate(Kind.COUNT, ALL_ROWS)})
    types = totals.types | ({} if group.time is None else dict.fromkeys((START, END), group.time))
    outputs = functools.partial(totals.of_results, jvm=jvm)

    def results(given: StructType) -> StructType:
        struct = StructType()
        for own in results_of(operator, given):
            struct.add(own.name, types.get(own.name, own.dataType))
        return struct.toNullable()  # as behind any state of Spark's

    return Kept(
        *(node, group.below, group.rows, tuple(group.keys), operator, results, outputs, "aggregates"),
        has_updates=not is_final,
        text=f"aggregate {', '.join(totals.functions)}: {', '.join(group.text)}",
        delay=group.window.grace if is_final and group.window is not None else None,
    )


def _calls(expression: Java) -> Iterator[Java]:
    """Yield the calls of aggregate functions in an expression."""
    if class_of(expression) == "AggregateExpression":
        yield expression
        return
    for child in members(expression.children()):
        yield from _calls(child)


def unnamed(named: Java) -> Java:
    """Return what an alias names, an attribute as it is."""
    return named.child() if class_of(named) == "Alias" else named


def replaced(expression: Java, values: Sequence[tuple[Java, Java]], jvm: Java) -> Java:
    """Return an expression over the results, with keys and calls replaced."""
    for known, value in values:
        if expression.semanticEquals(known):
            return value
    children = members(expression.children())
    if not children:
        return expression
    return expression.withNewChildren(jvm.PythonUtils.toSeq([replaced(child, values, jvm) for child in children]))


def watermark_of(node: Node) -> tuple[list[Java], timedelta] | None:
    """Return the columns of event time at a node, and how long its rows may be late; None without a watermark.

    Results of an aggregate, and of code, are never late.
    """
    if not any(below.kind == WATERMARK and below.is_streaming for below in node.all()):
        return None
    times = [column for column in members(node.java.output()) if _DELAY in json.loads(column.metadata().json())]
    return times, max(_delays(node), default=timedelta())


def _delays(node: Node) -> Iterator[timedelta]:
    """Yield the delays of the watermarks that the rows of a node have come through since the last aggregate."""
    if node.kind == WATERMARK:
        yield time_of(node.java.delay())
    if node.kind not in ("Aggregate", *_CODE):
        for child in node.children:
            yield from _delays(child) if child.is_streaming else ()


def _deduplicate(node: Node, root: Node, above: Sequence[Node], mode: str, jvm: Java) -> Kept:
    (child,) = node.children
    own, watermark = members(child.java.output()), watermark_of(child)
    keys = own if node.kind == "Distinct" else members(node.java.keys())
    time = None if watermark is None else next(iter(watermark[0]), None)
    is_within = node.kind == "DeduplicateWithinWatermark"
    if is_within and time is None:
        raise PipelineError(
            "dropDuplicatesWithinWatermark() without the time of the watermark among its columns",
            field=FIELD,
            fix="Keep that column up to there",
        )
    rows, outputs = _rows_used(child, root, above)
    by = tuple(_key_of(key, rows) for key in keys)
    operator, text = Deduplication(by, None), "for all time"
    if time is not None and watermark is not None and (is_within or any(time.semanticEquals(key) for key in keys)):
        column, delay = rows.add(str(time.name()), time), max(watermark[1], timedelta(milliseconds=1))
        # A repetition up to a delay later is found, as long as it is not late itself.
        operator = Deduplication(by, column, 2 * delay if is_within else delay, delay)
        text = f"for {delay} of {column}"

    text = f"first row of each {', '.join(by)} {text}"
    return Kept(node, child, rows, by, operator, _same, outputs, "keys", text=text)


def _rows_used(
    node: Node, root: Node, above: Sequence[Node]
) -> tuple[Rows, Callable[[dict[str, Java]], list[tuple[Java, str, Java]]]]:
    """Return a node's columns that the nodes above an operator use, and what makes its output of those of results."""
    needed, rows = used_above(root, above), Rows()
    for column in members(node.java.output()):
        if column.exprId().id() in needed:
            rows.add(str(column.name()), column)
    used = dict(rows.columns)
    return rows, lambda by_name: [(by_name[name], own.name(), own.exprId()) for name, own in used.items()]


def used_above(root: Node, above: Sequence[Node], further: Sequence[Java] = ()) -> set[int]:
    """Return the ids of the columns that the nodes above a node use, or these expressions."""
    used = members(root.java.output())
    for upper in (*(node.java for node in above), *further):
        used += members(upper.references().toSeq())
    for node in above:
        children = node.children if node.kind in ("Distinct", "Union") else []
        used += [column for child in children for column in members(child.java.output())]
    return {column.exprId().id() for column in used}


def _key_of(key: Java, rows: Rows) -> str:
    """Return the column of a key: that of the row, or one of its own."""
    if key.dataType().typeName() in _AS_KEYS:
        return rows.add(str(key.name()), key)
    return rows.add_key(f"{key.name()} as key", key)


def _struct(start: str, end: str, jvm: Java) -> Callable[[dict[str, Java]], Java]:
    """Return what makes a window's struct of two columns."""
    expressions = jvm.org.apache.spark.sql.catalyst.expressions

    def made(by_name: dict[str, Java]) -> Java:
        parts = [
            literal_of("start", "StringType", jvm),
            by_name[start],
            literal_of("end", "StringType", jvm),
            by_name[end],
        ]
        return expressions.CreateNamedStruct(jvm.PythonUtils.toSeq(parts))

    return made


def _same(columns: StructType) -> StructType:
    return columns


def results_of(operator: Any, given: StructType) -> StructType:
    """Return the columns of an operator's results, of those of its rows. Raises PipelineError."""
    try:
        return from_arrow_schema(operator(arrow_schema(given).empty_table(), NoState()).results.schema)
    except RosterError as error:
        raise PipelineError(str(error), field=FIELD) from None


def _name_of(expression: Java, outputs: Sequence[Java], jvm: Java) -> str:
    """Return the name of a key: its own, that of the output which is it, or its text."""
    if class_of(expression) == "AttributeReference":
        return str(expression.name())
    for output in outputs:
        if class_of(output) == "Alias" and output.child().semanticEquals(expression):
            return str(output.name())
    return text_of(expression)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


MAKERS: Makers = {
    "Aggregate": _aggregate,
    "Distinct": _deduplicate,
    "Deduplicate": _deduplicate,
    "DeduplicateWithinWatermark": _deduplicate,
}
