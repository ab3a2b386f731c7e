"""`roster history`: rebalances and commits of all groups, recorded and shown."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roster._json import JsonObject
from roster.assignors import ASSIGNORS, Assignor
from roster.cli.admin import admin
from roster.cli.errors import UserError, one_line
from roster.cli.log_positions import parse_time
from roster.cli.options import NAME, Target, cluster_options, json_option
from roster.cli.output import EPOCH, print_json, print_table, utc
from roster.cli.plan.options import AssignorName
from roster.cli.recorded import from_option, group_history, recorded
from roster.cli.session import spark_session
from roster.client import UnknownTopicError

if TYPE_CHECKING:
    import pyarrow as pa


_TOLD = {
    "joined": "joined",
    "left_or_expired": "left or expired",
    "static_member_replaced": "static member restarted",
    "subscription_changed": "changed its subscription",
    "partitions_added": "partitions added",
    "follow_up": "second round of a cooperative rebalance",
    "assignor_changed": "assignor changed",
    "unknown": "unknown",
}


@click.group()
def history() -> None:
    """Record what happens to the consumer groups of any Apache Kafka, and show what happened to one."""


@history.command(short_help="Show the rebalances of a group.")
@click.argument("group", type=NAME)
@from_option
@click.option("--since", metavar="TIME", help="Leave out what was earlier; ISO 8601, UTC by default.")
@click.option("--until", metavar="TIME", help="Leave out what was later.")
@click.option("--partition", "-p", metavar="TOPIC:NUMBER", help="Show who owned this partition.")
@click.option("--at", metavar="TIME", help="With --partition: at this time only.")
@click.option("--generation", type=click.IntRange(0), help="Show one rebalance: each move with why.")
@json_option
def show(
    group: str,
    folder: str,
    since: str | None,
    until: str | None,
    partition: str | None,
    at: str | None,
    generation: int | None,
    as_json: bool,
) -> None:
    """Show when GROUP rebalanced, why, what stood still and what moved, or who owned a partition.

    A member that is gone left or expired: records do not say which. "unknown" means that nothing recorded differs from
    the generation before. What stood still is summed over partitions: from the last commit before the rebalance to the
    first one after it that moved the offset, while records waited, less the usual time between commits.
    """
    wanted = None if partition is None else _partition(partition)
    if wanted is None and at is not None:
        raise UserError("--at: needs --partition")
    if wanted is not None and generation is not None:
        raise UserError("--generation: goes without --partition")
    moment, begin, end = _moment(at, "--at"), _moment(since, "--since"), _moment(until, "--until")
    place, history = group_history(folder, group)
    if wanted is not None:
        _show_owners(history.table("ownership"), wanted, moment or begin, moment or end, as_json=as_json)
        return
    rows = _rebalances(history.table("rebalances"), begin, end, generation)
    if as_json or generation is not None:
        _add_moves(rows, history.table("moves"))
    not_read = {"damaged record of this group": history.timeline.group.damaged, **place.skipped()}
    if as_json:
        print_json(
            {
                "group": group,
                "damaged": history.timeline.group.damaged,
                "skipped": place.skipped(),
                "rebalances": [_without(row, "group") | {"ended_at": _utc(row["ended_at"])} for row in rows],
            }
        )
        return
    columns = ("ended", "generation", "members", "moved", "unowned", "stood still", "longest", "lag", "why")
    print_table(columns, map(_line, rows), "no rebalances in this time")
    for row in rows if generation is not None else ():
        _show_rebalance(row)
    for reason, count in not_read.items():
        if count:
            click.echo(f"not read: {count} of all records ({reason})", err=True)


def _rebalances(
    table: pa.Table, begin: datetime | None, end: datetime | None, generation: int | None
) -> list[JsonObject]:
    rows = [
        row
        for row in table.to_pylist()
        if (begin is None or begin <= row["ended_at"])
        and (end is None or row["ended_at"] <= end)
        and generation in (None, row["generation"])
    ]
    if generation is not None and not rows:
        raise UserError(f"--generation: generation {generation} is not in the history")
    return rows


def _add_moves(rows: list[JsonObject], moves: pa.Table) -> None:
    moves_at: dict[datetime, list[JsonObject]] = {}
    for move in moves.to_pylist():
        moves_at.setdefault(move["ended_at"], []).append(_without(move, "group", "generation", "ended_at"))
    for row in rows:
        row["moves"] = moves_at.get(row["ended_at"], [])


def _show_rebalance(row: JsonObject) -> None:
    if row["sync_ms"] is not None:
        click.echo(f"sync phase: {row['sync_ms']} ms")
    columns = ("topic", "partition", "source", "target", "why")
    lines = [[move[name] for name in columns] for move in row["moves"]]
    print_table(("topic", "partition", "from", "to", "why"), lines, "nothing moved")


def _moment(text: str | None, option: str) -> datetime | None:
    return None if text is None else parse_time(text, option)


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else utc((moment - EPOCH) / timedelta(milliseconds=1))


def _partition(text: str) -> tuple[str, int]:
    topic, _, number = text.rpartition(":")
    if not topic or not (number.isascii() and number.isdigit()):
        raise UserError(f"--partition: {text!r} is not TOPIC:NUMBER, such as orders:7")
    return topic, int(number)


def _without(row: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in row.items() if name not in names}


def _show_owners(
    ownership: pa.Table, wanted: tuple[str, int], begin: datetime | None, end: datetime | None, *, as_json: bool
) -> None:
    owners = [
        row
        for row in ownership.to_pylist()
        if (row["topic"], row["partition"]) == wanted
        and (begin is None or row["until"] is None or begin < row["until"])
        and (end is None or row["from"] <= end)
    ]
    for row in owners:
        row |= {end: _utc(row[end]) for end in ("from", "until")}
    if as_json:
        print_json([_without(row, "group") for row in owners])
        return
    rows = [(row["from"], row["until"], *_member(row)) for row in owners]
    print_table(("from", "until", "member", "client", "host"), rows, f"no member owned {wanted[0]}-{wanted[1]} then")


def _member(row: JsonObject) -> tuple[str, str, str]:
    return row["instance_id"] or row["member_id"], row["client_id"], row["host"].lstrip("/")


def _line(row: JsonObject) -> tuple[object, ...]:
    total, longest = row["standstill_partition_seconds"], row["standstill_longest_seconds"]
    lag = row["lag_records"]
    missing = row["missing_generations"]
    return (
        _utc(row["ended_at"]),
        *(row[name] for name in ("generation", "members", "moved", "unowned")),
        None if total is None else f"{total:.1f} partition-s",
        None if longest is None else f"{longest:.1f} s",
        lag if lag is None or row["lag_ms"] is None else f"{lag}, {row['lag_ms'] / 1000:.1f} s",
        "; ".join([*map(_why, row["causes"]), *([f"{missing} before it did not end"] if missing else [])]),
    )


def _why(cause: JsonObject) -> str:
    text = _TOLD[cause["kind"]]
    if cause["member_id"] is not None:
        name, client, host = _member(cause)
        text = f"{name} {text} ({client}, {host})"
    return f"{text}: {cause['detail']}" if cause["detail"] else text


@history.command("export-case", short_help="Write a recorded rebalance as a test.")
@click.argument("group", type=NAME)
@from_option
@click.option("--generation", type=click.IntRange(0), required=True, help="The generation that was assigned.")
def export_case(group: str, folder: str, generation: int) -> None:
    """Print what the leader of a generation of GROUP was given and what it answered, as JSON.

    `roster.history.case.replay_case` computes the assignment again, and compares it byte by byte. It is said if the
    assignment computed now is another.
    """
    _, history = group_history(folder, group)
    from roster.history.case import case_of

    try:
        case = case_of(history, generation)
    except ValueError as error:
        raise UserError(f"--generation: {error}") from error
    print_json(case.as_json())
    if differing := case.differing():
        click.echo(f"roster: computed now, the assignment of {', '.join(differing)} differs", err=True)


_NAME = AssignorName(list(ASSIGNORS))


def _assignors(context: click.Context, option: click.Parameter, value: str) -> list[str | Assignor]:
    return [_NAME.convert(name.strip(), option, context) for name in value.split(",")]


@history.command(short_help="Try assignors on a recorded history.")
@from_option
@click.option("--to", required=True, metavar="FOLDER", help="Where to write replays (Parquet) and report.html; new.")
@click.option(
    "--assignors",
    default=",".join(ASSIGNORS),
    show_default=True,
    callback=_assignors,
    help="Names, or MODULE:ATTRIBUTE of assignors of your own that executors can import.",
)
def replay(folder: str, to: str, assignors: list[str | Assignor]) -> None:
    """Replay every recorded rebalance of all groups with each assignor, as one Spark job.

    An assignor goes on from its own last plan, and has rounds of its own. FOLDER gets a row for each rebalance and
    assignor, and a page that compares them.
    """
    place = Path(to)
    if place.exists():
        raise UserError(f"--to: {to} exists; name a new folder")
    recorded(folder)
    with spark_session(None, "history replay") as spark:
        from roster.history.folder import HistoryError
        from roster.spark.history import replay_history, replay_report

        try:
            replays = replay_history(spark, folder, assignors)
        except HistoryError as error:
            raise UserError(f"--from: {one_line(error)}") from None
        replays.write.parquet(f"{to}/replays")
        rows = spark.read.parquet(f"{to}/replays")
        page, totals = replay_report(rows)
        (place / "report.html").write_text(page, encoding="utf-8")
        lines = [[row[name] for name in ("policy", "rebalances", "moved", "stopped", "rounds")] for row in totals]
        titles = ("assignor", "rebalances", "moved", "stopped", "generations")
        print_table(titles, lines, "no rebalances of groups with members")
    click.echo(f"{place / 'report.html'}", err=True)


@history.command(short_help="Record commits and rebalances of all groups.")
@click.option("--to", required=True, metavar="FOLDER", help="Where to write; all recorders of a cluster share it.")
@click.option("--group", type=NAME, default="roster-history", show_default=True, help="The recorders' own group.")
@click.option("--once", is_flag=True, help="Record what there is, and end.")
@cluster_options
def record(to: str, group: str, once: bool, target: Target) -> None:
    """Record the history of all consumer groups as Parquet files, until Ctrl-C.

    A Spark application reads __consumer_offsets as a member of a group, each record exactly once; start it on several
    machines, and they share the work. The ends of all topics are recorded each minute. It needs the right to read that
    topic, which some hosted clusters give to no client.
    """
    with admin(target) as cluster, contextlib.suppress(UnknownTopicError):
        cluster.describe_topic("__consumer_offsets")  # before Spark starts, for the error of who may not
    with spark_session(target, "history record") as spark:
        from roster.spark import record_history

        record_history(spark, target.bootstrap, to, group=group, security=target.security, available_now=once)
