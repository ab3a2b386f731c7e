"""The other topic of a stream join: its declaration, and how tasks read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from roster.model.tasks import TaskId
from roster.spark.batch import Split
from roster.spark.errors import PipelineError
from roster.spark.tasks.arrow_function import ArrowFunction, arrow_schema, as_struct
from roster.spark.tasks.steps import Parsed, chained
from roster.spark.tasks.value_columns import PERMISSIVE
from roster.state.stream_join import StreamJoin, joined_columns

_FIELD = "join"


@dataclass(frozen=True)
class OtherSide:
    """How tasks read the other topic; `own` and `other` are the columns of the two sides."""

    topic: str
    function: ArrowFunction
    own: pa.Schema
    other: pa.Schema


@dataclass(frozen=True)
class OtherStream:
    """The other topic, and the fields of its values."""

    topic: str
    schema: str | StructType

    def resolved(self, join: StreamJoin, own: StructType, records: StructType) -> tuple[StreamJoin, OtherSide]:
        """Return the operator for rows with these columns, and how to read the other topic. Raises PipelineError."""
        struct = as_struct(self.schema, _FIELD)
        if missing := [name for name in join.keys if name not in own.names or name not in struct.names]:
            raise PipelineError(
                f"no column {missing[0]!r} on both sides",
                field="keys",
                fix=f"Rows have {own.names}, it has {struct.names}",
            )
        if other := [name for name in join.keys if own[name].dataType != struct[name].dataType]:
            name = other[0]
            kinds = f"{own[name].dataType.simpleString()} and {struct[name].dataType.simpleString()}"
            raise PipelineError(f"column {name!r} is {kinds}", field="keys", fix="Give both sides one type")
        right = tuple(name for name in struct.names if name not in join.keys)
        if twice := [name for name in right if name in own.names]:
            raise PipelineError(
                f"rows have a column {twice[0]!r} already", field=_FIELD, fix="Leave it out of one of the schemas"
            )
        time = join.times[1]
        step = Parsed(struct, "value", PERMISSIVE, () if time in struct.names else (time,))
        function, columns = chained([step], records)
        assert function is not None  # noqa: S101 - there is a step
        side = OtherSide(self.topic, function, arrow_schema(own), arrow_schema(columns))
        return replace(join, right=right), side


def columns_of(side: OtherSide) -> pa.Schema:
    """Return the columns of a table with rows of both sides."""
    return joined_columns(side.own, side.other)


def spread(tasks: Sequence[Sequence[Split]], cores: int) -> list[list[Split]]:
    """Deal splits to as many Spark tasks as run at once, for work that does not depend on their sizes."""
    splits = [split for task in tasks for split in task]
    return [splits[first::cores] for first in range(min(cores, len(splits)))]


def together(tasks: Sequence[Sequence[Split]], task_of: Callable[[Split], TaskId]) -> list[list[Split]]:
    """Regroup splits so that one Spark task reads all input partitions of a group's task."""
    dealt: list[list[Split]] = [[] for _ in tasks]
    homes: dict[TaskId, int] = {}
    for number, task in enumerate(tasks):
        for split in task:
            dealt[homes.setdefault(task_of(split), number)].append(split)
    return [splits for splits in dealt if splits]
