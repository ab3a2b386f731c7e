"""Joins of the totals of two streams by all that they are grouped by: one aggregate over the rows of both.

A group has the functions of each side, over this side's rows alone, and how many these are: none, where a side has not
the group. So it needs no state of its own, and rows find their groups by one topic.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from roster.pipeline.errors import PipelineError
from roster.spark.column_expressions import class_of, members
from roster.spark.dataframes.joins import in_order, join, kind_of, parts_of
from roster.spark.dataframes.operators import Grouping, Kept, Makers, Rows, Totals, literal_of, replaced, with_types
from roster.spark.dataframes.plan import FIELD, Java, Node
from roster.state.aggregate_functions import ALL_ROWS, IGNORING_NULLS, Aggregate, Kind
from roster.state.join_entries import SIDES
from roster.state.windows import END, START, Window, WindowedAggregation

_TIME = "time of the row"
_ALONE = "side of a null"
"""Key that keeps the sides apart where another key is null: nulls are not equal."""
_STAYS = {"Inner": (), "LeftOuter": (0,), "RightOuter": (1,), "FullOuter": (0, 1), "LeftSemi": ()}
"""By the kind of join, the sides whose groups stay where the other one has not the group."""


@dataclass(frozen=True)
class _Side:
    """The totals of one side, the nodes above them from below, and what their columns and functions are called."""

    node: Node
    totals: Totals
    above: Sequence[Node]
    prefix: str

    @classmethod
    def of(cls, node: Node, prefix: str, mode: str, jvm: Java) -> Self | None:
        """Return it, None for a side whose rows do not come of a groupBy() by way of columns and conditions alone."""
        above = list[Node]()
        while node.kind in ("Project", "Filter", "SubqueryAlias"):
            above.insert(0, node)
            (node,) = node.children
        return cls(node, Totals.of(node, mode, jvm), above, prefix) if node.kind == "Aggregate" else None

    @property
    def rows(self) -> str:
        """The name of the column that is not null in rows of this side, and of their count."""
        return self.prefix.rstrip()

    def group_of(self, column: Java) -> int | None:
        """Return the place in groupBy() of what a column of the side is, None for another column."""
        if class_of(column) != "AttributeReference":
            return None
        number = column.exprId().id()
        for node in reversed(self.above):
            aliases = members(node.java.projectList()) if node.kind == "Project" else []
            named = [alias.child() for alias in aliases if alias.exprId().id() == number and class_of(alias) == "Alias"]
            if named and class_of(named[0]) != "AttributeReference":
                return None
            number = named[0].exprId().id() if named else number
        output = next(output for output in self.totals.outputs if output.exprId().id() == number)
        expression = output.child() if class_of(output) == "Alias" else output
        groups = enumerate(self.totals.group.expressions)
        return next((place for place, group in groups if group.semanticEquals(expression)), None)

    def functions(self) -> dict[str, Aggregate]:
        """Return the functions over rows of both sides. Raises PipelineError for one that nulls count for."""

        def of_side(function: Aggregate) -> Aggregate:
            if function.kind in IGNORING_NULLS:
                problem = f"{function.kind.value}({function.column}) of joined totals"
                raise PipelineError(problem, field=FIELD, fix="Let it ignore nulls")
            column = self.rows if function.column == ALL_ROWS else self.prefix + function.column
            return replace(function, column=column, by=None if function.by is None else of_side(function.by))

        own = {self.prefix + name: of_side(function) for name, function in self.totals.functions.items()}
        return {**own, self.rows: Aggregate(Kind.MAX, self.rows)}

    def columns(self, jvm: Java, *, are_null: bool = False) -> dict[str, Java]:
        """Return what the functions take; are_null: of rows of the other side."""
        literal: Java = jvm.org.apache.spark.sql.catalyst.expressions.Literal
        columns = {self.prefix + name: value for name, value in self.totals.group.rows.columns.items()}
        columns[self.rows] = literal_of(True, "BooleanType", jvm)
        return {name: literal.create(None, value.dataType()) if are_null else value for name, value in columns.items()}

    def of_results(
        self, by_name: dict[str, Java], keys: Mapping[str, str], jvm: Java
    ) -> tuple[list[tuple[Java, Java]], list[Java]]:
        """Return the side's columns, each with its value, and its conditions, over attributes of the results.

        keys: the results' names of its keys.
        """
        own = {name: by_name[self.prefix + name] for name in self.totals.functions}
        own |= {name: by_name[keys.get(name, name)] for name in (*self.totals.group.keys, START, END)}
        outputs = [value for value, _, _ in self.totals.of_results(own, jvm)]
        values = list(zip(members(self.node.java.output()), outputs, strict=True))
        conditions = list[Java]()
        for node in self.above:
            if node.kind == "Filter":
                conditions.append(replaced(node.java.condition(), values, jvm))
            if node.kind == "Project":
                inner = [own.child() if class_of(own) == "Alias" else own for own in members(node.java.projectList())]
                outputs = [replaced(expression, values, jvm) for expression in inner]
                values = list(zip(members(node.java.output()), outputs, strict=True))
        return values, conditions


def _join(node: Node, root: Node, above: Sequence[Node], mode: str, jvm: Java) -> Kept:
    """Return the operator of a join of two streams, or of their totals. Raises PipelineError."""
    left, right = (_Side.of(child, f"{side}: ", mode, jvm) for child, side in zip(node.children, SIDES, strict=True))
    return join(node, root, above, mode, jvm) if left is None or right is None else _totals(node, (left, right), jvm)


def _totals(node: Node, sides: tuple[_Side, _Side], jvm: Java) -> Kept:
    """Return the operator of both sides' totals. Raises PipelineError."""
    (places, rest), kind = _pairs(node, sides, jvm), kind_of(node)
    groups = [side.totals.group for side in sides]
    if any(sorted(p[number] for p in places) != [*range(len(group.names))] for number, group in enumerate(groups)):
        fix = "Join them by the window and all columns of both groupBy()"
        raise PipelineError("a join of totals by less than they are grouped by", field=FIELD, fix=fix)
    has_filters = any(below.kind == "Filter" for side in sides for below in side.above)
    if kind not in _STAYS or (kind != "Inner" and (rest or has_filters)):
        fix = "Use an inner join, or an outer or left semi one with conditions behind it"
        raise PipelineError(f"a join of totals of the kind {kind}", field=FIELD, fix=fix)
    window = _window(groups)
    named = [(groups[0].names[left], groups[1].names[right]) for left, right in places]
    pairs = [(left, right) for left, right in named if left and right]
    pairs = pairs or [(groups[0].keys[0], groups[1].keys[0])]  # of no column
    keys = [{pair[number]: f"key {pair[0]}" for pair in pairs} for number in range(len(sides))]
    expressions: Java = jvm.org.apache.spark.sql.catalyst.expressions
    columns = list[dict[str, Java]]()
    for number, group in enumerate(groups):
        of_row = {keys[number][name]: group.rows.columns[name] for name in group.keys}
        nulls = functools.reduce(expressions.Or, map(expressions.IsNull, of_row.values()))
        of_row[_ALONE] = expressions.If(nulls, *(literal_of(n, "IntegerType", jvm) for n in (number, -1)))
        of_row[_TIME] = group.rows.columns[group.window.column]  # type: ignore[union-attr] # a window, as `_window` has seen
        for place, side in enumerate(sides):
            of_row |= side.columns(jvm, are_null=place != number)
        columns.append(of_row)
    text = {keys[0][name]: kind for name, kind in groups[0].rows.text.items()}
    columns[1] = {name: columns[1][name] for name in columns[0]}
    functions = {**sides[0].functions(), **sides[1].functions()}
    types = {side.prefix + name: own for side in sides for name, own in side.totals.types.items()}
    operator = WindowedAggregation((*keys[0].values(), _ALONE), functions, window, final=True)

    def of_results(by_name: dict[str, Java]) -> tuple[dict[int, Java], list[Java]]:
        known, conditions = dict[int, Java](), list[Java]()
        for number, side in enumerate(sides):
            values, own = side.of_results(by_name, keys[number], jvm)
            is_there = expressions.IsNotNull(by_name[side.rows])
            stays_without = 1 - number in _STAYS[kind]
            conditions += own if stays_without else [is_there, *own]
            for column, value in values:
                nothing = expressions.Literal.create(None, value.dataType())
                known[column.exprId().id()] = expressions.If(is_there, value, nothing) if stays_without else value
        return known, conditions

    def outputs(by_name: dict[str, Java]) -> list[tuple[Java, str, Java]]:
        known, _ = of_results(by_name)
        own = members(node.java.output())
        return [(known[column.exprId().id()], column.name(), column.exprId()) for column in own]

    return Kept(
        *(
            node,
            node,
            Rows(columns[0], text),
            operator.keys,
            operator,
            with_types(operator, types, groups[0].time),
            outputs,
            "joined",
        ),
        text=f"{node.java.joinType().sql().lower()} join of totals: {', '.join(groups[0].text)}",
        sides=[(group.below, own) for group, own in zip(groups, columns, strict=True)],
        where=lambda by_name: of_results(by_name)[1],
        rest=rest,
        delay=window.grace,
    )


def _pairs(node: Node, sides: tuple[_Side, _Side], jvm: Java) -> tuple[list[tuple[int, ...]], list[Java]]:
    """Return what of both sides' groupBy() is equal, by places, and the other conditions."""
    places, rest = list[tuple[int, ...]](), list[Java]()
    for part in parts_of(node, jvm):
        pair = in_order(part, node.children) if class_of(part) == "EqualTo" else None
        groups = [] if pair is None else [side.group_of(own) for side, own in zip(sides, pair, strict=True)]
        equal = tuple(place for place in groups if place is not None)
        if len(equal) == len(sides):
            places.append(equal)
        else:
            rest.append(part)
    return places, rest


def _window(groups: Sequence[Grouping]) -> Window:
    """Return the window of both sides. Raises PipelineError for other ones."""
    windows = [group.window for group in groups if isinstance(group.window, Window) and group.time is not None]
    if len(windows) < len(groups) or len({(window.size, window.hop, window.start) for window in windows}) > 1:
        fix = "Group both by the same window(...) behind withWatermark()"
        raise PipelineError("a join of totals that are not of the same windows", field=FIELD, fix=fix)
    grace = max(window.grace for window in windows)
    return Window(_TIME, windows[0].size, windows[0].every, grace, windows[0].start)


JOINS: Makers = {"Join": _join}
"""What makes an operator of a join of two streams."""
