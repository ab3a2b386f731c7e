"""Input topics that have got more partitions than the state: how far the earlier number has placed their records.

A group with state reads these by the earlier number of partitions, and then ends, so that the state can be moved.
Nothing is noted of it: where they end follows from the keys of the unread records, at each start anew. A new group
does not begin, as keys would be in two partitions.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from roster.client import Admin, UnknownTopicError
from roster.model import TopicPartition
from roster.pipeline.batch import Split
from roster.pipeline.errors import PipelineError
from roster.pipeline.tasks.reader import ReaderConfig
from roster.saved.moving import places_of_unread, resolved_offsets, seen_keys
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
                partitions = [
                    TopicPartition(topic, partition.partition) for partition in admin.describe_topic(topic).partitions
                ]
            except UnknownTopicError:
                return  # told elsewhere
            if len(partitions) == 1 or admin.group_offsets(self._config.group, partitions, stable=False):
                return  # of what was read, it was known
            begins, ends = admin.beginning_offsets(partitions), admin.stable_offsets(partitions)
            starts = resolved_offsets(admin, start, partitions, begins, ends)
            spans = [
                (Split(*partition, max(starts[partition], begins[partition]), ends[partition]), len(partitions))
                for partition in partitions
            ]
            unread = [(split, count) for split, count in spans if split.start < split.end]
            if (records := sum(split.end - split.start for split, _ in unread)) > _MANY:
                log.info("%s: looks where %d keys of %r are, as it is new", self._config.group, records, topic)
            record_keys = seen_keys(self._spark, self._config, unread)
            if why := why_apart(record_keys, len(partitions)):
                raise PipelineError(
                    f"only some keys of {topic!r} are where {len(partitions)} partitions place them; {why}. A key in"
                    " two partitions would have two states",
                    field="topics",
                    fix=fix_of_others if number else fix,
                )
            if apart := keys_apart(record_keys):
                log.warning(
                    "%s: at least %d keys of %r are in two partitions, as producers place them in a way of their own."
                    " If state is kept by the record key, each has two states. %s",
                    self._config.group,
                    apart,
                    topic,
                    fix_of_others if number else fix,
                )
            if is_proof(record_keys, len(partitions)) and (names := partitioners_of(record_keys)):
                among[topic] = names
        if among and not set.intersection(*map(set, among.values())):
            shown = ", ".join(f"{topic!r} by {names[0]}" for topic, names in among.items())
            problem = f"keys are placed in different ways: {shown}. Rows of one key would not meet"
            raise PipelineError(problem, field="topics", fix=fix_of_others)

    def ends(self, admin: Admin, changelogs: Iterable[Changelog]) -> dict[TopicPartition, int]:
        """Return, for each partition of a grown topic, the first offset written under the new number; 0 if all are.

        Raises the refusal of a changelog if nothing is left to read, or it is not known how keys are placed, and
        PipelineError if one number of partitions does not place all of these records.
        """
        ends: dict[TopicPartition, int] = {}
        refusals = {
            topic: changelog
            for changelog in changelogs
            if changelog.refusal is not None
            for topic in changelog.of.sources
        }
        for topic, changelog in refusals.items():
            after = len(admin.describe_topic(topic).partitions)
            places = self._placed(admin, topic, changelog.partitions, after)
            likely = [
                partitioner
                for partitioner in PARTITIONERS
                if not any(by_partitioner[partitioner].is_other for by_partitioner in places.values())
            ]
            untils = {
                tuple(by_partitioner[partitioner].until for by_partitioner in places.values()) for partitioner in likely
            }
            if len(untils) > 1:
                problem = f"{topic!r} has grown, and has too few unread records to determine the producers' partitioner"
                raise PipelineError(problem, field="topics", fix="Start again when it has more records")
            for partition, by_partitioner in places.items():
                is_there = likely and partition.partition < changelog.partitions
                ends[partition] = (
                    _end(partition, by_partitioner[likely[0]], changelog.partitions, after) if is_there else 0
                )
        if not any(ends.values()):
            raise next(changelog.refusal for changelog in refusals.values() if changelog.refusal is not None)
        log.info("%s: topics have grown: the run ends when it has read what was written before", self._config.group)
        return ends

    def _placed(self, admin: Admin, topic: str, before: int, after: int) -> dict[TopicPartition, dict[str, Placed]]:
        """Return where each partitioner places the unread keys of all partitions, some of those of new ones."""
        partitions = [TopicPartition(topic, number) for number in range(after)]
        committed, begins = admin.group_offsets(self._config.group, partitions), admin.beginning_offsets(partitions)
        starts = {
            partition: max(committed[partition].offset if partition in committed else 0, begins[partition])
            for partition in partitions
        }
        ends = admin.stable_offsets(partitions)
        ends |= {partition: min(ends[partition], starts[partition] + _SOME) for partition in partitions[before:]}
        unread = [
            (Split(*partition, start, max(start, ends[partition])), before, after)
            for partition, start in starts.items()
        ]
        return dict(zip(partitions, places_of_unread(self._spark, self._config, unread, [*PARTITIONERS]), strict=True))


def _end(partition: TopicPartition, span: Placed, before: int, after: int) -> int:
    if span.since < span.until:
        raise PipelineError(
            f"{partition}: {after} partitions place the key of the record at offset {span.since}, and only {before}"
            f" that of the one at {span.until - 1}",
            field="topics",
            fix="See Grow in the documentation: only a multiple of the earlier number allows that",
        )
    return span.until
