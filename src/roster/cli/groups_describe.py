"""`roster groups describe` and `offsets`: who is in a group, what each member owns, and how far behind it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from roster.cli.admin import admin
from roster.cli.options import NAME, bootstrap_option, json_option
from roster.cli.output import counted, print_json, print_table
from roster.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from roster.client import Admin, GroupDescription, MemberDescription

SETTLED = frozenset({"Stable", "Empty"})
"""States in which the members' assignments can be seen, all of them."""
_WHOLE_ID = 24
"""A member id of at most this many characters is shown whole."""
_CLIENT = 14
_LEAST_TAIL = 6


@dataclass(frozen=True, slots=True)
class Position:
    """Where a group stands in one partition; `committed` and `lag` are None before the first commit."""

    topic: str
    partition: int
    committed: int | None
    begin: int
    end: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Records a group has still to read: `known` of them for certain, all of them if `complete`.

    `known` is None when no partition's lag is known, as before the first commit.
    """

    known: int | None
    complete: bool

    def __str__(self) -> str:
        if self.known is None:
            return "unknown"
        return str(self.known) if self.complete else f"at least {self.known}"


@dataclass(frozen=True, slots=True)
class Standing:
    """The positions of a group in the partitions it has committed or owns, in order, and its lag."""

    positions: dict[TopicPartition, Position]
    lag: GroupLag


def standing(cluster: Admin, group: str, state: str, assigned: Collection[TopicPartition]) -> Standing:
    """Where the group stands.

    The lag is complete only if it is known of every partition of every topic that the group reads, and the state lets
    all assignments be seen.
    """
    committed = cluster.group_offsets(group)
    counts = cluster.list_topics(internal=True)
    partitions = sorted(tp for tp in {*assigned, *committed} if tp.partition < counts.get(tp.topic, 0))
    begins, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
    found = {}
    for partition in partitions:
        offset = committed[partition].offset if partition in committed else None
        lag = None if offset is None else max(0, ends[partition] - offset)
        found[partition] = Position(*partition, offset, begins[partition], ends[partition], lag)
    lags = [position.lag for position in found.values() if position.lag is not None]
    expected = sum(counts[topic] for topic in {tp.topic for tp in partitions})
    complete = state in SETTLED and len(lags) == expected
    return Standing(found, GroupLag(sum(lags) if lags else None, complete))


@click.command()
@click.argument("group", type=NAME)
@json_option
@bootstrap_option
def describe(group: str, as_json: bool, bootstrap: str) -> None:
    """The state of GROUP, its members, and for each partition who owns it and how far it is behind.

    Long member ids are shortened; --json has them whole.
    """
    with admin(bootstrap) as cluster:
        description = cluster.describe_group(group)
        owners = {tp: member for member in description.members for tp in member.assignment}
        stands = standing(cluster, group, description.state, owners)
    if as_json:
        print_json(_document(description, stands, owners))
    else:
        _print(description, stands, owners)


def _document(
    group: GroupDescription, stands: Standing, owners: Mapping[TopicPartition, MemberDescription]
) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "epoch": group.epoch,
        "coordinator": group.coordinator,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "assignment": [list(tp) for tp in sorted(member.assignment)],
            }
            for member in group.members
        ],
        "partitions": [
            {**asdict(position), "owner": owners[tp].member_id if tp in owners else None}
            for tp, position in stands.positions.items()
        ],
        "lag": stands.lag.known,
        "lag_complete": stands.lag.complete,
    }


def _print(group: GroupDescription, stands: Standing, owners: Mapping[TopicPartition, MemberDescription]) -> None:
    click.echo(f"{group.group_id}: {group.state}, {counted(len(group.members), 'member')}, lag {stands.lag}")
    epoch = "" if group.epoch is None else f", epoch {group.epoch}"
    click.echo(
        f"{group.group_type} group{epoch}, assignor {group.protocol or '-'}, coordinator {group.coordinator or '-'}"
    )
    if group.members and group.state not in SETTLED:
        click.echo("members and assignments are complete once the rebalance is over")
    labels = member_labels(group.members)
    if group.members:
        click.echo()
        rows = [(labels[m.member_id], m.client_id, m.host.lstrip("/"), len(m.assignment)) for m in group.members]
        columns = ("member", "client", "host", "partitions")
        print_table(columns, rows, "", shorten=("client", "host"))
    click.echo()
    print_table(
        ("topic", "partition", "committed", "end", "lag", "member"),
        [
            (p.topic, p.partition, p.committed, p.end, p.lag, labels[owners[tp].member_id] if tp in owners else None)
            for tp, p in stands.positions.items()
        ],
        "no partitions, no offsets",
        shorten=("topic",),
    )


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


@click.command()
@click.argument("group", type=NAME)
@json_option
@bootstrap_option
def offsets(group: str, as_json: bool, bootstrap: str) -> None:
    """The committed offsets of GROUP, with the log's ends and the lag."""
    with admin(bootstrap) as cluster:
        state = cluster.describe_group(group).state
        stands = standing(cluster, group, state, ()).positions
    if as_json:
        print_json([asdict(position) for position in stands.values()])
    else:
        rows = [(p.topic, p.partition, p.committed, p.begin, p.end, p.lag) for p in stands.values()]
        columns = ("topic", "partition", "committed", "begin", "end", "lag")
        print_table(columns, rows, f"{group} has committed nothing", shorten=("topic",))
