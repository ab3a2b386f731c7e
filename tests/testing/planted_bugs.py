"""Thirty defects, each as a patch of the product: what the simulator must find.

An entry has a name, the sentences of the invariants that may break first, and the patch. The product has no switch for
any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from roster.coordinator import (
    coordinator,
    group_context,
    offset_commit,
    offset_store,
    rebalance,
    records,
)
from roster.coordinator.events import TimerKind, TimerName
from roster.coordinator.group import Group
from roster.coordinator.group_context import GroupContext
from roster.coordinator_common import PendingWrites, Reply
from roster.member import commit
from roster.member.context import MemberContext
from roster.member.ownership import PartitionOwnership
from roster.member.topic_metadata import TopicMetadata
from roster.model import CancelTimer, Plan
from roster.wire import ErrorCode
from roster.wire.messages import HeartbeatRequest, HeartbeatResponse

Patch = Callable[[pytest.MonkeyPatch], None]

RAISED = "nothing raises"
AT_REST = "a group is at rest once faults stop"
DURABLE = "an acknowledged commit is durable"
DISJOINT = "ownership is disjoint at every instant"
SURVIVES = "an acknowledged commit survives everything"
EARLY = "nobody is expelled early"
NO_CAUSE = "nobody is expelled without cause"
SILENT = "a silent member is expelled in time"
IN_TIME = "a rebalance ends in time"
RISES = "the generation only rises"
NEEDS = "a state has what it needs"
GOES_BACK = "a commit never goes back"
ONE_OWNER = "one owner per partition and generation"
FOREIGN = "a commit is of a partition that the member owns"
STORED_GENERATION = "a generation is stored before it is announced"
STORED_ASSIGNMENT = "an assignment is stored before it is handed out"
ONE_HEAD = "all members of a generation have one leader and protocol"
ANSWERED_ONCE = "every request is answered once"
AT_REST_AGAIN = "a group that one member joins is at rest soon"
IDLE = "no rebalance while idle"
TWO_ROUNDS = "at most two rounds to rest"
WRONG_GENERATION = "no commit is accepted from a wrong generation"
EXPIRED = "no commit is accepted from an expired member"
FENCED = "no commit is accepted from a fenced instance"
SYNCING = "no commit is accepted while the group syncs"
UNOWNED_ROUND = "a moved partition is unowned for one round"
READ = "only durable offsets are read"
LEGAL = "only legal transitions"
ONE_LIVE = "one live member per instance id"
IDENTITY = "a member keeps its identity"
FAILS = "no member fails without cause"


@dataclass(frozen=True)
class PlantedBug:
    """A defect: `seed` is one that finds it, `breaks` the sentences of which one breaks there or in any other seed."""

    name: str
    breaks: tuple[str, ...]
    seed: int
    patch: Patch
    transactional: bool = True
    """False for a seed that finds it in a run without transactions."""


def wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Patch:
    """Replace a function or method by what `wrap` makes of it."""
    return lambda patch: patch.setattr(owner, name, wrap(getattr(owner, name)))


def instead(owner: Any, name: str, value: Any) -> Patch:
    """Replace a function or method."""
    return lambda patch: patch.setattr(owner, name, value)


def overlooked(error: ErrorCode) -> Patch:
    """Have OffsetCommit overlook one reason to refuse."""

    def wrap(validate: Any) -> Any:
        def overlooking(*arguments: Any) -> ErrorCode:
            found: ErrorCode = validate(*arguments)
            return ErrorCode.NONE if found is error and arguments[1] is not None else found

        return overlooking

    return wrapped(offset_commit, "validate", wrap)


# -- commits -----------------------------------------------------------------------------------------------------------


def reply_before_fsync(patch: pytest.MonkeyPatch) -> None:
    write = offset_store.write_offsets

    def early(ctx: Any, offsets: Any, then: Any, *more: Any) -> None:
        write(ctx, offsets, lambda _: None, *more)
        then(ErrorCode.NONE)

    patch.setattr(offset_commit, "write_offsets", early)


def visible_before_durable(patch: pytest.MonkeyPatch) -> None:
    write = offset_store.write_offsets

    def early(ctx: Any, offsets: Any, then: Any, *more: Any) -> None:
        write(ctx, offsets, then, *more)
        for (topic, partition), committed in offsets.items():
            ctx.group.store_offset(topic, partition, committed)

    patch.setattr(offset_commit, "write_offsets", early)


def failed_write_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    complete = PendingWrites.complete
    patch.setattr(PendingWrites, "complete", lambda self, write, _: complete(self, write, ErrorCode.NONE))


def only_one_offset_of_a_commit_written(patch: pytest.MonkeyPatch) -> None:
    record = records.offset_record
    first: list[str] = []

    def lossy(group: str, topic: str, partition: int, committed: Any) -> Any:
        first.append(topic)
        lost = committed is not None and len(first) % 7 == 0
        return record(group, topic, partition, replace_offset(committed) if lost else committed)

    patch.setattr(records, "offset_record", lossy)


def replace_offset(committed: Any) -> Any:
    return committed._replace(offset=max(committed.offset - 1, 0))


# -- generations -------------------------------------------------------------------------------------------------------


def generation_announced_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    write = GroupContext.write_generation

    def early(self: Any, generation: int, protocol: str, then: Any) -> None:
        write(self, generation, protocol, lambda _: None)
        then(ErrorCode.NONE)

    patch.setattr(GroupContext, "write_generation", early)


def assignment_handed_out_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    write = GroupContext.write_group

    def early(self: Any, then: Any, assignments: Any = None) -> None:
        write(self, then if assignments is None else lambda _: None, assignments)
        if assignments is not None:
            then(ErrorCode.NONE)

    patch.setattr(GroupContext, "write_group", early)


def generation_not_raised_after_reload(patch: pytest.MonkeyPatch) -> None:
    load = records.loaded_group

    def stale(group_id: str, partition: int, value: Any) -> Any:
        return load(group_id, partition, replace(value, generation=max(value.generation - 1, 0)))

    patch.setattr(records, "loaded_group", stale)


def generation_starts_anew_in_an_empty_group(patch: pytest.MonkeyPatch) -> None:
    become_empty = Group.become_empty

    def forgetful(self: Group, wall_ms: int) -> None:
        become_empty(self, wall_ms)
        self.generation = 0

    patch.setattr(Group, "become_empty", forgetful)


def responses_changed(change: Callable[[Any, Any], Any]) -> Patch:
    """Change the JoinGroup responses that announce a generation; `change` gets the member and its response."""

    def wrap(build: Any) -> Any:
        def built(group: Group, member: Any, **options: Any) -> Any:
            return change(member, build(group, member, **options))

        return built

    return wrapped(group_context, "join_response", wrap)


def followers_are_told_another_leader(member: Any, response: Any) -> Any:
    return response if response.members else replace(response, leader=f"not {response.leader}")


def everybody_has_its_own_protocol(member: Any, response: Any) -> Any:
    return replace(response, protocol_name=member.protocols[0][0])


def a_join_is_answered_with_a_new_id(member: Any, response: Any) -> Any:
    return response if response.members else replace(response, member_id=response.member_id + "'")


# -- sessions and phases -----------------------------------------------------------------------------------------------


def wrong_members_timer_cleared(patch: pytest.MonkeyPatch) -> None:
    end = GroupContext.end_session

    def wrong(self: GroupContext, member: Any) -> None:
        other = next((each for each in self.group.members.values() if each is not member), None)
        end(self, member)
        if other is not None:
            name = TimerName(TimerKind.SESSION, self.group.group_id, other.member_id)
            self.rt.timers.append(CancelTimer(name))

    patch.setattr(GroupContext, "end_session", wrong)


def sessions_changed(factor: float) -> Patch:
    """Have sessions last another time than the member asked for."""

    def wrap(renew: Any) -> Any:
        def renewed(self: Any, member: Any, timeout_ms: int | None = None) -> None:
            asked = member.session_timeout_ms if timeout_ms is None else timeout_ms
            renew(self, member, int(asked * factor))

        return renewed

    return wrapped(GroupContext, "renew_session", wrap)


def heartbeats_do_not_count(patch: pytest.MonkeyPatch) -> None:
    def beat(rt: Any, event: Any, request: Any) -> Any:
        alive = GroupContext.renew_session
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(GroupContext, "renew_session", lambda *_: None)
            response = coordinator.heartbeat(rt, event, request)
        assert GroupContext.renew_session is alive
        return response

    patch.setitem(coordinator.REQUEST_HANDLERS, HeartbeatRequest, beat)


def a_heartbeat_hides_a_rebalance(patch: pytest.MonkeyPatch) -> None:
    def beat(rt: Any, event: Any, request: Any) -> Any:
        response = coordinator.heartbeat(rt, event, request)
        if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return HeartbeatResponse(error_code=ErrorCode.NONE)
        return response

    patch.setitem(coordinator.REQUEST_HANDLERS, HeartbeatRequest, beat)


def parked_sync_forgotten_in_a_rebalance(patch: pytest.MonkeyPatch) -> None:
    def forgetful(ctx: Any, error: ErrorCode) -> None:
        for member in list(ctx.group.members.values())[1:]:
            member.assignment = b""
            ctx.propagate_assignment(member, error)

    patch.setattr(rebalance, "reset_assignments", forgetful)


def joins_are_answered_twice(patch: pytest.MonkeyPatch) -> None:
    complete = GroupContext.complete_joins

    def doubled(self: GroupContext) -> None:
        before = len(self.rt.replies)
        complete(self)
        self.rt.replies += [Reply(each.token, each.message) for each in self.rt.replies[before:][-1:]]

    patch.setattr(GroupContext, "complete_joins", doubled)


def join_phase_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "has_all_members_joined", lambda self: self.awaiting_join > 0)


def assignments_lost_in_a_reload(patch: pytest.MonkeyPatch) -> None:
    load = records.loaded_group

    def lossy(group_id: str, partition: int, value: Any) -> Any:
        group = load(group_id, partition, value)
        for member in group.members.values():
            member.assignment = b""
        return group

    patch.setattr(records, "loaded_group", lossy)


def static_fence_forgotten(patch: pytest.MonkeyPatch) -> None:
    def unfenced(self: Group, member: str, _instance: str | None) -> ErrorCode:
        return ErrorCode.NONE if member in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    patch.setattr(Group, "validate_member", unfenced)


# -- members -----------------------------------------------------------------------------------------------------------


def given_without_withholding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plan, "given", property(lambda self: self.owner))


def no_rejoin_after_a_revocation(patch: pytest.MonkeyPatch) -> None:
    request = MemberContext.request_rejoin

    def lazy(self: MemberContext, reason: str, cause: Any = None) -> None:
        if reason not in ("need to revoke partitions and re-join", "partitions that were given up have no owner yet"):
            request(self, reason, cause)

    patch.setattr(MemberContext, "request_rejoin", lazy)


def a_lost_generation_keeps_partitions(patch: pytest.MonkeyPatch) -> None:
    def keep(self: MemberContext, partitions: Any, reason: str) -> None:
        if "encountered" not in reason:
            lose(self, partitions, reason)

    lose = MemberContext.lose
    patch.setattr(MemberContext, "lose", keep)


BUGS = [
    # Commits.
    PlantedBug("skip the generation check", (WRONG_GENERATION,), 2, overlooked(ErrorCode.ILLEGAL_GENERATION)),
    PlantedBug(
        "accept a commit while the group syncs",
        (SYNCING,),
        147,
        overlooked(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    PlantedBug(
        "accept a commit of a member that is gone",
        (EXPIRED,),
        2,
        overlooked(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    PlantedBug("accept a commit of a fenced instance", (FENCED, EXPIRED), 29, overlooked(ErrorCode.FENCED_INSTANCE_ID)),
    PlantedBug("reply to a commit before fsync", (DURABLE,), 0, reply_before_fsync),
    PlantedBug("show an offset before it is durable", (READ,), 227, visible_before_durable),
    PlantedBug(
        "take a failed write for done", (DURABLE, STORED_GENERATION, STORED_ASSIGNMENT), 7, failed_write_taken_for_done
    ),
    PlantedBug("write another offset than was committed", (DURABLE,), 0, only_one_offset_of_a_commit_written),
    PlantedBug(
        "forget the offsets of a group at a reload", (SURVIVES,), 5, instead(Group, "take_offsets", lambda *_: None)
    ),
    PlantedBug(
        "swallow the error of a commit", (DURABLE,), 1, instead(commit, "split_errors", lambda _: (ErrorCode.NONE, {}))
    ),
    PlantedBug(
        "commit work of partitions that were lost",
        (FOREIGN, GOES_BACK, DURABLE),
        2,
        instead(PartitionOwnership, "fenced", lambda *_: frozenset()),
    ),
    # Generations.
    PlantedBug(
        "announce a generation before it is stored", (STORED_GENERATION,), 0, generation_announced_before_it_is_stored
    ),
    PlantedBug(
        "hand out an assignment before it is stored", (STORED_ASSIGNMENT,), 0, assignment_handed_out_before_it_is_stored
    ),
    PlantedBug("load a generation one too low", (RISES, FAILS, AT_REST), 5, generation_not_raised_after_reload),
    PlantedBug("start the generations anew in an empty group", (RISES,), 91, generation_starts_anew_in_an_empty_group),
    PlantedBug(
        "tell followers of another leader", (ONE_HEAD,), 2, responses_changed(followers_are_told_another_leader)
    ),
    PlantedBug(
        "answer each member with its own protocol", (ONE_HEAD,), 3, responses_changed(everybody_has_its_own_protocol)
    ),
    PlantedBug(
        "answer a join with another member id", (IDENTITY,), 0, responses_changed(a_join_is_answered_with_a_new_id)
    ),
    PlantedBug(
        "forget assignments at a reload", (AT_REST, NEEDS), 626, assignments_lost_in_a_reload, transactional=False
    ),
    # Sessions, phases, static members.
    PlantedBug("clear the timer of the wrong member", (SILENT, IN_TIME, AT_REST), 5, wrong_members_timer_cleared),
    PlantedBug("end sessions early", (EARLY,), 0, sessions_changed(0.7)),
    PlantedBug("end sessions late", (SILENT,), 3, sessions_changed(1.7)),
    PlantedBug("do not count heartbeats", (EARLY,), 0, heartbeats_do_not_count),
    PlantedBug("hide a rebalance from heartbeats", (DISJOINT, AT_REST, TWO_ROUNDS), 3, a_heartbeat_hides_a_rebalance),
    PlantedBug(
        "let the join phase last for ever", (IN_TIME,), 0, instead(coordinator, "expire_join_phase", lambda _: None)
    ),
    PlantedBug("end the join phase at the first join", (NO_CAUSE, EARLY), 0, join_phase_does_not_wait),
    PlantedBug("forget a parked SyncGroup in a rebalance", (NEEDS,), 14, parked_sync_forgotten_in_a_rebalance),
    PlantedBug("answer a JoinGroup twice", (ANSWERED_ONCE,), 0, joins_are_answered_twice),
    PlantedBug("forget the fence of static members", (AT_REST, IDLE, AT_REST_AGAIN), 5, static_fence_forgotten),
    # Members and leaders.
    PlantedBug("cooperative without withholding", (UNOWNED_ROUND, DISJOINT), 2, given_without_withholding),
    PlantedBug("no second round after a revocation", (AT_REST,), 2, no_rejoin_after_a_revocation),
    PlantedBug("keep partitions of a lost generation", (DISJOINT, FOREIGN), 2, a_lost_generation_keeps_partitions),
    PlantedBug("overlook changes of topics", (AT_REST,), 31, instead(TopicMetadata, "change", lambda _: None)),
]
