"""The fairest loads that subscriptions allow: which members must carry how much, whoever holds what.

Rows are kinds of partitions (all with the same possible owners), classes are members with the same subscription. Among
all assignments one is fairest: its loads, sorted, are lexicographically least from the top, and that is least for every
convex cost at once. All fairest assignments share one structure (Frank and Murota, Decreasing minimization on M-convex
sets): the classes fall into blocks, a block's members carry `level` or `level - 1` each, and every row belongs to one
block, whose members alone own its partitions. So after the blocks are known each is an independent problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roster.assignors.flow import UNBOUNDED, Network
from roster.model.problem import Bool, Int64

_GOLDEN = 0.6180339887498949
"""Multiples of it are spread evenly over [0, 1): where a row's rounding starts."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows x classes as a sparse table: cell i says that members of `column[i]` may own partitions of `row[i]`.

    Cells are ordered by row; supply: [rows] partitions of each, at least one; size: [classes] members of each, at least
    one.
    """

    row: Int64
    column: Int64
    supply: Int64
    size: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """level: [classes] most that a member of the class carries, all carry that or one less (0: all carry nothing).

    block_of_class, block_of_row: blocks are numbered; classes of equal level may be in different blocks.
    """

    level: Int64
    block_of_class: Int64
    block_of_row: Int64


def fairest(table: Table, placed: Int64) -> Levels:
    """The blocks of a table. `placed` ([cells], each row adding up to its supply) is any assignment; a near one is
    faster.
    """
    classes, rows = len(table.size), len(table.supply)
    result = Levels(np.zeros(classes, dtype=np.int64), np.full(classes, -1), np.full(rows, -1))
    blocks = 0
    waiting = [(np.arange(len(table.row)), np.arange(rows), np.arange(classes))]
    while waiting:
        cells, own_rows, own_classes = waiting.pop()
        supply, size = int(table.supply[own_rows].sum()), int(table.size[own_classes].sum())
        level = -(-supply // size)
        if level > 0:
            above = _cannot_stay_under(level, table, placed, cells, own_rows, own_classes)
            if not above.any():
                above = _cannot_stay_under(level - 1, table, placed, cells, own_rows, own_classes)
                finished = True
            else:
                finished = False
        else:
            above, finished = np.ones(len(own_rows) + len(own_classes), dtype=np.bool_), True
        upper_rows, upper_classes = own_rows[above[: len(own_rows)]], own_classes[above[len(own_rows) :]]
        if finished:
            result.level[upper_classes] = level
            result.block_of_class[upper_classes] = blocks
            result.block_of_row[upper_rows] = blocks
            blocks += 1
        in_upper = np.zeros(rows, dtype=np.bool_)
        in_upper[upper_rows] = True
        upper_cells = in_upper[table.row[cells]]
        if not finished:
            waiting.append((cells[upper_cells], upper_rows, upper_classes))
        if len(upper_classes) < len(own_classes):
            high = np.zeros(classes, dtype=np.bool_)
            high[upper_classes] = True
            rest = cells[~upper_cells & ~high[table.column[cells]]]
            waiting.append((rest, np.setdiff1d(own_rows, upper_rows), np.setdiff1d(own_classes, upper_classes)))
    return result


def _cannot_stay_under(level: int, table: Table, placed: Int64, cells: Int64, rows: Int64, classes: Int64) -> Bool:
    """[rows + classes] those in which some member must carry more than `level`; improves `placed` as far as it goes."""
    row = np.searchsorted(rows, table.row[cells])
    column = np.searchsorted(classes, table.column[cells]) + len(rows)
    nodes = len(rows) + len(classes)
    load = np.bincount(column, weights=placed[cells], minlength=nodes).astype(np.int64)
    surplus = load
    surplus[len(rows) :] -= level * table.size[classes]
    network = Network(
        nodes,
        row,
        column,
        np.full(len(cells), UNBOUNDED),
        np.zeros(len(cells), dtype=np.int64),
        placed[cells],
        surplus,
    )
    network.drain()
    above = network.reached()
    flow = network.flow
    stuck = network.surplus[: len(rows)]
    if stuck.any():
        first_cell = np.searchsorted(row, np.arange(len(rows)))
        flow[first_cell] += stuck
    placed[cells] = flow
    return above


def spread(table: Table, supply: Int64) -> Int64:
    """[cells] a supply of each row laid out over its classes, roughly so that loads come out alike."""
    starts = np.searchsorted(table.row, np.arange(len(table.supply)))
    weight = table.size.astype(np.float64)
    target = table.size * (supply.sum() / table.size.sum())
    for _ in range(4):
        share = weight[table.column]
        share *= (supply / np.add.reduceat(share, starts))[table.row]
        load = np.bincount(table.column, weights=share, minlength=len(weight))
        weight *= (target + 1e-9) / (load + 1e-9)
    total = np.cumsum(share)
    begin = (total - share)[starts]
    reached = np.floor(total - begin[table.row] + (_GOLDEN * table.row) % 1.0)
    reached = np.minimum(reached, supply[table.row])
    reached[np.append(starts[1:], len(share)) - 1] = supply
    before = np.append(0.0, reached[:-1])
    before[starts] = 0.0
    return np.asarray(reached - before, dtype=np.int64)
