"""Windows in a frame's plan: their lengths and times, of the arithmetic that Spark has made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from py4j.java_gateway import get_field

from roster.pipeline.errors import PipelineError
from roster.spark.column_expressions import Java, class_of, members
from roster.spark.dataframes.plan import FIELD, Node, all_of
from roster.state.windows import SessionWindow, Window

SESSION = "spark.sessionWindow"
"""Mark in the metadata of sessions."""
_CONVERSION = "PreciseTimestampConversion"


def is_window(expression: Java) -> bool:
    """Return True for a column that Spark has made of window() or session_window()."""
    if class_of(expression) != "AttributeReference":
        return False
    marks = json.loads(expression.metadata().json())
    return SESSION in marks or "spark.timeWindow" in marks


def bounds_of(window: Java, jvm: Java) -> tuple[Java, Java]:
    """Return the start and the end of a window."""
    field_of, no_name = jvm.org.apache.spark.sql.catalyst.expressions.GetStructField, jvm.scala.Option.apply(None)
    return field_of(window, 0, no_name), field_of(window, 1, no_name)


def made_at(window: Java, child: Node) -> tuple[Java, Node] | None:
    """Return the struct that Spark makes a window of right below a groupBy(), and its node; None for an earlier one."""
    node = child
    while (struct := _struct_of(node, window.exprId().id())) is None:
        if node.kind != "Filter":
            return None
        node = node.children[0]
    return struct, node


def longest(window: Java, child: Node) -> timedelta:
    """Return how much earlier than its end a row of an earlier window may be; those of an aggregate are at the end.

    Raises PipelineError for a window that is not found.
    """
    own, node = window.exprId().id(), child
    while node.kind != "Aggregate":
        if (struct := _struct_of(node, own)) is not None:
            return _sizes(_parts_of(members(struct.children())[3]))[0]
        aliases = members(node.java.projectList()) if node.kind == "Project" else []
        names = [alias.child() for alias in aliases if class_of(alias) == "Alias" and alias.exprId().id() == own]
        own = next((name.exprId().id() for name in names if class_of(name) == "AttributeReference"), own)
        outputs = [(child, members(child.java.output())) for child in node.children if child.is_streaming]
        streaming = [child for child, columns in outputs if any(column.exprId().id() == own for column in columns)]
        if len(streaming) != 1:
            fix = "Write window(...) into groupBy()"
            raise PipelineError(f"the window {window.name()} is not made in groupBy()", field=FIELD, fix=fix)
        node = streaming[0]
    return timedelta()


def time_in(struct: Java) -> Java:
    """Return the time that a window is of."""
    times = [time.child() for time in all_of(members(struct.children())[1]) if class_of(time) == _CONVERSION]
    return next(time for time in times if time.dataType().typeName().startswith("timestamp"))


def window_of(struct: Java, column: str, delay: timedelta, jvm: Java) -> tuple[Window | SessionWindow, str]:
    """Return the window of a struct, and its description. column: of times. Raises PipelineError."""
    end = members(struct.children())[3]
    parts = _parts_of(end)
    if not any(part["class"].endswith(".Remainder") for part in parts):
        gap = _gap(end, jvm)
        return SessionWindow(
            column, gap, delay
        ), f"sessions of {column}, until {gap} without a row, final {delay} later"
    size, hop, begin = _sizes(parts)
    since = f", from {begin % hop} on" if begin % hop else ""
    shown = f"windows of {column}, {size} long, every {hop}{since}, final {delay} later"
    return Window(column, size, None if hop == size else hop, delay, begin % hop), shown


def _gap(end: Java, jvm: Java) -> timedelta:
    """Return the gap of a session, of the expression of its end. Raises PipelineError for one that rows decide."""
    literals = [part for part in all_of(end) if class_of(part) == "Literal"]
    intervals = [part for part in literals if part.dataType().typeName() in ("string", "interval")]
    if len(literals) != 1 or len(intervals) != 1:
        raise PipelineError("a session's gap that rows decide", field=FIELD, fix="Use one of fixed length")
    value = intervals[0].value()
    if intervals[0].dataType().typeName() == "string":
        value = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.stringToInterval(value)
    return time_of(value)


def _struct_of(node: Node, own: int) -> Java:
    """Return the struct that a node makes a window of, None if it does not make this one."""
    if node.kind == "Project":
        for alias in members(node.java.projectList()):
            if (
                class_of(alias) == "Alias"
                and alias.exprId().id() == own
                and class_of(alias.child()) == "CreateNamedStruct"
            ):
                return alias.child()
    if node.kind == "Expand":
        for place, column in enumerate(members(node.java.output())):
            if column.exprId().id() == own:
                first = node.java.projections().apply(0).apply(place)
                return next((part for part in all_of(first) if class_of(part) == "CreateNamedStruct"), None)
    return None


def _parts_of(end: Java) -> list[dict[str, Any]]:
    """Return the arithmetic that Spark makes of a window's end, each expression in front of its children.

    It is read as JSON: a call into the JVM for each part would cost a start its time.
    """
    return list(json.loads(end.toJSON()))


def _sizes(parts: Sequence[Mapping[str, Any]]) -> tuple[timedelta, timedelta, timedelta]:
    """Return length, slide and start time of a window, of the parts of its end."""
    numbers: dict[str, list[int]] = {"Add": [], "Remainder": [], "Subtract": []}
    for place, part in enumerate(parts):
        kind = part["class"].rpartition(".")[2]
        if kind in numbers and "value" in (number := parts[_behind(parts, place + 1)]):
            numbers[kind].append(int(number["value"]))
    begin = numbers["Subtract"][-1] if numbers["Subtract"] else 0
    size, hop = numbers["Add"][0], numbers["Remainder"][0]
    return timedelta(microseconds=size), timedelta(microseconds=hop), timedelta(microseconds=begin)


def _behind(parts: Sequence[Mapping[str, Any]], place: int) -> int:
    """Return the place behind an expression and all in it."""
    behind = place + 1
    for _ in range(parts[place]["num-children"]):
        behind = _behind(parts, behind)
    return behind


def time_of(interval: Java) -> timedelta:
    """Return an interval as a timedelta. Raises PipelineError for months."""
    months, days, micros = (get_field(interval, name) for name in ("months", "days", "microseconds"))
    if months:
        raise PipelineError("months have no fixed length", field=FIELD, fix="Say it in days")
    return timedelta(days=days, microseconds=micros)
