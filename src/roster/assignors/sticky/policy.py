"""The sticky assignors: as balanced as subscriptions allow, then fewest moves (KIP-54, KIP-341, KIP-429).

`sticky` hands everything over at once. `cooperative-sticky` makes the same decision and withholds for one round what
another member still claims; the next round finds it free and assigns it, so a group rests after two rounds at most.
"""

from __future__ import annotations

import numpy as np

from roster.assignors.base import Assignor, ClaimSource, RebalanceProtocol
from roster.assignors.claims import settle_claims, to_withhold
from roster.assignors.sticky import general, uniform
from roster.assignors.subscribers import active_members
from roster.model import NO_OWNER, Plan, Problem


def assign(problem: Problem) -> Plan:
    """Assign with lexicographically fairest loads, then most rack matches where racks matter, then fewest moves."""
    owner_before, contested = settle_claims(problem)
    members = active_members(problem)
    racks = problem.racks
    by_rack = racks is not None and racks.tells_apart(members.tolist())
    if not len(members):
        owner = np.full(problem.partition_count, NO_OWNER, dtype=np.int32)
    elif len(np.unique(problem.subscription_of[members])) == 1 and not by_rack:
        owner = uniform.balance(problem, owner_before, members)
    else:
        owner = general.balance(problem, owner_before, by_rack=by_rack)
    return Plan.of(problem, owner, owner_before=owner_before, contested=contested)


def assign_cooperatively(problem: Problem) -> Plan:
    """Make the same plan, withholding what another member still claims."""
    plan = assign(problem)
    withheld = to_withhold(problem, plan.owner, plan.owner_before)
    return Plan.of(problem, plan.owner, owner_before=plan.owner_before, withheld=withheld, contested=plan.contested)


STICKY = Assignor("sticky", (RebalanceProtocol.EAGER,), ClaimSource.STICKY_USER_DATA, assign)
COOPERATIVE_STICKY = Assignor(
    "cooperative-sticky",
    (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER),
    ClaimSource.FIELDS,
    assign_cooperatively,
)
