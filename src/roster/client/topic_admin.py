"""Topics of a cluster: created, deleted, grown and described on the running event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection

from roster.client.cluster import Cluster, check_refused, expect
from roster.client.errors import AuthorizationError, BrokerError, InvalidTopicError, TopicExistsError, UnknownTopicError
from roster.client.retry import Retry
from roster.client.types import PartitionDescription, TopicDescription
from roster.member.topic_metadata import replica_racks
from roster.wire import ZERO_UUID, ErrorCode, Message
from roster.wire.errors import error_code
from roster.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

TOPIC_RESOURCE = 2
"""ConfigResource.Type.TOPIC of DescribeConfigs."""

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
"""Error codes for an invalid request to create or change a topic."""


_RIGHTS = {"create": "CREATE", "delete": "DELETE", "grow": "ALTER", "look up the settings of": "DESCRIBE_CONFIGS"}
"""The ACL operation that each request needs."""


class TopicAdmin:
    """Requests about topics; changes wait until the metadata shows them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(self, topic: CreateTopicsRequest.Topic) -> None:
        """Create a topic; TopicExistsError, InvalidTopicError, AuthorizationError or BrokerError."""
        request = CreateTopicsRequest(topics=[topic], timeout_ms=self._timeout_ms)
        response = expect(await self._ask_controller(request), CreateTopicsResponse)
        for answer in response.topics:
            _check_topic(answer.error_code, answer.error_message, topic.name, "create")
        await self._await_topic(topic.name, lambda count: count > 0)

    async def delete(self, name: str) -> None:
        """Delete a topic and its records; UnknownTopicError, AuthorizationError or BrokerError."""
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name=name)], timeout_ms=self._timeout_ms)
        response = expect(await self._ask_controller(request), DeleteTopicsResponse)
        for topic in response.responses:
            _check_topic(topic.error_code, topic.error_message, name, "delete")
        await self._await_topic(name, lambda count: count == 0)

    async def grow(self, name: str, total: int) -> None:
        """Raise the number of partitions to `total`; errors as of `create`."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsRequest.Topic(name=name, count=total, assignments=None)],
            timeout_ms=self._timeout_ms,
        )
        response = expect(await self._ask_controller(request), CreatePartitionsResponse)
        for result in response.results:
            _check_topic(result.error_code, result.error_message, name, "grow")
        await self._await_topic(name, lambda count: count >= total)

    async def list_topics(self, *, internal: bool) -> dict[str, int]:
        """Return {name: number of partitions}, sorted by name."""
        response = await self._cluster.metadata()
        return {
            topic.name: len(topic.partitions)
            for topic in sorted(response.topics, key=lambda t: t.name or "")
            if topic.name is not None and (internal or not topic.is_internal)
        }

    async def topic_ids(self) -> dict[str, bytes]:
        """Return {name: id}, without topics that have none."""
        topics = (await self._cluster.metadata()).topics
        return {topic.name: topic.topic_id for topic in topics if topic.name and topic.topic_id != ZERO_UUID}

    async def describe(self, name: str) -> TopicDescription:
        """Describe a topic; UnknownTopicError if metadata does not have it."""
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

    async def configs(self, name: str) -> dict[str, str | None]:
        """Return the settings of a topic, defaults included."""
        resource = DescribeConfigsRequest.Resource(resource_type=TOPIC_RESOURCE, resource_name=name)
        response = expect(
            await self._cluster.request_any(DescribeConfigsRequest(resources=[resource])), DescribeConfigsResponse
        )
        description = response.results[0]
        _check_topic(description.error_code, description.error_message, name, "look up the settings of")
        return {config.name: config.value for config in description.configs}

    async def replica_racks(self, topics: Collection[str]) -> dict[str, list[frozenset[str]]]:
        """Return racks[topic][partition] for topics that exist."""
        return replica_racks(await self._cluster.metadata(topics)) if topics else {}

    @property
    def _timeout_ms(self) -> int:
        return round(self._cluster.timeout * 1000)

    async def _ask_controller(self, request: Message) -> Message:
        """Topics change through the controller; a broker in KRaft mode forwards the request itself."""
        await self._cluster.metadata(())
        address = self._cluster.address(self._cluster.controller)
        if address is None:
            return await self._cluster.request_any(request)
        return await self._cluster.request(address, request)

    async def _await_topic(self, name: str, is_there: Callable[[int], bool]) -> None:
        """Wait until metadata shows the change: it takes time to propagate."""
        retry = Retry(self._cluster.timeout)
        while True:
            response = await self._cluster.metadata([name])
            check_refused(response)
            counts = [len(topic.partitions) for topic in response.topics if topic.error_code == ErrorCode.NONE]
            if is_there(counts[0] if counts else 0):
                return
            await retry.pause_or_fail(f"the change of topic {name}", "metadata does not show it yet")


def _check_topic(value: int, message: str | None, name: str, what: str) -> None:
    code = error_code(value)
    if code is ErrorCode.NONE:
        return
    text = f"cannot {what} topic {name!r}: {(message or code.name).rstrip('.')}"
    if code is ErrorCode.TOPIC_ALREADY_EXISTS:
        raise TopicExistsError(f"topic {name!r} exists already", code=code)
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopicError(f"there is no topic {name!r}", topics=[name], code=code)
    if code in INVALID_TOPIC:
        raise InvalidTopicError(text, code=code)
    if code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        raise AuthorizationError(f"{text}; grant this client {_RIGHTS[what]} on the topic", code=code)
    raise BrokerError(text, code=code)
