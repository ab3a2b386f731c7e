"""Plans as JSON for machines and as tables for people: of one assignor, or of several side by side."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from roster.assignors import evaluate_claims
from roster.cli.output import print_json, print_table
from roster.cli.plan.options import evaluate_or_fail
from roster.console.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roster.assignors import Assignor, Evaluation
    from roster.assignors.tasks import TaskPlan
    from roster.client import LiveGroup


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic collector, which would walk a million small lists over and over and more than double the time.

    For commands only: the collector belongs to the whole process.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def as_json(evaluation: Evaluation) -> dict[str, object]:
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


def tasks_as_json(plan: TaskPlan) -> dict[str, object]:
    """Return the plan of the assignor `tasks` as JSON."""
    return {
        "clients": {
            name: {kind: [*map(str, getattr(tasks, kind))] for kind in ("active", "standby", "warmup")}
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


def compare(live: LiveGroup, assignors: Sequence[Assignor], *, as_document: bool, explained: bool) -> None:
    """Print the plan of each assignor for the group as it is now."""
    problem = live.problem
    now = evaluate_claims(problem)
    others = replace(problem, user_data=(None,) * len(problem.members))  # user data is of the group's own assignor
    plans = {
        assignor.name: evaluate_or_fail(assignor, problem if assignor.name == live.description.protocol else others)
        for assignor in assignors
    }
    if as_document:
        print_json(_document(live, now, plans))
        return
    description = live.description
    click.echo(
        f"{description.group_id}: {counted(len(problem.members), 'member')}, "
        f"{counted(problem.partition_count, 'partition')} of {counted(len(problem.topics), 'topic')}, "
        f"protocol {description.protocol}; nothing is changed"
    )
    if live.unreadable:
        click.echo(f"their subscriptions cannot be read: {', '.join(live.unreadable)}")
    if explained:
        for name, evaluation in plans.items():
            click.echo()
            explain(name, evaluation)
        return
    rows = [_row("(now)", now, None), *(_row(name, evaluation, evaluation.moved) for name, evaluation in plans.items())]
    print_table(("assignor", "moved", "at least", "partitions each", "even", "most lag"), rows, "no assignors")
    click.echo()
    _print_members(live, {"now": now, **plans})


def _row(name: str, evaluation: Evaluation, moved: int | None) -> tuple[object, ...]:
    partitions_each = f"{evaluation.least} to {evaluation.most}"
    most_lag = None if evaluation.lag is None else max(evaluation.lag.values())
    return (name, moved, evaluation.fewest_moves, partitions_each, "yes" if evaluation.optimal else "no", most_lag)


def _print_members(live: LiveGroup, plans: dict[str, Evaluation]) -> None:
    """Print a line for each member: its number of partitions under each plan, and its lag in brackets."""
    columns = []
    for evaluation in plans.values():
        lag, loads = evaluation.lag, evaluation.plan.loads().tolist()
        if lag is None:
            columns.append(loads)
        else:
            columns.append([f"{n} ({lag[m]})" for n, m in zip(loads, live.problem.members, strict=True)])
    clients = {member.member_id: member.client_id for member in live.description.members}
    rows = [
        (member, clients[member], *(column[i] for column in columns)) for i, member in enumerate(live.problem.members)
    ]
    print_table(("member", "client", *plans), rows, "no members", shorten=("member", "client"))


def _document(live: LiveGroup, now: Evaluation, plans: dict[str, Evaluation]) -> dict[str, object]:
    current: dict[str, object] = {
        "assignment": now.plan.assignment(),
        "balance": {"min": now.least, "max": now.most, "optimal": now.optimal},
    }
    return {
        "group": live.description.group_id,
        "state": live.description.state,
        "protocol": live.description.protocol,
        "unreadable": list(live.unreadable),
        "now": current if now.lag is None else {**current, "lag": now.lag},
        "plans": {name: as_json(evaluation) for name, evaluation in plans.items()},
    }
