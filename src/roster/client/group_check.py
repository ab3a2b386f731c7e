"""Find subscriptions that make a group's rebalances worse than necessary."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from roster.assignors import ASSIGNORS, ClaimSource
from roster.client.types import GroupDescription, MemberDescription
from roster.model import NO_GENERATION
from roster.wire import WireError
from roster.wire.consumer import CONSUMER
from roster.wire.consumer.lag_user_data import split_lag_user_data
from roster.wire.consumer.messages import Subscription, decode_subscription, flat, version_of
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import (
    decode_cooperative_user_data,
    decode_sticky_user_data,
    is_sticky_user_data,
    without_stray_prefix,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a group or, unless `member` is None, of one of its members; `client` is the member's client id."""

    group: str
    member: str | None
    client: str | None
    problem: str


@dataclass(frozen=True, slots=True)
class _Claims:
    """Claims of a member: whether there are any, their generation, or why they cannot be read."""

    claims: bool = False
    generation: int = NO_GENERATION
    unreadable: str = ""


def check_group(group: GroupDescription, topics: Collection[str]) -> list[Finding]:
    """Check what the members of a group last joined with.

    Finds claims without a generation or of an old one, subscriptions that cannot be read, mixed versions of the
    subscription, and topics that do not exist. A group of KIP-848, whose members send no claims, has no findings.

    Args:
        group: the description; subscriptions are visible only while the group is Stable.
        topics: every topic of the cluster, internal ones too.

    """
    if group.group_type == CONSUMER:
        return []
    if group.state != "Stable":
        unseen = f"is {group.state}: subscriptions are visible only while the group is Stable; try again"
        return [Finding(group.group_id, None, None, unseen)] if group.members else []
    readable, found = _read(group)
    found += _check_versions(group, readable)
    claims = {member: _claims(group.protocol, subscription) for member, subscription in readable.items()}
    newest = max((each.generation for each in claims.values()), default=NO_GENERATION)
    for member in group.members:
        if member.member_id in readable:
            problems = _check_claims(claims[member.member_id], newest, group.protocol)
            problems += _check_topics(readable[member.member_id], topics)
            found += [_finding(group, member, problem) for problem in problems]
    return found


def _finding(group: GroupDescription, member: MemberDescription, problem: str) -> Finding:
    return Finding(group.group_id, member.member_id, member.client_id, problem)


def _read(group: GroupDescription) -> tuple[dict[str, Subscription], list[Finding]]:
    """Decode the subscriptions by member id, and report those that cannot be."""
    readable: dict[str, Subscription] = {}
    found = []
    for member in group.members:
        try:
            readable[member.member_id] = decode_subscription(member.metadata)
        except WireError as error:
            problem = f"its subscription cannot be read, so it is assigned nothing: {error}"
            found.append(_finding(group, member, problem))
    return readable, found


def _check_versions(group: GroupDescription, readable: Collection[str]) -> list[Finding]:
    versions: dict[int, set[str]] = {}
    for member in group.members:
        if member.member_id in readable:
            versions.setdefault(version_of(member.metadata), set()).add(member.client_id)
    if len(versions) < 2:
        return []
    listed = "; ".join(f"v{version}: {', '.join(sorted(versions[version]))}" for version in sorted(versions))
    problem = f"mixes versions of the subscription, and what the older lack is lost: {listed}"
    return [Finding(group.group_id, None, None, problem)]


def _claims(protocol: str, subscription: Subscription) -> _Claims:
    """Read claims as the group's assignor does; an assignor that Roster lacks may read the subscription's fields."""
    assignor = ASSIGNORS.get(protocol)
    source = ClaimSource.FIELDS if assignor is None else assignor.claim_source
    (user_data,), _, _ = split_lag_user_data([subscription.user_data])
    if source is ClaimSource.NONE:
        return _Claims()
    if source is ClaimSource.STICKY_USER_DATA:
        return _sticky_claims(user_data) if user_data else _Claims()
    generation = subscription.generation_id
    if generation == NO_GENERATION and source is ClaimSource.FIELDS_AND_USER_DATA:
        generation = int(decode_cooperative_user_data([user_data])[0])
    return _Claims(claims=bool(flat(subscription.owned_partitions)), generation=generation)


def _sticky_claims(user_data: bytes) -> _Claims:
    if without_stray_prefix(user_data) != user_data:
        return _Claims(unreadable="has two bytes too many in front, as kafka-python sends it")
    if not is_sticky_user_data(user_data):
        return _Claims(unreadable="is no list of partitions")
    _, generation = decode_sticky_user_data([user_data], TopicIndex([]))
    return _Claims(claims=True, generation=int(generation[0]))


def _check_claims(claims: _Claims, newest: int, protocol: str) -> list[str]:
    if claims.unreadable:
        return [f"its {protocol} user data {claims.unreadable}: other clients take it to own nothing"]
    if not claims.claims:
        return []
    if claims.generation == NO_GENERATION:
        return ["claims partitions without a generation: any claim with one beats it, and two such cancel out"]
    if claims.generation < newest:
        return [f"claims partitions as of generation {claims.generation}, others as of {newest}: it missed a rebalance"]
    return []


def _check_topics(subscription: Subscription, topics: Collection[str]) -> list[str]:
    missing = sorted(set(subscription.topics) - set(topics))
    return [f"subscribes to topics that do not exist: {', '.join(missing)}"] if missing else []
