"""Which gate each request goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.broker.gate import cluster, groups, topics, transactions
from roster.broker.gate.gated_request import GatedRequest
from roster.wire import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from roster.broker.call import Answer, Call
    from roster.broker.dispatch import Handler
    from roster.broker.gate.gated_request import Gate
    from roster.broker.services import Services
    from roster.wire import Message
    from roster.wire.messages import ProduceRequest

GATES: dict[int, Gate] = {
    ApiKey.PRODUCE: topics.produce,
    ApiKey.FETCH: cluster.anyone,  # READ on each topic: by the handler, which may name one by id
    ApiKey.LIST_OFFSETS: topics.list_offsets,
    ApiKey.METADATA: topics.metadata,
    ApiKey.OFFSET_COMMIT: groups.offset_commit,
    ApiKey.OFFSET_FETCH: groups.offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.JOIN_GROUP: groups.be_member,
    ApiKey.HEARTBEAT: groups.be_member,
    ApiKey.LEAVE_GROUP: groups.be_member,
    ApiKey.SYNC_GROUP: groups.be_member,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.SASL_HANDSHAKE: cluster.anyone,
    ApiKey.API_VERSIONS: cluster.anyone,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: topics.delete_records,
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: topics.offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
    ApiKey.END_TXN: transactions.end,
    ApiKey.WRITE_TXN_MARKERS: transactions.write_markers,
    ApiKey.TXN_OFFSET_COMMIT: groups.transactional_offset_commit,
    ApiKey.DESCRIBE_ACLS: cluster.describe,
    ApiKey.CREATE_ACLS: cluster.alter,
    ApiKey.DELETE_ACLS: cluster.alter,
    ApiKey.DESCRIBE_CONFIGS: topics.describe_configs,
    ApiKey.ALTER_CONFIGS: topics.alter_configs,
    ApiKey.SASL_AUTHENTICATE: cluster.anyone,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: topics.alter_configs,
    ApiKey.OFFSET_DELETE: groups.offset_delete,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster.describe,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: cluster.alter_users,
    ApiKey.DESCRIBE_CLUSTER: cluster.anyone,
    ApiKey.DESCRIBE_PRODUCERS: topics.describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    ApiKey.CONSUMER_GROUP_DESCRIBE: groups.describe_consumer_groups,
    ApiKey.LIST_CONFIG_RESOURCES: cluster.describe_configs,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: cluster.anyone,  # DESCRIBE on each topic: by the handler, which counts them
}
"""For each request that the broker serves; one without an entry would not be answered."""


async def guarded(services: Services, call: Call[Message], handler: Handler) -> Message | None:
    """Answer a request: by its handler, and with an authorizer through its gate."""
    if not call.access.is_checked:
        return await handler(services, call)
    return await GATES[call.header.api_key](GatedRequest(services, call, handler))


async def guarded_produce(
    services: Services,
    call: Call[ProduceRequest],
    begin: Callable[[Services, Call[ProduceRequest]], Coroutine[None, None, Answer]],
) -> Answer:
    """Begin a Produce, which is answered later, likewise."""
    if not call.access.is_checked:
        return await begin(services, call)
    return await topics.begin_produce(GatedRequest(services, call, begin))
