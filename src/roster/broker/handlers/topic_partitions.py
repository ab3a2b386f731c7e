"""DescribeTopicPartitions (KIP-966): topics a page at a time, in the order of their names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from roster.broker.handlers.metadata import led_by
from roster.broker.request_limits import in_slices
from roster.model.acl import AclOperation, ResourceType
from roster.model.topics import is_legal_name
from roster.wire import ZERO_UUID, ErrorCode
from roster.wire.error_replies import error_response
from roster.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from roster.wire.messages.cluster import Cursor

if TYPE_CHECKING:
    from roster.broker.call import Call
    from roster.broker.services import Services
    from roster.broker.topics import Topic
    from roster.wire import Message

MOST_PARTITIONS = 2_000
"""Partitions of one page (Kafka's `max.request.partition.size.limit`)."""


async def describe_topic_partitions(services: Services, call: Call[DescribeTopicPartitionsRequest]) -> Message:
    """Return a page of the topics that the client may DESCRIBE, and a cursor to the next one.

    A topic that is named and may not be described is refused; it takes no place in the page.
    """
    request, access = call.message, call.access
    cursor = request.cursor or Cursor()
    named = {topic.name for topic in request.topics}
    if request.cursor is not None and (cursor.partition_index < 0 or (named and cursor.topic_name not in named)):
        return error_response(request, call.version, ErrorCode.INVALID_REQUEST)
    names = [name for name in named or {topic.name for topic in services.topics} if name >= cursor.topic_name]
    visible: list[str] = []
    refused: list[str] = []
    async for name in in_slices(sorted(names)):
        (visible if access.may_on_topic(AclOperation.DESCRIBE, name) else refused).append(name)
    page = _Page(services, max(1, min(request.response_partition_limit, MOST_PARTITIONS)))
    async for name in in_slices(visible):
        if not page.take(name, cursor.partition_index if name == cursor.topic_name else 0, skip_missing=not named):
            break
    response = page.response
    for topic in response.topics:
        topic.topic_authorized_operations = access.operations(ResourceType.TOPIC, topic.name or "")
    response.topics += [
        DescribeTopicPartitionsResponse.Topic(
            name=name, topic_id=ZERO_UUID, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        for name in (refused if named else ())
    ]
    return response


class _Page:
    """A response that is filled up to a number of partitions."""

    def __init__(self, services: Services, room: int) -> None:
        self._services = services
        self._room = room
        self.response = DescribeTopicPartitionsResponse()

    def take(self, name: str, start: int, *, skip_missing: bool) -> bool:
        """Add the partitions of a topic from `start` on; False if the page ends here, with a cursor."""
        if not self._room:
            self.response.next_cursor = Cursor(topic_name=name)
            return False
        topic = self._services.topics.get(name)
        if topic is None:
            if not skip_missing:
                self.response.topics.append(_missing(name))
            return True
        end = min(len(topic.logs), start + self._room)
        self.response.topics.append(_described(self._services.config.node_id, topic, range(start, end)))
        if end < len(topic.logs):
            self.response.next_cursor = Cursor(topic_name=name, partition_index=end)
            return False
        self._room -= max(0, end - start)
        return True


def _missing(name: str) -> DescribeTopicPartitionsResponse.Topic:
    legal = is_legal_name(name)
    return DescribeTopicPartitionsResponse.Topic(
        name=name,
        topic_id=ZERO_UUID,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION,
    )


def _described(node_id: int, topic: Topic, partitions: range) -> DescribeTopicPartitionsResponse.Topic:
    return DescribeTopicPartitionsResponse.Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=led_by(
            node_id,
            partitions,
            partial(DescribeTopicPartitionsResponse.Partition, eligible_leader_replicas=[], last_known_elr=[]),
        ),
    )
