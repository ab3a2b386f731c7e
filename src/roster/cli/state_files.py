"""`roster state export`, `import`, `migrate` and `repartition`: the state of a group as Parquet files, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from roster._json import JsonObject, loads
from roster.cli.errors import UserError
from roster.cli.log_positions import parse_time
from roster.cli.options import NAME, PARTITIONERS, Target, cluster_options, imported, json_option
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
    "--definition",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="FOLDER has tables in Parquet, for a store that this JSON of Pipeline.describe_state() describes.",
)
@click.option("--store", help="With --definition: the store's name, if there are several.")
@click.option("--topic", "topics", multiple=True, help="With --definition: a topic that the group reads; repeatable.")
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
    definition: Path | None,
    store: str | None,
    topics: tuple[str, ...],
    offsets: str | None,
    keyed_by: tuple[str, ...],
    partitioner: str | None,
    target: Target,
) -> None:
    """Write the export in FOLDER as the state of a new group, which goes on from the export's offsets.

    A folder with exports named after their moments (20261124T030000Z) stands for the last, or the last before a time.

    Where the input topics have another number of partitions than at the export, keys are placed anew.

    With --definition FOLDER has a table that was never exported, such as totals of a warehouse; the group adds to it
    from --offsets on. For a join or a processor it has a folder for each table: left, right, variables, timers,
    initial.

    It is one transaction: whole, or nothing has happened. A pipeline of the group that starts meanwhile is refused.
    """
    if definition is not None:
        if offsets is None or before is not None or not topics:
            raise UserError("--definition: needs --offsets and --topic, and has no --before")
        placed = {"store": store, "keyed_by": keyed_by, "partitioner": partitioner or "murmur2"}
        _seed(folder, group, definition, topics, offsets, placed, target)
        return
    if store is not None or topics:
        raise UserError(f"{'--topic' if topics else '--store'}: is for --definition")
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


def _described(definition: Path) -> JsonObject:
    """Return what a file of --definition says. Raises UserError for other content."""
    try:
        return dict(loads(definition.read_bytes()))
    except (ValueError, TypeError) as error:
        raise UserError(f"--definition: {definition} is not what describe_state() returns ({error})") from None


def _seed(
    folder: str, group: str, definition: Path, topics: tuple[str, ...], offsets: str, placed: JsonObject, target: Target
) -> None:
    """Make tables the state of a group. placed: which store, and how its keys are placed."""
    described, begin = _described(definition), _offsets(offsets)
    with spark_starter(target, "state import") as spark:
        from roster.spark.state import seed_state

        records = seed_state(
            spark,
            target.bootstrap,
            group,
            described,
            folder,
            topics=topics,
            offsets=begin or offsets,
            security=target.security,
            on_progress=show_progress,
            **placed,
        )
    click.echo(f"{records} records; group {group} goes on from {offsets}")


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


@click.command(short_help="Make a new group's state of another group's by a function.")
@click.argument("group", type=NAME)
@click.option("--function", "place", required=True, metavar="MODULE:NAME", help="Makes new rows of each store's parts.")
@click.option("--into", required=True, type=NAME, help="A group without members, offsets and state.")
@click.option(
    "--definition",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What Pipeline.describe_state() of the new release returns, as JSON.",
)
@click.option("--via", required=True, metavar="FOLDER", help="An empty folder for the export and the new rows.")
@cluster_options
def migrate(group: str, place: str, into: str, definition: Path, via: str, target: Target) -> None:
    """Make the state of a new group from that of GROUP, for a change that cannot be made in place.

    GROUP is exported, and may be running. For each part of each store the function is called with its rows as a
    DataFrame, the store and the part; it returns the rows of the new release.
    """
    try:
        function = imported(place, "shops:by_day")
    except ValueError as error:
        raise UserError(f"--function: {error}") from None
    document = _described(definition)
    with spark_starter(target, "state migrate") as spark:
        from roster.spark.state import migrate_state

        more: JsonObject = {"security": target.security, "on_progress": show_progress}
        records = migrate_state(spark, target.bootstrap, group, into, function, document, via, **more)
    click.echo(f"{records} records; group {into} goes on from the offsets of the export of {group}")


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
