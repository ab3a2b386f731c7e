"""Transactions of a cluster: listed, described, hanging ones found, and aborted (KIP-664)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable

from roster.client.cluster import Cluster, expect
from roster.client.coordinators import FENCE_TIMEOUT_MS, TRANSACTION, Coordinators, ask_each_broker
from roster.client.errors import BrokerError, UnknownTransactionError
from roster.client.offsets import partitions_by_leader
from roster.client.types import OpenTransaction, TransactionDescription, TransactionListing
from roster.model import TopicPartition
from roster.wire import ErrorCode
from roster.wire.errors import error_code
from roster.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class TransactionAdmin:
    """Requests about transactions, to their coordinators and to the leaders of partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators = Coordinators(cluster, TRANSACTION)

    async def listed(
        self, states: Collection[str] = (), producer_ids: Collection[int] = ()
    ) -> list[TransactionListing]:
        """List the transactional ids of every broker, sorted by name; empty filters let all through."""
        request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
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

    async def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """Find the transactions that are open in partitions, with the transactional id of each, if one is known.

        One is hanging if no coordinator will end it: its producer has no transactional id, or a transaction that does
        not have the partition.
        """
        by_leader = await partitions_by_leader(self._cluster, list(partitions))
        answers = await asyncio.gather(*(self._producers(leader, some) for leader, some in by_leader.items()))
        rows = [row for answer in answers for row in answer]
        listed = {
            listing.producer_id: listing
            for listing in await self.listed(producer_ids={row[1].producer_id for row in rows})
        }
        hanging = []
        for where, producer in rows:
            owner = listed.get(producer.producer_id)
            known = None if owner is None else await self.describe(owner.transactional_id)
            hanging.append(
                OpenTransaction(
                    partition=where,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    coordinator_epoch=producer.coordinator_epoch,
                    first_offset=producer.current_txn_start_offset,
                    last_write_ms=producer.last_timestamp,
                    transactional_id=None if owner is None else owner.transactional_id,
                    hanging=known is None or where not in known.partitions,
                )
            )
        return sorted(hanging, key=lambda transaction: (transaction.partition, transaction.first_offset))

    async def _producers(
        self, leader: int, partitions: list[TopicPartition]
    ) -> list[tuple[TopicPartition, DescribeProducersResponse.Topic.Partition.Producer]]:
        """Return the producers with an open transaction in partitions of one leader."""
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append(partition)
        wanted = [DescribeProducersRequest.Topic(name=name, partition_indexes=n) for name, n in topics.items()]
        address = self._cluster.address(leader)
        if address is None:
            return []
        response = expect(
            await self._cluster.request(address, DescribeProducersRequest(topics=wanted)), DescribeProducersResponse
        )
        return [
            (TopicPartition(topic.name, partition.partition_index), producer)
            for topic in response.topics
            for partition in topic.partitions
            for producer in partition.active_producers
            if producer.current_txn_start_offset >= 0
        ]

    async def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id in all its partitions, and fence its producer."""
        await self.describe(transactional_id)  # else it would be created
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS)
        doing = f"aborting the transaction of {transactional_id!r}"
        _, code = await self._coordinators.ask_until_ready(
            transactional_id, request, InitProducerIdResponse, lambda answer: answer.error_code, doing
        )
        if code is not ErrorCode.NONE:
            raise BrokerError(f"transactional id {transactional_id!r} cannot be aborted: {code.name}", code=code)

    async def abort_hanging(self, transaction: OpenTransaction) -> None:
        """Abort a hanging transaction in its one partition, by a marker as its coordinator would write it."""
        where = transaction.partition
        marker = WriteTxnMarkersRequest.Marker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[WriteTxnMarkersRequest.Topic(name=where.topic, partition_indexes=[where.partition])],
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )
        (leader,) = await partitions_by_leader(self._cluster, [where])
        address = self._cluster.address(leader)
        if address is None:
            raise BrokerError(f"{where} has no leader", code=ErrorCode.LEADER_NOT_AVAILABLE)
        response = expect(
            await self._cluster.request(address, WriteTxnMarkersRequest(markers=[marker])), WriteTxnMarkersResponse
        )
        code = error_code(response.markers[0].topics[0].partitions[0].error_code)
        if code is not ErrorCode.NONE:
            raise BrokerError(f"the transaction in {where} cannot be aborted: {code.name}", code=code)
