"""Clients of a `TaskProblem`, made from the members' subscriptions; members of one process are one client."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from roster.assignors.tasks import Client
from roster.model import TopicPartition
from roster.model.tasks import RUNNING, STATELESS, TaskId
from roster.wire.streams.subscription_info import SubscriptionInfo


def members_by_process(subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, list[str]]:
    """Return {process id as a UUID: its members, sorted}.

    Members of a later release are left out: their process is unknown, and they rejoin at once (`settle_versions`).
    """
    processes = defaultdict(list)
    for member in sorted(subscriptions):
        if not subscriptions[member].future:
            processes[_written(subscriptions[member].process_id)].append(member)
    return dict(processes)


def running_tasks(
    owned: Mapping[str, Collection[TopicPartition]], sources: Mapping[TaskId, Collection[TopicPartition]]
) -> dict[str, list[TaskId]]:
    """Return {member: the tasks it runs}; a member runs a task if it owns every source partition of it.

    owned: the partitions that each member still owns, from its subscription. sources: the source partitions of each
    task.
    """
    tasks: defaultdict[TopicPartition, list[TaskId]] = defaultdict(list)
    for task, partitions in sources.items():
        for partition in partitions:
            tasks[partition].append(task)
    running = {}
    for member, partitions in owned.items():
        counts = Counter(task for partition in set(partitions) for task in tasks[partition])
        running[member] = sorted(task for task, count in counts.items() if count == len(set(sources[task])))
    return running


def task_clients(
    subscriptions: Mapping[str, SubscriptionInfo],
    running: Mapping[str, Collection[TaskId]] | None = None,
    racks: Mapping[str, str | None] | None = None,
    *,
    acceptable_lag: int = 10_000,
) -> dict[str, Client]:
    """Return {process id: its client}, with the threads of its members and the least lag of each task among them.

    running: the result of `running_tasks`; in the messages, running tasks and standby tasks without a gap both have lag
    0. A running task with a gap above `acceptable_lag` keeps that lag: its store is still being restored. racks: by
    member; a process is in the rack of its first member that has one. STATELESS is kept, as it is not a lag.
    """
    ids: dict[tuple[int, int], TaskId] = {}
    clients = {}
    for process, members in members_by_process(subscriptions).items():
        lags: dict[TaskId, int] = {}
        for member in members:
            tasks = subscriptions[member].tasks
            for key, lag in zip(
                zip(tasks.subtopology.tolist(), tasks.partition.tolist(), strict=True), tasks.lag.tolist(), strict=True
            ):
                task = ids.get(key) or ids.setdefault(key, TaskId(*key))
                known = lags.get(task)
                if known is None or lag < known:
                    lags[task] = lag
        runs = {task for member in members for task in (running or {}).get(member, ())}
        restoring = frozenset(task for task in runs if lags.get(task, RUNNING) > acceptable_lag)
        lags |= {task: RUNNING for task in runs - restoring if lags.get(task) != STATELESS}
        rack = next((racks[member] for member in members if racks.get(member)), None) if racks else None
        clients[process] = Client(sum(subscriptions[member].capacity for member in members), lags, rack, restoring)
    return clients


def _written(process_id: bytes) -> str:
    digits = process_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
