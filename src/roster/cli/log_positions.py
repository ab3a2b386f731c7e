"""Positions in a log as the command line names them: earliest, latest, an offset, or a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from roster.cli.errors import UserError
from roster.cli.options import INT32, INT64
from roster.cli.output import EPOCH
from roster.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from roster.client import Admin

PLACES = "earliest|latest|OFFSET|TIME"
Place: TypeAlias = Literal["earliest", "latest"] | int | datetime
_MS = timedelta(milliseconds=1)

partition_option = click.option(
    "--partition", "-p", "only", type=click.IntRange(0, INT32), multiple=True, help="Only this partition; repeatable."
)


def partitions_of(cluster: Admin, topic: str, only: Collection[int]) -> list[TopicPartition]:
    """Return the partitions of a topic, or those of --partition. Raises UserError for one that there is not."""
    there = [partition.partition for partition in cluster.describe_topic(topic).partitions]
    missing = sorted(set(only) - set(there))
    if missing:
        raise UserError(f"--partition: {topic} has no partition {missing[0]}; it has {len(there)}")
    return [TopicPartition(topic, number) for number in sorted(set(only) or there)]


def parse_place(text: str, option: str) -> Place:
    """Read a place. Raises UserError for other text, an offset beyond 64 bits, and a time before 1970."""
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if text.isascii() and text.isdigit():
        if len(text) > len(str(INT64)) or int(text) > INT64:
            raise UserError(f"{option}: {text} is larger than any offset ({INT64})")
        return int(text)
    return parse_time(text, option, "earliest, latest, an offset or ")


def parse_time(text: str, option: str, others: str = "") -> datetime:
    """Read a time in ISO 8601, in UTC unless it names a zone. others: for the message, what else is possible.

    Raises UserError for other text, and a time before 1970.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"{option}: {text!r} is not {others}a time like 2026-01-31T12:00") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment < EPOCH:
        raise UserError(f"{option}: {text} lies before 1970, where the clock of Kafka starts")
    return moment


def locate(
    cluster: Admin,
    place: Place,
    partitions: Sequence[TopicPartition],
    begins: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """Find the offset of a place in each partition, with a note where it is not the one asked for.

    An offset outside of the log becomes its begin or end, a time after the last record its end.
    """
    if isinstance(place, datetime):
        by_time = cluster.offsets_for_times(dict.fromkeys(partitions, (place - EPOCH) // _MS))
        offsets = {tp: ends[tp] if (offset := by_time[tp]) is None else offset for tp in partitions}
        late = f"the end: no record at or after {place.isoformat()}"
        return offsets, {tp: late for tp in partitions if by_time[tp] is None}
    if isinstance(place, int):
        below = {tp: f"the begin: {place} is gone" for tp in partitions if place < begins[tp]}
        beyond = {tp: f"the end: {place} lies beyond it" for tp in partitions if place > ends[tp]}
        return {tp: min(max(place, begins[tp]), ends[tp]) for tp in partitions}, below | beyond
    return {tp: (begins if place == "earliest" else ends)[tp] for tp in partitions}, {}
