"""Parses aggregates given as SQL text or as columns of PySpark's functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column

from roster.spark.errors import PipelineError
from roster.state.aggregate import ALL_ROWS, Aggregate, not_kept
from roster.state.store import StateError

_FIELD = "aggregates"


def parse_aggregates(given: Mapping[str, str | Column]) -> dict[str, Aggregate]:
    """Return {result name: aggregate}. Raises PipelineError that names the one at fault."""
    example = "For example {'orders': 'count(*)', 'revenue': F.sum('price')}"
    if not isinstance(given, Mapping) or not given:
        raise PipelineError(f"{given!r} is no dict of results", field=_FIELD, fix=example)
    found: dict[str, Aggregate] = {}
    for name, each in given.items():
        if not isinstance(name, str) or not name or not isinstance(each, str | Column):
            raise PipelineError(f"{name!r}: {each!r} is no name and its aggregate", field=_FIELD, fix=example)
        try:
            found[name] = Aggregate.parse(each) if isinstance(each, str) else _of_column(each)
        except StateError as error:
            raise PipelineError(f"{name!r}: {error}", field=_FIELD) from None
    return found


def _of_column(column: Column) -> Aggregate:
    """Parse a column's expression tree. Raises StateError that quotes the column."""
    text = str(column).removeprefix("Column<'").removesuffix("'>")[:80]
    expression: Any = column._jc
    node = expression.node()
    while _kind(node) == "Alias":
        node = node.child()
    if _kind(node) == "SqlExpression":  # of F.expr
        return Aggregate.parse(node.expression())
    if _kind(node) != "UnresolvedFunction":
        raise not_kept(text)
    if node.isDistinct():
        raise not_kept(text.replace("(", "(distinct ", 1))  # Spark's text leaves `distinct` out
    arguments = node.arguments()
    name = _column_name(arguments.apply(0)) if arguments.size() == 1 else None
    if name is None:
        raise not_kept(text)
    return Aggregate.of(node.functionName(), name, text)


def _column_name(node: Any) -> str | None:
    """Return the column that an argument names, `ALL_ROWS` for a literal that is never null, None for an expression."""
    kind = _kind(node)
    if kind == "UnresolvedAttribute":
        parts = node.nameParts()
        return ".".join(parts.apply(number) for number in range(parts.size()))
    if kind == "UnresolvedStar" or (kind == "Literal" and node.value() is not None):
        return ALL_ROWS
    return None


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
