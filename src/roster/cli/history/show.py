"""`roster history show`: the timeline of a group's rebalances."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from roster.cli.errors import Failure, UserError, explained_imports, one_line
from roster.cli.log_positions import parse_time
from roster.cli.options import NAME, json_option
from roster.cli.output import EPOCH, print_json, print_table, utc
from roster.model import TopicPartition

if TYPE_CHECKING:
    from roster.history.generations import MemberSeen
    from roster.history.positions import Lag, Positions, Standstill
    from roster.history.timeline import Cause, Owned, Rebalance, Timeline

_AROUND_MS = 60_000
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


@click.command(short_help="Show the rebalances of a group.")
@click.argument("group", type=NAME)
@click.option("--from", "folder", required=True, metavar="FOLDER", help="What `roster history record` wrote.")
@click.option("--since", metavar="TIME", help="Leave out earlier rebalances; ISO 8601, UTC by default.")
@click.option("--until", metavar="TIME", help="Leave out later rebalances.")
@click.option("--partition", "-p", metavar="TOPIC:NUMBER", help="Show who owned this partition.")
@click.option("--at", metavar="TIME", help="With --partition: at this time only.")
@json_option
def show(
    group: str, folder: str, since: str | None, until: str | None, partition: str | None, at: str | None, as_json: bool
) -> None:
    """Show when GROUP rebalanced, why, what stood still and what moved, or who owned a partition.

    A member that is gone left or expired: records do not say which. "unknown" means that nothing recorded differs from
    the generation before. What stood still is summed over partitions: from the last commit before the rebalance to the
    first one after it that moved the offset, while records waited, less the usual time between commits.
    """
    with explained_imports("history"):
        from roster.history.folder import HistoryError, HistoryFolder  # noqa: PLC0415 - needs an extra
        from roster.history.positions import Positions  # noqa: PLC0415
        from roster.history.timeline import timeline  # noqa: PLC0415

    wanted = None if partition is None else _partition(partition)
    if at is not None and wanted is None:
        raise UserError("--at: needs --partition")
    moment = _moment(at, "--at")
    begin, end = _moment(since, "--since"), _moment(until, "--until")
    place = HistoryFolder(folder)
    try:
        found = timeline(place.group_records(group))
        if not found.rebalances:
            raise Failure(f"{folder} has no rebalances of group {group}, or it is not a classic group")
        if wanted is not None:
            _show_owners(found, wanted, moment, as_json=as_json)
            return
        commits = place.commits(group)
        positions = Positions(commits, place.ends({tp.topic for tp in commits}))
        stills = positions.standstills([each.ended_at_ms for each in found.rebalances])
        skipped = dict(place.skipped())
    except HistoryError as error:
        raise UserError(f"--from: {one_line(error)}") from None
    rows = [
        (each, still)
        for each, still in zip(found.rebalances, stills, strict=True)
        if (begin is None or begin <= each.ended_at_ms) and (end is None or each.ended_at_ms <= end)
    ]
    if as_json:
        print_json(
            {
                "group": group,
                "source": "polling" if place.is_polled() else "__consumer_offsets",
                "damaged": found.damaged,
                "skipped": skipped,
                "rebalances": [_document(each, still, positions) for each, still in rows],
            }
        )
        return
    _print(rows, positions)
    if place.is_polled():
        click.echo("by polling: rebalances within 10 seconds are seen as one", err=True)
    for reason, count in ({"damaged record of this group": found.damaged} | skipped).items():
        if count:
            click.echo(f"not read: {count} of all records ({reason})", err=True)


def _moment(text: str | None, option: str) -> int | None:
    return None if text is None else (parse_time(text, option) - EPOCH) // timedelta(milliseconds=1)


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition(":")
    if not topic or not (number.isascii() and number.isdigit()):
        raise UserError(f"--partition: {text!r} is not TOPIC:NUMBER, such as orders:7")
    return TopicPartition(topic, int(number))


def _show_owners(found: Timeline, wanted: TopicPartition, moment: int | None, *, as_json: bool) -> None:
    of_partition = [each for each in found.ownership if each.partition == wanted]
    owners = [each for each in of_partition if moment is None or each.is_at(moment)]
    if as_json:
        print_json([_owner_document(each) for each in owners])
        return
    rows = [
        (utc(each.from_ms), None if each.until_ms is None else utc(each.until_ms), *_member_row(each.member))
        for each in owners
    ]
    when = "" if moment is None else f" at {utc(moment)}"
    print_table(("from", "until", "member", "client", "host"), rows, f"nobody owned {wanted}{when}")


def _member_row(member: MemberSeen) -> tuple[str, str, str]:
    return member.name, member.client_id, member.host.lstrip("/")


def _owner_document(owned: Owned) -> dict[str, Any]:
    until = None if owned.until_ms is None else utc(owned.until_ms)
    return {**owned.partition._asdict(), "from": utc(owned.from_ms), "until": until, **_member_document(owned.member)}


def _member_document(member: MemberSeen) -> dict[str, Any]:
    return {name: getattr(member, name) for name in ("member_id", "instance_id", "client_id", "host")}


def _document(rebalance: Rebalance, still: Standstill, positions: Positions) -> dict[str, Any]:
    at = rebalance.ended_at_ms
    around = {"before": at - _AROUND_MS, "at": at, "after": at + _AROUND_MS}
    return {
        "ended_at": utc(at),
        "generation": rebalance.generation,
        "missing_generations": rebalance.missing,
        "assignor": rebalance.assignor,
        "leader": rebalance.leader,
        "members": rebalance.members,
        "partitions": rebalance.partitions,
        "causes": [
            {"kind": cause.kind, "detail": cause.detail, **(_member_document(cause.member) if cause.member else {})}
            for cause in rebalance.causes
        ],
        "moves": [{**m.partition._asdict(), "source": m.source, "target": m.target} for m in rebalance.moves],
        "sync_ms": rebalance.sync_ms,
        "unowned": [list(tp) for tp in rebalance.unowned],
        "unowned_partition_ms": rebalance.unowned_partition_ms,
        "standstill": still._asdict(),
        "lag": {name: positions.lag(moment)._asdict() for name, moment in around.items()},
    }


def _print(rows: list[tuple[Rebalance, Standstill]], positions: Positions) -> None:
    columns = ("ended", "generation", "members", "moved", "unowned", "stood still", "longest", "lag", "why")
    print_table(
        columns,
        [
            (
                utc(each.ended_at_ms),
                each.generation,
                each.members,
                len(each.moves),
                len(each.unowned),
                None if still.partition_seconds is None else f"{still.partition_seconds:.1f} partition-s",
                None if still.longest_seconds is None else f"{still.longest_seconds:.1f} s",
                _lag_text(positions.lag(each.ended_at_ms)),
                "; ".join([*map(_why, each.causes), *_lost(each)]),
            )
            for each, still in rows
        ],
        "no rebalances in this time",
    )


def _lag_text(lag: Lag) -> str | None:
    if lag.records is None:
        return None
    return str(lag.records) if lag.ms is None else f"{lag.records}, {lag.ms / 1000:.1f} s"


def _why(cause: Cause) -> str:
    text = _TOLD[cause.kind]
    if cause.member is not None:
        name, client, host = _member_row(cause.member)
        text = f"{name} {text} ({client}, {host})"
    return f"{text}: {cause.detail}" if cause.detail else text


def _lost(rebalance: Rebalance) -> list[str]:
    return [f"{rebalance.missing} before it did not end"] if rebalance.missing else []
