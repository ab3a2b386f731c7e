"""Parses aggregates given as SQL text or as columns of PySpark's functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StructType

from roster.pipeline.errors import PipelineError, reason_of
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.computed_columns import ComputedColumns
from roster.spark.arrow_expressions import LeftToSparkError, Scope
from roster.spark.column_expressions import (
    alias_of,
    class_of,
    columns_of,
    jvm,
    members,
    name_of,
    over,
    parsed,
    text_of,
)
from roster.state.aggregate_functions import (
    ALL_ROWS,
    BY_ANOTHER,
    DEFAULTS,
    FUNCTIONS,
    IGNORING_NULLS,
    PERCENTILES,
    Aggregate,
    Kind,
)
from roster.state.collected import sketch_size
from roster.state.expressions import Expression
from roster.state.store import StateError

_FIELD = "aggregates"
_ACCURACY = 10_000
"""Accuracy of percentiles, as Spark's."""
_EXAMPLE = "For example {'orders': 'count(*)', 'revenue': F.sum('price')}, or [F.sum('price').alias('revenue')]"

Aggregates = Mapping[str, str | Column] | Sequence[Column]
"""{result: SQL text or a column}, or columns with aliases."""


def parse_aggregates(given: Aggregates) -> dict[str, Aggregate]:
    """Return {result name: aggregate}. Raises PipelineError that names the one at fault."""
    parsed_aggregates: dict[str, Aggregate] = {}
    for name, each in _named(given).items():
        try:
            parsed_aggregates[name] = (Aggregate.parse(each) if isinstance(each, str) else None) or _aggregate(each)
        except StateError as error:
            raise PipelineError(f"{name!r}: {error}", field=_FIELD) from None
    return parsed_aggregates


def _named(given: Aggregates) -> dict[str, str | Column]:
    """Return the aggregates by name. Raises PipelineError for anything else."""
    if isinstance(given, Mapping) and given:
        for name, aggregate in given.items():
            if not isinstance(name, str) or not name or not isinstance(aggregate, str | Column):
                raise PipelineError(
                    f"{name!r}: {aggregate!r} is not a name and its aggregate", field=_FIELD, fix=_EXAMPLE
                )
        return dict(given)
    if not isinstance(given, list | tuple) or not given or not all(isinstance(column, Column) for column in given):
        raise PipelineError(f"{given!r} is not a dict of results", field=_FIELD, fix=_EXAMPLE)
    by_alias: dict[str, str | Column] = {}
    for column in given:
        alias = alias_of(column)
        if alias is None or alias in by_alias:
            problem = "has no alias" if alias is None else f"has the alias of another one, {alias!r}"
            raise PipelineError(f"{_text(column)!r} {problem}", field=_FIELD, fix=_EXAMPLE)
        by_alias[alias] = column
    return by_alias


def _aggregate(given: str | Column) -> Aggregate:
    """Parse an aggregate. Raises StateError that quotes it."""
    node = parsed(given)
    try:
        return _of_node(node)
    except StateError as error:
        raise StateError(f"{_text(given)!r}: {error}") from None


def _of_node(node: Any) -> Aggregate:
    if class_of(node) == "AggregateExpression":  # in SQL text, what `_GRAMMAR` names
        called = node.aggregateFunction()
        if class_of(called) in _GRAMMAR:
            ignores_nulls = bool(called.ignoreNulls())
            return _of_function(_GRAMMAR[class_of(called)], [called.child()], None, ignores_nulls=ignores_nulls)
    if class_of(node) != "UnresolvedFunction":
        raise _not_kept("compute with results in map_arrow behind it")
    function, arguments = node.nameParts().mkString(".").lower(), members(node.arguments())
    if node.isDistinct():
        if function not in _DISTINCT or (function == "sum" and len(arguments) != 1) or not arguments:
            raise _not_kept("deduplicate by the keys and the columns in front of it")
        *others, last = [_where(_condition(node), argument) for argument in arguments]
        aggregate = _of_value(_DISTINCT[function], last)
        for value in reversed(others):
            aggregate = _of_value(_DISTINCT[function], value, aggregate)
        return aggregate
    return _of_function(function, arguments, _condition(node), ignores_nulls=_ignores_nulls(node, arguments))


def _of_function(function: str, arguments: list[Any], condition: Any, *, ignores_nulls: bool) -> Aggregate:
    if function == "count_if" and len(arguments) == 1:
        function, condition = "count", _both(arguments[0], condition)
        arguments = []
    if function in BY_ANOTHER and len(arguments) == 2:
        value, by = arguments
        return _of_value(BY_ANOTHER[function], value, by=_of_value(Kind.MIN, _where(condition, by)))
    kind = {**FUNCTIONS, **PERCENTILES}.get(function)
    if kind is Kind.COUNT and (not arguments or _is_all_rows(arguments)):
        return Aggregate(kind, ALL_ROWS) if condition is None else _of_value(kind, _where(condition, parsed("1")))
    if kind in IGNORING_NULLS and len(arguments) == 2:
        arguments = arguments[:1]
    if kind is not None and (not arguments or class_of(arguments[0]) == "UnresolvedStar"):
        raise _not_kept("name a column, as in sum(price)")
    if kind in _FURTHER:
        aggregate = _of_value(kind, _where(condition, arguments[0]))
        return replace(aggregate, arguments=_further(kind, arguments[1:]))
    if kind is None or len(arguments) != 1:
        near = "approx_percentile(c, 0.5) is near it, in a state that does not grow"
        raise _not_kept(near if function in ("median", "percentile") else "keep others with transform_with_state")
    if kind in IGNORING_NULLS:
        if condition is not None and not ignores_nulls:
            raise _not_kept("a condition needs `ignore nulls`")
        kind = IGNORING_NULLS[kind] if ignores_nulls else kind
    return _of_value(kind, _where(condition, arguments[0]))


_GRAMMAR = {"First": "first", "Last": "last", "AnyValue": "any_value"}
"""Functions that Spark's parser has rules for, by their classes."""
_DISTINCT = {"count": Kind.COUNT_DISTINCT, "sum": Kind.SUM_DISTINCT}
_MOST = "the most values, a whole number from 1 on"
_FURTHER = {
    Kind.COLLECT_LIST: _MOST,
    Kind.COLLECT_SET: _MOST,
    Kind.APPROX_COUNT_DISTINCT: "a relative standard deviation between 0.0008 and 1",
    Kind.APPROX_PERCENTILE: "a percentage between 0 and 1, or an array of them, and an accuracy from 1 on",
}
"""Functions with further arguments, and what these are."""


def _further(kind: Kind, nodes: list[object]) -> tuple[object, ...]:
    """Return the arguments behind a column. Raises StateError for others than the function's."""
    values = [_value(node) for node in nodes]
    first, is_only = values[0] if values else None, len(values) == 1
    if kind is Kind.APPROX_PERCENTILE:
        shares = first if isinstance(first, tuple) else (first,)
        accuracy = [*values, _ACCURACY][1] if 0 < len(values) < 3 else None
        are_shares = shares and all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares)
        if are_shares and _is_most(accuracy):
            return tuple(map(float, first)) if isinstance(first, tuple) else float(shares[0]), accuracy
    elif not values:
        return DEFAULTS[kind]
    elif kind is Kind.APPROX_COUNT_DISTINCT and is_only and isinstance(first, int | float):
        return (sketch_size(first),)
    elif is_only and _is_most(first):
        return (first,)
    raise StateError(f"{kind.value} takes a column and {_FURTHER[kind]}")


def _is_most(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _value(node: Any) -> Any:
    """Return the value of a constant, of an array of them a tuple; None for anything else."""
    if class_of(node) == "UnresolvedFunction" and node.nameParts().mkString(".").lower() == "array":
        return tuple(_value(member) for member in members(node.arguments()))
    value = node.value() if class_of(node) == "Literal" else None
    return float(str(value)) if class_of(node) == "Literal" and "decimal" in node.dataType().typeName() else value


def _of_value(kind: Kind, value: Any, by: Aggregate | None = None) -> Aggregate:
    if class_of(value) == "UnresolvedAttribute":
        return Aggregate(kind, name_of(value), by=by)
    text = text_of(value)
    return Aggregate(kind, text, Expression(text, (*dict.fromkeys(columns_of(value)),), value), by)


def _where(condition: Any, value: Any) -> Any:
    """Return the value where the condition is true, else null."""
    if condition is None:
        return value
    branches = jvm().PythonUtils.toSeq([jvm().scala.Tuple2(condition, value)])
    return jvm().org.apache.spark.sql.catalyst.expressions.CaseWhen(branches, jvm().scala.Option.apply(None))


def _both(one: Any, other: Any) -> Any:
    return one if other is None else jvm().org.apache.spark.sql.catalyst.expressions.And(one, other)


def _condition(node: Any) -> Any:
    """Return the condition of `filter (where …)`, None without one."""
    return node.filter().get() if node.filter().isDefined() else None


def _ignores_nulls(node: Any, arguments: list[Any]) -> bool:
    ignore_nulls = node.ignoreNulls()
    if not isinstance(ignore_nulls, bool):  # an option since Spark 4.1
        ignore_nulls = ignore_nulls.isDefined() and ignore_nulls.get()
    is_asked = len(arguments) == 2 and class_of(arguments[1]) == "Literal" and arguments[1].value() is True
    return bool(ignore_nulls or is_asked)


def _is_all_rows(arguments: list[Any]) -> bool:
    """Return True for a star, or a constant that is not null."""
    if len(arguments) != 1:
        return False
    kind = class_of(arguments[0])
    return kind == "UnresolvedStar" or (kind == "Literal" and arguments[0].value() is not None)


def _text(given: str | Column) -> str:
    return (given if isinstance(given, str) else str(given).removeprefix("Column<'").removesuffix("'>"))[:80]


def _not_kept(way: str) -> StateError:
    functions = ", ".join(sorted({*FUNCTIONS, *BY_ANOTHER, *PERCENTILES, "count_if"}))
    return StateError(f"none of {functions}; {way}")


def typed(aggregates: Mapping[str, Aggregate], columns: StructType) -> dict[str, Aggregate]:
    """Return the aggregates with expressions that are computed of rows with these columns.

    Spark analyses them: so types, casts and names are as it has them. Raises PipelineError that names the one at fault.
    """
    parts = ((name, part.expression) for name, aggregate in aggregates.items() for part in aggregate.chain())
    names = {own: name for name, own in parts if own is not None and own.compute is None}
    computed = _computed(names, SparkSession.active().createDataFrame([], columns)) if names else {}

    def with_types(aggregate: Aggregate) -> Aggregate:
        own, by = aggregate.expression, aggregate.by
        by = None if by is None else with_types(by)
        return replace(aggregate, expression=None if own is None else computed.get(own, own), by=by)

    return {name: with_types(aggregate) for name, aggregate in aggregates.items()}


def _computed(names: Mapping[Expression, str], frame: Any) -> dict[Expression, Expression]:
    """Return expressions over the columns of a frame with what computes them. names: of their aggregates.

    Raises PipelineError.
    """
    plan = frame._jdf.queryExecution().analyzed()
    attributes = {str(column.name()): column for column in members(plan.output())}
    for expression, name in names.items():
        if missing := [column for column in expression.columns if column not in attributes]:
            raise PipelineError(f"{name!r}: no column {missing[0]!r} among {', '.join(attributes)}", field=_FIELD)
    try:
        columns = _analyzed([over(expression.parsed, attributes) for expression in names], plan, frame)
    except AnalysisException as error:
        for expression, name in names.items() if len(names) > 1 else ():
            _computed({expression: name}, frame)
        expression, name = next(iter(names.items()))
        raise PipelineError(f"{name!r}: {expression.text}: {reason_of(error)}", field=_FIELD) from None
    scope, computed = Scope.given(members(plan.output()), stops=False), {}
    for (expression, name), column in zip(names.items(), columns, strict=True):
        try:
            value = scope.computed(column)
        except LeftToSparkError as error:
            problem = f"{name!r}: {expression.text}: {error} is not among what its tasks compute"
            fix = "Make the column in map_arrow in front of it, or use read_stream, where Spark computes it"
            raise PipelineError(problem, field=_FIELD, fix=fix) from None
        schema = arrow_schema(StructType([frame.schema[own] for own in expression.columns]))
        kind, compute = str(column.dataType().catalogString()), ComputedColumns(schema, (), {expression.text: value})
        computed[expression] = replace(expression, parsed=None, kind=kind, compute=compute)
    return computed


def _analyzed(expressions: Sequence[Any], plan: Any, frame: Any) -> list[Any]:
    """Return expressions over a plan as Spark has analysed them. Raises AnalysisException."""
    catalyst, nothing = jvm().org.apache.spark.sql.catalyst, jvm().PythonUtils.toSeq([])
    make, none, named = catalyst.expressions, jvm().scala.Option.apply(None), []
    for number, expression in enumerate(expressions):
        own = make.NamedExpression.newExprId()
        named.append(make.Alias(expression, f"c{number}", own, nothing, none, nothing))
    project = catalyst.plans.logical.Project(jvm().PythonUtils.toSeq(named), plan)
    dataset = jvm().org.apache.spark.sql.classic.Dataset.ofRows(frame.sparkSession._jsparkSession, project)
    analyzed = dataset.queryExecution().analyzed()
    if class_of(analyzed) != "Project" or not analyzed.child().fastEquals(plan):
        raise AnalysisException("it has no value of its own for each row")
    return members(analyzed.projectList())
