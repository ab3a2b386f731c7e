"""Cheapest flow from nodes with a surplus to nodes with a deficit, a whole wave of nodes at a time, in numpy.

A primal-dual method (Ford and Fulkerson; Ahuja, Magnanti and Orlin, Network Flows, section 9.8). Every arc has a price,
its cost less what prices at its ends allow, and none with room is below zero. Surpluses go only along arcs of price
zero, on ways with the fewest arcs, from the farthest nodes down; what gets stuck half way is a surplus there and goes
on in the next round. When no such way is left, prices fall between the nodes that reach a deficit and the others until
one more arc is free. Flow along arcs of price zero stays cheapest for the surpluses that remain, so when nothing is
left it is optimal.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from roster.assignors.groups import ranges, stable_order
from roster.model.arrays import Bool, Int64

UNBOUNDED = np.int64(1 << 40)
"""Room of an arc without a limit; more than any flow here."""

GOLDEN = 0.6180339887498949
"""Multiples of the golden ratio's fraction are spread evenly over [0, 1): a different, repeatable start for each."""

_FAR = 1 << 30


class Network:
    """A directed network with integer costs, none negative, and a surplus (or, below zero, a deficit) at each node.

    `tail`, `head`, `room`, `cost` describe the arcs as given; `flow0` is what already runs through each and may be
    taken back at its cost, and no arc with a cost has any. Each arc has a mate, which runs the other way and takes
    flow back. Arcs stand in the order of their heads, so those into a node are the entries from `_start` of it on, and
    their mates are those out of it.
    """

    def __init__(
        self, nodes: int, tail: Int64, head: Int64, room: Int64, cost: Int64, flow0: Int64, surplus: Int64
    ) -> None:
        arcs = len(tail)
        heads = np.concatenate((head, tail))
        order = stable_order(heads, nodes)
        place = np.empty(2 * arcs, dtype=np.int64)
        place[order] = np.arange(2 * arcs)
        self._degree = np.bincount(heads, minlength=nodes)
        self._start = np.cumsum(self._degree) - self._degree
        self._tail = np.concatenate((tail, head))[order]
        self._room = np.concatenate((room - flow0, flow0))[order]
        self._price = np.concatenate((cost, -cost))[order]
        self._mate = np.concatenate((place[arcs:], place[:arcs]))[order]
        self._back = place[arcs:]
        self._open = (self._room > 0) & (self._price == 0)
        self.surplus = surplus

    @property
    def flow(self) -> Int64:
        """What runs through each arc, in the order they were given."""
        return self._room[self._back]

    def drain(self) -> None:
        """Send surpluses to deficits as far as there are ways; what remains is in `surplus`."""
        while (self.surplus > 0).any() and (self.surplus < 0).any():
            steps = self._steps()
            layers = self._ways_down(steps)
            if layers:
                self._send(layers)
            elif not self._lower_prices(steps == _FAR):
                return

    def reached(self) -> Bool:
        """[nodes] True for the nodes that a remaining surplus could still get to."""
        reached = self.surplus > 0
        frontier = np.flatnonzero(reached)
        while len(frontier):
            mates = self._into(frontier)
            heads = self._tail[mates[self._room[self._mate[mates]] > 0]]
            frontier = _distinct(heads[~reached[heads]], len(reached))
            reached[frontier] = True
        return reached

    def _into(self, nodes: Int64) -> Int64:
        """The arcs that lead into the nodes, one node's after the other's."""
        return ranges(self._start[nodes], self._degree[nodes])

    def _steps(self) -> Int64:
        """Fewest open arcs from each node to a deficit; no farther than to surplus enough to fill all of them."""
        deficits, sources = np.flatnonzero(self.surplus < 0), np.flatnonzero(self.surplus > 0)
        surplus = self.surplus[sources]
        wanted = min(int(surplus.sum()), -int(self.surplus[deficits].sum()))
        steps = np.full(len(self.surplus), _FAR)
        steps[deficits] = step = 0
        frontier = deficits
        while len(frontier) and surplus[steps[sources] < _FAR].sum() < wanted:
            step += 1
            arcs = self._into(frontier)
            tails = self._tail[arcs[self._open[arcs]]]
            frontier = _distinct(tails[steps[tails] == _FAR], len(steps))
            steps[frontier] = step
        return steps

    def _ways_down(self, steps: Int64) -> list[tuple[Int64, Int64, Int64]]:
        """Open arcs on shortest ways from a surplus to a deficit, as (arcs, tails, heads): those whose tail is one step
        away, two steps, ...

        Of more surplus than there is deficit only the nearest goes, or the rest would have to come back.
        """
        far = np.flatnonzero((self.surplus > 0) & (steps < _FAR))
        far = far[np.argsort(steps[far], kind="stable")]
        before = np.cumsum(self.surplus[far]) - self.surplus[far]
        far = far[before < -self.surplus[self.surplus < 0].sum()]
        steps_of_far = steps[far]
        layers = []
        heads = far[:0]
        for step in range(int(steps_of_far.max(initial=0)), 0, -1):
            nodes = _distinct(np.concatenate((heads, far[steps_of_far == step])), len(steps))
            mates = self._into(nodes)
            arcs, heads = self._mate[mates], self._tail[mates]
            down = self._open[arcs] & (steps[heads] == step - 1)
            heads = heads[down]
            layers.append((arcs[down], np.repeat(nodes, self._degree[nodes])[down], heads))
        return layers[::-1]

    def _send(self, layers: list[tuple[Int64, Int64, Int64]]) -> None:
        """Push every surplus down the layers, each node no more than what lies below it can take."""
        arcs, tail, head = (np.concatenate(column) for column in zip(*layers, strict=True))
        if np.bincount(head).max() > 1:
            turned = _turned(tail)
            arcs, tail, head = arcs[turned], tail[turned], head[turned]
        room = self._room[arcs]
        bounds = [0, *np.cumsum([len(layer[0]) for layer in layers]).tolist()]
        slices = [slice(begin, end) for begin, end in pairwise(bounds)]
        takes = np.maximum(-self.surplus, 0)
        fits = np.empty(len(arcs), dtype=np.int64)
        for layer in slices:
            fits[layer] = np.minimum(room[layer], takes[head[layer]])
            np.add.at(takes, tail[layer], fits[layer])
            takes[tail[layer]] = np.minimum(takes[tail[layer]], UNBOUNDED)
        for layer in reversed(slices):
            busy = np.flatnonzero((self.surplus[tail[layer]] > 0) & (fits[layer] > 0)) + layer.start
            if not len(busy):
                continue
            sent = _share(tail[busy], fits[busy], self.surplus)
            by_head = stable_order(head[busy], len(takes))
            busy, sent = busy[by_head], sent[by_head]
            sent = _share(head[busy], sent, takes)
            np.subtract.at(takes, head[busy], sent)
            self._run(arcs[busy], sent)
            np.add.at(self.surplus, head[busy], sent)
            np.subtract.at(self.surplus, tail[busy], sent)

    def _run(self, arcs: Int64, sent: Int64) -> None:
        """Note what runs through arcs that are open."""
        mates = self._mate[arcs]
        self._room[arcs] -= sent
        self._room[mates] += sent
        self._open[arcs] = self._room[arcs] > 0
        self._open[mates] = self._room[mates] > 0

    def _lower_prices(self, cut_off: Bool) -> bool:
        """Open an arc at least from the nodes that are cut off to the others; False if no arc there has room."""
        leaves = cut_off[self._tail] & ~np.repeat(cut_off, self._degree)
        with_room = leaves & (self._room > 0)
        if not with_room.any():
            return False
        step = self._price[with_room].min()
        self._price[leaves] -= step
        self._price[self._mate[leaves]] += step
        self._open = (self._room > 0) & (self._price == 0)
        return True


def _distinct(nodes: Int64, bound: int) -> Int64:
    """The nodes, each once, ascending."""
    present = np.zeros(bound, dtype=np.bool_)
    present[nodes] = True
    return np.flatnonzero(present)


def _turned(tail: Int64) -> Int64:
    """A permutation that turns each tail's run of arcs, each by its own amount, so that not all begin at one head."""
    starts = np.flatnonzero(np.append(True, tail[1:] != tail[:-1]))
    degree = np.diff(np.append(starts, len(tail)))
    turn = ((tail[starts] * GOLDEN) % 1.0 * degree).astype(np.int64)
    start, degree, turn = (np.repeat(column, degree) for column in (starts, degree, turn))
    return np.asarray(start + (np.arange(len(tail)) - start + turn) % degree)


def _share(group: Int64, wanted: Int64, available: Int64) -> Int64:
    """Give each entry what it wants as long as its group's available amount lasts; entries of a group are adjacent."""
    total = np.cumsum(wanted)
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    before = total - wanted
    before -= np.repeat(before[starts], np.diff(np.append(starts, len(group))))
    return np.clip(available[group] - before, 0, wanted)
