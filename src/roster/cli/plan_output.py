"""A plan as JSON for machines and as tables for people."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from roster.assignors import COOPERATIVE_STICKY, STICKY, Assignor, ClaimSource
from roster.assignors.certificate import verify
from roster.assignors.claims import settle_claims
from roster.cli.collector import collector_paused
from roster.cli.output import print_table

if TYPE_CHECKING:
    from roster.assignors.tasks import TaskPlan
    from roster.model import Plan, Problem


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan, and what the certificate says of it.

    optimal: no plan spreads the numbers of partitions more evenly. fewest_moves: how many partitions a plan as even as
    can be must move at least; None if that could not be proved. lag: {member: records to read}, None if not known.
    """

    plan: Plan
    optimal: bool
    fewest_moves: int | None
    lag: dict[str, int] | None

    @property
    def moved(self) -> int:
        """Partitions that a member loses to another."""
        return int(self.plan.moved().sum())

    @property
    def least(self) -> int:
        """The fewest partitions of a member."""
        return int(self.plan.loads().min(initial=self.most))

    @property
    def most(self) -> int:
        """The most partitions of a member."""
        return int(self.plan.loads().max(initial=0))


def judge(assignor: Assignor, problem: Problem) -> Judged:
    """Let the assignor decide, and prove what can be proved of its decision.

    Only the sticky assignors promise to put racks before moves, so only of them the proof asks that.
    """
    plan = assignor.assign(problem)
    if assignor.claim_source is ClaimSource.NONE:  # it does not ask who has what, but people want to see what moves
        held, contested = settle_claims(problem)
        plan = replace(plan, owner_before=held, contested=contested)
    asked = problem if assignor in (STICKY, COOPERATIVE_STICKY) else replace(problem, racks=None)
    if not problem.members:
        return Judged(plan, optimal=True, fewest_moves=0, lag=lag_by_member(plan))
    proof = verify(asked, plan)
    fewest: int | None = None
    if proof.ok:
        fewest = int(plan.moved().sum())
    else:
        best = STICKY.assign(asked)
        if verify(asked, best).ok:
            fewest = int(best.moved().sum())
    return Judged(plan, proof.balanced, fewest, lag_by_member(plan))


def lag_by_member(plan: Plan) -> dict[str, int] | None:
    """{member: records to read}, None when nobody knows the lag."""
    problem = plan.problem
    if problem.lag is None:
        return None
    owned = plan.owner >= 0
    lag = np.zeros(len(problem.members), dtype=np.int64)
    np.add.at(lag, plan.owner[owned], problem.lag[owned])
    return dict(zip(problem.members, lag.tolist(), strict=True))


def as_json(judged: Judged) -> dict[str, Any]:
    """The plan in the shape that `roster plan` prints."""
    transferring: dict[str, dict[str, str]] = {}
    for (topic, number), member in judged.plan.transferring().items():
        transferring.setdefault(topic, {})[str(number)] = member
    with collector_paused():
        assignment = judged.plan.assignment()
    document = {
        "assignment": assignment,
        "transferring": transferring,
        "moves": [
            {"topic": move.topic, "partition": move.partition, "from": move.source, "to": move.target, "why": move.why}
            for move in judged.plan.explain()
        ],
        "balance": {"min": judged.least, "max": judged.most, "optimal": judged.optimal},
        "moved": judged.moved,
        "fewest_moves": judged.fewest_moves,
    }
    return document if judged.lag is None else {**document, "lag": judged.lag}


def tasks_as_json(plan: TaskPlan) -> dict[str, Any]:
    """The same for `tasks`."""
    return {
        "clients": {
            name: {
                "active": [str(task) for task in tasks.active],
                "standby": [str(task) for task in tasks.standby],
                "warmup": [str(task) for task in tasks.warmup],
            }
            for name, tasks in plan.clients.items()
        },
        "followup": plan.followup,
    }


def explain(name: str, judged: Judged) -> None:
    """Print every move with its reason, and a summary."""
    plan = judged.plan
    moves = plan.explain()
    owned = int((plan.owner >= 0).sum())
    text = f"{name}: {owned - len(moves)} unchanged, {judged.moved} moved"
    if judged.fewest_moves is not None and judged.fewest_moves != judged.moved:
        text += f" (an even plan can do with {judged.fewest_moves})"
    placed = len(moves) - judged.moved
    text += f", {placed} placed that nobody had" if placed else ""
    waiting = int(plan.withheld.sum())
    text += f", {waiting} of them a round later, once let go" if waiting else ""
    even = "as even as can be" if judged.optimal else "not as even as can be"
    text += f"; {judged.least} to {judged.most} partitions each, {even}"
    if judged.lag is not None:
        text += f"; {min(judged.lag.values(), default=0)} to {max(judged.lag.values(), default=0)} records to read"
    click.echo(text)
    if plan.lag is not None and plan.lag.note:
        click.echo(plan.lag.note)
    rows = [(move.topic, move.partition, move.source, move.target, move.why) for move in moves]
    print_table(("topic", "partition", "from", "to", "why"), rows, "nothing moves", shorten=("topic", "from", "to"))


def explain_tasks(plan: TaskPlan) -> None:
    """Print who runs, replicates and warms up what."""
    rows = [
        (name, *(" ".join(map(str, listed)) or None for listed in (tasks.active, tasks.standby, tasks.warmup)))
        for name, tasks in plan.clients.items()
    ]
    print_table(("client", "active", "standby", "warm-up"), rows, "no clients")
    if plan.followup:
        click.echo("once the warm-ups have caught up, another rebalance moves the active tasks")
