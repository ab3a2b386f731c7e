"""`roster transactions`: the transactions of a cluster (KIP-664)."""

from dataclasses import asdict

import click

from roster.cli.admin import admin
from roster.cli.options import NAME, Target, cluster_options, confirm, json_option, yes_option
from roster.cli.output import print_found, print_json, print_table, utc

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group()
def transactions() -> None:
    """List, describe and abort the transactions of any Kafka-compatible cluster."""


@transactions.command("list", short_help="List transactional ids.")
@click.option("--state", type=click.Choice(STATES), multiple=True, help="Only ids in this state; repeatable.")
@json_option
@cluster_options
def list_(state: tuple[str, ...], as_json: bool, target: Target) -> None:
    """List transactional ids with their state."""
    with admin(target) as cluster:
        listed = cluster.list_transactions(state)
    rows = ((listing.transactional_id, listing.state, listing.producer_id, listing.broker) for listing in listed)
    columns = ("transactional id", "state", "producer id", "coordinator")
    print_found(as_json, map(asdict, listed), columns, rows, "no transactional ids", shorten=columns[:1])


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


@transactions.command(short_help="Abort a transaction.")
@click.argument("transactional_id", type=NAME)
@yes_option
@cluster_options
def abort(transactional_id: str, yes: bool, target: Target) -> None:
    """Abort the transaction of TRANSACTIONAL_ID in all its partitions, and fence its producer. Asks first."""
    confirm(yes, f"Abort the transaction of {transactional_id} and fence its producer?")
    with admin(target) as cluster:
        cluster.abort_transaction(transactional_id)
    click.echo(f"aborted {transactional_id}")
