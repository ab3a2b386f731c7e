"""The demo on the screen: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

import click
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from roster.cli.demo.scene import Application, Scene

COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
_EVENTS_SHOWN = 10
_PLAIN_EVERY_S = 5.0


class View(Protocol):
    """Shows a scene each time it is asked to."""

    def show(self, scene: Scene) -> None:
        """Called some times a second."""

    def close(self, scene: Scene) -> None:
        """Called once at the end, whatever the end is."""


def open_view(live: bool) -> View:
    """The live picture if it is wanted and stdout is a terminal."""
    return LiveView() if live and sys.stdout.isatty() else PlainView()


class PlainView:
    """Each event once as a line, and the figures every few seconds."""

    def __init__(self) -> None:
        self._shown = 0
        self._next = _PLAIN_EVERY_S

    def show(self, scene: Scene) -> None:
        """See View."""
        for event in scene.events[self._shown :]:
            click.echo(f"{event.at:6.1f} s  {event.text}")
        self._shown = len(scene.events)
        if scene.now >= self._next:
            self._next = scene.now + _PLAIN_EVERY_S
            click.echo(f"{scene.now:6.1f} s  {in_a_line(scene)}")
        sys.stdout.flush()

    def close(self, scene: Scene) -> None:
        """See View."""
        self._next = scene.now + _PLAIN_EVERY_S
        self.show(scene)


class LiveView:
    """One picture, redrawn in place; it stays on the screen at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, scene: Scene) -> None:
        """See View."""
        self._live.update(picture(scene), refresh=True)

    def close(self, scene: Scene) -> None:
        """See View."""
        self.show(scene)
        self._live.stop()


def in_a_line(scene: Scene) -> str:
    """The scene's numbers in a line."""
    members = " ".join(f"{app.name}:{len(app.owned)}" for app in scene.applications.values())
    return (
        f"loaded {scene.loaded}, counted {scene.counted} of {scene.total}, lag {scene.lag}, {scene.speed:,.0f} rows/s, "
        f"group {scene.group_state} generation {_generation(scene)} [{members}]"
    )


def picture(scene: Scene) -> RenderableType:
    """The scene as one panel: progress, members, partitions, events."""
    title = "Roster: PySpark applications in one Kafka consumer group"
    parts = (_progress(scene), Text(), _members(scene), Text(), _partitions(scene), Text(), _events(scene))
    return Panel(Group(*parts), title=title, subtitle=f"{scene.now:.0f} s", border_style="dim")


def _progress(scene: Scene) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=8)
    grid.add_column(width=30)
    grid.add_column()
    grid.add_row("loaded", ProgressBar(scene.total or 1, scene.loaded), f"{scene.loaded:,} of {scene.total:,}")
    grid.add_row(
        "counted",
        ProgressBar(scene.total or 1, scene.counted),
        f"{scene.counted:,}   lag {scene.lag:,}   {scene.speed:,.0f} rows/s",
    )
    broker = Text(f"broker {scene.broker}", style="green" if scene.broker == "up" else "bold red")
    group = f"group {scene.group_state}   generation {_generation(scene)}   rebalances {scene.rebalances}"
    return Group(grid, Text("  ").join([broker, Text(group)]))


def _members(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("application", "state", "partitions", "lag", "records", "batches"):
        table.add_column(name, justify="right" if name in ("lag", "records", "batches") else "left")
    for app in scene.applications.values():
        style = "dim" if app.status in ("killed", "stopped") else _colour(scene, app)
        lag = sum(scene.lag_of(partition) for partition in app.owned)
        owned = " ".join(map(str, sorted(app.owned))) or "-"
        table.add_row(
            f"PySpark {app.name}", app.status, owned, f"{lag:,}", f"{app.rows:,}", f"{app.batches}", style=style
        )
    return table


def _partitions(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("partition", style="dim")
    owners, lags = [Text("owner")], [Text("lag")]
    for partition in range(scene.partitions):
        table.add_column(str(partition), justify="right")
        owner = scene.owner_of(partition)
        style = _colour(scene, owner) if owner else "dim"
        owners.append(Text(owner.name if owner else "·", style=f"bold {style}"))
        lags.append(Text(str(scene.lag_of(partition)), style=style))
    table.add_row(*owners)
    table.add_row(*lags)
    return table


def _events(scene: Scene) -> RenderableType:
    shown = scene.events[-_EVENTS_SHOWN:]
    return Text("\n".join(f"{event.at:6.1f} s  {event.text}" for event in shown), no_wrap=True, overflow="ellipsis")


def _generation(scene: Scene) -> str:
    return str(scene.generation) if scene.generation >= 0 else "-"


def _colour(scene: Scene, app: Application) -> str:
    return COLOURS[list(scene.applications).index(app.name) % len(COLOURS)]
