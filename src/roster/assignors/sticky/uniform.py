"""Balance for members that all subscribe to the same topics, in time linear in the partitions (KAFKA-9987).

Every member keeps its partitions up to its quota. Partitions above a quota or without an owner go round-robin to
members below their quota. No plan moves fewer: a member loses only what is above its quota, and the larger quotas go to
members that already have as many partitions.
"""

from __future__ import annotations

import numpy as np

from roster.assignors.arrays import deal, rank_within, stable_order
from roster.model import NO_OWNER, Problem
from roster.model.arrays import Bool, Int32, Int64


def balance(problem: Problem, owner_before: Int32, members: Int64) -> Int32:
    """Return [partitions] the owner of every partition.

    members: ascending, at least one; all subscribe to all topics.
    """
    size = problem.partition_count
    quota, spare = divmod(size, len(members))
    place = np.full(len(problem.members) + 1, NO_OWNER, dtype=np.int32)
    place[members] = np.arange(len(members), dtype=np.int32)
    has = place[owner_before]
    load = np.bincount(has + 1, minlength=len(members) + 1)[1:]

    fuller = (load > quota).nonzero()[0][:spare]
    limit = np.full(len(members), quota, dtype=np.int64)
    limit[fuller] += 1
    over = load > limit
    if over.any():
        _give_up(problem, has, limit, over)
        load = np.minimum(load, limit)

    free = (has < 0).nonzero()[0]
    if len(free):
        lack = quota - np.minimum(load, quota)
        plain = (limit == quota).nonzero()[0]
        next_fuller = plain[stable_order(lack[plain], quota + 1)][: spare - len(fuller)]
        has[free] = np.concatenate((deal(lack), next_fuller))
    return members[has].astype(np.int32)


def _give_up(problem: Problem, has: Int32, limit: Int64, over: Bool) -> None:
    """Unassign the partitions that members own above their limit, evenly from all topics (KAFKA-16277).

    A member's partitions are ordered by number, then topic; those past the limit are unassigned.
    """
    candidates = np.flatnonzero(np.append(over, False)[has])
    number = problem.number_of()[candidates]
    candidates = candidates[stable_order(number, int(number.max()) + 1)]
    owner = has[candidates]
    has[candidates[rank_within(owner, len(limit)) >= limit[owner]]] = NO_OWNER
