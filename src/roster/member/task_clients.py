"""Clients of a `TaskProblem`, made from the members' subscriptions; members of one process are one client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from roster.assignors.tasks import Client
from roster.model.tasks import RUNNING, TaskId
from roster.wire.streams.subscription_info import SubscriptionInfo

_UNKNOWN_LAG = 1 << 63


def members_by_process(subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, list[str]]:
    """Return {process id as a UUID: its members, sorted}.

    Members of a later release are left out: their process is unknown, and they join again at once (`settle_versions`).
    """
    processes = defaultdict(list)
    for member in sorted(subscriptions):
        if not subscriptions[member].future:
            processes[_written(subscriptions[member].process_id)].append(member)
    return dict(processes)


def task_clients(subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, Client]:
    """{process id: its client}: a thread for each member, and of each task the best lag that any of them has.

    STATELESS stays what it is, which is no lag: such a task ran there, and there is nothing to restore.
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
                if known is None or _order(lag) < _order(known):
                    lags[task] = lag
        clients[process] = Client(len(members), lags)
    return clients


def _order(lag: int) -> int:
    """Running before stateless before the smaller count; what is not known last."""
    return lag if lag >= RUNNING else _UNKNOWN_LAG


def _written(process_id: bytes) -> str:
    digits = process_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
