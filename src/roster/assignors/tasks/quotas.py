"""Shares of tasks per client, of all tasks and of each sub-topology, and the placement of tasks within them."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from roster.assignors.min_cost_flow import MinCostFlow
from roster.model.tasks import TaskId


class Quotas(NamedTuple):
    """Tasks per client.

    share: [clients] tasks that each client gets. extra: clients that may get one more. extras: how many of them do.
    """

    share: list[int]
    extra: Collection[int]
    extras: int

    @classmethod
    def of(cls, share: list[int], extra: Collection[int], extras: int) -> "Quotas":
        """Return quotas without `extra` if each of these clients gets one more."""
        if extras < len(extra):
            return cls(share, extra, extras)
        return cls([tasks + (client in extra) for client, tasks in enumerate(share)], (), 0)

    def of_each(self, sizes: Mapping[int, int]) -> dict[int, list[tuple[int, int]]]:
        """Return {sub-topology: [clients] the least and the most of its tasks}, the numbers of tasks being `sizes`.

        A client gets of each what it gets of all tasks, rounded down or up. Rounding can always keep to both: with
        fractions the shares of all tasks are met exactly, and a flow whose bounds are whole numbers can be whole.
        """
        parts = max(len(self.extra), 1)
        whole = parts * (sum(self.share) + self.extras)
        due = [parts * tasks + self.extras * (client in self.extra) for client, tasks in enumerate(self.share)]
        return {
            subtopology: [(size * part // whole, -(-size * part // whole)) for part in due]
            for subtopology, size in sizes.items()
        }


def quotas(tasks: int, threads: Sequence[int]) -> Quotas:
    """Divide tasks among clients.

    Each task goes to the client whose load per thread would grow least (D'Hondt's rule, which minimises every convex
    cost), but no client gets a second task while one has none. If clients tie for the last tasks, stickiness decides
    which of them get one.
    """
    share = [0] * len(threads)
    queue = [(0.0, client) for client in range(len(threads))]
    order = []
    for _ in range(tasks):
        now, client = queue[0]
        order.append((now, client))
        share[client] += 1
        heapq.heapreplace(queue, (pressure(share[client], threads[client]), client))
    if not order:
        return Quotas(share, (), 0)
    last = order[-1][0]
    takers = [client for now, client in order if now == last]
    for client in takers:
        share[client] -= 1
    rivals = {client for now, client in queue if now == last} | set(takers)
    return Quotas.of(share, rivals, len(takers))


def pressure(load: int, threads: int) -> float:
    """Return the load per thread after one more task; 0 for a client without work."""
    return (load + 1) / threads if load else 0.0


class _Kind(NamedTuple):
    """Tasks that are interchangeable: of one sub-topology, run by one client, and with stores on the same clients."""

    subtopology: int
    runs_on: int | None
    holders: list[int]
    tasks: list[TaskId]


def place(
    tasks: Sequence[TaskId],
    running: Mapping[TaskId, int],
    nearest: Mapping[TaskId, frozenset[int] | None],
    quota: Quotas,
    threads: Sequence[int],
    rank: Mapping[int, int] | None = None,
) -> dict[TaskId, int]:
    """Place as many tasks as the quotas allow on clients with their stores, then leave as many as possible unmoved.

    Tasks for which neither counts go where places are left. The flow goes from kinds of tasks to clients, so its cost
    follows the number of kinds. rank: by client of `quota.extra`; before all else, low ranks get the extra tasks.
    """
    kinds, free = _kinds(tasks, running, nearest, len(quota.share))
    placed: dict[TaskId, int] = {}
    network = _Network(
        kinds, free, quota, quota.of_each(Counter(task.subtopology for task in tasks)), threads, rank or {}
    )
    preferred, places = network.flow() if tasks else ([], {})
    for kind, flows in zip(kinds, preferred, strict=True):
        unplaced = iter(kind.tasks)
        for client, units in flows:
            for _ in range(units):
                placed[next(unplaced)] = client
        free[kind.subtopology] += unplaced
    _deal(free, places, placed, threads)
    return placed


def _kinds(
    tasks: Sequence[TaskId],
    running: Mapping[TaskId, int],
    nearest: Mapping[TaskId, frozenset[int] | None],
    clients: int,
) -> tuple[list[_Kind], dict[int, list[TaskId]]]:
    """Return the kinds, and {sub-topology: its other tasks}."""
    kinds: defaultdict[tuple[int, int | None, frozenset[int]], list[TaskId]] = defaultdict(list)
    free: dict[int, list[TaskId]] = {task.subtopology: [] for task in tasks}
    for task in tasks:
        runs_on = running.get(task)
        holders = nearest[task] or frozenset()
        # A task that runs nowhere and has a store everywhere fits any client.
        if runs_on is not None or 0 < len(holders) < clients:
            kinds[task.subtopology, runs_on, holders].append(task)
        else:
            free[task.subtopology].append(task)
    ordered = sorted(kinds.items(), key=lambda kind: kind[1][0])
    return [
        _Kind(subtopology, runs_on, [client for client in sorted(holders) if client != runs_on], alike)
        for (subtopology, runs_on, holders), alike in ordered
    ], free


class _Network:
    """Flow from kinds of tasks to cells (the tasks of a sub-topology on a client), clients, and a pool of extra tasks.

    A task that no preferred client can take goes to the cells by its sub-topology's node `elsewhere`, where free tasks
    begin. Staying costs nothing, going elsewhere more than any number of moves on a detour, and moving more than extra
    tasks on clients with fewer threads.
    """

    def __init__(
        self,
        kinds: Sequence[_Kind],
        free: Mapping[int, Sequence[TaskId]],
        quota: Quotas,
        bounds: Mapping[int, Sequence[tuple[int, int]]],
        threads: Sequence[int],
        rank: Mapping[int, int],
    ) -> None:
        self.kinds, self.bounds = kinds, bounds
        clients = len(quota.share)
        self.elsewhere = {subtopology: len(kinds) + place for place, subtopology in enumerate(bounds)}
        first = len(kinds) + len(bounds)
        self.cell = {
            (subtopology, client): first + place * clients + client
            for place, subtopology in enumerate(bounds)
            for client in range(clients)
        }
        self.client = first + len(self.cell)
        self.pool = self.client + clients
        self.excess = [0] * (self.pool + 1)
        self.excess[self.pool] = -quota.extras
        self.room: dict[int, int] = {}
        """{cell: tasks that it may have above its least number}."""
        self.into_client: dict[int, int] = {}
        """{cell: tasks above its least number, which count for the client's share}."""
        for client, share in enumerate(quota.share):
            self.excess[self.client + client] = -share
        for (subtopology, client), cell in self.cell.items():
            least, most = bounds[subtopology][client]
            self.excess[cell] = -least
            self.excess[self.client + client] += least
            self.room[cell], self.into_client[cell] = most - least, 0
        sizes = sorted({threads[client] for client in quota.extra}, reverse=True)
        self.move = 1 + quota.extras * len(sizes)
        more_than_any_detour = len(self.excess) ** 2 * self.move
        self.extra_cost = {
            client: rank.get(client, 0) * more_than_any_detour + sizes.index(threads[client])
            for client in sorted(quota.extra)
        }
        self.extra_taken = dict.fromkeys(self.extra_cost, 0)
        for subtopology, tasks in free.items():
            self.excess[self.elsewhere[subtopology]] = len(tasks)

    def flow(self) -> tuple[list[list[tuple[int, int]]], dict[tuple[int, int], int]]:
        """Return for each kind (client, its tasks that go there) pairs, and {(sub-topology, client): other tasks}."""
        nodes = len(self.excess)
        arcs: list[tuple[int, int, int, int, int]] = []
        """(tail, head, capacity, cost, initial flow)"""
        for node, kind in enumerate(self.kinds):
            size, stays = len(kind.tasks), 0
            if kind.runs_on is not None:
                stays = self._stay(kind.subtopology, kind.runs_on, size)
                arcs.append((node, self.cell[kind.subtopology, kind.runs_on], size, 0, stays))
            self.excess[node] = size - stays
            arcs += [(node, self.cell[kind.subtopology, client], size, self.move, 0) for client in kind.holders]
            arcs.append((node, self.elsewhere[kind.subtopology], size, nodes * self.move, 0))
        dealt = len(arcs)
        arcs += [
            (self.elsewhere[subtopology], cell, self.bounds[subtopology][client][1], 0, 0)
            for (subtopology, client), cell in self.cell.items()
        ]
        arcs += [
            (cell, self.client + client, self.room[cell], 0, self.into_client[cell])
            for (_, client), cell in self.cell.items()
        ]
        arcs += [
            (self.client + client, self.pool, 1, self.extra_cost[client], taken)
            for client, taken in self.extra_taken.items()
        ]
        tail, head, capacity, cost, initial_flow = np.array(arcs, dtype=np.int64).T
        network = MinCostFlow(nodes, tail, head, capacity, cost, initial_flow, np.array(self.excess, dtype=np.int64))
        network.solve()
        flow = network.flow.tolist()
        units = iter(flow)
        preferred = []
        for kind in self.kinds:
            preferred.append([(client, next(units)) for client in _of(kind)])
            next(units)
        return preferred, dict(zip(self.cell, flow[dealt:], strict=False))

    def _stay(self, subtopology: int, client: int, size: int) -> int:
        """Let tasks stay where they run, as far as the quotas have room; return how many."""
        cell, owner = self.cell[subtopology, client], self.client + client
        least = min(size, -self.excess[cell])
        self.excess[cell] += least
        above = min(size - least, self.room[cell] - self.into_client[cell])
        shared = max(min(above, -self.excess[owner]), 0)
        self.excess[owner] += shared
        takes_extra = self.extra_cost.get(client) == 0 and not self.extra_taken[client] and self.excess[self.pool] < 0
        if shared < above and takes_extra:
            self.extra_taken[client] = 1
            self.excess[self.pool] += 1
            shared += 1
        self.into_client[cell] += shared
        return least + shared


def _of(kind: _Kind) -> list[int]:
    return kind.holders if kind.runs_on is None else [kind.runs_on, *kind.holders]


def _deal(
    free: Mapping[int, Sequence[TaskId]],
    places: Mapping[tuple[int, int], int],
    placed: dict[TaskId, int],
    threads: Sequence[int],
) -> None:
    """Place the remaining tasks in order, each on the client with fewest tasks of its sub-topology.

    places: {(sub-topology, client): tasks to place there}.
    """
    load = Counter(placed.values())
    kin = Counter((task.subtopology, client) for task, client in placed.items())
    for subtopology, waiting in free.items():
        queue = [
            (kin[subtopology, client], pressure(load[client], threads[client]), client)
            for client in range(len(threads))
            if places.get((subtopology, client))
        ]
        heapq.heapify(queue)
        left = {client: places[subtopology, client] for _, _, client in queue}
        for task in sorted(waiting):
            related, _, client = queue[0]
            placed[task] = client
            load[client] += 1
            left[client] -= 1
            if left[client]:
                heapq.heapreplace(queue, (related + 1, pressure(load[client], threads[client]), client))
            else:
                heapq.heappop(queue)
