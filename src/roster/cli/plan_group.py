"""A live group as a problem for any assignor: who is in it, what each member has now, and how far behind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from roster.assignors.certificate import verify
from roster.assignors.claims import settle_claims
from roster.assignors.lag import with_offsets
from roster.cli.errors import Failure, UserError
from roster.cli.output import print_json, print_table
from roster.cli.plan_output import as_json, explain, judge, lag_by_member
from roster.model import MemberInfo, Plan, Problem, TopicPartition
from roster.wire import WireError
from roster.wire.consumer.lag_user_data import split_lag_user_data
from roster.wire.consumer.messages import Subscription, decode_subscription

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roster.assignors import Assignor
    from roster.cli.plan_output import Judged
    from roster.client import Admin, GroupDescription


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """A group at one moment; claims in `problem` are what its members are assigned now."""

    description: GroupDescription
    problem: Problem
    unreadable: tuple[str, ...]


def look_at(cluster: Admin, group: str, *, with_lag: bool, reset: str) -> LiveGroup:
    """Ask the cluster; changes nothing and joins nothing.

    Raises UserError when there is nothing to plan for, Failure when the group is in the middle of a rebalance.
    """
    description = cluster.describe_group(group)
    if description.group_type == "consumer":
        raise UserError(
            f"--group: {group} is a consumer group (KIP-848): its broker assigns partitions ({description.protocol}), "
            "no assignor of a member is asked, so there is nothing to plan"
        )
    if not description.members:
        raise UserError(f"--group: {group} has no members (it is {description.state})")
    if description.protocol_type != "consumer":
        raise UserError(f"--group: {group} is no group of consumers but of {description.protocol_type or 'nobody'}")
    if description.state != "Stable":
        raise Failure(f"group {group} is {description.state}: what its members want is not to be seen; try again")
    members: dict[str, MemberInfo] = {}
    unreadable = []
    for member in description.members:
        try:
            subscription = decode_subscription(member.metadata)
        except WireError:
            subscription = Subscription()
            unreadable.append(member.member_id)
        owned: dict[str, list[int]] = {}
        for topic, number in member.assignment:
            owned.setdefault(topic, []).append(number)
        _, capacity, _ = split_lag_user_data([subscription.user_data])
        members[member.member_id] = MemberInfo(
            subscription.topics, owned, 0, member.instance_id, subscription.rack_id or None, int(capacity[0])
        )
    topics = {topic for member in members.values() for topic in (*member.topics, *member.owned)}
    replicas = cluster.replica_racks(sorted(topics))
    partitions = {topic: len(racks) for topic, racks in replicas.items()}
    problem = Problem.build(members, partitions, replica_racks=replicas)
    if with_lag:
        problem = with_offsets(problem, _offsets(cluster, group, problem), reset)
    return LiveGroup(description, problem, tuple(unreadable))


def _offsets(cluster: Admin, group: str, problem: Problem) -> dict[str, dict[int, tuple[int, int, int | None]]]:
    every = [
        TopicPartition(topic, number)
        for topic, count in zip(problem.topics, problem.counts.tolist(), strict=True)
        for number in range(count)
    ]
    begins, ends = cluster.beginning_offsets(every), cluster.end_offsets(every)
    committed = cluster.group_offsets(group)
    found: dict[str, dict[int, tuple[int, int, int | None]]] = {topic: {} for topic in problem.topics}
    for tp in every:
        position = committed.get(tp)
        found[tp.topic][tp.partition] = (begins[tp], ends[tp], None if position is None else position.offset)
    return found


def compare(live: LiveGroup, assignors: Sequence[Assignor], *, as_document: bool, explained: bool) -> None:
    """Print what each assignor would do with the group now."""
    problem = live.problem
    held = settle_claims(problem).owner_before
    now = Plan.of(problem, held, owner_before=held)
    now_even = verify(problem, now).balanced
    plans = {assignor.name: judge(assignor, problem) for assignor in assignors}
    if as_document:
        print_json(_document(live, now, now_even, plans))
        return
    description = live.description
    click.echo(
        f"{description.group_id}: {len(problem.members)} members, {problem.partition_count} partitions of "
        f"{len(problem.topics)} topics, protocol {description.protocol}; nothing is changed"
    )
    if live.unreadable:
        click.echo(f"their subscriptions cannot be read: {', '.join(live.unreadable)}")
    if explained:
        for name, judged in plans.items():
            click.echo()
            explain(name, judged)
        return
    rows = [
        _row("(now)", now, None, None, now_even),
        *(_row(name, each.plan, each.moved, each.fewest_moves, each.optimal) for name, each in plans.items()),
    ]
    print_table(("assignor", "moved", "at least", "partitions each", "even", "most lag"), rows, "no assignors")
    click.echo()
    _print_members(live, {"now": now} | {name: judged.plan for name, judged in plans.items()})


def _row(name: str, plan: Plan, moved: int | None, fewest: int | None, even: bool) -> tuple[object, ...]:
    loads, lag = plan.loads(), lag_by_member(plan)
    each = f"{loads.min()} to {loads.max()}"
    return (name, moved, fewest, each, "yes" if even else "no", None if lag is None else max(lag.values()))


def _print_members(live: LiveGroup, plans: dict[str, Plan]) -> None:
    """A line for each member: how many partitions it would have, and its lag in brackets."""
    columns = []
    for plan in plans.values():
        lag = lag_by_member(plan)
        loads = plan.loads().tolist()
        if lag is None:
            columns.append(loads)
        else:
            columns.append([f"{n} ({lag[m]})" for n, m in zip(loads, live.problem.members, strict=True)])
    clients = {member.member_id: member.client_id for member in live.description.members}
    rows = [
        (member, clients[member], *(column[i] for column in columns)) for i, member in enumerate(live.problem.members)
    ]
    print_table(("member", "client", *plans), rows, "no members", shorten=("member", "client"))


def _document(live: LiveGroup, now: Plan, now_even: bool, plans: dict[str, Judged]) -> dict[str, Any]:
    loads, lag = now.loads(), lag_by_member(now)
    current: dict[str, Any] = {
        "assignment": now.assignment(),
        "balance": {"min": int(loads.min()), "max": int(loads.max()), "optimal": now_even},
    }
    return {
        "group": live.description.group_id,
        "state": live.description.state,
        "protocol": live.description.protocol,
        "unreadable": list(live.unreadable),
        "now": current if lag is None else {**current, "lag": lag},
        "plans": {name: as_json(judged) for name, judged in plans.items()},
    }
