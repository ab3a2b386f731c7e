"""Plans of several assignors for a live group, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from roster.assignors import evaluate_claims
from roster.cli.output import print_json, print_table
from roster.cli.plan.assignor_name import evaluate_or_fail
from roster.cli.plan.output import as_json, explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roster.assignors import Assignor, Evaluation
    from roster.client import LiveGroup


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
        f"{description.group_id}: {len(problem.members)} members, {problem.partition_count} partitions of "
        f"{len(problem.topics)} topics, protocol {description.protocol}; nothing is changed"
    )
    if live.unreadable:
        click.echo(f"their subscriptions cannot be read: {', '.join(live.unreadable)}")
    if explained:
        for name, evaluation in plans.items():
            click.echo()
            explain(name, evaluation)
        return
    rows = [_row("(now)", now, None), *(_row(name, each, each.moved) for name, each in plans.items())]
    print_table(("assignor", "moved", "at least", "partitions each", "even", "most lag"), rows, "no assignors")
    click.echo()
    _print_members(live, {"now": now, **plans})


def _row(name: str, found: Evaluation, moved: int | None) -> tuple[object, ...]:
    each = f"{found.least} to {found.most}"
    most_lag = None if found.lag is None else max(found.lag.values())
    return (name, moved, found.fewest_moves, each, "yes" if found.optimal else "no", most_lag)


def _print_members(live: LiveGroup, plans: dict[str, Evaluation]) -> None:
    """Print a line for each member: its number of partitions under each plan, and its lag in brackets."""
    columns = []
    for found in plans.values():
        lag, loads = found.lag, found.plan.loads().tolist()
        if lag is None:
            columns.append(loads)
        else:
            columns.append([f"{n} ({lag[m]})" for n, m in zip(loads, live.problem.members, strict=True)])
    clients = {member.member_id: member.client_id for member in live.description.members}
    rows = [
        (member, clients[member], *(column[i] for column in columns)) for i, member in enumerate(live.problem.members)
    ]
    print_table(("member", "client", *plans), rows, "no members", shorten=("member", "client"))


def _document(live: LiveGroup, now: Evaluation, plans: dict[str, Evaluation]) -> dict[str, Any]:
    current: dict[str, Any] = {
        "assignment": now.plan.assignment(),
        "balance": {"min": now.least, "max": now.most, "optimal": now.optimal},
    }
    return {
        "group": live.description.group_id,
        "state": live.description.state,
        "protocol": live.description.protocol,
        "unreadable": list(live.unreadable),
        "now": current if now.lag is None else {**current, "lag": now.lag},
        "plans": {name: as_json(found) for name, found in plans.items()},
    }
