"""`roster groups watch`: a live group, on the screen, as lines or as JSON."""

import contextlib
import queue
import signal
import time
from datetime import UTC, datetime
from functools import partial

import click

from roster.cli.admin import REQUEST_TIMEOUT_MS, admin
from roster.cli.errors import Failure, one_line
from roster.cli.groups.live import View, open_view
from roster.cli.groups.picture import Lines, Size, generation_of, lag_of, picture, status
from roster.cli.options import NAME, POSITIVE, Target, cluster_options
from roster.cli.output import drop_stdout
from roster.cli.signals import end_like_ctrl_c
from roster.client import ClientError
from roster.console.history import GroupHistory
from roster.console.looking import Looker, take_snapshot
from roster.console.rows import rows_of
from roster.console.snapshot import ABSENT, Away, Snapshot
from roster.console.text import counted

_FRAME_S = 0.25
_LAST_EVENTS = 200


@click.command(short_help="Show a live group: owners, lag, rates, events.")
@click.argument("group", type=NAME)
@click.option("--interval", type=POSITIVE, default=2.0, show_default=True, help="Seconds between looks.")
@cluster_options
def watch(group: str, interval: float, target: Target) -> int:
    """Show a live GROUP: owner, lag and rate of each partition, rebalances and other events.

    It only reads, from any Kafka, until Ctrl-C. A lost connection is reported and tried again.
    No request returns the generation of a classic group: shown is a lower bound, from what a leader of Roster's notes
    or the claims in the members' subscriptions, if they carry a generation. A group of KIP-848 has an epoch.
    """
    with admin(target) as cluster:
        first = take_snapshot(cluster, group)
    history, clock = GroupHistory(), Clock()
    events = history.see(first)
    end_like_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    view = open_view(partial(lines_of, group, history, clock), partial(summary, history), clock.stamp)
    try:
        try:
            view.seen(events, history.now)
            _follow(group, target, interval, history, view)
        finally:
            view.close()
    except BrokenPipeError:
        drop_stdout()
    return 0


def _follow(group: str, target: Target, interval: float, history: GroupHistory, view: View) -> None:
    looks: queue.SimpleQueue[Snapshot | Away | ClientError] = queue.SimpleQueue()
    timeout = min(REQUEST_TIMEOUT_MS / 1000, max(5.0, interval))
    with Looker(target.bootstrap, group, looks.put, every_s=interval, timeout_s=timeout, security=target.security):
        while True:
            view.tick()
            with contextlib.suppress(queue.Empty):
                look = looks.get(timeout=_FRAME_S)
                if isinstance(look, ClientError):
                    raise Failure(one_line(look)) from look
                view.seen(history.see(look), history.now)


def lines_of(group: str, history: GroupHistory, clock: "Clock", size: Size) -> Lines:
    """The picture of the newest snapshot, at this moment."""
    head = status(group, history, size.width, time.monotonic())
    return picture(head, rows_of(history), list(history.events)[-_LAST_EVENTS:], size, clock.stamp)


class Clock:
    """Wall-clock times for the monotonic seconds of snapshots, as of the start."""

    def __init__(self) -> None:
        self._zero = time.time() - time.monotonic()

    def stamp(self, at: float) -> str:
        """Local time of day."""
        return datetime.fromtimestamp(self._zero + at, UTC).astimezone().strftime("%H:%M:%S")


def summary(history: GroupHistory) -> str:
    """Format the figures of a snapshot in one line."""
    if history.away_since is not None:
        return f"no answer for {history.now - history.away_since:.0f} s: {history.away_reason}"
    if history.state == ABSENT:
        return "there is no such group; the name may be misspelt, or its first member is yet to join"
    parts = [history.state, counted(len(history.members), "member"), counted(len(history.positions), "partition")]
    parts += [lag_of(history), f"{'-' if history.rate is None else f'{history.rate:,.0f}'} read/s"]
    results = history.results and f"results {history.results}"
    return ", ".join([*parts, *filter(None, [generation_of(history), results, history.trouble])])
