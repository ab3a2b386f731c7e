"""Cheapest flow from nodes with a surplus to nodes with a deficit, a whole wave of nodes at a time, in numpy.

A primal-dual method: find the distance of every node to the nearest deficit (Bellman and Ford's sweeps, cost first and
then number of arcs), send as much as will go along arcs on shortest paths from the farthest nodes down, and repeat.
What gets stuck half way is a surplus there and goes on in the next round. Sending only along shortest paths keeps the
flow cheapest for the surpluses that remain (Ahuja, Magnanti and Orlin, Network Flows, section 9.8), so when nothing is
left it is optimal.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from roster.assignors.groups import stable_order
from roster.model.problem import Bool, Int64

UNBOUNDED = np.int64(1 << 40)
"""Room of an arc without a limit; more than any flow here."""

GOLDEN = 0.6180339887498949
"""Multiples of the golden ratio's fraction are spread evenly over [0, 1): a different, repeatable start for each."""

_FAR = np.int64(1 << 60)


class Network:
    """A directed network with integer costs, none negative, and a surplus (or, below zero, a deficit) at each node.

    `tail`, `head`, `room`, `cost` describe the arcs as given; `flow0` is what already runs through each and may be
    taken back at its cost. The existing flow must be cheapest for the surpluses given.
    """

    def __init__(
        self, nodes: int, tail: Int64, head: Int64, room: Int64, cost: Int64, flow0: Int64, surplus: Int64
    ) -> None:
        arcs = len(tail)
        tails = np.concatenate((tail, head))
        self._order = stable_order(tails, nodes)
        place = np.empty(2 * arcs, dtype=np.int64)
        place[self._order] = np.arange(2 * arcs)
        self._tail = tails[self._order]
        self._head = np.concatenate((head, tail))[self._order]
        self._room = np.concatenate((room - flow0, flow0))[self._order]
        self._most_steps = np.int64(nodes + 1)
        self._length = (np.concatenate((cost, -cost)) * self._most_steps + 1)[self._order]
        self._mate = np.concatenate((place[arcs:], place[:arcs]))[self._order]
        self._back = place[arcs:]
        self.surplus = surplus

    @property
    def flow(self) -> Int64:
        """What runs through each arc, in the order they were given."""
        return self._room[self._back]

    def drain(self) -> None:
        """Send surpluses to deficits as far as there are ways; what remains is in `surplus`."""
        while (self.surplus > 0).any() and (self.surplus < 0).any():
            live = np.flatnonzero(self._room > 0)
            distance = self._distances(live)
            if not ((self.surplus > 0) & (distance < _FAR)).any():
                return
            self._send(live, distance)

    def reached(self) -> Bool:
        """[nodes] True for the nodes that a remaining surplus could still get to."""
        reached = self.surplus > 0
        if not reached.any():
            return reached
        live = self._room > 0
        tail, head = self._tail[live], self._head[live]
        size = 0
        while size != (size := int(np.count_nonzero(reached))):
            reached[head[reached[tail]]] = True
        return reached

    def _distances(self, live: Int64) -> Int64:
        """Length of a shortest way from each node to a deficit: its cost times `_most_steps`, plus its arcs."""
        tail, head, length = self._tail[live], self._head[live], self._length[live]
        starts = np.flatnonzero(np.append(True, tail[1:] != tail[:-1]))
        nodes = tail[starts]
        distance = np.where(self.surplus < 0, np.int64(0), _FAR)
        while True:
            nearest = np.minimum(np.minimum.reduceat(distance[head] + length, starts), distance[nodes])
            if (nearest == distance[nodes]).all():
                return distance
            distance[nodes] = nearest

    def _send(self, live: Int64, distance: Int64) -> None:
        """Push every surplus down the shortest ways, each node no more than what lies below it can take."""
        tail, head = self._tail[live], self._head[live]
        shortest = (distance[tail] < _FAR) & (distance[tail] == distance[head] + self._length[live])
        arcs = live[shortest]
        steps = distance[self._tail[arcs]] % self._most_steps
        nearest_first = stable_order(steps, int(self._most_steps))
        arcs, steps = self._below_surplus(arcs[nearest_first], steps[nearest_first])
        if np.bincount(self._head[arcs]).max() > 1:
            arcs = arcs[_turned(self._tail[arcs])]
        tail, head, room = self._tail[arcs], self._head[arcs], self._room[arcs]
        bounds = _layer_bounds(steps)
        layers = [slice(begin, end) for begin, end in pairwise(bounds)]
        takes = np.maximum(-self.surplus, 0)
        fits = np.empty(len(arcs), dtype=np.int64)
        for layer in layers:
            fits[layer] = np.minimum(room[layer], takes[head[layer]])
            takes += np.bincount(tail[layer], weights=fits[layer], minlength=len(takes)).astype(np.int64)
            np.minimum(takes, UNBOUNDED, out=takes)
        for layer in reversed(layers):
            surplus = self.surplus[tail[layer]]
            busy = np.flatnonzero((surplus > 0) & (fits[layer] > 0)) + layer.start
            if not len(busy):
                continue
            sent = _share(tail[busy], fits[busy], self.surplus)
            by_head = stable_order(head[busy], int(self._most_steps))
            busy, sent = busy[by_head], sent[by_head]
            sent = _share(head[busy], sent, takes)
            takes -= np.bincount(head[busy], weights=sent, minlength=len(takes)).astype(np.int64)
            self._room[arcs[busy]] -= sent
            self._room[self._mate[arcs[busy]]] += sent
            change = np.bincount(head[busy], weights=sent, minlength=len(takes))
            change -= np.bincount(tail[busy], weights=sent, minlength=len(takes))
            self.surplus += change.astype(np.int64)

    def _below_surplus(self, arcs: Int64, steps: Int64) -> tuple[Int64, Int64]:
        """Of arcs by layer, nearest first, those on a way down from a surplus, and their steps."""
        tail, head = self._tail[arcs], self._head[arcs]
        busy = self.surplus > 0
        chosen = np.empty(len(arcs), dtype=np.bool_)
        for begin, end in reversed([*pairwise(_layer_bounds(steps))]):
            chosen[begin:end] = busy[tail[begin:end]]
            busy[head[begin:end][chosen[begin:end]]] = True
        return arcs[chosen], steps[chosen]


def _layer_bounds(steps: Int64) -> list[int]:
    """Where runs of equal steps begin, and the end of the last."""
    return [*np.flatnonzero(np.append(True, steps[1:] != steps[:-1])).tolist(), len(steps)]


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
