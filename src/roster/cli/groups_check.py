"""`roster groups check`: members whose subscriptions make rebalances worse than they need be."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from roster.assignors import ASSIGNORS, ClaimSource
from roster.cli.admin import admin
from roster.cli.errors import FAILED
from roster.cli.options import NAME, bootstrap_option, json_option
from roster.cli.output import print_json, print_table
from roster.client import UnknownGroupError
from roster.model import NO_GENERATION
from roster.wire import WireError
from roster.wire.consumer.lag_user_data import split_lag_user_data
from roster.wire.consumer.messages import Subscription, decode_assignment, decode_subscription, flat, version_of
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import decode_cooperative_user_data, decode_sticky_user_data, without_stray_prefix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from roster.client import Admin, GroupDescription, MemberDescription

_VERSION = b"\x00\x00"
_NULL = b"\xff\xff\xff\xff"
"""Around a list of partitions these two make an Assignment."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a group or, unless `member` is None, with one of its members."""

    group: str
    member: str | None
    client: str | None
    problem: str


@dataclass(frozen=True, slots=True)
class Dated:
    """Whether a member claims partitions, the generation it says they are of, or why that cannot be read."""

    claims: bool = False
    generation: int = NO_GENERATION
    unreadable: str = ""


def check_group(description: GroupDescription, topics: Collection[str]) -> list[Finding]:
    """What can be said of a group from what its members joined with; `topics` are all that exist."""
    group = description.group_id
    found: list[Finding] = []

    def tell(member: MemberDescription | None, problem: str) -> None:
        member_id, client = (None, None) if member is None else (member.member_id, member.client_id)
        found.append(Finding(group, member_id, client, problem))

    if description.group_type == "consumer":  # the broker assigns: members send no claims that could be wrong
        return found
    if description.state != "Stable":
        if description.members:
            tell(None, f"is {description.state}: what its members joined with is not to be seen; ask again")
        return found
    read: dict[str, Subscription] = {}
    versions: dict[int, list[str]] = {}
    for member in description.members:
        try:
            read[member.member_id] = decode_subscription(member.metadata)
            versions.setdefault(version_of(member.metadata), []).append(member.client_id)
        except WireError as error:
            tell(member, f"its subscription cannot be read, so it is given nothing: {error}")
    if len(versions) > 1:
        spoken = "; ".join(f"v{version}: {', '.join(sorted(set(versions[version])))}" for version in sorted(versions))
        tell(None, f"mixes versions of the subscription, and what the older lack is lost: {spoken}")
    dated = {member: _dated(description.protocol, subscription) for member, subscription in read.items()}
    newest = max((each.generation for each in dated.values()), default=NO_GENERATION)
    for member in description.members:
        if member.member_id not in read:
            continue
        for problem in _about_generation(dated[member.member_id], newest, description.protocol):
            tell(member, problem)
        missing = sorted(set(read[member.member_id].topics) - set(topics))
        if missing:
            tell(member, f"subscribes to topics that do not exist: {', '.join(missing)}")
    return found


def _dated(protocol: str, subscription: Subscription) -> Dated:
    """Claims as the group's assignor would read them; one that nobody here knows may read the fields."""
    assignor = ASSIGNORS.get(protocol)
    source = ClaimSource.FIELDS if assignor is None else assignor.claim_source
    (user_data,), _, _ = split_lag_user_data([subscription.user_data])
    if source is ClaimSource.NONE:
        return Dated()
    if source is ClaimSource.STICKY_USER_DATA:
        if not user_data:
            return Dated()
        if without_stray_prefix(user_data) != user_data:
            return Dated(unreadable="has two bytes too many in front, as kafka-python sends it")
        if not _is_listing(user_data):
            return Dated(unreadable="is no list of partitions")
        _, generation = decode_sticky_user_data([user_data], TopicIndex([]))
        return Dated(claims=True, generation=int(generation[0]))
    generation_id = subscription.generation_id
    if generation_id == NO_GENERATION and assignor is not None:
        generation_id = int(decode_cooperative_user_data([user_data])[0])
    return Dated(claims=bool(flat(subscription.owned_partitions)), generation=generation_id)


def _is_listing(user_data: bytes) -> bool:
    """Whether this is the sticky assignor's list of partitions, with a generation behind it (V1) or without (V0)."""
    for listing in (user_data[:-4], user_data):
        try:
            decode_assignment(_VERSION + listing + _NULL)
        except WireError:
            continue
        return True
    return False


def _about_generation(dated: Dated, newest: int, protocol: str) -> list[str]:
    if dated.unreadable:
        return [f"its {protocol} user data {dated.unreadable}: other clients take it to own nothing"]
    if not dated.claims:
        return []
    if dated.generation == NO_GENERATION:
        return ["claims partitions and says no generation: any dated claim beats it, and two such cancel out"]
    if dated.generation < newest:
        return [f"claims partitions as of generation {dated.generation}, others as of {newest}: it missed a rebalance"]
    return []


def _descriptions(cluster: Admin, group: str | None) -> Iterator[GroupDescription]:
    """The group named, or all groups of consumers; one that vanishes in between is passed over."""
    if group is not None:
        yield cluster.describe_group(group)
        return
    for listed in cluster.list_groups():
        if listed.protocol_type == "consumer":
            with contextlib.suppress(UnknownGroupError):
                yield cluster.describe_group(listed.group_id)


@click.command()
@click.option("--group", "-g", type=NAME, help="Only this one.")
@json_option
@bootstrap_option
def check(group: str | None, as_json: bool, bootstrap: str) -> int:
    """Members whose subscriptions make rebalances worse; exit code 1 if there are any.

    Looks for claims of no generation or an old one, subscriptions that cannot be read, mixed versions of them, and
    topics that do not exist.

    What is seen is what each member last joined with. With range and roundrobin claims do not matter.
    """
    with admin(bootstrap) as cluster:
        topics = cluster.list_topics(internal=True)
        found = [finding for each in _descriptions(cluster, group) for finding in check_group(each, topics)]
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        rows = [(each.group, each.client, each.member, each.problem) for each in found]
        print_table(
            ("group", "client", "member", "problem"), rows, "nothing found", shorten=("group", "client", "member")
        )
    return FAILED if found else 0
