"""The stateful demo on the screen: owner, standby copy and gap of each task; or the same as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from roster.cli.demo.view import bar_of, stamp
from roster.cli.groups.picture import PALETTE, Lines, Size, fitted, in_a_row, spinner, timeline
from roster.model.tasks import TaskId

if TYPE_CHECKING:
    from roster.cli.demo.stateful.state import StatefulApplication, StatefulState, Task

_GAP = "  "


def in_a_line(state: StatefulState) -> str:
    """The state's numbers in a line."""
    parts = []
    for group in state.groups:
        tasks = ", ".join(f"{number} {_places(state, group, number)}" for number in sorted(state.groups[group]))
        parts.append(f"{group} [{tasks}]")
    hint = f"; {state.hint()}" if state.hint() else ""
    return f"counted {state.counted} of {state.total * len(state.groups)}, lag {state.lag}, {' '.join(parts)}{hint}"


def _places(state: StatefulState, group: str, number: int) -> str:
    owner = state.groups[group][number].owner or "-"
    return owner + "".join(f"+{name}:{gap}" for name, gap in state.copies(group, number).items())


def lines_of(state: StatefulState, size: Size) -> Lines:
    """The state: progress, applications, tasks, events."""
    width = size.width
    head = [_title(state, width), *_progress(state, width), _hint(state, width), Text()]
    body = [*_applications(state, width), Text(), *_tasks(state, width), Text()]
    if size.height is None:
        return [*head, *body, *timeline(state.events, width, None, stamp)]
    lines = [*head, *body][: max(1, size.height - 3)]
    return [*lines, *timeline(state.events, width, size.height - len(lines), stamp)]


def _title(state: StatefulState, width: int) -> Text:
    broker = Text(f"broker {state.broker}", style="green" if state.broker == "up" else "bold red")
    wide = "Roster: PySpark applications with state and standby copies"
    name = Text(wide if width >= 76 else "Roster demo", style="bold")
    return in_a_row([name, broker, Text(f"{state.now:.0f} s", style="dim")], width)


def _progress(state: StatefulState, width: int) -> Lines:
    length = max(8, min(30, width - 44))
    total = state.total * len(state.groups)
    figures = (("loaded", sum(state.loaded.values())), ("counted", state.counted))
    return [
        in_a_row([f"{name:7}", bar_of(done / (total or 1), length), f"{done:,} of {total:,}"], width)
        for name, done in figures
    ]


def _hint(state: StatefulState, width: int) -> Text:
    hint = state.hint()
    return fitted(Text(f"{spinner(state.now)} {hint}" if hint else "", style="yellow"), width)


def _applications(state: StatefulState, width: int) -> Lines:
    heading = _line("application", "state", "tasks", "copies", "records", "batches", "replayed")
    return [
        fitted(Text(heading, style="bold"), width),
        *(_row(state, app, width) for app in state.applications.values()),
    ]


def _row(state: StatefulState, app: StatefulApplication, width: int) -> Text:
    told = app.status
    if app.status == "starting":
        told = "Spark is starting"
    elif app.status == "killed":
        told = f"killed {state.now - (app.killed_at or 0):.0f} s ago"
    copies = sum(app.name in state.copies(group, number) for group in state.groups for number in state.groups[group])
    tasks = str(len(state.tasks_of(app.name)))
    text = _line(
        f"{app.name} PySpark", told, tasks, str(copies), f"{app.rows:,}", str(app.batches), f"{app.restored:,}"
    )
    return fitted(Text(text, style=_style(state, app.name)), width)


def _line(name: str, state: str, tasks: str, copies: str, records: str, batches: str, replayed: str) -> str:
    columns = [f"{name:11}", f"{state:17}", f"{tasks:>5}", f"{copies:>6}", f"{records:>9}", f"{batches:>7}"]
    return _GAP.join([*columns, f"{replayed:>8}"])


def _style(state: StatefulState, name: str) -> str:
    if name not in state.applications or state.applications[name].status in ("killed", "stopped"):
        return "dim"
    return PALETTE[sorted(state.applications).index(name) % len(PALETTE)]


def _tasks(state: StatefulState, width: int) -> Lines:
    heading = _task_line("group", "task", "owner", "standby", "gap", "lag")
    lines = [fitted(Text(heading, style="bold"), width)]
    for group, tasks in state.groups.items():
        lines += [_task(state, group, number, tasks[number], width) for number in sorted(tasks)]
    return lines


def _task(state: StatefulState, group: str, number: int, task: Task, width: int) -> Text:
    copies = state.copies(group, number)
    names, gaps = ", ".join(copies) or "-", ", ".join(f"{gap:,}" for gap in copies.values()) or "-"
    text = _task_line(group, str(TaskId(0, number)), task.owner or "-", names, gaps, f"{task.lag:,}")
    return fitted(Text(text, style=_style(state, task.owner)), width)


def _task_line(group: str, task: str, owner: str, standby: str, gap: str, lag: str) -> str:
    return _GAP.join([f"{group:11}", f"{task:6}", f"{owner:7}", f"{standby:8}", f"{gap:>8}", f"{lag:>9}"])
