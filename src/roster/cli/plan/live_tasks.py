"""`roster plan --assignor tasks --group`: the plan that the leader of a live group of tasks would make now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from roster.assignors import tasks as task_assignor
from roster.cli.errors import UserError
from roster.cli.output import print_json, print_table
from roster.cli.plan.output import explain_tasks, tasks_as_json
from roster.member.task_options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roster.assignors.tasks import TaskPlan
    from roster.cli.options import Target
    from roster.client import LiveTasks


def plan_tasks(group: str, target: Target, options: Mapping[str, int], *, explained: bool, as_document: bool) -> None:
    """Print the plan."""
    from roster.cli.admin import admin  # noqa: PLC0415  the client is not needed for lines
    from roster.cli.groups.describe import member_labels  # noqa: PLC0415
    from roster.client import GroupEmptyError, GroupTypeError, live_tasks, runs_tasks  # noqa: PLC0415
    from roster.client.live_group import require_stable_consumers  # noqa: PLC0415

    with admin(target) as cluster:
        description = cluster.describe_group(group)
    try:
        require_stable_consumers(description)
    except (GroupEmptyError, GroupTypeError) as error:
        raise UserError(f"--group: {error}") from error
    if not runs_tasks(description):
        raise UserError(f"--assignor: {group} uses {description.protocol}; its members run no tasks")
    live = live_tasks(description)
    defaults = {name: getattr(TaskOptions, name) for name in ("acceptable_lag", "max_warmups")}
    plan = task_assignor.assign(live.problem(**{"standbys": live.standbys, **defaults, **options}))
    labels = {} if as_document else member_labels(description.members)
    names = {process: " ".join(labels.get(each, each) for each in ids) for process, ids in live.members.items()}
    named = task_assignor.TaskPlan({names[process]: each for process, each in plan.clients.items()}, plan.followup)
    moves = _moves(live, plan, names)
    if as_document:
        print_json({**tasks_as_json(named), "moves": moves})
        return
    explain_tasks(named)
    if explained or moves:
        click.echo()
        rows = [(move["task"], move["from"], move["to"], move["why"]) for move in moves]
        print_table(("task", "from", "to", "why"), rows, "nothing moves")


def _moves(live: LiveTasks, plan: TaskPlan, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the active tasks that would run elsewhere at once."""
    process_of = {member: process for process, members in live.members.items() for member in members}
    runs_on = {task: process for process, each in plan.clients.items() for task in each.active}
    moves = []
    for each in live.tasks:
        before = None if each.owner is None else process_of.get(each.owner)
        after = runs_on.get(each.task)
        if after is not None and after != before:
            gap = live.clients[after].lags.get(each.task)
            why = "it runs nowhere" if before is None else "balance"
            if each.stateful:
                why += ", without a copy there" if gap is None else f", the copy there is {gap} records behind"
            source = None if before is None else names[before]
            moves.append({"task": str(each.task), "from": source, "to": names[after], "why": why})
    return moves
