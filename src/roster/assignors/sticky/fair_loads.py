"""The fairest loads that subscriptions allow, whoever owns the partitions now.

A row is a set of partitions with the same possible owners, a class a set of members with the same subscription. An
assignment is fairest if its loads, in descending order, are lexicographically least; it then minimises every convex
cost. All fairest assignments share one structure (Frank and Murota, "Decreasing minimization on M-convex sets"):
classes fall into blocks, each member of a block has `level` or `level - 1` partitions, and every row belongs to the
block whose members own its partitions. So each block can be solved on its own.
"""

from dataclasses import dataclass

import numpy as np

from roster.assignors.arrays import ranges
from roster.assignors.min_cost_flow import GOLDEN, UNBOUNDED, MinCostFlow
from roster.model.arrays import Bool, Int64

_ROUNDS, _CELLS = 32, 1 << 15
"""Limits of `spread`: rounds of scaling, and cells visited in the rounds after the fourth."""

_WEIGHTS = 1e-60, 1e60
"""Clamp against underflow and overflow when a class cannot reach the mean."""

_LEAST = 1e-6
"""Smallest target per member: a full class must still be able to receive if the row's other classes are fuller."""

_ALIKE = 0.25
"""Partitions per member by which `spread` may miss its target loads."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Sparse table of rows and classes: members of class `column[i]` may own partitions of `row[i]`, for each cell i.

    Cells are ordered by row, then column. supply: [rows] number of partitions; size: [classes] number of members. All
    are positive.
    """

    row: Int64
    column: Int64
    supply: Int64
    size: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Blocks and their loads.

    level: [classes] partitions of the fullest member; the others have as many or one fewer (0: none has any).
    block_of_class, block_of_row: number of the block; classes of equal level may be in different blocks.
    placed: [cells] an assignment, with these loads if `fairest` was called with wants_placed. Ignore cells whose row
    and class are in different blocks.
    """

    level: Int64
    block_of_class: Int64
    block_of_row: Int64
    placed: Int64


def fairest(table: Table, placed: Int64, *, wants_placed: bool = False) -> Levels:
    """Compute the blocks of a table.

    `placed` ([cells]) is any assignment of the whole supply; one with nearly fair loads is faster. It is changed in
    place, into a fairest assignment if `wants_placed`.
    """
    classes, rows = len(table.size), len(table.supply)
    result = Levels(np.zeros(classes, dtype=np.int64), np.full(classes, -1), np.full(rows, -1), placed)
    blocks = 0
    waiting = [_Part(table, placed, np.arange(len(table.row)), np.arange(rows), np.arange(classes))]
    while waiting:
        part = waiting.pop()
        level = part.mean
        part.even_out()
        above = part.above(level)
        finished = not above.any()
        if finished:
            above = part.above(level - 1) if level > 0 else ~above
            result.level[part.classes[above[part.rows.size :]]] = level
            result.block_of_class[part.classes[above[part.rows.size :]]] = blocks
            result.block_of_row[part.rows[above[: part.rows.size]]] = blocks
            blocks += 1
            if wants_placed:
                part.bring_down_to(level)
                part.record(above)
        else:
            waiting.append(part.cut(above))
        if not above.all():
            waiting.append(part.cut(~above))
    return result


class _Part:
    """Subproblem: rows and classes independent of the others, with the placement of their supply so far."""

    def __init__(self, table: Table, placed: Int64, cells: Int64, rows: Int64, classes: Int64) -> None:
        self.table, self.placed = table, placed
        self.cells, self.rows, self.classes = cells, rows, classes
        size = table.size[classes]
        self.mean = -(-int(table.supply[rows].sum()) // int(size.sum()))
        self.level = self.mean
        self.size = np.concatenate((np.zeros(len(rows), dtype=np.int64), size))
        number_of_row, number_of_class = np.empty(len(table.supply), np.int64), np.empty(len(table.size), np.int64)
        number_of_row[rows] = np.arange(len(rows))
        number_of_class[classes] = np.arange(len(rows), len(self.size))
        row, column = number_of_row[table.row[cells]], number_of_class[table.column[cells]]
        load = np.bincount(column, weights=placed[cells], minlength=len(self.size)).astype(np.int64)
        free = np.zeros(len(cells), dtype=np.int64)
        self.network = MinCostFlow(
            len(self.size), row, column, free + UNBOUNDED, free, placed[cells], load - self.level * self.size
        )

    def even_out(self) -> None:
        """Move load from members above the mean to members below it, where paths exist; later steps do the rest.

        Classes whose load is the mean, rounded down or up, take no part, so no later step has to undo this one.
        """
        excess = self.network.excess
        between = np.clip(excess, -self.size, 0)
        self.network.excess = excess - between
        self.network.solve()
        self.network.excess += between

    def above(self, level: int) -> Bool:
        """Return [rows + classes] True where a member must carry more than `level` in every assignment."""
        self.bring_down_to(level)
        return self.network.reachable()

    def bring_down_to(self, level: int) -> None:
        """Lower loads above `level` as far as possible; no other load gets smaller."""
        self.network.excess += (self.level - level) * self.size
        self.level = level
        self.network.solve()

    def cut(self, chosen: Bool) -> "_Part":
        """Return the subproblem of the chosen rows and classes, which share no placement with the others."""
        cells, rows, classes = self.record(chosen)
        return _Part(self.table, self.placed, cells, rows, classes)

    def record(self, chosen: Bool) -> tuple[Int64, Int64, Int64]:
        """Store the placement between the chosen rows and classes; return their cells, rows and classes."""
        flow = self.network.flow
        stuck = self.network.excess[: len(self.rows)]
        rows, classes = chosen[: len(self.rows)], chosen[len(self.rows) :]
        row_here = np.zeros(len(self.table.supply), dtype=np.bool_)
        class_here = np.zeros(len(self.table.size), dtype=np.bool_)
        row_here[self.rows[rows]] = class_here[self.classes[classes]] = True
        keep = row_here[self.table.row[self.cells]] & class_here[self.table.column[self.cells]]
        cells = self.cells[keep]
        self.placed[cells] = flow[keep]
        if stuck[rows].any():
            own, first = np.unique(self.table.row[cells], return_index=True)
            self.placed[cells[first]] += stuck[np.searchsorted(self.rows, own)]
        return cells, self.rows[rows], self.classes[classes]


def spread(table: Table, supply: Int64, load: Int64) -> Int64:
    """Return [cells] a first placement of `supply` ([rows]) on top of `load` ([classes]), with roughly equal loads."""
    rows = np.flatnonzero(supply)
    if not len(rows):
        return np.zeros(len(table.row), dtype=np.int64)
    supply = supply[rows]
    width = np.bincount(table.row)
    cells = ranges((np.cumsum(width) - width)[rows], width[rows])
    column, width = table.column[cells], width[rows]
    row = np.repeat(np.arange(len(rows)), width)
    starts = np.cumsum(width) - width
    mean = (load.sum() + supply.sum()) / table.size.sum()
    target = np.maximum(mean * table.size - load, 0.0)
    target *= supply.sum() / target.sum()
    weight = np.maximum(target, table.size * _LEAST)
    for _ in range(min(_ROUNDS, 4 + _CELLS // len(cells))):
        share = weight[column]
        share *= (supply / np.add.reduceat(share, starts))[row]
        reached = np.bincount(column, weights=share, minlength=len(weight))
        if (np.abs(reached - target) <= _ALIKE * table.size).all():
            break
        weight = np.clip(weight * ((target + 1e-9) / (reached + 1e-9)), *_WEIGHTS)
    total = np.cumsum(share)
    begin = (total - share)[starts]
    laid = np.minimum(np.floor(total - begin[row] + (GOLDEN * rows[row]) % 1.0), supply[row])
    laid[starts + width - 1] = supply
    before = np.append(0.0, laid[:-1])
    before[starts] = 0.0
    result = np.zeros(len(table.row), dtype=np.int64)
    result[cells] = laid - before
    return result
