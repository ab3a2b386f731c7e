"""Cheapest maximum flow through a small network with integer costs, by successive shortest paths.

Source: Ford and Fulkerson's augmenting paths; each augmentation along a cheapest path keeps the flow cheapest for its
value (Ahuja, Magnanti and Orlin, Network Flows, section 9.7).
"""

from __future__ import annotations

from collections import deque

_UNREACHED = 1 << 60


class Network:
    """A directed network; node 0 is the source and node 1 the sink. Costs are non-negative integers."""

    def __init__(self) -> None:
        self._arcs_of: list[list[int]] = [[], []]
        self._head: list[int] = []
        self._room: list[int] = []
        self._cost: list[int] = []

    def node(self) -> int:
        """Add a node and return its number."""
        self._arcs_of.append([])
        return len(self._arcs_of) - 1

    def arc(self, tail: int, head: int, capacity: int, cost: int = 0) -> int:
        """Add an arc and return its number; its reverse, which takes flow back, is the next number."""
        number = len(self._head)
        self._head += (head, tail)
        self._room += (capacity, 0)
        self._cost += (cost, -cost)
        self._arcs_of[tail].append(number)
        self._arcs_of[head].append(number + 1)
        return number

    def flow(self, arc: int) -> int:
        """Units that run through an arc."""
        return self._room[arc ^ 1]

    def push(self, *path: int) -> None:
        """Send what fits along a path of arcs; harmless to the optimum as long as no cheaper path is left out."""
        units = min(self._room[arc] for arc in path)
        for arc in path:
            self._room[arc] -= units
            self._room[arc ^ 1] += units

    def saturate(self) -> None:
        """Send as much as possible from source to sink at the least cost."""
        while (arrived_by := self._cheapest_path()) is not None:
            path = []
            node = 1
            while node != 0:
                path.append(arrived_by[node])
                node = self._head[arrived_by[node] ^ 1]
            self.push(*path)

    def _cheapest_path(self) -> list[int] | None:
        """For each node the arc by which a cheapest path enters it, or None when the sink is out of reach."""
        head, room, cost = self._head, self._room, self._cost
        distance = [_UNREACHED] * len(self._arcs_of)
        arrived_by = [-1] * len(self._arcs_of)
        waiting = [False] * len(self._arcs_of)
        distance[0] = 0
        queue = deque([0])
        while queue:
            tail = queue.popleft()
            waiting[tail] = False
            for arc in self._arcs_of[tail]:
                if room[arc] and (through := distance[tail] + cost[arc]) < distance[head[arc]]:
                    distance[head[arc]] = through
                    arrived_by[head[arc]] = arc
                    if not waiting[head[arc]]:
                        waiting[head[arc]] = True
                        queue.append(head[arc])
        return arrived_by if distance[1] < _UNREACHED else None
