"""Protocol version of a task group: Kafka Streams' version probing, as pure functions.

A member joins with the highest version it speaks. The leader answers everyone in the lowest version anyone joined with
and names the highest that all of them speak; a subscription too new for the leader to read counts with the two versions
in front of it, which never move. Who reads a version below its own, or a commonly supported one above it, joins again
with the commonly supported one. So a group is upgraded member by member in any order, and goes up by itself when the
last old member is gone. Source: KIP-268.

In Kafka an answer that is an error has the leader's highest version whatever the members speak; here `error_answers`
are in versions they can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roster.wire.errors import WireError
from roster.wire.streams.assignment_info import AssignmentInfo
from roster.wire.streams.subscription_info import LATEST_VERSION, SubscriptionInfo


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """Versions the leader chose: for every `AssignmentInfo` of this round, `version` and `commonly_supported`.

    future: members whose subscription only said its versions; their tasks are not known, and as they join again at once
    they are best given none. rejoining: all members who will join again at once, these included.
    """

    version: int
    commonly_supported: int
    future: frozenset[str]
    rejoining: frozenset[str]


def settle_versions(subscriptions: Mapping[str, SubscriptionInfo], latest: int = LATEST_VERSION) -> GroupVersions:
    """Choose, as leader, the version of the group's next assignment.

    subscriptions: by member id, the leader's own among them. latest: the highest version the leader speaks.
    """
    version = min([latest, *(info.version for info in subscriptions.values())])
    commonly = min([latest, *(info.latest_supported for info in subscriptions.values())])
    future = frozenset(member for member, info in subscriptions.items() if info.version > latest)
    rejoining = frozenset(
        member for member, info in subscriptions.items() if info.version > version or info.version < commonly
    )
    return GroupVersions(version, commonly, future, rejoining)


def version_to_rejoin(answer: AssignmentInfo, used: int, latest: int = LATEST_VERSION) -> int | None:
    """The member's side: the version to join again with, at once; None to stay and keep the one it `used`.

    An answer with an error settles nothing. Raises WireError for versions that no sound leader sends.
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
    """By member id an empty assignment with the error, in the version it joined with, or the highest that we write."""
    commonly = min((info.latest_supported for info in subscriptions.values()), default=latest)
    answers = {}
    for member, info in subscriptions.items():
        version = min(info.version, latest)
        answers[member] = AssignmentInfo(
            version=version, commonly_supported=max(min(commonly, latest), version), error=error
        )
    return answers
