"""InitProducerId with a transactional id: a producer id and an epoch that fences every earlier instance."""

from roster.coordinator_common import RequestReceived
from roster.transactions import metadata as change
from roster.transactions.end_transaction import fence
from roster.transactions.metadata import LAST_EPOCH, NONE, Metadata, Transaction
from roster.transactions.runtime import Runtime
from roster.transactions.states import TransactionState
from roster.wire import ErrorCode
from roster.wire.messages import InitProducerIdRequest, InitProducerIdResponse

PRODUCER_FENCED_FROM = 4
"""InitProducerId version that knows PRODUCER_FENCED; earlier ones get INVALID_PRODUCER_EPOCH."""


def init_producer_id(rt: Runtime, event: RequestReceived, request: InitProducerIdRequest) -> None:
    """Give the client its next epoch. An open transaction is aborted first; CONCURRENT_TRANSACTIONS until then."""
    transactional_id = request.transactional_id
    if not transactional_id or (request.producer_id == NONE) != (request.producer_epoch == NONE):
        _refuse(rt, event, ErrorCode.INVALID_REQUEST)
    elif not 0 < request.transaction_timeout_ms <= rt.config.max_timeout_ms:
        _refuse(rt, event, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    elif error := rt.availability(transactional_id):
        _refuse(rt, event, error)
    else:
        _initialize(rt, event, request, transactional_id)


def _initialize(
    rt: Runtime,
    event: RequestReceived,
    request: InitProducerIdRequest,
    transactional_id: str,
    new_producer_id: int | None = None,
) -> None:
    transaction = rt.transactions.get(transactional_id)
    if transaction is None:
        if new_producer_id is None:
            _with_new_producer_id(rt, event, request, transactional_id)
            return
        empty = Metadata(
            state=TransactionState.EMPTY, producer_id=new_producer_id, timeout_ms=request.transaction_timeout_ms
        )
        transaction = Transaction(transactional_id, rt.partition_of(transactional_id), empty)
        rt.transactions[transactional_id] = transaction
        new_producer_id = None
    if error := _check(transaction, request):
        _refuse(rt, event, error)
    elif transaction.current.state is TransactionState.ONGOING:
        fence(rt, transaction, lambda error: _refuse(rt, event, error or ErrorCode.CONCURRENT_TRANSACTIONS))
    elif _needs_new_producer_id(transaction.current, request) and new_producer_id is None:
        _with_new_producer_id(rt, event, request, transactional_id)
    else:
        _store(rt, event, request, transaction, new_producer_id)


def _check(transaction: Transaction, request: InitProducerIdRequest) -> ErrorCode:
    """Return the error if another change is in progress, or if the producer is not the transactional id's."""
    current = transaction.current
    is_known = (
        request.producer_id in (NONE, current.producer_id)
        or current.producer_epoch == NONE
        or (request.producer_id == current.previous_producer_id and request.producer_epoch >= LAST_EPOCH)
    )
    if transaction.is_changing:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE if is_known else ErrorCode.PRODUCER_FENCED


def _needs_new_producer_id(current: Metadata, request: InitProducerIdRequest) -> bool:
    return current.is_exhausted and request.producer_epoch in (NONE, current.producer_epoch)


def _with_new_producer_id(
    rt: Runtime, event: RequestReceived, request: InitProducerIdRequest, transactional_id: str
) -> None:
    def initialize(producer_id: int | None) -> None:
        error = rt.availability(transactional_id)
        if producer_id is None or error:
            _refuse(rt, event, error or ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            _initialize(rt, event, request, transactional_id, producer_id)

    rt.want_producer_id(initialize)


def _store(
    rt: Runtime,
    event: RequestReceived,
    request: InitProducerIdRequest,
    transaction: Transaction,
    new_producer_id: int | None,
) -> None:
    expected = None if request.producer_epoch == NONE else request.producer_epoch
    if not transaction.current.is_exhausted:
        new_producer_id = None
    following = change.initialize(
        transaction.current, request.transaction_timeout_ms, expected, new_producer_id, rt.wall_ms
    )
    if isinstance(following, ErrorCode):
        _refuse(rt, event, following)
        return
    response = InitProducerIdResponse(producer_id=following.producer_id, producer_epoch=following.producer_epoch)
    rt.store(
        transaction, following, lambda error: _refuse(rt, event, error) if error else rt.reply(event.token, response)
    )


def _refuse(rt: Runtime, event: RequestReceived, error: ErrorCode) -> None:
    if error is ErrorCode.PRODUCER_FENCED and event.api_version < PRODUCER_FENCED_FROM:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    rt.reply(event.token, InitProducerIdResponse(error_code=error, producer_epoch=NONE))
