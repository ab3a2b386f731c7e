"""`roster plan --assignor tasks --group`: the plan that the leader of a live group of tasks would make now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from roster.assignors import tasks as task_assignor
from roster.cli.errors import UserError
from roster.cli.output import print_json, print_table
from roster.cli.plan.output import explain_tasks, tasks_as_json
from roster.member.task_options import TaskOptions
from roster.model.options import declared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from roster.assignors.tasks import TaskPlan
    from roster.cli.options import Target
    from roster.client import LiveTasks

_PREFIX = "With --group and -a tasks: "
_HELP = {
    "standbys": "copies of each task with state. Default: what every task has now.",
    "acceptable_lag": "records that a copy may be behind and count as caught up. Default: 10000.",
    "max_warmups": "copies restored at once to take tasks over. Default: 2.",
}


def task_group_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that a group's leader has, which the cluster does not know."""
    for name, text in reversed(_HELP.items()):
        option = declared(TaskOptions)[name]
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, type=click.IntRange(option.least, option.most), help=_PREFIX + text)(command)
    return command


def check_task_options(options: Mapping[str, int | None], *, used: bool) -> None:
    """Refuse options of the leader where nothing reads them."""
    given = [name for name, value in options.items() if value is not None]
    if given and not used:
        raise UserError(f"--{given[0].replace('_', '-')} goes with --group and --assignor tasks; problems carry it")


def plan_tasks(
    group: str, target: Target, options: Mapping[str, int | None], *, explained: bool, as_document: bool
) -> int:
    """Print the plan; the exit code."""
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
    chosen = {
        "standbys": live.standbys,
        "acceptable_lag": TaskOptions.acceptable_lag,
        "max_warmups": TaskOptions.max_warmups,
    }
    chosen |= {name: value for name, value in options.items() if value is not None}
    plan = task_assignor.assign(live.problem(**chosen))
    if as_document:
        ids = {process: " ".join(members) for process, members in live.members.items()}
        print_json({**tasks_as_json(_named(plan, ids)), "moves": _moves(live, plan, ids)})
        return 0
    labels = member_labels(description.members)
    names = {process: " ".join(labels[member] for member in members) for process, members in live.members.items()}
    explain_tasks(_named(plan, names))
    moves = _moves(live, plan, names)
    if explained or moves:
        click.echo()
        rows = [(move["task"], move["from"], move["to"], move["why"]) for move in moves]
        print_table(("task", "from", "to", "why"), rows, "nothing moves")
    return 0


def _named(plan: TaskPlan, names: Mapping[str, str]) -> TaskPlan:
    return task_assignor.TaskPlan({names[process]: each for process, each in plan.clients.items()}, plan.followup)


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
