"""`roster topics read`: the records of a topic, from the shell."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from roster._extras import missing_error
from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError
from roster.cli.options import INT32, NAME, Target, cluster_options
from roster.cli.places import PLACES, locate, parse_place
from roster.cli.topics.record_output import as_json as to_json
from roster.cli.topics.record_output import as_line
from roster.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roster.cli.topics.reader import Reader
    from roster.cli.topics.record_output import Record

LEVELS = ("read_uncommitted", "read_committed")
_MOST_LAST = 1_000_000


@click.command(short_help="Print the records of a topic.")
@click.argument("topic", type=NAME)
@click.option(
    "--from", "start", metavar=PLACES, help="Where to begin; default: earliest, with --follow latest. TIME: ISO 8601."
)
@click.option("--to", "stop", metavar=PLACES, help="Where to stop, excluded; default: latest, as of the start.")
@click.option("--last", type=click.IntRange(1, _MOST_LAST), metavar="N", help="Only the newest N records.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new records until Ctrl-C.")
@click.option("--partition", "-p", "only", type=click.IntRange(0, INT32), multiple=True, help="Only this; repeatable.")
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
    last: int | None,
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
    _refuse_contradictions(start, stop, last, follow)
    reader_class = _load_reader()
    begin_at = parse_place(start or ("latest" if follow and last is None else "earliest"), "--from")
    end_at = parse_place(stop or "latest", "--to")
    with admin(target) as cluster:
        chosen = _choose(topic, [each.partition for each in cluster.describe_topic(topic).partitions], only)
        committed = isolation_level == LEVELS[1]
        begins = cluster.beginning_offsets(chosen)
        ends = cluster.stable_offsets(chosen) if committed else cluster.end_offsets(chosen)
        starts, _ = locate(cluster, begin_at, chosen, begins, ends)
        stops, _ = locate(cluster, end_at, chosen, begins, ends)
    printer = _Printer(as_json, len(str(max(tp.partition for tp in chosen))), len(str(max(ends.values()))))
    reader = reader_class(target, isolation_level)
    if last is not None:
        printer.print(reader.last(last, starts, stops))
        starts = stops
    if follow or last is None:
        _read_ranges(reader, printer, starts, stops, follow)
    if not printer.any and not as_json:
        click.echo("no records", err=True)


def _refuse_contradictions(start: str | None, stop: str | None, last: int | None, follow: bool) -> None:
    if last is not None and start is not None:
        raise UserError("--last: counts back from the end; leave --from out")
    if follow and stop is not None:
        raise UserError("--follow: has no end; leave --to out")


def _load_reader() -> type[Reader]:
    try:
        from roster.cli.topics.reader import Reader  # noqa: PLC0415  the other commands do without pyarrow
    except ModuleNotFoundError as error:
        raise Failure(str(missing_error("roster topics read", "cli", [error.name or "pyarrow"]))) from error
    return Reader


def _choose(topic: str, there: list[int], only: tuple[int, ...]) -> list[TopicPartition]:
    missing = sorted(set(only) - set(there))
    if missing:
        raise UserError(f"--partition: {topic} has no partition {missing[0]}; it has {len(there)}")
    return [TopicPartition(topic, number) for number in sorted(set(only) or there)]


def _read_ranges(
    reader: Reader,
    printer: _Printer,
    starts: dict[TopicPartition, int],
    stops: dict[TopicPartition, int],
    follow: bool,
) -> None:
    from roster.cli.topics.reader import Range  # noqa: PLC0415  as above

    for records in reader.read({tp: Range(starts[tp], None if follow else stops[tp]) for tp in starts}):
        printer.print(records)


class _Printer:
    """Prints records and knows whether there were any."""

    def __init__(self, as_json: bool, partition_width: int, offset_width: int) -> None:
        self.any = False
        self._form: Callable[[Record], str] = (
            to_json if as_json else lambda record: as_line(record, partition_width, offset_width)
        )

    def print(self, records: Iterable[Record]) -> None:
        """Print and flush, so that a pipe has them at once."""
        lines = list(map(self._form, records))
        if lines:
            self.any = True
            click.echo("\n".join(lines))
            sys.stdout.flush()
