"""Where reading starts and ends; offset ranges of the next batch, and their split over tasks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from roster.client import ClientError, GroupMember
from roster.model import OffsetAndMetadata, OffsetSpec, TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Owner, Range, Split
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.driver.reporting import Reporter, brief
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options


def total(ranges: Mapping[TopicPartition, Range]) -> int:
    """Return the number of offsets in all ranges."""
    return sum(end - start for start, end in ranges.values())


def planned(
    available: Mapping[TopicPartition, Range], most: int | None, cores: int, least: int, *, is_whole: bool
) -> tuple[dict[TopicPartition, Range], list[tuple[Split, ...]]]:
    """Return the ranges of a batch of at most `most` offsets, and their splits by task.

    Empty ranges stay: their tasks run without records. is_whole: one task reads a partition's whole range.
    """
    ranges = limit(available, most)
    ranges |= {partition: span for partition, span in available.items() if span.start == span.end}
    return ranges, (whole if is_whole else tasks)(ranges, cores, least)


def limit(available: Mapping[TopicPartition, Range], most: int | None) -> dict[TopicPartition, Range]:
    """Return the part of `available` that a batch of at most `most` offsets reads, in proportion to each lag.

    Every partition with lag gets at least one offset, so none starves; with more such partitions than `most`, the batch
    has one offset of each. Largest remainders get what rounding leaves. Empty ranges are left out.
    """
    waiting = {partition: span for partition, span in sorted(available.items()) if span.end > span.start}
    count = total(waiting)
    if most is None or count <= most:
        return waiting
    share = dict.fromkeys(waiting, 1)
    spare = max(most - len(waiting), 0)
    rest = count - len(waiting)
    if spare and rest:
        remainders = {}
        for partition, span in waiting.items():
            whole, remainders[partition] = divmod((span.end - span.start - 1) * spare, rest)
            share[partition] += whole
        left = spare - sum(share.values()) + len(waiting)
        for partition in sorted(remainders, key=lambda p: (-remainders[p], p))[:left]:
            share[partition] += 1
    return {partition: Range(span.start, span.start + share[partition]) for partition, span in waiting.items()}


def tasks(ranges: Mapping[TopicPartition, Range], cores: int, least: int = 1) -> list[tuple[Split, ...]]:
    """Split ranges over at most `cores` tasks of equal size, each (unless alone) of at least about `least` offsets.

    The ranges are laid end to end in order and cut into equal lengths: small ones share a task, large ones are split
    over several, and no task reads a partition twice.
    """
    spans = [(partition, span) for partition, span in sorted(ranges.items()) if span.end > span.start]
    offsets = total(ranges)
    count = max(1, min(cores, offsets // max(least, 1)))
    cuts = [offsets * task // count for task in range(1, count + 1)]
    plan: list[list[Split]] = [[]]
    dealt = 0  # offsets dealt so far
    for partition, span in spans:
        start = span.start
        while start < span.end:
            if dealt == cuts[len(plan) - 1]:
                plan.append([])
            end = min(span.end, start + cuts[len(plan) - 1] - dealt)
            plan[-1].append(Split(partition.topic, partition.partition, start, end))
            dealt += end - start
            start = end
    return [tuple(splits) for splits in plan if splits]


def whole(ranges: Mapping[TopicPartition, Range], cores: int, least: int = 1) -> list[tuple[Split, ...]]:
    """Assign whole ranges to tasks, the largest first, each to the least loaded task.

    Sizes of tasks differ by at most the largest range. Empty ranges count: their tasks may have work without records.
    """
    spans = sorted(ranges.items(), key=lambda item: (item[1].start - item[1].end, item))
    count = max(1, min(cores, len(spans), total(ranges) // max(least, 1)))
    plan: list[list[Split]] = [[] for _ in range(count)]
    loads = [0] * count
    for partition, span in spans:
        lightest = loads.index(min(loads))
        plan[lightest].append(Split(partition.topic, partition.partition, span.start, span.end))
        loads[lightest] += span.end - span.start
    return [tuple(splits) for splits in plan if splits]


def spread(tasks: Sequence[Sequence[Split]], cores: int) -> list[list[Split]]:
    """Deal splits to as many Spark tasks as run at once, for work that does not depend on their sizes."""
    splits = [split for task in tasks for split in task]
    return [splits[first::cores] for first in range(min(cores, len(splits)))]


def regrouped_by_task(tasks: Sequence[Sequence[Split]], task_of: Callable[[Split], TaskId]) -> list[list[Split]]:
    """Regroup splits so that one Spark task reads all input partitions of a group's task."""
    dealt: list[list[Split]] = [[] for _ in tasks]
    homes: dict[TaskId, int] = {}
    for number, task in enumerate(tasks):
        for split in task:
            dealt[homes.setdefault(task_of(split), number)].append(split)
    return [splits for splits in dealt if splits]


log = logging.getLogger("roster.spark")


class StartingPositions:
    """Finds where newly assigned partitions start."""

    def __init__(self, member: GroupMember, sink: BatchSink, options: Options, reporter: Reporter) -> None:
        self._member, self._sink, self._options, self._reporter = member, sink, options, reporter
        self._known: dict[str, int] = {}

    def note_topics(self) -> None:
        """Remember the topics' partition counts: `latest` applies to these, partitions added later start at earliest.

        Raises PipelineError if `starting_offsets` names another partition.
        """
        if not isinstance(self._options.topics, tuple):
            return
        self._known = self._member.partitions_for(self._options.topics)
        starting = self._options.start
        for partition in sorted(starting) if isinstance(starting, Mapping) else ():
            count = self._known.get(partition.topic)
            if count is None:
                raise PipelineError(f"{partition}: the pipeline does not read this topic", field="starting_offsets")
            if partition.partition >= count:
                raise PipelineError(f"{partition}: the topic has {count} partitions", field="starting_offsets")

    def find(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None], owner: Owner
    ) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        """Return the next offset of each partition, and the partitions whose starting offset must be committed to the
        group.

        committed: the partitions, with what the group has committed. Raises PipelineError if records to be read are
        gone and `fail_on_data_loss` is set.
        """
        if not committed:
            return {}, set()
        partitions = list(committed)
        group = {partition: offset.offset for partition, offset in committed.items() if offset is not None}
        in_sink = self._sink.claim(partitions, owner, group)
        self._note_difference(group, in_sink)
        begins = self._member.beginning_offsets(partitions)
        ends = self._member.end_offsets(partitions)
        fresh = [p for p in partitions if p not in in_sink and p not in group]
        starts = {**self._first_offsets(fresh, begins, ends), **group, **in_sink}
        for partition, start in starts.items():
            begin, end = begins[partition], ends[partition]
            if begin <= start <= end:
                continue
            problem = f"{partition}: the next offset is {start}, but the log holds {begin} to {end}"
            if self._options.fail_on_data_loss or (start > end and partition in in_sink):
                raise PipelineError(
                    f"{problem}: records are gone or the topic was created anew",
                    field="fail_on_data_loss",
                    fix="Set it to False to go on with the records that are left, or use another group and output",
                )
            log.warning("%s; going on with the records that are left", problem)
            # The range must begin at the sink's position; the reader skips the records that are gone.
            if partition not in in_sink:
                starts[partition] = begin
        return starts, {p for p, start in starts.items() if group.get(p) != start}

    def _note_difference(self, group: Mapping[TopicPartition, int], in_sink: Mapping[TopicPartition, int]) -> None:
        """Log that reset group offsets do not make the pipeline re-read records whose results the sink holds."""
        ahead = {p: offset for p, offset in in_sink.items() if offset > group.get(p, offset)}
        for topic in sorted({p.topic for p in ahead}):
            numbers = {p.partition: offset for p, offset in sorted(ahead.items()) if p.topic == topic}
            behind = {p: group[TopicPartition(topic, p)] for p in numbers}
            self._reporter.line(
                f"the sink stands at {_offsets(numbers)}, the group at {_offsets(behind)}: the sink wins",
                topic=topic,
                partitions=brief(ahead.keys()),
                to_read_again="reset the group and use another output, or remove this one",
            )

    def _first_offsets(
        self,
        partitions: Collection[TopicPartition],
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        rule = self._options.start
        if isinstance(rule, int):
            by_time = self._member.offsets_for_times(dict.fromkeys(partitions, rule)) if partitions else {}
            wanted = {p: OffsetSpec.LATEST if (offset := by_time.get(p)) is None else offset for p in partitions}
        elif isinstance(rule, Mapping):
            wanted = {p: rule.get(p, OffsetSpec.EARLIEST) for p in partitions}
        else:
            wanted = dict.fromkeys(partitions, int(OffsetSpec[rule.upper()]))
            if rule == "latest":
                # All records of a partition added since the start are new.
                wanted.update(
                    {p: OffsetSpec.EARLIEST for p in partitions if p.partition >= self._known.get(p.topic, 1 << 31)}
                )
        if isinstance(self._options.topics, tuple):
            # A topic that the pipeline writes itself is always read from its start.
            wanted |= {p: OffsetSpec.EARLIEST for p in partitions if p.topic not in self._options.topics}
        return {
            p: begins[p] if offset == OffsetSpec.EARLIEST else ends[p] if offset == OffsetSpec.LATEST else offset
            for p, offset in wanted.items()
        }


def _offsets(by_partition: Mapping[int, int]) -> str:
    """Format offsets as `5` if all are the same, else as `3 to 9`."""
    least, most = min(by_partition.values()), max(by_partition.values())
    return str(least) if least == most else f"{least} to {most}"


class Targets:
    """The log end offset of each partition when it was assigned.

    Those of repartition topics are looked up once all targets are reached, a few times for each of these topics:
    records of one may lead to records of the next, and then to notices that tell it how far event time is.
    """

    _LOOKS = 3
    """At most for each topic: others may go on to write to it. One for records, one for the notices that senders owe,
    one in vain, while a transaction's marker was on its way."""

    def __init__(
        self,
        topics: Sequence[str] | re.Pattern[str],
        log_ends: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]],
    ) -> None:
        """topics: the input. `log_ends` counts records of open transactions."""
        self._topics, self._log_ends = topics, log_ends
        self._targets: dict[TopicPartition, int] = {}
        self.own_topics: frozenset[str] = frozenset()
        """Repartition topics of owned partitions."""
        self._rounds = 0
        """How often those of repartition topics were set since the assignment."""

    def is_repartition(self, partition: TopicPartition) -> bool:
        """Return True for a topic that the pipeline writes itself, for another sub-topology to read."""
        return isinstance(self._topics, tuple) and partition.topic not in self._topics

    def adopt(self, owned: Collection[TopicPartition], new: Collection[TopicPartition]) -> None:
        """Take a new assignment."""
        self.own_topics = frozenset(p.topic for p in owned if self.is_repartition(p))
        kept = {p for p in owned if not (new and p.topic in self.own_topics)}
        self._targets = {p: end for p, end in self._targets.items() if p in kept}
        self._rounds = 0 if new else self._rounds

    def limit(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return up to where to read partitions with these log ends; the first ones seen are the targets."""
        for partition, end in ends.items():
            if not self.is_repartition(partition):
                self._targets.setdefault(partition, end)
        return {partition: min(end, self._targets.get(partition, end)) for partition, end in ends.items()}

    def are_reached(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Return True once repartition topics are read, too, where inputs are. Raises ClientError."""
        repartitioned = [partition for partition in positions if self.is_repartition(partition)]
        while all(positions[partition] >= self._targets.get(partition, 0) for partition in repartitioned):
            if self._rounds >= self._LOOKS * len({partition.topic for partition in repartitioned}):
                return True
            try:
                self._targets |= self._log_ends(repartitioned)
            except ClientError as error:
                if not error.retriable:
                    raise
                return False
            self._rounds += 1
        return False
