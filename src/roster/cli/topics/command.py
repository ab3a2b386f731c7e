"""`roster topics`: the topics of a cluster, listed, created, described, grown and deleted."""

import click

from roster.cli.admin import admin
from roster.cli.errors import UserError
from roster.cli.options import (
    INT32,
    NAME,
    Target,
    cluster_options,
    cluster_options_but_config,
    confirm,
    json_option,
    yes_option,
)
from roster.cli.output import print_found, print_json, print_table
from roster.cli.topics.read import read
from roster.console.text import counted
from roster.model import TopicPartition
from roster.model.options import shown
from roster.model.topics import NAME_RULE, is_legal_name

INTERNAL = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__remote_log_metadata", "__share_group_state", "__transaction_state"}
)
"""Topics of Kafka's own state, whether metadata marks them as internal or not."""


@click.group()
def topics() -> None:
    """List, create, describe, read, grow and delete the topics of any Kafka-compatible cluster."""


topics.add_command(read)


@topics.command("list", short_help="List topics, their partitions and offsets.")
@click.option("--internal", is_flag=True, help="Show the cluster's own topics too.")
@json_option
@cluster_options
def list_(internal: bool, as_json: bool, target: Target) -> None:
    """List topics, their partitions, and the offsets they hold."""
    with admin(target) as cluster:
        counts = cluster.list_topics(internal=internal)
        partitions = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        begins, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
    counts_held = dict.fromkeys(counts, 0)
    for partition in partitions:
        counts_held[partition.topic] += ends[partition] - begins[partition]
    columns = ("topic", "partitions", "offsets")
    rows = [(name, counts[name], counts_held[name]) for name in sorted(counts)]
    documents = (dict(zip(columns, row, strict=True)) for row in rows)
    print_found(as_json, documents, columns, rows, "no topics", shorten=("topic",))


@topics.command(short_help="Create a topic.")
@click.argument("name", type=NAME)
@click.option(
    "--partitions", "-p", type=click.IntRange(1, INT32), default=1, show_default=True, help="Number of partitions."
)
@click.option(
    "--replication", type=click.IntRange(1, 2**15 - 1), help="Replicas of each partition; default: the cluster's."
)
@click.option(
    "--config", "configs", type=NAME, metavar="NAME=VALUE", multiple=True, help="A setting of the topic; repeatable."
)
@cluster_options_but_config
def create(name: str, partitions: int, replication: int | None, configs: tuple[str, ...], target: Target) -> None:
    """Create the topic NAME."""
    if not is_legal_name(name):
        raise UserError(f"NAME: {shown(name)} cannot be a topic; use {NAME_RULE}")
    for setting in configs:
        if not setting.partition("=")[0] or "=" not in setting:
            raise UserError(f"--config: {setting!r} is not NAME=VALUE")
    pairs = dict(setting.split("=", 1) for setting in configs)
    with admin(target) as cluster:
        cluster.create_topic(name, partitions, replication=replication or -1, configs=pairs or None)
    click.echo(f"created {name} with {counted(partitions, 'partition')}")


@topics.command(short_help="Show leader, replicas and offsets of partitions.")
@click.argument("name", type=NAME)
@json_option
@cluster_options
def describe(name: str, as_json: bool, target: Target) -> None:
    """Describe the partitions of the topic NAME: leader, replicas, log start and end offset."""
    with admin(target) as cluster:
        topic = cluster.describe_topic(name)
        there = {TopicPartition(name, partition.partition): partition for partition in topic.partitions}
        begins, ends = cluster.beginning_offsets(there), cluster.end_offsets(there)
    partitions = [
        {
            "partition": partition.partition,
            "leader": partition.leader,
            "replicas": list(partition.replicas),
            "in_sync": list(partition.in_sync),
            "begin": begins[tp],
            "end": ends[tp],
        }
        for tp, partition in sorted(there.items())
    ]
    if as_json:
        print_json({"topic": name, "internal": topic.internal, "partitions": partitions})
        return
    columns = ("partition", "leader", "replicas", "in sync", "begin", "end")
    shown = (
        [",".join(map(str, value)) if isinstance(value, list) else value for value in partition.values()]
        for partition in partitions
    )
    print_table(columns, shown, f"{name} has no partitions")


@topics.command(short_help="Raise the number of partitions of a topic.")
@click.argument("name", type=NAME)
@click.argument("total", type=click.IntRange(1, INT32))
@cluster_options
def grow(name: str, total: int, target: Target) -> None:
    """Raise the number of partitions of the topic NAME to TOTAL."""
    with admin(target) as cluster:
        before = len(cluster.describe_topic(name).partitions)
        if total <= before:
            raise UserError(f"TOTAL: {name} has {before} partitions already; a topic can only grow")
        cluster.create_partitions(name, total)
    click.echo(f"{name}: {before} -> {total} partitions")


@topics.command(short_help="Delete a topic and its records.")
@click.argument("name", type=NAME)
@yes_option
@cluster_options
def delete(name: str, yes: bool, target: Target) -> None:
    """Delete the topic NAME and its records; asks first. The cluster's own topics are refused."""
    with admin(target) as cluster:
        if name in INTERNAL or cluster.describe_topic(name).internal:
            raise UserError(f"NAME: {name} is an internal topic; the cluster keeps its own state in it")
        confirm(yes, f"Delete topic {name} and all its records?")
        cluster.delete_topic(name)
    click.echo(f"deleted {name}")
