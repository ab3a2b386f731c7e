"""`roster transactions`: the transactions of a cluster, and those that hang (KIP-664)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from roster.cli.admin import admin
from roster.cli.errors import UserError
from roster.cli.options import NAME, Target, cluster_options, confirm, json_option, yes_option
from roster.cli.output import print_found, print_json, print_table, utc
from roster.model import TopicPartition

if TYPE_CHECKING:
    from roster.client import Admin
    from roster.client.types import OpenTransaction

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group()
def transactions() -> None:
    """List, describe and abort the transactions of any Kafka-compatible cluster."""


@transactions.command("list", short_help="List transactional ids, or open transactions by partition.")
@click.option("--state", type=click.Choice(STATES), multiple=True, help="Only ids in this state; repeatable.")
@click.option("--open", "by_partition", is_flag=True, help="List what is open in each partition, with its owner.")
@click.option("--hanging", is_flag=True, help="Of those only the ones that no coordinator will end.")
@click.option("--topic", "-t", type=NAME, multiple=True, help="With --open or --hanging: only this topic; repeatable.")
@json_option
@cluster_options
def list_(
    state: tuple[str, ...], by_partition: bool, hanging: bool, topic: tuple[str, ...], as_json: bool, target: Target
) -> None:
    """List transactional ids with their state.

    With --open: for each partition the transactions open in it, where they begin and the transactional id of their
    producer. Consumers of committed records wait there. A transaction hangs if its coordinator does not know that the
    partition is part of it: `abort --topic … --partition … --producer-id …` ends it.
    """
    with admin(target) as cluster:
        if by_partition or hanging:
            shown = [transaction for transaction in _open(cluster, topic) if transaction.hanging or not hanging]
            _print_open(shown, as_json=as_json)
            return
        if topic:
            raise UserError("--topic: needs --open or --hanging")
        listed = cluster.list_transactions(state)
    rows = ((listing.transactional_id, listing.state, listing.producer_id, listing.broker) for listing in listed)
    columns = ("transactional id", "state", "producer id", "coordinator")
    print_found(as_json, map(asdict, listed), columns, rows, "no transactional ids", shorten=columns[:1])


def _open(cluster: Admin, topics: tuple[str, ...]) -> list[OpenTransaction]:
    counts = cluster.list_topics(internal=True)
    unknown = sorted(set(topics) - counts.keys())
    if unknown:
        raise UserError(f"--topic: no such topic: {unknown[0]}")
    wanted = [TopicPartition(name, n) for name in topics or counts for n in range(counts[name])]
    return cluster.open_transactions(wanted)


def _print_open(transactions: list[OpenTransaction], *, as_json: bool) -> None:
    rows = (
        (
            *transaction.partition,
            transaction.first_offset,
            transaction.producer_id,
            utc(transaction.last_write_ms, "seconds"),
            transaction.transactional_id,
            "hanging" if transaction.hanging else "",
        )
        for transaction in transactions
    )
    documents = ({**asdict(transaction), "partition": list(transaction.partition)} for transaction in transactions)
    columns = ("topic", "partition", "first offset", "producer id", "last write", "transactional id", "")
    print_found(as_json, documents, columns, rows, "no open transactions", shorten=("topic", "transactional id"))


@transactions.command(short_help="Show state, producer and partitions of a transactional id.")
@click.argument("transactional_id", type=NAME)
@json_option
@cluster_options
def describe(transactional_id: str, as_json: bool, target: Target) -> None:
    """Describe TRANSACTIONAL_ID: its state, its producer, and the partitions of its transaction."""
    with admin(target) as cluster:
        described = cluster.describe_transaction(transactional_id)
    if as_json:
        print_json({**asdict(described), "partitions": [list(partition) for partition in described.partitions]})
        return
    click.echo(f"{described.transactional_id}: {described.state}, coordinator {described.coordinator}")
    began = "" if described.started_ms is None else f", last transaction began {utc(described.started_ms, 'seconds')}"
    timeout = f"timeout {described.timeout_ms / 1000:g} s"
    click.echo(f"producer {described.producer_id}, epoch {described.producer_epoch}, {timeout}{began}")
    if described.partitions:
        click.echo()
        print_table(("topic", "partition"), described.partitions, "", shorten=("topic",))


@transactions.command(short_help="Abort a transaction, or one that hangs in a partition.")
@click.argument("transactional_id", type=NAME, required=False)
@click.option("--topic", "-t", type=NAME, help="Topic of a hanging transaction.")
@click.option("--partition", type=click.IntRange(min=0), help="Its partition.")
@click.option("--producer-id", type=click.IntRange(min=0), help="Its producer.")
@yes_option
@cluster_options
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    producer_id: int | None,
    yes: bool,
    target: Target,
) -> None:
    """Abort the transaction of TRANSACTIONAL_ID in all its partitions, and fence its producer. Asks first.

    A hanging one, which has no transactional id, is named by --topic, --partition and --producer-id.
    """
    of_partition = (topic, partition, producer_id)
    if transactional_id is not None and of_partition == (None, None, None):
        confirm(yes, f"Abort the transaction of {transactional_id} and fence its producer?")
        with admin(target) as cluster:
            cluster.abort_transaction(transactional_id)
        click.echo(f"aborted {transactional_id}")
        return
    if transactional_id is not None or topic is None or partition is None or producer_id is None:
        raise UserError("give TRANSACTIONAL_ID, or --topic, --partition and --producer-id")
    where = TopicPartition(topic, partition)
    confirm(yes, f"Abort the transaction of producer {producer_id} in {where}?")
    with admin(target) as cluster:
        transaction = next(
            (
                transaction
                for transaction in cluster.open_transactions([where])
                if transaction.producer_id == producer_id
            ),
            None,
        )
        if transaction is None:
            raise UserError(f"--producer-id: producer {producer_id} has no open transaction in {where}")
        if not transaction.hanging:
            raise UserError(
                f"the transaction does not hang: abort it in all its partitions with "
                f"`roster transactions abort {transaction.transactional_id}`"
            )
        cluster.abort_hanging_transaction(transaction)
    click.echo(f"aborted the transaction of producer {producer_id} in {where}")
