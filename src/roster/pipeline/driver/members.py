"""The group member of a pipeline, made of its options."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from roster.client import Admin, ClientError, GroupMember
from roster.client.live_group import members_of
from roster.member.options import MemberSettings
from roster.model import TopicPartition
from roster.model.options import values
from roster.pipeline.options import Options


def group_member(options: Options) -> GroupMember:
    """Make the member for a pipeline's options. Raises OptionError for a value that cannot work."""
    kind = StableEndsMember if options.isolation_level == "read_committed" else GroupMember
    return kind(
        options.bootstrap, options.group, options.topics, assignors=options.assignors, **member_settings(options)
    )


def is_alone(options: Options) -> bool:
    """Return True if the group has no members, False if that is unknown."""
    try:
        with Admin(options.bootstrap, request_timeout_ms=2_000, security=options.security) as admin:
            return not members_of(admin, options.group)
    except ClientError:
        return False


def member_settings(options: Options) -> dict[str, Any]:
    """Return the arguments that every kind of member takes from a pipeline's options."""
    return values(MemberSettings, options.settings) | {
        "client_id": options.settings.client_id or "roster",
        "capacity": options.capacity or 1,
        "security": options.security,
        "auto_offset_reset": "latest" if options.start == "latest" else "earliest",
    }


class StableEndsMember(GroupMember):
    """Member for `read_committed`: log ends are last stable offsets, so that no range waits for a transaction."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition. Raises ClientError if a broker does not answer."""
        return self.stable_offsets(partitions)
