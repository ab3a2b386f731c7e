"""Records of a topic by ranges of offsets, without joining a group or committing anything."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import click

from roster.cli.errors import Failure
from roster.cli.topics.record_output import Record, records_of
from roster.model import TopicPartition, parse_addresses
from roster.model.options import INT64_MAX
from roster.records.fetch import read_ranges
from roster.records.ranges import FetchError, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from roster.cli.options import Target

UNREACHABLE_PATIENCE_S = 10.0
"""How long an error of the connection may last before a read that has an end gives up."""
PATIENCE_S = 60.0
"""Give up if records must exist but none arrive for this long."""
_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, `end` excluded; None reads on for ever."""

    start: int
    end: int | None


class Reader:
    """Reads ranges of one cluster; `isolation_level` is Kafka's."""

    def __init__(self, target: Target, isolation_level: str) -> None:
        self._target = target
        self._settings = Settings(
            is_committed=isolation_level == "read_committed", fail_on_data_loss=False, max_wait_ms=_WAIT_MS
        )

    def read(self, ranges: Mapping[TopicPartition, Range]) -> Iterator[list[Record]]:
        """Yield records as they come: in order within a partition, partitions mixed.

        Raises:
            Failure: the cluster refused to be read, or could not be reached while records were still to come.

        """
        patience = _Patience(has_end=any(each.end is not None for each in ranges.values()))
        wanted = [(*tp, each.start, INT64_MAX if each.end is None else each.end) for tp, each in ranges.items()]
        try:
            for batch in read_ranges(
                parse_addresses(self._target.bootstrap),
                self._target.client_id,
                wanted,
                self._settings,
                headers=True,
                security=self._target.security,
                on_silence=patience,
            ):
                patience.reported = ""
                yield records_of(batch)
        except FetchError as error:
            bad = error.unreadable
            way = "" if bad is None else f"; to go on behind it: -p {bad.partition} --from {bad.last_offset + 1}"
            raise Failure(f"cannot read: {error}{way}") from error

    def last(
        self, number: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[Record]:
        """Return the newest records before `ends`, at most `number` of all partitions together, the newest last.

        Offsets outnumber records in topics that are compacted or written in transactions, so a partition that yields
        too few records is read again from further back.
        """
        newest: dict[TopicPartition, deque[Record]] = {}
        reach = number
        while wanting := [tp for tp in ends if tp not in newest]:
            found = {tp: deque[Record](maxlen=number) for tp in wanting}
            starts = {tp: max(begins[tp], ends[tp] - reach) for tp in wanting}
            for records in self.read({tp: Range(starts[tp], ends[tp]) for tp in wanting}):
                for record in records:
                    found[record.place].append(record)
            newest |= {tp: each for tp, each in found.items() if len(each) == number or starts[tp] == begins[tp]}
            reach *= 8
        backwards = heapq.merge(*map(reversed, newest.values()), key=lambda record: -(record.timestamp or 0))
        return list(islice(backwards, number))[::-1]


class _Patience:
    """Ends a read of what should be there; one without an end says why nothing comes."""

    def __init__(self, *, has_end: bool) -> None:
        self._has_end = has_end
        self.reported = ""

    def __call__(self, silence: float, problem: str, waiting: list[str]) -> None:
        if self._has_end:
            if silence > (UNREACHABLE_PATIENCE_S if problem else PATIENCE_S):
                raise Failure(f"nothing could be read for {silence:.0f} s: {problem or f'waiting for {waiting[0]}'}")
        elif problem and problem != self.reported:
            self.reported = problem
            click.echo(f"roster: waiting: {problem}", err=True)
