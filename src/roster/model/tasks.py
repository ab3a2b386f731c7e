"""Stateful tasks: their names, and the lag of their stores.

A lag (the document says gap) is the number of changelog records still to be restored. Two values are not counts:
`RUNNING` and `STATELESS`. Source: KIP-429 part II (lag, sentinel), KIP-441 (Kafka's own value for `RUNNING`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roster.model.arrays import Int32, Int64

RUNNING = -2
"""Lag of a running active task, which is caught up by definition."""

STATELESS = -1
"""Lag of a running task without a store: any client can take it without restoring."""


class TaskId(NamedTuple):
    """One partition of one sub-topology; written `subtopology_partition`."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> "TaskId":
        """Parse a task id such as `0_3`. Raises ValueError that quotes the text."""
        subtopology, _, partition = text.partition("_")
        if not (subtopology.isdecimal() and partition.isdecimal()):
            raise ValueError(f"task {text!r} is not of the form SUBTOPOLOGY_PARTITION, e.g. 0_3")
        return cls(int(subtopology), int(partition))


class StorePosition(NamedTuple):
    """Position of a store in its changelog partition: `begin` and `end` of the log, and `restored`, as offsets.

    restored: the offset up to which the store has applied the log, None without a store.
    """

    begin: int
    end: int
    restored: int | None


def task_gap(stores: Iterable[StorePosition]) -> int:
    """Return the sum of (log end - restored offset) over the stores of a task, in records.

    The whole log counts without a store, if the store ends before the log begins, or if it is ahead of the end of
    the log (the topic was then created anew). Source: KIP-429 part II.
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
    def of(cls, lags: Mapping[TaskId, int]) -> "TaskLags":
        """Return the columns of a mapping, in its order. Raises ValueError for a number out of range."""
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
        """Return {task: lag}; if a task is listed twice, its last lag."""
        ids = map(TaskId, self.subtopology.tolist(), self.partition.tolist())
        return dict(zip(ids, self.lag.tolist(), strict=True))
