"""A demo on the screen: the picture of `roster groups watch` with applications and steps around it; or plain lines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from roster.cli.groups.live import View, open_view
from roster.cli.groups.picture import (
    HEADING,
    Lines,
    Size,
    fitted,
    in_a_row,
    picture,
    spinner,
    status,
    style_of,
    table_line,
)
from roster.console.rows import GroupRows
from roster.model.tasks import TaskId

if TYPE_CHECKING:
    from roster.cli.demo.state import Application, DemoState

_PLAIN_EVERY_S = 2.5
_BAR = 30


def open_demo_view(state: DemoState) -> View:
    """The picture of a state if stdout is a terminal, else lines."""
    return open_view(partial(lines_of, state), partial(in_a_line, state), stamp, _PLAIN_EVERY_S)


def stamp(at: float) -> str:
    """Seconds since the start."""
    return f"{at:6.1f} s"


def in_a_line(state: DemoState) -> str:
    """The state's numbers in a line."""
    groups = " ".join(
        _copies_in_a_line(state, key) if state.copied else _group_in_a_line(state, key) for key in state.groups
    )
    hint = f"; {state.hint()}" if state.hint() else ""
    loaded = sum(state.loaded.values())
    return f"loaded {loaded}, counted {state.counted} of {state.goal}, lag {state.lag}, {groups}{hint}"


def _group_in_a_line(state: DemoState, key: str) -> str:
    history = state.groups[key].history
    members = " ".join(f"{name}:{len(state.tasks_of(name))}" for name in state.applications)
    generation = _generation(state) or "generation -"
    return f"{history.rate or 0:,.0f} rows/s, group {history.state or '-'} {generation} [{members}]"


def _copies_in_a_line(state: DemoState, key: str) -> str:
    def places(number: int) -> str:
        copies = [f"+{name}:{gap}" for name, gap in state.copies(key, number).items()]
        return f"{number} {state.groups[key].owners.get(number, '-')}{''.join(copies)}"

    return f"{key} [{', '.join(map(places, range(state.groups[key].partitions)))}]"


def lines_of(state: DemoState, size: Size) -> Lines:
    """The state: progress, applications, partitions or tasks, events."""
    width, groups = size.width, list(state.groups.values())
    head = [_title(state, width), *_progress(state, width)]
    if not state.copied:
        head += status("group demo", groups[0].history, width, state.now, _generation(state))[:2]
    hint = state.hint()
    head.append(fitted(Text(f"{spinner(state.now)} {hint}" if hint else "", style="yellow"), width))
    tasks = [Text(), *_tasks(state, width)] if state.copied else []
    rows = GroupRows((), ()) if state.copied else groups[0].rows
    return picture(head, rows, state.events, size, stamp, people=[*_applications(state, width), *tasks])


def _title(state: DemoState, width: int) -> Text:
    broker = Text(f"broker {state.broker}", style="green" if state.broker == "up" else "bold red")
    wide = "with state and standby copies" if state.copied else "in one Kafka consumer group"
    name = Text(f"Roster: PySpark applications {wide}" if width >= 76 else "Roster demo", style="bold")
    return in_a_row([name, broker, Text(f"{state.now:.0f} s", style="dim")], width)


def _progress(state: DemoState, width: int) -> Lines:
    length = max(8, min(_BAR, width - 44))
    figures = (("loaded", sum(state.loaded.values())), ("counted", state.counted))
    return [
        in_a_row([f"{name:7}", _bar(done / (state.goal or 1), length), f"{done:,} of {state.goal:,}"], width)
        for name, done in figures
    ]


def _bar(share: float, length: int) -> Text:
    done = round(min(1.0, share) * length)
    return Text.assemble(("━" * done, "cyan"), ("┄" * (length - done), "dim"))


def _generation(state: DemoState) -> str:
    """Return the generation of the applications' latest batches."""
    generation = max((app.generation for app in state.applications.values()), default=-1)
    return f"generation {generation}" if generation >= 0 else ""


def _applications(state: DemoState, width: int) -> Lines:
    if not state.applications:
        return []
    own = (("tasks", -5), ("copies", -6)) if state.copied else (("partitions", -10), ("lag", -8))
    more = (("replayed", -8),) if state.copied else ()
    columns = (("application", 11), ("state", 14), *own, ("records", -8), ("batches", -7), *more)
    widths = [wide for _, wide in columns]
    lines = [table_line([name for name, _ in columns], widths, width, HEADING)]
    for app in state.applications.values():
        cells = [f"{app.name} PySpark", _status(state, app), *_own(state, app), f"{app.rows:,}", str(app.batches)]
        cells += [f"{app.restored:,}"] if state.copied else []
        lines.append(table_line(cells, widths, width, _style(state, app.name)))
    return lines


def _own(state: DemoState, app: Application) -> tuple[str, str]:
    """What it runs, and its copies or its lag."""
    tasks = state.tasks_of(app.name)
    if state.copied:
        copies = sum(app.name in state.copies(key, n) for key, g in state.groups.items() for n in range(g.partitions))
        return str(len(tasks)), str(copies)
    lags = {row.partition.partition: row.lag or 0 for group in state.groups.values() for row in group.rows.partitions}
    return str(len(tasks)), f"{sum(lags[number] for _, number in tasks):,}"


def _status(state: DemoState, app: Application) -> str:
    if app.status == "killed" and state.tasks_of(app.name):
        return f"killed {state.now - (app.killed_at or 0):.0f} s ago"
    if app.status == "running" and not app.batches:
        return "first batch" if state.loaded else "joined"
    return {"starting": "Spark starts", "ready": "ready to join"}.get(app.status, app.status)


def _style(state: DemoState, name: str) -> str:
    """The colour of its member in the first group."""
    if name not in state.applications or state.applications[name].status in ("killed", "stopped"):
        return "dim"
    members = next(iter(state.groups.values())).history.members.values()
    return style_of(next((member for member in members if member.mark == name), None))


def _tasks(state: DemoState, width: int) -> Lines:
    widths = (11, 6, 7, 8, -8, -9)
    lines = [table_line(("group", "task", "owner", "standby", "gap", "lag"), widths, width, HEADING)]
    for key, group in state.groups.items():
        for row in group.rows.partitions:
            number = row.partition.partition
            owner, copies = group.owners.get(number, ""), state.copies(key, number)
            names, gaps = ", ".join(copies) or "-", ", ".join(f"{gap:,}" for gap in copies.values()) or "-"
            cells = (key, str(TaskId(0, number)), owner or "-", names, gaps, f"{row.lag or 0:,}")
            lines.append(table_line(cells, widths, width, _style(state, owner)))
    return lines
