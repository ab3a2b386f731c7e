"""Shares of tasks per client, and the placement of tasks within them."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

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


def quotas(tasks: int, threads: Sequence[int], load: Sequence[int]) -> Quotas:
    """Divide tasks among clients that carry `load` already.

    Each task goes to the client whose load per thread would grow least (D'Hondt's rule, which minimises every convex
    cost), but no client gets a second task while one has none. If clients tie for the last tasks, stickiness decides
    which of them get one.
    """
    share = [0] * len(threads)
    queue = [(pressure(load[client], threads[client]), client) for client in range(len(threads))]
    heapq.heapify(queue)
    order = []
    for _ in range(tasks):
        now, client = queue[0]
        order.append((now, client))
        share[client] += 1
        heapq.heapreplace(queue, (pressure(load[client] + share[client], threads[client]), client))
    if not order:
        return Quotas(share, set(), 0)
    last = order[-1][0]
    takers = [client for now, client in order if now == last]
    for client in takers:
        share[client] -= 1
    rivals = {client for now, client in queue if now == last} | set(takers)
    return Quotas(share, rivals, len(takers))


def pressure(load: int, threads: int) -> float:
    """Return the load per thread after one more task; 0 for a client without work."""
    return (load + 1) / threads if load else 0.0


Kind: TypeAlias = tuple[int | None, frozenset[int], list[TaskId]]
"""Client that runs the tasks, clients that have their stores, and the tasks: all interchangeable."""


def place_on_preferred(
    tasks: Sequence[TaskId],
    running: Mapping[TaskId, int],
    nearest: Mapping[TaskId, frozenset[int] | None],
    quota: Quotas,
) -> dict[TaskId, int]:
    """Place as many tasks as the quotas allow on clients with their stores, then leave as many as possible unmoved.

    The flow goes from kinds of tasks to clients, so its cost follows the number of kinds.
    """
    kinds = _kinds(tasks, running, nearest, len(quota.share))
    placed = {}
    for (_, _, alike), flows in zip(kinds, _flow(kinds, quota), strict=True):
        unplaced = iter(alike)
        for client, units in flows:
            for _ in range(units):
                placed[next(unplaced)] = client
    return placed


def _kinds(
    tasks: Sequence[TaskId],
    running: Mapping[TaskId, int],
    nearest: Mapping[TaskId, frozenset[int] | None],
    clients: int,
) -> list[Kind]:
    kinds: defaultdict[tuple[int | None, frozenset[int]], list[TaskId]] = defaultdict(list)
    for task in tasks:
        runs_on = running.get(task)
        holders = nearest[task] or frozenset()
        # A task that runs nowhere and has a store everywhere fits any client, so it is dealt afterwards.
        if runs_on is not None or 0 < len(holders) < clients:
            kinds[runs_on, holders].append(task)
    ordered = sorted(kinds.items(), key=lambda kind: kind[1][0])
    return [(runs_on, holders, alike) for (runs_on, holders), alike in ordered]


def _flow(kinds: Sequence[Kind], quota: Quotas) -> Iterator[list[tuple[int, int]]]:
    """Yield for each kind (client, number of its tasks that go there) pairs.

    Nodes are kinds, clients, a pool of the extra tasks, and an overflow for tasks that no preferred client can take.
    Staying costs nothing, moving 1, overflowing more than any detour.
    """
    clients = len(quota.share)
    client_node, pool = len(kinds), len(kinds) + clients
    overflow = pool + 1
    nodes = overflow + 1
    excess = np.zeros(nodes, dtype=np.int64)
    excess[client_node:pool] = [-share for share in quota.share]
    excess[pool] = -quota.extras
    extra_taken = dict.fromkeys(sorted(quota.extra), 0)
    arcs: list[tuple[int, int, int, int, int]] = []
    """(tail, head, capacity, cost, initial flow)"""
    targets: list[list[int]] = []
    for kind, (runs_on, holders, alike) in enumerate(kinds):
        size, stays = len(alike), 0
        others = [client for client in sorted(holders) if client != runs_on]
        if runs_on is not None:
            stays = min(size, -int(excess[client_node + runs_on]))
            excess[client_node + runs_on] += stays
            if stays < size and excess[pool] < 0 and extra_taken.get(runs_on) == 0:
                extra_taken[runs_on] = 1
                excess[pool] += 1
                stays += 1
            arcs.append((kind, client_node + runs_on, size, 0, stays))
        excess[kind] = size - stays
        arcs += [(kind, client_node + client, size, 1, 0) for client in others]
        arcs.append((kind, overflow, size, nodes, 0))
        targets.append([*([] if runs_on is None else [runs_on]), *others])
    excess[overflow] = -excess[:client_node].sum()
    arcs += [(client_node + client, pool, 1, 0, taken) for client, taken in extra_taken.items()]
    if not kinds:
        return
    tail, head, capacity, cost, initial_flow = np.array(arcs, dtype=np.int64).T
    network = MinCostFlow(nodes, tail, head, capacity, cost, initial_flow, excess)
    network.solve()
    flow = iter(network.flow.tolist())
    for clients_of_kind in targets:
        yield [(client, next(flow)) for client in clients_of_kind]
        next(flow)


def deal_rest(
    tasks: Sequence[TaskId],
    placed: Mapping[TaskId, int],
    quota: Quotas,
    threads: Sequence[int],
) -> dict[TaskId, int]:
    """Place the remaining tasks within the quotas, each on the client with fewest tasks of its sub-topology."""
    extras = quota.extras
    dealt = dict(placed)
    load = Counter(placed.values())
    extras -= sum(load[client] > share for client, share in enumerate(quota.share))
    rivals = sorted(
        (client for client in quota.extra if load[client] <= quota.share[client]), key=lambda c: (-threads[c], c)
    )
    chosen = set(rivals[:extras])
    places = [share + (client in chosen) - load[client] for client, share in enumerate(quota.share)]
    spread: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for task, client in placed.items():
        spread[task.subtopology][client] += 1
    rest: defaultdict[int, list[TaskId]] = defaultdict(list)
    for task in tasks:
        if task not in placed:
            rest[task.subtopology].append(task)
    for subtopology, waiting in rest.items():
        kin = spread[subtopology]
        queue = [
            (kin[client], pressure(load[client], threads[client]), client)
            for client, open_places in enumerate(places)
            if open_places > 0
        ]
        heapq.heapify(queue)
        for task in waiting:
            related, _, client = queue[0]
            dealt[task] = client
            load[client] += 1
            places[client] -= 1
            if places[client]:
                heapq.heapreplace(queue, (related + 1, pressure(load[client], threads[client]), client))
            else:
                heapq.heappop(queue)
    return dealt
