"""The group member of a stateful pipeline: it runs tasks, and reports how far behind its copies are."""

from __future__ import annotations

from roster.client import TaskMember
from roster.member.task_options import TaskOptions
from roster.model.topology import Subtopology
from roster.spark.member_protocol import StableEndsMember
from roster.spark.options import Options
from roster.spark.state.upkeep import Upkeep


class StableEndsTaskMember(StableEndsMember, TaskMember):
    """`TaskMember` for `read_committed`."""


def task_member(options: Options, store: str, upkeep: Upkeep) -> TaskMember:
    """Make the member for a pipeline's options, and join the copies to it; it works out their gaps when it starts.

    Raises OptionError for a value that cannot work.
    """
    (topic,) = options.topics  # type: ignore[misc]
    kind = StableEndsTaskMember if options.isolation_level == "read_committed" else TaskMember
    member = kind(
        options.bootstrap,
        options.group,
        TaskOptions(
            subtopologies=[Subtopology(0, (topic,), (store,))],
            standbys=options.standbys,
            acceptable_lag=options.acceptable_lag,
            max_warmups=options.max_warmups,
        ),
        gaps=upkeep.gaps,
        process_id=upkeep.process_id,
        session_timeout_ms=options.session_timeout_ms,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        rebalance_timeout_ms=options.rebalance_timeout_ms,
        request_timeout_ms=options.request_timeout_ms,
        metadata_max_age_ms=options.metadata_max_age_ms,
        client_id=options.client_id or "roster",
        group_instance_id=options.group_instance_id,
        rack_id=options.rack_id,
        capacity=options.capacity or 1,
        security=options.security,
        auto_offset_reset="latest" if options.starting_offsets == "latest" else "earliest",
    )
    upkeep.join(member)
    return member
