"""Protocol version of a task group: Kafka Streams' version probing, as pure functions.

A member joins with the highest version it speaks. The leader answers everyone in the lowest version anyone joined with
and names the highest that all of them speak; a subscription too new for the leader to read counts with the two versions
in front of it, which never move. Who reads a version below its own, or a commonly supported one above it, joins again
with the commonly supported one. So a group is upgraded member by member in any order, and goes up by itself when the
last old member is gone. v1 and v2 do not say what their sender speaks, so members beside them start with that version
(`first_version`) and are restarted once more when no member is limited to it. Source: KIP-268.

In Kafka an answer that is an error has the leader's highest version whatever the members speak; here `error_answers`
are in versions they can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roster.wire.errors import WireError
from roster.wire.streams.assignment_info import AssignmentInfo
from roster.wire.streams.subscription_info import LATEST_VERSION, SubscriptionInfo

EARLIEST_PROBED = 3
"""The first version that says what its sender speaks."""
EARLIEST_WITH_ERRORS = 4


class MixedVersions(ValueError):  # noqa: N818 (what is wrong with the group)
    """A member too new for the leader beside one of v1 or v2, in which an answer cannot say what to join with."""


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


def first_version(latest: int = LATEST_VERSION, *, group_speaks: int | None = None) -> int:
    """Return the version a newly started member joins with.

    group_speaks: 1 or 2 while members are in the group that speak no more than that, and until they all have been
    restarted; later versions need not be named. Raises ValueError for a version there is not.
    """
    if group_speaks is None:
        return latest
    if not 1 <= group_speaks <= latest:
        raise ValueError(f"group_speaks is {group_speaks}; it must be from 1 to {latest}, or None from version 3 on")
    return group_speaks if group_speaks < EARLIEST_PROBED else latest


def settle_versions(subscriptions: Mapping[str, SubscriptionInfo], latest: int = LATEST_VERSION) -> GroupVersions:
    """Choose, as leader, the version of the group's next assignment. Raises MixedVersions.

    subscriptions: by member id, the leader's own among them. latest: the highest version the leader speaks.
    """
    version = min((info.version for info in subscriptions.values()), default=latest)
    commonly = min((info.latest_supported for info in subscriptions.values()), default=latest)
    version, commonly = min(version, latest), min(commonly, latest)
    future = frozenset(member for member, info in subscriptions.items() if info.version > latest)
    if future and version < EARLIEST_PROBED:
        raise MixedVersions(
            f"{min(future)} joined with version {subscriptions[min(future)].version}, the leader speaks up to {latest}"
            f" and others version {version}, beside which none is probed: start new members with group_speaks={version}"
        )
    rejoining = frozenset(
        member
        for member, info in subscriptions.items()
        if version >= EARLIEST_PROBED and (info.version > version or info.version < commonly)
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
    if answer.version < EARLIEST_PROBED:
        return None
    if commonly < answer.version:
        raise WireError(f"{where}: commonly_supported: {commonly} is below the version in use")
    return commonly if commonly > used or answer.version < used else None


def error_answers(
    subscriptions: Mapping[str, SubscriptionInfo], error: int, latest: int = LATEST_VERSION
) -> dict[str, AssignmentInfo]:
    """By member id an empty assignment with the error, in the version and layout it joined with, as far as we write it.

    Below v4 there is no place for an error: such members are just given nothing.
    """
    commonly = min((info.latest_supported for info in subscriptions.values()), default=latest)
    answers = {}
    for member, info in subscriptions.items():
        version = min(info.version, latest)
        told = error if version >= EARLIEST_WITH_ERRORS else 0
        answers[member] = AssignmentInfo(
            version=version,
            commonly_supported=max(min(commonly, latest), version),
            error=told,
            layout=info.layout,
        )
    return answers
