"""Topics and groups of a cluster, looked after from plain blocking code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Self

from roster.client.cluster import Cluster, M, expect
from roster.client.errors import (
    AuthorizationError,
    BrokerError,
    ClientError,
    ClosedError,
    CommitError,
    GroupNotEmptyError,
    GroupTypeError,
    InvalidTopicError,
    OptionError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    UnsupportedError,
)
from roster.client.loop import LoopThread
from roster.client.positions import (
    EARLIEST,
    LATEST,
    PASSING,
    STALE_COORDINATOR,
    Groups,
    Patience,
    group_error,
    list_offsets,
)
from roster.client.types import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionDescription,
    TopicDescription,
)
from roster.member.requests import offset_commit
from roster.member.topic_metadata import replica_racks
from roster.member.types import Node
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import ZERO_UUID, ErrorCode, Message, WireError
from roster.wire.consumer.messages import decode_assignment, flat
from roster.wire.errors import error_code
from roster.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

TOPIC_RESOURCE = 2
"""What DescribeConfigs calls a topic."""

NO_MEMBER = (-1, "")
"""Generation and member id of a commit from outside the group."""

INVALID_TOPIC = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,
    }
)
"""Answers to a request to create or change a topic that say what is wrong with the request."""


class Admin:
    """Administration of any Kafka-compatible cluster; thread-safe and blocking, usable as a context manager.

    Connects with the first call. Every call raises UnreachableError when no broker answers.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], *, client_id: str = "roster-admin", request_timeout_ms: int = 30_000
    ) -> None:
        if isinstance(request_timeout_ms, bool) or not isinstance(request_timeout_ms, int) or request_timeout_ms < 1:
            raise OptionError("request_timeout_ms", f"must be a positive number of ms, not {request_timeout_ms!r}")
        self._timeout_ms = request_timeout_ms
        self._cluster = Cluster(bootstrap, client_id, request_timeout_ms / 1000, Random())  # noqa: S311 - no secret
        self._groups = Groups(self._cluster)
        self._loop: LoopThread | None = None
        self._closed = False

    @property
    def _run(self) -> LoopThread:
        if self._closed:
            raise ClosedError("the admin client is closed")
        if self._loop is None:
            self._loop = LoopThread("roster-admin")
        return self._loop

    def close(self) -> None:
        """Close the connections."""
        if self._loop is not None and not self._closed:
            self._loop.call(self._cluster.close())
            self._loop.stop()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Topics.

    def create_topic(
        self, name: str, partitions: int = 1, *, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until the cluster knows it; TopicExistsError when it is there already."""
        if partitions < 1:
            raise OptionError("partitions", f"must be at least 1, not {partitions}")
        topic = CreateTopicsRequest.Topic(name=name, num_partitions=partitions, replication_factor=replication)
        topic.configs = [CreateTopicsRequest.Config(name=key, value=value) for key, value in (configs or {}).items()]
        request = CreateTopicsRequest(topics=[topic], timeout_ms=self._timeout_ms)
        self._run.call(self._create(name, request))

    async def _create(self, name: str, request: CreateTopicsRequest) -> None:
        response = expect(await self._ask_controller(request), CreateTopicsResponse)
        for topic in response.topics:
            _check_topic(topic.error_code, topic.error_message, name, "create")
        await self._await_topic(name, lambda count: count > 0)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, and wait until the cluster has forgotten it."""
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name=name)], timeout_ms=self._timeout_ms)
        self._run.call(self._delete(name, request))

    async def _delete(self, name: str, request: DeleteTopicsRequest) -> None:
        response = expect(await self._ask_controller(request), DeleteTopicsResponse)
        for topic in response.responses:
            _check_topic(topic.error_code, topic.error_message, name, "delete")
        await self._await_topic(name, lambda count: count == 0)

    def create_partitions(self, name: str, total: int) -> None:
        """Let the topic have `total` partitions, more than now."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsRequest.Topic(name=name, count=total, assignments=None)],
            timeout_ms=self._timeout_ms,
        )
        self._run.call(self._grow(name, total, request))

    async def _grow(self, name: str, total: int, request: CreatePartitionsRequest) -> None:
        response = expect(await self._ask_controller(request), CreatePartitionsResponse)
        for result in response.results:
            _check_topic(result.error_code, result.error_message, name, "grow")
        await self._await_topic(name, lambda count: count >= total)

    async def _await_topic(self, name: str, settled: Callable[[int], bool]) -> None:
        """Wait until metadata shows the change: news takes a moment to reach every broker."""
        patience = Patience(self._cluster.timeout)
        while True:
            response = await self._cluster.metadata([name])
            counts = [len(topic.partitions) for topic in response.topics if topic.error_code == ErrorCode.NONE]
            if settled(counts[0] if counts else 0):
                return
            await patience.pause(f"the change of topic {name}", "metadata does not show it yet")

    def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        """Name → number of partitions, sorted by name."""
        response = self._run.call(self._cluster.metadata())
        return {
            topic.name: len(topic.partitions)
            for topic in sorted(response.topics, key=lambda t: t.name or "")
            if topic.name is not None and (internal or not topic.is_internal)
        }

    def describe_topic(self, name: str) -> TopicDescription:
        """The topic's partitions, leaders and replicas."""
        return self._run.call(self._describe_topic(name))

    async def _describe_topic(self, name: str) -> TopicDescription:
        self._cluster.forget([name])
        await self._cluster.topics([name])
        response = await self._cluster.metadata([name])
        topic = next(topic for topic in response.topics if topic.name == name)
        partitions = tuple(
            PartitionDescription(p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes))
            for p in sorted(topic.partitions, key=lambda p: p.partition_index)
        )
        topic_id = None if topic.topic_id == ZERO_UUID else topic.topic_id
        return TopicDescription(name, topic_id, topic.is_internal, partitions)

    def topic_configs(self, name: str) -> dict[str, str | None]:
        """The settings of a topic, its own and the cluster's; a value is None where the broker keeps it to itself."""
        return self._run.call(self._topic_configs(name))

    async def _topic_configs(self, name: str) -> dict[str, str | None]:
        asked = DescribeConfigsRequest.Resource(resource_type=TOPIC_RESOURCE, resource_name=name)
        response = expect(
            await self._cluster.request_any(DescribeConfigsRequest(resources=[asked])), DescribeConfigsResponse
        )
        found = response.results[0]
        _check_topic(found.error_code, found.error_message, name, "look up the settings of")
        return {config.name: config.value for config in found.configs}

    def replica_racks(self, topics: Collection[str]) -> dict[str, list[frozenset[str]]]:
        """For each partition of each of these topics the racks of the brokers that hold a replica, by number.

        Topics that do not exist, or that this client may not see, are left out.
        """
        return replica_racks(self._run.call(self._cluster.metadata(topics))) if topics else {}

    async def _ask_controller(self, request: Message) -> Message:
        """Topics change through the controller; a broker in KRaft mode forwards the request itself."""
        await self._cluster.metadata(())
        address = self._cluster.address(self._cluster.controller)
        if address is None:
            return await self._cluster.request_any(request)
        return await self._cluster.request(address, request)

    # Offsets of logs.

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset each partition still holds."""
        return self._edge(partitions, EARLIEST)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset the next record of each partition will get."""
        return self._edge(partitions, LATEST)

    def _edge(self, partitions: Collection[TopicPartition], time: int) -> dict[TopicPartition, int]:
        found = self._run.call(list_offsets(self._cluster, dict.fromkeys(partitions, time)))
        return {partition: offset or 0 for partition, offset in found.items()}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after each wall-clock ms; None where no record is that young."""
        return self._run.call(list_offsets(self._cluster, dict(times)))

    # Groups.

    def list_groups(self) -> list[GroupListing]:
        """Every group of the cluster, sorted by name."""
        return self._run.call(self._list_groups())

    async def _list_groups(self) -> list[GroupListing]:
        await self._cluster.metadata(())
        patience = Patience(self._cluster.timeout)
        listed: dict[str, GroupListing] = {}
        for broker, address in self._cluster.brokers.items():
            while True:
                response = expect(await self._cluster.request(address, ListGroupsRequest()), ListGroupsResponse)
                code = error_code(response.error_code)
                if code is ErrorCode.NONE:
                    break
                if code not in PASSING:
                    raise BrokerError(f"broker {broker} cannot list groups: {code.name}", code=code)
                await patience.pause("listing groups", code.name)
            listed |= {
                g.group_id: GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type.lower())
                for g in response.groups
            }
        return [listed[name] for name in sorted(listed)]

    def describe_group(self, group: str) -> GroupDescription:
        """The state and members of a classic or a consumer group.

        Raises:
            UnknownGroupError: there is no such group.
            GroupTypeError: the group is of another type, such as share.

        """
        return self._run.call(self._describe_group(group))

    async def _describe_group(self, group: str) -> GroupDescription:
        described = await self._describe_classic(group) or await self._describe_consumer(group)
        if described is not None:
            return described
        other = next((each for each in await self._list_groups() if each.group_id == group), None)
        if other is not None and other.group_type not in ("", "classic", "consumer"):
            raise GroupTypeError(f"group {group!r} is a {other.group_type} group, which this client cannot describe")
        raise group_error(ErrorCode.GROUP_ID_NOT_FOUND, group, "it cannot be described")

    async def _describe_classic(self, group: str) -> GroupDescription | None:
        """The group, None when it is no classic one or does not exist."""

        def code_of(response: DescribeGroupsResponse) -> int:
            return response.groups[0].error_code

        try:
            response, node = await self._ask_group(
                group, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse, code_of, "it cannot be described"
            )
        except UnknownGroupError:
            return None
        found = response.groups[0]
        if found.group_state == "Dead":
            return None
        members = [
            MemberDescription(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                _assignment(m.member_assignment),
                bytes(m.member_metadata),
            )
            for m in sorted(found.members, key=lambda m: m.member_id)
        ]
        return GroupDescription(
            group, found.group_state, found.protocol_type, found.protocol_data, members, coordinator=str(node)
        )

    async def _describe_consumer(self, group: str) -> GroupDescription | None:
        """The same for the groups of KIP-848."""

        def code_of(response: ConsumerGroupDescribeResponse) -> int:
            return response.groups[0].error_code

        request = ConsumerGroupDescribeRequest(group_ids=[group])
        try:
            response, node = await self._ask_group(
                group, request, ConsumerGroupDescribeResponse, code_of, "it cannot be described"
            )
        except (UnknownGroupError, UnsupportedError):
            return None
        except ClientError as error:
            if error.code == ErrorCode.UNSUPPORTED_VERSION:  # the protocol is switched off on the broker
                return None
            raise
        found = response.groups[0]
        members = [
            MemberDescription(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                sorted(TopicPartition(t.topic_name, n) for t in m.assignment.topic_partitions for n in t.partitions),
            )
            for m in sorted(found.members, key=lambda m: m.member_id)
        ]
        return GroupDescription(
            group,
            found.group_state,
            "consumer",
            found.assignor_name,
            members,
            coordinator=str(node),
            group_type="consumer",
            epoch=found.group_epoch,
        )

    def group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, all of them or those asked for; what has none is left out."""
        return self._run.call(self._groups.committed(group, partitions))

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Set the offsets of a group without members; GroupNotEmptyError when it has some."""
        if offsets:
            self._run.call(self._commit(group, offsets))

    async def _commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        def code_of(response: OffsetCommitResponse) -> int:
            return next((p.error_code for t in response.topics for p in t.partitions if p.error_code), 0)

        request = offset_commit(offsets, group, NO_MEMBER, None)
        try:
            await self._ask_group(group, request, OffsetCommitResponse, code_of, "its offsets cannot be set")
        except ClientError as error:
            if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                raise GroupNotEmptyError(f"group {group!r} has members; stop them first", code=error.code) from None
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise CommitError(f"{error}; not all of these partitions exist", partitions=list(offsets)) from None
            raise

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets."""

        def code_of(response: DeleteGroupsResponse) -> int:
            return response.results[0].error_code

        request = DeleteGroupsRequest(groups_names=[group])
        self._run.call(self._ask_group(group, request, DeleteGroupsResponse, code_of, "it cannot be deleted"))

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget the group's offsets of partitions nobody in the group subscribes to."""

        def code_of(response: OffsetDeleteResponse) -> int:
            rows = (p.error_code for t in response.topics for p in t.partitions if p.error_code)
            return response.error_code or next(rows, 0)

        topics: dict[str, OffsetDeleteRequest.Topic] = {}
        for topic, partition in sorted(partitions):
            entry = topics.setdefault(topic, OffsetDeleteRequest.Topic(name=topic))
            entry.partitions.append(OffsetDeleteRequest.Partition(partition_index=partition))
        request = OffsetDeleteRequest(group_id=group, topics=list(topics.values()))
        self._run.call(self._ask_group(group, request, OffsetDeleteResponse, code_of, "its offsets cannot be deleted"))

    async def _ask_group(
        self, group: str, request: Message, kind: type[M], code_of: Callable[[M], int], what: str
    ) -> tuple[M, Node]:
        """Ask the coordinator until it is ready; returns its answer and who it is."""
        patience = Patience(self._cluster.timeout)
        while True:
            node = await self._groups.coordinator(group)
            response = expect(await self._groups.ask(group, request), kind)
            code = error_code(code_of(response))
            if code is ErrorCode.NONE:
                return response, node
            if code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
                raise GroupNotEmptyError(f"group {group!r}: {what} while it has members; stop them first", code=code)
            if code not in PASSING:
                raise group_error(code, group, what)
            if code in STALE_COORDINATOR:
                self._groups.forget(group)
            await patience.pause(f"asking the coordinator of group {group!r}", code.name)


def _assignment(data: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment; none when it is not a consumer's."""
    try:
        return sorted(flat(decode_assignment(data).assigned_partitions)) if data else []
    except WireError:
        return []


def _check_topic(value: int, message: str | None, name: str, what: str) -> None:
    code = error_code(value)
    if code is ErrorCode.NONE:
        return
    text = f"cannot {what} topic {name!r}: {message or code.name}"
    if code is ErrorCode.TOPIC_ALREADY_EXISTS:
        raise TopicExistsError(f"topic {name!r} exists already", code=code)
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopicError(f"there is no topic {name!r}", topics=[name], code=code)
    if code in INVALID_TOPIC:
        raise InvalidTopicError(text, code=code)
    if code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        raise AuthorizationError(f"{text}; this client lacks the right to", code=code)
    raise BrokerError(text, code=code)
