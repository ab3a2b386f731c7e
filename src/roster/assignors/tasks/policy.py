"""Stateful and stateless tasks placed on clients by restoration lag.

Source: KIP-429 part II (tasks placed by the lag between a store and its changelog, standbys, deferred revocation) and
KIP-441 (acceptable recovery lag, warm-up replicas, probing rebalances). Each rebalance has a target: the balanced
placement that the group is to reach. Kafka's own assignor chooses it without regard to the present placement; here it
is the balanced placement nearest to the present one, so tasks that are balanced and caught up stay where they are. The
target restores the fewest tasks; given that, it moves the fewest running ones; given that, it has the least sum of
lags.

A caught-up copy is kept until the copy that replaces it has caught up. Caught-up stores count first towards the copies
of a task; a target that has none of them is restored as a warm-up. Stateless tasks are balanced by themselves; the
stateful ones decide only which clients get one more of them.

Lag is in changelog records. `RUNNING` marks the client that runs the active task, and so does `STATELESS` for a
stateless task. While its store is being restored, the owner of a task reports the store's lag, and has no more right to
the task than the nearest other copy. A client that does not name a task, or names it with any other negative lag, would
restore its store from the beginning.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from roster.assignors.tasks.least_cost import TaskCosts, least_cost
from roster.assignors.tasks.quotas import place, quotas
from roster.assignors.tasks.standbys import target_standbys
from roster.model.tasks import RUNNING, STATELESS, TaskId

WHOLE_LOG = 1 << 62
"""Lag of a task whose store would be restored from the beginning."""

_MOST_GAP = 1 << 31
"""Cost of restoring a whole store, one more than the largest gap that a subscription can carry."""


@dataclass(frozen=True, slots=True)
class Client:
    """A process: its number of stream threads (cores), and the lag of each task that it runs or has a store of.

    rack: None if not known; copies of a task go to different racks if possible.
    restoring: tasks of `lags` that it runs while their stores are being restored; they stay unless another is nearer.
    """

    threads: int = 1
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    rack: str | None = None
    restoring: Collection[TaskId] = frozenset()


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
        for option, least in (("standbys", 0), ("acceptable_lag", 0), ("max_warmups", 1)):
            if getattr(self, option) < least:
                raise ValueError(f"{option} is {getattr(self, option)}; it must be at least {least}")


@dataclass(slots=True)
class ClientTasks:
    """Tasks that one client runs, replicates, and restores ahead of taking over; each list sorted."""

    active: list[TaskId] = field(default_factory=list)
    standby: list[TaskId] = field(default_factory=list)
    warmup: list[TaskId] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The placement; `followup` asks for another rebalance when a warm-up or a target standby has caught up.

    It is False while only standbys are being restored for which no task waits, as in KIP-441. Members rejoin after
    these, too (`roster.member.task_assignor.CatchUp`): where racks are known, a copy may then have a better place.
    """

    clients: dict[str, ClientTasks]
    followup: bool


def assign(problem: TaskProblem) -> TaskPlan:
    """Return the plan for every task; it does not depend on the order of tasks and clients."""
    if not problem.clients:
        return TaskPlan({}, followup=False)
    placing = _Placing(problem)
    placing.choose_target_actives()
    placing.choose_target_standbys()
    placing.move_only_to_the_caught_up()
    placing.replace_only_by_the_caught_up()
    placing.place_stateless()
    return placing.plan()


class _Placing:
    """One run of the assignor; tasks are sorted, and clients numbered so that of equal ones the lower gets a task.

    Those with fewer stateless tasks come first: a stateful task that is new moves none of these.
    """

    def __init__(self, problem: TaskProblem) -> None:
        self.problem = problem
        stateless = set(problem.stateless)
        claims = {
            name: sum(lag in (RUNNING, STATELESS) and task in stateless for task, lag in client.lags.items())
            for name, client in problem.clients.items()
        }
        self.names = sorted(problem.clients, key=lambda name: (claims[name] / problem.clients[name].threads, name))
        self.threads = [problem.clients[name].threads for name in self.names]
        self.stateful = sorted(set(problem.stateful))
        self.stateless = sorted(set(problem.stateless))
        self.lags, self.running = _lags_by_task(problem, self.names)
        self.caught_up, self.partial = self._stores()
        self.nearest = {task: self._nearest(task) for task in self.stateful}
        for task, nearest in self.nearest.items():
            if nearest is not None and self.running.get(task) not in nearest:
                self.running.pop(task, None)
        self.target: dict[TaskId, int] = {}
        self.target_standbys: dict[TaskId, set[int]] = {}
        self.actives: dict[TaskId, int] = {}
        self.standbys: dict[TaskId, list[int]] = {}
        self.warmups: list[tuple[TaskId, int]] = []
        self.followup = False

    def choose_target_actives(self) -> None:
        """Choose the target of active tasks: balanced, fewest restorations, then fewest moves, then least lag."""
        quota = quotas(len(self.stateful), self.threads)
        self.target = place(self.stateful, self.running, self.nearest, quota, self.threads)
        if any(0 < lag < WHOLE_LOG for task in self.stateful for lag in self.lags.get(task, {}).values()):
            costs = {task: self._costs(task) for task in self.stateful}
            self.target = least_cost(self.target, costs, quota)

    def _costs(self, task: TaskId) -> TaskCosts:
        """Return costs that order placements by tasks to restore, then running tasks to move, then the sum of gaps."""
        move = (len(self.stateful) + 1) * _MOST_GAP
        restore = (len(self.stateful) + 1) * move
        nearest, running = self.nearest[task], self.running.get(task)

        def cost(client: int | None, lag: int) -> int:
            gap = min(max(lag, 0), _MOST_GAP)
            restored = nearest is not None and client not in nearest
            return restored * restore + (running is not None and client != running) * move + gap

        cost_by_client = {client: cost(client, lag) for client, lag in self.lags.get(task, {}).items()}
        return TaskCosts(cost_by_client, cost(None, WHOLE_LOG))

    def choose_target_standbys(self) -> None:
        """Choose the targets of standbys."""
        if not min(self.problem.standbys, len(self.names) - 1):
            self.target_standbys = {task: set() for task in self.stateful}
            return
        self.target_standbys = target_standbys(
            self.problem.standbys,
            self.target,
            {task: [c for c in held if c != self.target[task]] for task, held in self.caught_up.items()},
            {task: [c for c in held if c != self.target[task]] for task, held in self.partial.items()},
            self.threads,
            [self.problem.clients[name].rack for name in self.names],
            self.problem.max_warmups if self.problem.acceptable_lag < WHOLE_LOG else len(self.lags) * len(self.names),
        )

    def move_only_to_the_caught_up(self) -> None:
        """Run each active task where its store is nearest to the end of the log: on its target if that is as near."""
        load = Counter[int]()
        waiting = []
        for task in self.stateful:
            nearest = self.nearest[task]
            if nearest is None or self.target[task] in nearest:
                self.actives[task] = self.target[task]
                load[self.target[task]] += 1
            else:
                waiting.append((task, nearest))
        for task, nearest in waiting:
            lag = self.lags[task]
            owner = self.running.get(task)
            if owner is None:
                owner = min(nearest, key=lambda client: (lag[client], load[client] / self.threads[client], client))
            load[owner] += 1
            self.actives[task] = owner

    def replace_only_by_the_caught_up(self) -> None:
        """Keep caught-up stores as standbys until the targets have caught up; warm-ups restore the targets.

        A standby that is not caught up does not count as a warm-up (KIP-441, max.warmup.replicas). The nearest to the
        end of the log come first, so a warm-up continues until it is done.
        """
        replicas = min(self.problem.standbys, len(self.names) - 1)
        pending: list[tuple[int, bool, TaskId, int]] = []
        for task in self.stateful:
            if (settled := self._settled_copies(task)) is not None:
                self.standbys[task] = settled
                continue
            ready, kept, behind = self._copies(task)
            if len(ready) + len(kept) > replicas:
                kept = kept[: max(replicas - len(ready), 0)]
            if not behind:
                self.standbys[task] = ready + kept
                continue
            target, lag = self.target[task], self.lags.get(task, {})
            ordered = sorted((client != target, lag.get(client, WHOLE_LOG), client) for client in behind)
            room = max(replicas - len(ready) - len(kept), 0)
            self.standbys[task] = [*ready, *kept, *(client for _, _, client in ordered[:room])]
            self.followup |= room > 0 and not ordered[0][0]
            pending += [(gap, other, task, client) for other, gap, client in ordered[room:]]
        self.warmups = [(task, client) for _, _, task, client in sorted(pending)[: self.problem.max_warmups]]
        self.followup |= bool(self.warmups)

    def _settled_copies(self, task: TaskId) -> list[int] | None:
        """Return the standbys of a task that needs no change: all targets are caught up, or the task has no store.

        None if the task needs one.
        """
        active, standbys = self.actives[task], self.target_standbys[task]
        if self.target[task] != active:
            return None
        clients = self.caught_up.get(task)
        if clients is None:
            return None if task in self.lags else sorted(standbys)
        if len(clients) == len(standbys) + 1 and active in clients and standbys.issubset(clients):
            return [client for client in clients if client != active]
        return None

    def _copies(self, task: TaskId) -> tuple[list[int], list[int], list[int]]:
        """Return three lists without the active client: caught-up targets, other caught-up clients, other targets."""
        active, target, standbys = self.actives[task], self.target[task], self.target_standbys[task]
        if self.problem.acceptable_lag >= WHOLE_LOG:
            return sorted((standbys | {target}) - {active}), self._kept(task, (standbys | {target})), []
        clients = self.caught_up.get(task)
        if not clients:
            return [], [], [client for client in (*standbys, target) if client != active]
        ready = [client for client in clients if client != active and (client == target or client in standbys)]
        behind = standbys.difference(clients)
        behind.discard(active)
        if target != active and target not in clients:
            behind.add(target)
        return ready, self._kept(task, standbys) if len(clients) > len(ready) else [], list(behind)

    def _kept(self, task: TaskId, targets: set[int]) -> list[int]:
        """Return the clients that are caught up on a task, do not run it, and are not among its targets."""
        active, target = self.actives[task], self.target[task]
        return [c for c in self.caught_up.get(task, ()) if c not in (active, target) and c not in targets]

    def place_stateless(self) -> None:
        """Balance stateless tasks by themselves.

        If they do not divide evenly, clients with fewer stateful tasks get one more, in the target, then at present.
        Otherwise tasks stay where they run.
        """
        quota = quotas(len(self.stateless), self.threads)
        target, running = Counter(self.target.values()), Counter(self.actives.values())
        loads = {
            client: tuple(
                (count[client] + quota.share[client] + 1) / self.threads[client] for count in (target, running)
            )
            for client in quota.extra
        }
        rank = {load: place for place, load in enumerate(sorted(set(loads.values())))}
        first = {client: rank[load] for client, load in loads.items()}
        nowhere = dict.fromkeys(self.stateless)
        self.actives |= place(self.stateless, self.running, nowhere, quota, self.threads, first)

    def plan(self) -> TaskPlan:
        clients = {name: ClientTasks() for name in self.names}
        for task in sorted(self.actives):
            clients[self.names[self.actives[task]]].active.append(task)
        for task in self.stateful:
            for client in self.standbys[task]:
                clients[self.names[client]].standby.append(task)
        for task, client in sorted(self.warmups):
            clients[self.names[client]].warmup.append(task)
        return TaskPlan(clients, self.followup)

    def _stores(self) -> tuple[dict[TaskId, list[int]], dict[TaskId, list[int]]]:
        """Return the clients with a store of each task, nearest first: within the acceptable lag, and beyond it."""
        caught_up: dict[TaskId, list[int]] = {}
        partial: dict[TaskId, list[int]] = {}
        most = min(self.problem.acceptable_lag, WHOLE_LOG - 1)
        for task in self.stateful:
            if lags := self.lags.get(task):
                clients = sorted(lags, key=lags.__getitem__)  # stable, so ties are in client order
                if lags[clients[-1]] <= most:
                    caught_up[task] = clients
                    continue
                caught_up[task] = [client for client in clients if lags[client] <= most]
                if begun := [client for client in clients if most < lags[client] < WHOLE_LOG]:
                    partial[task] = begun
        return caught_up, partial

    def _nearest(self, task: TaskId) -> frozenset[int] | None:
        """Return the clients within the acceptable lag, else those with least lag; None if all clients are equal."""
        if self.problem.acceptable_lag >= WHOLE_LOG:
            return None
        if caught_up := self.caught_up.get(task):
            return frozenset(caught_up)
        partial = self.partial.get(task)
        if not partial:
            return None
        lags = self.lags[task]
        return frozenset(client for client in partial if lags[client] == lags[partial[0]])


def _lags_by_task(
    problem: TaskProblem, names: Sequence[str]
) -> tuple[defaultdict[TaskId, dict[int, int]], dict[TaskId, int]]:
    """Return {task: {client: lag}} for clients with a store, and the client that runs each task.

    An unknown lag counts as the whole log. If two clients claim to run a task, neither claim counts.
    """
    lags: defaultdict[TaskId, dict[int, int]] = defaultdict(dict)
    running: dict[TaskId, int] = {}
    contested: set[TaskId] = set()
    stateless = set(problem.stateless)
    for client, name in enumerate(names):
        for task, reported in problem.clients[name].lags.items():
            lag = RUNNING if reported == STATELESS and task in stateless else reported
            runs_here = lag == RUNNING or task in problem.clients[name].restoring
            if runs_here and running.setdefault(task, client) != client:
                contested.add(task)
            if lag != RUNNING and not 0 <= lag < WHOLE_LOG:
                lag = WHOLE_LOG
            lags[task][client] = lag
    for task in contested:
        del running[task]
    return lags, running
