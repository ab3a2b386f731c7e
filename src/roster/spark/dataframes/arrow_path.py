"""What of a plan Roster computes in its own tasks: columns and conditions of expressions proved to be Spark's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.computed_columns import Computed, ComputedColumns
from roster.spark.arrow_expressions import LeftToSparkError, Scope
from roster.spark.column_expressions import Java, members, type_of
from roster.spark.dataframes.operators import Kept, Results, between
from roster.spark.dataframes.plan import WATERMARK, Node, alias_of, conjuncts

_PASSED = ("SubqueryAlias", "View", "PipeOperator", WATERMARK, "Repartition", "RepartitionByExpression")


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


def rows_of(below: Node, columns: Mapping[str, Java], records: StructType) -> Computes:
    """Return the step that makes columns over a node of a source's records. Raises LeftToSparkError."""
    chain = [below]
    while not chain[-1].is_leaf:
        if len(chain[-1].children) != 1:
            raise LeftToSparkError(chain[-1].kind)
        chain.append(chain[-1].children[0])
    scope = Scope.given(members(chain[-1].java.output()))
    for node in reversed(chain[:-1]):
        scope = _above(scope, node)
    return _step(scope, records, columns)


def results_of(kept: Kept, results: Results, root: Node) -> Computes:
    """Return the step that makes a plan's columns of an operator's results. Raises LeftToSparkError."""
    if kept.rows.text:
        raise LeftToSparkError(f"the key {next(iter(kept.rows.text))}, which is a fraction")
    outputs = [alias_of(value, name, results.jvm, number) for value, name, number in kept.outputs(results.attributes)]
    scope = Scope.given(list(results.attributes.values())).with_columns(outputs)
    for node in reversed(between(root, kept.node)):
        scope = _above(scope, node)
    return _step(scope, results.columns, named(root))


def named(root: Node) -> dict[str, Java]:
    """Return a plan's columns by name. Raises LeftToSparkError for two of one name."""
    outputs = members(root.java.output())
    columns = {str(column.name()): column for column in outputs}
    if len(columns) < len(outputs):
        raise LeftToSparkError("two columns of one name")
    return columns


def _above(scope: Scope, node: Node) -> Scope:
    """Return the scope of what stands on a node whose child has this one. Raises LeftToSparkError."""
    if node.kind == "Project":
        return scope.with_columns(members(node.java.projectList()))
    if node.kind == "Filter":
        scope.conditions += [scope.computed(part) for part in conjuncts(node.java.condition())]
    elif node.kind not in _PASSED:
        raise LeftToSparkError(node.kind)
    return scope


def _step(scope: Scope, given: StructType, columns: Mapping[str, Java]) -> Computes:
    """Return the step that makes these columns. Raises LeftToSparkError."""
    results = StructType()
    for name, expression in columns.items():
        results.add(name, type_of(expression.dataType()))
    computed = {name: scope.computed(expression) for name, expression in columns.items()}
    return Computes(given, scope.conditions, computed, results)
