"""`roster load`: a file into a topic."""

import contextlib
import sys
import time
from pathlib import Path

import click
from rich import progress
from rich.console import Console

from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError
from roster.cli.load.files import readable_twice
from roster.cli.load.formats import open_source
from roster.cli.load.producer import DEFAULT_MAX_MESSAGE_BYTES, RECORD_OVERHEAD, Producer, Tally
from roster.cli.options import INT32, NAME, POSITIVE, Target, cluster_options, columns_of, form_option
from roster.cli.output import print_json_line
from roster.client import AuthorizationError, TopicExistsError, UnsupportedError

_JSON_EVERY_S = 0.5
_PLAIN_EVERY_S = 5.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--topic", "-t", type=NAME, required=True, help="Topic to send to.")
@click.option("--key", metavar="COLUMN[,COLUMN…]", help="Columns that make the record key; default: no key.")
@click.option("--rate", type=POSITIVE, help="Records a second; default: no limit.")
@click.option(
    "--partitions", type=click.IntRange(1, INT32), help="Create the topic with this many if it does not exist."
)
@form_option
@click.option(
    "--null",
    "nulls",
    metavar="TEXT",
    multiple=True,
    help="CSV text that means null, besides the empty one; repeatable.",
)
@click.option(
    "--skip-bad-rows",
    is_flag=True,
    help="Leave out rows that cannot be read or are too large, instead of refusing the file.",
)
@click.option("--json", "as_json", is_flag=True, help="Progress and result as JSON lines.")
@cluster_options
def load(
    file: Path,
    topic: str,
    key: str | None,
    rate: float | None,
    partitions: int | None,
    form: str | None,
    nulls: tuple[str, ...],
    skip_bad_rows: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Send each row of FILE to a topic as one JSON record; FILE may be - for standard input, or a pipe.

    CSV (with a header), JSON lines or Parquet; plain, .gz, or alone in a .zip. The whole file is checked before the
    first record is sent; what comes through a pipe is copied to a temporary file for that. The producer is idempotent:
    a broker that goes away and comes back makes no doubles.
    """
    columns = columns_of(key, "--key") if key is not None else ()
    with readable_twice(file, form) as (path, name):
        source = open_source(path, columns, form, skip_bad=skip_bad_rows, nulls=nulls, name=name)
        max_message_bytes = _look_up_topic(target, topic, partitions)
        checked = source.check(max_message_bytes - RECORD_OVERHEAD)
        if partitions is not None:
            with admin(target) as cluster, contextlib.suppress(TopicExistsError):
                cluster.create_topic(topic, partitions)
        tally = Tally(checked.rows)
        report = _Reporter(topic, checked.rows, as_json)
        producer = Producer(target, topic, tally, report, max_message_bytes)
        try:
            with report:
                producer.send(source.batches(), rate)
                report.fill(tally)
        except KeyboardInterrupt:
            producer.abort()
            click.echo(f"roster: interrupted: {tally.acknowledged} of {checked.rows} acknowledged", err=True)
            raise
    _conclude(topic, tally, checked.bad, as_json)


def _look_up_topic(target: Target, topic: str, wanted: int | None) -> int:
    """Refuse a topic that is not there or has other partitions than wanted; its `max.message.bytes`."""
    with admin(target) as cluster:
        there = cluster.list_topics(internal=True).get(topic)
        if there is None and wanted is None:
            # A topic that this user may not describe is not listed either.
            hint = ", or this user lacks DESCRIBE on it" if target.security.uses_sasl else ""
            missing = f"no topic {topic!r} at {target.bootstrap}{hint}"
            raise UserError(f"--topic: {missing}; pass --partitions N to create it")
        if there is not None and wanted is not None and there != wanted:
            raise UserError(f"--partitions: topic {topic!r} has {there}, not {wanted}; leave the option out")
        if there is None:
            return DEFAULT_MAX_MESSAGE_BYTES
        with contextlib.suppress(AuthorizationError, UnsupportedError):
            return int(cluster.topic_configs(topic).get("max.message.bytes") or DEFAULT_MAX_MESSAGE_BYTES)
    return DEFAULT_MAX_MESSAGE_BYTES


def _conclude(topic: str, tally: Tally, bad: int, as_json: bool) -> None:
    if as_json:
        print_json_line({**_figures(tally), "bad_rows": bad, "done": True})
    else:
        skipped = f", {bad} bad rows left out" if bad else ""
        click.echo(
            f"{topic}: {tally.acknowledged} records acknowledged in {tally.seconds:.1f} s "
            f"({tally.rate:,.0f} records/s), {tally.failed} failed{skipped}"
        )
    if tally.failed:
        raise Failure(f"{tally.failed} of {tally.total} records were not delivered: {tally.failure}")


def _figures(tally: Tally) -> dict[str, object]:
    figures = {"sent": tally.sent, "acknowledged": tally.acknowledged, "failed": tally.failed}
    return figures | {"seconds": round(tally.seconds, 3)} | ({"waiting": tally.trouble} if tally.trouble else {})


class _Reporter:
    """Reports progress: a bar on a terminal, else lines on stderr, or JSON lines on stdout."""

    def __init__(self, topic: str, total: int, as_json: bool) -> None:
        self.topic, self.total, self.as_json = topic, total, as_json
        self.bar: progress.Progress | None = None
        self.every = _JSON_EVERY_S if as_json else _PLAIN_EVERY_S
        self.next = time.monotonic() + self.every
        if not as_json and sys.stderr.isatty():
            self.every, self.next = 0.1, 0.0
            self.bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[rate]:,.0f}/s"),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[waiting]}", style="yellow", markup=False),
                console=Console(stderr=True),
            )
            self.task = self.bar.add_task(topic, total=total, rate=0.0, waiting="")

    def __enter__(self) -> "_Reporter":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, tally: Tally) -> None:
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.every
            self._say(tally)

    def fill(self, tally: Tally) -> None:
        """Draw the bar as it is at the end; lines say that in the result."""
        if self.bar is not None:
            self._say(tally)

    def _say(self, tally: Tally) -> None:
        waiting = f"waiting: {tally.trouble}" if tally.trouble else ""
        if self.bar is not None:
            self.bar.update(self.task, completed=tally.acknowledged, rate=tally.rate, waiting=waiting)
        elif self.as_json:
            print_json_line(_figures(tally))
        else:
            done = f"{tally.acknowledged} of {self.total} acknowledged, {tally.failed} failed"
            click.echo(f"{self.topic}: {'; '.join(filter(None, [done, waiting]))}", err=True)
