"""For each request the handler that answers it, and the gate that it passes before where there are ACLs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from roster.broker.gate import cluster, groups, topics
from roster.broker.gate import transactions as transactional_ids
from roster.broker.gate.asked import Asked
from roster.broker.handlers import (
    configs,
    delete_records,
    fetch,
    list_offsets,
    log_dirs,
    metadata,
    produce,
    security_admin,
    topic_admin,
    transactions,
)
from roster.wire import ApiKey, ErrorCode
from roster.wire.messages import ConsumerGroupDescribeResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from roster.broker.call import Answer, Call
    from roster.broker.services import Services
    from roster.wire import Message
    from roster.wire.messages import ConsumerGroupDescribeRequest

    Handler: TypeAlias = Callable[[Services, Call[Any]], Coroutine[None, None, Message | None]]
    """Returns the response, or None if the request has none."""
    Gate: TypeAlias = Callable[[Asked], Coroutine[None, None, Any]]
    """Takes out of the request what the client may not do, has the rest answered, and refuses that in the response."""


async def _produce(services: Services, call: Call[Any]) -> Message | None:
    answer = await produce.produce(services, call)
    return await answer()


async def _group(services: Services, call: Call[Any]) -> Message:
    return await services.group_coordinator.handle(call)


async def _offset_commit(services: Services, call: Call[Any]) -> Message:
    return await services.group_coordinator.commit_offsets(call)


async def _txn_offset_commit(services: Services, call: Call[Any]) -> Message:
    return await services.group_coordinator.commit_transactional_offsets(call, services.transaction_coordinator)


async def _describe_groups(services: Services, call: Call[Any]) -> Message:
    return await services.group_coordinator.describe(call)


async def _offset_fetch(services: Services, call: Call[Any]) -> Message:
    return await services.group_coordinator.fetch_offsets(call)


async def _offset_delete(services: Services, call: Call[Any]) -> Message:
    return await services.group_coordinator.delete_offsets(call)


async def _consumer_group_describe(_services: Services, call: Call[ConsumerGroupDescribeRequest]) -> Message:
    """Answer ConsumerGroupDescribe as Kafka does for classic groups, the only ones here."""
    described = [
        ConsumerGroupDescribeResponse.Group(
            group_id=group,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group} is not a consumer group.",
        )
        for group in call.message.group_ids
    ]
    return ConsumerGroupDescribeResponse(groups=described)


class Served(NamedTuple):
    """How a request is answered."""

    handler: Handler
    gate: Gate


REQUESTS: dict[int, Served] = {
    ApiKey.PRODUCE: Served(_produce, topics.produce),
    ApiKey.FETCH: Served(fetch.fetch, cluster.anyone),  # READ on each topic: by the handler, which has looked up ids
    ApiKey.LIST_OFFSETS: Served(list_offsets.list_offsets, topics.list_offsets),
    ApiKey.METADATA: Served(metadata.metadata, topics.metadata),
    ApiKey.OFFSET_COMMIT: Served(_offset_commit, groups.offset_commit),
    ApiKey.OFFSET_FETCH: Served(_offset_fetch, groups.offset_fetch),
    ApiKey.FIND_COORDINATOR: Served(metadata.find_coordinator, groups.find_coordinator),
    ApiKey.JOIN_GROUP: Served(_group, groups.be_member),
    ApiKey.HEARTBEAT: Served(_group, groups.be_member),
    ApiKey.LEAVE_GROUP: Served(_group, groups.be_member),
    ApiKey.SYNC_GROUP: Served(_group, groups.be_member),
    ApiKey.DESCRIBE_GROUPS: Served(_describe_groups, groups.describe_groups),
    ApiKey.LIST_GROUPS: Served(_group, groups.list_groups),
    ApiKey.SASL_HANDSHAKE: Served(security_admin.sasl_handshake, cluster.anyone),
    ApiKey.API_VERSIONS: Served(metadata.api_versions, cluster.anyone),
    ApiKey.CREATE_TOPICS: Served(topic_admin.create_topics, topics.create_topics),
    ApiKey.DELETE_TOPICS: Served(topic_admin.delete_topics, topics.delete_topics),
    ApiKey.DELETE_RECORDS: Served(delete_records.delete_records, topics.delete_records),
    ApiKey.INIT_PRODUCER_ID: Served(transactions.init_producer_id, transactional_ids.init_producer_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: Served(transactions.add_partitions, transactional_ids.add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: Served(transactions.coordinate, transactional_ids.add_offsets),
    ApiKey.END_TXN: Served(transactions.coordinate, transactional_ids.end),
    ApiKey.WRITE_TXN_MARKERS: Served(transactions.write_markers, transactional_ids.write_markers),
    ApiKey.TXN_OFFSET_COMMIT: Served(_txn_offset_commit, groups.transactional_offset_commit),
    ApiKey.DESCRIBE_ACLS: Served(security_admin.describe_acls, cluster.describe),
    ApiKey.CREATE_ACLS: Served(security_admin.create_acls, cluster.alter),
    ApiKey.DELETE_ACLS: Served(security_admin.delete_acls, cluster.alter),
    ApiKey.DESCRIBE_CONFIGS: Served(configs.describe_configs, topics.describe_configs),
    ApiKey.ALTER_CONFIGS: Served(configs.alter_configs, topics.alter_configs),
    ApiKey.DESCRIBE_LOG_DIRS: Served(log_dirs.describe_log_dirs, cluster.describe_log_dirs),
    ApiKey.SASL_AUTHENTICATE: Served(security_admin.sasl_authenticate, cluster.anyone),
    ApiKey.CREATE_PARTITIONS: Served(topic_admin.create_partitions, topics.create_partitions),
    ApiKey.DELETE_GROUPS: Served(_group, groups.delete_groups),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(configs.incremental_alter_configs, topics.alter_configs),
    ApiKey.OFFSET_DELETE: Served(_offset_delete, groups.offset_delete),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Served(security_admin.describe_users, cluster.describe),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Served(security_admin.alter_users, cluster.alter_users),
    ApiKey.DESCRIBE_CLUSTER: Served(metadata.describe_cluster, cluster.anyone),
    ApiKey.DESCRIBE_PRODUCERS: Served(transactions.describe_producers, topics.describe_producers),
    ApiKey.DESCRIBE_TRANSACTIONS: Served(transactions.describe, transactional_ids.describe),
    ApiKey.LIST_TRANSACTIONS: Served(transactions.coordinate, transactional_ids.list_transactions),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(_consumer_group_describe, groups.describe_consumer_groups),
}


async def guarded(services: Services, call: Call[Any], handler: Handler) -> Message | None:
    """Answer a request by a handler, and where there are ACLs through its gate."""
    if not call.access.is_checked:
        return await handler(services, call)
    response: Message | None = await REQUESTS[call.header.api_key].gate(Asked(services, call, handler))
    return response


async def guarded_produce(services: Services, call: Call[Any]) -> Answer:
    """Begin a Produce, which is answered later, likewise."""
    if not call.access.is_checked:
        return await produce.produce(services, call)
    return await topics.produce(Asked(services, call, produce.produce))
