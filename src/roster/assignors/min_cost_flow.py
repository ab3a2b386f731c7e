"""Minimum-cost flow from nodes with excess to nodes with demand, one level of nodes at a time, in numpy.

The primal-dual method (Ford and Fulkerson; Ahuja, Magnanti and Orlin, Network Flows, section 9.8). Every arc has a
reduced cost, and none with residual capacity is below zero. Each phase pushes excess along arcs of reduced cost zero in
the level graph of distances to a demand, from the farthest level down (a blocking flow); excess left at a node is
pushed in the next phase. When no excess reaches a demand, node potentials change until one more arc has reduced cost
zero. Flow along such arcs is cheapest for the excess that remains, so it is optimal when none is left.
"""

from itertools import pairwise

import numpy as np

from roster.assignors.arrays import ranges, stable_order
from roster.model.arrays import Bool, Int64

UNBOUNDED = np.int64(1 << 40)
"""Capacity of an arc without a limit; more than any flow here."""

GOLDEN = 0.6180339887498949
"""Fraction of the golden ratio: its multiples, modulo 1, spread evenly over [0, 1)."""

_UNREACHED = 1 << 30


class MinCostFlow:
    """A directed network with integer costs, none negative, and an excess (below zero: a demand) at each node.

    `tail`, `head`, `capacity`, `cost` describe the arcs. `initial_flow` may be pushed back; it is zero on arcs with a
    cost. Each arc has a reverse arc in the residual network. Arcs are stored in the order of their heads, so the arcs
    into a node are the entries from its `_start` on, and their reverses are the arcs out of it.
    """

    def __init__(
        self, nodes: int, tail: Int64, head: Int64, capacity: Int64, cost: Int64, initial_flow: Int64, excess: Int64
    ) -> None:
        arcs = len(tail)
        heads = np.concatenate((head, tail))
        order = stable_order(heads, nodes)
        place = np.empty(2 * arcs, dtype=np.int64)
        place[order] = np.arange(2 * arcs)
        self._degree = np.bincount(heads, minlength=nodes)
        self._start = np.cumsum(self._degree) - self._degree
        self._tail = np.concatenate((tail, head))[order]
        self._residual = np.concatenate((capacity - initial_flow, initial_flow))[order]
        self._reduced_cost = np.concatenate((cost, -cost))[order]
        self._reverse = np.concatenate((place[arcs:], place[:arcs]))[order]
        self._back = place[arcs:]
        self._admissible = (self._residual > 0) & (self._reduced_cost == 0)
        self.excess = excess

    @property
    def flow(self) -> Int64:
        """Flow on each arc, in the order of the constructor's arguments."""
        return self._residual[self._back]

    def solve(self) -> None:
        """Push excess to demands as far as paths exist; `excess` then has the remainder."""
        while (self.excess > 0).any() and (self.excess < 0).any():
            levels = self._level_graph()
            layers = self._admissible_arcs(levels)
            if layers:
                self._push_blocking_flow(layers)
            elif not self._change_potentials(levels == _UNREACHED):
                return

    def reachable(self) -> Bool:
        """Return [nodes]: True for the nodes that remaining excess can reach."""
        reached = self.excess > 0
        frontier = np.flatnonzero(reached)
        while len(frontier):
            reverses = self._into(frontier)
            heads = self._tail[reverses[self._residual[self._reverse[reverses]] > 0]]
            frontier = _distinct(heads[~reached[heads]], len(reached))
            reached[frontier] = True
        return reached

    def _into(self, nodes: Int64) -> Int64:
        """Return the arcs into the nodes, node by node."""
        return ranges(self._start[nodes], self._degree[nodes])

    def _level_graph(self) -> Int64:
        """Return [nodes] the distance to a demand in admissible arcs, up to excess enough to meet all demand."""
        demands, sources = np.flatnonzero(self.excess < 0), np.flatnonzero(self.excess > 0)
        excess = self.excess[sources]
        wanted = min(int(excess.sum()), -int(self.excess[demands].sum()))
        levels = np.full(len(self.excess), _UNREACHED)
        levels[demands] = level = 0
        frontier = demands
        while len(frontier) and excess[levels[sources] < _UNREACHED].sum() < wanted:
            level += 1
            arcs = self._into(frontier)
            tails = self._tail[arcs[self._admissible[arcs]]]
            frontier = _distinct(tails[levels[tails] == _UNREACHED], len(levels))
            levels[frontier] = level
        return levels

    def _admissible_arcs(self, levels: Int64) -> list[tuple[Int64, Int64, Int64]]:
        """Return the arcs of shortest paths from excess to demand, as (arcs, tails, heads) by the level of their tail.

        If total excess exceeds total demand, only the nearest excess is pushed.
        """
        far = np.flatnonzero((self.excess > 0) & (levels < _UNREACHED))
        far = far[np.argsort(levels[far], kind="stable")]
        before = np.cumsum(self.excess[far]) - self.excess[far]
        far = far[before < -self.excess[self.excess < 0].sum()]
        levels_of_far = levels[far]
        layers = []
        heads = far[:0]
        for level in range(int(levels_of_far.max(initial=0)), 0, -1):
            nodes = _distinct(np.concatenate((heads, far[levels_of_far == level])), len(levels))
            reverses = self._into(nodes)
            arcs, heads = self._reverse[reverses], self._tail[reverses]
            down = self._admissible[arcs] & (levels[heads] == level - 1)
            heads = heads[down]
            layers.append((arcs[down], np.repeat(nodes, self._degree[nodes])[down], heads))
        return layers[::-1]

    def _push_blocking_flow(self, layers: list[tuple[Int64, Int64, Int64]]) -> None:
        """Push excess down the levels; no node gets more than the levels below it can take."""
        arcs, tail, head = (np.concatenate(column) for column in zip(*layers, strict=True))
        if np.bincount(head).max() > 1:
            rotated = _rotated(tail)
            arcs, tail, head = arcs[rotated], tail[rotated], head[rotated]
        residual = self._residual[arcs]
        bounds = [0, *np.cumsum([len(layer[0]) for layer in layers]).tolist()]
        slices = [slice(begin, end) for begin, end in pairwise(bounds)]
        can_take = np.maximum(-self.excess, 0)
        fits = np.empty(len(arcs), dtype=np.int64)
        for layer in slices:
            fits[layer] = np.minimum(residual[layer], can_take[head[layer]])
            np.add.at(can_take, tail[layer], fits[layer])
            can_take[tail[layer]] = np.minimum(can_take[tail[layer]], UNBOUNDED)
        for layer in reversed(slices):
            busy = np.flatnonzero((self.excess[tail[layer]] > 0) & (fits[layer] > 0)) + layer.start
            if not len(busy):
                continue
            sent = _share(tail[busy], fits[busy], self.excess)
            by_head = stable_order(head[busy], len(can_take))
            busy, sent = busy[by_head], sent[by_head]
            sent = _share(head[busy], sent, can_take)
            np.subtract.at(can_take, head[busy], sent)
            self._push(arcs[busy], sent)
            np.add.at(self.excess, head[busy], sent)
            np.subtract.at(self.excess, tail[busy], sent)

    def _push(self, arcs: Int64, sent: Int64) -> None:
        """Push flow along arcs."""
        reverses = self._reverse[arcs]
        self._residual[arcs] -= sent
        self._residual[reverses] += sent
        self._admissible[arcs] = self._residual[arcs] > 0
        self._admissible[reverses] = self._residual[reverses] > 0

    def _change_potentials(self, cut_off: Bool) -> bool:
        """Make an arc from the cut-off nodes to the others admissible; False if none has residual capacity."""
        leaves = cut_off[self._tail] & ~np.repeat(cut_off, self._degree)
        usable = leaves & (self._residual > 0)
        if not usable.any():
            return False
        delta = self._reduced_cost[usable].min()
        self._reduced_cost[leaves] -= delta
        self._reduced_cost[self._reverse[leaves]] += delta
        self._admissible = (self._residual > 0) & (self._reduced_cost == 0)
        return True


def _distinct(nodes: Int64, bound: int) -> Int64:
    """Return the distinct nodes, ascending."""
    present = np.zeros(bound, dtype=np.bool_)
    present[nodes] = True
    return np.flatnonzero(present)


def _rotated(tail: Int64) -> Int64:
    """Rotate the arcs of each tail by an amount of its own, so that not all of them begin at the same head."""
    starts = np.flatnonzero(np.append(True, tail[1:] != tail[:-1]))
    degree = np.diff(np.append(starts, len(tail)))
    rotation = ((tail[starts] * GOLDEN) % 1.0 * degree).astype(np.int64)
    start, degree, rotation = (np.repeat(column, degree) for column in (starts, degree, rotation))
    return np.asarray(start + (np.arange(len(tail)) - start + rotation) % degree)


def _share(group: Int64, wanted: Int64, available: Int64) -> Int64:
    """Grant each entry what it wants while its group's available amount lasts; entries of a group are adjacent."""
    total = np.cumsum(wanted)
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    before = total - wanted
    before -= np.repeat(before[starts], np.diff(np.append(starts, len(group))))
    return np.clip(available[group] - before, 0, wanted)
