"""The placement of tasks with the least sum of costs, within the quotas of the clients.

A placement within quotas is optimal when no cycle of moves from client to client lowers its cost (Klein's theorem;
Ahuja, Magnanti and Orlin, Network Flows, section 9.6), so cycles are found and carried out until there is none. A cell
is the tasks of a sub-topology on a client; between two cells only the task that is cheapest to move matters. A task
costs the same on all clients that have no store of it, so the cells of a sub-topology share a node; clients that may
have one task above their share have another one in common.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from roster.assignors.tasks.quotas import Quotas
from roster.model.tasks import TaskId

Arc: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """Cost of a task at some clients (`by_client`), and at all others (`elsewhere`)."""

    by_client: Mapping[int, int]
    elsewhere: int

    def on(self, client: int) -> int:
        """Cost at a client."""
        return self.by_client.get(client, self.elsewhere)


def least_cost(placed: Mapping[TaskId, int], costs: Mapping[TaskId, TaskCosts], quota: Quotas) -> dict[TaskId, int]:
    """Return the cheapest placement within the quotas.

    placed: client of each task, within the quotas. It is returned unchanged if it is one of the cheapest.
    """
    if all(
        costs[task].on(client) <= min((*costs[task].by_client.values(), costs[task].elsewhere))
        for task, client in placed.items()
    ):
        return dict(placed)
    network = _Residual(placed, costs, quota)
    while cycle := negative_cycle(network.arcs()):
        network.apply(cycle)
    return network.owner


class _Residual:
    """Arcs between cells, each with a heap of its tasks by the cost of moving them; outdated entries are skipped.

    Nodes: cells, clients, the pool of extra tasks, and `elsewhere` of each sub-topology.
    """

    def __init__(self, placed: Mapping[TaskId, int], costs: Mapping[TaskId, TaskCosts], quota: Quotas) -> None:
        self.owner = dict(placed)
        self._costs = costs
        self._quota = quota
        self._load = Counter(placed.values())
        clients = len(quota.share)
        bounds = quota.of_each(Counter(task.subtopology for task in placed))
        self._place = {subtopology: place for place, subtopology in enumerate(bounds)}
        self._bounds = [cell for cells in bounds.values() for cell in cells]
        self._count = Counter(self._cell(task, client) for task, client in placed.items())
        self._first_client = len(self._bounds)
        self._pool = self._first_client + clients
        self._heaps: defaultdict[Arc, list[tuple[int, TaskId]]] = defaultdict(list)
        for task in sorted(placed):
            self._offer(task)

    def _cell(self, task: TaskId, client: int) -> int:
        return self._place[task.subtopology] * len(self._quota.share) + client

    def _elsewhere(self, task: TaskId) -> int:
        return self._pool + 1 + self._place[task.subtopology]

    def _offer(self, task: TaskId) -> None:
        client, cost = self.owner[task], self._costs[task]
        here, now = self._cell(task, client), cost.on(client)
        for there, then in cost.by_client.items():
            if there != client:
                heapq.heappush(self._heaps[here, self._cell(task, there)], (then - now, task))
        heapq.heappush(self._heaps[here, self._elsewhere(task)], (cost.elsewhere - now, task))

    def arcs(self) -> Iterator[tuple[int, int, int]]:
        """Yield (tail, head, cost) of the arcs that can be used."""
        clients = len(self._quota.share)
        for (tail, head), heap in self._heaps.items():
            while heap and self.owner[heap[0][1]] != tail % clients:
                heapq.heappop(heap)
            if heap:
                yield tail, head, heap[0][0]
        for cell, (least, most) in enumerate(self._bounds):
            client = self._first_client + cell % clients
            yield self._pool + 1 + cell // clients, cell, 0
            if self._count[cell] < most:
                yield cell, client, 0
            if self._count[cell] > least:
                yield client, cell, 0
        for client in self._quota.extra:
            node = self._first_client + client
            yield (node, self._pool, 0) if self._load[client] == self._quota.share[client] else (self._pool, node, 0)

    def apply(self, cycle: Sequence[Arc]) -> None:
        """Move a task along each arc from cell to cell."""
        moves = []
        for place, (tail, head) in enumerate(cycle):
            if tail < self._first_client and not self._first_client <= head < self._pool:
                there = cycle[(place + 1) % len(cycle)][1] if head > self._pool else head
                moves.append((self._heaps[tail, head][0][1], there))
        for task, there in moves:
            for sign, cell in ((-1, self._cell(task, self.owner[task])), (1, there)):
                self._count[cell] += sign
                self._load[cell % len(self._quota.share)] += sign
            self.owner[task] = there % len(self._quota.share)
            self._offer(task)


def negative_cycle(arcs: Iterable[tuple[int, int, int]]) -> list[Arc]:
    """Return the arcs of a cycle of negative cost (Bellman-Ford), an empty list if there is none.

    arcs: (tail, head, cost), nodes being numbers.
    """
    arcs = list(arcs)
    distance: defaultdict[int, int] = defaultdict(int)
    parent: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for tail, head, cost in arcs:
            if distance[tail] + cost < distance[head]:
                distance[head] = distance[tail] + cost
                parent[head] = tail
                changed = True
        if changed and (cycle := _cycle_of(parent)):
            return cycle
    return []


def _cycle_of(parent: Mapping[int, int]) -> list[Arc]:
    """Return the arcs of a cycle among the parents, in the order of the moves."""
    reached_from: dict[int, int] = {}
    for start in parent:
        node = start
        while node in parent and node not in reached_from:
            reached_from[node] = start
            node = parent[node]
        if node in parent and reached_from[node] == start:
            cycle = [node]
            while parent[cycle[-1]] != node:
                cycle.append(parent[cycle[-1]])
            cycle.reverse()
            return list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    return []
