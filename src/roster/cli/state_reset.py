"""`roster state reset`: resets a stateful group, as `kafka-streams-application-reset` does for Kafka Streams."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError
from roster.cli.options import NAME, Target, cluster_options, json_option
from roster.cli.output import print_json, print_table
from roster.client import Admin, UnknownGroupError
from roster.client.live_group import members_of
from roster.console.text import counted
from roster.model import TopicPartition
from roster.model.topology import CHANGELOG, REPARTITION, TopologyError, changelog_topic, own_topics
from roster.state.cleaning import store_bytes, stores_below
from roster.state.store import StateError
from roster.state.store_files import check_unused, directory_name, remove_store, state_directory


@dataclass(slots=True)
class Found:
    """What there is of a group: its own topics, committed offsets, stores here; topics that may be others'."""

    changelogs: list[str]
    repartitions: list[str]
    offsets: dict[TopicPartition, int]
    stores: list[Path] = field(default_factory=list)
    doubtful: dict[str, str] = field(default_factory=dict)
    """{topic: the other group that it may belong to}."""


@click.command(short_help="Delete a group's state, so that it begins anew.")
@click.argument("group", type=NAME)
@click.option("--store", "names", type=NAME, multiple=True, help="Only the changelogs of this store; repeatable.")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The pipeline's state_dir on this machine.  [default: roster-state in that of temporary files]",
)
@click.option("--execute", is_flag=True, help="Do it; without this option it is shown only.")
@json_option
@cluster_options
def reset(
    group: str, names: tuple[str, ...], state_dir: Path | None, execute: bool, as_json: bool, target: Target
) -> None:
    """Show what the state of GROUP is, and with --execute delete it: a pipeline then begins without state.

    Changelog and repartition topics are deleted, and the group with its committed offsets, so that the pipeline begins
    at its starting_offsets; of the stores only those on this machine. Output and dead-letter topics stay as they are.
    The group must have no members.
    """
    root = state_directory(state_dir)
    with admin(target) as cluster:
        owned = _found(cluster, group, names, root)
        _require_no_members(cluster, group)
        if execute:
            _delete(cluster, group, owned)
    _show(group, owned, executed=execute, as_json=as_json)


def _found(cluster: Admin, group: str, names: Sequence[str], root: Path) -> Found:
    topics = cluster.list_topics(internal=True)
    others = [listed.group_id for listed in cluster.list_groups() if listed.group_id != group]
    repartitions, of_others = own_topics(group, topics, others, REPARTITION)
    if names:
        try:
            changelogs = [changelog_topic(group, name) for name in names]
        except TopologyError as error:
            raise UserError(f"--store: {error}") from None
        if missing := [topic for topic in changelogs if topic not in topics]:
            raise UserError(f"--store: there is no topic {missing[0]!r}")
        doubtful: dict[str, str] = {}
    else:
        changelogs, doubtful = own_topics(group, topics, others, CHANGELOG)
    offsets = {partition: offset.offset for partition, offset in cluster.group_offsets(group).items()}
    stores = [path for topic in changelogs for path in stores_below(root / directory_name(topic))]
    return Found(changelogs, repartitions, offsets, stores, doubtful | of_others)


def _require_no_members(cluster: Admin, group: str) -> None:
    if members := members_of(cluster, group):
        raise UserError(f"GROUP: {group} has {counted(len(members), 'member')}; stop the applications first")


def _delete(cluster: Admin, group: str, owned: Found) -> None:
    """Delete the group first: that fails if it has members by now, and then nothing is deleted."""
    try:
        for path in owned.stores:
            check_unused(path)
    except StateError as error:
        raise Failure(str(error)) from None
    with contextlib.suppress(UnknownGroupError):
        cluster.delete_group(group)
    for topic in [*owned.changelogs, *owned.repartitions]:
        cluster.delete_topic(topic)
    for path in owned.stores:
        try:
            remove_store(path)
        except (StateError, OSError) as error:
            raise Failure(f"{path}: {error}; the topics and the group are deleted, run it again") from None


def _show(group: str, owned: Found, *, executed: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "group": group,
                "executed": executed,
                "changelogs": owned.changelogs,
                "repartitions": owned.repartitions,
                "offsets": [{**tp._asdict(), "offset": offset} for tp, offset in sorted(owned.offsets.items())],
                "stores": [str(path) for path in owned.stores],
                "left": owned.doubtful,
            }
        )
        return
    done = "deleted" if executed else "would be deleted"
    topics = {"changelog topic": owned.changelogs, "repartition topic": owned.repartitions}
    rows = [(kind, topic, "", done) for kind, names in topics.items() for topic in names]
    rows += [
        ("committed offset", str(partition), str(offset), done) for partition, offset in sorted(owned.offsets.items())
    ]
    rows += [("store on this machine", str(path), f"{store_bytes(path)} bytes", done) for path in owned.stores]
    for topic, other in sorted(owned.doubtful.items()):
        of_changelog = ("changelog topic", "name it with --store")
        kind, hint = of_changelog if topic.endswith(CHANGELOG) else ("repartition topic", "see `roster topics delete`")
        rows.append((kind, topic, "", f"stays, may be of group {other}: {hint}"))
    print_table(("what", "name", "value", "reset"), rows, f"group {group} has no state", shorten=("name",))
    if rows and not executed:
        click.echo("nothing was changed; --execute does it")
