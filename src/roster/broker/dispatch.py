"""Which handler answers each request, and behind which gate."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from roster.broker.call import Answer, Call
from roster.broker.coordinator_shell import CoordinatorShell
from roster.broker.gate import cluster as cluster_rights
from roster.broker.gate import groups as group_rights
from roster.broker.gate import topics as topic_rights
from roster.broker.gate import transactions as transaction_rights
from roster.broker.gate.gated_request import Gate, GatedRequest
from roster.broker.handlers import (
    configs,
    fetch,
    list_offsets,
    metadata,
    produce,
    security_admin,
    topic_admin,
    transactions,
)
from roster.broker.services import Services
from roster.wire import ApiKey, Message
from roster.wire.messages import (
    ProduceRequest,
    TxnOffsetCommitRequest,
)

Handler: TypeAlias = Callable[[Services, Call[Any]], Coroutine[None, None, Message | None]]
"""Returns the response, or None if the request has none."""


async def _produce(services: Services, call: Call[ProduceRequest]) -> Message | None:
    answer = await produce.produce(services, call)
    return await answer()


def _of_groups(method: Callable[[CoordinatorShell, Call[Any]], Coroutine[None, None, Message]]) -> Handler:
    """Return the handler that a method of the group coordinator's shell is."""
    return lambda services, call: method(services.group_coordinator, call)


_group = _of_groups(CoordinatorShell.handle)


async def _txn_offset_commit(services: Services, call: Call[TxnOffsetCommitRequest]) -> Message:
    return await services.group_coordinator.commit_transactional_offsets(call, services.transaction_coordinator)


ROUTES: dict[int, tuple[Handler, Gate]] = {
    ApiKey.PRODUCE: (_produce, topic_rights.produce),
    ApiKey.FETCH: (fetch.fetch, cluster_rights.anyone),
    ApiKey.LIST_OFFSETS: (list_offsets.list_offsets, topic_rights.list_offsets),
    ApiKey.METADATA: (metadata.metadata, topic_rights.metadata),
    ApiKey.OFFSET_COMMIT: (_of_groups(CoordinatorShell.commit_offsets), group_rights.offset_commit),
    ApiKey.OFFSET_FETCH: (_of_groups(CoordinatorShell.fetch_offsets), group_rights.offset_fetch),
    ApiKey.FIND_COORDINATOR: (metadata.find_coordinator, group_rights.find_coordinator),
    ApiKey.JOIN_GROUP: (_group, group_rights.be_member),
    ApiKey.HEARTBEAT: (_group, group_rights.be_member),
    ApiKey.LEAVE_GROUP: (_group, group_rights.be_member),
    ApiKey.SYNC_GROUP: (_group, group_rights.be_member),
    ApiKey.DESCRIBE_GROUPS: (_of_groups(CoordinatorShell.describe), group_rights.describe_groups),
    ApiKey.LIST_GROUPS: (_group, group_rights.list_groups),
    ApiKey.SASL_HANDSHAKE: (security_admin.sasl_handshake, cluster_rights.anyone),
    ApiKey.API_VERSIONS: (metadata.api_versions, cluster_rights.anyone),
    ApiKey.CREATE_TOPICS: (topic_admin.create_topics, topic_rights.create_topics),
    ApiKey.DELETE_TOPICS: (topic_admin.delete_topics, topic_rights.delete_topics),
    ApiKey.DELETE_RECORDS: (topic_admin.delete_records, topic_rights.delete_records),
    ApiKey.INIT_PRODUCER_ID: (transactions.init_producer_id, transaction_rights.init_producer_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: (transactions.add_partitions, transaction_rights.add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: (transactions.coordinate, transaction_rights.add_offsets),
    ApiKey.END_TXN: (transactions.coordinate, transaction_rights.end),
    ApiKey.WRITE_TXN_MARKERS: (transactions.write_markers, transaction_rights.write_markers),
    ApiKey.TXN_OFFSET_COMMIT: (_txn_offset_commit, group_rights.transactional_offset_commit),
    ApiKey.DESCRIBE_ACLS: (security_admin.describe_acls, cluster_rights.describe),
    ApiKey.CREATE_ACLS: (security_admin.create_acls, cluster_rights.alter),
    ApiKey.DELETE_ACLS: (security_admin.delete_acls, cluster_rights.alter),
    ApiKey.DESCRIBE_CONFIGS: (configs.describe_configs, topic_rights.describe_configs),
    ApiKey.ALTER_CONFIGS: (configs.alter_configs, topic_rights.alter_configs),
    ApiKey.SASL_AUTHENTICATE: (security_admin.sasl_authenticate, cluster_rights.anyone),
    ApiKey.CREATE_PARTITIONS: (topic_admin.create_partitions, topic_rights.create_partitions),
    ApiKey.DELETE_GROUPS: (_group, group_rights.delete_groups),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (configs.incremental_alter_configs, topic_rights.alter_configs),
    ApiKey.OFFSET_DELETE: (_of_groups(CoordinatorShell.delete_offsets), group_rights.offset_delete),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (security_admin.describe_users, cluster_rights.describe),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (security_admin.alter_users, cluster_rights.alter_users),
    ApiKey.DESCRIBE_CLUSTER: (metadata.describe_cluster, cluster_rights.anyone),
    ApiKey.DESCRIBE_PRODUCERS: (transactions.describe_producers, topic_rights.describe_producers),
    ApiKey.DESCRIBE_TRANSACTIONS: (transactions.describe, transaction_rights.describe),
    ApiKey.LIST_TRANSACTIONS: (transactions.coordinate, transaction_rights.list_transactions),
}
"""For each request that is served: its handler, and the gate before it, which takes out what the client may not do.

The handler of Fetch checks the right on each topic itself: a topic may be named by its id.
"""
HANDLERS: dict[int, Handler] = {key: handler for key, (handler, _) in ROUTES.items()}


async def guarded(services: Services, call: Call[Message], handler: Handler) -> Message | None:
    """Answer a request: by its handler, and with an authorizer through its gate."""
    if not call.access.is_checked:
        return await handler(services, call)
    _, gate = ROUTES[call.header.api_key]
    return await gate(GatedRequest(services, call, handler))


async def guarded_produce(
    services: Services,
    call: Call[ProduceRequest],
    begin: Callable[[Services, Call[ProduceRequest]], Coroutine[None, None, Answer]],
) -> Answer:
    """Begin a Produce, which is answered later, likewise."""
    if not call.access.is_checked:
        return await begin(services, call)
    return await topic_rights.begin_produce(GatedRequest(services, call, begin))
