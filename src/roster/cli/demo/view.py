"""The demo on the screen: the picture of `roster groups watch` with the steps around it; plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from roster.cli.groups.picture import Lines, Size, fitted, in_a_row, picture, spinner, status, style_of
from roster.cli.groups.watch import is_a_screen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import ConsoleOptions, RenderResult

    from roster.cli.demo.state import Application, DemoState, Event

_PLAIN_EVERY_S = 5.0
_BAR = 30
_GAP = "  "


class Happened(Protocol):
    """A state that a view can show."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    @property
    def events(self) -> Sequence[Event]:
        """What has happened."""


S = TypeVar("S", bound=Happened)
S_contra = TypeVar("S_contra", contravariant=True)


class View(Protocol[S_contra]):
    """Shows a state each time it is asked to."""

    def show(self, state: S_contra) -> None:
        """Called some times a second."""

    def close(self, state: S_contra) -> None:
        """Called once at the end, whatever the end is."""


def open_view(live: bool, draw: Callable[[S, Size], Lines], say: Callable[[S], str]) -> View[S]:
    """The live picture if it is wanted and stdout is a terminal, by `draw`; else lines, by `say`."""
    console = Console(highlight=False)
    return LiveView(console, draw) if live and is_a_screen(console) else PlainView(say)


class PlainView(Generic[S]):
    """Each event once as a line, and the figures every few seconds."""

    def __init__(self, say: Callable[[S], str]) -> None:
        self._say = say
        self._shown = 0
        self._next = _PLAIN_EVERY_S

    def show(self, state: S) -> None:
        """See View."""
        for event in state.events[self._shown :]:
            click.echo(f"{stamp(event.at)}  {event.text}")
        self._shown = len(state.events)
        if state.now >= self._next:
            self._next = state.now + _PLAIN_EVERY_S
            click.echo(f"{stamp(state.now)}  {self._say(state)}")
        sys.stdout.flush()

    def close(self, state: S) -> None:
        """See View."""
        self._next = state.now + _PLAIN_EVERY_S
        self.show(state)


class LiveView(Generic[S]):
    """One picture that fills the screen; the last one stays, with all events."""

    def __init__(self, console: Console, draw: Callable[[S, Size], Lines]) -> None:
        self._draw = draw
        self._scene: S | None = None
        self._live = Live(self, console=console, screen=True, auto_refresh=False)
        self._live.start()

    def show(self, state: S) -> None:
        """See View."""
        self._scene = state
        self._live.refresh()

    def close(self, state: S) -> None:
        """See View."""
        console = self._live.console
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._live.stop()
            console.print(Text("\n").join(self._draw(state, _size(console, None))), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._scene is not None:
            lines = self._draw(self._scene, _size(console, console.height))
            yield Text("\n", no_wrap=True, overflow="crop").join(lines)


def _size(console: Console, height: int | None) -> Size:
    return Size(console.width, height, coloured=not console.no_color)


def stamp(at: float) -> str:
    """Seconds since the start."""
    return f"{at:6.1f} s"


def in_a_line(state: DemoState) -> str:
    """The state's numbers in a line."""
    members = " ".join(f"{app.name}:{len(app.owned)}" for app in state.applications.values())
    hint = f"; {state.hint()}" if state.hint() else ""
    return (
        f"loaded {state.loaded}, counted {state.counted} of {state.total}, lag {state.lag}, "
        f"{state.history.rate or 0:,.0f} rows/s, group {state.history.state or '-'} "
        f"{_generation(state) or 'generation -'} [{members}]{hint}"
    )


def lines_of(state: DemoState, size: Size) -> Lines:
    """The state: progress, the group, the applications, partitions, events."""
    head = [_title(state, size.width), *_progress(state, size.width), *_group(state, size.width)]
    return picture(head, state.rows, state.events, size, stamp, people=_applications(state, size.width))


def _title(state: DemoState, width: int) -> Text:
    broker = Text(f"broker {state.broker}", style="green" if state.broker == "up" else "bold red")
    seconds = Text(f"{state.now:.0f} s", style="dim")
    wide = "Roster: PySpark applications in one Kafka consumer group"
    name = Text(wide if width >= 76 else "Roster demo", style="bold")
    return in_a_row([name, broker, seconds], width)


def _progress(state: DemoState, width: int) -> Lines:
    length = max(8, min(_BAR, width - 44))
    return [
        in_a_row([f"{name:7}", bar_of(done / (state.total or 1), length), f"{done:,} of {state.total:,}"], width)
        for name, done in (("loaded", state.loaded), ("counted", state.counted))
    ]


def bar_of(share: float, length: int) -> Text:
    """Draw a share of 0 to 1."""
    done = round(min(1.0, share) * length)
    return Text.assemble(("━" * done, "cyan"), ("┄" * (length - done), "dim"))


def _group(state: DemoState, width: int) -> Lines:
    first, course, _ = status("group demo", state.history, width, state.now, _generation(state))
    hint = state.hint()
    text = f"{spinner(state.now)} {hint}" if hint else ""
    return [first, course, fitted(Text(text, style="yellow"), width)]


def _generation(state: DemoState) -> str:
    """Return the generation of the applications' latest batches."""
    return f"generation {state.generation}" if state.generation >= 0 else ""


def _applications(state: DemoState, width: int) -> Lines:
    if not state.applications:
        return []
    heading = _line("application", "state", "partitions", "lag", "records", "batches")
    return [
        fitted(Text(heading, style="bold"), width),
        *(_row(state, app, width) for app in state.applications.values()),
    ]


def _row(state: DemoState, app: Application, width: int) -> Text:
    rows = [row for row in state.rows.partitions if row.partition.partition in app.owned]
    member = next((m for m in state.history.members.values() if m.seen.client_id == app.client_id), None)
    gone = app.status in ("killed", "stopped")
    text = _line(
        f"{app.name} PySpark",
        _state(state, app),
        str(len(app.owned)),
        f"{sum(row.lag or 0 for row in rows):,}",
        f"{app.rows:,}",
        str(app.batches),
    )
    return fitted(Text(text, style="dim" if gone else style_of(member)), width)


def _state(state: DemoState, app: Application) -> str:
    if app.status == "starting":
        return "Spark is starting"
    if app.status == "ready":
        return "ready to join"
    if app.status == "killed" and app.owned:
        return f"killed {state.now - (app.killed_at or 0):.0f} s ago"
    if app.status == "running" and not app.batches:
        return "first batch" if state.loaded else "joined"
    return app.status


def _line(name: str, state: str, partitions: str, lag: str, records: str, batches: str) -> str:
    return _GAP.join([f"{name:11}", f"{state:17}", f"{partitions:>10}", f"{lag:>8}", f"{records:>8}", f"{batches:>7}"])
