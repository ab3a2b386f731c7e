"""Joins and unions of windowed totals of several streams: one aggregate over the rows of all.

A group has the functions of each side, over this side's rows alone, and whether there are any. Sides are joined by all
that they are grouped by. So neither needs a state of its own, and rows find their groups by one topic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from roster.pipeline.errors import PipelineError
from roster.spark.column_expressions import Java, class_of, literal_of, members
from roster.spark.dataframes.joins import in_order, join, kind_of, parts_of
from roster.spark.dataframes.operators import (
    UNION_OF_TOTALS,
    Kept,
    Makers,
    Rows,
    Totals,
    aggregate_below,
    replaced,
    unnamed,
    with_types,
)
from roster.spark.dataframes.plan import FIELD, Node
from roster.state.aggregate_functions import ALL_ROWS, IGNORING_NULLS, Aggregate, Kind
from roster.state.windows import END, START, Window, WindowedAggregation

_TIME = "time of the row"
_SIDE = "side"
"""Key that keeps sides apart in a union, and in a join where another key is null: nulls are not equal."""
_STAYS = {"Inner": (), "LeftOuter": (0,), "RightOuter": (1,), "FullOuter": (0, 1), "LeftSemi": ()}
"""By the kind of join, the sides whose groups stay where the other one has not the group."""
_Outputs = Callable[[dict[str, Java]], tuple[list[Java], list[Java]]]
"""Makes a node's columns and conditions of attributes of the results by name."""


@dataclass(frozen=True)
class _Side:
    """The totals of one side, and the nodes above them from below. prefix: of its columns and functions."""

    node: Node
    totals: Totals
    above: Sequence[Node]
    prefix: str

    @classmethod
    def all_of(cls, node: Node, mode: str, jvm: Java) -> list[Self]:
        """Return the sides of a join or a union, [] if one is not of totals. Raises PipelineError."""
        chains = [aggregate_below(child) for child in node.children]
        return [
            cls(chain[0], Totals.of(chain[0], mode, jvm), chain[1:], f"{number}: ")
            for number, chain in enumerate(chains if all(chains) else [])
        ]

    @property
    def rows(self) -> str:
        """The column that is true for rows of this side, else null, and its largest value in a group."""
        return f"{self.prefix}rows of it"

    def group_of(self, column: Java) -> int | None:
        """Return the place in groupBy() of what a column of the side is, None for another column."""
        number = column.exprId().id()
        for node in reversed(self.above):
            for alias in members(node.java.projectList()) if node.kind == "Project" else ():
                if alias.exprId().id() == number and class_of(alias) == "Alias":
                    if class_of(alias.child()) != "AttributeReference":
                        return None
                    number = alias.child().exprId().id()
                    break
        output = next(output for output in self.totals.outputs if output.exprId().id() == number)
        expression, groups = unnamed(output), enumerate(self.totals.group.expressions)
        return next((place for place, group in groups if group.semanticEquals(expression)), None)

    def functions(self) -> dict[str, Aggregate]:
        """Return the functions over rows of all sides. Raises PipelineError for one that counts nulls."""

        def of_side(function: Aggregate) -> Aggregate:
            if function.kind in IGNORING_NULLS:
                problem = f"{function.kind.value}({function.column}) in front of a join or a union"
                raise PipelineError(problem, field=FIELD, fix="Let it ignore nulls")
            column = self.rows if function.column == ALL_ROWS else self.prefix + function.column
            return replace(function, column=column, by=None if function.by is None else of_side(function.by))

        own = {self.prefix + name: of_side(function) for name, function in self.totals.functions.items()}
        return {**own, self.rows: Aggregate(Kind.MAX, self.rows)}

    def columns(self, jvm: Java) -> dict[str, Java]:
        """Return what the functions take."""
        columns = {self.prefix + name: value for name, value in self.totals.group.rows.columns.items()}
        return {**columns, self.rows: literal_of(True, "BooleanType", jvm)}

    def of_results(
        self, by_name: dict[str, Java], keys: Mapping[str, str], jvm: Java
    ) -> tuple[list[tuple[Java, Java]], list[Java]]:
        """Return the side's columns, each with its value, and its conditions. keys: its own ones by the results'."""
        own = {name: by_name[self.prefix + name] for name in self.totals.functions}
        own |= {name: by_name[keys.get(name, name)] for name in (*self.totals.group.keys, START, END)}
        outputs, conditions = [value for value, _, _ in self.totals.of_results(own, jvm)], list[Java]()
        values = list(zip(members(self.node.java.output()), outputs, strict=True))
        for node in self.above:
            if node.kind == "Filter":
                conditions.append(replaced(node.java.condition(), values, jvm))
            if node.kind == "Project":
                outputs = [replaced(unnamed(named), values, jvm) for named in members(node.java.projectList())]
                values = list(zip(members(node.java.output()), outputs, strict=True))
        return values, conditions


def _join(node: Node, root: Node, above: Sequence[Node], mode: str, jvm: Java) -> Kept:
    """Return the operator of a join of two streams, or of their totals. Raises PipelineError."""
    if not (sides := _Side.all_of(node, mode, jvm)):
        return join(node, root, above, mode, jvm)
    try:
        return _join_of_totals(node, sides, mode, jvm)
    except PipelineError as error:
        try:
            return join(node, root, above, mode, jvm)  # by times, as rows of other streams
        except PipelineError:
            raise error from None


def _join_of_totals(node: Node, sides: Sequence[_Side], mode: str, jvm: Java) -> Kept:
    """Return the operator of a join of totals. Raises PipelineError."""
    places, rest = list[tuple[int, ...]](), list[Java]()
    for part in parts_of(node, jvm):
        pair = in_order(part, node.children) if class_of(part) == "EqualTo" else None
        is_of_columns = pair is not None and all(class_of(own) == "AttributeReference" for own in pair)
        groups = [side.group_of(own) for side, own in zip(sides, pair or (), strict=True)] if is_of_columns else [None]
        if None in groups:
            rest.append(part)
        else:
            places.append(tuple(place for place in groups if place is not None))
    names = [side.totals.group.names for side in sides]
    if any(sorted(pair[number] for pair in places) != [*range(len(own))] for number, own in enumerate(names)):
        fix = "Join them by the window and all columns of both groupBy()"
        raise PipelineError("a join of totals by less than they are grouped by", field=FIELD, fix=fix)
    kind, has_filters = kind_of(node), any(below.kind == "Filter" for side in sides for below in side.above)
    if kind not in _STAYS or (kind != "Inner" and (rest or has_filters)):
        fix = "Use an inner join, or an outer or left semi one with conditions behind it"
        raise PipelineError(f"a join of totals of the kind {kind}", field=FIELD, fix=fix)
    pairs = [(left, right) for left, right in ((names[0][p], names[1][q]) for p, q in places) if left and right]
    # By the window alone: each side then has one key, which is the same for all rows.
    pairs = pairs or [(sides[0].totals.group.keys[0], sides[1].totals.group.keys[0])]
    keys = [{pair[number]: f"key {pair[0]}" for pair in pairs} for number in range(len(sides))]
    expressions: Java = jvm.org.apache.spark.sql.catalyst.expressions

    def outputs(by_name: dict[str, Java]) -> tuple[list[Java], list[Java]]:
        known, conditions = dict[int, Java](), list[Java]()
        for number, side in enumerate(sides):
            values, own = side.of_results(by_name, keys[number], jvm)
            is_there, may_lack = expressions.IsNotNull(by_name[side.rows]), 1 - number in _STAYS[kind]
            conditions += own if may_lack else [is_there, *own]
            for column, value in values:
                nothing = _null(value, jvm)
                known[column.exprId().id()] = expressions.If(is_there, value, nothing) if may_lack else value
        return [known[column.exprId().id()] for column in members(node.java.output())], conditions

    return replace(_kept(node, sides, keys, outputs, mode, jvm), kind="joined", rest=rest)


def _union(node: Node, root: Node, above: Sequence[Node], mode: str, jvm: Java) -> Kept:
    """Return the operator of a union of totals. Raises PipelineError."""
    sides, expressions = _Side.all_of(node, mode, jvm), jvm.org.apache.spark.sql.catalyst.expressions
    keys = [{name: f"{side.prefix}key {name}" for name in side.totals.group.keys} for side in sides]

    def outputs(by_name: dict[str, Java]) -> tuple[list[Java], list[Java]]:
        columns, conditions = list[Java](), list[Java]()
        for side, own_keys in zip(sides, keys, strict=True):
            values, own = side.of_results(by_name, own_keys, jvm)
            conditions += [expressions.Or(expressions.IsNull(by_name[side.rows]), condition) for condition in own]
            is_there, own = expressions.IsNotNull(by_name[side.rows]), [value for _, value in values]
            columns = [expressions.If(is_there, *both) for both in zip(own, columns, strict=True)] if columns else own
        return columns, conditions

    return _kept(node, sides, keys, outputs, mode, jvm)


def _kept(
    node: Node, sides: Sequence[_Side], keys: Sequence[Mapping[str, str]], outputs: _Outputs, mode: str, jvm: Java
) -> Kept:
    """Return the aggregate over rows of all sides. keys: what results call those of each. Raises PipelineError."""
    groups, is_final = [side.totals.group for side in sides], mode == "append"
    windows = [group.window for group in groups if isinstance(group.window, Window) and group.time is not None]
    if len(windows) < len(groups) or len({(window.size, window.hop, window.start) for window in windows}) > 1:
        fix = "Group all by the same window(...) behind withWatermark(), or write them to a topic, and read that"
        raise PipelineError("totals that are not of the same windows", field=FIELD, fix=fix)
    grace = max(window.grace for window in windows)
    own = [
        {own_keys[name]: group.rows.columns[name] for name in group.keys}
        for own_keys, group in zip(keys, groups, strict=True)
    ]
    empty = {name: _null(value, jvm) for columns in own for name, value in columns.items()}
    names = [*empty, _SIDE]
    empty |= {name: _null(value, jvm) for side in sides for name, value in side.columns(jvm).items()}
    columns = [
        {
            **empty,
            **of_side,
            **side.columns(jvm),
            _SIDE: _side_of(number, of_side, node, jvm),
            _TIME: side.totals.group.rows.columns[window.column],
        }
        for number, (side, of_side, window) in enumerate(zip(sides, own, windows, strict=True))
    ]
    functions = {name: function for side in sides for name, function in side.functions().items()}
    types = {side.prefix + name: kind for side in sides for name, kind in side.totals.types.items()}
    window = Window(_TIME, windows[0].size, windows[0].every, grace, windows[0].start)
    operator = WindowedAggregation(tuple(names), functions, window, is_final)
    text = {by[name]: kind for by, group in zip(keys, groups, strict=True) for name, kind in group.rows.text.items()}
    results, attributes = with_types(operator, types, groups[0].time), members(node.java.output())

    def named(by_name: dict[str, Java]) -> list[tuple[Java, str, Java]]:
        pairs = zip(outputs(by_name)[0], attributes, strict=True)
        return [(value, column.name(), column.exprId()) for value, column in pairs]

    return Kept(
        *(node, node, Rows(columns[0], text), operator.keys, operator, results, named, "aggregates"),
        has_updates=not is_final,
        is_by_key=not is_final,
        text=f"totals of {len(sides)} sides: {'; '.join(', '.join(group.text) for group in groups)}",
        sides=[(group.below, of_side) for group, of_side in zip(groups, columns, strict=True)],
        where=lambda by_name: outputs(by_name)[1],
        delay=grace if is_final else None,
    )


def _side_of(number: int, keys: Mapping[str, Java], node: Node, jvm: Java) -> Java:
    """Return the key that keeps sides apart. keys: the others."""
    expressions: Java = jvm.org.apache.spark.sql.catalyst.expressions
    own, shared = (literal_of(value, "IntegerType", jvm) for value in (number, -1))
    nulls = functools.reduce(expressions.Or, map(expressions.IsNull, keys.values()))
    return own if node.kind == "Union" else expressions.If(nulls, own, shared)


def _null(value: Java, jvm: Java) -> Java:
    return jvm.org.apache.spark.sql.catalyst.expressions.Literal.create(None, value.dataType())


JOINS: Makers = {"Join": _join, UNION_OF_TOTALS: _union}
"""What makes an operator of a join of two streams, and of totals of several."""
