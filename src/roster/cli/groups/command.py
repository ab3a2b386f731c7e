"""`roster groups`: the consumer groups of a cluster, their members, offsets and lag."""

import contextlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import click

from roster._json import JsonObject
from roster.cli.admin import admin
from roster.cli.errors import UserError
from roster.cli.groups.describe import describe
from roster.cli.groups.switch import switch
from roster.cli.groups.watch import watch
from roster.cli.log_positions import PLACES, locate, parse_place, partition_option, partitions_of
from roster.cli.options import NAME, Target, cluster_options, confirm, json_option, yes_option
from roster.cli.output import print_found, print_table
from roster.client import (
    Admin,
    AuthorizationError,
    GroupDescription,
    GroupListing,
    GroupTypeError,
    OffsetAndMetadata,
    TotalLag,
    UnknownGroupError,
    total_lags,
)
from roster.model import TopicPartition
from roster.model.switch import Results, Standing

MOST_LOOKED_INTO = 100
"""Most groups in a list that shows members and lag: these take two requests a group."""


@click.command("list", short_help="List groups with their state, members and lag.")
@click.argument("pattern", default="*")
@json_option
@cluster_options
def list_(pattern: str, as_json: bool, target: Target) -> None:
    """List groups with their state, type, members and lag; with PATTERN those whose name matches, as in 'shop*'.

    The type is classic, or consumer for groups of KIP-848. Members and lag are shown of up to 100 groups.
    """
    with admin(target) as cluster:
        listed = [group for group in cluster.list_groups() if fnmatchcase(group.group_id, pattern)]
        is_short = len(listed) <= MOST_LOOKED_INTO
        described = _described(cluster, listed) if is_short else {}
        lags = total_lags(cluster, list(described.values()))
    documents = [_document(group, described.get(group.group_id), lags.get(group.group_id)) for group in listed]
    rows = (_row(document, lags.get(document["group"])) for document in documents)
    nothing = "no groups" if pattern == "*" else f"no group matches {pattern!r}"
    columns: tuple[str, ...] = ("group", "state", "type", "protocol type", "members", "lag")
    if any(document["results"] for document in documents):
        columns = (*columns, "results")
        rows = ((*row, document["results"]) for row, document in zip(rows, documents, strict=True))
    print_found(as_json, documents, columns, rows, nothing, shorten=("group",))
    if not is_short:
        problem = f"members and lag are not shown of {len(listed)} groups, more than {MOST_LOOKED_INTO}"
        click.echo(f"{problem}; give a pattern, as in 'shop*'", err=True)


def _described(cluster: Admin, listed: Sequence[GroupListing]) -> dict[str, GroupDescription]:
    """Describe groups but those deleted meanwhile, of a type such as share, or that this client may only list."""
    descriptions = {}
    for group in listed:
        with contextlib.suppress(UnknownGroupError, GroupTypeError, AuthorizationError):
            descriptions[group.group_id] = cluster.describe_group(group.group_id)
    return descriptions


def _document(listed: GroupListing, described: GroupDescription | None, lag: TotalLag | None) -> JsonObject:
    return {
        "group": listed.group_id,
        "state": listed.state,
        "type": listed.group_type,
        "protocol_type": listed.protocol_type,
        "members": None if described is None else len(described.members),
        "lag": None if lag is None else lag.known,
        "lag_complete": lag is not None and lag.complete,
        "results": (lag and lag.results) or None,
    }


def _row(document: JsonObject, lag: TotalLag | None) -> tuple[object, ...]:
    kinds = (document[name] or None for name in ("state", "type", "protocol_type"))
    return (document["group"], *kinds, document["members"], None if lag is None or lag.known is None else lag)


@click.group()
def groups() -> None:
    """List and describe the consumer groups of any Kafka-compatible cluster."""


for _command in (list_, describe, watch, switch):
    groups.add_command(_command)


@groups.command(short_help="Set where a group without members goes on reading.")
@click.argument("group", type=NAME)
@click.option("--topic", "-t", type=NAME, required=True, help="Topic whose offsets to set.")
@click.option("--to", "goal", required=True, metavar=PLACES, help="Where to go on; TIME: ISO 8601, UTC by default.")
@partition_option
@click.option("--dry-run", is_flag=True, help="Show what would be set.")
@click.option("--forget-switch", is_flag=True, help="Forget that another group writes the results, or was to write.")
@yes_option
@cluster_options
def reset(
    group: str,
    topic: str,
    goal: str,
    only: tuple[int, ...],
    dry_run: bool,
    forget_switch: bool,
    yes: bool,
    target: Target,
) -> None:
    """Set where GROUP goes on reading a topic; the group must have no members.

    Shows the offsets and asks first. An offset or a time outside of the log becomes its nearest end, and the table says
    so. A group that a switch has paused stays paused, and one amid a switch is refused. With --forget-switch it begins
    as its pipeline says.
    """
    place = parse_place(goal, "--to")
    with admin(target) as cluster:
        chosen = partitions_of(cluster, topic, only)
        committed = cluster.group_offsets(group)
        standings = {} if forget_switch else _standings(group, committed)
        begins, ends = cluster.beginning_offsets(chosen), cluster.end_offsets(chosen)
        new, notes = locate(cluster, place, chosen, begins, ends)
        asking = not dry_run and not yes
        rows = [
            (topic, tp.partition, committed[tp].offset if tp in committed else None, new[tp], notes.get(tp, ""))
            for tp in chosen
        ]
        after = "would be" if dry_run or asking else "now"
        columns = ("topic", "partition", "before", after, "note" if notes else "")
        if asking:
            print_table(columns, rows, f"{topic} has no partitions", shorten=("topic",))
            confirm(yes, f"Set these offsets of group {group}?")
        if not dry_run:
            offsets = {tp: OffsetAndMetadata(new[tp], metadata=standings.get(tp, "")) for tp in chosen}
            cluster.commit_group_offsets(group, offsets)
    if asking:
        click.echo(f"set the offsets of {group}")
    else:
        print_table(columns, rows, f"{topic} has no partitions", shorten=("topic",))


def _standings(group: str, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, str]:
    """Return the metadata to keep, which says who writes. Raises UserError amid a switch."""
    standings = {
        tp: standing for tp, offset in committed.items() if (standing := Standing.of(offset.metadata)) is not None
    }
    for tp, standing in sorted(standings.items()):
        if standing.results in (Results.WAITS, Results.HANDED_OVER):
            raise UserError(
                f"GROUP: results of {tp} are {standing.results}, in a switch with {standing.peer}; end it with `roster "
                "groups switch`, or give --forget-switch, which may leave results out or write them twice"
            )
    return {tp: standing.added_to("") for tp, standing in standings.items()}


@groups.command(short_help="Delete a group without members and its offsets.")
@click.argument("group", type=NAME)
@yes_option
@cluster_options
def delete(group: str, yes: bool, target: Target) -> None:
    """Delete GROUP and its offsets; it must have no members. Asks first."""
    confirm(yes, f"Delete group {group} and its offsets?")
    with admin(target) as cluster:
        cluster.delete_group(group)
    click.echo(f"deleted {group}")
