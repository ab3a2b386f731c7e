"""The group member of a stateful pipeline: it runs tasks, and reports the gaps of its copies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from typing_extensions import override

from roster.client import TaskMember
from roster.member.task_options import TaskOptions
from roster.model import TopicPartition
from roster.model.topology import Subtopology
from roster.pipeline.driver.member_protocol import StableEndsMember, member_settings
from roster.pipeline.options import Options
from roster.stateful.restore_schedule import Copies


class StableEndsTaskMember(StableEndsMember, TaskMember):
    """`TaskMember` for `read_committed`."""


class PartlyStableTaskMember(TaskMember):
    """`TaskMember` for `read_uncommitted` that reads some topics as `read_committed`."""

    committed_only: frozenset[str] = frozenset()

    @override
    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        stable = [partition for partition in partitions if partition.topic in self.committed_only]
        others = [partition for partition in partitions if partition.topic not in self.committed_only]
        ends = self.stable_offsets(stable) if stable else {}
        return ends | (super().end_offsets(others) if others else {})


def task_member(
    options: Options, subtopologies: Sequence[Subtopology], copies: Copies, *, committed_only: Collection[str] = ()
) -> TaskMember:
    """Make the member for a pipeline's options, and attach the copies to it; it computes their gaps when it starts.

    committed_only: topics read as `read_committed` whatever the isolation level.
    Raises OptionError for a value that cannot work.
    """
    kind = StableEndsTaskMember if options.isolation_level == "read_committed" else PartlyStableTaskMember
    member = kind(
        options.bootstrap,
        options.group,
        TaskOptions(
            subtopologies=subtopologies,
            standbys=options.state.standbys,
            acceptable_lag=options.tuning.acceptable_lag,
            max_warmups=options.tuning.max_warmups,
            host=options.state.application_server,
        ),
        gaps=copies.gaps,
        process_id=copies.process_id,
        **member_settings(options),
    )
    if isinstance(member, PartlyStableTaskMember):
        member.committed_only = frozenset(committed_only)
    copies.join(member)
    return member
