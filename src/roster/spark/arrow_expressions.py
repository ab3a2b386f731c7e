"""What Roster computes in its own tasks of expressions that Spark has analysed.

`test_arrow_path` holds each of them against Spark, types included: a program's others are left to Spark. Expressions of
the pipeline's own aggregates have no Spark in their tasks, take a few more functions, and never stop a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.computed_columns import COMPUTED, Call, Computed, Constant, Field, Given, Objects
from roster.pipeline.tasks.flat_json import is_flat
from roster.pipeline.tasks.json_values import JsonReader
from roster.spark.column_expressions import Java, class_of, members, short, type_of
from roster.state import decimals

_UTC = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "Zulu", "UCT", "+00:00")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DIGITS = dict(zip(_INTEGERS, (3, 5, 10, 19), strict=True))
_FLOATS = ("float", "double")
_NUMBERS = (*_INTEGERS, *_FLOATS)
_COMPARED = (*_NUMBERS, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
_IN_UTC = {("date", "timestamp"): "wider", ("timestamp", "date"): "day", ("timestamp", "bigint"): "seconds"}
_OPERATORS = ("Add", "Subtract", "Multiply", "Divide", "Mod")
_SAME = ("Alias", "ParseToTimestamp", "Nvl", "NullIf", "Between", *(f"Try{name}" for name in _OPERATORS))
"""Expressions that are another one: that below them, or in their place."""
_EAGER = ("CreateNamedStruct", "Concat", "EqualNullSafe")
"""Expressions all of whose arguments Spark computes."""
_NUMERIC = ("Add", "Subtract", "Multiply", "Divide", "Remainder")
"""Those of two, of which the other one is computed where the first is no null, and no zero that is divided by."""
_READING = (
    *("json.enablePartialResults", "json.enableExactStringParsing"),
    *("legacy.timeParserPolicy", "legacy.json.allowEmptyString.enabled"),
)
"""Settings of the session that decide what `from_json` makes of values."""
_WRITING = ("jsonGenerator.ignoreNullFields", "legacy.timeParserPolicy")
"""Those of `to_json`."""
_SHORTEST_FROM = 19
"""The version of Java from which on a number's text is the shortest."""


class LeftToSparkError(Exception):
    """A part of a plan is not among those proved; the text names it."""


class Scope:
    """The columns that expressions at one place of a plan are made of, by their ids; conditions of rows so far."""

    def __init__(
        self, of: Callable[[int], Computed | Objects], lower: Scope | None = None, *, stops: bool = True
    ) -> None:
        """lower: of the same rows; its conditions hold here, too. stops: False for null where Spark stops."""
        self._of, self._stops = of, stops
        self._known: dict[int, Computed | Objects] = {}
        self._common: dict[int, Computed] = {}
        self._fields: dict[tuple[Objects, str], Field] = {} if lower is None else lower._fields
        self.conditions: list[Computed] = [] if lower is None else lower.conditions

    @classmethod
    def given(cls, columns: Sequence[Java], *, stops: bool = True) -> Scope:
        """Return the scope of rows with columns by the names of these."""
        names = {int(column.exprId().id()): Given(str(column.name())) for column in columns}
        return cls(lambda number: names[number], stops=stops)

    def of(self, number: int) -> Computed | Objects:
        """Return the column of an id. Raises LeftToSparkError."""
        if number not in self._known:
            self._known[number] = self._of(number)
        return self._known[number]

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

        return Scope(of, self, stops=self._stops)

    def computed(self, expression: Java) -> Computed:
        """Return what computes an expression. Raises LeftToSparkError for one that is not proved."""
        value = self._translated(expression)
        if isinstance(value, Objects) or (not self._stops and _fails(value)):
            raise LeftToSparkError(_short(expression))
        return value

    def _translated(self, node: Java) -> Computed | Objects:
        kind = class_of(node)
        if (part := _PARTS.get(kind)) is not None:
            return part(self, node)
        if kind in _SAME:
            return self._translated(node.child() if kind == "Alias" else node.replacement())
        if (made := _CALLED.get(kind) or (None if self._stops else _NEAR.get(kind))) is not None:
            children = members(node.children())
            arguments = tuple(self.computed(child) for child in children)
            types = [_type(child) for child in children]
            site = _Site(node, arguments, types, _type(node), _arrow(node), self._stops)
            if not (site.arguments and site.is_lazy) and (call := made(site)) is not None:
                return call
        raise LeftToSparkError(_short(node))

    def _with(self, node: Java) -> Computed | Objects:
        """Return an expression that uses others several times."""
        for named in members(node.defs()):
            self._common[int(named.id().id())] = self.computed(named.child())
        return self._translated(node.child())

    def _again(self, node: Java) -> Computed:
        return self._common[int(node.id().id())]

    def _column(self, node: Java) -> Computed | Objects:
        return self.of(int(node.exprId().id()))

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
        others = [field for field in fields if not pa.types.is_decimal(field.type)] or [("", pa.bool_())]
        is_plain = not any(pa.types.is_nested(field.type) for field in fields) and is_flat(pa.schema(others))
        of_whole = SparkSession.active().conf.get("spark.sql.columnNameOfCorruptRecord")
        is_usual = node.options().isEmpty() and of_whole not in fields.names and not _is_any_set(_READING)
        if not is_usual or not is_plain or (has_times and not _is_utc(node)):
            raise LeftToSparkError(_short(node))
        return Objects(self.computed(node.child()), JsonReader(fields))


_PARTS: dict[str, Callable[[Scope, Java], Computed | Objects]] = {
    "AttributeReference": Scope._column,
    "Literal": lambda _, node: _literal(node),
    "TypedNullLiteral": lambda _, node: Constant(pa.scalar(None, _arrow(node))),  # in PySpark 4.0 that of nullif()
    "With": Scope._with,
    "CommonExpressionRef": Scope._again,
    "GetStructField": Scope._field,
    "JsonToStructs": Scope._objects,
}
"""What makes columns, literals and other parts beside calls, by the kind of expression."""


@dataclass(frozen=True)
class _Site:
    """An expression with its arguments. types: of these, as `own` is the expression's, by Spark's names.

    stops: False for null where Spark stops.
    """

    node: Java
    arguments: tuple[Computed, ...]
    types: Sequence[str]
    own: str
    goal: pa.DataType
    stops: bool

    def call(self, function: str, *, can_fail: bool = False) -> Call:
        """Return the call of a function with all arguments."""
        return Call(function, self.arguments, self.goal, can_fail)

    def of_mode(self, mode: str, function: str, *, plain: str | None = None) -> Call:
        """Return the call of the function that stops at a value beyond the type, or makes null of it.

        plain: the function for LEGACY; None: the one that makes null.
        """
        if mode == "ANSI":
            return self.call(f"checked {function}", can_fail=True)
        return self.call(plain if plain is not None and mode == "LEGACY" else f"try {function}")

    @property
    def mode(self) -> str:
        """What Spark does at a value beyond the type: ANSI stops, LEGACY goes on, TRY makes null of it."""
        return str(self.node.evalMode().toString()) if self.stops else "TRY"

    @property
    def is_lazy(self) -> bool:
        """True if Spark may not come to an argument that fails, as another one decides: of quotients the second."""
        kind = class_of(self.node)
        first, *later = reversed(self.arguments) if kind in ("Divide", "Remainder") else self.arguments
        is_sure = kind in _EAGER or (
            kind in _NUMERIC and isinstance(first, Constant) and first.value.as_py() not in (0, None)
        )
        return not is_sure and any(map(_fails, later))


def _arithmetic(function: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        if site.own in _FLOATS and set(site.types) == {site.own}:
            return site.call(function)
        if site.own in _INTEGERS and set(site.types) == {site.own}:
            return site.of_mode(site.mode, function, plain=function)
        return _of_decimals(function, site)

    return called


def _of_decimals(function: str, site: _Site) -> Call | None:
    """Return the call of an operator of decimals whose results have the digits that Spark says."""
    if not all(kind.startswith("decimal") for kind in (site.own, *site.types)):
        return None
    nothing = [pa.array([], decimals.type_of_name(kind)) for kind in site.types]
    is_same = COMPUTED[f"try {function}"](*nothing).type == site.goal
    return site.of_mode(site.mode, function) if is_same else None


def _signed(function: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        if site.own in _INTEGERS:
            mode = "TRY" if not site.stops else "ANSI" if site.node.failOnError() else "LEGACY"
            return site.of_mode(mode, function, plain=function)
        is_exact = site.own in _FLOATS or site.own.startswith("decimal")
        return site.call(function) if is_exact else None

    return called


def _quotient(function: str, *kinds: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        if site.own not in kinds:
            return _of_decimals(function, site)
        by = site.arguments[1]
        is_never_zero = isinstance(by, Constant) and by.value.as_py() not in (0, None)
        return site.of_mode("TRY" if is_never_zero else site.mode, function)

    return called


def _comparison(function: str) -> Callable[[_Site], Call | None]:
    return lambda site: site.call(function) if len(set(site.types)) == 1 and _is_compared(site.types[0]) else None


def _logic(function: str) -> Callable[[_Site], Call | None]:
    return lambda site: site.call(function)


def _choice(function: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        is_proved = _is_compared(site.own) or not site.stops
        return site.call(function) if is_proved else None

    return called


def _unless(site: _Site) -> Call:
    condition, value = site.arguments
    return Call("case", (condition, Constant(pa.scalar(None, site.goal)), value), site.goal)


def _of_text(function: str) -> Callable[[_Site], Call | None]:
    def called(site: _Site) -> Call | None:
        is_fixed = all(isinstance(argument, Constant) for argument in site.arguments[1:])
        return site.call(function) if is_fixed and set(site.types) == {"string"} else None

    return called


def _whole(function: str) -> Callable[[_Site], Computed | None]:
    def called(site: _Site) -> Computed | None:
        if site.types == ["double"]:
            return site.call(function)
        return site.arguments[0] if site.types == ["bigint"] else None

    return called


def _of_doubles(function: str) -> Callable[[_Site], Call | None]:
    return lambda site: site.call(function) if set(site.types) == {"double"} else None


def _struct(site: _Site) -> Call | None:
    return Call("struct", site.arguments[1::2], site.goal) if site.arguments else None


def _to_json(site: _Site) -> Call | None:
    is_usual = site.node.options().isEmpty() and not _is_any_set(_WRITING)
    is_proved = is_usual and _is_written(_arrow(site.node.child()), site.node)
    return site.call(f"to_json{_of_java()}") if is_proved else None


def _cast(site: _Site) -> Computed | None:
    value, (given,), own, goal = site.arguments[0], site.types, site.own, site.goal
    if given == own:
        return value
    if given == "void":
        return Constant(pa.scalar(None, goal))
    if (number := _whole_number(value, site)) is not None:
        return Constant(pa.scalar(Decimal(number), goal))
    if _is_wider(given, own):
        return site.call("wider")
    if own in _FLOATS and given.startswith("decimal"):
        return site.call(f"try {own}")
    if own == "string" and given in ("binary", "boolean", *_INTEGERS, *_FLOATS):
        return site.call(f"number text{_of_java()}" if given in _FLOATS else "text")
    if (given, own) in _IN_UTC:
        return site.call(_IN_UTC[given, own]) if _is_utc(site.node) else None
    if (given, own) == ("string", "timestamp"):
        return site.call("time", can_fail=True) if site.mode == "ANSI" and _is_utc(site.node) else None
    if own == "boolean" and given in (*_INTEGERS, *_FLOATS):
        return site.call("wider")
    return site.of_mode(site.mode, own.split("(")[0]) if site.mode != "LEGACY" and _is_read(given, own, site) else None


def _whole_number(value: Computed, site: _Site) -> int | None:
    """Return the number of a cast of a whole one that a decimal has room for, else None."""
    if not (isinstance(value, Constant) and site.types[0] in _INTEGERS and site.own.startswith("decimal")):
        return None
    number: int | None = value.value.as_py()
    return number if number is not None and abs(number) < 10 ** _digits(site.own)[0] else None


def _is_read(given: str, own: str, site: _Site) -> bool:
    """Return True if a value may say none of the other type, and the others are proved."""
    if own.startswith("decimal"):
        is_number = given in _INTEGERS or given.startswith("decimal")
        return is_number or (not site.stops and given in (*_FLOATS, "string"))
    if given.startswith("decimal"):
        return own in _INTEGERS
    return (given in _NUMBERS and own in _INTEGERS) or (given == "string" and own in _NUMBERS)


def _is_wider(given: str, own: str) -> bool:
    """Return True if a type has all values of another one, or those next to them."""
    if given in _NUMBERS and own in _NUMBERS:
        return _NUMBERS.index(given) < _NUMBERS.index(own) or (given, own) == ("double", "float")
    if own.startswith("decimal"):
        whole, scale = _digits(own)
        given_whole, given_scale = (_DIGITS[given], 0) if given in _DIGITS else _digits(given)
        return given_whole <= whole and given_scale <= scale
    return (given, own) == ("string", "binary") or (given == "boolean" and own in _NUMBERS)


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
    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_date32)
    return all(
        any(is_kind(field.type) for is_kind in plain)
        or (pa.types.is_timestamp(field.type) and field.type.tz is not None and _is_utc(node))
        or (pa.types.is_decimal(field.type) and field.type.scale <= 6)
        or _is_written(field.type, node)
        for field in kind
    )


def _is_any_set(settings: Sequence[str]) -> bool:
    """Return True if the session has a value of its own for one of these settings."""
    session: Java = SparkSession.active()
    return any(session._jsparkSession.sessionState().conf().contains(f"spark.sql.{name}") for name in settings)


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
    if own in ("date", "timestamp", "timestamp_ntz"):
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
    "NullIfResult": _unless,
    "Contains": _of_text("contains"),
    "StartsWith": _of_text("startswith"),
    "EndsWith": _of_text("endswith"),
    "Length": _of_text("length"),
    "StringTrim": lambda site: site.call("trim") if site.types == ["string"] else None,
    "Concat": lambda site: site.call("concat") if set(site.types) == {"string"} else None,
    "CreateNamedStruct": _struct,
    "StructsToJson": _to_json,
    "Cast": _cast,
}
"""What calls a function for an expression of Spark's, by its class; None for one that is not proved."""
_NEAR: dict[str, Callable[[_Site], Computed | None]] = {
    "Ceil": _whole("ceil"),
    "Floor": _whole("floor"),
    **{kind: _of_doubles(name) for kind, name in (("Sqrt", "sqrt"), ("Exp", "exp"), ("Log", "ln"), ("Pow", "power"))},
    "Lower": _of_text("lower"),
    "Upper": _of_text("upper"),
    "Like": _of_text("like"),
}
"""Those of aggregates alone: some of their values are only near Spark's."""
