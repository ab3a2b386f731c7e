"""Tasks with state: how one is named, and how far the stores a process has of it are from the ends of their logs.

A lag (the document says gap) is in changelog records: what is still to be restored before the store is whole. Two
values are no count: `RUNNING` and `STATELESS`. Source: KIP-429 part II (lag, sentinel), KIP-441 (Kafka's own value for
`RUNNING`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roster.model.arrays import Int32, Int64

RUNNING = -2
"""Lag of a running active task: caught up by definition."""

STATELESS = -1
"""Lag of a task that runs there and has no store: there is nothing to restore, whoever gets it."""


class TaskId(NamedTuple):
    """One partition of one sub-topology; written `subtopology_partition`."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `0_3`; raises ValueError that quotes the text."""
        subtopology, _, partition = text.partition("_")
        if not (subtopology.isdecimal() and partition.isdecimal()):
            raise ValueError(f"task {text!r} is not of the form SUBTOPOLOGY_PARTITION, e.g. 0_3")
        return cls(int(subtopology), int(partition))


class StorePosition(NamedTuple):
    """Where a store stands in its changelog partition, as offsets: the log from `begin` to `end`, `restored` applied.

    restored: the offset up to which the store has the log, None for a store that is not there.
    """

    begin: int
    end: int
    restored: int | None


def task_gap(stores: Iterable[StorePosition]) -> int:
    """Sum of log end - restored offset over the stores of a task, in records.

    A store that is not there, or that ends before the log begins, has the whole log to restore; so has one that is
    ahead of the log's end, as such a log was made anew. Source: KIP-429 part II.
    """
    gap = 0
    for begin, end, restored in stores:
        gap += end - (begin if restored is None or not begin <= restored <= end else restored)
    return gap


@dataclass(frozen=True, slots=True, eq=False)
class TaskLags:
    """Tasks with their lags, as columns: [tasks] sub-topology, [tasks] partition, [tasks] lag in records.

    Raises ValueError for columns of other types or of unequal lengths.
    """

    subtopology: Int32
    partition: Int32
    lag: Int64

    def __post_init__(self) -> None:
        shape = (len(self.lag),)
        for name, kind in (("subtopology", np.int32), ("partition", np.int32), ("lag", np.int64)):
            column = getattr(self, name)
            if column.dtype != kind or column.shape != shape:
                raise ValueError(
                    f"{name}: a column of {column.dtype} {column.shape}, wanted {np.dtype(kind)} {shape} as lag has"
                )

    @classmethod
    def of(cls, lags: Mapping[TaskId, int]) -> TaskLags:
        """The columns of a mapping, in its order. Raises ValueError where a number has no place in them."""
        try:
            ids = np.array(list(lags), dtype=np.int64).reshape(-1, 2)
            lag = np.array(list(lags.values()), dtype=np.int64)
        except OverflowError as error:
            raise ValueError(f"tasks: a number beyond int64 ({error})") from error
        narrow = ids.astype(np.int32)
        if wide := np.flatnonzero((narrow != ids).any(axis=1)).tolist():
            raise ValueError(f"task {TaskId(*ids[wide[0]].tolist())}: its numbers must be from -2^31 to 2^31 - 1")
        return cls(narrow[:, 0], narrow[:, 1], lag)

    def __len__(self) -> int:
        return len(self.lag)

    def as_dict(self) -> dict[TaskId, int]:
        """{task: lag}; of a task that is listed twice the last lag."""
        ids = map(TaskId, self.subtopology.tolist(), self.partition.tolist())
        return dict(zip(ids, self.lag.tolist(), strict=True))
