"""The group coordinator's shell: requests and timers in, replies out, its records in `__consumer_offsets`."""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from roster._clock import wall_ms
from roster.broker.call import Call
from roster.broker.hooks import Hooks
from roster.broker.log.flusher import Flusher
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.producer_state import NO_TRANSACTION
from roster.broker.request_limits import count_items
from roster.broker.shell import Shell
from roster.broker.stored_records import read_transactional_records
from roster.broker.topics import OFFSETS_TOPIC, TopicCatalogue
from roster.coordinator import Coordinator, CoordinatorConfig
from roster.coordinator.events import Event, LoadedRecord, TimerName, TopicsDeleted, TransactionEnd, TransactionEnded
from roster.coordinator.offset_commit import Errors, transactional_commit_response
from roster.model import TopicPartition
from roster.model.acl import ResourceType
from roster.wire import ErrorCode, Message
from roster.wire.control_records import ControlType, EndTxnMarker
from roster.wire.error_replies import error_response
from roster.wire.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TopicErrors,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

IMPLICIT_OFFSETS_FROM = 5
"""TxnOffsetCommit version that adds the group to the transaction by itself (KIP-890)."""
ABORTABLE_OFFSETS_FROM = 4
"""TxnOffsetCommit version that knows TRANSACTION_ABORTABLE."""
OFFSETS_BY_ID_FROM = 6
"""TxnOffsetCommit version that names topics by id (KIP-1319)."""


class Transactions(Protocol):
    """The part of the transaction coordinator that transactional offset commits need."""

    async def add(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Iterable[TopicPartition],
        *,
        verify_only: bool = False,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Add partitions to a transaction, or check that they were added."""


class CoordinatorShell(Shell[TimerName]):
    """Runs one coordinator for all partitions of `__consumer_offsets`."""

    topic_name = OFFSETS_TOPIC
    kept = "groups"

    def __init__(
        self, topics: TopicCatalogue, flusher: Flusher, on_failure: Callable[[BaseException], None], hooks: Hooks
    ) -> None:
        super().__init__(topics, flusher, on_failure)
        self._hooks = hooks
        self._loading: asyncio.Task[None] | None = None

    async def start(self, config: CoordinatorConfig) -> None:
        """Start to load the groups; until a partition is loaded its groups answer COORDINATOR_LOAD_IN_PROGRESS."""
        config = replace(config, partitions=await self._open(config.partitions))
        self.coordinator = Coordinator(config, lambda: str(uuid.uuid4()), self._pending.is_waiting)
        """The state machine, to be looked at in the event loop."""
        self._loading = self._begin_loading()

    def _read(self, log: PartitionLog) -> tuple[LoadedRecord, ...]:
        return read_transactional_records(log)

    def _unreadable_records(self) -> int:
        return self.coordinator.unreadable_records

    async def loaded(self) -> None:
        """Return when every group is loaded; the end of a transaction must not come before."""
        if self._loading is not None:
            await asyncio.wait([self._loading])

    def transaction_ended(self, partition: int, producer_id: int, marker: EndTxnMarker) -> None:
        """Decide the offsets of a producer's transaction, whose marker in a partition is durable."""
        end = TransactionEnd(producer_id, marker.control_type is ControlType.COMMIT)
        self._step(TransactionEnded(partition, end, wall_ms()))

    # Requests

    def begin(self, call: Call[Message], answered: Callable[[Message], None]) -> int:
        """Give a request to the coordinator; `answered` is called with its reply, perhaps at once.

        Returns a token by which the request can be given up.
        """
        token = self._pending.begin(answered)
        try:
            self._step(self._received(token, call))
        except BaseException:
            self._pending.give_up(token)
            raise
        return token

    def beat(self, request: HeartbeatRequest) -> ErrorCode:
        """Handle a heartbeat, as `begin` does, without what only other requests need. `is_watched` must be False."""
        error, timers = self.coordinator.heartbeat(request, self._timers.now())
        if timers:
            self._timers.apply(timers)
        return error

    @property
    def is_watched(self) -> bool:
        """True if a hook sees every event."""
        return self._hooks.observe is not None

    def give_up(self, token: int) -> None:
        """Drop the reply to a request whose client is gone."""
        self._pending.give_up(token)

    def is_plain_commit(self, request: OffsetCommitRequest) -> bool:
        """Return True if `commit_offsets` would hand the request on as it is."""
        return bool(request.topics) and all(
            topic.partitions and not self._unknown_partitions(topic.name, topic.partitions) for topic in request.topics
        )

    async def commit_offsets(self, call: Call[OffsetCommitRequest]) -> Message:
        """Handle OffsetCommit; a request for very many partitions is handled in parts."""
        request = call.message
        refused = self._take_unknown(request)
        response = OffsetCommitResponse()
        for topics in list(topic_parts(request.topics, "partitions", COMMITS_AT_ONCE)) if request.topics else ():
            part = await self.handle(replace(call, message=replace(request, topics=topics)))
            response.topics += cast("OffsetCommitResponse", part).topics
            await asyncio.sleep(0)
        response.topics = _with_refused(TopicErrors, refused, response.topics)
        return response

    async def commit_transactional_offsets(
        self, call: Call[TxnOffsetCommitRequest], transactions: Transactions
    ) -> Message:
        """Handle TxnOffsetCommit: refuse unknown partitions, and have the transaction checked or extended first."""
        request = call.message
        unknown = self._take_unknown_ids(request) if call.version >= OFFSETS_BY_ID_FROM else []
        ids = {topic.name: topic.topic_id for topic in request.topics}
        refused = self._take_unknown(request)
        response = TxnOffsetCommitResponse()
        if request.topics:
            error = await self._check_transaction(call, transactions)
            if error:
                response = transactional_commit_response(request, error)
            else:
                response = cast("TxnOffsetCommitResponse", await self.handle(call))
        response.topics = _with_refused(TxnOffsetCommitResponse.Topic, refused, response.topics)
        for topic in response.topics:
            topic.topic_id = ids[topic.name]
        errors = error_response(replace(request, topics=unknown), call.version, ErrorCode.UNKNOWN_TOPIC_ID)
        response.topics += cast("TxnOffsetCommitResponse", errors).topics
        return response

    def _take_unknown_ids(self, request: TxnOffsetCommitRequest) -> list[TxnOffsetCommitRequest.Topic]:
        """Give topics that are named by id their names; take out and return those that do not exist."""
        known = [(topic, self._topics.by_id(topic.topic_id)) for topic in request.topics]
        for topic, found in known:
            topic.name = "" if found is None else found.name
        request.topics = [topic for topic, found in known if found is not None]
        return [topic for topic, found in known if found is None]

    async def _check_transaction(self, call: Call[TxnOffsetCommitRequest], transactions: Transactions) -> ErrorCode:
        """Return the error that keeps a producer from committing offsets in its transaction, or NONE."""
        request = call.message
        partition = self.coordinator.partition_of(request.group_id)
        producer = (request.producer_id, request.producer_epoch)
        if self._logs[partition].producers.begins_at(*producer) != NO_TRANSACTION or not request.group_id:
            return ErrorCode.NONE
        group_partition = TopicPartition(OFFSETS_TOPIC, partition)
        errors = await transactions.add(
            request.transactional_id, producer, [group_partition], verify_only=call.version < IMPLICIT_OFFSETS_FROM
        )
        match errors[group_partition]:
            case ErrorCode.PRODUCER_FENCED:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            case ErrorCode.TRANSACTION_ABORTABLE if call.version < ABORTABLE_OFFSETS_FROM:
                return ErrorCode.INVALID_TXN_STATE
            case ErrorCode.CONCURRENT_TRANSACTIONS:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            case error:
                return error

    async def delete_offsets(self, call: Call[OffsetDeleteRequest]) -> Message:
        """Handle OffsetDelete."""
        refused = self._take_unknown(call.message)
        response = OffsetDeleteResponse()
        if call.message.topics:
            response = cast("OffsetDeleteResponse", await self.handle(call))
            if response.error_code != ErrorCode.NONE:
                return response
        response.topics = _with_refused(TopicErrors, refused, response.topics)
        return response

    def _take_unknown(self, request: Any) -> dict[str, list[int]]:
        """Take the partitions that do not exist out of a request; return them by topic.

        They are refused here, since the coordinator does not know topics.
        """
        taken: dict[str, list[int]] = {}
        for topic in request.topics:
            unknown = self._unknown_partitions(topic.name, topic.partitions)
            if unknown:
                taken.setdefault(topic.name, []).extend(unknown)
                refused = set(unknown)
                topic.partitions = [
                    partition for partition in topic.partitions if partition.partition_index not in refused
                ]
        request.topics = [topic for topic in request.topics if topic.partitions]
        return taken

    def _unknown_partitions(self, name: str, partitions: Iterable[Any]) -> list[int]:
        topic = self._topics.get(name)
        count = len(topic.logs) if topic is not None else 0
        return [partition.partition_index for partition in partitions if not 0 <= partition.partition_index < count]

    async def describe(self, call: Call[DescribeGroupsRequest]) -> Message:
        """Handle DescribeGroups; add the authorized operations, which the coordinator does not know."""
        response = DescribeGroupsResponse()
        for part in describe_parts(call.message):
            described = await self.handle(replace(call, message=part))
            response.groups += cast("DescribeGroupsResponse", described).groups
            await asyncio.sleep(0)
        if call.message.include_authorized_operations:
            for group in response.groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = call.access.operations(ResourceType.GROUP, group.group_id)
        return response

    async def fetch_offsets(self, call: Call[OffsetFetchRequest]) -> Message:
        """Handle OffsetFetch; a request for very many partitions is handled in parts."""
        response = OffsetFetchResponse()
        for part in offset_fetch_parts(call.message):
            answer = cast("OffsetFetchResponse", await self.handle(replace(call, message=part)))
            response.error_code = response.error_code or answer.error_code
            response.topics += answer.topics
            for group in answer.groups:
                if response.groups and response.groups[-1].group_id == group.group_id and len(answer.groups) == 1:
                    response.groups[-1].topics += group.topics
                else:
                    response.groups.append(group)
            await asyncio.sleep(0)
        return response

    def topics_deleted(self, names: Sequence[str]) -> None:
        """Remove the offsets committed for deleted topics."""
        self._step(TopicsDeleted(tuple(names), wall_ms()))

    # Effects

    def _step(self, event: Event) -> None:
        effects = self.coordinator.step(event, self._timers.now())
        self._carry_out(effects.timers, effects.writes, effects.replies)
        if self._hooks.observe is not None:
            self._hooks.observe(self.coordinator, event, effects)


def _with_refused(kind: type[Errors], refused: dict[str, list[int]], answered: list[Errors]) -> list[Errors]:
    """Return the topics of a response, refused partitions before the others, as Kafka orders them."""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    merged: dict[str, Errors] = {
        name: kind(
            name=name, partitions=[TopicErrors.Partition(partition_index=index, error_code=code) for index in indexes]
        )
        for name, indexes in refused.items()
    }
    for topic in answered:
        if topic.name in merged:
            merged[topic.name].partitions += topic.partitions
    return list(merged.values()) + [topic for topic in answered if topic.name not in refused]


AT_ONCE = 250
"""Groups or partitions per part; other clients are served between two parts."""
COMMITS_AT_ONCE = 2_000
"""The same for OffsetCommit, where each part is a write."""


def describe_parts(request: DescribeGroupsRequest) -> Iterator[DescribeGroupsRequest]:
    """Split DescribeGroups into requests of AT_ONCE groups.

    A larger request gets each group described once. Apache Kafka repeats a description as often as the group is named,
    which multiplies the group's metadata by the repetitions.
    """
    groups = request.groups
    if len(groups) > AT_ONCE:
        groups = list(dict.fromkeys(groups))
    for start in range(0, max(len(groups), 1), AT_ONCE):
        yield replace(request, groups=groups[start : start + AT_ONCE])


def offset_fetch_parts(request: OffsetFetchRequest) -> Iterator[OffsetFetchRequest]:
    """Split OffsetFetch into requests of AT_ONCE partitions; the topics of one group may come in several parts."""
    if count_items(request, AT_ONCE) <= AT_ONCE:
        yield request
        return
    for topics in topic_parts(request.topics, "partition_indexes") if request.topics else ():
        yield replace(request, topics=topics)
    for group in request.groups:
        parts: Iterable[Any] = [None] if group.topics is None else topic_parts(group.topics, "partition_indexes")
        for topics in parts:
            yield replace(request, groups=[replace(group, topics=topics)])


def topic_parts(topics: Iterable[Any], field: str, at_once: int = AT_ONCE) -> Iterator[list[Any]]:
    """Split topics with their partitions in `field` into lists that hold at most `at_once` topics and partitions."""
    part: list[Any] = []
    room = at_once
    for topic in topics:
        partitions = getattr(topic, field)
        start = 0
        while start < len(partitions) or start == 0:
            if room < 2:
                yield part
                part, room = [], at_once
            some = partitions[start : start + room - 1]
            part.append(replace(topic, **{field: some}))
            room -= len(some) + 1
            start += max(len(some), 1)
    yield part
