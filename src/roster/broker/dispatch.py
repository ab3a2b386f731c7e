"""Table of request handlers by API key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from roster.broker.handlers import (
    configs,
    fetch,
    list_offsets,
    metadata,
    produce,
    security_admin,
    topic_admin,
    topic_partitions,
    transactions,
)
from roster.wire import ApiKey, ErrorCode
from roster.wire.messages import ConsumerGroupDescribeResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from roster.broker.call import Call
    from roster.broker.services import Services
    from roster.wire import Message
    from roster.wire.messages import (
        ConsumerGroupDescribeRequest,
        DescribeGroupsRequest,
        OffsetCommitRequest,
        OffsetDeleteRequest,
        OffsetFetchRequest,
        ProduceRequest,
        TxnOffsetCommitRequest,
    )

    Handler: TypeAlias = Callable[[Services, Call[Any]], Coroutine[None, None, Message | None]]
    """Returns the response, or None if the request has none."""


async def _produce(services: Services, call: Call[ProduceRequest]) -> Message | None:
    answer = await produce.produce(services, call)
    return await answer()


async def _group(services: Services, call: Call[Message]) -> Message:
    return await services.group_coordinator.handle(call)


async def _offset_commit(services: Services, call: Call[OffsetCommitRequest]) -> Message:
    return await services.group_coordinator.commit_offsets(call)


async def _txn_offset_commit(services: Services, call: Call[TxnOffsetCommitRequest]) -> Message:
    return await services.group_coordinator.commit_transactional_offsets(call, services.transaction_coordinator)


async def _describe_groups(services: Services, call: Call[DescribeGroupsRequest]) -> Message:
    return await services.group_coordinator.describe(call)


async def _offset_fetch(services: Services, call: Call[OffsetFetchRequest]) -> Message:
    return await services.group_coordinator.fetch_offsets(call)


async def _offset_delete(services: Services, call: Call[OffsetDeleteRequest]) -> Message:
    return await services.group_coordinator.delete_offsets(call)


async def _consumer_group_describe(services: Services, call: Call[ConsumerGroupDescribeRequest]) -> Message:
    """Answer ConsumerGroupDescribe as Kafka does for classic groups, the only ones here."""
    known = services.group_coordinator.coordinator.group
    described = [
        ConsumerGroupDescribeResponse.Group(
            group_id=group,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group} not found."
            if known(group) is None
            else f"Group {group} is not a consumer group.",
        )
        for group in call.message.group_ids
    ]
    return ConsumerGroupDescribeResponse(groups=described)


HANDLERS: dict[int, Handler] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: fetch.fetch,
    ApiKey.LIST_OFFSETS: list_offsets.list_offsets,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
    ApiKey.JOIN_GROUP: _group,
    ApiKey.HEARTBEAT: _group,
    ApiKey.LEAVE_GROUP: _group,
    ApiKey.SYNC_GROUP: _group,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.LIST_GROUPS: _group,
    ApiKey.SASL_HANDSHAKE: security_admin.sasl_handshake,
    ApiKey.API_VERSIONS: metadata.api_versions,
    ApiKey.CREATE_TOPICS: topic_admin.create_topics,
    ApiKey.DELETE_TOPICS: topic_admin.delete_topics,
    ApiKey.DELETE_RECORDS: topic_admin.delete_records,
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: list_offsets.offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.coordinate,
    ApiKey.END_TXN: transactions.coordinate,
    ApiKey.WRITE_TXN_MARKERS: transactions.write_markers,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.DESCRIBE_ACLS: security_admin.describe_acls,
    ApiKey.CREATE_ACLS: security_admin.create_acls,
    ApiKey.DELETE_ACLS: security_admin.delete_acls,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.SASL_AUTHENTICATE: security_admin.sasl_authenticate,
    ApiKey.CREATE_PARTITIONS: topic_admin.create_partitions,
    ApiKey.DELETE_GROUPS: _group,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: security_admin.describe_users,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: security_admin.alter_users,
    ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: transactions.describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe,
    ApiKey.LIST_TRANSACTIONS: transactions.coordinate,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumer_group_describe,
    ApiKey.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topic_partitions.describe_topic_partitions,
}
