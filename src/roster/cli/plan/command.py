"""`roster plan`: what an assignor would do, with problems from JSON lines or with a live group."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

import click
import numpy as np

from roster.assignors import ASSIGNORS, COOPERATIVE_STICKY
from roster.assignors import tasks as task_assignor
from roster.cli import strict_json
from roster.cli.errors import USAGE, UserError
from roster.cli.options import NAME, Target, cluster_options
from roster.cli.output import print_json_line
from roster.cli.plan.options import AssignorName, evaluate_or_fail
from roster.cli.plan.output import as_json, compare, explain, explain_tasks, tasks_as_json
from roster.cli.plan.problem_json import read_problem, read_tasks
from roster.cli.recorded import group_history
from roster.cli.strict_json import InputError
from roster.model.offsets import AUTO_OFFSET_RESETS, AutoOffsetReset, is_auto_offset_reset

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roster.assignors import Assignor
    from roster.client import LiveGroup

TASKS = "tasks"


_HELP = """Dry run of an assignor.

Reads one problem a line from FILE or standard input and prints one plan a line, both JSON:

\b
  {"topics": {"t": 3}, "members": {"a": {"topics": ["t"]}}}

A topic is a number of partitions, or an object with partitions and the racks of each partition's replicas. A member has
topics and may have owned, generation, rack, instance, capacity, and user_data in hex; a generation beside members is
the one being formed. offsets and auto_offset_reset make lag known:

\b
  {"topics": {"t": {"partitions": 2, "racks": [["r1"], ["r2"]]}},
   "members": {"a": {"topics": ["t"], "owned": {"t": [0, 1]}, "rack": "r1"},
               "b": {"topics": ["t"], "rack": "r2"}},
   "offsets": {"t": {"0": {"begin": 0, "end": 9, "committed": 4}}}}

(here on four lines for reading). The assignor tasks reads:

\b
  {"tasks": {"0_0": {"stateful": true}},
   "clients": {"A": {"threads": 2, "tasks": {"0_0": {"lag": 0}}}},
   "standbys": 1}

A lag is in records behind the log's end; -2 marks the client that runs a task, -1 the one that runs a task without
state. A client may have a rack. acceptable_lag and max_warmups are 10000 and 2 if they are not given.

A line that is wrong is named on standard error with its field, the others are answered, and the exit code is 2.

In the answer "moved" counts partitions that a member loses to another, "fewest_moves" how many an even plan must move,
and "optimal" says whether it is proved that no plan is more even.
"""
DEFAULT = COOPERATIVE_STICKY.name


def _reset(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not is_auto_offset_reset(value):
        raise click.BadParameter(f"must be {AUTO_OFFSET_RESETS}, not {value!r}")
    return value


@click.command(help=_HELP)
@click.argument("source", metavar="[FILE]", type=click.File("rb"), required=False)
@click.option(
    "--assignor",
    "-a",
    "names",
    type=AssignorName([*ASSIGNORS, TASKS]),
    multiple=True,
    help=f"A name, or MODULE:ATTRIBUTE of an assignor of your own or its class. Default: {DEFAULT}; with --group all, "
    "and repeatable.",
)
@click.option("--explain", "explained", is_flag=True, help="Print every move and its reason for people.")
@click.option("--group", "-g", type=NAME, help="Plan for this group as it is now; nothing is changed.")
@click.option("--lag", "with_lag", is_flag=True, help="With --group: look at offsets, and try the lag assignors too.")
@click.option(
    "--history",
    "history_folder",
    metavar="FOLDER",
    help="With --group: in place of lag, the records that arrive in a minute, as `roster history record` found them.",
)
@click.option(
    "--auto-offset-reset",
    "reset",
    metavar="POLICY",
    callback=_reset,
    default=AutoOffsetReset.LATEST.value,
    show_default=True,
    help="With --group: where reading starts in partitions without a committed offset: earliest, latest, none, or "
    "by_duration:PT1H.",
)
@click.option("--json", "as_document", is_flag=True, help="With --group: print JSON instead of tables.")
@cluster_options
def plan(
    source: BinaryIO | None,
    names: tuple[str | Assignor, ...],
    explained: bool,
    group: str | None,
    with_lag: bool,
    history_folder: str | None,
    reset: str,
    as_document: bool,
    target: Target,
) -> int:
    """Answer problems line by line, or plan for a live group; the exit code."""
    if group is not None:
        if source is not None:
            raise UserError("--group plans for a live group; leave FILE out")
        if TASKS in names:
            raise UserError("--assignor: tasks reads problems; `roster groups describe` shows the tasks of a group")
        assignors = _chosen(names, with_lag=with_lag or history_folder is not None)
        wants_lag = with_lag or any(assignor.wants_lag for assignor in assignors)
        live = _weighed(_live(group, target, reset, with_lag=wants_lag), history_folder)
        compare(live, assignors, as_document=as_document, explained=explained)
        return 0
    names = names or (DEFAULT,)
    if len(names) != 1:
        raise UserError("--assignor: several only with --group")
    for option, is_given in (("--lag", with_lag), ("--history", history_folder), ("--json", as_document)):
        if is_given:
            raise UserError(f"{option} goes with --group; problems carry offsets, plans are JSON")
    lines = sys.stdin.buffer if source is None else source
    if source is None and sys.stdin.isatty():
        click.echo("roster: reads problems from the terminal, one JSON object a line; Ctrl-D ends", err=True)
    (chosen_one,) = names
    assignor = ASSIGNORS.get(chosen_one) if isinstance(chosen_one, str) else chosen_one
    return _plan_lines(lines, assignor, explained=explained)


def _chosen(names: Sequence[str | Assignor], *, with_lag: bool) -> list[Assignor]:
    chosen = names or [assignor for assignor in ASSIGNORS.values() if with_lag or not assignor.wants_lag]
    return [ASSIGNORS[assignor] if isinstance(assignor, str) else assignor for assignor in dict.fromkeys(chosen)]


def _plan_lines(lines: Iterable[bytes], assignor: Assignor | None, *, explained: bool) -> int:
    """Answer line by line, without an assignor by `tasks`; the exit code."""
    code, name = 0, TASKS if assignor is None else assignor.name
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            _answer(line, assignor, f"line {number}: {name}" if explained else "")
        except InputError as error:
            message = f"roster: error: line {number}: {error}"
            click.echo(message.encode(errors="backslashreplace").decode(), err=True)
            code = USAGE
    return code


def _answer(line: bytes, assignor: Assignor | None, title: str) -> None:
    """Print the assignor's answer, or without one that of `tasks`."""
    document = strict_json.parse(line, unique_names=True)
    if assignor is None:
        tasks = task_assignor.assign(read_tasks(document))
        if title:
            click.echo(title)
            explain_tasks(tasks)
        else:
            print_json_line(tasks_as_json(tasks))
        return
    evaluation = evaluate_or_fail(assignor, read_problem(document, assignor.claim_source))
    if title:
        explain(title, evaluation)
    else:
        print_json_line(as_json(evaluation))


def _live(group: str, target: Target, reset: str, *, with_lag: bool) -> LiveGroup:
    from roster.cli.admin import admin
    from roster.client import GroupEmptyError, GroupTypeError, live_group

    with admin(target) as cluster:
        try:
            return live_group(cluster, group, with_lag=with_lag, auto_offset_reset=reset)
        except (GroupEmptyError, GroupTypeError) as error:
            raise UserError(f"--group: {error}") from error


def _weighed(live: LiveGroup, folder: str | None) -> LiveGroup:
    """Return the group with the records that arrive in a minute in place of lag, if there is a history."""
    if folder is None:
        return live
    _, history = group_history(folder, live.description.group_id)
    problem = live.problem
    partitions = map(problem.topic_partition, range(problem.partition_count))
    minute = [60 * (history.positions.arriving(tp) or 0) for tp in partitions]
    click.echo("lag is the records that usually arrive in a minute, by the history", err=True)
    return replace(live, problem=replace(problem, lag=np.rint(minute).astype(np.int64)))
