"""Translates Spark's expressions, from PySpark columns or SQL text, into those of `roster.state.expressions`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pyspark import SparkContext
from pyspark.errors import ParseException
from pyspark.sql import Column
from pyspark.sql.functions import expr

from roster.state.expressions import FUNCTIONS, Call, Constant, Expression, Name, is_function, type_of
from roster.state.store import StateError

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
    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise StateError("Spark parses expressions, and has no session yet; start one before")
    return getattr(getattr(context._jvm.org.apache.spark.sql.classic, "ColumnNodeToExpressionConverter$"), "MODULE$")


def class_of(node: Any) -> str:
    """Return the class of a parsed expression."""
    return str(node.getClass().getSimpleName())


def members(sequence: Any) -> list[Any]:
    """Return the members of a sequence of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]


def expression_of(node: Any) -> Expression:
    """Translate a parsed expression. Raises StateError that names the part that is not supported."""
    kind = class_of(node)
    if kind == "UnresolvedAttribute":
        return Name(".".join(members(node.nameParts())))
    if kind == "Literal":
        return _constant(node)
    arguments = tuple(expression_of(child) for child in members(node.children()))
    if kind == "Cast":
        return _call(f"cast to {node.dataType().catalogString()}", arguments)
    if kind == "UnresolvedFunction":
        return _call(node.nameParts().mkString(".").lower(), arguments)
    return _call(_CLASSES.get(kind, kind.lower()), arguments)


def _call(function: str, arguments: tuple[Expression, ...]) -> Expression:
    function = _SYNONYMS.get(function, function)
    if function in ("-", "+") and len(arguments) == 1:
        return Call("negative", arguments) if function == "-" else arguments[0]
    if function == "!=":
        return Call("not", (Call("=", arguments),))
    if not is_function(function):
        raise StateError(
            f"{function!r} is not among {', '.join(FUNCTIONS)}; make the column in map_arrow in front of it"
        )
    return Call(function, arguments)


def _constant(node: Any) -> Constant:
    kind, value = str(node.dataType().catalogString()), node.value()
    if kind.startswith("decimal") and value is not None:
        return Constant(Decimal(str(value)), kind)
    if type_of(kind) is None:
        raise StateError(f"a constant of type {kind} is not supported; make the column in map_arrow in front of it")
    return Constant(str(value) if kind == "string" and value is not None else value, kind)
