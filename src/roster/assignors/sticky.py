"""As balanced as the subscriptions allow, and of those plans one that moves least (KIP-54, KIP-341, KIP-429).

`sticky` hands everything over at once. `cooperative-sticky` makes the same decision and withholds for one round what
another member still claims; the next round finds it free and gives it out, so a group rests after two rounds at most.
"""

from __future__ import annotations

import numpy as np

from roster.assignors import equal
from roster.assignors.base import Assignor, ClaimSource, RebalanceProtocol
from roster.assignors.mixed import balance_mixed
from roster.assignors.ownership import settle, to_withhold
from roster.model import NO_OWNER, Plan, Problem


def assign(problem: Problem) -> Plan:
    """Loads lexicographically fairest, then most rack matches where racks matter, then fewest moves."""
    held, contested = settle(problem)
    subscribes = np.array([len(topics) > 0 for topics in problem.subscriptions], dtype=np.bool_)
    busy = np.flatnonzero(subscribes[problem.subscription_of])
    racks = problem.racks
    by_rack = racks is not None and racks.tells_apart(busy.tolist())
    if not len(busy):
        owner = np.full(problem.partition_count, NO_OWNER, dtype=np.int32)
    elif len(np.unique(problem.subscription_of[busy])) == 1 and not by_rack:
        owner = equal.balance(problem, held, busy)
    else:
        owner = balance_mixed(problem, held, by_rack=by_rack)
    return Plan.of(problem, owner, held=held, contested=contested)


def assign_cooperatively(problem: Problem) -> Plan:
    """The same plan; what somebody else still claims is withheld."""
    plan = assign(problem)
    withheld = to_withhold(problem, plan.owner, plan.held)
    return Plan.of(problem, plan.owner, held=plan.held, withheld=withheld, contested=plan.contested)


STICKY = Assignor("sticky", (RebalanceProtocol.EAGER,), ClaimSource.STICKY_USER_DATA, assign)
COOPERATIVE_STICKY = Assignor(
    "cooperative-sticky",
    (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER),
    ClaimSource.FIELDS,
    assign_cooperatively,
)
