"""Topics of a cluster: created, deleted, grown and described."""

from collections.abc import Callable, Collection, Mapping

from roster.client.cluster import Cluster, check_refused, expect
from roster.client.errors import (
    AuthorizationError,
    BrokerError,
    InvalidTopicError,
    OptionError,
    TopicExistsError,
    UnknownTopicError,
)
from roster.client.loop import OnLoop, blocking
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


class TopicAdmin(OnLoop):
    """Requests about topics; changes wait until the metadata shows them."""

    _cluster: Cluster

    @blocking
    async def create_topic(
        self, name: str, partitions: int = 1, *, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until the metadata shows it.

        Args:
            name: its name.
            partitions: how many, from 1 up.
            replication: replicas of each partition; -1 for the cluster's default.
            configs: settings of the topic, as in {"cleanup.policy": "compact"}.

        Raises:
            TopicExistsError: there is a topic of this name.
            InvalidTopicError: the cluster does not allow the name, a number or a setting.
            OptionError: `partitions` is less than 1.
        """
        if partitions < 1:
            raise OptionError("partitions", f"must be at least 1, not {partitions}")
        topic = CreateTopicsRequest.Topic(name=name, num_partitions=partitions, replication_factor=replication)
        topic.configs = [CreateTopicsRequest.Config(name=key, value=value) for key, value in (configs or {}).items()]
        request = CreateTopicsRequest(topics=[topic], timeout_ms=self._timeout_ms)
        response = expect(await self._ask_controller(request), CreateTopicsResponse)
        for answer in response.topics:
            _check_topic(answer.error_code, answer.error_message, name, "create")
        await self._await_topic(name, lambda count: count > 0)

    @blocking
    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, and wait until it is gone from the metadata.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name=name)], timeout_ms=self._timeout_ms)
        response = expect(await self._ask_controller(request), DeleteTopicsResponse)
        for topic in response.responses:
            _check_topic(topic.error_code, topic.error_message, name, "delete")
        await self._await_topic(name, lambda count: count == 0)

    @blocking
    async def create_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions of a topic to `total`, and wait until the metadata shows them.

        Raises:
            UnknownTopicError: the topic does not exist.
            InvalidTopicError: `total` is not more than the topic has.
        """
        topic = CreatePartitionsRequest.Topic(name=name, count=total, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=self._timeout_ms)
        response = expect(await self._ask_controller(request), CreatePartitionsResponse)
        for result in response.results:
            _check_topic(result.error_code, result.error_message, name, "grow")
        await self._await_topic(name, lambda count: count >= total)

    @blocking
    async def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        """Return {name: number of partitions}, sorted by name; with `internal` also the cluster's own topics."""
        response = await self._cluster.metadata()
        return {
            topic.name: len(topic.partitions)
            for topic in sorted(response.topics, key=lambda t: t.name or "")
            if topic.name is not None and (internal or not topic.is_internal)
        }

    @blocking
    async def topic_ids(self) -> dict[str, bytes]:
        """Return {name: id} of all topics with ids, which Kafka has since 2.8."""
        topics = (await self._cluster.metadata()).topics
        return {topic.name: topic.topic_id for topic in topics if topic.name and topic.topic_id != ZERO_UUID}

    @blocking
    async def describe_topic(self, name: str) -> TopicDescription:
        """Return the partitions of a topic, their leaders and replicas.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
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

    @blocking
    async def topic_configs(self, name: str) -> dict[str, str | None]:
        """Return the settings of a topic, defaults included; None for a value that the broker does not reveal.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        resource = DescribeConfigsRequest.Resource(resource_type=TOPIC_RESOURCE, resource_name=name)
        response = expect(
            await self._cluster.request_any(DescribeConfigsRequest(resources=[resource])), DescribeConfigsResponse
        )
        description = response.results[0]
        _check_topic(description.error_code, description.error_message, name, "look up the settings of")
        return {config.name: config.value for config in description.configs}

    @blocking
    async def replica_racks(self, topics: Collection[str]) -> dict[str, list[frozenset[str]]]:
        """Return racks[topic][partition]: the racks of the brokers that hold a replica.

        Topics that do not exist, or that this client may not see, are left out.
        """
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
