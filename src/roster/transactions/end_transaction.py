"""EndTxn, and aborts by the coordinator: of a fenced producer, and of a transaction that exceeded its timeout.

The response is sent when the decision is durable; markers and completion follow. In transactions version 2 (EndTxn v5,
KIP-890) every end gives the producer a new epoch, which is also in the markers.
"""

from roster.coordinator_common import Continuation, RequestReceived
from roster.transactions import metadata as change
from roster.transactions.metadata import CLIENT_V1, CLIENT_V2, LAST_EPOCH, NONE, Metadata, Transaction
from roster.transactions.runtime import Runtime
from roster.transactions.states import TransactionState
from roster.wire import ErrorCode
from roster.wire.messages import EndTxnRequest, EndTxnResponse

EPOCH_BUMP_FROM = 5
"""EndTxn version of transactions version 2."""
PRODUCER_FENCED_FROM = 2
"""EndTxn version that knows PRODUCER_FENCED; earlier ones get INVALID_PRODUCER_EPOCH."""


def end_transaction(rt: Runtime, event: RequestReceived, request: EndTxnRequest) -> None:
    """Commit or abort. A repeated request gets the same answer, CONCURRENT_TRANSACTIONS until the end is complete."""
    _end(rt, event, request, None)


def _end(rt: Runtime, event: RequestReceived, request: EndTxnRequest, new_producer_id: int | None) -> None:
    transaction = rt.find(request.transactional_id)
    if isinstance(transaction, ErrorCode):
        _answer(rt, event, transaction)
        return
    version = CLIENT_V2 if event.api_version >= EPOCH_BUMP_FROM else CLIENT_V1
    decide = _decide_v2 if version == CLIENT_V2 else _decide_v1
    decision = decide(transaction, request)
    if isinstance(decision, ErrorCode):
        _answer(rt, event, decision, transaction.current)
    elif version == CLIENT_V2 and transaction.current.is_exhausted and new_producer_id is None:
        rt.want_producer_id(
            lambda producer_id: (
                _answer(rt, event, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                if producer_id is None
                else _end(rt, event, request, producer_id)
            )
        )
    else:
        following = change.prepare(
            transaction.current,
            commit=request.committed,
            client_version=version,
            new_producer_id=new_producer_id if transaction.current.is_exhausted else None,
            wall_ms=rt.wall_ms,
        )
        rt.store(transaction, following, lambda error: _answer(rt, event, error, following))


class _Prepare:
    """The decision to end the transaction now."""


_PREPARE = _Prepare()


def _decide_v1(transaction: Transaction, request: EndTxnRequest) -> ErrorCode | _Prepare:
    current = transaction.current
    if current.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.producer_epoch != request.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if transaction.is_changing:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.state is TransactionState.ONGOING:
        return _PREPARE
    return _repeated(current.state, committed=request.committed)


def _decide_v2(transaction: Transaction, request: EndTxnRequest) -> ErrorCode | _Prepare:
    if transaction.is_changing:  # checked before the epoch: the client may already use that of its next transaction
        return ErrorCode.CONCURRENT_TRANSACTIONS
    current = transaction.current
    after_rotation = (
        current.previous_producer_id == request.producer_id
        and request.producer_epoch == LAST_EPOCH
        and current.producer_epoch == 0
    )
    is_repeat = after_rotation or current.producer_epoch == request.producer_epoch + 1
    if current.producer_id != request.producer_id and not after_rotation:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    ended = current.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    if request.producer_epoch != current.producer_epoch and not (ended and is_repeat):
        return ErrorCode.PRODUCER_FENCED
    if current.state is TransactionState.ONGOING:
        return _PREPARE
    if is_repeat:
        return _repeated(current.state, committed=request.committed)
    return ErrorCode.INVALID_TXN_STATE if request.committed else _PREPARE  # an abort at rest: a new epoch


def _repeated(state: TransactionState, *, committed: bool) -> ErrorCode:
    """Answer an EndTxn for a transaction that has ended before."""
    ended = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    return ErrorCode.NONE if state is ended else ErrorCode.INVALID_TXN_STATE


def _answer(rt: Runtime, event: RequestReceived, error: ErrorCode, decided: Metadata | None = None) -> None:
    """Answer EndTxn, with the producer id and epoch of the next transaction if this one is decided."""
    if error is ErrorCode.PRODUCER_FENCED and event.api_version < PRODUCER_FENCED_FROM:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    response = EndTxnResponse(error_code=error)
    if not error and decided is not None:
        rotated = decided.next_producer_id != NONE
        response.producer_id = decided.next_producer_id if rotated else decided.producer_id
        response.producer_epoch = 0 if rotated else decided.producer_epoch
    rt.reply(event.token, response)


def fence(rt: Runtime, transaction: Transaction, then: Continuation) -> None:
    """Abort an open transaction with an epoch that its producer does not have; `then` runs when that is durable."""
    following = change.prepare(
        transaction.current, commit=False, client_version=CLIENT_V2, new_producer_id=None, wall_ms=rt.wall_ms
    )
    rt.store(transaction, following, then)
