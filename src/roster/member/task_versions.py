"""Protocol version of a task group: Kafka Streams' version probing, as pure functions.

A member joins with the highest version it supports. The leader answers all members in the lowest version that any of
them joined with, and names the highest version that all of them support. If a subscription is too new for the leader,
it reads only the two version numbers at its beginning, whose place never changes. A member that receives a version
below its own, or a commonly supported version above it, rejoins with the commonly supported version. So members can be
upgraded one by one in any order, and the group uses the new version when the last old member is gone. Source: KIP-268.

Kafka sends an error in the leader's highest version, whatever the members support. Here `error_answers` are in versions
that they can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roster.wire.errors import WireError
from roster.wire.streams.assignment_info import AssignmentInfo
from roster.wire.streams.subscription_info import LATEST_VERSION, SubscriptionInfo


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """The leader's choice for every `AssignmentInfo` of this round: `version` and `commonly_supported`.

    future: members of whose subscription only the versions could be read. Their tasks are not known, and they get none,
    since they rejoin at once. rejoining: all members that rejoin at once, including these.
    """

    version: int
    commonly_supported: int
    future: frozenset[str]
    rejoining: frozenset[str]


def settle_versions(subscriptions: Mapping[str, SubscriptionInfo], latest: int = LATEST_VERSION) -> GroupVersions:
    """Choose the version of the group's next assignment, as its leader.

    subscriptions: by member id, including the leader's own. latest: the highest version that the leader supports.
    """
    version = min([latest, *(info.version for info in subscriptions.values())])
    commonly = min([latest, *(info.latest_supported for info in subscriptions.values())])
    future = frozenset(member for member, info in subscriptions.items() if info.version > latest)
    rejoining = frozenset(
        member for member, info in subscriptions.items() if info.version > version or info.version < commonly
    )
    return GroupVersions(version, commonly, future, rejoining)


def version_to_rejoin(answer: AssignmentInfo, used: int, latest: int = LATEST_VERSION) -> int | None:
    """Return the version with which a member rejoins at once, or None to stay with the version it `used`.

    An answer with an error does not change the version. Raises WireError for invalid versions.
    """
    where = f"AssignmentInfo v{answer.version}"
    if answer.version > used:
        raise WireError(f"{where}: version: above the {used} this member joined with")
    if answer.error:
        return None
    commonly = answer.commonly_supported
    if commonly > latest:
        raise WireError(f"{where}: commonly_supported: {commonly} is above the {latest} this member speaks")
    if commonly < answer.version:
        raise WireError(f"{where}: commonly_supported: {commonly} is below the version in use")
    return commonly if commonly > used or answer.version < used else None


def error_answers(
    subscriptions: Mapping[str, SubscriptionInfo], error: int, latest: int = LATEST_VERSION
) -> dict[str, AssignmentInfo]:
    """Return {member id: an empty assignment with the error}, in the member's version, at most `latest`."""
    commonly = min((info.latest_supported for info in subscriptions.values()), default=latest)
    answers = {}
    for member, info in subscriptions.items():
        version = min(info.version, latest)
        answers[member] = AssignmentInfo(
            version=version, commonly_supported=max(min(commonly, latest), version), error=error
        )
    return answers
