"""The driver's side of a repartition topic: creates it, checks it at the start, and purges processed records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from typing_extensions import override

from roster.client import Admin, ClaimedBy, ClientError, UnknownTopicError
from roster.model import TopicPartition
from roster.model.topology import REPARTITION, REPARTITION_SETTINGS
from roster.pipeline.batch import Batch
from roster.pipeline.errors import PipelineError
from roster.stateful.changelogs import check_settings, co_partitioned, create_own_topic
from roster.stateful.due_tasks import DueTasks
from roster.stateful.tasks.repartition import FIELD, RepartitionTopic

log = logging.getLogger("roster.spark")

PURGE_INTERVAL = 30.0
"""Seconds between two deletions of records: Kafka Streams' `repartition.purge.interval.ms`."""


def open_repartition_topic(
    admin: Admin, group: str, repartition: RepartitionTopic, beside: Sequence[str] = ()
) -> list[TopicPartition]:
    """Return the partitions of the topic; create it if the group has no offsets yet.

    beside: other topics that the downstream tasks read. Raises PipelineError if it is missing though the group has
    offsets, has other partitions or settings than required, or the group's offsets do not belong to it, and
    ClientError.
    """
    name, read, sources = repartition.topic, list[TopicPartition](), 0
    for before in (repartition.before, *repartition.others):
        count = co_partitioned(admin, before)
        read += [TopicPartition(topic, number) for topic in before.sources for number in range(count)]
        sources = max(sources, count)
    claims = {p: ClaimedBy.of(at.metadata) for p, at in admin.group_offsets(group, read, stable=False).items()}
    if name not in admin.list_topics(internal=True):
        if claims:
            raise PipelineError(
                f"the group {group!r} has offsets of {min(claims).topic!r}, but {name!r} is not there: it was deleted,"
                " or the group worked without it",
                field=FIELD,
                fix="Use another group, or delete this one (`roster state reset`) to begin without state",
            )
        count = _new_partition_count(admin, repartition, sources, beside)
        by_hand = "cleanup.policy=delete and retention.ms=-1"
        create_own_topic(admin, name, count, REPARTITION_SETTINGS, field=FIELD, by_hand=by_hand)
    count = len(admin.describe_topic(name).partitions)
    if repartition.partitions is not None and count != repartition.partitions:
        raise PipelineError(
            f"{name!r} has {count} partitions, not {repartition.partitions}: keys would move away from their state",
            field="partitions",
            fix=f"Use {count}, or stop the group and run `roster state repartition {group} --to FOLDER"
            f" --partitions {name} {repartition.partitions}`",
        )
    wanted = {key: value for key, value in REPARTITION_SETTINGS.items() if key != "segment.bytes"}
    check_settings(admin, name, wanted, field=FIELD, lost="records before they are read")
    partitions = [TopicPartition(name, number) for number in range(count)]
    if any(admin.end_offsets(partitions).values()):
        _check_claims(name, claims)
    return partitions


def check_all_are_read(admin: Admin, group: str, topics: Collection[str]) -> None:
    """Raise PipelineError if the group has offsets in a repartition topic that is not one of these.

    No task would read its records, and its downstream state has another key. Raises ClientError.
    """
    begin = f"{group}-"
    for partition, at in sorted(admin.group_offsets(group, stable=False).items()):
        name = partition.topic
        is_own = name.startswith(begin) and name.endswith(REPARTITION) and ClaimedBy.of(at.metadata) is not None
        if is_own and name not in topics:
            raise PipelineError(
                f"the group {group!r} has offsets of {name!r}, which this pipeline does not read: it has worked with"
                " another repartition",
                field=FIELD,
                fix="Leave the pipeline as it was, use another group, or `roster state reset` to begin without state",
            )


def _new_partition_count(admin: Admin, repartition: RepartitionTopic, sources: int, beside: Sequence[str]) -> int:
    """Return how many partitions to create. Raises PipelineError unless existing topics have as many: they stay."""
    count = repartition.partitions or sources
    for topic in beside:
        try:
            wanted = len(admin.describe_topic(topic).partitions)
        except UnknownTopicError:
            raise PipelineError(f"there is no topic {topic!r}", field="join", fix="Create it first") from None
        if wanted != count:
            raise PipelineError(
                f"the rows would be in {count} partitions, and {topic!r}, which they are joined with, has {wanted}",
                field=FIELD,
                fix=f"Use repartition(..., partitions={wanted})",
            )
    return count


def _check_claims(name: str, claims: Mapping[TopicPartition, ClaimedBy | None]) -> None:
    """Raise PipelineError if input whose records are in the topic already would be read again."""
    fix = "`roster state reset` lets the group begin anew, or use another group"
    if not claims:
        raise PipelineError(f"{name!r} has records, but the group has no offsets of its input", field="group", fix=fix)
    if strange := sorted(partition for partition, claim in claims.items() if claim is None):
        raise PipelineError(
            f"the group's offset of {strange[0]} was set by another program, not with the records in {name!r}",
            field="group",
            fix=fix,
        )


class Purge(DueTasks):
    """Deletes committed records of some topics from time to time; a failure is logged once."""

    def __init__(
        self,
        topics: Collection[str],
        delete: Callable[[Mapping[TopicPartition, int]], object],
        interval: float = PURGE_INTERVAL,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`delete` deletes the records before an offset of each partition. `interval` in seconds."""
        self._topics, self._delete, self.interval, self._now = topics, delete, interval, now
        self._next = float("-inf")
        self._committed: dict[TopicPartition, int] = {}
        self._has_failed = False

    @override
    def committed(self, batch: Batch) -> None:
        """Record the offsets of a committed batch, and delete the records before them if it is time."""
        self._committed |= {p: offset for p, offset in batch.next_offsets.items() if p.topic in self._topics}
        if not self._committed or self._now() < self._next:
            return
        before, self._committed = self._committed, {}
        try:
            self._delete(before)
        except ClientError as error:
            log.log(
                logging.DEBUG if self._has_failed else logging.WARNING,
                "records of %s that are processed stay: %s",
                *(", ".join(sorted({partition.topic for partition in before})), error),
            )
            self._has_failed = True
        self._next = self._now() + self.interval
