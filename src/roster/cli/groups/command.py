"""`roster groups`: the consumer groups of a cluster, their members, offsets and lag."""

from __future__ import annotations

import click

from roster.cli.admin import admin
from roster.cli.errors import UserError
from roster.cli.groups.check import check
from roster.cli.groups.describe import describe, offsets
from roster.cli.groups.listing import list_
from roster.cli.groups.watch import watch
from roster.cli.options import NAME, Target, cluster_options, confirm, require_yes, yes_option
from roster.cli.output import print_table
from roster.cli.places import PLACES, locate, parse_place
from roster.client import OffsetAndMetadata
from roster.model import TopicPartition


@click.group()
def groups() -> None:
    """List and describe the consumer groups of any Kafka-compatible cluster."""


groups.add_command(list_)
groups.add_command(describe)
groups.add_command(offsets)
groups.add_command(check)
groups.add_command(watch)


@groups.command(short_help="Set where a group without members goes on reading.")
@click.argument("group", type=NAME)
@click.option("--topic", "-t", type=NAME, required=True, help="Topic whose offsets to set.")
@click.option("--to", "goal", required=True, metavar=PLACES, help="Where to go on; TIME: ISO 8601, UTC by default.")
@click.option("--partition", "only", type=click.IntRange(min=0), multiple=True, help="Only this partition; repeatable.")
@click.option("--dry-run", is_flag=True, help="Show what would be set.")
@yes_option
@cluster_options
def reset(group: str, topic: str, goal: str, only: tuple[int, ...], dry_run: bool, yes: bool, target: Target) -> None:
    """Set where GROUP goes on reading a topic; the group must have no members.

    Shows the offsets and asks first. An offset or a time outside of the log becomes its nearest end, and the table says
    so.
    """
    place = parse_place(goal, "--to")
    if not dry_run:
        require_yes(yes, f"changes where group {group} goes on reading")
    with admin(target) as cluster:
        there = [TopicPartition(topic, each.partition) for each in cluster.describe_topic(topic).partitions]
        missing = sorted(set(only) - {tp.partition for tp in there})
        if missing:
            raise UserError(f"--partition: {topic} has no partition {missing[0]}; it has {len(there)}")
        chosen = sorted(tp for tp in there if not only or tp.partition in only)
        committed = cluster.group_offsets(group)
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
            cluster.commit_group_offsets(group, {tp: OffsetAndMetadata(new[tp]) for tp in chosen})
    if asking:
        click.echo(f"set the offsets of {group}")
    else:
        print_table(columns, rows, f"{topic} has no partitions", shorten=("topic",))


@groups.command(short_help="Delete a group without members and its offsets.")
@click.argument("group", type=NAME)
@yes_option
@cluster_options
def delete(group: str, yes: bool, target: Target) -> None:
    """Delete GROUP and its offsets; it must have no members. Asks first."""
    require_yes(yes, f"deletes group {group} and its offsets")
    confirm(yes, f"Delete group {group} and its offsets?")
    with admin(target) as cluster:
        cluster.delete_group(group)
    click.echo(f"deleted {group}")
