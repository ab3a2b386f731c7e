"""DescribeTransactions and ListTransactions (KIP-664)."""

from roster.coordinator_common import RequestReceived
from roster.transactions.metadata import Transaction
from roster.transactions.runtime import Runtime
from roster.transactions.states import BY_LABEL, TransactionState
from roster.wire import ErrorCode
from roster.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


def describe_transactions(rt: Runtime, event: RequestReceived, request: DescribeTransactionsRequest) -> None:
    """Describe each transactional id, or return its error."""
    states = [_describe(rt, transactional_id) for transactional_id in request.transactional_ids]
    rt.reply(event.token, DescribeTransactionsResponse(transaction_states=states))


def _describe(rt: Runtime, transactional_id: str) -> DescribeTransactionsResponse.TransactionState:
    described = DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id)
    transaction = rt.find(transactional_id)
    if isinstance(transaction, ErrorCode):
        unknown = transaction is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        described.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if unknown else transaction
        return described
    current = transaction.current
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(current.partitions):
        topics.setdefault(topic, []).append(partition)
    described.transaction_state = current.state.label
    described.transaction_timeout_ms = current.timeout_ms
    described.transaction_start_time_ms = current.started_ms
    described.producer_id = current.producer_id
    described.producer_epoch = current.producer_epoch
    described.topics = [
        DescribeTransactionsResponse.Topic(topic=topic, partitions=partitions) for topic, partitions in topics.items()
    ]
    return described


def list_transactions(rt: Runtime, event: RequestReceived, request: ListTransactionsRequest) -> None:
    """List the transactional ids that match the filters."""
    if not all(rt.loaded.values()):
        rt.reply(event.token, ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return
    states = {BY_LABEL[label] for label in request.state_filters if label in BY_LABEL}
    listed = [
        ListTransactionsResponse.TransactionState(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.current.producer_id,
            transaction_state=transaction.current.state.label,
        )
        for transaction in rt.transactions.values()
        if _passes(rt, transaction, request, states)
    ]
    unknown = [label for label in request.state_filters if label not in BY_LABEL]
    rt.reply(event.token, ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed))


def _passes(
    rt: Runtime, transaction: Transaction, request: ListTransactionsRequest, states: set[TransactionState]
) -> bool:
    current = transaction.current
    if request.producer_id_filters and current.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and current.state not in states:
        return False
    return request.duration_filter < 0 or rt.wall_ms - current.started_ms > request.duration_filter
