"""`roster topics read`: the records of a topic, from the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from roster.cli.admin import admin
from roster.cli.errors import UserError, explained_imports
from roster.cli.log_positions import PLACES, locate, parse_place, partition_option, partitions_of
from roster.cli.options import NAME, Target, cluster_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.cli.topics.records import Record

LEVELS = ("read_uncommitted", "read_committed")


@click.command(short_help="Print the records of a topic.")
@click.argument("topic", type=NAME)
@click.option(
    "--from", "start", metavar=PLACES, help="Where to begin; default: earliest, with --follow latest. TIME: ISO 8601."
)
@click.option("--to", "stop", metavar=PLACES, help="Where to stop, excluded; default: latest, as of the start.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new records until Ctrl-C.")
@partition_option
@click.option(
    "--isolation-level",
    type=click.Choice(LEVELS),
    default=LEVELS[0],
    show_default=True,
    help="read_committed leaves out transactions that are open or aborted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a record.")
@cluster_options
def read(
    topic: str,
    start: str | None,
    stop: str | None,
    follow: bool,
    only: tuple[int, ...],
    isolation_level: str,
    as_json: bool,
    target: Target,
) -> None:
    """Print the records of TOPIC, a line each: partition, offset, time, key, value, headers.

    Records come in the order of their offsets within a partition, and partitions as they are fetched. No group is
    joined and nothing is committed. What is not UTF-8 text is shown as hex, in JSON as value_base64 or key_base64.
    Records of open and aborted transactions are shown, as Kafka's console consumer does, unless --isolation-level
    is read_committed.
    """
    if follow and stop is not None:
        raise UserError("--follow: has no end; leave --to out")
    with explained_imports("topics read"):
        from roster.cli.topics import records
    begin_at = parse_place(start or ("latest" if follow else "earliest"), "--from")
    end_at = parse_place(stop or "latest", "--to")
    with admin(target) as cluster:
        chosen = partitions_of(cluster, topic, only)
        begins = cluster.beginning_offsets(chosen)
        ends = cluster.stable_offsets(chosen) if isolation_level == LEVELS[1] else cluster.end_offsets(chosen)
        starts, _ = locate(cluster, begin_at, chosen, begins, ends)
        stops, _ = locate(cluster, end_at, chosen, begins, ends)
    widths = len(str(max(tp.partition for tp in chosen))), len(str(max(ends.values())))
    form: Callable[[Record], str] = records.as_json if as_json else lambda record: records.as_line(record, *widths)
    count, ranges = 0, {tp: (starts[tp], None if follow else stops[tp]) for tp in starts}
    for batch in records.read_records(target, ranges, is_committed=isolation_level == LEVELS[1]):
        count += len(batch)
        if batch:
            click.echo("\n".join(map(form, batch)))
    if not count and not as_json:
        click.echo("no records", err=True)
