"""Dry run of an assignor: its plan, with a proof of how good it is."""

from dataclasses import dataclass, replace

import numpy as np

from roster.assignors.base import Assignor
from roster.assignors.certificate import verify
from roster.assignors.claims import settle_claims
from roster.assignors.make_plan import make_plan
from roster.assignors.sticky import COOPERATIVE_STICKY, STICKY
from roster.model import NO_OWNER, Plan, Problem


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A plan, and what the certificate proves about it.

    optimal: no plan spreads the numbers of partitions more evenly. fewest_moves: the number of partitions that any
    optimal plan must move; None if that could not be proved. lag: {member: records to read}, None if unknown.
    """

    plan: Plan
    optimal: bool
    fewest_moves: int | None
    lag: dict[str, int] | None

    @property
    def moved(self) -> int:
        """Number of partitions that move from one member to another."""
        return int(self.plan.moved().sum())

    @property
    def least(self) -> int:
        """Number of partitions of the member with fewest."""
        return int(self.plan.loads().min(initial=self.most))

    @property
    def most(self) -> int:
        """Number of partitions of the member with most."""
        return int(self.plan.loads().max(initial=0))


def evaluate(assignor: Assignor, problem: Problem) -> Evaluation:
    """Make the assignor's plan and check it against the certificate.

    Racks count only for the sticky assignors: the others do not promise to put racks before moves. Raises ValueError
    for an invalid plan; the assignor's own errors pass through.
    """
    plan = make_plan(assignor, problem)
    if (plan.owner_before == NO_OWNER).all():  # the assignor ignored claims; moves are counted from them nevertheless
        owner_before, contested = settle_claims(problem)
        plan = replace(plan, owner_before=owner_before, contested=contested)
    if not problem.members:
        return Evaluation(plan, optimal=True, fewest_moves=0, lag=lag_by_member(plan))
    proved = problem if assignor in (STICKY, COOPERATIVE_STICKY) else replace(problem, racks=None)
    proof = verify(proved, plan)
    fewest: int | None = None
    if proof.ok:
        fewest = int(plan.moved().sum())
    else:
        best = STICKY.assign(proved)
        if verify(proved, best).ok:
            fewest = int(best.moved().sum())
    return Evaluation(plan, proof.balanced, fewest, lag_by_member(plan))


def evaluate_claims(problem: Problem) -> Evaluation:
    """Evaluate the present assignment: a plan that gives each partition to the member that claims it."""
    owner = settle_claims(problem).owner_before
    plan = Plan.of(problem, owner, owner_before=owner)
    return Evaluation(plan, verify(problem, plan).balanced, None, lag_by_member(plan))


def lag_by_member(plan: Plan) -> dict[str, int] | None:
    """Return the lag of each member's partitions in records, None if the problem has no offsets."""
    problem = plan.problem
    if problem.lag is None:
        return None
    owned = plan.owner >= 0
    lag = np.zeros(len(problem.members), dtype=np.int64)
    np.add.at(lag, plan.owner[owned], problem.lag[owned])
    return dict(zip(problem.members, lag.tolist(), strict=True))
