"""Places in a log as the command line names them: earliest, latest, an offset, or a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

from roster.cli.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roster.client import Admin
    from roster.model import TopicPartition

PLACES = "earliest|latest|OFFSET|TIME"
Place: TypeAlias = Literal["earliest", "latest"] | int | datetime
MOST_OFFSET = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def parse_place(text: str, option: str) -> Place:
    """Read a place; a time is ISO 8601, in UTC unless it names a zone.

    Raises:
        UserError: the text is not a place, the offset does not fit 64 bits, the time lies before 1970.

    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        if len(text) > len(str(MOST_OFFSET)) or int(text) > MOST_OFFSET:
            raise UserError(f"{option}: {text} is larger than any offset ({MOST_OFFSET})")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(
            f"{option}: {text!r} is not earliest, latest, an offset or a time like 2026-01-31T12:00"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment < _EPOCH:
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
        found = cluster.offsets_for_times(dict.fromkeys(partitions, (place - _EPOCH) // _MS))
        offsets = {tp: ends[tp] if (offset := found[tp]) is None else offset for tp in partitions}
        late = f"the end: no record at or after {place.isoformat()}"
        return offsets, {tp: late for tp in partitions if found[tp] is None}
    if isinstance(place, int):
        below = {tp: f"the begin: {place} is gone" for tp in partitions if place < begins[tp]}
        beyond = {tp: f"the end: {place} lies beyond it" for tp in partitions if place > ends[tp]}
        return {tp: min(max(place, begins[tp]), ends[tp]) for tp in partitions}, below | beyond
    return {tp: (begins if place == "earliest" else ends)[tp] for tp in partitions}, {}
