"""Stateful and stateless tasks placed on clients by restoration lag.

Source: KIP-429 part II (tasks placed by the lag between a store and its changelog, standbys, deferred revocation) and
KIP-441 (acceptable recovery lag, warm-up replicas, probing rebalances). Kafka's own assignor wishes for a placement
without looking at the one there is; here the wish is the balanced placement nearest to it, so what is balanced and
caught up stays where it is.

Lag is in changelog records. `RUNNING` marks the client that runs the active task, and for a stateless task `STATELESS`
does too; a client that does not name a task, or names it with any other negative lag, would restore it from the
beginning.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from roster.assignors.tasks.quotas import deal_rest, place_on_preferred, quotas
from roster.model.tasks import RUNNING, STATELESS, TaskId

WHOLE_LOG = 1 << 62
"""Lag of a task whose store would be rebuilt from the beginning."""


@dataclass(frozen=True, slots=True)
class Client:
    """A process with its number of stream threads and the lag of each task it runs or has a store of."""

    threads: int = 1
    lags: Mapping[TaskId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """Tasks to place and the clients; `standbys` per stateful task, `max_warmups` over all clients."""

    stateful: Collection[TaskId]
    stateless: Collection[TaskId]
    clients: Mapping[str, Client]
    standbys: int = 0
    acceptable_lag: int = 10_000
    max_warmups: int = 2

    def __post_init__(self) -> None:
        if both := set(self.stateful) & set(self.stateless):
            raise ValueError(f"task {min(both)} is given as stateful and as stateless")
        for name, client in self.clients.items():
            if client.threads < 1:
                raise ValueError(f"client {name!r} has {client.threads} threads; it needs at least 1")
        for option in ("standbys", "acceptable_lag", "max_warmups"):
            if getattr(self, option) < 0:
                raise ValueError(f"{option} is {getattr(self, option)}; it must not be negative")


@dataclass(slots=True)
class ClientTasks:
    """Tasks that one client runs, replicates, and restores ahead of taking over; each list sorted."""

    active: list[TaskId] = field(default_factory=list)
    standby: list[TaskId] = field(default_factory=list)
    warmup: list[TaskId] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The placement; `followup` asks for another rebalance once warm-ups have caught up."""

    clients: dict[str, ClientTasks]
    followup: bool


def assign(problem: TaskProblem) -> TaskPlan:
    """Place every task; the same plan under any order of tasks and clients."""
    if not problem.clients:
        return TaskPlan({}, followup=False)
    placing = _Placing(problem)
    placing.wish_for_balance()
    placing.wish_for_standbys()
    placing.move_only_to_the_caught_up()
    placing.fill_up_with_stateless()
    return placing.plan()


class _Placing:
    """One run of the assignor; clients are indices in name order, tasks are in task order."""

    def __init__(self, problem: TaskProblem) -> None:
        self.problem = problem
        self.names = sorted(problem.clients)
        self.threads = [problem.clients[name].threads for name in self.names]
        self.stateful = sorted(set(problem.stateful))
        self.stateless = sorted(set(problem.stateless))
        self.lags = _lags_by_task(problem, self.names)
        self.running = self._running()
        self.nearest = {task: self._nearest(task) for task in self.stateful}
        self.wished: dict[TaskId, int] = {}
        self.standbys: dict[TaskId, set[int]] = {}
        self.actives: dict[TaskId, int] = {}
        self.warmups: dict[TaskId, int] = {}
        self.followup = False

    def wish_for_balance(self) -> None:
        """Choose the balanced placement of stateful actives that restores least, then moves least."""
        quota = quotas(len(self.stateful), self.threads, [0] * len(self.names))
        placed = place_on_preferred(self.stateful, self.running, self.nearest, quota)
        self.wished = deal_rest(self.stateful, placed, quota, self.threads)

    def wish_for_standbys(self) -> None:
        """Give each stateful task its replicas, first to clients that hold its store, then to the least loaded."""
        replicas = min(self.problem.standbys, len(self.names) - 1)
        if not replicas:
            self.standbys = {task: set() for task in self.stateful}
            return
        self.standbys = {
            task: set(sorted(self._replicas_of(task), key=lambda client: (self.lags[task][client], client))[:replicas])
            if task in self.lags
            else set()
            for task in self.stateful
        }
        load = Counter(self.wished.values())
        for holders in self.standbys.values():
            load.update(holders)
        queue = [((load[client] + 1) / self.threads[client], client) for client in range(len(self.names))]
        heapq.heapify(queue)
        for task in self.stateful:
            passed_over = []
            while len(self.standbys[task]) < replicas:
                cost, client = heapq.heappop(queue)
                if client != self.wished[task] and client not in self.standbys[task]:
                    self.standbys[task].add(client)
                    load[client] += 1
                    cost = (load[client] + 1) / self.threads[client]
                passed_over.append((cost, client))
            for entry in passed_over:
                heapq.heappush(queue, entry)
        self._level_standbys(load)

    def _replicas_of(self, task: TaskId) -> list[int]:
        return [c for c, lag in self.lags[task].items() if lag < WHOLE_LOG and c != self.wished[task]]

    def _level_standbys(self, load: Counter[int]) -> None:
        """Move replicas one by one as long as that levels the load; a level placement stays as it is."""
        replicas_on: dict[int, set[TaskId]] = {client: set() for client in range(len(self.names))}
        for task, holders in self.standbys.items():
            for client in holders:
                replicas_on[client].add(task)
        while self._level_once(replicas_on, load):
            pass

    def _level_once(self, replicas_on: Mapping[int, set[TaskId]], load: Counter[int]) -> bool:
        """From the heaviest client on, move what lowers it below where the lightest eligible client then is."""
        moved = False
        queue = [((load[client] + 1) / self.threads[client], client) for client in range(len(self.names))]
        heapq.heapify(queue)
        for heavy in sorted(replicas_on, key=lambda client: (-load[client] / self.threads[client], client)):
            if queue[0][0] >= load[heavy] / self.threads[heavy]:
                continue
            for task in sorted(replicas_on[heavy]):
                if queue[0][0] >= load[heavy] / self.threads[heavy]:
                    break
                passed_over = []
                while queue and queue[0][0] < load[heavy] / self.threads[heavy]:
                    pressure, light = heapq.heappop(queue)
                    if light != self.wished[task] and light not in self.standbys[task]:
                        self.standbys[task] = self.standbys[task] - {heavy} | {light}
                        replicas_on[heavy].remove(task)
                        replicas_on[light].add(task)
                        load[heavy] -= 1
                        load[light] += 1
                        moved = True
                        heapq.heappush(queue, ((load[light] + 1) / self.threads[light], light))
                        break
                    passed_over.append((pressure, light))
                for entry in passed_over:
                    heapq.heappush(queue, entry)
        return moved

    def move_only_to_the_caught_up(self) -> None:
        """Run each active where its store is nearest to the log's end; restore it ahead where it is wished for.

        A replica at the wished owner takes no warm-up from the budget (KIP-441, max.warmup.replicas).
        """
        load = Counter[int]()
        budget = self.problem.max_warmups
        waiting = []
        for task in self.stateful:
            nearest = self.nearest[task]
            if nearest is None or self.wished[task] in nearest:
                self.actives[task] = self.wished[task]
                load[self.wished[task]] += 1
            else:
                waiting.append((task, nearest))
        for task, nearest in waiting:
            lag = self.lags[task]
            owner = self.running.get(task)
            if owner is None:
                owner = min(nearest, key=lambda client: (lag[client], load[client] / self.threads[client], client))
            load[owner] += 1
            self.actives[task] = owner
            self.followup = True
            if owner in self.standbys[task]:
                self.standbys[task] -= {owner}
                self.standbys[task] |= {self.wished[task]}
            elif budget:
                budget -= 1
                self.warmups[task] = self.wished[task]

    def fill_up_with_stateless(self) -> None:
        """Level the active load with stateless tasks; they have no store, so only balance and habit count."""
        load = Counter(self.actives.values())
        quota = quotas(len(self.stateless), self.threads, [load[client] for client in range(len(self.names))])
        nowhere = dict.fromkeys(self.stateless)
        placed = place_on_preferred(self.stateless, self.running, nowhere, quota)
        self.actives |= deal_rest(self.stateless, placed, quota, self.threads)

    def plan(self) -> TaskPlan:
        clients = {name: ClientTasks() for name in self.names}
        for task in sorted(self.actives):
            clients[self.names[self.actives[task]]].active.append(task)
        for task in self.stateful:
            for client in sorted(self.standbys[task]):
                clients[self.names[client]].standby.append(task)
        for task, client in sorted(self.warmups.items()):
            clients[self.names[client]].warmup.append(task)
        return TaskPlan(clients, self.followup)

    def _running(self) -> dict[TaskId, int]:
        """The client that runs each task; where two say so, neither is believed."""
        owners = {}
        for task, lags in self.lags.items():
            claims = [client for client, lag in lags.items() if lag == RUNNING]
            if len(claims) == 1:
                owners[task] = claims[0]
        return owners

    def _nearest(self, task: TaskId) -> frozenset[int] | None:
        """Return the clients within the acceptable lag, else those of least lag; None if no client has an advantage."""
        lags = self.lags.get(task)
        if lags is None or self.problem.acceptable_lag >= WHOLE_LOG:
            return None
        caught_up = frozenset(client for client, lag in lags.items() if lag <= self.problem.acceptable_lag)
        if caught_up:
            return caught_up
        least = min(lags.values())
        return frozenset(client for client, lag in lags.items() if lag == least < WHOLE_LOG) or None


def _lags_by_task(problem: TaskProblem, names: Sequence[str]) -> defaultdict[TaskId, dict[int, int]]:
    """Return {task: {client: lag}} for clients with a store; an unknown lag counts as the whole log."""
    lags: defaultdict[TaskId, dict[int, int]] = defaultdict(dict)
    stateless = set(problem.stateless)
    for client, name in enumerate(names):
        for task, lag in problem.clients[name].lags.items():
            if lag == STATELESS:
                lags[task][client] = RUNNING if task in stateless else WHOLE_LOG
            else:
                lags[task][client] = WHOLE_LOG if lag < RUNNING else min(lag, WHOLE_LOG)
    return lags
