"""Aggregates as Spark has analysed them: calls in a plan, and the aggregates that `Pipeline.aggregate` is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's convention
from pyspark.sql.types import StructType

from roster._errors import RosterError
from roster.pipeline.errors import PipelineError, reason_of
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.computed_columns import ComputedColumns
from roster.spark.arrow_expressions import LeftToSparkError, Scope
from roster.spark.column_expressions import Java, analyzed, class_of, literal_of, members, scala_object, text_of
from roster.state.aggregate_functions import (
    ALL_ROWS,
    FUNCTIONS,
    IGNORING_NULLS,
    LISTS,
    Aggregate,
    Kind,
)
from roster.state.collected import BOUND, sketch_size
from roster.state.expressions import Expression

_FIELD = "aggregates"
_EXAMPLE = "For example {'orders': 'count(*)', 'revenue': F.sum('price')}, or [F.sum('price').alias('revenue')]"
_NO_CALL = "it is not one call of an aggregate function; compute with results in map_arrow behind it"
_ALL = (1 << 31) - 1
"""Values of a list or a set: all of them, as in Spark."""
_OF_STRUCTS = {Kind.MIN: Kind.MIN_BY, Kind.MAX: Kind.MAX_BY}
_OF_DISTINCT = {Kind.COUNT: Kind.COUNT_DISTINCT, Kind.SUM: Kind.SUM_DISTINCT}
_COMPARING = frozenset(
    {Kind.MIN, Kind.MAX, Kind.MIN_BY, Kind.MAX_BY, Kind.COUNT_DISTINCT, Kind.COLLECT_SET, Kind.APPROX_COUNT_DISTINCT}
)
"""Functions that compare the values of their last column."""
_OF_ONE_COLUMN = LISTS | {*IGNORING_NULLS, *IGNORING_NULLS.values(), Kind.APPROX_COUNT_DISTINCT, Kind.APPROX_PERCENTILE}
"""Functions whose further arguments are constants."""

Add = Callable[[str, Java], str]
"""Adds the column of an expression to the rows, by a name unless there is one; returns its name."""


def aggregate_of(call: Java, add: Add, jvm: Java, most: int = _ALL) -> Aggregate:
    """Return an aggregate of a plan, and add the columns that it needs. most: values of a list or a set.

    Raises PipelineError for others than Roster has.
    """
    function, condition = call.aggregateFunction(), call.filter().get() if call.filter().isDefined() else None
    arguments, kind = members(function.children()), _kind_of(call, has_condition=condition is not None)
    if kind is Kind.COUNT:
        if function.prettyName() == "count_if":
            condition, arguments = _both(condition, arguments[0], jvm), []
        arguments, condition = _counted(arguments, condition, jvm)
        if not arguments:
            return Aggregate(kind, ALL_ROWS)
    further = _further(kind, function, arguments, most)
    if kind in _OF_ONE_COLUMN:
        arguments = arguments[:1]
    if kind in _COMPARING and " collate " in str(arguments[-1].dataType().catalogString()):
        problem = f"{text_of(call)} compares texts by a collation, and Roster by their bytes"
        raise PipelineError(problem, field=_FIELD, fix="Give it the text COLLATE UTF8_BINARY")
    suffix = "" if condition is None else f" where {text_of(condition)}"
    columns = [add(text_of(argument) + suffix, _where(condition, argument, jvm)) for argument in arguments]
    is_struct = kind in _OF_STRUCTS and arguments[0].dataType().typeName() == "struct"
    return replace(_of_columns(kind, columns, is_struct=is_struct), arguments=further)


def _kind_of(call: Java, *, has_condition: bool) -> Kind:
    """Return what an aggregate of a plan is. Raises PipelineError for others than Roster has."""
    function, text = call.aggregateFunction(), text_of(call)
    name = str(function.prettyName())
    kind = FUNCTIONS.get(name)
    if call.isDistinct() and kind is not None:
        kind = _OF_DISTINCT.get(kind)
    if kind is None:
        fix = "Use another function, or transformWithState()"
        if name in ("median", "percentile"):
            fix = "Use approx_percentile(c, 0.5), whose state does not grow"
        raise PipelineError(f"{text} needs a state that Roster has not", field=_FIELD, fix=fix)
    if kind in IGNORING_NULLS and has_condition and not function.ignoreNulls():
        raise PipelineError(f"{text} has a condition", field=_FIELD, fix="Let it ignore nulls")
    return IGNORING_NULLS[kind] if kind in IGNORING_NULLS and function.ignoreNulls() else kind


def _further(kind: Kind, function: Java, arguments: Sequence[Java], most: int) -> tuple[object, ...]:
    """Return what a function has besides columns: of percentiles these, a number or a tuple, and the accuracy."""
    if kind in LISTS:
        return (most,)
    if kind is Kind.APPROX_COUNT_DISTINCT:
        return (sketch_size(float(function.relativeSD())),)
    if kind is not Kind.APPROX_PERCENTILE:
        return ()
    shares, accuracy = (argument.eval(None) for argument in arguments[1:3])
    is_one = isinstance(shares, int | float | Decimal)
    return (float(shares) if is_one else tuple(shares.toDoubleArray())), int(accuracy)


def _of_columns(kind: Kind, columns: Sequence[str], *, is_struct: bool) -> Aggregate:
    if is_struct:
        return Aggregate(_OF_STRUCTS[kind], columns[0], by=Aggregate(Kind.MIN, columns[0]))
    if kind in (Kind.MIN_BY, Kind.MAX_BY):
        return Aggregate(kind, columns[0], by=Aggregate(Kind.MIN, columns[1]))
    aggregate = Aggregate(kind, columns[-1])
    for column in reversed(columns[:-1]):
        aggregate = Aggregate(kind, column, by=aggregate)
    return aggregate


def _counted(arguments: list[Java], condition: Java, jvm: Java) -> tuple[list[Java], Java]:
    """Return what a count counts the values of, and where; nothing for all rows."""
    if all(argument.foldable() and argument.eval(None) is not None for argument in arguments):
        return ([] if condition is None else [literal_of(1, "IntegerType", jvm)]), condition
    for argument in arguments[1:]:
        condition = _both(condition, jvm.org.apache.spark.sql.catalyst.expressions.IsNotNull(argument), jvm)
    return arguments[:1], condition


def _both(one: Java, other: Java, jvm: Java) -> Java:
    return other if one is None else jvm.org.apache.spark.sql.catalyst.expressions.And(one, other)


def _where(condition: Java, value: Java, jvm: Java) -> Java:
    """Return the value where the condition is true, else null."""
    if condition is None:
        return value
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    return expressions.If(condition, value, expressions.Literal.create(None, value.dataType()))


# Those of `Pipeline.aggregate`.

Aggregates = Mapping[str, str | Column] | Sequence[Column]
"""{result: SQL text or a column}, or columns with aliases."""
_WITH_MOST = re.compile(
    r"(\s*(?:collect_list|collect_set|array_agg)\s*\(.*),\s*(-?\d+)\s*(\)(?:\s*filter\s*\(.*)?\s*)",
    re.DOTALL | re.IGNORECASE,
)
"""A list or a set with the most values, which Spark's functions do not take."""


@dataclass(frozen=True, slots=True)
class Named:
    """An aggregate before the columns of its rows are known, as text or a column. most: values of a list or a set."""

    given: str | Column
    most: int = BOUND

    @classmethod
    def of(cls, name: str, given: str | Column) -> Named:
        """Return that of a column or of SQL text. Raises PipelineError for a list that keeps nothing."""
        match = _WITH_MOST.fullmatch(given) if isinstance(given, str) else None
        if match is None:
            return cls(given)
        if int(match[2]) < 1:
            raise PipelineError(f"{name!r}: {given} keeps no values", field=_FIELD, fix="Use a number from 1 on")
        return cls(match[1] + match[3], int(match[2]))

    @property
    def column(self) -> Column:
        """The column; needs a Spark session."""
        return F.expr(self.given) if isinstance(self.given, str) else self.given


def named_aggregates(given: Aggregates) -> dict[str, Named]:
    """Return {result name: aggregate}. Raises PipelineError that names the one at fault."""
    if isinstance(given, Mapping) and given:
        for name, aggregate in given.items():
            if not isinstance(name, str) or not name or not isinstance(aggregate, str | Column):
                raise PipelineError(
                    f"{name!r}: {aggregate!r} is not a name and its aggregate", field=_FIELD, fix=_EXAMPLE
                )
        return {name: Named.of(name, aggregate) for name, aggregate in given.items()}
    if not isinstance(given, list | tuple) or not given or not all(isinstance(column, Column) for column in given):
        raise PipelineError(f"{given!r} is not a dict of results", field=_FIELD, fix=_EXAMPLE)
    by_alias: dict[str, Named] = {}
    for column in given:
        alias = _alias_of(column)
        if alias is None or alias in by_alias:
            problem = "has no alias" if alias is None else f"has the alias of another one, {alias!r}"
            text = str(column).removeprefix("Column<'").removesuffix("'>")
            raise PipelineError(f"{text!r} {problem}", field=_FIELD, fix=_EXAMPLE)
        by_alias[alias] = Named(column)
    return by_alias


def _alias_of(column: Any) -> str | None:
    """Return the name that a column was given with `alias`, None without one."""
    jvm: Java = SparkSession.active()._jvm
    converter = scala_object(jvm.org.apache.spark.sql.classic, "ColumnNodeToExpressionConverter")
    expression = converter.apply(column._jc.node())
    return str(expression.name()) if class_of(expression) == "Alias" else None


def aggregates_over(named: Mapping[str, Named], columns: StructType) -> dict[str, Aggregate]:
    """Return aggregates over rows with these columns, those of expressions with what computes them.

    Spark analyses them: so types, casts and names are as it has them. Raises PipelineError that names the one at fault.
    """
    rows = _Rows(columns)
    try:
        calls = rows.calls([one.column for one in named.values()])
    except PySparkException as error:
        for name, one in named.items() if len(named) > 1 else ():
            aggregates_over({name: one}, columns)
        raise PipelineError(f"{next(iter(named))!r}: {reason_of(error)}", field=_FIELD) from None
    aggregates = dict[str, Aggregate]()
    for (name, one), call in zip(named.items(), calls, strict=True):
        try:
            aggregates[name] = rows.aggregate(call, one.most)
        except PipelineError as error:
            raise PipelineError(f"{name!r}: {error.problem}", field=_FIELD, fix=error.fix) from None
        except RosterError as error:
            raise PipelineError(f"{name!r}: {error}", field=_FIELD) from None
        except LeftToSparkError as error:
            fix = "Make the column in map_arrow in front of it, or use read_stream, where Spark computes it"
            problem = f"{name!r}: {error} is not among what its tasks compute"
            raise PipelineError(problem, field=_FIELD, fix=fix) from None
    return aggregates


class _Rows:
    """Rows that aggregates are analysed over, and the expressions that these take in place of columns."""

    def __init__(self, columns: StructType) -> None:
        spark = SparkSession.active()
        self._columns, self._frame = columns, spark.createDataFrame([], columns)
        self._jvm: Java = spark._jvm
        outputs = members(analyzed(self._frame).output())
        self._names = {column.exprId().id(): str(column.name()) for column in outputs}
        self._scope = Scope.given(outputs, stops=False)
        self._expressions: dict[str, Expression] = {}

    def calls(self, columns: Sequence[Column]) -> list[Java]:
        """Return calls of aggregate functions as Spark has analysed them. Raises PySparkException for other columns."""
        plan = analyzed(self._frame.agg(*columns))
        named = members(plan.aggregateExpressions()) if class_of(plan) == "Aggregate" else []
        calls = [output.child() if class_of(output) == "Alias" else output for output in named]
        if not calls or any(class_of(call) != "AggregateExpression" for call in calls):
            raise AnalysisException(_NO_CALL)
        return calls

    def aggregate(self, call: Java, most: int) -> Aggregate:
        """Return the aggregate of a call. Raises PipelineError, RosterError and LeftToSparkError."""
        return self._with_expressions(aggregate_of(call, self._add, self._jvm, most))

    def _add(self, text: str, value: Java) -> str:
        if class_of(value) == "AttributeReference":
            return self._names[value.exprId().id()]
        if text not in self._expressions:
            names = sorted(self._names[column.exprId().id()] for column in members(value.references().toSeq()))
            columns = arrow_schema(StructType([self._columns[name] for name in names]))
            compute = ComputedColumns(columns, (), {text: self._scope.computed(value)})
            self._expressions[text] = Expression(text, (*names,), compute)
        return text

    def _with_expressions(self, aggregate: Aggregate) -> Aggregate:
        by = None if aggregate.by is None else self._with_expressions(aggregate.by)
        return replace(aggregate, expression=self._expressions.get(aggregate.column), by=by)
