"""Code of the user's that keeps state for each key, found in a frame's plan: the object or function as it was given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from roster.pipeline.errors import PipelineError
from roster.spark.column_expressions import Java, class_of, members, type_of
from roster.spark.dataframes.operators import Kept, Makers, Rows, watermark_of
from roster.spark.dataframes.plan import FIELD, Node, frame_of, projected
from roster.spark.stateful_operators import Stateful

_IN_PANDAS = (
    PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF,
    PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_INIT_STATE_UDF,
)


@dataclass(frozen=True)
class _Given:
    """The rows that code gets, their keys, its results' columns, and arguments that follow from the plan."""

    rows: Rows
    keys: tuple[str, ...]
    output: StructType
    arguments: dict[str, Any]

    @classmethod
    def of(cls, node: Node, keys: Sequence[Java], columns: Sequence[Java], mode: str) -> _Given:
        """`keys` and `columns` are attributes. Raises PipelineError for names that do not tell them apart."""
        by_name = {str(column.name()): column for column in columns}
        names = tuple(str(key.name()) for key in keys)
        if missing := [name for name in names if name not in by_name]:
            fix = "Make it a column by withColumn() in front of groupBy()"
            raise PipelineError(f"the key {missing[0]!r} is no column of the rows", field=FIELD, fix=fix)
        if len(by_name) < len(columns):
            raise PipelineError("two columns of one name in front of state", field=FIELD, fix="Rename one")
        rows = Rows()
        for name in names:
            rows.add_key(name, by_name[name])
        if rows.text:
            fix = "Make text or a whole number of it in front of groupBy()"
            raise PipelineError(f"{next(iter(rows.text))} is a key that is no whole number", field=FIELD, fix=fix)
        rows.columns = by_name
        arguments: dict[str, Any] = {"store": "", "migrate": None, "event_time": None, "delay": "0 seconds"}
        if "event" in mode.lower():
            watermark = watermark_of(node.children[0])
            times = (
                []
                if watermark is None
                else [name for column in watermark[0] if (name := str(column.name())) in by_name]
            )
            if watermark is None or not times:
                fix = "Keep the column of withWatermark() up to there"
                raise PipelineError("timers of event time without a watermark", field=FIELD, fix=fix)
            arguments |= {"event_time": times[0], "delay": watermark[1]}
        output = StructType()
        for column in members(node.java.output()):
            output.add(str(column.name()), type_of(column.dataType()))
        return cls(rows, names, output, arguments)

    def kept(self, node: Node, stateful: Stateful, method: str, kind: str) -> Kept:
        """Return the operator."""

        def outputs(by_name: dict[str, Java]) -> list[tuple[Java, str, Java]]:
            return [(by_name[column.name()], column.name(), column.exprId()) for column in members(node.java.output())]

        parts = node, node.children[0], self.rows, self.keys, stateful, lambda _: self.output, outputs, kind
        return Kept(*parts, text=f"{method} by {', '.join(self.keys)}")


def _processor(node: Node, root: Node, above: Sequence[Node], mode: str, jvm: Java) -> Kept:
    from roster.spark.processor import declare  # noqa: PLC0415 - brings pandas

    columns, count = members(node.children[0].java.output()), int(node.java.groupingAttributesLen())
    time_mode = {"NoTime": "None"}.get(name := class_of(node.java.timeMode()).rstrip("$"), name)
    given, function = _Given.of(node, columns[:count], columns[count:], time_mode), node.java.functionExpr()
    stateful = declare.processing(
        SparkSession.active(),
        _code(function).__self__._stateful_processor,
        given.keys,
        given.output,
        time_mode=time_mode,
        in_pandas=int(function.evalType()) in _IN_PANDAS,
        initial_state=_initial(node, given.keys, jvm) if node.java.hasInitialState() else None,
        **given.arguments,
    )
    return given.kept(node, stateful, "transformWithState", "processor")


def _initial(node: Node, keys: Sequence[str], jvm: Java) -> DataFrame:
    """Return the rows of the initial state. Raises PipelineError if they are grouped by columns of other names."""
    rows = node.children[1].java
    columns, count = members(rows.output()), int(node.java.initGroupingAttrsLen())
    by, given = columns[:count], columns[count:]
    if [str(key.name()) for key in by] != list(keys) or not all(any(map(key.semanticEquals, given)) for key in by):
        fix = f"Give its columns the names {', '.join(keys)}, and group it by these"
        raise PipelineError("the initial state is grouped by other columns than the rows", field=FIELD, fix=fix)
    return frame_of(
        projected([(column, str(column.name()), None) for column in given], rows, jvm), SparkSession.active()
    )


def _groups(node: Node, root: Node, above: Sequence[Node], mode: str, jvm: Java) -> Kept:
    from roster.spark.processor import declare  # noqa: PLC0415 - as above

    timeout = class_of(node.java.timeout()).rstrip("$")
    columns = members(node.children[0].java.output())
    given = _Given.of(node, members(node.java.groupingAttributes()), columns, timeout)
    stateful = declare.group_state(
        SparkSession.active(),
        _code(node.java.functionExpr()),
        given.keys,
        given.output,
        StructType.fromJson(json.loads(node.java.stateType().json())),
        timeout=timeout,
        **given.arguments,
    )
    return given.kept(node, stateful, "applyInPandasWithState", "groups")


def _code(function: Java) -> Any:
    """Return what the user gave, of the pickled command of a function."""
    pickle: Any = cloudpickle
    command = pickle.loads(bytes(int(byte) & 255 for byte in function.func().command().mkString(",").split(",")))
    if not isinstance(command, tuple):  # a large one is a broadcast variable
        command = pickle.loads(command.value)
    return command[0]


USER_CODE: Makers = {
    "TransformWithStateInPySpark": _processor,
    "TransformWithStateInPandas": _processor,
    "FlatMapGroupsInPandasWithState": _groups,
}
"""What makes operators of nodes with code."""
