"""`make_plan`: calls an assignor and checks its plan."""

from dataclasses import replace
from typing import Any

import numpy as np

from roster.assignors.base import Assignor, RebalanceProtocol
from roster.assignors.claims import settle_claims, to_withhold
from roster.assignors.subscribers import is_subscribed
from roster.model import NO_OWNER, Plan, Problem


def make_plan(assignor: Assignor, problem: Problem) -> Plan:
    """Return the assignor's plan, checked; a cooperative plan withholds partitions that other members still claim.

    Raises ValueError that names the invalid field of the plan; the assignor's own errors pass through.
    """
    answer: Any = assignor.assign(problem)
    if not isinstance(answer, Plan):
        raise ValueError(f"assign() must return a Plan, not {type(answer).__name__}; see Plan.from_assignment")
    plan = answer
    if plan.problem is not problem:
        if plan.problem.members != problem.members or plan.problem.topics != problem.topics:
            raise ValueError("problem: the plan is for other members or topics than the problem")
        plan = replace(plan, problem=problem)
    _check_owners(problem, plan)
    plan.check_user_data()
    if RebalanceProtocol.COOPERATIVE in assignor.supported_protocols:
        plan = _withhold_claimed(problem, plan)
    return plan


def _check_owners(problem: Problem, plan: Plan) -> None:
    owner = plan.owner
    if owner.shape != (problem.partition_count,):
        raise ValueError(f"owner: has {owner.size} entries for {problem.partition_count} partitions")
    if not len(owner):
        return
    if owner.min() < NO_OWNER or owner.max() >= len(problem.members):
        index = int(np.argmax((owner < NO_OWNER) | (owner >= len(problem.members))))
        raise ValueError(
            f"owner[{index}] ({problem.topic_partition(index)}): {int(owner[index])} is not a member's index;"
            f" there are {len(problem.members)}"
        )
    if len(problem.subscriptions) <= 1:
        return
    topic = problem.topic_of()
    owned = np.flatnonzero(owner != NO_OWNER) if owner.min() == NO_OWNER else None
    fits = is_subscribed(problem, owner, topic) if owned is None else is_subscribed(problem, owner[owned], topic[owned])
    if not fits.all():
        index = int(np.argmin(fits) if owned is None else owned[np.argmin(fits)])
        tp, member = problem.topic_partition(index), problem.members[int(owner[index])]
        raise ValueError(f"owner[{index}] ({tp}): {member} does not subscribe to {tp.topic}")


def _withhold_claimed(problem: Problem, plan: Plan) -> Plan:
    """Withhold partitions that a member other than the new owner still claims, unless the plan does so (KIP-429)."""
    claims, new_owner = problem.claims, plan.given
    taken = new_owner[claims.partition]
    if not ((taken != NO_OWNER) & (taken != claims.member)).any():
        return plan
    settled = bool((plan.owner_before != NO_OWNER).any())
    owner_before = plan.owner_before if settled else settle_claims(problem).owner_before
    withheld = to_withhold(problem, plan.owner, owner_before)
    return replace(plan, withheld=plan.withheld | withheld)
