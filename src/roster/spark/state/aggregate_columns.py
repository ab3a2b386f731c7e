"""Parses aggregates given as SQL text or as columns of PySpark's functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column

from roster.spark.errors import PipelineError
from roster.spark.state.column_expressions import alias_of, class_of, expression_of, members, parsed
from roster.state.aggregate_functions import ALL_ROWS, BY_ANOTHER, FUNCTIONS, IGNORING_NULLS, Aggregate, Kind
from roster.state.expressions import Call, Constant, Expression, Name
from roster.state.store import StateError

_FIELD = "aggregates"
_EXAMPLE = "For example {'orders': 'count(*)', 'revenue': F.sum('price')}, or [F.sum('price').alias('revenue')]"

Aggregates = Mapping[str, str | Column] | Sequence[Column]
"""{result: SQL text or a column}, or columns with aliases."""


def parse_aggregates(given: Aggregates) -> dict[str, Aggregate]:
    """Return {result name: aggregate}. Raises PipelineError that names the one at fault."""
    found: dict[str, Aggregate] = {}
    for name, each in _named(given).items():
        try:
            found[name] = (Aggregate.parse(each) if isinstance(each, str) else None) or _aggregate(each)
        except StateError as error:
            raise PipelineError(f"{name!r}: {error}", field=_FIELD) from None
    return found


def _named(given: Aggregates) -> dict[str, str | Column]:
    """Return the aggregates by name. Raises PipelineError for what has no names."""
    if isinstance(given, Mapping) and given:
        for name, each in given.items():
            if not isinstance(name, str) or not name or not isinstance(each, str | Column):
                raise PipelineError(f"{name!r}: {each!r} is no name and its aggregate", field=_FIELD, fix=_EXAMPLE)
        return dict(given)
    if not isinstance(given, list | tuple) or not given or not all(isinstance(each, Column) for each in given):
        raise PipelineError(f"{given!r} is no dict of results", field=_FIELD, fix=_EXAMPLE)
    found: dict[str, str | Column] = {}
    for each in given:
        alias = alias_of(each)
        if alias is None or alias in found:
            problem = "has no alias" if alias is None else f"has the alias of another one, {alias!r}"
            raise PipelineError(f"{_text(each)!r} {problem}", field=_FIELD, fix=_EXAMPLE)
        found[alias] = each
    return found


def _aggregate(given: str | Column) -> Aggregate:
    """Parse an aggregate. Raises StateError that quotes it."""
    node = parsed(given)
    try:
        return _of_node(node)
    except StateError as error:
        raise StateError(f"{_text(given)!r}: {error}") from None


def _of_node(node: Any) -> Aggregate:
    if class_of(node) != "UnresolvedFunction":
        raise _not_kept("compute with results in map_arrow behind it")
    function, arguments = node.nameParts().mkString(".").lower(), members(node.arguments())
    if node.isDistinct():
        if function != "count" or len(arguments) != 1:
            raise _not_kept("deduplicate by the keys and the columns in front of it")
        function = "count_distinct"
    return _of_function(function, arguments, _condition(node), ignores_nulls=_ignores_nulls(node, arguments))


def _of_function(
    function: str, arguments: list[Any], condition: Expression | None, *, ignores_nulls: bool
) -> Aggregate:
    if function == "count_if" and len(arguments) == 1:
        function, condition = "count", _both(expression_of(arguments[0]), condition)
        arguments = []
    if function in BY_ANOTHER and len(arguments) == 2:
        value, by = map(expression_of, arguments)
        return _of_value(BY_ANOTHER[function], value, by=_of_value(Kind.MIN, _where(condition, by)))
    kind = FUNCTIONS.get(function)
    if kind is Kind.COUNT and (not arguments or _is_all_rows(arguments)):
        return Aggregate(kind, ALL_ROWS) if condition is None else _of_value(kind, _where(condition, _ONE))
    if kind in IGNORING_NULLS and len(arguments) == 2:
        arguments = arguments[:1]
    if kind is not None and (not arguments or class_of(arguments[0]) == "UnresolvedStar"):
        raise _not_kept("name a column, as in sum(price)")
    if kind is None or len(arguments) != 1:
        raise _not_kept("keep others with transform_with_state")
    if kind in IGNORING_NULLS:
        if condition is not None and not ignores_nulls:
            raise _not_kept("a condition needs `ignore nulls`")
        kind = IGNORING_NULLS[kind] if ignores_nulls else kind
    return _of_value(kind, _where(condition, expression_of(arguments[0])))


_ONE = Constant(1, "int")


def _of_value(kind: Kind, value: Expression, by: Aggregate | None = None) -> Aggregate:
    if isinstance(value, Name):
        return Aggregate(kind, value.column, by=by)
    return Aggregate(kind, str(value), value, by)


def _where(condition: Expression | None, value: Expression) -> Expression:
    """Return the value where the condition is true, else null."""
    return value if condition is None else Call("case", (condition, value))


def _both(one: Expression, other: Expression | None) -> Expression:
    return one if other is None else Call("and", (one, other))


def _condition(node: Any) -> Expression | None:
    """Return the condition of `filter (where …)`."""
    return expression_of(node.filter().get()) if node.filter().isDefined() else None


def _ignores_nulls(node: Any, arguments: list[Any]) -> bool:
    said = node.ignoreNulls()
    if not isinstance(said, bool):  # an option since Spark 4.1
        said = said.isDefined() and said.get()
    return bool(said or (len(arguments) == 2 and class_of(arguments[1]) == "Literal" and arguments[1].value() is True))


def _is_all_rows(arguments: list[Any]) -> bool:
    """Return True for a star, or a constant that is not null."""
    if len(arguments) != 1:
        return False
    kind = class_of(arguments[0])
    return kind == "UnresolvedStar" or (kind == "Literal" and arguments[0].value() is not None)


def _text(given: str | Column) -> str:
    return (given if isinstance(given, str) else str(given).removeprefix("Column<'").removesuffix("'>"))[:80]


def _not_kept(way: str) -> StateError:
    functions = ", ".join(sorted({*FUNCTIONS, *BY_ANOTHER, "count_if"}))
    return StateError(f"none of {functions}; {way}")
