"""The group member of a stateful pipeline: it runs tasks, and reports how far behind its copies are."""

from __future__ import annotations

from collections.abc import Sequence

from roster.client import TaskMember
from roster.member.task_options import TaskOptions
from roster.model.topology import Subtopology
from roster.spark.member_protocol import StableEndsMember, member_settings
from roster.spark.options import Options
from roster.spark.state.upkeep import Upkeep


class StableEndsTaskMember(StableEndsMember, TaskMember):
    """`TaskMember` for `read_committed`."""


def task_member(options: Options, subtopologies: Sequence[Subtopology], upkeep: Upkeep) -> TaskMember:
    """Make the member for a pipeline's options, and join the copies to it; it works out their gaps when it starts.

    Raises OptionError for a value that cannot work.
    """
    kind = StableEndsTaskMember if options.isolation_level == "read_committed" else TaskMember
    member = kind(
        options.bootstrap,
        options.group,
        TaskOptions(
            subtopologies=subtopologies,
            standbys=options.standbys,
            acceptable_lag=options.acceptable_lag,
            max_warmups=options.max_warmups,
            host=options.application_server,
        ),
        gaps=upkeep.gaps,
        process_id=upkeep.process_id,
        **member_settings(options),
    )
    upkeep.join(member)
    return member
