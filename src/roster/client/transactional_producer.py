"""The coordinator side of a transactional producer, for an application whose records other processes write.

The records of one transaction may come from several processes, which share transactional id, producer id and epoch.
This module does the rest: epochs, the group's offsets as part of the transaction, its end, and the end of transactions
that a dead producer left open.
"""

import asyncio
import json
import logging
from collections.abc import Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from random import Random
from typing import NamedTuple, TypeVar

from roster._json import loads
from roster.client.cluster import PROPAGATION_TIME, Cluster, M, expect
from roster.client.connection import SOFTWARE
from roster.client.coordinators import FENCE_TIMEOUT_MS, TRANSACTION, Coordinators
from roster.client.errors import (
    AuthorizationError,
    ClientError,
    ClosedError,
    CommitFenced,
    CommitRetriable,
    ProducerFencedError,
    RequestTimeoutError,
    TransactionAbortedError,
    UnreachableError,
    UnsupportedError,
    no_such_topics,
    transaction_error,
)
from roster.client.group_admin import describe_group
from roster.client.loop import LoopThread
from roster.client.offsets import committed_offsets, pending_offsets
from roster.client.producer_state import Decision, Epoch, Phase, ProducerState, decide
from roster.client.retry import Retry
from roster.model import OffsetAndMetadata, TopicPartition
from roster.security import Security
from roster.wire import ApiKey, ErrorCode, Message
from roster.wire.errors import error_code
from roster.wire.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    EndTxnResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
)

log = logging.getLogger(__name__)

TRANSACTION_VERSION = "transaction.version"
"""Feature whose finalized level says which requests a transaction consists of (KIP-890)."""
_VERSION_2 = 2
_VERIFIES = 4  # version of AddPartitionsToTxn from which brokers refuse records outside an open transaction (Kafka 3.6)
_FIRST_PAUSE, _MAX_PAUSE = 0.002, 0.5  # a commit follows the last by less than a coordinator needs for its markers
_ABORT_SECONDS = 5.0

T = TypeVar("T")


class ClaimedBy(NamedTuple):
    """Owner of a partition, as the metadata of its committed offset names it."""

    transactional_id: str
    member_id: str

    def to_metadata(self) -> str:
        """Return the text to commit with an offset."""
        return json.dumps({"transactional.id": self.transactional_id, "member.id": self.member_id})

    @classmethod
    def of(cls, metadata: str) -> "ClaimedBy | None":
        """Return the owner; None if the text, which any client of the group may write, names none."""
        try:
            fields = loads(metadata)
            owner = cls(fields["transactional.id"], fields["member.id"])
            "".join(owner).encode()  # a name with half of a surrogate pair cannot be sent
        except (ValueError, KeyError, TypeError):
            return None
        return owner if owner.transactional_id else None


class TransactionalProducer:
    """One transactional id on its own event-loop thread; every method is blocking, and for one thread at a time.

    Args:
        bootstrap: brokers to ask first, "host:port", several with commas or as a list; the default port is 9092.
        transactional_id: shared by all that write under it, and by no other application.
        group: the consumer group whose offsets are part of the transactions.
        transaction_timeout_ms: ms after which the coordinator aborts a transaction that has not ended.
        request_timeout_ms: ms to wait for a response, and to retry a request that may succeed later.
        client_id: name in the brokers' logs.
        group_instance_id: that of the group's member, if it is a static one.
        security: as for GroupMember.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        transactional_id: str,
        group: str,
        *,
        transaction_timeout_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        client_id: str = "roster",
        group_instance_id: str | None = None,
        security: Security | Mapping[str, object] | None = None,
    ) -> None:
        self.transactional_id, self._group = transactional_id, group
        self._instance_id, self._timeout_ms = group_instance_id, transaction_timeout_ms
        chance = Random()  # order of brokers, no secret
        self._cluster = Cluster(bootstrap, client_id, request_timeout_ms / 1000, chance, security)
        self._groups = Coordinators(self._cluster)
        self._ids = Coordinators(self._cluster, TRANSACTION)
        self._state = ProducerState(transactional_id, group, transaction_timeout_ms, is_version_2=False)
        self._loop: LoopThread | None = None
        self._early: tuple[Mapping[TopicPartition, OffsetAndMetadata], Future[None]] | None = None
        """Offsets on their way into the open transaction."""

    # For the application's thread.

    def start(self) -> str | None:
        """Connect, look up the cluster's features, and take the first epoch; return the cluster's id.

        Raises UnsupportedError where transactions are not safe, AuthorizationError, and other ClientErrors. `close` is
        due after an error too.
        """
        self._loop = LoopThread(f"roster-transactions-{self._group}")
        return self._call(self._begin())

    def close(self) -> None:
        """Try to abort an open transaction, and close the connections."""
        if self._loop is None:
            return
        if self._state.phase in (Phase.OPEN, Phase.ENDING):
            self.abort()
        self._call(self._cluster.close())
        self._loop.stop()
        self._loop = None

    def begin(self) -> Epoch:
        """Begin a transaction: return the epoch for its records, whose sequence numbers start at 0.

        A transaction left open is aborted first. Raises ClientError.
        """
        if self._state.needs_epoch:
            self._call(self._renew())
        return self._state.begin()

    def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Announce partitions before their first record, where the cluster needs that. Raises as `commit` does."""
        request = self._state.add_partitions(partitions)
        if request is not None:
            self._call(self._transactional(request, AddPartitionsToTxnResponse, "its partitions cannot be added"))
        elif self._early is not None:
            # A broker checks one request of a transaction at a time, and refuses the earlier of two.
            wait([self._early[1]])

    def check_unfenced(self) -> None:
        """Ask the coordinator whether the open transaction is this producer's still. Raises as `commit` does."""
        request = self._state.add_offsets(is_early=True)
        assert request is not None  # it may be sent early
        self._call(self._transactional(request, AddOffsetsToTxnResponse, "it is not the only one"))

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int, member_id: str
    ) -> None:
        """Begin to add the group's offsets to the open transaction, while its records are made, where that is possible.

        `commit` with the same offsets waits for it, and adds them itself if it failed for a reason that passes.
        """
        if self._state.is_version_2 and self._loop is not None:
            adding = self._add_offsets(offsets, generation, member_id, is_early=True)
            self._early = dict(offsets), self._loop.start(adding)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int, member_id: str) -> None:
        """Commit the transaction with these offsets of the group, as its member in `generation`.

        Raises TransactionAbortedError (ProducerFencedError where another producer is the reason) and CommitFenced if it
        cannot be committed any more. After an error that is `retriable` the outcome is open: call again, with the
        generation that the member has by then, or `abort`.
        """
        self._call(self._commit(offsets, generation, member_id))

    def abort(self) -> None:
        """Abort the open transaction and fence its epoch; if that fails, the next `begin` does both."""
        self._state.forget()
        try:
            self._call(asyncio.wait_for(self._renew(), _ABORT_SECONDS))
        except (ClientError, TimeoutError) as error:
            log.info("transaction of %s not aborted yet: %s", self.transactional_id, error)

    def take_over(self, partitions: Collection[TopicPartition], generation: int, member_id: str) -> frozenset[str]:
        """End the transactions that earlier owners of partitions left open; return their transactional ids.

        An owner is fenced if it has left the group, or if its transaction holds offsets of these partitions: it can no
        longer commit, and readers of committed records need not wait for its timeout. Raises CommitFenced if the group
        does not know this member in `generation`, and other ClientErrors.
        """
        return self._call(self._take_over(partitions, generation, member_id))

    def _call(self, work: Coroutine[None, None, T]) -> T:
        if self._loop is None:
            work.close()
            raise ClosedError("the transactional producer is not started")
        return self._loop.call(work)

    # On the loop.

    async def _begin(self) -> str | None:
        cluster_id = (await self._cluster.metadata(())).cluster_id
        node = await self._ids.coordinator(self.transactional_id)
        await self._groups.coordinator(self._group)
        question = ApiVersionsRequest(client_software_name=SOFTWARE[0], client_software_version=SOFTWARE[1])
        offered = expect(await self._cluster.request(node, question), ApiVersionsResponse)
        levels = {feature.name: feature.max_version_level for feature in offered.finalized_features}
        highest = {entry.api_key: entry.max_version for entry in offered.api_keys}
        is_version_2 = levels.get(TRANSACTION_VERSION, 0) >= _VERSION_2
        if not is_version_2 and highest.get(ApiKey.ADD_PARTITIONS_TO_TXN, -1) < _VERIFIES:
            raise UnsupportedError(
                f"the broker at {node} does not check that records belong to an open transaction; use Kafka 3.6 or "
                "newer"
            )
        self._state = ProducerState(self.transactional_id, self._group, self._timeout_ms, is_version_2=is_version_2)
        await self._init()
        return cluster_id

    async def _init(self) -> None:
        self._state.forget()
        self._state.initialised(await self._transactional(self._state.init(), InitProducerIdResponse, "no producer id"))

    async def _renew(self) -> None:
        """Take a new epoch, which ends what is open."""
        early, self._early = self._early, None
        if early is not None:
            sent = asyncio.wrap_future(early[1])
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # whatever came of it
            await asyncio.wait([sent])
        await self._init()

    async def _are_added(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Wait for offsets that were sent early; return True if these are in the transaction. Raises as `commit`."""
        early, self._early = self._early, None
        if early is None:
            return False
        try:
            await asyncio.wrap_future(early[1])
        except ClientError as error:
            if not error.retriable:
                raise
            return False
        return early[0] == offsets

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int, member_id: str
    ) -> None:
        state = self._state
        if state.phase is not Phase.ENDING:
            is_added = await self._are_added(offsets)
            if state.phase is not Phase.OPEN:
                raise TransactionAbortedError(f"transactional id {self.transactional_id!r}: no transaction is open")
            if not is_added:
                await self._add_offsets(offsets, generation, member_id)
        what = "its transaction cannot be committed"
        state.ended(await self._transactional(state.end(), EndTxnResponse, what))

    async def _add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        generation: int,
        member_id: str,
        *,
        is_early: bool = False,
    ) -> None:
        addition = self._state.add_offsets(is_early=is_early)
        if addition is not None:
            await self._transactional(addition, AddOffsetsToTxnResponse, "its offsets cannot be added")
        request = self._state.commit_offsets(offsets, generation, member_id, self._instance_id)
        await self._until_done(
            self._groups, self._group, request, TxnOffsetCommitResponse, "the offsets cannot be committed", offsets
        )

    async def _take_over(
        self, partitions: Collection[TopicPartition], generation: int, member_id: str
    ) -> frozenset[str]:
        claims = await committed_offsets(self._groups, self._group, partitions, stable=False)
        pending = await pending_offsets(self._groups, self._group, partitions)
        owners: dict[ClaimedBy, bool] = {}
        for partition, position in claims.items():
            owner = ClaimedBy.of(position.metadata)
            if owner is not None and owner.transactional_id != self.transactional_id:
                owners[owner] = owners.get(owner, False) or partition in pending
        if not owners:
            return frozenset()
        # A member that was thought dead and is not must not fence those that have taken its place.
        await self._check_membership(partitions, generation, member_id)
        described = await describe_group(self._cluster, self._groups, self._group)
        members = {member.member_id for member in described.members}
        dead = {
            owner.transactional_id for owner, dangles in owners.items() if dangles or owner.member_id not in members
        }
        fenced = [name for name in sorted(dead) if await self._fence(name)]
        return frozenset(fenced)

    async def _check_membership(self, partitions: Collection[TopicPartition], generation: int, member_id: str) -> None:
        request = HeartbeatRequest(
            group_id=self._group, generation_id=generation, member_id=member_id, group_instance_id=self._instance_id
        )
        what = "the group does not know this member"
        await self._until_done(self._groups, self._group, request, HeartbeatResponse, what, partitions)

    async def _fence(self, transactional_id: str) -> bool:
        """Take over another producer's transactional id; return True if a transaction had to be ended."""
        waited_for: set[ErrorCode] = set()
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=min(self._timeout_ms, FENCE_TIMEOUT_MS)
        )
        try:
            await self._until_done(
                self._ids, transactional_id, request, InitProducerIdResponse, "it cannot be fenced", (), waited_for
            )
        except AuthorizationError as error:
            log.warning("%s; readers of committed records wait for its timeout", error)
            return False
        except TransactionAbortedError as error:  # another producer was quicker
            log.info("%s", error)
        return ErrorCode.CONCURRENT_TRANSACTIONS in waited_for

    async def _transactional(self, request: Message, kind: type[M], what: str) -> M:
        return await self._until_done(self._ids, self.transactional_id, request, kind, what, ())

    async def _until_done(
        self,
        coordinators: Coordinators,
        key: str,
        request: Message,
        kind: type[M],
        what: str,
        partitions: Collection[TopicPartition],
        waited_for: set[ErrorCode] | None = None,
    ) -> M:
        """Send a request until it succeeds, for at most the request timeout; raise the error of its error code.

        waited_for: gets the codes for which it was sent again.
        """
        assert request.__table__.key is not None  # a request
        api = ApiKey(request.__table__.key)
        retry = Retry(self._cluster.timeout, _FIRST_PAUSE, _MAX_PAUSE)
        missing: list[Retry] = []
        while True:
            try:
                response = expect(await coordinators.ask(key, request, self._state.highest(api)), kind)
            except (UnreachableError, RequestTimeoutError) as error:
                decision, cause = Decision.FIND, str(error)
            else:
                decision, code = _outcome(api, response)
                if decision is Decision.DONE:
                    return response
                if decision not in (Decision.RETRY, Decision.FIND):
                    raise self._error(decision, code, what, partitions)
                cause = code.name
                _give_missing_up(response, missing)
                if waited_for is not None:
                    waited_for.add(code)
            if decision is Decision.FIND:
                coordinators.forget(key)
            if retry.is_last:
                raise RequestTimeoutError(f"transactional id {self.transactional_id!r}: {what}: {cause}")
            await retry.pause()

    def _error(
        self, decision: Decision, code: ErrorCode, what: str, partitions: Collection[TopicPartition]
    ) -> ClientError:
        text = f"transactional id {self.transactional_id!r}: {what} ({code.name})"
        if decision is Decision.GENERATION:
            return CommitRetriable(text, partitions=partitions, code=code)
        self._state.forget()
        if decision is Decision.MEMBER_FENCED:
            return CommitFenced(text, partitions=partitions, code=code)
        if decision is Decision.PRODUCER_FENCED:
            return ProducerFencedError(text, code=code)
        if decision is Decision.ABORT:
            return TransactionAbortedError(text, code=code)
        return transaction_error(code, self.transactional_id, what)


def _outcome(api: ApiKey, response: Message) -> tuple[Decision, ErrorCode]:
    """Return the reaction to the worst error code of a response."""
    decisions = [(decide(api, code), code) for code in map(error_code, _codes(response))]
    return max(decisions, key=lambda decision: decision[0].value, default=(Decision.DONE, ErrorCode.NONE))


def _give_missing_up(response: Message, since: list[Retry]) -> None:
    """Raise UnknownTopicError if topics stay unknown for a while; the first such answer sets `since`."""
    results = response.results_by_topic_v3_and_below if isinstance(response, AddPartitionsToTxnResponse) else []
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    names = [
        topic.name for topic in results if any(p.partition_error_code == unknown for p in topic.results_by_partition)
    ]
    if not names:
        since.clear()
    elif not since:
        since.append(Retry(PROPAGATION_TIME))
    elif since[0].expired:
        raise no_such_topics(names)


def _codes(response: Message) -> list[int]:
    match response:
        case TxnOffsetCommitResponse():
            return [row.error_code for topic in response.topics for row in topic.partitions]
        case AddPartitionsToTxnResponse():
            topics = response.results_by_topic_v3_and_below
            return [row.partition_error_code for topic in topics for row in topic.results_by_partition]
    return [response.error_code]  # type: ignore[attr-defined]
