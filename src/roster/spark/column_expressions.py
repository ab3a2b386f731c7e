"""Spark's expressions and plans as objects of the JVM: their kinds, parts, types and texts."""

from __future__ import annotations

import functools
import json
from typing import Any, TypeAlias

from py4j.java_gateway import JavaClass, JavaPackage
from pyspark.sql.types import DataType, StructType

Java: TypeAlias = Any
"""An object of the JVM, as py4j gives it."""
_MOST_SHOWN = 80


class Names:
    """Packages, classes and static members of a JVM, each looked up once: each look costs a start or a batch time."""

    def __init__(self, found: Java) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Java:
        found = getattr(self._found, name)
        self.__dict__[name] = Names(found) if isinstance(found, (JavaClass, JavaPackage)) else found
        return self.__dict__[name]

    def __call__(self, *arguments: Java) -> Java:
        """Call a class's constructor."""
        return self._found(*arguments)


@functools.cache
def names_of(jvm: Java) -> Names:
    """Return the names of a gateway's view of its JVM."""
    return Names(jvm)


def class_of(node: Java) -> str:
    """Return the class of an expression or a node of a plan."""
    return str(node.productPrefix())


def members(sequence: Java) -> list[Java]:
    """Return the members of a sequence of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]


def text_of(expression: Java) -> str:
    """Return the text of an expression, columns by their names alone."""
    text = str(expression.sql())
    for column in members(expression.references().toSeq()):
        text = text.replace(column.sql(), column.name())
    return text


def type_of(kind: Java) -> DataType:
    """Return a type of Catalyst's as PySpark's."""
    field_of: dict[str, Any] = {"name": "type", "nullable": True, "metadata": {}, "type": json.loads(kind.json())}
    return StructType.fromJson({"fields": [field_of]})["type"].dataType


def scala_object(package: Java, name: str) -> Java:
    """Return an object of Scala's."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def literal_of(value: Java, kind: str, jvm: Java) -> Java:
    """Return a literal of a type of Catalyst's."""
    literal: Java = jvm.org.apache.spark.sql.catalyst.expressions.Literal
    return literal.create(value, scala_object(jvm.org.apache.spark.sql.types, kind))


def analyzed(df: Any) -> Java:
    """Return the analyzed plan of a frame."""
    return df._jdf.queryExecution().analyzed()


def short(text: str) -> str:
    """Return a text on one line, its beginning if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 3]}..."
