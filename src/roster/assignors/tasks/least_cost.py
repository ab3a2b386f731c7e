"""The placement of tasks with the least sum of costs, within the quotas of the clients.

A placement within quotas is optimal when no cycle of moves from client to client lowers its cost (Klein's theorem;
Ahuja, Magnanti and Orlin, Network Flows, section 9.6), so cycles are found and carried out until there is none. Between
two clients only the task that is cheapest to move matters. A task costs the same on all clients that have no store of
it, so these share a node; clients that may have one task above their share have another one in common.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from roster.assignors.tasks.quotas import Quotas
from roster.model.tasks import TaskId

_ELSEWHERE, _POOL = -1, -2

Arc: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """Cost of a task at some clients (`at`), and at all others (`elsewhere`)."""

    at: Mapping[int, int]
    elsewhere: int

    def on(self, client: int) -> int:
        """Cost at a client."""
        return self.at.get(client, self.elsewhere)


def least_cost(placed: Mapping[TaskId, int], costs: Mapping[TaskId, TaskCosts], quota: Quotas) -> dict[TaskId, int]:
    """Return the cheapest placement within the quotas.

    placed: client of each task, within the quotas. It is returned unchanged if it is one of the cheapest.
    """
    if all(
        costs[task].on(client) <= min((*costs[task].at.values(), costs[task].elsewhere))
        for task, client in placed.items()
    ):
        return dict(placed)
    network = _Residual(placed, costs, quota)
    while cycle := network.negative_cycle():
        network.turn(cycle)
    return network.owner


class _Residual:
    """Arcs between clients, each with a heap of its tasks by the cost of moving them; outdated entries are skipped."""

    def __init__(self, placed: Mapping[TaskId, int], costs: Mapping[TaskId, TaskCosts], quota: Quotas) -> None:
        self.owner = dict(placed)
        self._costs = costs
        self._quota = quota
        self._load = Counter(placed.values())
        self._heaps: defaultdict[Arc, list[tuple[int, TaskId]]] = defaultdict(list)
        for task in sorted(placed):
            self._offer(task)

    def _offer(self, task: TaskId) -> None:
        here, cost = self.owner[task], self._costs[task]
        now = cost.on(here)
        for there, then in cost.at.items():
            if there != here:
                heapq.heappush(self._heaps[here, there], (then - now, task))
        heapq.heappush(self._heaps[here, _ELSEWHERE], (cost.elsewhere - now, task))

    def _arcs(self) -> Iterator[tuple[int, int, int]]:
        """Yield (tail, head, cost) of the arcs that can be used."""
        for (tail, head), heap in self._heaps.items():
            while heap and self.owner[heap[0][1]] != tail:
                heapq.heappop(heap)
            if heap:
                yield tail, head, heap[0][0]
        for client, share in enumerate(self._quota.share):
            yield _ELSEWHERE, client, 0
            if client in self._quota.extra:
                yield (client, _POOL, 0) if self._load[client] == share else (_POOL, client, 0)

    def negative_cycle(self) -> list[Arc]:
        """Return the arcs of a cycle of negative cost (Bellman-Ford), an empty list if there is none."""
        arcs = list(self._arcs())
        distance: defaultdict[int, int] = defaultdict(int)
        parent: dict[int, int] = {}
        for _ in range(len(self._quota.share) + 3):
            changed = False
            for tail, head, cost in arcs:
                if distance[tail] + cost < distance[head]:
                    distance[head] = distance[tail] + cost
                    parent[head] = tail
                    changed = True
            if not changed:
                return []
            if cycle := _cycle_of(parent):
                return cycle
        raise AssertionError("distances fall without a cycle")

    def turn(self, cycle: Sequence[Arc]) -> None:
        """Move a task along each arc between clients."""
        moves = []
        for place, (tail, head) in enumerate(cycle):
            if tail >= 0 and head != _POOL:
                there = cycle[(place + 1) % len(cycle)][1] if head == _ELSEWHERE else head
                moves.append((self._heaps[tail, head][0][1], there))
        for task, there in moves:
            self._load[self.owner[task]] -= 1
            self._load[there] += 1
            self.owner[task] = there
            self._offer(task)


def _cycle_of(parent: Mapping[int, int]) -> list[Arc]:
    """Return the arcs of a cycle among the parents, in the order of the moves."""
    seen: dict[int, int] = {}
    for start in parent:
        node = start
        while node in parent and node not in seen:
            seen[node] = start
            node = parent[node]
        if node in parent and seen[node] == start:
            cycle = [node]
            while parent[cycle[-1]] != node:
                cycle.append(parent[cycle[-1]])
            cycle.reverse()
            return list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    return []
