"""Transactions of a cluster: listed, described and aborted (KIP-664)."""

from collections.abc import Collection

from roster.client.cluster import Cluster
from roster.client.coordinators import FENCE_TIMEOUT_MS, Coordinators, ask_each_broker
from roster.client.errors import BrokerError, UnknownTransactionError
from roster.client.loop import OnLoop, blocking
from roster.client.types import TransactionDescription, TransactionListing
from roster.model import TopicPartition
from roster.wire import ErrorCode
from roster.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


class TransactionAdmin(OnLoop):
    """Requests about transactions, to their coordinators."""

    _cluster: Cluster
    _transactions: Coordinators

    @blocking
    async def list_transactions(self, states: Collection[str] = ()) -> list[TransactionListing]:
        """List the transactional ids of the cluster, all or those in `states`, sorted by name."""
        request = ListTransactionsRequest(state_filters=list(states))
        answers = await ask_each_broker(self._cluster, request, ListTransactionsResponse, "transactions")
        listings = {
            state.transactional_id: TransactionListing(
                state.transactional_id, state.transaction_state, state.producer_id, broker
            )
            for broker, response in answers.items()
            for state in response.transaction_states
        }
        return [listings[name] for name in sorted(listings)]

    @blocking
    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Describe a transactional id: its state, producer and partitions.

        Raises:
            UnknownTransactionError: the transactional id does not exist.
        """
        return await self._described(transactional_id)

    async def _described(self, transactional_id: str) -> TransactionDescription:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response, code = await self._transactions.ask_until_ready(
            transactional_id,
            request,
            DescribeTransactionsResponse,
            lambda answer: answer.transaction_states[0].error_code,
            f"describing transactional id {transactional_id!r}",
        )
        if code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise UnknownTransactionError(f"no such transactional id: {transactional_id}", code=code)
        if code is not ErrorCode.NONE:
            raise BrokerError(f"transactional id {transactional_id!r} cannot be described: {code.name}", code=code)
        state = response.transaction_states[0]
        return TransactionDescription(
            transactional_id=transactional_id,
            state=state.transaction_state,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            timeout_ms=state.transaction_timeout_ms,
            started_ms=None if state.transaction_start_time_ms < 0 else state.transaction_start_time_ms,
            partitions=[TopicPartition(topic.topic, n) for topic in state.topics for n in sorted(topic.partitions)],
            coordinator=str(await self._transactions.coordinator(transactional_id)),
        )

    @blocking
    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id, and fence its producer.

        Raises:
            UnknownTransactionError: the transactional id does not exist.
        """
        await self._described(transactional_id)  # else it would be created
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS)
        purpose = f"aborting the transaction of {transactional_id!r}"
        _, code = await self._transactions.ask_until_ready(
            transactional_id, request, InitProducerIdResponse, lambda answer: answer.error_code, purpose
        )
        if code is not ErrorCode.NONE:
            raise BrokerError(f"transactional id {transactional_id!r} cannot be aborted: {code.name}", code=code)
