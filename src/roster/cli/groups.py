"""`roster groups`: who is in a consumer group, what each member owns, and how far behind it is."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from roster.cli.admin import admin
from roster.cli.errors import UserError
from roster.cli.groups_check import check
from roster.cli.options import bootstrap_option, json_option
from roster.cli.output import print_json, print_table
from roster.client import OffsetAndMetadata
from roster.model import TopicPartition

if TYPE_CHECKING:
    from roster.client import Admin, MemberDescription


@dataclass(frozen=True, slots=True)
class Position:
    """Where a group stands in one partition; `committed` and `lag` are None before the first commit."""

    topic: str
    partition: int
    committed: int | None
    begin: int
    end: int
    lag: int | None


def positions(cluster: Admin, group: str, assigned: set[TopicPartition]) -> dict[TopicPartition, Position]:
    """Every partition the group has committed or owns, in order."""
    committed = cluster.group_offsets(group)
    known = cluster.list_topics(internal=True)
    partitions = sorted(tp for tp in assigned | set(committed) if tp.partition < known.get(tp.topic, 0))
    begins, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
    found = {}
    for partition in partitions:
        offset = committed[partition].offset if partition in committed else None
        lag = None if offset is None else max(0, ends[partition] - offset)
        found[partition] = Position(*partition, offset, begins[partition], ends[partition], lag)
    return found


@click.group()
def groups() -> None:
    """List and describe the consumer groups of any Kafka-compatible cluster."""


groups.add_command(check)


@groups.command("list")
@json_option
@bootstrap_option
def list_(as_json: bool, bootstrap: str) -> None:
    """Every group and its state."""
    with admin(bootstrap) as cluster:
        found = sorted(cluster.list_groups(), key=lambda each: each.group_id)
    if as_json:
        print_json([{"group": g.group_id, "state": g.state, "protocol_type": g.protocol_type} for g in found])
    else:
        rows = [(g.group_id, g.state or None, g.protocol_type or None) for g in found]
        print_table(("group", "state", "protocol type"), rows, "no groups")


@groups.command()
@click.argument("group")
@json_option
@bootstrap_option
def describe(group: str, as_json: bool, bootstrap: str) -> None:
    """The state of GROUP, its members, and for each partition who owns it and how far it is behind."""
    with admin(bootstrap) as cluster:
        description = cluster.describe_group(group)
        owners = {tp: member for member in description.members for tp in member.assignment}
        stands = positions(cluster, group, set(owners))
    lag = sum(position.lag or 0 for position in stands.values())
    if as_json:
        print_json(
            {
                "group": group,
                "state": description.state,
                "protocol_type": description.protocol_type,
                "protocol": description.protocol,
                "coordinator": description.coordinator,
                "members": [
                    {
                        "member_id": member.member_id,
                        "instance_id": member.instance_id,
                        "client_id": member.client_id,
                        "host": member.host,
                        "assignment": [list(tp) for tp in sorted(member.assignment)],
                    }
                    for member in description.members
                ],
                "partitions": [
                    {**asdict(position), "owner": owners[tp].member_id if tp in owners else None}
                    for tp, position in stands.items()
                ],
                "lag": lag,
            }
        )
        return
    click.echo(
        f"{group}: {description.state}, {len(description.members)} members, protocol {description.protocol or '-'}, "
        f"coordinator {description.coordinator}, lag {lag}"
    )
    rows = [(p.topic, p.partition, p.committed, p.end, p.lag, *_owner(owners.get(tp))) for tp, p in stands.items()]
    print_table(
        ("topic", "partition", "committed", "end", "lag", "client", "host", "member"), rows, "no partitions, no offsets"
    )
    idle = [member.member_id for member in description.members if not member.assignment]
    if idle:
        click.echo(f"without partitions: {', '.join(idle)}")


def _owner(member: MemberDescription | None) -> tuple[str | None, str | None, str | None]:
    return (None, None, None) if member is None else (member.client_id, member.host, member.member_id)


@groups.command()
@click.argument("group")
@json_option
@bootstrap_option
def offsets(group: str, as_json: bool, bootstrap: str) -> None:
    """The committed offsets of GROUP, with the log's ends and the lag."""
    with admin(bootstrap) as cluster:
        stands = positions(cluster, group, set())
    if as_json:
        print_json([asdict(position) for position in stands.values()])
    else:
        rows = [(p.topic, p.partition, p.committed, p.begin, p.end, p.lag) for p in stands.values()]
        print_table(("topic", "partition", "committed", "begin", "end", "lag"), rows, f"{group} has committed nothing")


@groups.command()
@click.argument("group")
@click.option("--topic", "-t", required=True)
@click.option(
    "--to", "target", required=True, metavar="earliest|latest|OFFSET|TIME", help="TIME: ISO 8601, UTC by default."
)
@click.option("--partition", "only", type=click.IntRange(min=0), multiple=True, help="Only this one; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Show what would be set.")
@bootstrap_option
def reset(group: str, topic: str, target: str, only: tuple[int, ...], dry_run: bool, bootstrap: str) -> None:
    """Set where GROUP goes on reading a topic; the group must have no members."""
    wanted = _parse_target(target)
    with admin(bootstrap) as cluster:
        there = [TopicPartition(topic, each.partition) for each in cluster.describe_topic(topic).partitions]
        missing = sorted(set(only) - {tp.partition for tp in there})
        if missing:
            raise UserError(f"--partition: {topic} has no partition {missing[0]}; it has {len(there)}")
        chosen = sorted(tp for tp in there if not only or tp.partition in only)
        committed = cluster.group_offsets(group)
        begins, ends = cluster.beginning_offsets(chosen), cluster.end_offsets(chosen)
        if isinstance(wanted, datetime):
            found = cluster.offsets_for_times(dict.fromkeys(chosen, int(wanted.timestamp() * 1000)))
            new = {tp: ends[tp] if (offset := found[tp]) is None else offset for tp in chosen}
        elif isinstance(wanted, int):
            new = {tp: min(max(wanted, begins[tp]), ends[tp]) for tp in chosen}
        else:
            new = begins if wanted == "earliest" else ends
        if not dry_run:
            cluster.commit_group_offsets(group, {tp: OffsetAndMetadata(new[tp]) for tp in chosen})
    rows = [(topic, tp.partition, committed[tp].offset if tp in committed else None, new[tp]) for tp in chosen]
    print_table(("topic", "partition", "before", "would be" if dry_run else "now"), rows, f"{topic} has no partitions")


def _parse_target(text: str) -> str | int | datetime:
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"--to: {text!r} is not earliest, latest, an offset or a time like 2026-01-31T12:00") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@groups.command()
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
def delete(group: str, yes: bool, bootstrap: str) -> None:
    """Delete GROUP and its offsets; it must have no members. Asks first on a terminal."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete group {group} and its offsets?", abort=True)
    with admin(bootstrap) as cluster:
        cluster.delete_group(group)
    click.echo(f"deleted {group}")
