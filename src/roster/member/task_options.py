"""Options of a member that runs tasks, the same in all members of a group."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from roster.model.options import Option, declared, option
from roster.model.tasks import TaskId
from roster.model.topics import TopicPartition
from roster.model.topology import Subtopology, check_subtopologies
from roster.wire.errors import WireError
from roster.wire.streams.subscription_info import parse_host


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of a stateful pipeline's member; all members of a group have the same `subtopologies`.

    The group's leader uses its own options. Raises ValueError that names the option.
    """

    subtopologies: Annotated[
        Sequence[Subtopology],
        Option(kind="list of `Subtopology`", help="the parts of the pipeline: the topics and stores of each"),
    ]
    standbys: int = option(
        0, "copies of each task with state, beside the one that runs", least=0, kafka="num.standby.replicas"
    )
    acceptable_lag: int = option(
        10_000, "gap up to which a store counts as caught up", unit="records", least=0, kafka="acceptable.recovery.lag"
    )
    max_warmups: int = option(
        2, "copies that are restored at once, in the group, to take tasks over", least=1, kafka="max.warmup.replicas"
    )
    host: str | None = option(None, "`host:port` at which this process answers queries", kafka="application.server")

    def __post_init__(self) -> None:
        if not self.subtopologies:
            raise ValueError("subtopologies: must name at least one")
        check_subtopologies(self.subtopologies)
        for name, declaration in declared(TaskOptions).items():
            if problem := declaration.problem(getattr(self, name)):
                raise ValueError(f"{name}: {problem}")
        if self.host is not None:
            try:
                parse_host(self.host, "host")
            except WireError as error:
                raise ValueError(f"{error}, as in app1.example:8080") from None

    @cached_property
    def topics(self) -> frozenset[str]:
        """All topics that the sub-topologies read; the member subscribes to them."""
        return frozenset(topic for subtopology in self.subtopologies for topic in subtopology.sources)

    @cached_property
    def sources_of(self) -> dict[int, Sequence[str]]:
        """{number of a sub-topology: the topics it reads}."""
        return {subtopology.number: subtopology.sources for subtopology in self.subtopologies}

    @cached_property
    def with_state(self) -> frozenset[int]:
        """Numbers of the sub-topologies that have stores."""
        return frozenset(subtopology.number for subtopology in self.subtopologies if subtopology.stores)

    def task_partitions(self, task: TaskId) -> tuple[TopicPartition, ...]:
        """Return the source partitions of a task. Raises KeyError for an unknown sub-topology."""
        return tuple(TopicPartition(topic, task.partition) for topic in self.sources_of[task.subtopology])

    def tasks_of(self, partitions: frozenset[TopicPartition]) -> frozenset[TaskId]:
        """Return the tasks all of whose source partitions are in `partitions`."""
        numbers = {number for _, number in partitions}
        return frozenset(
            TaskId(subtopology.number, number)
            for subtopology in self.subtopologies
            for number in numbers
            if all(TopicPartition(topic, number) in partitions for topic in subtopology.sources)
        )
