"""`roster state repartition`: the state of a group whose input topics have more partitions than before."""

from __future__ import annotations

import click

from roster.cli.options import NAME, PARTITIONERS, Target, cluster_options
from roster.cli.output import print_table
from roster.cli.session import show_progress, spark_starter


@click.command(short_help="Place a group's state anew after its input topics got more partitions.")
@click.argument("group", type=NAME)
@click.option("--to", required=True, metavar="FOLDER", help="Where the state is exported to first; an empty folder.")
@click.option(
    "--partitions",
    "asked",
    type=(NAME, click.IntRange(min=1)),
    metavar="TOPIC COUNT",
    multiple=True,
    help="Partitions that one of the group's repartition topics gets; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Export, check, and show what would change.")
@click.option("--keyed-by", metavar="COLUMN", multiple=True, help="As of `roster state import`; repeatable.")
@click.option("--partitioner", type=click.Choice(PARTITIONERS), help="As of `roster state import`.")
@cluster_options
def repartition(
    group: str,
    to: str,
    asked: tuple[tuple[str, int], ...],
    dry_run: bool,
    keyed_by: tuple[str, ...],
    partitioner: str | None,
    target: Target,
) -> None:
    """Give the changelogs of GROUP as many partitions as its input topics have, and place its keys anew.

    Applications that start after the topics grew read what was written before, and end. All must be stopped. If the
    command is cut off, run it again with the same FOLDER; until then applications of the group are refused.
    """
    with spark_starter(target, "state repartition") as spark:
        from roster.spark.state import repartition_state  # noqa: PLC0415 - no other command of the group needs Spark

        changed = repartition_state(
            spark,
            target.bootstrap,
            group,
            to,
            partitions=dict(asked),
            dry_run=dry_run,
            keyed_by=keyed_by,
            partitioner=partitioner,
            security=target.security,
            on_progress=show_progress,
        )
    print_table(("topic", "before", "after"), [(topic, *counts) for topic, counts in changed.items()], "no topics")
    click.echo("nothing has changed yet" if dry_run else f"group {group} goes on from its offsets")
