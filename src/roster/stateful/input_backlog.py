"""What is left to read in a sub-topology's input: it holds event time back, in its tasks or behind a repartition.

Progress names the partitions that do, and those that late rows come from.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from typing_extensions import override

from roster.client import Admin, ClientError
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, StoreProgress
from roster.state.source_times import source_of
from roster.stateful.due_tasks import DueTasks
from roster.stateful.tasks.outgoing import Backlog
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan, beside

_APART = 1.0
"""Seconds between two looks, and two notices to partitions without rows, while nothing is left to read."""
_FEW = 100
"""Offsets of a batch that does not look in between."""
_LITTLE = 2_000_000
"""Microseconds by which event time goes on at most without another look."""


class InputBacklog(DueTasks):
    """Looks at all partitions of a sub-topology's input, whoever owns them; for the pipeline's thread.

    A partition has been read to its end if the group's offset is not below a log end that was asked for earlier. So
    all its rows up to that end come before the rows of the batch that is planned, in each partition of the topic.

    An application owes a notice to all, of all times and that nothing is left to read, unless its last batch was
    committed and has been such a notice. It is due a second after that batch, or at once where partitions were taken,
    if nothing is left. So it comes again if its transaction is aborted, and whoever takes a partition sends what the
    last owner may not have sent.

    If other sub-topologies send rows to the same repartition topic, it looks at the topics in front of them, too: each
    notice tells which of all sources have more to come. Topics are asked in the order that rows go through them, so
    what has left one of them is in the next one, or is behind it.

    It asks for the ends of the repartition topic first: notices behind these ends may know of rows that came since.
    """

    def __init__(
        self,
        admin: Admin,
        group: str,
        topics: Collection[str],
        sources_at: Callable[[TopicPartition], Collection[int]],
        now: Callable[[], float] = time.monotonic,
        *,
        sink: str = "",
        looks_for_each: bool = False,
        others: Sequence[Mapping[str, Callable[[TopicPartition], Collection[int]]]] = (),
    ) -> None:
        """sources_at: returns the sources that a partition's rows have; one has been read if all its partitions have.

        sink: the repartition topic behind which others hear of it, "" if none do. looks_for_each: each batch of records
        that it has not seen looks. others: the topics in front of other senders, as `beside` has them.
        """
        self._sources_at, self._sink, self._looks_for_each = sources_at, sink, looks_for_each
        self._admin, self._group, self._topics, self._now = admin, group, topics, now
        self._others = others
        self._partitions: list[TopicPartition] = []
        self._of_others: list[list[TopicPartition]] = []
        self._of_sink: list[TopicPartition] = []
        self._log_ends: Mapping[int, int] = {}
        """The ends of the repartition topic's partitions before the last look."""
        self._looked = float("-inf")
        """When it last looked in order to tell all."""
        self._ends: Mapping[TopicPartition, int] = {}
        self._behind: set[TopicPartition] = set()
        """Partitions with more to read behind the last batch."""
        self._others_behind: set[TopicPartition] = set()
        """Partitions in front of other senders with more to read, in the last batch or behind it."""
        self._is_committed = False
        """Whether that batch is: if not, it is unknown how far the group is."""
        self._is_told = self._is_for_all = False
        """Whether no notice is owed; whether the batch planned last tells all."""
        self._planned = float("-inf")
        self._untold: set[int] = set()
        """Sources whose times not all have heard of."""
        self._read: dict[TopicPartition, int] = {}
        """How far committed batches have read: the brokers may not show the last commit yet."""
        self._times: dict[int, int] = {}
        """The largest time of each source's rows in committed batches."""
        self._sent: Mapping[int, int] = {}
        self._is_fresh = False
        """Whether it has looked for the batch planned last."""
        self._until: int | None = None
        """The time up to which what the last look has found holds, None if no times are known."""

    @override
    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Look again: these partitions were assigned, and there may be new ones. Times that were read stay true."""
        self._partitions = []
        if any(partition.topic in self._topics for partition in partitions):
            self._looked = self._planned = float("-inf")
            self._is_committed = self._is_told = False

    @override
    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> Collection[TopicPartition]:
        """Return a partition among these, all that are owned, whose task is to send the notice that is owed.

        behind: those with records to read, whose batches tell. once: if there are none, look at once, as a run ends.
        Raises ClientError.
        """
        own = [partition for partition in partitions if partition.topic in self._topics]
        if not self._sink or self._is_told or not own or not {*own}.isdisjoint(behind):
            return ()
        if (behind or not once) and self._now() - max(self._looked, self._planned) < _APART:
            return ()
        self._looked = self._now()
        self._look_up()
        self._is_told = not any(self._ends.values())  # no client has sent anything
        return () if self._behind or self._others_behind or self._is_told else own[:1]

    def left_behind(self, batch: Batch) -> Backlog | None:
        """Return what is left to read once a batch's records are, None if it reads none of the input.

        Raises ClientError.
        """
        read = self._read_in(batch)
        if not read:
            return None
        is_known, self._planned = self._is_committed and bool(self._partitions), self._now()
        count = sum(batch.ranges[partition].size for partition in read)
        is_for_all = not 0 < count <= _FEW or bool(self._behind or self._others_behind) or not is_known
        is_for_all |= self._planned - self._looked >= _APART
        self._looked = self._planned if is_for_all else self._looked
        is_new = any(self._ends.get(partition, 0) < end for partition, end in read.items())
        self._is_fresh = is_for_all or (is_new and self._looks_for_each) or self._until is None
        if self._is_fresh:
            self._look_up()
        self._is_committed = self._is_told = False
        unread = {partition for partition, end in read.items() if end < self._ends.get(partition, end + 1)}
        self._behind = (self._behind - read.keys()) | unread
        self._others_behind |= {p for p, span in batch.ranges.items() if span.size and self._is_of_others(p)}
        self._is_for_all = is_for_all or bool(self._behind or self._others_behind)
        behind, reading = self._sources_of(self._behind), self._sources_of(read)
        behind |= {
            source
            for partition in self._others_behind
            for topics in self._others
            if partition.topic in topics
            for source in topics[partition.topic](partition)
        }
        announced = reading | self._untold if self._is_for_all else reading
        return Backlog(
            secrets.randbits(62) + 1,
            tuple(sorted(behind - reading)),
            {source: source not in behind for source in sorted(reading)},
            self._is_for_all,
            max(partition.partition for partition in self._partitions) + 1,
            frozenset(self._behind),
            {source: self._times[source] for source in announced & self._times.keys()},
            None if self._is_fresh else self._until,
            self._log_ends,
        )

    def has_more(self) -> bool:
        """Look again, and return whether anything is left to read in the input, whoever owns it. Raises ClientError."""
        self._look_up()
        return bool(self._behind)

    def sent(self, times: Mapping[int, int]) -> None:
        """Record the largest time of each source's rows in the batch planned last."""
        self._sent = times

    @override
    def committed(self, batch: Batch) -> None:
        """Record that a batch is committed; the last one that reads the input, if it does."""
        self._read |= {p: span.end for p, span in batch.ranges.items() if self._is_of_others(p)}
        if not (read := self._read_in(batch)):
            return
        self._is_committed, self._is_told = True, self._is_for_all and not (self._behind or self._others_behind)
        self._untold = set() if self._is_for_all else self._untold | self._sources_of(read)
        self._read |= read
        self._times |= self._sent
        if self._is_fresh and self._times:
            self._until = max(self._times.values()) + _LITTLE

    def _sources_of(self, partitions: Collection[TopicPartition]) -> set[int]:
        return {source for partition in partitions for source in self._sources_at(partition)}

    def _read_in(self, batch: Batch) -> dict[TopicPartition, int]:
        return {p: span.end for p, span in batch.ranges.items() if p.topic in self._topics}

    def _is_of_others(self, partition: TopicPartition) -> bool:
        return any(partition.topic in topics for topics in self._others)

    def _look_up(self) -> None:
        if not self._partitions:
            self._of_sink, self._partitions, *self._of_others = (
                self._partitions_of(topics)
                for topics in ([self._sink] if self._sink else [], self._topics, *self._others)
            )
        ends = self._admin.end_offsets(self._of_sink) if self._sink else {}
        self._log_ends = {partition.partition: end for partition, end in ends.items()}
        self._ends, self._others_behind = {}, set()
        for partitions in self._of_others:
            self._others_behind |= self._looked_up(partitions)
        self._behind = self._looked_up(self._partitions)

    def _looked_up(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return which of these partitions have more to read."""
        ends = self._admin.end_offsets(partitions)
        for partition, offset in self._admin.group_offsets(self._group, partitions, stable=False).items():
            self._read[partition] = max(offset.offset, self._read.get(partition, 0))
        self._ends = {**self._ends, **ends}
        return {partition for partition, end in ends.items() if self._read.get(partition, 0) < end}

    def _partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        return [
            TopicPartition(topic, description.partition)
            for topic in topics
            for description in self._admin.describe_topic(topic).partitions
        ]


def input_backlogs(
    plans: Sequence[SubtopologyPlan], admin: Admin, group: str, now: Callable[[], float] = time.monotonic
) -> dict[tuple[int, str], InputBacklog]:
    """Return what looks at the input where rows get labels, by sub-topology and the topic of its rows ("": none)."""
    return {
        (plan.subtopology.number, sink): InputBacklog(
            *(admin, group, plan.topics_to(sink), partial(plan.sources_at, sink=sink), now),
            sink=sink if is_labelled else "",
            # Behind rows of a task in one partition there may be rows of its transaction in others; a task that reads
            # several topics does not wait up to a time.
            looks_for_each=plan.repartition_source is not None or plan.is_by_split,
            others=beside(plan, sink, plans) if is_labelled else (),
        )
        for plan in plans
        for sink, is_labelled in {topic.topic: topic.is_labelled for topic in plan.sinks}.items() or [("", False)]
        if is_labelled or plan.is_by_split
    }


class SourceNames:
    """Names sources in the progress of stores; for the pipeline's thread."""

    def __init__(self, admin: Admin, topics: Collection[str]) -> None:
        """topics: of the group's input."""
        self._admin, self._topics = admin, topics
        self._names: dict[str, str] = {}

    def named(self, progress: StoreProgress, plan: SubtopologyPlan, task: TaskId, node: OperatorNode) -> StoreProgress:
        """Return a task's progress with names of partitions."""
        if progress.held_by:
            progress = progress._replace(held_by=self._name(progress.held_by))
        other = None if node.other is None else node.other.topic
        own = [topic for topic in plan.subtopology.sources if topic != other]
        rows = Counter[str]()
        for number, count in progress.late_sources.items():
            topics = own if number == "0" else [] if other is None else [other]
            names = [str(TopicPartition(topic, task.partition)) for topic in topics]
            rows[",".join(names) if number in ("0", "-1") else self._name(number)] += count
        return progress._replace(late_sources=dict(rows))

    def _name(self, number: str) -> str:
        if number not in self._names:
            self._look_up_names()
        return self._names.setdefault(number, "an unknown partition")

    def _look_up_names(self) -> None:
        for topic in self._topics:
            try:
                partitions = self._admin.describe_topic(topic).partitions
            except ClientError:
                continue
            for description in partitions:
                partition = TopicPartition(topic, description.partition)
                self._names[str(source_of(*partition))] = str(partition)
