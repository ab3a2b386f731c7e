"""`roster state export`, `import` and `repartition`: the state of a group as Parquet files, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from roster._json import JsonObject
from roster.cli.errors import UserError
from roster.cli.log_positions import parse_time
from roster.cli.options import NAME, PARTITIONERS, Target, cluster_options, json_option
from roster.cli.output import print_json, print_table
from roster.cli.session import show_progress, spark_starter
from roster.state.saved.folder import Folder, FolderError
from roster.state.saved.manifest import last_before

if TYPE_CHECKING:
    from datetime import datetime

    from roster.spark.state import Export


@click.command(short_help="Save a group's state as Parquet files, while it runs.")
@click.argument("group", type=NAME)
@click.option("--to", required=True, metavar="FOLDER", help="An empty folder: its path, or a URI as of s3 or hdfs.")
@json_option
@cluster_options
def export(group: str, to: str, as_json: bool, target: Target) -> None:
    """Write the state of GROUP to a folder as Parquet files, with its committed offsets in manifest.json.

    The group may be running. Spark reads large changelogs: by default on this machine, else where spark-defaults.conf
    says. A folder without manifest.json is of an export that did not end.
    """
    with spark_starter(target, "state export") as spark:
        from roster.spark.state import export as export_state

        exported = export_state(spark, target.bootstrap, group, to, security=target.security, on_progress=show_progress)
    _show(exported, as_json=as_json)


@click.command("import", short_help="Make an export the state of a new group.")
@click.argument("folder", metavar="FOLDER")
@click.option("--group", required=True, type=NAME, help="A group without members, offsets and state.")
@click.option("--before", metavar="TIME", help="Of a folder of exports take the last one before TIME (UTC, ISO 8601).")
@click.option(
    "--offsets",
    metavar="earliest|latest|TIME|JSON",
    help='Where the group goes on; JSON as in {"orders": {"0": 812}}. Default: the offsets of the export.',
)
@click.option(
    "--keyed-by",
    metavar="COLUMN",
    multiple=True,
    help="A key column that the input's records have as key, if the keys do not prove it; repeatable.",
)
@click.option("--partitioner", type=click.Choice(PARTITIONERS), help="What placed the input's records, as --keyed-by.")
@cluster_options
def import_(
    folder: str,
    group: str,
    before: str | None,
    offsets: str | None,
    keyed_by: tuple[str, ...],
    partitioner: str | None,
    target: Target,
) -> None:
    """Write the export in FOLDER as the state of a new group, which goes on from the export's offsets.

    A folder with exports named after their moments (20261124T030000Z) stands for the last, or the last before a time.

    Where the input topics have another number of partitions than at the export, keys are placed anew.

    It is one transaction: whole, or nothing has happened. A pipeline of the group that starts meanwhile is refused.
    """
    try:
        export_folder, manifest = last_before(
            Folder(folder), None if before is None else parse_time(before, "--before")
        )
    except FolderError as error:
        raise UserError(f"{'FOLDER' if before is None else '--before'}: {error}") from None
    with spark_starter(target, "state import") as spark:
        from roster.spark.state import import_state

        records = import_state(
            spark,
            target.bootstrap,
            group,
            export_folder.place,
            offsets=_offsets(offsets),
            keyed_by=keyed_by,
            partitioner=partitioner,
            security=target.security,
            on_progress=show_progress,
        )
    begin = f"the offsets of the export of {manifest.at}" if offsets is None else offsets
    click.echo(f"{records} records; group {group} goes on from {begin}")


def _offsets(text: str | None) -> str | datetime | None:
    """Return what --offsets says. Raises UserError for a text that is not a time."""
    if text is None or text in ("earliest", "latest") or text.lstrip().startswith("{"):
        return text
    return parse_time(text, "--offsets", "earliest, latest, offsets as JSON or ")


_COLUMNS = ("store", "part", "rows", "files", "bytes")


def _show(exported: Export, *, as_json: bool) -> None:
    manifest = exported.manifest
    if as_json:
        print_json(_document(exported))
        return
    rows = ([part[column] for column in _COLUMNS] for part in _document(exported)["parts"])
    print_table(_COLUMNS, rows, f"group {manifest.group} has no entries yet", shorten=("store",))


def _document(exported: Export) -> JsonObject:
    manifest = exported.manifest
    parts = [(store, part, files) for store, saved in manifest.stores.items() for part, files in saved.files.items()]
    parts += [(topic, "on their way", files) for topic, (_, files) in manifest.on_their_way.items()]
    rows = [
        (store, part, sum(file.rows for file in files), len(files), sum(file.bytes for file in files))
        for store, part, files in parts
    ]
    return {
        "group": manifest.group,
        "folder": exported.folder.shown,
        "exported_at": manifest.at,
        "parts": [dict(zip(_COLUMNS, row, strict=True)) for row in rows],
        "offsets": [{**tp._asdict(), "offset": offset} for tp, offset in sorted(manifest.offsets.items())],
    }


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
        from roster.spark.state import repartition_state

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
