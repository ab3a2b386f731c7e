"""The other topic of a stream join: how tasks read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from roster.model.tasks import TaskId
from roster.pipeline.batch import Split
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.state.stream_join import joined_columns


@dataclass(frozen=True)
class OtherSide:
    """How tasks read the other topic; `own` and `other` are the columns of the two sides."""

    topic: str
    function: ArrowFunction
    own: pa.Schema
    other: pa.Schema


def columns_of(side: OtherSide) -> pa.Schema:
    """Return the columns of a table with rows of both sides."""
    return joined_columns(side.own, side.other)


def spread(tasks: Sequence[Sequence[Split]], cores: int) -> list[list[Split]]:
    """Deal splits to as many Spark tasks as run at once, for work that does not depend on their sizes."""
    splits = [split for task in tasks for split in task]
    return [splits[first::cores] for first in range(min(cores, len(splits)))]


def regrouped_by_task(tasks: Sequence[Sequence[Split]], task_of: Callable[[Split], TaskId]) -> list[list[Split]]:
    """Regroup splits so that one Spark task reads all input partitions of a group's task."""
    dealt: list[list[Split]] = [[] for _ in tasks]
    homes: dict[TaskId, int] = {}
    for number, task in enumerate(tasks):
        for split in task:
            dealt[homes.setdefault(task_of(split), number)].append(split)
    return [splits for splits in dealt if splits]
