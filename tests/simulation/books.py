"""The observer: it keeps account of what was asked, answered and held, and has the invariants judge it."""

from __future__ import annotations

from collections import defaultdict

from roster.coordinator.events import Effects, Event
from roster.coordinator.group import Group
from roster.coordinator.states import GroupState
from roster.coordinator_common import PartitionLoaded, RequestReceived, TimerExpired
from roster.member import MemberState
from roster.member.events import Publish
from roster.member.subscription import LeaderFailure, decode_assignment
from roster.member.task_options import TaskOptions
from roster.member.types import FailureKind
from roster.model import TopicPartition
from roster.wire import ErrorCode, Message, WireError
from roster.wire.consumer.messages import decode_subscription, flat
from roster.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.simulation import invariants
from tests.simulation.scenario import TASKS
from tests.simulation.sessions import Before, Sessions, event_name
from tests.simulation.setting import Application, Broker, Setting
from tests.simulation.tasks import ACCEPTABLE, SUBTOPOLOGIES, TaskBooks, TaskWork

COOPERATIVE = frozenset({"cooperative-sticky", "lag-cooperative-sticky", TASKS})
QUIET = (False, None, False, 0)
"""What is noted of each member before a request that takes none out of the group."""
FIRST_EPOCH = 1
"""Epoch of the log under its first leader."""
QUIET_REQUESTS = (HeartbeatRequest, OffsetFetchRequest, OffsetCommitRequest)


class Books:
    """Everything seen in one run."""

    def __init__(self, world: Setting) -> None:
        self.world = world
        self.rosters: dict[int, frozenset[str]] = {}
        self.assigned_in: dict[str, int] = {}
        """By process, the generation of its last assignment; the one it is in may be later."""
        self._owned: dict[str, frozenset[TopicPartition]] = {}
        """By process, the partitions that it owned when it last said so."""
        self.answered: dict[int, set[str]] = defaultdict(set)
        """Member ids by the generation that they were answered with."""
        self.heads: dict[int, tuple[str, str]] = {}
        self.claims: dict[int, dict[str, frozenset[TopicPartition]]] = {}
        self.assigned: dict[int, dict[str, frozenset[TopicPartition]]] = defaultdict(dict)
        self.highest = 0
        self.rounds = 0
        self.holder: dict[str, str] = {}
        """Instance id to the member id that joined last with it."""
        self.instance: dict[str, str | None] = {}
        self.acked: dict[TopicPartition, int] = {}
        self.accepted: dict[TopicPartition, int] = {}
        self.acknowledged_commits = 0
        self.refused_commits = 0
        self._sessions = {node: Sessions(world.scenario) for node in (0, 1)}
        """By broker, what its present life may know of the members' sessions."""
        self.tasks: TaskBooks | None = None
        if (tasks := world.scenario.tasks) is not None:
            self.tasks = TaskBooks(
                TaskOptions(
                    subtopologies=SUBTOPOLOGIES,
                    standbys=tasks.standbys,
                    acceptable_lag=ACCEPTABLE,
                    max_warmups=tasks.max_warmups,
                )
            )

    # -- members and applications ----------------------------------------------------------------------------------

    def published(self, process: Application, _news: Publish) -> None:
        """Ownership changed."""
        gained = process.owns.partitions - self._owned.get(process.name, frozenset())
        self._owned[process.name] = process.owns.partitions
        if gained or process.member.state is MemberState.STABLE:  # one that joins again in the same step is not
            self.assigned_in[process.name] = process.owns.generation
        if process.held:
            for other in self.world.applications:
                if other is not process and other.alive and other.held:
                    invariants.ownership_is_disjoint_at_every_instant(process, other, self._since, self._takes_part)

    def _since(self, process: Application) -> int:
        """Return the generation in which a process was given what it holds."""
        return self.assigned_in.get(process.name, process.owns.generation)

    def _takes_part(self, process: Application, generation: int) -> bool:
        """Return True for a member of a generation; one that is static stays in the list without having joined."""
        member = process.owns.member_id
        if process.config.group_instance_id is not None and member not in self.answered[generation]:
            return False
        return member in self.rosters.get(generation, ())

    def member_stepped(self, process: Application) -> None:
        """A member took in an event."""
        if process.member.failure is not None:
            instance = process.config.group_instance_id
            sharing = [p for p in self.world.applications if p.config.group_instance_id == instance]
            shared = instance is not None and (instance in self.world.impersonated or len(sharing) > 1)
            if not may_fail(self.world, process):
                invariants.no_member_fails_without_cause(process, shared=shared)

    def acknowledged(self, process: Application, positions: dict[TopicPartition, int]) -> None:
        """An application was told that a commit is done."""
        del process
        durable = self.world.durable.offsets
        self.acknowledged_commits += 1
        for partition, offset in positions.items():
            if partition.topic in self.world.topics and partition.topic not in self.world.unsteady_topics:
                invariants.an_acknowledged_commit_is_durable(partition, offset, durable)
                self.acked[partition] = max(offset, self.acked.get(partition, 0))

    def topics_deleted(self, names: tuple[str, ...]) -> None:
        """Forget the offsets of deleted topics."""
        for book in (self.acked, self.accepted):
            for partition in [each for each in book if each.topic in names]:
                del book[partition]

    def joining(self, name: str, work: TaskWork, request: JoinGroupRequest) -> None:
        """A member that runs tasks joins."""
        if self.tasks is not None:
            self.tasks.joining(name, work, request)

    # -- requests and responses ------------------------------------------------------------------------------------

    def every_request_is_answered_once(self, token: int, *, answered: bool) -> None:
        """A response was made for a request."""
        invariants.every_request_is_answered_once(token, answered=answered)

    def answering(self, node: Broker, version: int, request: Message, response: Message, *, waited: bool) -> None:
        """A response is about to be sent; a request that waited for it has its member's session begin again."""
        if waited and isinstance(response, JoinGroupResponse | SyncGroupResponse) and not response.error_code:
            of = response if isinstance(response, JoinGroupResponse) else request
            member = getattr(of, "member_id", "")
            self._sessions[node.number].renewed(member, node.now)
        match request, response:
            case JoinGroupRequest(), JoinGroupResponse(error_code=ErrorCode.NONE):
                self._joined(node, version, request, response)
            case (
                JoinGroupRequest(group_instance_id=str(instance)),
                JoinGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.NOT_COORDINATOR),
            ):
                # The write failed: the old member id is the member's again, and its session begins anew, as in Kafka.
                self._sessions[node.number].heard(self.holder.get(instance, ""), node.now)
            case SyncGroupRequest(), SyncGroupResponse(error_code=ErrorCode.NONE):
                self._synced(node, request, response)
            case HeartbeatRequest(), HeartbeatResponse(error_code=ErrorCode.NONE):
                if node.coordinator is not None and node.coordinator.group(self.world.group_id) is not None:
                    self._fence("Heartbeat", request.member_id, request.group_instance_id, node)
                # else the group is being loaded, and a heartbeat is answered without a look, as Kafka does
            case OffsetCommitRequest(), OffsetCommitResponse():
                self._committed(request, response)
            case OffsetFetchRequest(), OffsetFetchResponse():
                self._fetched(response)
        # A first JoinGroup names no member yet; its response does, also where it could not be stored.
        member = getattr(request, "member_id", "") or getattr(response, "member_id", "")
        self._sessions[node.number].heard(member, node.now)

    def _joined(self, node: Broker, version: int, request: JoinGroupRequest, response: JoinGroupResponse) -> None:
        generation, member = response.generation_id, response.member_id
        invariants.the_generation_only_rises(generation, self.highest)
        invariants.a_generation_is_stored_before_it_is_announced(generation, self.world.durable)
        invariants.a_member_keeps_its_identity(request.member_id, member)
        self.highest = generation
        self.answered[generation].add(member)
        self._sessions[node.number].heard(member, node.now)
        self.instance[member] = request.group_instance_id
        if request.group_instance_id is not None:
            if not request.member_id:
                self.holder[request.group_instance_id] = member
            self._fence("JoinGroup", member, request.group_instance_id, node)
        returning_leader = version < 9 and request.group_instance_id is not None and not request.member_id
        leads = response.leader == member
        if leads and not response.skip_assignment:
            self._announced(generation, response)
        if generation in self.heads and not returning_leader and not leads:
            leader = self.heads[generation][1]
            if self.instance.get(leader) is None or response.leader == leader:
                head = (response.protocol_name or "", response.leader)
                invariants.all_have_one_leader_and_protocol(generation, head, self.heads[generation])
        elif generation not in self.heads and not leads and not returning_leader:
            self.heads[generation] = (response.protocol_name or "", response.leader)

    def _announced(self, generation: int, response: JoinGroupResponse) -> None:
        members = frozenset(member.member_id for member in response.members)
        invariants.the_leader_is_a_member(generation, response.leader, members)
        head = (response.protocol_name or "", response.leader)
        if generation in self.rosters and self.heads.get(generation) != head:
            self.assigned.pop(generation, None)
        self.rounds += generation not in self.rosters
        self.rosters[generation] = members
        if generation in self.heads and self.instance.get(self.heads[generation][1]) is None:
            invariants.all_have_one_leader_and_protocol(generation, head, self.heads[generation])
        self.heads[generation] = head
        self.claims[generation] = newest_claims(generation, response)
        if self.tasks is not None:
            self.tasks.announced(generation, response)

    def _synced(self, node: Broker, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        generation, member = request.generation_id, request.member_id
        self._fence("SyncGroup", member, request.group_instance_id, node)
        if node.epoch == self.world.disk.epoch:
            invariants.an_assignment_is_stored_before_it_is_handed_out(
                generation, member, response.assignment, self.world.durable
            )
        try:
            mine = decode_assignment(response.assignment).partitions
        except (LeaderFailure, WireError):
            return
        others = {
            other: theirs
            for other, theirs in self.assigned[generation].items()
            if not self._same_instance(other, member)
        }
        invariants.one_owner_per_partition_and_generation(generation, member, mine, others)
        invariants.an_assignment_has_only_partitions_that_exist(member, mine, self.world.most_partitions)
        self.assigned[generation][member] = mine

    def assigning(self, request: SyncGroupRequest) -> None:
        """A leader's assignment arrived."""
        generation = request.generation_id
        head = self.heads.get(generation)
        if head is None or head[0] not in COOPERATIVE or not request.assignments:
            return
        if generation not in self.claims or head[1] != request.member_id:
            return
        given = {}
        for entry in request.assignments:
            try:
                given[entry.member_id] = decode_assignment(entry.assignment).partitions
            except (LeaderFailure, WireError):
                return
        invariants.a_moved_partition_is_unowned_for_one_round(generation, self.claims[generation], given, self.instance)
        if self.tasks is not None:
            self.tasks.assigning(request)

    def _committed(self, request: OffsetCommitRequest, response: OffsetCommitResponse) -> None:
        written = {
            TopicPartition(topic.name, row.partition_index)
            for topic in response.topics
            for row in topic.partitions
            if row.error_code == ErrorCode.NONE
        }
        self.refused_commits += not written
        for topic in request.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                if partition in written and self._steady(partition):
                    offset = row.committed_offset
                    invariants.an_acknowledged_commit_is_durable(partition, offset, self.world.durable.offsets)

    def _steady(self, partition: TopicPartition) -> bool:
        return partition.topic in self.world.topics and partition.topic not in self.world.unsteady_topics

    def _fetched(self, response: OffsetFetchResponse) -> None:
        for group in response.groups:
            for topic in group.topics:
                for row in topic.partitions:
                    partition = TopicPartition(topic.name, row.partition_index)
                    if row.committed_offset >= 0 and self._steady(partition):
                        durable = self.world.durable.offsets
                        invariants.only_durable_offsets_are_read(partition, row.committed_offset, durable)

    def _fence(self, request: str, member: str, instance: str | None, node: Broker) -> None:
        if instance is not None and node.epoch == self.world.disk.epoch and instance in self.holder:
            invariants.one_live_member_per_instance_id(instance, member, self.holder[instance], request)

    def _same_instance(self, one: str, other: str) -> bool:
        if one == other:
            return True
        instance = self.instance.get(one)
        return instance is not None and instance == self.instance.get(other)

    # -- steps of a coordinator ------------------------------------------------------------------------------------

    def node_crashed(self, node: Broker) -> None:
        """A coordinator's memory is gone."""
        self._sessions[node.number] = Sessions(self.world.scenario)

    def clock_jumped(self, node: Broker, ms: int) -> None:
        """A coordinator's clock was set forward."""
        self._sessions[node.number].jumped(ms)

    def before_step(self, node: Broker, event: Event) -> Before:
        """Note the group as it is, and what comes."""
        assert node.coordinator is not None
        group = node.coordinator.group(self.world.group_id)
        state = GroupState.DEAD if group is None else group.state
        label = event_name(event)
        self.world.coverage.coordinator("none" if group is None else state.value, label)
        if self.world.history.wanted:
            self.world.history.step(node.name, "no group" if group is None else state.value, label)
        if isinstance(event, RequestReceived):
            self._sessions[node.number].heard(getattr(event.message, "member_id", ""), node.now)
            if isinstance(event.message, SyncGroupRequest):
                self.assigning(event.message)
        if group is None:
            return Before(None, state, 0, {}, frozenset(), label)
        if isinstance(event, RequestReceived) and isinstance(event.message, QUIET_REQUESTS):
            return Before(group, state, group.generation, dict.fromkeys(group.members, QUIET), frozenset(), label)
        members = {
            name: (member.parked_join is not None, member.instance_id, member.is_new, member.session_timeout_ms)
            for name, member in group.members.items()
        }
        unsynced = frozenset(group.pending_sync_members) if isinstance(event, TimerExpired) else frozenset()
        return Before(group, state, group.generation, members, unsynced, label)

    def after_step(self, node: Broker, event: Event, before: Before, effects: Effects) -> None:
        """Judge what a step did."""
        assert node.coordinator is not None
        group = node.coordinator.group(self.world.group_id)
        if isinstance(event, PartitionLoaded):
            self._loaded(node, group)
        sessions = self._sessions[node.number]
        if isinstance(event, RequestReceived) and isinstance(event.message, OffsetCommitRequest) and effects.writes:
            self._commit_judged(node, event.message, before)
        if group is None:
            sessions.group_gone()
            return
        if before.group is group:
            invariants.only_legal_transitions(before.state, group.state, before.label)
            if len(group.members) < len(before.members) or before.members.keys() - group.members.keys():
                sessions.judge_expulsions(event, before, group, refused(effects), node.now)
        invariants.a_state_has_what_it_needs(group)
        sessions.judge_phase(group, node, disk_is_faulty=self.world.disk_is_faulty)
        sessions.took_in(event, group, node.now)

    def _loaded(self, node: Broker, group: Group | None) -> None:
        sessions = self._sessions[node.number] = Sessions(self.world.scenario)
        for name in () if group is None else group.members:
            sessions.renewed(name, node.now)
            sessions.heard(name, node.now)
        for partition, offset in self.acked.items():
            stored = None if group is None else group.offsets.get(partition.topic, {}).get(partition.partition)
            found = None if stored is None else stored.offset
            invariants.an_acknowledged_commit_survives_everything(partition, offset, found)

    def _commit_judged(self, node: Broker, request: OffsetCommitRequest, before: Before) -> None:
        """Judge a commit that the coordinator began to write."""
        keys = {
            TopicPartition(topic.name, row.partition_index): row.committed_offset
            for topic in request.topics
            for row in topic.partitions
        }
        if before.group is None or before.state is GroupState.EMPTY:
            return
        member = request.member_id
        invariants.no_commit_is_accepted_from_an_expired_member(member, before.members)
        invariants.no_commit_is_accepted_from_a_wrong_generation(
            request.generation_id_or_member_epoch, before.generation
        )
        if node.epoch == self.world.disk.epoch:
            holder = self.holder.get(request.group_instance_id or "")
            invariants.no_commit_is_accepted_from_a_fenced_instance(member, request.group_instance_id, holder)
        invariants.no_commit_is_accepted_while_the_group_syncs(before.state)
        others = {
            other: theirs
            for other, theirs in self.assigned.get(before.generation, {}).items()
            if not self._same_instance(other, member)
        }
        invariants.a_commit_is_of_a_partition_that_the_member_owns(member, keys, others)
        if node.epoch == self.world.disk.epoch:
            for partition, offset in keys.items():
                if self._steady(partition):
                    invariants.a_commit_never_goes_back(partition, offset, self.acked.get(partition, 0))
        self._sessions[node.number].renewed(member, node.now)


def may_fail(world: Setting, process: Application) -> bool:
    """Return True for a failure that others explain: their protocols are different ones, or not all are known.

    The former are members of the stage before in a rolling upgrade. The latter were loaded from the log, which has the
    metadata of one protocol, and have not joined since.
    """
    failure = process.member.failure
    is_mixed = len(world.scenario.policies) > 1 and world.disk.epoch > FIRST_EPOCH
    return (bool(world.scenario.upgrade) or is_mixed) and failure is not None and failure.kind is FailureKind.PROTOCOL


def refused(effects: Effects) -> frozenset[str]:
    """Return the members that a step refused for their protocols."""
    joins = [each.message for each in effects.replies if isinstance(each.message, JoinGroupResponse)]
    return frozenset(join.member_id for join in joins if join.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def newest_claims(generation: int, response: JoinGroupResponse) -> dict[str, frozenset[TopicPartition]]:
    """Return what the members of the newest generation among them claim to own."""
    found: dict[str, tuple[int, frozenset[TopicPartition]]] = {}
    for member in response.members:
        try:
            subscription = decode_subscription(member.metadata)
        except WireError:
            continue
        if 0 <= subscription.generation_id < generation:
            topics = set(subscription.topics)
            owned = frozenset(p for p in flat(subscription.owned_partitions) if p.topic in topics)
            found[member.member_id] = (subscription.generation_id, owned)
    newest = max((number for number, _ in found.values()), default=-1)
    return {member: owned for member, (number, owned) in found.items() if number == newest}
