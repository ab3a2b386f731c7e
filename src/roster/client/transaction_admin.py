"""Transactions of a cluster: listed, described and aborted (KIP-664)."""

from __future__ import annotations

from collections.abc import Collection

from roster.client.cluster import Cluster
from roster.client.coordinators import FENCE_TIMEOUT_MS, TRANSACTION, Coordinators, ask_each_broker
from roster.client.errors import BrokerError, UnknownTransactionError
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


class TransactionAdmin:
    """Requests about transactions, to their coordinators."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators = Coordinators(cluster, TRANSACTION)

    async def listed(self, states: Collection[str] = ()) -> list[TransactionListing]:
        """List the transactional ids of every broker, sorted by name, in all states or those given."""
        request = ListTransactionsRequest(state_filters=list(states))
        answers = await ask_each_broker(self._cluster, request, ListTransactionsResponse, "transactions")
        listings: dict[str, TransactionListing] = {}
        for broker, response in answers.items():
            for state in response.transaction_states:
                listings[state.transactional_id] = TransactionListing(
                    state.transactional_id, state.transaction_state, state.producer_id, broker
                )
        return [listings[name] for name in sorted(listings)]

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Describe a transactional id; UnknownTransactionError if there is none."""
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response, code = await self._coordinators.ask_until_ready(
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
            coordinator=str(await self._coordinators.coordinator(transactional_id)),
        )

    async def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id in all its partitions, and fence its producer."""
        await self.describe(transactional_id)  # else it would be created
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS)
        purpose = f"aborting the transaction of {transactional_id!r}"
        _, code = await self._coordinators.ask_until_ready(
            transactional_id, request, InitProducerIdResponse, lambda answer: answer.error_code, purpose
        )
        if code is not ErrorCode.NONE:
            raise BrokerError(f"transactional id {transactional_id!r} cannot be aborted: {code.name}", code=code)
