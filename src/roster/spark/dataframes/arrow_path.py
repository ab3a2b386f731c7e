"""What of a plan Roster computes in its own tasks: expressions whose values are proved to be Spark's.

`test_arrow_path` holds each of them against Spark, types included. All others are left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.computed_columns import Call, Computed, ComputedColumns, Constant, Field, Given, Objects
from roster.pipeline.tasks.flat_json import is_flat
from roster.pipeline.tasks.json_values import JsonReader
from roster.spark.column_expressions import class_of, members
from roster.spark.dataframes.operators import Kept, Results, between, type_of
from roster.spark.dataframes.plan import WATERMARK, Java, Node, alias_of, conjuncts, short
from roster.state import decimals

_UTC = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "Zulu", "UCT", "+00:00")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DIGITS = dict(zip(_INTEGERS, (3, 5, 10, 19), strict=True))
_FLOATS = ("float", "double")
_COMPARED = (*_INTEGERS, *_FLOATS, "string", "boolean", "date", "timestamp")
_OF_TEXT = {"int": "checked integer", "bigint": "checked long", "double": "checked number", "timestamp": "time"}
"""Casts of texts, which fail for one that says no such value."""
_IN_UTC = {("date", "timestamp"): "wider", ("timestamp", "date"): "day", ("timestamp", "bigint"): "seconds"}
_SAME = ("Alias", "ParseToTimestamp", "Nvl")
"""Expressions that are another one: that below them, or in their place."""
_SHORTEST_FROM = 19
"""The version of Java from which on a number's text is the shortest."""
_PASSED = ("SubqueryAlias", "View", WATERMARK, "Repartition", "RepartitionByExpression")


class LeftToSparkError(Exception):
    """A part of a plan is not among those proved; the text names it."""


@dataclass(frozen=True)
class Computes:
    """The step that computes columns of rows, and leaves rows out."""

    given: StructType
    conditions: Sequence[Computed]
    columns: Mapping[str, Computed]
    results: StructType

    def resolved(self, _: StructType, /) -> tuple[ComputedColumns, StructType]:
        """Return the function, and the columns of its results."""
        return ComputedColumns(arrow_schema(self.given), self.conditions, self.columns), self.results


class Scope:
    """The columns that expressions at one place of a plan are made of, by their ids; conditions of rows so far."""

    def __init__(self, of: Callable[[int], Computed | Objects], lower: Scope | None = None) -> None:
        """lower: of the same rows; its conditions hold here, too."""
        self._of = of
        self._known: dict[int, Computed | Objects] = {}
        self._fields: dict[tuple[Objects, str], Field] = {} if lower is None else lower._fields
        self.conditions: list[Computed] = [] if lower is None else lower.conditions

    @classmethod
    def given(cls, columns: Sequence[Java]) -> Scope:
        """Return the scope of rows with columns by the names of these."""
        names = {int(column.exprId().id()): Given(str(column.name())) for column in columns}
        return cls(lambda number: names[number])

    def of(self, number: int) -> Computed | Objects:
        """Return the column of an id. Raises LeftToSparkError."""
        if number not in self._known:
            self._known[number] = self._of(number)
        return self._known[number]

    def above(self, node: Node) -> Scope:
        """Return the scope of what stands on a node whose child has this one. Raises LeftToSparkError."""
        if node.kind == "Project":
            return self.with_columns(members(node.java.projectList()))
        if node.kind == "Filter":
            self.conditions += [self.computed(part) for part in conjuncts(node.java.condition())]
        elif node.kind not in _PASSED:
            raise LeftToSparkError(node.kind)
        return self

    def with_columns(self, named: Sequence[Java]) -> Scope:
        """Return the scope with these named expressions alone."""
        by_id = {int(expression.exprId().id()): expression for expression in named}

        def of(number: int) -> Computed | Objects:
            expression = by_id[number]
            return (
                self.of(number)
                if class_of(expression) == "AttributeReference"
                else self._translated(expression.child())
            )

        return Scope(of, self)

    def computed(self, expression: Java) -> Computed:
        """Return what computes an expression. Raises LeftToSparkError for one that is not proved."""
        value = self._translated(expression)
        if isinstance(value, Objects):
            raise LeftToSparkError(_short(expression))
        return value

    def step(self, given: StructType, columns: Mapping[str, Java]) -> Computes:
        """Return the step that makes these columns. Raises LeftToSparkError."""
        results = StructType()
        for name, expression in columns.items():
            results.add(name, type_of(expression.dataType()))
        return Computes(
            given, self.conditions, {name: self.computed(expression) for name, expression in columns.items()}, results
        )

    def _translated(self, node: Java) -> Computed | Objects:
        kind = class_of(node)
        if kind == "AttributeReference":
            return self.of(int(node.exprId().id()))
        if kind == "Literal":
            return _literal(node)
        if kind in _SAME:
            return self._translated(node.child() if kind == "Alias" else node.replacement())
        if kind == "GetStructField":
            return self._field(node)
        if kind == "JsonToStructs":
            return self._objects(node)
        if (made := _CALLED.get(kind)) is not None:
            children = members(node.children())
            arguments = tuple(self.computed(child) for child in children)
            site = _Site(node, arguments, [_type(child) for child in children], _type(node), _arrow(node))
            if (call := made(site)) is not None:
                return call
        raise LeftToSparkError(_short(node))

    def _field(self, node: Java) -> Computed:
        struct = self._translated(node.child())
        number = int(node.ordinal())
        if isinstance(struct, Call) and struct.function == "struct":
            return struct.arguments[number]
        if isinstance(struct, Objects):
            name = str(node.child().dataType().fieldNames()[number])
            return self._fields.setdefault((struct, name), Field(struct, name))
        raise LeftToSparkError(_short(node))

    def _objects(self, node: Java) -> Objects:
        fields = arrow_schema(cast("StructType", type_of(node.dataType())))
        has_times = any(pa.types.is_timestamp(field.type) and field.type.tz is not None for field in fields)
        is_plain = all(_is_scalar(field.type) for field in fields) and is_flat(_without_decimals(fields))
        if not node.options().isEmpty() or not is_plain or (has_times and not _is_utc(node)):
            raise LeftToSparkError(_short(node))
        return Objects(self.computed(node.child()), JsonReader(fields))


def rows_of(below: Node, columns: Mapping[str, Java], records: StructType) -> Computes:
    """Return the step that makes columns over a node of a source's records. Raises LeftToSparkError."""
    chain = [below]
    while not chain[-1].is_leaf:
        if len(chain[-1].children) != 1:
            raise LeftToSparkError(chain[-1].kind)
        chain.append(chain[-1].children[0])
    scope = Scope.given(members(chain[-1].java.output()))
    for node in reversed(chain[:-1]):
        scope = scope.above(node)
    return scope.step(records, columns)


def results_of(kept: Kept, results: Results, root: Node) -> Computes:
    """Return the step that makes a plan's columns of an operator's results. Raises LeftToSparkError."""
    if kept.rows.text:
        raise LeftToSparkError(f"the key {next(iter(kept.rows.text))}, which is a fraction")
    outputs = [alias_of(value, name, results.jvm, number) for value, name, number in kept.outputs(results.attributes)]
    scope = Scope.given(list(results.attributes.values())).with_columns(outputs)
    for node in reversed(between(root, kept.node)):
        scope = scope.above(node)
    return scope.step(results.columns, named(root))


def named(root: Node) -> dict[str, Java]:
    """Return a plan's columns by name. Raises LeftToSparkError for two of one name."""
    outputs = members(root.java.output())
    columns = {str(column.name()): column for column in outputs}
    if len(columns) < len(outputs):
        raise LeftToSparkError("two columns of one name")
    return columns


@dataclass(frozen=True)
class _Site:
    """An expression with its arguments. types: of these, as `own` is the expression's, by Spark's names."""

    node: Java
    arguments: tuple[Computed, ...]
    types: Sequence[str]
    own: str
    goal: pa.DataType

    def call(self, function: str, *, can_fail: bool = False) -> Call:
        """Return the call of a function with all arguments."""
        return Call(function, self.arguments, self.goal, can_fail)

    @property
    def is_ansi(self) -> bool:
        """True if Spark stops at a value beyond the type. Raises LeftToSparkError for one that is null then."""
        mode = str(self.node.evalMode().toString())
        if mode not in ("ANSI", "LEGACY"):
            raise LeftToSparkError(_short(self.node))
        return mode == "ANSI"

    @property
    def is_lazy(self) -> bool:
        """True if Spark may not come to an argument that fails."""
        return any(map(_fails, self.arguments[1:]))


def _arithmetic(function: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        if site.own in _FLOATS and set(site.types) == {site.own}:
            return site.call(function)
        if site.own in _INTEGERS and set(site.types) == {site.own}:
            is_checked = site.is_ansi
            return site.call(f"checked {function}" if is_checked else function, can_fail=is_checked)
        return None

    return called


def _signed(function: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        is_checked = site.own in _INTEGERS and bool(site.node.failOnError())
        if site.own not in (*_INTEGERS, *_FLOATS):
            return None
        return site.call(f"checked {function}" if is_checked else function, can_fail=is_checked)

    return called


def _quotient(function: str, *kinds: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        if site.own not in kinds:
            return None
        by = site.arguments[1]
        is_never_zero = isinstance(by, Constant) and by.value.as_py() not in (0, None)
        is_checked = site.is_ansi and not is_never_zero
        return site.call(f"checked {function}" if is_checked else function, can_fail=is_checked)

    return called


def _comparison(function: str) -> Callable[[_Site], Call | None]:
    return lambda site: site.call(function) if len(set(site.types)) == 1 and _is_compared(site.types[0]) else None


def _logic(function: str) -> Callable[[_Site], Call | None]:
    return lambda site: None if site.is_lazy else site.call(function)


def _choice(function: str) -> Callable[[_Site], Call | None]:
    return lambda site: site.call(function) if _is_compared(site.own) and not site.is_lazy else None


def _of_text(function: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        is_fixed = all(isinstance(argument, Constant) for argument in site.arguments[1:])
        return site.call(function) if is_fixed and set(site.types) == {"string"} else None

    return called


def _struct(site: _Site) -> Call:
    return Call("struct", site.arguments[1::2], site.goal)


def _to_json(site: _Site) -> Call | None:
    is_proved = site.node.options().isEmpty() and _is_written(_arrow(site.node.child()), site.node)
    return site.call(f"to_json{_of_java()}") if is_proved else None


def _cast(site: _Site) -> Computed | None:
    value, (given,), own, goal = site.arguments[0], site.types, site.own, site.goal
    if given == own:
        return value
    if given == "void":
        return Constant(pa.scalar(None, goal))
    if isinstance(value, Constant) and given in _INTEGERS and own.startswith("decimal"):
        number = value.value.as_py()
        return Constant(pa.scalar(None if number is None else Decimal(number), goal))
    if _is_wider(given, own):
        return site.call("wider")
    if own == "double" and given.startswith("decimal"):
        return site.call("number")
    if own == "string" and given in ("binary", "boolean", *_INTEGERS, *_FLOATS):
        return site.call(f"number text{_of_java()}" if given in _FLOATS else "text")
    if given == "string" and own in _OF_TEXT and site.is_ansi:
        return site.call(_OF_TEXT[own], can_fail=True) if own != "timestamp" or _is_utc(site.node) else None
    return site.call(_IN_UTC[given, own]) if (given, own) in _IN_UTC and _is_utc(site.node) else None


def _is_wider(given: str, own: str) -> bool:
    """Return True if a type has all values of another one, or those next to them."""
    numbers = (*_INTEGERS, *_FLOATS)
    if given in numbers and own in numbers:
        return numbers.index(given) < numbers.index(own) or (given, own) == ("double", "float")
    if own.startswith("decimal"):
        whole, scale = _digits(own)
        given_whole, given_scale = (_DIGITS[given], 0) if given in _DIGITS else _digits(given)
        return given_whole <= whole and given_scale <= scale
    return (given, own) in (("string", "binary"), ("boolean", "int"))


def _digits(kind: str) -> tuple[int, int]:
    """Return the digits of a decimal before and behind the point; of another type more than any decimal has."""
    decimal = decimals.type_of_name(kind)
    return (99, 99) if decimal is None else (decimal.precision - decimal.scale, decimal.scale)


def _of_java() -> str:
    """Return the suffix of the functions that write numbers as the driver's Java does."""
    jvm: Java = SparkSession.active()._jvm
    version = str(jvm.java.lang.System.getProperty("java.specification.version"))
    return "" if int(version.removeprefix("1.")) >= _SHORTEST_FROM else " before Java 19"


def _fails(value: Computed) -> bool:
    """Return True if some part of it may fail, which Spark may not come to."""
    return isinstance(value, Call) and (value.can_fail or any(map(_fails, value.arguments)))


def _is_compared(kind: str) -> bool:
    return kind in _COMPARED or kind.startswith("decimal")


def _is_written(kind: pa.DataType, node: Java) -> bool:
    """Return True if `to_json` is proved for structs of a type."""
    if not pa.types.is_struct(kind):
        return False
    for field in kind:
        own = field.type
        is_plain = pa.types.is_boolean(own) or pa.types.is_integer(own) or pa.types.is_string(own) or own == pa.date32()
        is_time = pa.types.is_timestamp(own) and own.tz is not None and _is_utc(node)
        is_decimal = pa.types.is_decimal(own) and own.scale <= 6
        if not (
            is_plain
            or is_time
            or is_decimal
            or pa.types.is_floating(own)
            or (pa.types.is_struct(own) and _is_written(own, node))
        ):
            return False
    return True


def _is_scalar(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _without_decimals(fields: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in fields if not pa.types.is_decimal(field.type)] or [("", pa.bool_())])


def _is_utc(node: Java) -> bool:
    zone = node.timeZoneId()
    return bool(zone.isDefined()) and str(zone.get()) in _UTC


def _literal(node: Java) -> Constant:
    value, own, kind = node.value(), _type(node), _arrow(node)
    if value is None:
        return Constant(pa.scalar(None, kind))
    if own == "string":
        return Constant(pa.scalar(str(value), kind))
    if own.startswith("decimal"):
        return Constant(pa.scalar(Decimal(str(value)), kind))
    if own in ("date", "timestamp"):
        return Constant(pa.scalar(int(value), pa.int32() if own == "date" else pa.int64()).cast(kind))
    if own in (*_INTEGERS, *_FLOATS, "boolean"):
        return Constant(pa.scalar(value, kind))
    raise LeftToSparkError(_short(node))


def _type(node: Java) -> str:
    return str(node.dataType().catalogString())


def _arrow(node: Java) -> pa.DataType:
    return arrow_schema(StructType().add("value", type_of(node.dataType()))).field(0).type


def _short(node: Java) -> str:
    return short(str(node.sql()))


_CALLED: dict[str, Callable[[_Site], Computed | None]] = {
    "Add": _arithmetic("+"),
    "Subtract": _arithmetic("-"),
    "Multiply": _arithmetic("*"),
    "Divide": _quotient("/", "double"),
    "Remainder": _quotient("%", "double", *_INTEGERS),
    "UnaryMinus": _signed("negative"),
    "Abs": _signed("abs"),
    "EqualTo": _comparison("="),
    "EqualNullSafe": _comparison("<=>"),
    "LessThan": _comparison("<"),
    "LessThanOrEqual": _comparison("<="),
    "GreaterThan": _comparison(">"),
    "GreaterThanOrEqual": _comparison(">="),
    "In": _comparison("in"),
    "And": _logic("and"),
    "Or": _logic("or"),
    "Not": _logic("not"),
    "IsNull": _logic("isnull"),
    "IsNotNull": _logic("isnotnull"),
    "IsNaN": _logic("isnan"),
    "CaseWhen": _choice("case"),
    "If": _choice("case"),
    "Coalesce": _choice("coalesce"),
    "Contains": _of_text("contains"),
    "StartsWith": _of_text("startswith"),
    "EndsWith": _of_text("endswith"),
    "Length": _of_text("length"),
    "Concat": lambda site: site.call("concat") if set(site.types) == {"string"} else None,
    "CreateNamedStruct": _struct,
    "StructsToJson": _to_json,
    "Cast": _cast,
}
"""What calls a function for an expression of Spark's, by its class; None for one that is not proved."""
