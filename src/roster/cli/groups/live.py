"""A live view: a picture that is redrawn on a terminal, plain lines elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Sequence

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from roster.cli.groups.picture import Lines, Size, Told

Draw = Callable[[Size], Lines]
Stamp = Callable[[float], str]


class View:
    """Shows something that changes."""

    def seen(self, events: Sequence[Told], now: float) -> None:
        """Show a change, with the events it brought."""
        raise NotImplementedError

    def tick(self) -> None:
        """Called a few times a second: what moves by itself."""

    def close(self) -> None:
        """Called once, whatever the end is."""


def open_view(draw: Draw, say: Callable[[], str], stamp: Stamp, every_s: float = 0.0) -> View:
    """The picture by `draw` if stdout is a terminal; else events and `say`, every so many seconds."""
    console = Console(highlight=False)
    is_screen = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    return LiveView(console, draw) if is_screen else PlainView(say, stamp, every_s)


class LiveView(View):
    """One picture that fills the screen; the last one stays below the prompt, at its full height."""

    def __init__(self, console: Console, draw: Draw) -> None:
        self._draw = draw
        self._live = Live(self, console=console, screen=True, auto_refresh=False)
        self._live.start()

    def seen(self, events: Sequence[Told], now: float) -> None:
        """See View."""
        self._live.refresh()

    def tick(self) -> None:
        """See View."""
        self._live.refresh()

    def close(self) -> None:
        """See View."""
        console = self._live.console
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._live.stop()
            console.print(Text("\n").join(self._draw(Size(console.width))), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n", no_wrap=True, overflow="crop").join(self._draw(Size(console.width, console.height)))


class PlainView(View):
    """Each event once as a line, and the figures every few seconds."""

    def __init__(self, say: Callable[[], str], stamp: Stamp, every_s: float) -> None:
        self._say, self._stamp, self._every_s, self._next = say, stamp, every_s, every_s

    def seen(self, events: Sequence[Told], now: float) -> None:
        """See View."""
        for event in events:
            click.echo(f"{self._stamp(event.at)}  {event.text}")
        if now >= self._next:
            self._next = now + self._every_s
            click.echo(f"{self._stamp(now)}  {self._say()}")
