"""Decisions of a producing task, without I/O or clock: the next request to each broker, and the use of its responses.

The producer is idempotent, with one open request to each broker and one batch of a partition in it. If it is not known
whether a batch has arrived, it is sent again with the same sequence number, and the broker drops duplicates. Source:
Kafka's protocol guide, "Produce", "InitProducerId", "Metadata"; KIP-98 (idempotence).
"""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from roster.model import Address
from roster.wire import ErrorCode, Message
from roster.wire.columns.writer import Body, framed, halves
from roster.wire.errors import error_code
from roster.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)

log = logging.getLogger(__name__)

ANY = -1
"""In place of a broker's id: any reachable broker."""

_ALL_REPLICAS = -1
_LEAST_BACKOFF, _MOST_BACKOFF = 0.05, 1.0
_PROPAGATION = 3.0
"""Seconds for which a new topic may be unknown to some brokers."""
_SEQUENCES = 1 << 31
_STALE_LEADER = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
}
_PASSING = _STALE_LEADER | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
"""Errors after which a retry may succeed."""

Key = tuple[str, int]
"""Topic and partition."""


_TRANSACTION_LOST = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}
"""Errors of a transaction that can no longer be committed; the work can be retried in a new one."""


class ProduceError(Exception):
    """Records cannot be written; `is_transaction_lost`: they can be in a new transaction."""

    def __init__(self, problem: str, *, is_transaction_lost: bool = False) -> None:
        super().__init__(problem)
        self.is_transaction_lost = is_transaction_lost


class NoTopicError(ProduceError):
    """The topic of some records does not exist."""


class ProducerIdentity(NamedTuple):
    """Producer id and epoch, and the transactional id if batches are part of a transaction."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None


@dataclass(slots=True)
class Cluster:
    """State that a process keeps between tasks: brokers' addresses, leaders, numbers of partitions."""

    brokers: dict[int, Address] = field(default_factory=dict)
    leaders: dict[Key, int] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """Limits: bytes of a request, and ms that a broker waits for its replicas."""

    request_bytes: int = 4 << 20
    replication_timeout_ms: int = 20_000


@dataclass(slots=True)
class _Queue:
    """Batches of one partition. `sent`: the first one, once it has been sent. `busy`: the broker it was sent to."""

    topic: str
    partition: int
    sequence: int = 0
    waiting: deque[Body] = field(default_factory=deque)
    sent: tuple[Body, int, bytes] | None = None
    busy: int | None = None
    not_before: float = 0.0
    failures: int = 0
    problem: str = ""

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    def delay(self, now: float) -> None:
        self.not_before = now + min(_LEAST_BACKOFF * 2**self.failures, _MOST_BACKOFF)
        self.failures += 1


class Production:
    """Batches to be written: `requests` returns what to send, `answered` and `failed` take the results.

    `now` is in seconds, from any clock that never goes back. Without an `identity`, a producer id is requested.
    `sequences`: the next sequence number of each partition; 0 for others.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProduceSettings | None = None,
        identity: ProducerIdentity | None = None,
        sequences: Mapping[Key, int] | None = None,
    ) -> None:
        self._cluster, self._settings = cluster, settings or ProduceSettings()
        self.identity = identity
        self._sequences = dict(sequences or {})
        self._queues: dict[Key, _Queue] = {}
        self._asked: dict[str, str] = {}
        self._unknown: dict[str, float] = {}
        self._busy: set[int] = set()
        self._pauses: dict[int, float] = {}
        self.ends: dict[Key, int | None] = {}
        """Offset behind the last acknowledged record of each partition; None: unknown."""
        self.acknowledged = 0
        """Number of records that all in-sync replicas have."""
        self.queued_bytes = 0
        self.progress = 0
        """Grows with each response that brings a result."""

    @property
    def _is_transactional(self) -> bool:
        return self.identity is not None and self.identity.transactional_id is not None

    @property
    def is_done(self) -> bool:
        """True once every record is acknowledged."""
        return not self._queues and not self._asked

    @property
    def sequences(self) -> dict[Key, int]:
        """Next sequence number of each written partition."""
        return dict(self._sequences)

    @property
    def problem(self) -> str:
        """Why records are being resent or cannot be sent yet; "" if neither."""
        problems = [*(queue.problem for queue in self._queues.values()), *self._asked.values()]
        return next(filter(None, problems), "")

    def waiting(self) -> list[str]:
        """Return what is not done yet as text, with the last problem."""
        unsent = [f"{q.topic}-{q.partition}: {q.problem or 'no answer'}" for q in self._queues.values()]
        return [*unsent, *(f"{topic}: {problem or 'no metadata'}" for topic, problem in self._asked.items())]

    def partitions(self, topic: str) -> int | None:
        """Return the topic's number of partitions; if it is not known, `requests` will request it."""
        count = self._cluster.partitions.get(topic)
        if count is None:
            self._asked.setdefault(topic, "")
        return count

    def add(self, topic: str, partition: int, body: Body) -> None:
        """Append a batch to the partition's queue."""
        key = topic, partition
        if key not in self._queues:
            self._queues[key] = _Queue(topic, partition, self._sequences.get(key, 0))
        self._queues[key].waiting.append(body)
        self.queued_bytes += body.size

    def next_wake(self, now: float) -> float | None:
        """Return the seconds until `requests` may return more without a new response; None: only after a response."""
        times = [q.not_before for q in self._queues.values() if q.not_before > now]
        times += [time for time in self._pauses.values() if time > now]
        return min(times) - now if times else None

    def requests(self, now: float) -> list[tuple[int, Message]]:
        """Return the requests to send now, at most one for each broker without an open request."""
        sent = []
        request = self._request_of_any()
        if request is not None and self._is_free(ANY, now):
            sent.append((ANY, request))
        if self.identity is not None:
            at_home: dict[int, list[_Queue]] = {}
            for queue in self._queues.values():
                home = self._home(queue)
                if queue.busy is None and queue.not_before <= now and home is not None and self._is_free(home, now):
                    at_home.setdefault(home, []).append(queue)
            sent += [(home, self._produce(home, queues)) for home, queues in at_home.items()]
        self._busy.update(broker for broker, _ in sent)
        return sent

    def _is_free(self, broker: int, now: float) -> bool:
        return broker not in self._busy and self._pauses.get(broker, 0.0) <= now

    def _home(self, queue: _Queue) -> int | None:
        leader = self._cluster.leaders.get(queue.key)
        return leader if leader in self._cluster.brokers else None

    def _request_of_any(self) -> Message | None:
        """Return the request that any broker can answer: for leaders first, then for the producer id."""
        topics = {*self._asked, *(q.topic for q in self._queues.values() if self._home(q) is None)}
        if topics:
            wanted = [MetadataRequest.Topic(name=topic) for topic in sorted(topics)]
            return MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
        if self.identity is None and self._queues:
            return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        return None

    def _produce(self, home: int, queues: list[_Queue]) -> ProduceRequest:
        topics: dict[str, list[ProduceRequest.Topic.Partition]] = {}
        size = 0
        for queue in queues:
            if size and size + (queue.sent[0] if queue.sent else queue.waiting[0]).size > self._settings.request_bytes:
                continue
            batch = self._batch(queue)
            size += len(batch)
            queue.busy = home
            topics.setdefault(queue.topic, []).append(ProduceRequest.Partition(index=queue.partition, records=batch))
            # Moved to the end, so that all partitions take turns.
            self._queues[queue.key] = self._queues.pop(queue.key)
        assert self.identity is not None  # requests has looked
        return ProduceRequest(
            transactional_id=self.identity.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._settings.replication_timeout_ms,
            topic_data=[ProduceRequest.Topic(name=topic, partition_data=p) for topic, p in topics.items()],
        )

    def _batch(self, queue: _Queue) -> bytes:
        """Return the bytes of a partition's first batch; they are the same each time it is sent."""
        if queue.sent is None:
            assert self.identity is not None  # requests has looked
            body, sequence = queue.waiting.popleft(), queue.sequence
            identity = self.identity
            whole = framed(
                body,
                identity.producer_id,
                identity.producer_epoch,
                sequence,
                transactional=identity.transactional_id is not None,
            )
            queue.sent = body, sequence, whole
            queue.sequence = (sequence + body.records) % _SEQUENCES
        return queue.sent[2]

    def failed(self, broker: int, now: float, problem: str = "") -> None:
        """Handle a connection to a broker that broke or could not be made."""
        self._busy.discard(broker)
        self._pauses[broker] = now + _LEAST_BACKOFF
        for queue in self._queues.values():
            if broker != ANY and (queue.busy == broker or self._home(queue) == broker):
                queue.busy = None
                self._retry(queue, problem, now, is_stale=True)

    def answered(self, broker: int, response: Message, now: float) -> None:
        """Handle a response. Raises ProduceError if records cannot be written."""
        self._busy.discard(broker)
        throttled: int = getattr(response, "throttle_time_ms", 0)
        if throttled > 0:
            self._pauses[broker] = now + throttled / 1000
        if isinstance(response, MetadataResponse):
            self._learn(response, now)
        elif isinstance(response, InitProducerIdResponse):
            self._identify(response, now)
        elif isinstance(response, ProduceResponse):
            self._produced(broker, response, now)

    def _learn(self, response: MetadataResponse, now: float) -> None:
        for node in response.brokers:
            self._cluster.brokers[node.node_id] = Address(node.host, node.port)
        for topic in response.topics:
            name = topic.name or ""
            code = topic.error_code
            if code != ErrorCode.NONE:
                self._not_learned(name, code, now)
                continue
            self._unknown.pop(name, None)
            self._cluster.partitions[name] = len(topic.partitions)
            self.progress += self._asked.pop(name, None) is not None
            for partition in topic.partitions:
                if partition.leader_id >= 0:
                    self._cluster.leaders[name, partition.partition_index] = partition.leader_id
        if any(self._home(queue) is None for queue in self._queues.values()):
            self._pauses[ANY] = max(self._pauses.get(ANY, 0.0), now + _LEAST_BACKOFF)

    def _not_learned(self, name: str, code: int, now: float) -> None:
        """Record why metadata has no partitions of a topic. Raises ProduceError if a retry would fail too."""
        if code not in _PASSING:
            raise ProduceError(f"{name}: {error_code(code).name}{_right(code)}")
        since = self._unknown.setdefault(name, now) if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else now
        if now - since >= _PROPAGATION:
            raise NoTopicError(f"no such topic: {name}. Create it (roster topics create) or correct the name")
        self._pauses[ANY] = now + _LEAST_BACKOFF
        if name in self._asked:
            self._asked[name] = error_code(code).name
        for queue in self._queues.values():
            queue.problem = error_code(code).name if queue.topic == name else queue.problem

    def _identify(self, response: InitProducerIdResponse, now: float) -> None:
        if response.error_code == ErrorCode.NONE:
            self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            self.progress += 1
        elif response.error_code in _PASSING:
            self._pauses[ANY] = now + _LEAST_BACKOFF
        else:
            code = response.error_code
            raise ProduceError(f"no producer id: {error_code(code).name}{_right(code)}")

    def _produced(self, broker: int, response: ProduceResponse, now: float) -> None:
        for topic in response.responses:
            for partition in topic.partition_responses:
                queue = self._queues.get((topic.name, partition.index))
                if queue is None or queue.busy != broker:
                    continue
                queue.busy = None
                # A duplicate: the first response was lost with its connection.
                if partition.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._acknowledge(queue, partition.base_offset)
                else:
                    self._refused(queue, partition, now)
        for queue in self._queues.values():
            if queue.busy == broker:  # missing in the response
                queue.busy = None
                self._retry(queue, "no answer for the partition", now, is_stale=True)

    def _acknowledge(self, queue: _Queue, base_offset: int) -> None:
        assert queue.sent is not None  # it was busy
        body = queue.sent[0]
        self.ends[queue.key] = base_offset + body.records if base_offset >= 0 else None
        self.acknowledged += body.records
        self.queued_bytes -= body.size
        self.progress += 1
        queue.sent, queue.failures, queue.problem = None, 0, ""
        self._sequences[queue.key] = queue.sequence
        if not queue.waiting:
            del self._queues[queue.key]

    def _refused(self, queue: _Queue, partition: ProduceResponse.Topic.Partition, now: float) -> None:
        code = error_code(partition.error_code)
        if code == ErrorCode.MESSAGE_TOO_LARGE and self._split(queue):
            return
        if code not in _PASSING:
            size = f" ({queue.sent[0].size} bytes)" if queue.sent and code == ErrorCode.MESSAGE_TOO_LARGE else ""
            detail = f": {partition.error_message}" if partition.error_message else _right(code)
            raise ProduceError(
                f"{queue.topic}-{queue.partition}: {code.name}{size}{detail}",
                is_transaction_lost=self._is_transactional and code in _TRANSACTION_LOST,
            )
        self._retry(queue, code.name, now, is_stale=code in _STALE_LEADER)

    def _split(self, queue: _Queue) -> bool:
        """Halve a batch that is too large for the topic; False for a single record."""
        assert queue.sent is not None  # it was refused
        body, sequence, _ = queue.sent
        if body.records == 1:
            return False
        parts = halves(body)
        self.queued_bytes += parts[0].size + parts[1].size - body.size
        queue.waiting.extendleft(reversed(parts))
        queue.sent, queue.sequence = None, sequence
        self.progress += 1
        return True

    def _retry(self, queue: _Queue, problem: str, now: float, *, is_stale: bool) -> None:
        log.info("%s-%d: %s", queue.topic, queue.partition, problem)
        queue.problem = problem
        if is_stale:
            self._cluster.leaders.pop(queue.key, None)
        queue.delay(now)


_RIGHTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "WRITE on the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "WRITE on the topic, or IDEMPOTENT_WRITE on the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "WRITE on the transactional id",
}


def _right(code: int) -> str:
    """Return the ACL operation that an error is about, "" if none."""
    right = _RIGHTS.get(error_code(code))
    return f"; grant this client {right}" if right else ""
