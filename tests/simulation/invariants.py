"""What must hold after every event, each as a function named after its sentence; it raises BrokenInvariant.

The functions judge what was seen from outside: bytes on connections, the synced part of the log, what applications
hold. Only the checks of states, of sessions and of phases look at the coordinator's group, before and after a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from roster.coordinator.group import Group
from roster.coordinator.states import GroupState
from roster.model import TopicPartition
from roster.wire import ErrorCode
from tests.simulation.disk import Durable
from tests.simulation.errors import broken
from tests.simulation.setting import Application

SLACK_MS = 1_500
"""Time that a coordinator may take beyond a timeout, for its disk."""

Assigned = Mapping[str, frozenset[TopicPartition]]


# -- ownership -------------------------------------------------------------------------------------------------------


def one_owner_per_partition_and_generation(
    generation: int, member: str, mine: frozenset[TopicPartition], others: Assigned
) -> None:
    """No partition is in the assignments of two members of one generation."""
    for other, theirs in others.items():
        if other != member and mine & theirs:
            broken(
                "one owner per partition and generation",
                f"generation {generation} gives {shown(mine & theirs)} to {other} and to {member}",
            )


def ownership_is_disjoint_at_every_instant(
    one: Application,
    other: Application,
    since: Callable[[Application], int],
    takes_part: Callable[[Application, int], bool],
) -> None:
    """Two applications hold one partition only if the group has put the older holder out in between."""
    both = one.held & other.held
    if not both or same_instance(one, other):
        return
    old, new = sorted((one, other), key=since)
    first, last = since(old) + 1, since(new)
    if first > last or all(takes_part(old, number) for number in range(first, last + 1)):
        broken(
            "ownership is disjoint at every instant",
            f"{shown(both)} is held by {old.name} since generation {since(old)} and by {new.name} since generation "
            f"{since(new)}; both are members",
        )


def a_moved_partition_is_unowned_for_one_round(
    generation: int, claims: Assigned, assigned: Assigned, instances: Mapping[str, str | None]
) -> None:
    """A cooperative leader gives no partition to a member while another one still claims it."""
    claimants: dict[TopicPartition, list[str]] = {}
    for member, partitions in claims.items():
        for partition in partitions:
            claimants.setdefault(partition, []).append(member)
    for member, partitions in assigned.items():
        for partition in partitions:
            holders = claimants.get(partition, [])
            if len(holders) == 1 and holders[0] != member and holders[0] in assigned and member in instances:
                broken(
                    "a moved partition is unowned for one round",
                    f"generation {generation} gives {partition} to {member} while {holders[0]} still owns it",
                )


def an_assignment_has_only_partitions_that_exist(
    member: str, mine: Iterable[TopicPartition], most: Mapping[str, int]
) -> None:
    """An assignment names only partitions that exist, or did."""
    odd = [partition for partition in mine if not 0 <= partition.partition < most.get(partition.topic, 0)]
    if odd:
        broken("an assignment has only partitions that exist", f"{member} is assigned {shown(odd)}")


# -- commits ---------------------------------------------------------------------------------------------------------


def no_commit_is_accepted_from_a_wrong_generation(sent: int, current: int) -> None:
    """A commit counts only in the present generation."""
    if sent != current:
        broken(
            "no commit is accepted from a wrong generation",
            f"a commit of generation {sent} was accepted in generation {current}",
        )


def no_commit_is_accepted_from_an_expired_member(member: str, members: Collection[str]) -> None:
    """A commit counts only from a member of the group."""
    if member not in members:
        broken("no commit is accepted from an expired member", f"{member!r} is not in {sorted(members)}")


def no_commit_is_accepted_from_a_fenced_instance(member: str, instance: str | None, holder: str | None) -> None:
    """A commit of a static member counts only from the one that joined last under its instance id."""
    if instance is not None and holder is not None and holder != member:
        broken(
            "no commit is accepted from a fenced instance",
            f"{member} committed as {instance}, which {holder} has taken over",
        )


def no_commit_is_accepted_while_the_group_syncs(state: GroupState) -> None:
    """A commit between the end of the join phase and the assignment may be of a partition's former owner."""
    if state is GroupState.COMPLETING:
        broken("no commit is accepted while the group syncs", "a commit was accepted in CompletingRebalance")


def a_commit_is_of_a_partition_that_the_member_owns(
    member: str, partitions: Iterable[TopicPartition], assigned: Assigned
) -> None:
    """A member commits no partition that its generation gave to another one."""
    for other, theirs in assigned.items():
        if other != member:
            for partition in partitions:
                if partition in theirs:
                    broken(
                        "a commit is of a partition that the member owns",
                        f"{member} committed {partition}, which its generation gave to {other}",
                    )


def an_acknowledged_commit_is_durable(
    partition: TopicPartition, offset: int, durable: Mapping[TopicPartition, int]
) -> None:
    """The response to a commit waits for the disk, and a commit that an application takes for done is written."""
    stored = durable.get(partition, -1)
    if stored < offset:
        broken(
            "an acknowledged commit is durable",
            f"{partition} was acknowledged at {offset}, the disk has {stored if stored >= 0 else 'nothing'}",
        )


def an_acknowledged_commit_survives_everything(partition: TopicPartition, offset: int, found: int | None) -> None:
    """What was acknowledged is there after every crash and move."""
    if found is None or found < offset:
        broken(
            "an acknowledged commit survives everything",
            f"{partition} was acknowledged at {offset}, the coordinator has {found}",
        )


def a_commit_never_goes_back(partition: TopicPartition, offset: int, before: int) -> None:
    """Owners of a partition begin where the last commit of the one before ended."""
    if offset < before:
        broken("a commit never goes back", f"{partition} went from {before} back to {offset}")


def only_durable_offsets_are_read(partition: TopicPartition, read: int, durable: Mapping[TopicPartition, int]) -> None:
    """OffsetFetch returns nothing that a crash could take back."""
    if read > durable.get(partition, -1):
        broken(
            "only durable offsets are read",
            f"{partition} was read at {read}, the disk has {durable.get(partition, 'nothing')}",
        )


# -- generations -----------------------------------------------------------------------------------------------------


def the_generation_only_rises(generation: int, highest: int) -> None:
    """No JoinGroup is answered with a generation below one that was announced before, by whatever coordinator."""
    if generation < highest:
        broken("the generation only rises", f"generation {generation} is announced after {highest}")


def a_generation_is_stored_before_it_is_announced(generation: int, durable: Durable) -> None:
    """A coordinator that takes over knows every generation that members know."""
    if durable.generation < generation:
        broken(
            "a generation is stored before it is announced",
            f"generation {generation} is announced, the disk has {durable.generation}",
        )


def an_assignment_is_stored_before_it_is_handed_out(
    generation: int, member: str, assignment: bytes, durable: Durable
) -> None:
    """A coordinator that takes over answers a repeated SyncGroup with the same bytes."""
    stored = durable.assignments.get((generation, member))
    if stored != assignment and assignment:
        broken(
            "an assignment is stored before it is handed out",
            f"{member} was handed its assignment of generation {generation}, the disk has "
            f"{'none' if not stored else 'another one'}",
        )


def all_have_one_leader_and_protocol(generation: int, mine: tuple[str, str], others: tuple[str, str]) -> None:
    """Every member of a generation is given the same protocol and leader."""
    if mine != others:
        broken(
            "all members of a generation have one leader and protocol",
            f"generation {generation} is announced with {mine[0]} led by {mine[1]}, before with {others[0]} led by "
            f"{others[1]}",
        )


def the_leader_is_a_member(generation: int, leader: str, members: Collection[str]) -> None:
    """The leader that is announced is in the list of members."""
    if leader not in members:
        broken("the leader is a member", f"generation {generation}: {leader} is not in {sorted(members)}")


def a_member_keeps_its_identity(asked: str, given: str) -> None:
    """A member that joins again with its id is answered with that id."""
    if asked and asked != given:
        broken("a member keeps its identity", f"{asked} joined and was answered as {given}")


# -- states, sessions and phases -------------------------------------------------------------------------------------

LEGAL = {
    GroupState.EMPTY: {GroupState.PREPARING},
    GroupState.PREPARING: {GroupState.COMPLETING, GroupState.EMPTY},
    GroupState.COMPLETING: {GroupState.STABLE, GroupState.PREPARING, GroupState.EMPTY},
    GroupState.STABLE: {GroupState.PREPARING, GroupState.EMPTY},
    GroupState.DEAD: {GroupState.EMPTY},
}
"""What a state may change to within one step; a join phase may end in the step in which its last member leaves."""


def only_legal_transitions(before: GroupState, after: GroupState, event: str) -> None:
    """A group changes its state only as the protocol has it."""
    if after is not before and after is not GroupState.DEAD and after not in LEGAL[before]:
        broken("only legal transitions", f"{event} took the group from {before.value} to {after.value}")


def a_state_has_what_it_needs(group: Group) -> None:
    """No request waits for an event that the state of the group cannot bring."""
    members = group.members.values()
    syncing = False
    for member in members:
        if member.parked_sync is not None:
            syncing = True
            break
    match group.state:
        case GroupState.EMPTY if group.members:
            broken("a state has what it needs", f"an empty group has {len(group.members)} members")
        case GroupState.COMPLETING if any(member.parked_join is not None for member in members):
            broken("a state has what it needs", "a JoinGroup is parked in CompletingRebalance")
        case GroupState.STABLE | GroupState.PREPARING if syncing:
            broken("a state has what it needs", f"a SyncGroup is parked in {group.state.value}")
        case GroupState.STABLE if not group.members:
            broken("a state has what it needs", "a stable group has no members")


def a_rebalance_ends_in_time(state: GroupState, now: int, deadline: int) -> None:
    """A phase lasts no longer than the longest rebalance timeout, and the session of a missing static member."""
    if now > deadline:
        broken("a rebalance ends in time", f"the group is in {state.value} {now - deadline} ms too long")


def nobody_is_expelled_early(member: str, now: int, alive: int, session: int) -> None:
    """A session lasts at least its timeout after the last sign of life."""
    if now - alive < session:
        broken(
            "nobody is expelled early",
            f"{member} is expelled {now - alive} ms after its last sign of life, its session timeout is {session}",
        )


def nobody_is_expelled_without_cause(member: str, event: str) -> None:
    """A member goes by a timeout, because it leaves, or because it does not join again in time."""
    broken("nobody is expelled without cause", f"{member} is gone after {event}")


def a_silent_member_is_expelled_in_time(member: str, now: int, contact: int, session: int) -> None:
    """A session ends at its timeout."""
    if now - contact > session + SLACK_MS:
        broken(
            "a silent member is expelled in time",
            f"{member} is a member {now - contact} ms after it was last in contact, its session timeout is {session}",
        )


def one_live_member_per_instance_id(instance: str, member: str, holder: str, request: str) -> None:
    """Once a process has joined under an instance id, the one before is answered no more but with errors."""
    if member != holder:
        broken(
            "one live member per instance id",
            f"{request} of {member} is answered without an error after {holder} took over {instance}",
        )


def every_request_is_answered_once(token: int, *, answered: bool) -> None:
    """No request has two responses."""
    if not answered:
        broken("every request is answered once", f"request {token} has a second response, or none was asked")


def no_member_fails_without_cause(process: Application, *, shared: bool) -> None:
    """A member gives up only if another process took over its instance id."""
    failure = process.member.failure
    if failure is not None and not (process.fenced and shared) and failure.code is not ErrorCode.NONE:
        broken("no member fails without cause", f"{process.name}: {failure.message}")


# -- helpers ---------------------------------------------------------------------------------------------------------


def same_instance(one: Application, other: Application) -> bool:
    """Return True for two processes with one instance id: the older is fenced, and learns of it later."""
    instance = one.config.group_instance_id
    return instance is not None and instance == other.config.group_instance_id


def shown(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as text, in order."""
    return ", ".join(str(partition) for partition in sorted(partitions))
