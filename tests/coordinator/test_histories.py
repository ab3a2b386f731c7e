"""Random histories in virtual time, checked against the invariants of a group (S1 to S14).

Members behave as Kafka's clients do (reference A6) but crash, restart, repeat requests, go silent, and meet writes
that fail and coordinators that die. The harness checks the structure after every step; this module keeps its own books
of what may be answered, from the requests sent and the durable log alone. Then faults stop and the group has to settle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from roster.coordinator import CoordinatorConfig
from roster.coordinator.events import TimerKind
from roster.coordinator.group import Group
from roster.wire import ErrorCode
from roster.wire.messages import JoinGroupRequest
from tests.coordinator.coordinator_harness import GROUP, Call, Client, GroupState, subscription
from tests.examples_tried import examples

PARTITIONS = 6
RETRIABLE = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REBALANCE_IN_PROGRESS,
}
PREFERENCES = (("range", "rr"), ("rr", "range"), ("range", "sticky", "rr"), ("rr", "range", "sticky"))
"""What everybody has comes first: the log knows of a member only the protocol that was chosen, as with Kafka."""
CONFIG = CoordinatorConfig(
    partitions=1,
    min_session_timeout_ms=1,
    max_group_size=6,
    max_pending_members=4,
    initial_rebalance_delay_ms=300,
    offsets_retention_ms=20_000,
    offsets_retention_check_interval_ms=2_500,
)


@dataclass(eq=False)
class Actor:
    """A consumer process."""

    instance: str | None
    version: int
    preference: tuple[str, ...]
    session: int
    rebalance: int
    member_id: str = ""
    generation: int = -1
    protocol: str | None = None
    leads: bool = False
    others: list[str] = field(default_factory=list)
    phase: str = "out"
    """out (has to join), joining, joined (has to sync), syncing, stable, gone."""
    call: Call | None = None
    owned: frozenset[int] = frozenset()
    shown_when_asked: int = -1
    shown: int = -1
    """The highest generation this member has named to the present coordinator."""

    def reset(self) -> None:
        self.member_id, self.generation, self.phase, self.owned = "", -1, "out", frozenset()
        self.shown = -1


class Bookkeeper(Client):
    """A shell that shows each answer to a join as it comes."""

    on_join: Callable[[Call], None]

    def answered(self, call: Call, at_once: bool) -> None:
        super().answered(call, at_once)
        if isinstance(call.request, JoinGroupRequest):
            self.on_join(call)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.c = Bookkeeper(config=CONFIG, auto_ack=False)
        self.actors: list[Actor] = []
        self.c.on_join = self.book_join
        self.generations: dict[int, str] = {}
        """The protocol each generation of the present coordinator's life was announced with."""
        self.loaded_generation = 0
        self.current: Group | None = None
        self.handed_out = 0
        self.stored_before = 0
        self.owners: dict[int, dict[int, str]] = {}

    # -- members ---------------------------------------------------------------------------------------------------

    @initialize()
    def first_members(self) -> None:
        self.spawn(None, 9, PREFERENCES[1], 1_000, 1_500)
        self.spawn("i1", 9, PREFERENCES[2], 1_000, 1_500)
        self.settle(1_200)

    @rule(ms=st.sampled_from([400, 1_200]))
    def settle(self, ms: int) -> None:
        """A while without faults."""
        self.c.auto_ack = True
        while self.c.writes:
            self.c.ack(ErrorCode.NONE)
        self.run_calmly(ms)
        self.c.auto_ack = False

    @precondition(lambda self: len(self.actors) < 8)
    @rule(
        instance=st.sampled_from([None, None, "i1", "i2"]),
        version=st.sampled_from([3, 5, 8, 9]),
        preference=st.sampled_from(PREFERENCES),
        session=st.sampled_from([700, 1_000, 2_000]),
        rebalance=st.sampled_from([500, 1_500]),
    )
    def spawn(
        self, instance: str | None, version: int, preference: tuple[str, ...], session: int, rebalance: int
    ) -> None:
        if version < 5:
            instance = None
        actor = Actor(instance, version, preference, session, rebalance)
        self.actors.append(actor)
        self.proceed(actor)

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 7))
    def go_on(self, which: int) -> None:
        self.proceed(self.actors[which % len(self.actors)])

    @rule(ms=st.sampled_from([1, 50, 300, 400]))
    def everybody_goes_on(self, ms: int) -> None:
        for actor in list(self.actors):
            self.proceed(actor)
        self.c.advance(ms)

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 7))
    def crash(self, which: int) -> None:
        self.actors.remove(self.actors[which % len(self.actors)])

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 7))
    def restart(self, which: int) -> None:
        old = self.actors[which % len(self.actors)]
        self.actors.remove(old)
        before = self.group()
        calm = (
            before is not None
            and before.state is GroupState.STABLE
            and old.instance in before.instances
            and before.members[before.instances[old.instance]].protocols == protocols(old.preference)
        )
        generation = before.generation if before else 0
        self.spawn(old.instance, old.version, old.preference, old.session, old.rebalance)
        if calm:  # S13
            assert before is not None
            assert (before.state, before.generation) == (GroupState.STABLE, generation)

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 7), preference=st.sampled_from(PREFERENCES))
    def subscribe_anew(self, which: int, preference: tuple[str, ...]) -> None:
        actor = self.actors[which % len(self.actors)]
        if actor.phase == "stable":
            actor.preference, actor.phase = preference, "out"
            self.proceed(actor)

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 7))
    def leave(self, which: int) -> None:
        actor = self.actors[which % len(self.actors)]
        if actor.member_id:
            self.actors.remove(actor)
            self.c.leave((actor.member_id, actor.instance) if actor.instance else actor.member_id)

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 7))
    def repeat(self, which: int) -> None:
        """S9: the client gives up on an answer and sends the request again."""
        actor = self.actors[which % len(self.actors)]
        if actor.call is not None and actor.call.parked:
            group = self.group()
            members = len(group.members) if group else 0
            actor.call = self.c.send(actor.call.request, actor.call.version)
            if actor.member_id and group is not None and group.state in {GroupState.PREPARING, GroupState.COMPLETING}:
                assert len(group.members) <= members

    # -- commits and administration --------------------------------------------------------------------------------

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 7), partition=st.integers(0, 1), offset=st.integers(0, 99), shift=st.integers(-1, 1))
    def commit(self, which: int, partition: int, offset: int, shift: int) -> None:
        actor = self.actors[which % len(self.actors)]
        generation = actor.generation + shift
        self.checked_commit(actor.member_id, generation, actor.instance, partition, offset)

    @rule(member=st.sampled_from(["", "who"]), partition=st.integers(0, 1), generation=st.integers(-1, 3))
    def foreign_commit(self, member: str, partition: int, generation: int) -> None:
        self.checked_commit(member, generation, None, partition, 1)

    def checked_commit(self, member: str, generation: int, instance: str | None, partition: int, offset: int) -> None:
        """S5: exactly the commits of present members in their generation get to the log, and those to empty groups."""
        group = self.group()
        allowed = commit_allowed(group, member, generation, instance)
        call = self.c.commit(member, generation, {("t", partition): offset}, instance=instance)
        assert call.parked == allowed, (member, generation, group)
        self.show(member, generation)
        if group is not None and allowed and member in group.members:
            self.c.saw(member, certainly=True)

    @rule(kind=st.sampled_from(["group", "offset", "describe"]))
    def administer(self, kind: str) -> None:
        if kind == "group":
            self.c.delete_group()
        elif kind == "offset":
            self.c.delete_offsets(("t", 1))
        else:
            assert self.c.describe().group_state in {state.value for state in GroupState}

    # -- time, disk, coordinators ----------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 100, 299, 300, 700, 1_500, 5_000]))
    def time_passes(self, ms: int) -> None:
        self.c.advance(ms)

    @rule(writes=st.integers(1, 5))
    def disk_catches_up(self, writes: int) -> None:
        for _ in range(min(writes, len(self.c.writes))):
            self.c.ack(ErrorCode.NONE)
        assert self.c.fetched() == self.c.stored_offsets, "S6, S7: what is fetched is what is durable"

    @precondition(lambda self: self.c.writes)
    @rule(error=st.sampled_from([ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT]))
    def disk_fails(self, error: ErrorCode) -> None:
        self.c.ack(error)
        assert self.c.fetched() == self.c.stored_offsets, "S6, S7: what is fetched is what is durable"

    @rule()
    def fail_over(self) -> None:
        """S6: what was acknowledged is there again."""
        self.c.fail_over()
        self.forget_life()
        assert self.c.fetched() == self.c.stored_offsets

    @rule()
    def move_away_and_back(self) -> None:
        waiting = [call for call in self.c.calls.values() if call.answered_at is None]
        self.c.unload()
        assert all(call.answered_at is not None for call in waiting)
        assert not [name for name in self.c.timers if name.kind in {TimerKind.JOIN, TimerKind.SYNC, TimerKind.SESSION}]
        self.c.fail_over()
        self.forget_life()

    def forget_life(self) -> None:
        self.generations.clear()
        self.owners.clear()
        for actor in self.actors:
            actor.shown = actor.shown_when_asked = -1
        group = self.group()
        self.loaded_generation = group.generation if group else 0
        self.current = group

    # -- what a client does next -----------------------------------------------------------------------------------

    def proceed(self, actor: Actor) -> None:
        """Take in the answer that has come, if any, then do what is next."""
        call = actor.call
        if call is not None and call.answered_at is None:
            return
        if call is not None:
            actor.call = None
            if call.reply is None:  # lost with its coordinator
                actor.phase = "out"
            elif actor.phase == "joining":
                self.joined(actor, call)
            elif actor.phase == "syncing":
                self.synced(actor, call)
        if actor.phase == "out":
            actor.phase = "joining"
            actor.shown_when_asked = actor.shown
            actor.call = self.c.join(
                actor.member_id,
                version=actor.version,
                instance=actor.instance,
                protocols=protocols(actor.preference),
                session=actor.session,
                rebalance=actor.rebalance,
            )
        elif actor.phase == "joined":
            actor.phase = "syncing"
            self.show(actor.member_id, actor.generation)
            actor.call = self.c.sync(
                actor.member_id,
                actor.generation,
                self.assign(actor) if actor.leads else None,
                version=4 if actor.version < 9 else 5,
                instance=actor.instance,
                protocol=actor.protocol,
            )
        elif actor.phase == "stable":
            self.heartbeat(actor)

    def joined(self, actor: Actor, call: Call) -> None:
        reply = call.reply
        error = call.error
        actor.phase = "out"
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            actor.member_id = reply.member_id
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            actor.reset()
        elif not error:
            assert not actor.member_id or actor.member_id == reply.member_id
            assert reply.generation_id > actor.shown_when_asked or reply.generation_id == actor.generation
            actor.member_id = reply.member_id
            actor.generation = reply.generation_id
            actor.protocol = reply.protocol_name
            actor.leads = reply.leader == reply.member_id and not reply.skip_assignment
            actor.others = [member.member_id for member in reply.members]
            actor.phase = "joined"
            assert bool(reply.members) == (reply.leader == reply.member_id)
            assert actor.protocol in actor.preference
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            actor.phase = "gone"
        else:
            assert error in RETRIABLE | {ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
            actor.owned = frozenset()

    def synced(self, actor: Actor, call: Call) -> None:
        actor.phase = "out"
        if call.error is ErrorCode.UNKNOWN_MEMBER_ID:
            actor.reset()
        elif call.error is ErrorCode.FENCED_INSTANCE_ID:
            actor.phase = "gone"
        elif not call.error:
            actor.phase = "stable"
            actor.owned = frozenset(call.reply.assignment)
            holder = actor.instance or actor.member_id
            owners = self.owners.setdefault(actor.generation, {})
            for partition in actor.owned:  # S1
                assert owners.setdefault(partition, holder) == holder

    def heartbeat(self, actor: Actor) -> None:
        group = self.group()
        error = self.c.heartbeat(actor.member_id, actor.generation, instance=actor.instance)
        self.show(actor.member_id, actor.generation)
        if not error or error is ErrorCode.REBALANCE_IN_PROGRESS:
            assert group is not None
            assert (error is ErrorCode.REBALANCE_IN_PROGRESS) == (group.state is GroupState.PREPARING)
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            actor.reset()
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            actor.phase = "gone"
        elif error:
            actor.phase = "out"

    def assign(self, actor: Actor) -> dict[str, bytes]:
        """The leader's duty; a partition is one byte."""
        given: dict[str, bytes] = {}
        for partition in range(PARTITIONS):
            owner = actor.others[partition % len(actor.others)]
            given[owner] = given.get(owner, b"") + bytes([partition])
        return given

    def show(self, member: str, generation: int) -> None:
        group = self.group()
        for actor in self.actors:
            if (actor.member_id, actor.generation) == (member, generation) and group and member in group.members:
                actor.shown = max(actor.shown, generation)

    # -- books -----------------------------------------------------------------------------------------------------

    def group(self) -> Group | None:
        return self.c.coordinator.group(GROUP)

    def book_join(self, call: Call) -> None:
        """S10: all members of a generation hear of the same protocol, and generations only go up."""
        reply = call.reply
        if reply.error_code:
            return
        self.notice_another_group()
        if reply.generation_id not in self.generations:
            if reply.generation_id != self.loaded_generation:
                assert reply.generation_id > self.handed_out, "S10: a generation was handed out twice"
            self.handed_out = max(self.handed_out, reply.generation_id)
            self.generations[reply.generation_id] = reply.protocol_name
        assert self.generations[reply.generation_id] == reply.protocol_name

    def notice_another_group(self) -> None:
        """A group that was deleted and one that took its name are two."""
        if self.group() is self.current:
            return
        self.current = self.group()
        self.generations.clear()
        self.owners.clear()
        self.handed_out = self.loaded_generation = 0

    @invariant()
    def books_agree(self) -> None:
        group = self.group()
        if self.c.stored_generation != self.stored_before:
            self.stored_before = self.c.stored_generation
        self.notice_another_group()
        if group is not None:
            joining = group.state is GroupState.PREPARING  # a record may be durable that was not announced
            newest = group.next_generation if joining else group.generation
            assert newest >= self.c.stored_generation, "S10: behind the log"
            self.c.check_sessions(group)
            if group.state is GroupState.STABLE:
                assert len(group.members) <= CONFIG.max_group_size

    # -- liveness --------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """L1, L2, L4, L5: once faults stop, the group settles on those that live, and stays so."""
        c = self.c
        c.auto_ack = True
        while c.writes:
            c.ack(ErrorCode.NONE)
        self.actors = [actor for actor in self.actors if actor.phase != "gone"][: CONFIG.max_group_size]
        instances: set[str] = set()
        for actor in list(self.actors):
            if actor.instance in instances:
                self.actors.remove(actor)
            instances |= {actor.instance} - {None}  # type: ignore[arg-type]
        self.run_calmly(10_000)
        self.actors = [actor for actor in self.actors if actor.phase != "gone"]
        self.run_calmly(2_000)
        for call in c.calls.values():  # S14: replies == requests
            assert call.answered_at is not None or any(actor.call is call for actor in self.actors)
        if not self.actors:
            group = self.group()
            assert group is None or group.state is GroupState.EMPTY
            return
        group = self.group()
        assert group is not None
        assert group.state is GroupState.STABLE
        assert set(group.members) == {actor.member_id for actor in self.actors}
        assert sorted(p for actor in self.actors for p in actor.owned) == list(range(PARTITIONS))
        generation = group.generation
        self.run_calmly(3_000)
        assert (group.state, group.generation) == (GroupState.STABLE, generation)

    def run_calmly(self, ms: int) -> None:
        end = self.c.now + ms
        while self.c.now < end:
            for actor in self.actors:
                self.proceed(actor)
            self.c.advance(200)


def protocols(preference: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, subscription("t")) for name in preference)


def commit_allowed(group: Group | None, member: str, generation: int, instance: str | None) -> bool:
    """Worked case GC-25 as a sentence."""
    if group is None:
        return generation < 0
    if group.state is GroupState.EMPTY:
        return generation < 0
    if group.state not in {GroupState.STABLE, GroupState.PREPARING}:
        return False
    holds_instance = instance is None or group.instances.get(instance) == member
    return member in group.members and holds_instance and generation == group.generation


Histories.TestCase.settings = settings(
    max_examples=examples(60, "ROSTER_HISTORIES"),
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking fifty steps outlasts the test's timeout
)
TestHistories = Histories.TestCase
