"""The changelog topics of a pipeline's stores: created at a group's first start, checked at every start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from roster.client import Admin, ClaimedBy, ClientError, TopicExistsError, UnknownTopicError
from roster.model import TopicPartition
from roster.model.offsets import repartition_folder
from roster.model.tasks import TaskId
from roster.model.topology import CHANGELOG_SETTINGS, Subtopology, TopologyError, changelog_topic, partition_count
from roster.pipeline.errors import PipelineError

_GROWN = (
    "Stop the group and run `roster state repartition`, which places the keys anew; with repartition(..., partitions=)"
    " in front of the state from the first day on, the input may grow"
)


class Logs(Protocol):
    """Looks up offsets of logs, as `roster.client.Admin` does."""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offsets."""

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets."""


@dataclass(frozen=True, slots=True)
class Changelog:
    """The changelog topic of a store, with a partition for each task of its sub-topology.

    refusal: why no task may go on, if its sources have more partitions; None if they have not.
    """

    topic: str
    topic_id: str
    partitions: int
    of: Subtopology
    refusal: PipelineError | None = None

    def __getitem__(self, task: TaskId) -> TopicPartition:
        return TopicPartition(self.topic, task.partition)

    @property
    def tasks(self) -> list[TaskId]:
        """All tasks with state in the topic."""
        return [TaskId(self.of.number, partition) for partition in range(self.partitions)]


class Changelogs:
    """The changelogs of all stores of a pipeline, and the tasks with state in them."""

    def __init__(self, changelogs: Iterable[Changelog]) -> None:
        """Changelogs of one sub-topology are in the order of its stores."""
        self._all = tuple(changelogs)
        by_subtopology: dict[int, list[Changelog]] = {}
        for changelog in self._all:
            by_subtopology.setdefault(changelog.of.number, []).append(changelog)
        self._first_of = {topic: stores[0] for stores in by_subtopology.values() for topic in stores[0].of.sources}
        self.logs = {
            task: [changelog[task] for changelog in stores]
            for _, stores in sorted(by_subtopology.items())
            for task in stores[0].tasks
        }
        """The changelog partition of each store of a task with state; tasks ascend."""
        self.task_by_log = {log: task for task, logs in self.logs.items() for log in logs}
        self.readers = {
            TopicPartition(topic, task.partition): task
            for topic, changelog in self._first_of.items()
            for task in changelog.tasks
        }
        """The task with state that reads a partition."""
        self.tasks = list(self.logs)
        """All tasks with state, ascending."""

    def __iter__(self) -> Iterator[Changelog]:
        return iter(self._all)

    def tasks_of(self, partitions: Iterable[TopicPartition]) -> list[TaskId]:
        """Return the tasks with state that read these partitions, each once; other partitions are skipped."""
        return list(dict.fromkeys(self.readers[partition] for partition in partitions if partition in self.readers))

    def check_same(self, admin: Admin) -> None:
        """Raise PipelineError if a topic has been made anew."""
        for changelog in self._all:
            if (admin.describe_topic(changelog.topic).topic_id or b"\0").hex() != changelog.topic_id:
                problem = f"the changelog {changelog.topic!r} has been made anew since this application started"
                raise PipelineError(problem, field="group", fix="Start it again")

    def check_grown(self, sources: Iterable[TopicPartition]) -> None:
        """Raise PipelineError for a partition among these that tasks with state read and the changelog lacks."""
        for source in sources:
            changelog = self._first_of.get(source.topic)
            if changelog is not None and source not in self.readers:
                raise PipelineError(
                    f"the topic {source.topic!r} has grown, its changelog {changelog.topic!r} has"
                    f" {changelog.partitions} partitions: keys may have moved to partitions without their state",
                    field="aggregate",
                    fix=_GROWN,
                )


def open_changelog(admin: Admin, group: str, of: Subtopology, store: str, *, is_optional: bool = False) -> Changelog:
    """Return the changelog of a store of the sub-topology; create it if the group has no offsets yet.

    is_optional: the group may have worked without it. Raises PipelineError if its sources are not co-partitioned, if it
    is missing though the group has offsets, or has other partitions or settings than required, and ClientError.
    """
    sources = of.sources
    try:
        name = changelog_topic(group, store)
    except TopologyError as error:
        raise PipelineError(str(error), field="store") from None
    count = co_partitioned(admin, of)
    if name not in admin.list_topics(internal=True):
        _create(admin, group, name, () if is_optional else sources, count)
    _check_topics(admin, group, of)
    topic = admin.describe_topic(name)
    _check_offsets(admin, group, name, sources, len(topic.partitions))
    refusal = None
    if (before := len(topic.partitions)) != count:
        problem = (
            f"topic {sources[0]!r} has {count} partitions and the changelog {name!r} has {before}: keys may have moved"
            " to partitions that do not have their state"
        )
        refusal = PipelineError(problem, field="aggregate", fix=_GROWN)
        if before > count:
            raise refusal
    check_settings(admin, name, CHANGELOG_SETTINGS, field="aggregate", lost="state")
    return Changelog(name, (topic.topic_id or b"\0").hex(), before, of, refusal)


def check_whole(admin: Admin, group: str) -> None:
    """Raise PipelineError if a `roster state repartition` of the group has not ended."""
    notes = (repartition_folder(committed.metadata) for committed in admin.group_offsets(group, stable=False).values())
    if folder := next(filter(None, notes), None):
        raise PipelineError(
            f"the state of {group!r} is being given other partitions",
            field="group",
            fix=f"Run `roster state repartition {group} --to {folder}` again, with the same options",
        )


def _check_topics(admin: Admin, group: str, of: Subtopology) -> None:
    """Raise PipelineError if the group has offsets, but none in the topics that the pipeline reads."""
    if of.number != 0:
        return  # the repartition topic is the pipeline's own
    worked = {partition.topic for partition in admin.group_offsets(group, stable=False)}
    if worked and worked.isdisjoint(of.sources):
        raise PipelineError(
            f"the group {group!r} has read {', '.join(sorted(worked))}, and nothing of {', '.join(of.sources)}",
            field="topics",
            fix="Name the topic that its state is of, or another group",
        )


def co_partitioned(admin: Admin, of: Subtopology) -> int:
    """Return the partition count of the sub-topology's sources. Raises PipelineError if they differ."""
    counts = {}
    for source in of.sources:
        try:
            counts[source] = len(admin.describe_topic(source).partitions)
        except UnknownTopicError:
            raise PipelineError(
                f"there is no topic {source!r}",
                field="topics",
                fix="A stateful pipeline needs it at its start: its changelog has as many partitions",
            ) from None
    try:
        return partition_count(of, counts)
    except TopologyError as error:
        raise PipelineError(str(error), field="topics") from None


def _create(admin: Admin, group: str, name: str, sources: Sequence[str], count: int) -> None:
    partitions = [TopicPartition(source, number) for source in sources for number in range(count)]
    worked = admin.group_offsets(group, partitions, stable=False) if partitions else {}
    # Starting offsets are committed after the changelog is created, so they prove that it existed.
    if worked:
        raise PipelineError(
            f"the group {group!r} has offsets of {min(worked).topic!r}, but its changelog {name!r} is not there:"
            " it was deleted, or the group worked without state",
            field="aggregate",
            fix="Use another group, or delete this one (`roster state reset`) to begin without state",
        )
    create_own_topic(admin, name, count, CHANGELOG_SETTINGS, field="aggregate", by_hand="cleanup.policy=compact")


def create_own_topic(
    admin: Admin, name: str, count: int, configs: Mapping[str, str], *, field: str, by_hand: str
) -> None:
    """Create a topic of the group's own, unless another application of the group was first. Raises PipelineError.

    by_hand: settings of one that the user makes.
    """
    try:
        admin.create_topic(name, count, configs=configs)
    except TopicExistsError:
        return
    except ClientError as error:
        fix = f"Or make it, with {count} partitions and {by_hand}"
        raise PipelineError(f"{name!r} cannot be made: {error}", field=field, fix=fix) from error


def _check_offsets(admin: Admin, group: str, name: str, sources: Sequence[str], count: int) -> None:
    """Raise PipelineError if the group's offsets do not belong to the state."""
    ends = admin.end_offsets([TopicPartition(name, number) for number in range(count)])
    used = [TopicPartition(source, log.partition) for log, end in ends.items() if end > 0 for source in sources]
    committed = admin.group_offsets(group, used, stable=False) if used else {}
    fix = (
        "`roster state reset` lets the group begin anew, or use another group; an import that did not end is run again"
    )
    for partition in sorted(used):
        if partition not in committed:
            problem = "the group has no offset of it, and would not go on where the state ends"
        elif ClaimedBy.of(committed[partition].metadata) is None:
            problem = f"the group's offset {committed[partition].offset} was set by another program, not with the state"
        else:
            continue
        raise PipelineError(f"{partition} has state in {name!r}, but {problem}", field="group", fix=fix)


def check_settings(admin: Admin, name: str, wanted: Mapping[str, str], *, field: str, lost: str) -> None:
    """Raise PipelineError for a topic with other settings than these. lost: what would be."""
    settings = admin.topic_configs(name)
    for key, value in wanted.items():
        if settings.get(key) != value:
            problem = f"{name!r} has {key}={settings.get(key)}, which would lose {lost}"
            raise PipelineError(problem, field=field, fix=f"Set {key}={value}")
