"""Decisions of a transactional producer, without I/O or clock: its next request, and its reaction to an error code.

Source: Kafka's protocol guide; KIP-98 (transactions), KIP-447 (offsets fenced by generation), KIP-890 (version 2, where
every end of a transaction gives a new epoch, so that sequence numbers begin at 0 in each).
"""

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import NamedTuple

from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import ApiKey, ErrorCode
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
)


class Decision(Enum):
    """Reaction to an error code."""

    DONE = auto()
    RETRY = auto()
    """The same request again, after a pause."""
    FIND = auto()
    """Repeat the request, to the coordinator that FindCoordinator names now."""
    GENERATION = auto()
    """Repeat the request, under the member's new generation."""
    ABORT = auto()
    """Take a new epoch and redo the transaction."""
    PRODUCER_FENCED = auto()
    """As ABORT; another producer has taken the transactional id."""
    MEMBER_FENCED = auto()
    """As ABORT: the group has removed the member."""
    FATAL = auto()
    """The client cannot recover."""


_ANY_REQUEST = {
    ErrorCode.NONE: Decision.DONE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Decision.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: Decision.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: Decision.RETRY,
    ErrorCode.NETWORK_EXCEPTION: Decision.RETRY,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Decision.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS: Decision.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Decision.RETRY,
    ErrorCode.KAFKA_STORAGE_ERROR: Decision.FIND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Decision.FIND,
    ErrorCode.NOT_COORDINATOR: Decision.FIND,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Decision.FIND,
    ErrorCode.INVALID_PRODUCER_EPOCH: Decision.PRODUCER_FENCED,
    ErrorCode.PRODUCER_FENCED: Decision.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Decision.ABORT,
    ErrorCode.UNKNOWN_PRODUCER_ID: Decision.ABORT,
    ErrorCode.INVALID_TXN_STATE: Decision.ABORT,
    ErrorCode.TRANSACTION_ABORTABLE: Decision.ABORT,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Decision.ABORT,
    ErrorCode.OPERATION_NOT_ATTEMPTED: Decision.ABORT,
}
_BY_REQUEST = {
    ApiKey.TXN_OFFSET_COMMIT: {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Decision.RETRY,
        ErrorCode.ILLEGAL_GENERATION: Decision.GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS: Decision.GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID: Decision.MEMBER_FENCED,
        ErrorCode.FENCED_INSTANCE_ID: Decision.MEMBER_FENCED,
        ErrorCode.STALE_MEMBER_EPOCH: Decision.GENERATION,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Decision.RETRY},
    ApiKey.HEARTBEAT: {
        # A member of a group that rebalances is one still, in the generation that it named.
        ErrorCode.REBALANCE_IN_PROGRESS: Decision.DONE,
        ErrorCode.ILLEGAL_GENERATION: Decision.GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID: Decision.MEMBER_FENCED,
        ErrorCode.FENCED_INSTANCE_ID: Decision.MEMBER_FENCED,
    },
}


def decide(api: ApiKey, code: ErrorCode) -> Decision:
    """Return the reaction to an error code in the response to a request."""
    return _BY_REQUEST.get(api, {}).get(code) or _ANY_REQUEST.get(code, Decision.FATAL)


class Epoch(NamedTuple):
    """Producer id and epoch: the fence of one transaction."""

    producer_id: int
    producer_epoch: int


class Phase(Enum):
    """Phase of the transaction, as this producer knows it."""

    UNKNOWN = auto()
    """InitProducerId comes next: it aborts any open transaction and fences its writers."""
    READY = auto()
    """The epoch has not been used."""
    OPEN = auto()
    """Records may have been written under the epoch."""
    ENDING = auto()
    """The offsets are in the transaction, and its commit may have been sent."""


VERSION_1_LIMITS = {ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
"""Highest request versions of transactions of version 1: later ones mean version 2."""
VERSION_2_LIMITS = {ApiKey.TXN_OFFSET_COMMIT: 5}
"""Likewise of version 2: later ones name topics by their ids."""


class ProducerState:
    """State of one transactional producer. Each method that builds a request says in which phase it may be sent."""

    def __init__(self, transactional_id: str, group: str, timeout_ms: int, *, is_version_2: bool) -> None:
        """`is_version_2`: the cluster has finalized `transaction.version` 2 (KIP-890)."""
        self._id, self._group, self._timeout_ms = transactional_id, group, timeout_ms
        self.is_version_2 = is_version_2
        self.phase = Phase.UNKNOWN
        self.epoch = Epoch(-1, -1)

    def highest(self, api: ApiKey) -> int | None:
        """Return the highest version in which a request may be sent; None: any."""
        return (VERSION_2_LIMITS if self.is_version_2 else VERSION_1_LIMITS).get(api)

    @property
    def needs_epoch(self) -> bool:
        """True if a transaction cannot begin before InitProducerId."""
        return self.phase is not Phase.READY

    def forget(self) -> None:
        """Give up the transaction: the next one needs another epoch."""
        self.phase = Phase.UNKNOWN

    def init(self) -> InitProducerIdRequest:
        """Build the request for a fresh epoch; in any phase.

        Sent as a new instance's, which is taken even if another producer has fenced this one.
        """
        return InitProducerIdRequest(transactional_id=self._id, transaction_timeout_ms=self._timeout_ms)

    def initialised(self, response: InitProducerIdResponse) -> None:
        """Take the new epoch."""
        self.epoch = Epoch(response.producer_id, response.producer_epoch)
        self.phase = Phase.READY

    def begin(self) -> Epoch:
        """Begin a transaction in phase READY."""
        self.phase = Phase.OPEN
        return self.epoch

    def add_partitions(self, partitions: Collection[TopicPartition]) -> AddPartitionsToTxnRequest | None:
        """Build the request that must precede records for these partitions in phase OPEN; None: none is needed."""
        if self.is_version_2 or not partitions:
            return None
        topics: dict[str, AddPartitionsToTxnRequest.Topic] = {}
        for topic, number in sorted(partitions):
            topics.setdefault(topic, AddPartitionsToTxnRequest.Topic(name=topic)).partitions.append(number)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self.epoch.producer_id,
            v3_and_below_producer_epoch=self.epoch.producer_epoch,
            v3_and_below_topics=list(topics.values()),
        )

    def add_offsets(self, *, is_early: bool = False) -> AddOffsetsToTxnRequest | None:
        """Build the request that must precede `commit_offsets` in phase OPEN; None: none is needed.

        `is_early`: there is time for it. Until the last transaction's markers are written, a coordinator refuses it at
        once, while brokers make requests that add something by themselves wait 20 ms.
        """
        if self.is_version_2 and not is_early:
            return None
        return AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=self.epoch.producer_id,
            producer_epoch=self.epoch.producer_epoch,
            group_id=self._group,
        )

    def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        generation: int,
        member_id: str,
        instance_id: str | None,
    ) -> TxnOffsetCommitRequest:
        """Build the request that makes the offsets part of the transaction, in phase OPEN."""
        topics: dict[str, TxnOffsetCommitRequest.Topic] = {}
        for (topic, number), position in sorted(offsets.items()):
            topics.setdefault(topic, TxnOffsetCommitRequest.Topic(name=topic)).partitions.append(
                TxnOffsetCommitRequest.Partition(
                    partition_index=number,
                    committed_offset=position.offset,
                    committed_leader_epoch=position.leader_epoch,
                    committed_metadata=position.metadata,
                )
            )
        return TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=self._group,
            producer_id=self.epoch.producer_id,
            producer_epoch=self.epoch.producer_epoch,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=list(topics.values()),
        )

    def end(self) -> EndTxnRequest:
        """Build the commit, from phase OPEN or ENDING: it may be sent again until it is answered."""
        self.phase = Phase.ENDING
        return EndTxnRequest(
            transactional_id=self._id,
            producer_id=self.epoch.producer_id,
            producer_epoch=self.epoch.producer_epoch,
            committed=True,
        )

    def ended(self, response: EndTxnResponse) -> None:
        """Take the epoch of the next transaction, which version 2 brings with the answer."""
        if self.is_version_2 and response.producer_id >= 0:
            self.epoch = Epoch(response.producer_id, response.producer_epoch)
            self.phase = Phase.READY
        else:
            self.phase = Phase.UNKNOWN
