"""`roster groups watch`: a live group, on the screen, as lines or as JSON."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from roster.cli.admin import REQUEST_TIMEOUT_MS, admin
from roster.cli.errors import Failure, UserError, one_line
from roster.cli.groups import picture as group_picture
from roster.cli.options import NAME, POSITIVE, Target, cluster_options
from roster.cli.output import drop_stdout
from roster.cli.signals import end_like_ctrl_c
from roster.client import ClientError
from roster.console import Away, GroupHistory, Snapshot, rows_of
from roster.console.looking import Looker, look
from roster.console.snapshot import ABSENT
from roster.console.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import ConsoleOptions, RenderResult

    from roster.console import Event

_FRAME_S = 0.25
_LAST_EVENTS = 200
_WITHOUT_TERMINAL = 100


class View(Protocol):
    """Shows each snapshot of a group, and is called regularly in between."""

    def seen(self, history: GroupHistory, events: Sequence[Event]) -> None:
        """Called after each look, with the events it brought."""

    def tick(self) -> None:
        """Called a few times a second."""

    def close(self) -> None:
        """Called once, however the watch ends."""


@click.command(short_help="Show a live group: owners, lag, rates, events.")
@click.argument("group", type=NAME)
@click.option("--interval", type=POSITIVE, default=2.0, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Look once and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a look, each on a line of its own.")
@click.option("--no-view", is_flag=True, help="Plain lines even on a terminal.")
@cluster_options
def watch(group: str, interval: float, once: bool, as_json: bool, no_view: bool, target: Target) -> int:
    """Show a live GROUP: owner, lag and rate of each partition, rebalances and other events.

    It only reads, from any Kafka, until Ctrl-C. A lost connection is reported and tried again.
    No request returns the generation of a classic group: shown is a lower bound, from the claims in its members'
    subscriptions, if they carry a generation. A group of KIP-848 has an epoch.
    """
    with admin(target) as cluster:
        first = look(cluster, group)
    if once and first.state == ABSENT:
        raise UserError(f"there is no group {group!r}; the name may be misspelt")
    history, clock = GroupHistory(), Clock()
    view = _open_view(group, clock, as_json=as_json, live=not (no_view or once), once=once)
    end_like_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    try:
        view.seen(history, history.see(first))
        if once:
            view.close()
        else:
            _follow(group, target, interval, history, view)
    except BrokenPipeError:
        drop_stdout()
    return 0


def _follow(group: str, target: Target, interval: float, history: GroupHistory, view: View) -> None:
    looks: queue.SimpleQueue[Snapshot | Away | ClientError] = queue.SimpleQueue()
    timeout = min(REQUEST_TIMEOUT_MS / 1000, max(5.0, interval))
    try:
        with Looker(target.bootstrap, group, looks.put, every_s=interval, timeout_s=timeout, security=target.security):
            while True:
                view.tick()
                with contextlib.suppress(queue.Empty):
                    found = looks.get(timeout=_FRAME_S)
                    if isinstance(found, ClientError):
                        raise Failure(one_line(found)) from found
                    view.seen(history, history.see(found))
    finally:
        view.close()


class Clock:
    """Wall-clock times for the monotonic seconds of snapshots, as of the start."""

    def __init__(self) -> None:
        self._zero = time.time() - time.monotonic()

    def stamp(self, at: float) -> str:
        """Local time of day."""
        return datetime.fromtimestamp(self._zero + at, UTC).astimezone().strftime("%H:%M:%S")

    def iso(self, at: float) -> str:
        """UTC, to the millisecond."""
        moment = datetime.fromtimestamp(self._zero + at, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _open_view(group: str, clock: Clock, *, as_json: bool, live: bool, once: bool) -> View:
    console = Console(highlight=False)
    if as_json:
        return JsonView(group, clock.iso)
    if live and is_a_screen(console):
        return LiveView(group, clock.stamp, console)
    return OnceView(group, clock.stamp, console) if once else PlainView(clock.stamp)


def is_a_screen(console: Console) -> bool:
    """Return True if a picture can be redrawn in place."""
    return sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal


class LiveView:
    """One picture that fills the screen; at the end the last one is left below the prompt."""

    def __init__(self, group: str, stamp: Callable[[float], str], console: Console) -> None:
        self._group, self._stamp = group, stamp
        self._history: GroupHistory | None = None
        self._live = Live(self, console=console, screen=True, auto_refresh=False)
        self._live.start()

    def seen(self, history: GroupHistory, events: Sequence[Event]) -> None:
        """See View."""
        self._history, self._rows, self._events = history, rows_of(history), list(history.events)[-_LAST_EVENTS:]
        self._live.refresh()

    def tick(self) -> None:
        """See View."""
        self._live.refresh()

    def close(self) -> None:
        """See View."""
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._live.stop()
            self._live.console.print(Text("\n").join(self.lines(self._live.console, None)), soft_wrap=True)

    def lines(self, console: Console, height: int | None) -> group_picture.Lines:
        """The picture in the console's width."""
        if self._history is None:
            return [Text(f"{self._group}: no look yet")]
        size = group_picture.Size(console.width, height, coloured=not console.no_color)
        head = group_picture.status(self._group, self._history, console.width, time.monotonic())
        return group_picture.picture(head, self._rows, self._events, size, self._stamp)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n", no_wrap=True, overflow="crop").join(self.lines(console, console.height))


class OnceView:
    """The picture of one snapshot, at its full height."""

    def __init__(self, group: str, stamp: Callable[[float], str], console: Console) -> None:
        self._group, self._stamp, self._console = group, stamp, console

    def seen(self, history: GroupHistory, events: Sequence[Event]) -> None:
        """See View."""
        if not self._console.is_terminal:
            self._console.width = _WITHOUT_TERMINAL
        width = self._console.width
        size = group_picture.Size(width, None, coloured=self._console.is_terminal and not self._console.no_color)
        head = group_picture.status(self._group, history, width, history.now)
        lines = group_picture.picture(head, rows_of(history), events, size, self._stamp)
        for line in lines:
            line.rstrip()
            self._console.print(line, soft_wrap=True)

    def tick(self) -> None:
        """See View."""

    def close(self) -> None:
        """See View."""


class PlainView:
    """Each event once as a line, and a summary at each interval."""

    def __init__(self, stamp: Callable[[float], str]) -> None:
        self._stamp = stamp

    def seen(self, history: GroupHistory, events: Sequence[Event]) -> None:
        """See View."""
        for event in events:
            click.echo(f"{self._stamp(event.at)}  {event.text}")
        click.echo(f"{self._stamp(history.now)}  {summary(history)}")
        sys.stdout.flush()

    def tick(self) -> None:
        """See View."""

    def close(self) -> None:
        """See View."""


def summary(history: GroupHistory) -> str:
    """Format the figures of a snapshot in one line."""
    if history.away_since is not None:
        return f"no answer for {history.now - history.away_since:.0f} s: {history.away_reason}"
    if history.state == ABSENT:
        return "there is no such group; the name may be misspelt, or its first member is yet to join"
    parts = [history.state, counted(len(history.members), "member"), counted(len(history.positions), "partition")]
    parts += [group_picture.lag_of(history), f"{'-' if history.rate is None else f'{history.rate:,.0f}'} read/s"]
    return ", ".join([*parts, *filter(None, [group_picture.generation_of(history), history.trouble])])


class JsonView:
    """One JSON object per snapshot."""

    def __init__(self, group: str, iso: Callable[[float], str]) -> None:
        self._group, self._iso = group, iso

    def seen(self, history: GroupHistory, events: Sequence[Event]) -> None:
        """See View."""
        document: dict[str, Any] = {"time": self._iso(history.now), "group": self._group}
        document |= {"away": history.away_reason} if history.away_since is not None else as_document(history)
        document["events"] = [_event(event, self._iso) for event in events]
        click.echo(json.dumps(document, ensure_ascii=False))
        sys.stdout.flush()

    def tick(self) -> None:
        """See View."""

    def close(self) -> None:
        """See View."""


def as_document(history: GroupHistory) -> dict[str, Any]:
    """Return the newest snapshot for JSON: null where unknown, times in UTC."""
    rows = rows_of(history)
    return {
        "state": history.state or None,
        "protocol": history.protocol or None,
        "coordinator": history.coordinator or None,
        "generation_at_least": history.generation_at_least,
        "epoch": history.epoch,
        "rebalances_seen": history.rebalances,
        "lag": history.lag if any(p.lag is not None for p in history.positions.values()) else None,
        "lag_is_whole": history.lag_is_whole,
        "partitions_of_unknown_lag": history.unknown_lags,
        "read_per_second": _rounded(history.rate),
        "written_per_second": _rounded(history.produced_rate),
        "trouble": history.trouble or None,
        "members": [
            {
                "member_id": member.seen.member_id,
                "instance_id": member.seen.instance_id,
                "client_id": member.seen.client_id,
                "host": member.seen.host,
                "partitions": [list(tp) for tp in sorted(member.seen.partitions)],
            }
            for member in history.members.values()
        ],
        "partitions": [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "owner": None if row.owner is None else row.owner.seen.member_id,
                "owner_left": row.waits,
                "committed": row.committed,
                "end": row.end,
                "lag": row.lag,
                "read_per_second": _rounded(row.rate),
            }
            for row in rows.partitions
        ],
    }


def _event(event: Event, iso: Callable[[float], str]) -> dict[str, Any]:
    document: dict[str, Any] = {"time": iso(event.at), "kind": event.kind.value, "text": event.text}
    if event.member:
        document["member_id"] = event.member
    if event.partitions:
        document["partitions"] = [list(tp) for tp in event.partitions]
    if event.source or event.target:
        document |= {"from": event.source or None, "to": event.target or None}
    if event.seconds is not None:
        document["seconds"] = round(event.seconds, 3)
    return document


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)
