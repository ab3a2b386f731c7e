"""The partitions of the input that hold event time back or that late rows come from, by the numbers that tasks know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from roster.client import Admin, ClientError
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import StoreProgress
from roster.state.source_times import source_of
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan


class SourceNames:
    """Names sources in the progress of stores; for the pipeline's thread."""

    def __init__(self, admin: Admin, topics: Collection[str]) -> None:
        """topics: of the group's input."""
        self._admin, self._topics = admin, topics
        self._names: dict[str, str] = {}

    def named(self, progress: StoreProgress, plan: SubtopologyPlan, task: TaskId, node: OperatorNode) -> StoreProgress:
        """Return a task's progress with names of partitions."""
        if progress.held_by is not None:
            name = "" if progress.held_by == "0" else self._name(progress.held_by)
            progress = progress._replace(held_by=name)
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
