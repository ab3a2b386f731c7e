"""A plan as JSON for machines and as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from roster.cli.output import print_table
from roster.cli.plan.collector import collector_paused

if TYPE_CHECKING:
    from roster.assignors import Evaluation
    from roster.assignors.tasks import TaskPlan


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return the plan in the shape that `roster plan` prints."""
    transferring: dict[str, dict[str, str]] = {}
    for (topic, number), member in evaluation.plan.transferring().items():
        transferring.setdefault(topic, {})[str(number)] = member
    with collector_paused():
        assignment = evaluation.plan.assignment()
    document = {
        "assignment": assignment,
        "transferring": transferring,
        "moves": [
            {"topic": move.topic, "partition": move.partition, "from": move.source, "to": move.target, "why": move.why}
            for move in evaluation.plan.explain()
        ],
        "balance": {"min": evaluation.least, "max": evaluation.most, "optimal": evaluation.optimal},
        "moved": evaluation.moved,
        "fewest_moves": evaluation.fewest_moves,
    }
    if evaluation.plan.user_data:
        document["user_data"] = {member: data.hex() for member, data in evaluation.plan.user_data.items()}
    return document if evaluation.lag is None else {**document, "lag": evaluation.lag}


def tasks_as_json(plan: TaskPlan) -> dict[str, Any]:
    """Return the plan of the assignor `tasks` as JSON."""
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


def explain(name: str, evaluation: Evaluation) -> None:
    """Print every move with its reason, and a summary."""
    plan = evaluation.plan
    moves = plan.explain()
    owned = int((plan.owner >= 0).sum())
    text = f"{name}: {owned - len(moves)} unchanged, {evaluation.moved} moved"
    if evaluation.fewest_moves is not None and evaluation.fewest_moves != evaluation.moved:
        text += f" (an even plan can do with {evaluation.fewest_moves})"
    placed = len(moves) - evaluation.moved
    text += f", {placed} placed that had no owner" if placed else ""
    waiting = int(plan.withheld.sum())
    text += f", {waiting} of them a round later, once let go" if waiting else ""
    even = "as even as can be" if evaluation.optimal else "not as even as can be"
    text += f"; {evaluation.least} to {evaluation.most} partitions each, {even}"
    if evaluation.lag is not None:
        text += (
            f"; {min(evaluation.lag.values(), default=0)} to {max(evaluation.lag.values(), default=0)} records to read"
        )
    click.echo(text)
    if plan.lag is not None and plan.lag.note:
        click.echo(plan.lag.note)
    rows = [(move.topic, move.partition, move.source, move.target, move.why) for move in moves]
    print_table(("topic", "partition", "from", "to", "why"), rows, "nothing moves", shorten=("topic", "from", "to"))


def explain_tasks(plan: TaskPlan) -> None:
    """Print the active, standby and warm-up tasks of each client."""
    rows = [
        (name, *(" ".join(map(str, listed)) or None for listed in (tasks.active, tasks.standby, tasks.warmup)))
        for name, tasks in plan.clients.items()
    ]
    print_table(("client", "active", "standby", "warm-up"), rows, "no clients")
    if plan.followup:
        click.echo("once the warm-ups have caught up, another rebalance moves the active tasks")
