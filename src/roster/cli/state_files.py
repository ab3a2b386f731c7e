"""`roster state export` and `roster state import`: the state of a group as Parquet files, and back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError, explained_imports, one_line
from roster.cli.options import NAME, Target, cluster_options, json_option
from roster.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from roster.spark.state import Export, StateProgress


@click.command(short_help="Save a group's state as Parquet files, while it runs.")
@click.argument("group", type=NAME)
@click.option("--to", required=True, metavar="FOLDER", help="An empty folder: its path, or a URI as of s3 or hdfs.")
@json_option
@cluster_options
def export(group: str, to: str, as_json: bool, target: Target) -> None:
    """Write the state of GROUP to a folder as Parquet files, with its committed offsets in manifest.json.

    The group may be running. Spark reads its changelogs: by default on this machine, else where spark-defaults.conf
    says. A folder without manifest.json is of an export that did not end.
    """
    with _spark(target, "export") as spark:
        from roster.spark.state import export as export_state  # noqa: PLC0415 - as below

        show = _Progress().show
        found = export_state(spark, target.bootstrap, group, to, security=target.security, on_progress=show)
    _show(found, as_json=as_json)


@click.command("import", short_help="Make an export the state of a new group.")
@click.argument("folder", metavar="FOLDER")
@click.option("--group", required=True, type=NAME, help="A group without members, offsets and state.")
@cluster_options
def import_(folder: str, group: str, target: Target) -> None:
    """Write the export in FOLDER as the state of a new group, which goes on from the export's offsets.

    It is one transaction: whole, or nothing has happened. A pipeline of the group that starts meanwhile is refused.
    """
    with _spark(target, "import") as spark:
        from roster.spark.state import import_state  # noqa: PLC0415 - as below

        show = _Progress().show
        records = import_state(spark, target.bootstrap, group, folder, security=target.security, on_progress=show)
    click.echo(f"{records} records; group {group} goes on from the offsets of the export")


@contextlib.contextmanager
def _spark(target: Target, name: str) -> Iterator[SparkSession]:
    """Run with a Spark session; errors of its user become one line."""
    with explained_imports(f"state {name}"):
        from roster.spark import PipelineError, session  # noqa: PLC0415 - no other command of the group needs Spark

    with admin(target):  # for its errors
        try:
            spark = session(f"roster state {name}")
            try:
                yield spark
            finally:
                spark.stop()
        except PipelineError as error:
            raise (UserError if error.field else Failure)(one_line(error)) from None


class _Progress:
    """A line on standard error whenever there is news."""

    def __init__(self) -> None:
        self._last: StateProgress | None = None

    def show(self, progress: StateProgress) -> None:
        if progress != self._last:
            click.echo(
                f"{progress.done} of {progress.partitions} partitions, {progress.records} changelog records", err=True
            )
        self._last = progress


def _show(found: Export, *, as_json: bool) -> None:
    manifest = found.manifest
    rows = [
        (store, part, sum(file.rows for file in files), len(files), sum(file.bytes for file in files))
        for store, each in manifest.stores.items()
        for part, files in each.files.items()
    ]
    rows += [
        (topic, "on their way", sum(file.rows for file in files), len(files), sum(file.bytes for file in files))
        for topic, (_, files) in manifest.on_their_way.items()
    ]
    columns = ("store", "part", "rows", "files", "bytes")
    if as_json:
        print_json(
            {
                "group": manifest.group,
                "folder": found.folder.shown,
                "parts": [dict(zip(columns, row, strict=True)) for row in rows],
                "offsets": [{**tp._asdict(), "offset": offset} for tp, offset in sorted(manifest.offsets.items())],
            }
        )
        return
    print_table(columns, rows, f"group {manifest.group} has no entries yet", shorten=("store",))
