"""Input topics that have got more partitions than the state: how far the earlier number has placed their records.

A group with state reads these by the earlier number of partitions, and then ends, so that the state can be moved.
Nothing is noted of it: where they end follows from the keys of the unread records, at each start anew. A new group
does not begin, as keys would be in two partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from roster.client import Admin, UnknownTopicError
from roster.model import TopicPartition
from roster.pipeline.batch import Split
from roster.pipeline.errors import PipelineError
from roster.pipeline.tasks.reader import ReaderConfig
from roster.saved.moving import offsets_of, placed, seen_keys
from roster.saved.tasks.moving import Placed
from roster.stateful.changelogs import Changelog
from roster.stateful.tasks.placement import PARTITIONERS, is_proof, keys_apart, partitioners_of, why_apart

log = logging.getLogger("roster.pipeline")

_MANY = 1_000_000
"""Offsets of a topic from which on a look at them is told, as it takes a while."""
_SOME = 1_000
"""Records of a new partition that are looked at: they tell the partitioner, too."""


class GrownInput:
    """Says how far the topics of a group are read by the earlier number of partitions."""

    def __init__(self, spark: SparkSession, config: ReaderConfig) -> None:
        self._spark, self._config = spark, replace(config, isolation_level="read_committed")

    def check_new(
        self,
        admin: Admin,
        sources: Sequence[str],
        keys: Iterable[str],
        start: str | int | Mapping[TopicPartition, int],
        repartitioned: str = "",
    ) -> None:
        """Raise PipelineError if the group is new, and keys of an input topic are not all placed in one way.

        sources: a sub-topology's, the other sides of joins last. keys: names of the columns by which the state is kept.
        start: where the group begins. repartitioned: the topic among these that the pipeline writes itself.
        """
        by = ", ".join(map(repr, keys))
        fix = f"Put repartition({by}) in front of it, so that all rows of a key meet in one task"
        fix_of_others = "Write the other side of the join to a new topic, by the partitioner murmur2 (as Java)"
        among = {repartitioned: ["murmur2"]} if repartitioned else {}
        for number, topic in enumerate(sources):
            if topic == repartitioned:
                continue
            try:
                partitions = [TopicPartition(topic, each.partition) for each in admin.describe_topic(topic).partitions]
            except UnknownTopicError:
                return  # told elsewhere
            if len(partitions) == 1 or admin.group_offsets(self._config.group, partitions, stable=False):
                return  # of what was read, it was known
            begins, ends = admin.beginning_offsets(partitions), admin.stable_offsets(partitions)
            starts = offsets_of(admin, start, partitions, begins, ends)
            spans = [(Split(*at, max(starts[at], begins[at]), ends[at]), len(partitions)) for at in partitions]
            unread = [(split, count) for split, count in spans if split.start < split.end]
            if (records := sum(split.end - split.start for split, _ in unread)) > _MANY:
                log.info("%s: looks where %d keys of %r are, as it is new", self._config.group, records, topic)
            seen = seen_keys(self._spark, self._config, unread)
            if why := why_apart(seen, len(partitions)):
                raise PipelineError(
                    f"only some keys of {topic!r} are where {len(partitions)} partitions place them; {why}. A key in"
                    " two partitions would have two states",
                    field="topics",
                    fix=fix_of_others if number else fix,
                )
            if apart := keys_apart(seen):
                log.warning(
                    "%s: at least %d keys of %r are in two partitions, as producers place them in a way of their own."
                    " If state is kept by the record key, each has two states. %s",
                    self._config.group,
                    apart,
                    topic,
                    fix_of_others if number else fix,
                )
            if is_proof(seen, len(partitions)) and (names := partitioners_of(seen)):
                among[topic] = names
        if among and not set.intersection(*map(set, among.values())):
            shown = ", ".join(f"{topic!r} by {names[0]}" for topic, names in among.items())
            problem = f"keys are placed in different ways: {shown}. Rows of one key would not meet"
            raise PipelineError(problem, field="topics", fix=fix_of_others)

    def ends(self, admin: Admin, changelogs: Iterable[Changelog]) -> dict[TopicPartition, int]:
        """Return these offsets for all partitions of the topics that have grown, 0 for those with no such record.

        Raises the refusal of a changelog if nothing is left to read, or it is not known how keys are placed, and
        PipelineError if one number of partitions does not place all of these records.
        """
        ends: dict[TopicPartition, int] = {}
        refusals = {topic: each for each in changelogs if each.refusal is not None for topic in each.of.sources}
        for topic, changelog in refusals.items():
            after = len(admin.describe_topic(topic).partitions)
            found = self._placed(admin, topic, changelog.partitions, after)
            likely = [each for each in PARTITIONERS if not any(of[each].is_other for of in found.values())]
            untils = {tuple(of[each].until for of in found.values()) for each in likely}
            if len(untils) > 1:
                problem = f"{topic!r} has grown, and its unread records are too few to tell how their keys are placed"
                raise PipelineError(problem, field="topics", fix="Start again when it has more records")
            for at, of in found.items():
                is_there = likely and at.partition < changelog.partitions
                ends[at] = _end(at, of[likely[0]], changelog.partitions, after) if is_there else 0
        if not any(ends.values()):
            raise next(each.refusal for each in refusals.values() if each.refusal is not None)
        log.info("%s: topics have grown: the run ends when it has read what was written before", self._config.group)
        return ends

    def _placed(self, admin: Admin, topic: str, before: int, after: int) -> dict[TopicPartition, dict[str, Placed]]:
        """Return where each partitioner places the unread keys of all partitions, some of those of new ones."""
        partitions = [TopicPartition(topic, number) for number in range(after)]
        committed, begins = admin.group_offsets(self._config.group, partitions), admin.beginning_offsets(partitions)
        starts = {at: max(committed[at].offset if at in committed else 0, begins[at]) for at in partitions}
        ends = admin.stable_offsets(partitions)
        ends |= {at: min(ends[at], starts[at] + _SOME) for at in partitions[before:]}
        unread = [(Split(*at, start, max(start, ends[at])), before, after) for at, start in starts.items()]
        return dict(zip(partitions, placed(self._spark, self._config, unread, [*PARTITIONERS]), strict=True))


def _end(at: TopicPartition, found: Placed, before: int, after: int) -> int:
    if found.since < found.until:
        raise PipelineError(
            f"{at}: {after} partitions place the key of the record at offset {found.since}, and only {before} that of"
            f" the one at {found.until - 1}",
            field="topics",
            fix="See Grow in the documentation: only a multiple of the earlier number allows that",
        )
    return found.until
