"""`roster groups switch`: has another group write the results, from exactly where the first one stops."""

import contextlib
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import click

from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError
from roster.cli.options import NAME, POSITIVE, Target, cluster_options
from roster.cli.output import print_table
from roster.client import Admin, GroupNotEmptyError
from roster.client.live_group import members_of
from roster.client.switch_requests import ask_for_switch, forget_switch, switch_asked
from roster.model import TopicPartition
from roster.model.switch import Request, Results, Seen, Standing
from roster.model.topology import CHANGELOG, REPARTITION, own_topics

_LOOK = 0.2  # seconds
_GONE = Seen(-1, Standing(Results.PAUSED))
"""A partition that a group has no offset of."""


class Stand(NamedTuple):
    """A partition in both groups."""

    old: Seen
    new: Seen

    @property
    def is_done(self) -> bool:
        """True if the new group writes and the old one does not."""
        results = Results.WRITES
        return self.new.standing.results is results and self.old.standing.results is not results


@click.command(short_help="Have another group write the results.")
@click.argument("old", type=NAME)
@click.argument("new", type=NAME)
@click.option("--timeout", type=POSITIVE, default=120.0, show_default=True, help="Seconds until it is taken back.")
@click.option("--dry-run", is_flag=True, help="Check, and show where both groups are.")
@cluster_options
def switch(old: str, new: str, timeout: float, dry_run: bool, target: Target) -> None:
    """Have the pipelines of group NEW write results from exactly where those of group OLD stop.

    Both run. NEW was started with paused=True, and began from the state of OLD if it keeps any. OLD is paused
    afterwards, and the way back is the same command with the names exchanged. If it takes too long it is taken back.
    After a kill the applications go on by themselves; run it again to wait for the end, or with the names exchanged to
    take it back.
    """
    with admin(target) as cluster:
        stands = _checked(cluster, old, new)
        if dry_run:
            _show(stands)
            return
        until = time.monotonic() + timeout
        if not all(stand.is_done for stand in stands.values()):
            _wait_until_near(cluster, old, new, stands, until)
            _switch(cluster, old, new, min(stands), until, timeout)
    click.echo(f"{new} writes, {old} is paused; back: roster groups switch {new} {old}")


def _switch(cluster: Admin, old: str, new: str, partition: TopicPartition, until: float, timeout: float) -> None:
    """Switch, or take it back and raise Failure."""
    request = _ask(cluster, Request(uuid.uuid4().hex, old, new), partition)
    left = _wait_for(cluster, request, until)
    if left:
        back = _ask(cluster, Request(uuid.uuid4().hex, new, old), partition)
        _give_up_for(cluster, request)
        problem = f"{len(left)} partitions were not switched in {timeout:g} s, among them {min(left)}"
        if more := _wait_for(cluster, back, time.monotonic() + timeout):
            fix = f"see the log of {new}, then run `roster groups switch {new} {old}`"
            raise Failure(f"{problem}, and {len(more)} not taken back; {fix}")
    for group in (new, old):
        forget_switch(cluster, group, partition)
    if left:
        raise Failure(f"{problem}, so {old} goes on; the logs of both say why, also if an ACL is missing")


def _checked(cluster: Admin, old: str, new: str) -> dict[TopicPartition, Stand]:
    """Return the partitions of both groups. Raises UserError if they cannot be switched."""
    if old == new:
        raise UserError(f"NEW: {new} is OLD, too; name two groups")
    for name, group in (("OLD", old), ("NEW", new)):
        if not members_of(cluster, group):
            raise UserError(f"{name}: {group} is not running; start its application first")
    _check_state(cluster, old, new)
    stands = _stands(cluster, old, new)
    if not stands:
        raise UserError(f"OLD: {old} has no offsets that this client sees; grant it READ on the topics of {old}")
    if differing := [p for p, stand in stands.items() if _GONE in stand]:
        has, lacks = (old, new) if stands[differing[0]].new == _GONE else (new, old)
        raise UserError(f"NEW: {has} has an offset of {differing[0]}, {lacks} has none; both must read the same topics")
    if all(stand.is_done for stand in stands.values()):
        return stands
    if all(stand.new.standing == Standing() for stand in stands.values()):
        raise UserError(f"NEW: {new} writes results; start its application with Pipeline(…, paused=True)")
    if all(stand.old.standing.results is Results.PAUSED for stand in stands.values()):
        raise UserError(f"OLD: {old} writes no results; name the group that does")
    _check_others(cluster, old, new, stands)
    return stands


def _check_state(cluster: Admin, old: str, new: str) -> None:
    """Raise UserError if one group keeps state that the other cannot go on with."""
    topics = cluster.list_topics(internal=True)
    others = [listed.group_id for listed in cluster.list_groups()]
    stores = {}
    for name, group in (("OLD", old), ("NEW", new)):
        rest = [other for other in others if other != group]
        if repartitions := own_topics(group, topics, rest, REPARTITION)[0]:
            raise UserError(f"{name}: {group} has {repartitions[0]}; groups that repartition cannot be switched")
        certain, doubtful = own_topics(group, topics, rest, CHANGELOG)
        likely = (topic for topic, other in doubtful.items() if len(other) < len(group))
        stores[name] = {topic.removeprefix(group) for topic in (*certain, *likely)}
    if stores["OLD"] and not stores["OLD"] & stores["NEW"]:
        raise UserError(f"NEW: {new} keeps none of the stores of {old}; begin it with `roster state import`")


def _check_others(cluster: Admin, old: str, new: str, stands: Mapping[TopicPartition, Stand]) -> None:
    """Raise UserError if a third group has not noticed that one of these took over from it."""
    peers = {side.standing.peer for stand in stands.values() for side in stand}
    for other in sorted(peers - {old, new, ""}):
        for offset in cluster.group_offsets(other, list(stands)).values():
            standing = Seen.of(offset).standing
            if standing.results is Results.HANDED_OVER and standing.peer in (old, new):
                raise UserError(f"OLD: {other} is still in a switch to {standing.peer}; start {other}, or delete it")


def _stands(cluster: Admin, old: str, new: str) -> dict[TopicPartition, Stand]:
    """Return the partitions of both groups."""
    of_old, of_new = (
        {p: Seen.of(offset) for p, offset in cluster.group_offsets(group, stable=False).items()} for group in (old, new)
    )
    return {p: Stand(of_old.get(p, _GONE), of_new.get(p, _GONE)) for p in sorted(of_old.keys() | of_new.keys())}


def _wait_until_near(cluster: Admin, old: str, new: str, stands: Mapping[TopicPartition, Stand], until: float) -> None:
    """Wait until NEW is where OLD was. Raises Failure if that takes too long."""
    goals = {p: stand.old.offset for p, stand in stands.items()}
    while True:
        behind = {p: goals[p] - stand.new.offset for p, stand in _stands(cluster, old, new).items() if p in goals}
        left = sum(records for records in behind.values() if records > 0)
        if not left:
            return
        if time.monotonic() >= until:
            raise Failure(f"{new} is {left} records behind {old}; nothing was changed, switch when it has caught up")
        time.sleep(_LOOK)


def _ask(cluster: Admin, wanted: Request, partition: TopicPartition) -> Request:
    """Ask both groups, the one that writes first, or go on with what they are asked already; return the request."""
    standing_request = switch_asked(cluster, wanted.target)
    if standing_request is not None and standing_request[1:] == wanted[1:]:
        wanted = standing_request
    for group in (wanted.source, wanted.target):
        ask_for_switch(cluster, group, wanted, partition)
    return wanted


def _wait_for(cluster: Admin, request: Request, until: float) -> list[TopicPartition]:
    """Return the partitions that are not switched in time."""
    shown = -1
    while True:
        stands = _stands(cluster, request.source, request.target)
        left = [p for p, stand in stands.items() if not stand.is_done]
        if len(left) != shown:
            shown = len(left)
            click.echo(f"{len(stands) - shown} of {len(stands)} partitions: {request.target} writes", err=True)
        if not left or time.monotonic() >= until:
            return left
        time.sleep(_LOOK)


def _give_up_for(cluster: Admin, request: Request) -> None:
    """Give a switch up for the group that was to take over, if it has no application that could."""
    if members_of(cluster, request.target):
        return
    offsets = cluster.group_offsets(request.target)
    waiting = {
        p: replace(offset, metadata=replace(standing, results=Results.PAUSED).added_to(offset.metadata))
        for p, offset in offsets.items()
        if (standing := Seen.of(offset).standing).results is Results.WAITS
    }
    with contextlib.suppress(GroupNotEmptyError):  # an application is back, which gives up itself
        cluster.commit_group_offsets(request.target, waiting)


def _show(stands: Mapping[TopicPartition, Stand]) -> None:
    columns = ("topic", "partition", "old", "results of old", "new", "results of new")
    rows = [
        (*partition, stand.old.offset, stand.old.standing.results, stand.new.offset, stand.new.standing.results)
        for partition, stand in stands.items()
    ]
    print_table(columns, rows, "no partitions", shorten=("topic",))
