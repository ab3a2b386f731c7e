"""What tools ask about replicas and quotas, answered for a cluster of one broker: sizes are its own, nothing moves."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from roster.broker.errors import RefusedError
from roster.broker.request_limits import in_slices
from roster.wire import ErrorCode
from roster.wire.messages import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from roster.broker.call import Call
    from roster.broker.log.partition_log import PartitionLog
    from roster.broker.services import Services
    from roster.wire import Message

ELECTION_TYPES = (0, 1)
"""Preferred and unclean."""
ENTITY_TYPES = ("user", "client-id", "ip")
EXACT, DEFAULT, ANY = range(3)

logger = logging.getLogger(__name__)


async def describe_log_dirs(services: Services, call: Call[DescribeLogDirsRequest]) -> Message:
    """Return the size of each partition in the data directory, and of its volume."""
    directory = services.config.data_dir.absolute()
    result = DescribeLogDirsResponse.Result(log_dir=str(directory))
    try:
        volume = await asyncio.to_thread(shutil.disk_usage, directory)
        result.total_bytes, result.usable_bytes = volume.total, volume.free
    except OSError as error:
        logger.error("cannot look at %s: %s", directory, error)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeLogDirsResponse(results=[result])
    sizes = [(topic, index, log.size) async for topic, index, log in in_slices(_logs(services, call.message))]
    for name, group in groupby(sizes, lambda each: each[0]):
        partitions = [
            DescribeLogDirsResponse.Partition(partition_index=index, partition_size=size) for _, index, size in group
        ]
        result.topics.append(DescribeLogDirsResponse.Topic(name=name, partitions=partitions))
    return DescribeLogDirsResponse(results=[result])


def _logs(services: Services, request: DescribeLogDirsRequest) -> Iterator[tuple[str, int, PartitionLog]]:
    """The partitions asked for that there are."""
    if request.topics is None:
        wanted: dict[str, Iterable[int]] = {topic.name: range(len(topic.logs)) for topic in services.topics}
    else:
        wanted = {asked.topic: sorted(set(asked.partitions)) for asked in request.topics}
    for name, indexes in wanted.items():
        for index in indexes:
            if (log := services.topics.log(name, index)) is not None:
                yield name, index, log


async def elect_leaders(services: Services, call: Call[ElectLeadersRequest]) -> Message:
    """Say of each partition that it has its leader; of all partitions, those that did not are left out, so none."""
    request = call.message
    if request.election_type not in ELECTION_TYPES and request.topic_partitions != []:
        return refused_elections(
            request, ErrorCode.INVALID_REQUEST, f"{request.election_type} is not a type of election"
        )
    response = ElectLeadersResponse()
    if request.topic_partitions is None:
        response.replica_election_results = [
            ElectLeadersResponse.ReplicaElectionResult(topic=topic.name) async for topic in in_slices(services.topics)
        ]
        return response

    def outcome(name: str, index: int) -> tuple[ErrorCode, str]:
        if services.topics.log(name, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of {name!r}"
        return ErrorCode.ELECTION_NOT_NEEDED, "the only replica of a partition is its leader"

    response.replica_election_results = [
        _elected(asked, outcome) async for asked in in_slices(request.topic_partitions)
    ]
    return response


def refused_elections(request: ElectLeadersRequest, error: ErrorCode, text: str) -> ElectLeadersResponse:
    """Return the response that refuses all of a request, and each partition of it."""
    results = [_elected(asked, lambda *_: (error, text)) for asked in request.topic_partitions or ()]
    return ElectLeadersResponse(error_code=error, replica_election_results=results)


def _elected(
    asked: ElectLeadersRequest.TopicPartitions, outcome: Callable[[str, int], tuple[ErrorCode, str]]
) -> ElectLeadersResponse.ReplicaElectionResult:
    result = ElectLeadersResponse.ReplicaElectionResult(topic=asked.topic)
    for index in asked.partitions:
        code, text = outcome(asked.topic, index)
        result.partition_result.append(
            ElectLeadersResponse.PartitionResult(partition_id=index, error_code=code, error_message=text)
        )
    return result


async def list_partition_reassignments(_: Services, __: Call[ListPartitionReassignmentsRequest]) -> Message:
    """Say that no partition is on its way to another broker."""
    return ListPartitionReassignmentsResponse()


async def describe_client_quotas(_: Services, call: Call[DescribeClientQuotasRequest]) -> Message:
    """Answer that no quotas exist, if the request is valid."""
    try:
        _check_filter(call.message.components)
    except RefusedError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
    return DescribeClientQuotasResponse(error_message="")


def _check_filter(components: list[DescribeClientQuotasRequest.Component]) -> None:
    """Raise RefusedError for components that Kafka refuses."""
    times = Counter(each.entity_type for each in components)
    for component in components:
        entity, kind = component.entity_type, component.match_type
        if entity and entity not in ENTITY_TYPES:
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"{entity!r} is none of {', '.join(ENTITY_TYPES)}")
        if not entity or times[entity] > 1:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"entity type {entity!r} must be named, and once only")
        if kind not in (EXACT, DEFAULT, ANY):
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{entity}: {kind} is not a type of match")
        if (kind == EXACT) != (component.match is not None):
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{entity}: an exact match, and no other, names what it is")
    if times["ip"] and len(times) > 1:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "ip cannot be asked for together with user or client-id")
