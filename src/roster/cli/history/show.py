"""`roster history show`: the timeline of a group's rebalances."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from roster.cli.errors import UserError
from roster.cli.log_positions import parse_time
from roster.cli.options import NAME, json_option
from roster.cli.output import EPOCH, print_json, print_table, utc
from roster.cli.recorded import from_option, group_history
from roster.console.text import escaped

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_TOLD = {
    "joined": "joined",
    "left_or_expired": "left or expired",
    "static_member_replaced": "static member restarted",
    "subscription_changed": "changed its subscription",
    "partitions_added": "partitions added",
    "follow_up": "second round of a cooperative rebalance",
    "assignor_changed": "assignor changed",
    "session_expired": "rejoined: its session had expired",
    "asked_for": "asked for it",
    "unknown": "unknown",
}


@click.command(short_help="Show the rebalances of a group.")
@click.argument("group", type=NAME)
@from_option
@click.option("--since", metavar="TIME", help="Leave out what was earlier; ISO 8601, UTC by default.")
@click.option("--until", metavar="TIME", help="Leave out what was later.")
@click.option("--partition", "-p", metavar="TOPIC:NUMBER", help="Show who owned this partition.")
@click.option("--at", metavar="TIME", help="With --partition: at this time only.")
@click.option("--generation", type=click.IntRange(0), help="Show one rebalance: its phases, and each move with why.")
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
    the generation before. A leader of Roster's says why it asked for a rebalance, how long its phases were, why each
    partition moves, and whether a better plan exists. What stood still is summed over partitions: from the last commit
    before the rebalance to the first one after it that moved the offset, while records waited, less the usual time
    between commits.
    """
    wanted = None if partition is None else _partition(partition)
    if wanted is None and at is not None:
        raise UserError("--at: needs --partition")
    if wanted is not None and generation is not None:
        raise UserError("--generation: goes without --partition")
    moment, begin, end = _moment(at, "--at"), _moment(since, "--since"), _moment(until, "--until")
    place, found = group_history(folder, group)
    if wanted is not None:
        _show_owners(found.table("ownership"), wanted, moment or begin, moment or end, as_json=as_json)
        return
    rows = _rebalances(found.table("rebalances"), begin, end, generation)
    if as_json or generation is not None:
        _add_moves(rows, found.table("moves"))
    not_read = {"damaged record of this group": found.timeline.group.damaged, **place.skipped()}
    if as_json:
        print_json(
            {
                "group": group,
                "source": "polling" if place.is_polled() else "__consumer_offsets",
                "damaged": found.timeline.group.damaged,
                "skipped": place.skipped(),
                "rebalances": [_without(row, "group") | {"ended_at": _utc(row["ended_at"])} for row in rows],
            }
        )
        return
    columns = ("ended", "generation", "members", "moved", "unowned", "stood still", "longest", "lag", "why")
    print_table(columns, map(_line, rows), "no rebalances in this time")
    for row in rows if generation is not None else ():
        _show_rebalance(row)
    if place.is_polled():
        click.echo("by polling: rebalances within 10 seconds are seen as one", err=True)
    for reason, count in not_read.items():
        if count:
            click.echo(f"not read: {count} of all records ({reason})", err=True)


def _rebalances(
    table: pa.Table, begin: datetime | None, end: datetime | None, generation: int | None
) -> list[dict[str, Any]]:
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


def _add_moves(rows: list[dict[str, Any]], moves: pa.Table) -> None:
    of: dict[datetime, list[dict[str, Any]]] = {}
    for move in moves.to_pylist():
        of.setdefault(move["ended_at"], []).append(_without(move, "group", "generation", "ended_at"))
    for row in rows:
        row["moves"] = of.get(row["ended_at"], [])


def _show_rebalance(row: Mapping[str, Any]) -> None:
    phases = [f"{name} {row[f'{name}_ms']} ms" for name in ("join", "assign", "sync") if row[f"{name}_ms"] is not None]
    click.echo(f"phases: {', '.join(phases) or 'not known'}")
    click.echo(f"plan: {escaped(row['proof'] or '') or 'its leader does not say how good it is'}")
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


def _without(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
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
    print_table(("from", "until", "member", "client", "host"), rows, f"nobody owned {wanted[0]}-{wanted[1]} then")


def _member(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["instance_id"] or row["member_id"], row["client_id"], row["host"].lstrip("/")


def _line(row: Mapping[str, Any]) -> tuple[object, ...]:
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


def _why(cause: Mapping[str, Any]) -> str:
    text = _TOLD[cause["kind"]]
    if cause["member_id"] is not None:
        name, client, host = _member(cause)
        text = f"{name} {text} ({client}, {host})"
    return f"{text}: {cause['detail']}" if cause["detail"] else text
