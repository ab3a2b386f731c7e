"""`roster groups describe`: who is in a group, what each member owns, and how far behind it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from roster._json import JsonObject
from roster.cli.admin import admin
from roster.cli.errors import Failure
from roster.cli.options import NAME, Target, cluster_options, json_option
from roster.cli.output import print_json, print_table
from roster.client import group_lag, live_tasks, runs_tasks
from roster.client.group_lag import SETTLED
from roster.console.text import counted, escaped
from roster.model.topology import CHANGELOG, own_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from roster.client import Admin, GroupDescription, GroupLag, MemberDescription
    from roster.model import TopicPartition
    from roster.stateful.held_times import HeldTime

_WHOLE_ID = 24
"""A member id of at most this many characters is shown whole."""
_CLIENT = 14
_LEAST_TAIL = 6


@click.command(short_help="Show state, members, owners and lag of a group.")
@click.argument("group", type=NAME)
@json_option
@cluster_options
def describe(group: str, as_json: bool, target: Target) -> None:
    """Describe GROUP: state, members, and for each partition its owner and lag.

    A group of tasks also shows each task's owner, its standby copies, and its gap at join: how many records the copy
    was behind when its member last joined; it may have caught up since. And which partitions hold stream times back.

    Long member ids are shortened; --json has them whole.
    """
    with admin(target) as cluster:
        description = cluster.describe_group(group)
        owners = {tp: member for member in description.members for tp in member.assignment}
        lag = group_lag(cluster, group, description.state, owners)
        times = _held_times(cluster, group, target, lag.partitions) if runs_tasks(description) else None
    if as_json:
        held_times = {} if times is None else {"held_times": [time._asdict() for time in times]}
        print_json({**_document(description, lag, owners), **held_times})
    else:
        _print(description, lag, owners)
        if times:
            click.echo()
            rows = [(time.changelog, time.partition, time.held_by, f"{time.held_ms // 1000} s") for time in times]
            print_table(("changelog", "task", "time held by", "behind"), rows, "", shorten=("changelog",))


def _held_times(cluster: Admin, group: str, target: Target, sources: Collection[TopicPartition]) -> Sequence[HeldTime]:
    """Return which partitions hold stream times of a group of tasks back. Raises Failure."""
    topics = cluster.list_topics(internal=True)
    others = [group_info.group_id for group_info in cluster.list_groups() if group_info.group_id != group]
    changelogs, _ = own_topics(group, topics, others, CHANGELOG)
    if not changelogs:
        return []
    # Not before: other groups need no Arrow.
    from roster.pipeline.tasks.reader import ReaderConfig, ReadError
    from roster.stateful.held_times import held_times

    config = ReaderConfig(
        target.bootstrap, group, "read_committed", client_id=target.client_id, security=target.security
    )
    try:
        return held_times(cluster, config, changelogs, sources)
    except ReadError as error:
        raise Failure(str(error)) from None


def _document(
    group: GroupDescription, lag: GroupLag, owners: Mapping[TopicPartition, MemberDescription]
) -> dict[str, object]:
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "epoch": group.epoch,
        "coordinator": group.coordinator,
        "members": [
            {**_identity(member), "assignment": [list(tp) for tp in sorted(member.assignment)]}
            for member in group.members
        ],
        "partitions": [
            {**asdict(position), "owner": owners[tp].member_id if tp in owners else None}
            for tp, position in lag.partitions.items()
        ],
        "lag": lag.total.known,
        "lag_complete": lag.total.complete,
        "results": lag.total.results or None,
        **({"tasks": _tasks(group)} if runs_tasks(group) else {}),
    }


def _identity(member: MemberDescription) -> dict[str, object]:
    """Return what names a member, for JSON."""
    return {name: getattr(member, name) for name in ("member_id", "instance_id", "client_id", "host")}


def _tasks(group: GroupDescription) -> list[JsonObject]:
    return [
        {
            "task": str(task.task),
            "owner": task.owner,
            "standbys": [{"member_id": member, "gap_at_join": gap} for member, gap in task.standbys.items()],
        }
        for task in live_tasks(group)
    ]


def _print(group: GroupDescription, lag: GroupLag, owners: Mapping[TopicPartition, MemberDescription]) -> None:
    click.echo(f"{group.group_id}: {group.state}, {counted(len(group.members), 'member')}, lag {lag.total}")
    if lag.total.results:
        click.echo(f"results {escaped(lag.total.results)}")
    epoch = "" if group.epoch is None else f", epoch {group.epoch}"
    assignor = escaped(group.protocol) or "-"
    click.echo(f"{group.group_type} group{epoch}, assignor {assignor}, coordinator {group.coordinator or '-'}")
    if group.members and group.state not in SETTLED:
        click.echo("members and assignments are complete once the rebalance is over")
    labels = member_labels(group.members)
    if group.members:
        click.echo()
        rows = [(labels[m.member_id], m.client_id, m.host.lstrip("/"), len(m.assignment)) for m in group.members]
        columns = ("member", "client", "host", "partitions")
        print_table(columns, rows, "", shorten=("client", "host"))
    click.echo()
    is_pending = any(position.pending for position in lag.partitions.values())
    print_table(
        ("topic", "partition", "committed", "end", "lag", "member", *(["transaction"] if is_pending else [])),
        [
            (
                *(p.topic, p.partition, p.committed, p.end, p.lag),
                labels[owners[tp].member_id] if tp in owners else None,
                *(["offset pending" if p.pending else None] if is_pending else []),
            )
            for tp, p in lag.partitions.items()
        ],
        "no partitions, no offsets",
        shorten=("topic",),
    )
    if runs_tasks(group):
        _print_tasks(group, labels)


def _print_tasks(group: GroupDescription, labels: Mapping[str, str]) -> None:
    """Print who runs each task and keeps copies, and how many records these were behind when their members joined."""
    click.echo()
    rows = [
        (
            task.task,
            None if task.owner is None else labels[task.owner],
            " ".join(labels[member] for member in task.standbys) or None,
            " ".join("-" if gap is None else str(gap) for gap in task.standbys.values()) or None,
        )
        for task in live_tasks(group)
    ]
    print_table(("task", "owner", "standby", "gap at join"), rows, "no tasks")


def member_labels(members: Sequence[MemberDescription]) -> dict[str, str]:
    """{member id: what to call the member}: its instance id, its id, or a unique beginning of a long id."""
    labels = {}
    tails = {}
    ends = Counter((member.instance_id or "")[-_WHOLE_ID + 1 :] for member in members)
    for member in members:
        whole = member.instance_id or member.member_id
        end = whole[-_WHOLE_ID + 1 :]
        labels[member.member_id] = f"…{end}" if len(whole) > _WHOLE_ID and ends[end] == 1 else whole
        if member.instance_id is None and len(whole) > _WHOLE_ID:
            tails[member.member_id] = whole.removeprefix(f"{member.client_id}-")
    size = _LEAST_TAIL
    while size < max(map(len, tails.values()), default=0) and len({t[:size] for t in tails.values()}) < len(tails):
        size += 1
    clients = {member.member_id: member.client_id for member in members}
    for member_id, tail in tails.items():
        client = clients[member_id]
        client = client if len(client) <= _CLIENT else f"{client[: _CLIENT - 1]}…"
        labels[member_id] = f"{client}-{tail[:size]}…" if tail != member_id else f"{tail[:size]}…"
    return labels
