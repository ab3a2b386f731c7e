"""`roster load`: a file into a topic."""

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError, one_line
from roster.cli.load.csv_source import CsvSource
from roster.cli.load.producer import DEFAULT_MAX_MESSAGE_BYTES, Producer, Tally
from roster.cli.load.source import JsonLinesSource, ParquetSource, Source
from roster.cli.options import INT32, NAME, POSITIVE, Target, cluster_options, columns_of
from roster.client import AuthorizationError, TopicExistsError, UnsupportedError

_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_STDIN = Path("-")
_REPORT_EVERY_S = 5.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--topic", "-t", type=NAME, required=True, help="Topic to send to.")
@click.option("--key", metavar="COLUMN[,COLUMN…]", help="Columns that make the record key; default: no key.")
@click.option("--rate", type=POSITIVE, help="Records a second; default: no limit.")
@click.option(
    "--partitions", type=click.IntRange(1, INT32), help="Create the topic with this many if it does not exist."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    help="Format of FILE, if its name does not say.",
)
@click.option(
    "--null",
    "nulls",
    metavar="TEXT",
    multiple=True,
    help="CSV text that means null, besides the empty one; repeatable.",
)
@cluster_options
def load(
    file: Path,
    topic: str,
    key: str | None,
    rate: float | None,
    partitions: int | None,
    form: str | None,
    nulls: tuple[str, ...],
    target: Target,
) -> None:
    """Send each row of FILE to a topic as one JSON record; FILE may be - for standard input, or a pipe.

    CSV (with a header), JSON lines or Parquet. The whole file is checked before the first record is sent; what comes
    through a pipe is copied to a temporary file for that. The producer is idempotent: a broker that goes away and comes
    back makes no doubles.
    """
    columns = columns_of(key, "--key") if key is not None else ()
    with readable_twice(file) as path:
        source = open_source(path, columns, form or _format_of(file), nulls=nulls, name=_name(file))
        max_message_bytes = _look_up_topic(target, topic, partitions)
        tally = Tally(source.check())
        if partitions is not None:
            with admin(target) as cluster, contextlib.suppress(TopicExistsError):
                cluster.create_topic(topic, partitions)
        producer = Producer(target, topic, tally, _Reporter(topic), max_message_bytes)
        try:
            producer.send(source.batches(), rate)
        except KeyboardInterrupt:
            producer.abort()
            click.echo(f"roster: interrupted: {tally.acknowledged} of {tally.total} acknowledged", err=True)
            raise
    rate_seen = f"{tally.acknowledged} records acknowledged in {tally.seconds:.1f} s ({tally.rate:,.0f} records/s)"
    click.echo(f"{topic}: {rate_seen}, {tally.failed} failed")
    if tally.failed:
        raise Failure(f"{tally.failed} of {tally.total} records were not delivered: {tally.failure}")


def _name(file: Path) -> str:
    return "standard input" if file == _STDIN else str(file)


def _format_of(file: Path) -> str:
    """Return the format that a file's name promises. Raises UserError if it promises none."""
    form = _FORMATS.get(file.suffix.lower())
    if form is None:
        raise UserError(f"--format: the name of {_name(file)} does not say it; add --format csv, jsonl or parquet")
    return form


def open_source(path: Path, key: tuple[str, ...], form: str, *, nulls: tuple[str, ...] = (), name: str = "") -> Source:
    """Open the source for a file of a format: "csv", "jsonl" or "parquet".

    key: columns whose text becomes the record key; none for records without a key. nulls: CSV texts that mean null
    besides the empty one, such as "NA". name: what errors call the file, if not its path. Raises UserError for no file.
    """
    named = name or str(path)
    if not path.is_file():
        problem = "a directory" if path.is_dir() else "not there"
        raise UserError(f"FILE: {named} is {problem}; give a CSV, JSON lines or Parquet file")
    if form == "csv":
        return CsvSource(path, named, key, nulls)
    return (JsonLinesSource if form == "jsonl" else ParquetSource)(path, named, key)


@contextlib.contextmanager
def readable_twice(path: Path) -> Iterator[Path]:
    """Open the file, or a copy of a pipe's content, which lies in the directory for temporary files (TMPDIR) meanwhile.

    path: a file, a pipe, or `-` for standard input. Raises Failure if the copy cannot be written.
    """
    if path != _STDIN and (not path.exists() or path.is_file() or path.is_dir()):
        yield path
        return
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="roster-load-"))
            source: BinaryIO = sys.stdin.buffer if path == _STDIN else stack.enter_context(path.open("rb"))
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
        except OSError as error:
            problem = f"cannot be copied to {tempfile.gettempdir()} (TMPDIR): {one_line(error)}"
            raise Failure(f"{_name(path)} {problem}") from error
        yield Path(copy.name)


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


class _Reporter:
    """Reports progress every few seconds, as a line on standard error."""

    def __init__(self, topic: str) -> None:
        self._topic, self._next = topic, time.monotonic() + _REPORT_EVERY_S

    def __call__(self, tally: Tally) -> None:
        """Report progress if it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REPORT_EVERY_S
        waiting = f"; waiting: {tally.trouble}" if tally.trouble else ""
        done = f"{tally.acknowledged} of {tally.total} acknowledged, {tally.failed} failed"
        click.echo(f"{self._topic}: {done}{waiting}", err=True)
