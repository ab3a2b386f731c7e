"""Positions of groups in their partitions; what one bad group or partition lacks does not fail the others."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from heapq import nlargest

from roster.client import Admin, ClientError
from roster.client.group_lag import position_of
from roster.metrics.record_times import RecordTimes
from roster.model import GroupPosition, OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

BAD_FOR = 60.0
"""Seconds until a partition is asked again whose log ends could not be listed."""


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """A group at one moment. seconds: age of the record at each committed offset, 0.0 without lag."""

    positions: dict[TopicPartition, GroupPosition]
    seconds: dict[TopicPartition, float]


@dataclass(slots=True)
class LogEnds:
    """First and next offset of logs, with the partitions left out for a while whose leader does not answer."""

    admin: Admin
    now: Callable[[], float] = time.monotonic
    bad: dict[TopicPartition, float] = field(default_factory=dict)
    """Partitions that failed, and when they are asked again."""

    def __call__(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return both offsets of each partition that could be asked. Raises ClientError if none could."""
        now = self.now()
        due = sorted(tp for tp in partitions if self.bad.get(tp, now) <= now)
        offsets: dict[TopicPartition, tuple[int, int]] = {}
        self._ask(due, offsets)
        return offsets

    def _ask(self, partitions: list[TopicPartition], offsets: dict[TopicPartition, tuple[int, int]]) -> None:
        """Ask for partitions together; if that fails for halves of them, down to the bad ones."""
        if not partitions:
            return
        try:
            begins, ends = self.admin.beginning_offsets(partitions), self.admin.end_offsets(partitions)
            offsets.update({tp: (begins[tp], ends[tp]) for tp in partitions})
            for tp in partitions:
                self.bad.pop(tp, None)
        except ClientError as error:
            self.admin.cluster_id()  # raises if no broker answers, for which no partition is to blame
            if len(partitions) == 1:
                log.warning("the log of %s is left out for %.0f s: %s", partitions[0], BAD_FOR, error)
                self.bad[partitions[0]] = self.now() + BAD_FOR
                return
            half = len(partitions) // 2
            self._ask(partitions[:half], offsets)
            self._ask(partitions[half:], offsets)


class PositionReader:
    """Reads positions of groups. errors: how many lookups of groups failed, by group.

    timed: of how many partitions of a group the age is read at most, those with the largest lag; None: of all.
    """

    def __init__(self, admin: Admin, times: RecordTimes, timed: int | None = None) -> None:
        self._admin, self._times, self.log_ends, self._timed = admin, times, LogEnds(admin), timed
        self.errors: Counter[str] = Counter()

    def read(
        self,
        groups: Collection[str],
        only: Collection[TopicPartition] | None = None,
        also: Mapping[str, Collection[TopicPartition]] | None = None,
    ) -> dict[str, GroupPositions]:
        """Return the positions of those groups that could be asked.

        Committed offsets are read before the ends of logs: records that arrive in between make a lag larger, never
        negative. only: partitions to look at, None for all with a committed offset. also: partitions of groups that
        are looked at without one. Raises ClientError if no broker
        answers.
        """
        committed: dict[str, dict[TopicPartition, OffsetAndMetadata | None]] = {}
        for group in groups:
            try:
                offsets = self._admin.group_offsets(group, only, stable=False)
                wanted = [*(only or ()), *(also or {}).get(group, ())]
                committed[group] = dict.fromkeys(wanted) | offsets
            except ClientError as error:
                log.warning("the offsets of group %s cannot be read: %s", group, error)
                self.errors[group] += 1
        ends = self.log_ends(self._existing({tp for offsets in committed.values() for tp in offsets}))
        positions = {
            group: {
                tp: position_of(committed_offset, *ends[tp]) for tp, committed_offset in offsets.items() if tp in ends
            }
            for group, offsets in committed.items()
        }
        return {
            group: GroupPositions(of_group, self._times.ages(self._most_behind(of_group)))
            for group, of_group in positions.items()
        }

    def _most_behind(self, positions: dict[TopicPartition, GroupPosition]) -> dict[TopicPartition, GroupPosition]:
        if self._timed is None or len(positions) <= self._timed:
            return positions
        return dict(nlargest(self._timed, positions.items(), key=lambda entry: entry[1].lag or 0))

    def _existing(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Leave out partitions of deleted topics, whose committed offsets remain."""
        known = self._admin.list_topics(internal=True)
        return {tp for tp in partitions if tp.partition < known.get(tp.topic, 0)}


def is_beyond_the_log(position: GroupPosition) -> bool:
    """Return True for a committed offset behind the log's end, as after a topic was made anew; its lag counts as 0."""
    return position.committed is not None and position.end is not None and position.committed > position.end
