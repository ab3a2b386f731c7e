"""Joins of two streams in a frame's plan: keys by equality, bounds of time, and the rows of both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from roster.pipeline.errors import PipelineError
from roster.spark.column_expressions import Java, class_of, literal_of, members, text_of
from roster.spark.dataframes.operators import (
    Kept,
    Makers,
    Rows,
    results_of,
    used_above,
    watermark_of,
)
from roster.spark.dataframes.plan import FIELD, Node, conjuncts
from roster.spark.dataframes.windows import bounds_of, is_window, longest
from roster.state.stream_join import IS_OTHER, OTHER, StreamJoin

_TIME = "time of the row"
_ORDERED = {
    "LessThan": (True, 1),
    "LessThanOrEqual": (True, 0),
    "GreaterThan": (False, 1),
    "GreaterThanOrEqual": (False, 0),
}
"""By the kind of comparison, whether it is less, and the microseconds from its limit to the first that it takes."""
_ADDING = ("TimeAdd", "TimestampAddInterval", "DatetimeSub", "Cast")
"""Kinds of expressions that add to a time; a cast to the same type adds nothing."""
_MONTHS_APART = (datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC))
"""Times at which a bound of months or of days with daylight saving is not the same."""
_HOW = {"Inner": "inner", "LeftOuter": "left", "RightOuter": "left", "FullOuter": "full", "LeftSemi": "semi"}
"""By Spark's name of a kind of join, Roster's; the sides of a right outer one change places."""


@dataclass
class _Condition:
    """What a join goes by: pairs of keys, and the bounds of the second side's time less the first one's.

    times: of each side, an attribute, a window for its end. early: how much earlier a row may be than that end.
    """

    keys: list[tuple[Java, Java]]
    times: tuple[Java, Java]
    low: int
    high: int
    rest: list[Java]
    early: timedelta


def _condition(node: Node, sides: Sequence[Node], jvm: Java) -> _Condition:
    """Return what a join of these sides goes by. Raises PipelineError for one without keys or bounds of time."""
    keys, rest = list[tuple[Java, Java]](), list[Java]()
    lows, highs, early = list[int](), list[int](), timedelta()
    times: tuple[Java, Java] | None = None
    windows: tuple[Java, Java] | None = None
    for part in parts_of(node, jvm):
        if (pair := in_order(part, sides)) is None:
            rest.append(part)
        elif class_of(part) == "EqualTo" and all(map(is_window, pair)):
            windows = pair
            keys += zip(*(bounds_of(window, jvm) for window in pair), strict=True)
        elif class_of(part) == "EqualTo" and not _is_time_of(pair, sides):
            keys.append(pair)
        elif (bounds := _bound(part, pair, jvm)) is not None and times in (None, bounds[0]):
            times, low, high = bounds
            lows += [] if low is None else [low]
            highs += [] if high is None else [high]
        else:
            rest.append(part)
    if windows is not None and times is None:
        times, lows, highs = windows, [0], [0]
        early = max(longest(window, side) for window, side in zip(windows, sides, strict=True))
    if not keys or times is None or not lows or not highs:
        lacking = "no columns that are equal" if not keys else "not both bounds of the time between their rows"
        fix = "For example a.key = b.key and b.time >= a.time and b.time <= a.time + interval 1 hour"
        raise PipelineError(f"a join of two streams has {lacking}", field=FIELD, fix=fix)
    return _Condition(keys, times, max(lows), min(highs), rest, early)


def parts_of(node: Node, jvm: Java) -> Iterator[Java]:
    """Yield the conditions of a join that AND joins; BETWEEN is two of them."""
    expressions, condition = jvm.org.apache.spark.sql.catalyst.expressions, node.java.condition()
    for part in conjuncts(condition.get()) if condition.isDefined() else ():
        if class_of(part) == "Between":
            yield expressions.GreaterThanOrEqual(part.input(), part.lower())
            yield expressions.LessThanOrEqual(part.input(), part.upper())
        else:
            yield part


def in_order(part: Java, sides: Sequence[Node]) -> tuple[Java, Java] | None:
    """Return the parts of a comparison that are of the first and of the second side, None for others."""
    children = members(part.children())
    if len(children) != 2:
        return None
    of_sides = [{column.exprId().id() for column in members(side.java.output())} for side in sides]
    references = [{column.exprId().id() for column in members(child.references().toSeq())} for child in children]
    for order in ((0, 1), (1, 0)):
        if all(references[place] and references[place] <= own for place, own in zip(order, of_sides, strict=True)):
            return children[order[0]], children[order[1]]
    return None


def _is_time_of(pair: tuple[Java, Java], sides: Sequence[Node]) -> bool:
    """Return True for two columns of event time."""
    watermarks = [watermark_of(side) for side in sides]
    return all(
        watermark is not None and any(column.semanticEquals(time) for time in watermark[0])
        for column, watermark in zip(pair, watermarks, strict=True)
    )


def _bound(part: Java, pair: tuple[Java, Java], jvm: Java) -> tuple[tuple[Java, Java], int | None, int | None] | None:
    """Return the times that a comparison is of, and the least and the most of the second less the first.

    None for another comparison.
    """
    first, second = (_offset(operand, jvm) for operand in pair)
    if first is None or second is None:
        return None
    kind, times, apart = class_of(part), (first[0], second[0]), first[1] - second[1]
    if kind == "EqualTo":
        return times, apart, apart
    if kind not in _ORDERED:
        return None
    is_less, more = _ORDERED[kind]
    is_least = is_less == members(part.children())[0].semanticEquals(pair[0])
    return (times, apart + more, None) if is_least else (times, None, apart - more)


def _offset(expression: Java, jvm: Java) -> tuple[Java, int] | None:
    """Return the column of time that an expression is of, and what it adds in microseconds; None for another one."""
    column = expression
    while class_of(column) in _ADDING:
        column, *others = members(_as_run(column).children())
        if not all(other.foldable() for other in others):
            return None
    kind = expression.dataType().typeName()
    if class_of(column) != "AttributeReference" or column.dataType().typeName() != kind or "timestamp" not in kind:
        return None
    added = set[int]()
    for moment in _MONTHS_APART:
        micros = int(moment.timestamp()) * 1_000_000
        value = jvm.org.apache.spark.sql.catalyst.expressions.Literal(micros, column.dataType())
        added.add(int(_with_value(expression, column, value, jvm).eval(None)) - micros)
    return (column, added.pop()) if len(added) == 1 else None


def _as_run(expression: Java) -> Java:
    """Return what Spark runs in place of an expression."""
    return expression.replacement() if class_of(expression) == "DatetimeSub" else expression


def _with_value(expression: Java, column: Java, value: Java, jvm: Java) -> Java:
    """Return an expression with a value in place of a column."""
    if expression.semanticEquals(column):
        return value
    expression = _as_run(expression)
    children = [_with_value(child, column, value, jvm) for child in members(expression.children())]
    return expression.withNewChildren(jvm.PythonUtils.toSeq(children)) if children else expression


def join(node: Node, root: Node, above: Sequence[Node], mode: str, jvm: Java) -> Kept:
    """Return the operator: the first side is the one whose rows all stay in an outer join. Raises PipelineError."""
    kind = class_of(node.java.joinType()).rstrip("$")
    if kind not in _HOW:
        fix = "Use an inner, an outer or a left semi join"
        raise PipelineError(f"a join of two streams of the kind {kind}", field=FIELD, fix=fix)
    name = str(node.java.joinType().sql()).lower()
    sides = node.children[::-1] if kind == "RightOuter" else node.children
    watermarks = [watermark_of(side) for side in sides]
    condition = _condition(node, sides, jvm)
    if any(
        watermark is None or not _has(watermark[0], time)
        for watermark, time in zip(watermarks, condition.times, strict=True)
    ):
        fix = "Call withWatermark() with the column that bounds the join, on both sides"
        raise PipelineError("a join of two streams without the time of a watermark", field=FIELD, fix=fix)
    if condition.rest and kind != "Inner":
        conditions = " and ".join(map(text_of, condition.rest))
        fix = "Filter the rows of a side in front of the join, or use an inner join"
        raise PipelineError(
            f"a join of two streams that is {name} with the condition {conditions}", field=FIELD, fix=fix
        )
    rows, names = _rows(condition, sides, used_above(root, above, condition.rest), jvm)
    delay = max(delay for _, delay in filter(None, watermarks)) + condition.early
    low, high = timedelta(microseconds=condition.low), timedelta(microseconds=condition.high)
    if low > high:
        raise PipelineError("the bounds of time of a join of two streams exclude each other", field=FIELD)
    within = max(abs(low), abs(high), timedelta(milliseconds=1))
    keys = tuple(rows[0].columns)[: len(condition.keys)]
    operator = StreamJoin(keys, (_TIME, _TIME), tuple(names[1]), within, delay, _HOW[kind], (low, high))
    name_of = {number: name for names_of_side in names for name, number in names_of_side.items()}
    made = [column for column in members(node.java.output()) if column.exprId().id() in name_of]

    def outputs(by_name: dict[str, Java]) -> list[tuple[Java, str, Java]]:
        return [(by_name[name_of[own.exprId().id()]], own.name(), own.exprId()) for own in made]

    columns = _with_other_side(rows, names, jvm)
    apart = " to ".join(f"{abs(bound)} {'earlier' if bound < timedelta() else 'later'}" for bound in (low, high))
    text = f"{name} join by {', '.join(keys)}, the other row's time from {apart}, final {delay} later"
    return Kept(
        *(node, node, rows[0], keys, operator, partial(results_of, operator), outputs, "joined"),
        text=text,
        sides=list(zip(sides, columns, strict=True)),
        rest=condition.rest,
        delay=delay + within,
    )


def _has(times: Sequence[Java], time: Java) -> bool:
    return any(column.semanticEquals(time) for column in times)


def _rows(
    condition: _Condition, sides: Sequence[Node], needed: set[int], jvm: Java
) -> tuple[tuple[Rows, Rows], tuple[dict[str, int], dict[str, int]]]:
    """Return the columns of each side: keys and time, which both have, then its own; and the ids of these by name."""
    first, second = Rows(), Rows()
    for pair in condition.keys:
        second.columns[first.add_key(f"key {text_of(pair[0])}", pair[0])] = pair[1]
    names: tuple[dict[str, int], dict[str, int]] = {}, {}
    for rows, time in zip((first, second), condition.times, strict=True):
        rows.columns[_TIME] = bounds_of(time, jvm)[1] if is_window(time) else time
    for rows, side, ids in zip((first, second), sides, names, strict=True):
        for column in members(side.java.output()):
            if (number := column.exprId().id()) in needed:
                name = rows.free(str(column.name()), (*first.columns, *second.columns))
                rows.columns[name], ids[name] = column, number
    return (first, second), names


def _with_other_side(
    rows: tuple[Rows, Rows], names: tuple[dict[str, int], dict[str, int]], jvm: Java
) -> list[dict[str, Java]]:
    """Return the columns of both sides for the rows of each: those of the other side are null."""
    literal: Java = jvm.org.apache.spark.sql.catalyst.expressions.Literal
    filled = []
    for number, own in enumerate(rows):
        columns = {name: value for name, value in own.columns.items() if name not in names[number]}
        for side, prefix in enumerate(("", OTHER)):
            for name in names[side]:
                value = rows[side].columns[name]
                columns[prefix + name] = value if side == number else literal.create(None, value.dataType())
        columns[IS_OTHER] = literal_of(bool(number), "BooleanType", jvm)
        filled.append(columns)
    return filled


JOINS: Makers = {"Join": join}
"""What makes an operator of a join of two streams."""
