"""Spark's expressions as it has parsed them, from PySpark columns or SQL text: their columns, parts and texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from pyspark import SparkContext
from pyspark.errors import ParseException
from pyspark.sql import Column
from pyspark.sql.functions import expr
from pyspark.sql.types import DataType, StructType

from roster.state.expressions import quoted
from roster.state.store import StateError

_MOST_SHOWN = 80
_CLASSES = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "Remainder": "%",
    "UnaryMinus": "negative",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "CaseWhen": "case",
}
"""Functions by the class of Spark's parsed expressions; others have its name in lower case."""
_SYNONYMS = {
    "==": "=",
    "!": "not",
    "ceiling": "ceil",
    "log": "ln",
    "pow": "power",
    "if": "case",
    "when": "case",
    "ifnull": "coalesce",
    "nvl": "coalesce",
    "char_length": "length",
    "ucase": "upper",
    "lcase": "lower",
    "||": "concat",
    "try_add": "+",
    "try_subtract": "-",
    "try_multiply": "*",
    "try_divide": "/",
    "try_mod": "%",
}
"""Functions by other names of Spark's."""


def parsed(column: Column | str) -> Any:
    """Return Spark's parsed expression, a Java object, of a column or of SQL text, without its alias.

    Raises StateError for text that is not an expression.
    """
    try:
        converter = _converter()
        node = converter.apply(_tree(expr(column) if isinstance(column, str) else column))
    except ParseException as error:
        raise StateError(f"{column!r} is not an SQL expression: {str(error).strip().splitlines()[0]}") from None
    while class_of(node) == "Alias":
        node = node.child()
    return node


def alias_of(column: Column) -> str | None:
    """Return the name that a column was given with `alias`, None without one."""
    node = _converter().apply(_tree(column))
    return str(node.name()) if class_of(node) == "Alias" else None


def _tree(column: Any) -> Any:
    return column._jc.node()


def _converter() -> Any:
    """Return Spark's converter of columns to expressions. Raises StateError without a session of Spark Classic."""
    return getattr(getattr(jvm().org.apache.spark.sql.classic, "ColumnNodeToExpressionConverter$"), "MODULE$")


def jvm() -> Any:
    """Return the gateway to the session's JVM. Raises StateError without a session of Spark Classic."""
    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise StateError("Spark parses expressions, and has no session yet; start one before")
    return context._jvm


def class_of(node: Any) -> str:
    """Return the class of a parsed expression."""
    return str(node.getClass().getSimpleName())


def members(sequence: Any) -> list[Any]:
    """Return the members of a sequence of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]


def text_of(node: Any) -> str:
    """Return the text of a parsed expression, as definitions of state have it."""
    kind = class_of(node)
    if kind == "UnresolvedAttribute":
        return quoted(name_of(node))
    if kind == "Literal":
        return _text_of_constant(node)
    arguments = [text_of(child) for child in members(node.children())]
    if kind == "Cast":
        return f"cast to {node.dataType().catalogString()}({arguments[0]})"
    function = node.nameParts().mkString(".").lower() if kind == "UnresolvedFunction" else kind.lower()
    function = _CLASSES.get(kind, _SYNONYMS.get(function, function))
    if function in ("-", "+") and len(arguments) == 1:
        return f"negative({arguments[0]})" if function == "-" else arguments[0]
    if function == "!=":
        return f"not(({arguments[0]} = {arguments[1]}))"
    if len(arguments) == 2 and not function[0].isalpha():
        return f"({arguments[0]} {function} {arguments[1]})"
    return f"{function}({', '.join(arguments)})"


def _text_of_constant(node: Any) -> str:
    kind, value = str(node.dataType().catalogString()), node.value()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if kind == "string":
        return "'" + str(value).replace("'", "''") + "'"
    if kind.startswith("decimal"):
        return f"{Decimal(str(value)):f}" + ("BD" if kind.endswith(",0)") else "")
    return f"{kind} {value}" if kind in ("date", "timestamp") else str(value)


def name_of(attribute: Any) -> str:
    """Return the column that a parsed name says."""
    return ".".join(members(attribute.nameParts()))


def columns_of(node: Any) -> Iterator[str]:
    """Yield the columns of a parsed expression."""
    if class_of(node) == "UnresolvedAttribute":
        yield name_of(node)
    for child in members(node.children()):
        yield from columns_of(child)


def over(node: Any, columns: Mapping[str, Any]) -> Any:
    """Return a parsed expression over these attributes."""
    if class_of(node) == "UnresolvedAttribute":
        return columns[name_of(node)]
    children = [over(child, columns) for child in members(node.children())]
    return node.withNewChildren(jvm().PythonUtils.toSeq(children)) if children else node


def type_of(kind: Any) -> DataType:
    """Return a type of Catalyst's as PySpark's."""
    field_of: dict[str, Any] = {"name": "type", "nullable": True, "metadata": {}, "type": json.loads(kind.json())}
    return StructType.fromJson({"fields": [field_of]})["type"].dataType


def short(text: str) -> str:
    """Return a text on one line, its beginning if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 3]}..."
