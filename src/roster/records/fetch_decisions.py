"""Decisions of a reading task, without I/O or clock: the next request to each broker, and the use of its responses.

A range is complete when a batch was seen that reaches its end or lies beyond it: control records and compaction leave
gaps. Source: Kafka's protocol guide, "Fetch", "ListOffsets", "Metadata"; KIP-74 (a response has at least one batch),
KIP-392 (fetching from followers), KIP-320 (leader epochs).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from roster.model import Address
from roster.model.arrays import Int64, UInt8
from roster.model.offsets import Arrival
from roster.wire import ErrorCode, Message
from roster.wire.columns.kernel import Kernel
from roster.wire.columns.reader import Aborted, Part, ScanError, Unreadable, scan
from roster.wire.errors import error_code
from roster.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
)

log = logging.getLogger(__name__)

ANY = -1
"""In place of a broker's id: any reachable broker."""

_EARLIEST, _LATEST = -2, -1
_LEADER_EPOCH = Struct(">12xi")
"""The leader epoch in the header of a record batch."""
_LEAST_BACKOFF, _MOST_BACKOFF = 0.05, 1.0
_LEAST_BYTES = 64 << 10
_GUESSED_RECORD = 1024
_SPREADING = 10.0
"""Seconds for which a topic may be unknown: brokers learn of a new one with a delay."""
_FATAL = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNSUPPORTED_VERSION)
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class FetchError(Exception):
    """Records of a range cannot be read; `is_lost`: the log no longer has them."""

    is_lost = False
    unreadable: Unreadable | None = None
    """The batch whose records cannot be read, if that is the cause."""


class RecordsLostError(FetchError):
    """The log no longer has the records of a range."""

    is_lost = True


@dataclass(frozen=True, slots=True)
class Settings:
    """How to read. `max_wait_ms`: a broker answers after this time even without records. `rack`: the rack of this task.

    `response_bytes` and `partition_bytes` limit a response and a partition's part of it; a larger first batch exceeds
    it.
    """

    is_committed: bool = False
    fail_on_data_loss: bool = True
    max_wait_ms: int = 100
    rack: str = ""
    response_bytes: int = 16 << 20
    partition_bytes: int = 4 << 20


@dataclass(slots=True)
class Knowledge:
    """State that a process keeps between tasks: addresses, leaders as (broker, epoch), recent bytes per offset."""

    brokers: dict[int, Address] = field(default_factory=dict)
    leaders: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    replicas: dict[tuple[str, int], int] = field(default_factory=dict)
    density: dict[tuple[str, int], float] = field(default_factory=dict)
    epochs: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """End of the last range of a partition, and the leader epoch of the record before it."""


@dataclass(slots=True)
class _Range:
    """A range being read. `low`: the log start offset, requested if records seem to be gone.
    `epoch`: the leader epoch in which the record before `next` was written, -1 if it was not read here.
    """

    source: int
    topic: str
    partition: int
    start: int
    end: int
    next: int
    not_before: float = 0.0
    failures: int = 0
    is_lost: bool = False
    low: int | None = None
    unknown_since: float | None = None
    epoch: int = -1

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    def delay(self, now: float) -> None:
        """Back off, longer each time."""
        self.not_before = now + min(_LEAST_BACKOFF * 2**self.failures, _MOST_BACKOFF)
        self.failures += 1


class Answer(NamedTuple):
    """Batches of one response: its bytes, and the table of `roster.wire.columns.reader.scan`."""

    data: UInt8
    table: Int64


class _Piece(NamedTuple):
    """The part of a response that belongs to a range, from `start` on."""

    range: _Range
    start: int
    records: memoryview
    aborted: Sequence[Aborted]


class Ranges:
    """The ranges of one task: `requests` returns what to send, `answered` and `failed` take the results.

    `now` is in seconds, from any clock that never goes back.
    """

    def __init__(
        self, kernel: Kernel, ranges: Sequence[tuple[str, int, int, int]], settings: Settings, knowledge: Knowledge
    ) -> None:
        self._kernel, self._settings, self._knowledge = kernel, settings, knowledge
        self.partitions = [(topic, partition) for topic, partition, _, _ in ranges]
        self._open = {
            (topic, partition): _Range(source, topic, partition, start, end, start)
            for source, (topic, partition, start, end) in enumerate(ranges)
            if start < end
        }
        for r in self._open.values():
            ended, epoch = knowledge.epochs.get(r.key, (-1, -1))
            r.epoch = epoch if ended == r.start else -1
        self._busy: set[int] = set()
        self._pauses: dict[int, float] = {}
        self.progress = 0
        """Grows whenever a range makes progress."""

    @property
    def is_done(self) -> bool:
        """True once every range has been read."""
        return not self._open

    def waiting(self) -> list[str]:
        """Return the unfinished ranges as text."""
        return [f"{r.topic}-{r.partition} up to {r.end}" for r in self._open.values()]

    def next_wake(self, now: float) -> float | None:
        """Return the seconds until `requests` may return more without a new response; None: only after a response."""
        times = [r.not_before for r in self._open.values() if r.not_before > now]
        times += [time for time in self._pauses.values() if time > now]
        return min(times) - now if times else None

    def requests(self, now: float) -> list[tuple[int, Message]]:
        """Return the requests to send now; one at a time per broker, which handles them one by one anyway."""
        due = [(self._home(r), r) for r in self._open.values() if r.not_before <= now]
        sent: list[tuple[int, Message]] = []
        homeless = sorted({r.topic for home, r in due if home is None})
        if homeless and ANY not in self._busy and self._pauses.get(ANY, 0.0) <= now:
            topics = [MetadataRequest.Topic(name=topic) for topic in homeless]
            sent.append((ANY, MetadataRequest(topics=topics, allow_auto_topic_creation=False)))
        at_home: dict[int, list[_Range]] = {}
        for home, r in due:
            if home is not None and home not in self._busy and self._pauses.get(home, 0.0) <= now:
                at_home.setdefault(home, []).append(r)
        for home, ranges in at_home.items():
            lost = [r for r in ranges if r.is_lost]
            sent.append((home, self._list_offsets(lost) if lost else self._fetch(ranges)))
        self._busy.update(home for home, _ in sent)
        return sent

    def _home(self, r: _Range) -> int | None:
        """Return the broker to read from: the replica that the leader prefers (KIP-392), else the leader."""
        leader = self._knowledge.leaders.get(r.key)
        if leader is None:
            return None
        replica = self._knowledge.replicas.get(r.key, leader[0])
        home = leader[0] if r.is_lost else replica
        return home if home in self._knowledge.brokers else None

    def _fetch(self, ranges: list[_Range]) -> FetchRequest:
        topics: dict[str, list[FetchRequest.Topic.Partition]] = {}
        # The broker fills the response in this order: the partition that has waited longest comes first.
        for r in ranges:
            topics.setdefault(r.topic, []).append(
                FetchRequest.Partition(
                    partition=r.partition,
                    current_leader_epoch=self._knowledge.leaders[r.key][1],
                    fetch_offset=r.next,
                    last_fetched_epoch=r.epoch,
                    partition_max_bytes=self._most_bytes(r),
                )
            )
        return FetchRequest(
            max_wait_ms=self._settings.max_wait_ms,
            min_bytes=1,
            max_bytes=self._settings.response_bytes,
            isolation_level=int(self._settings.is_committed),
            topics=[FetchRequest.Topic(topic=topic, partitions=p) for topic, p in topics.items()],
            rack_id=self._settings.rack,
        )

    def _most_bytes(self, r: _Range) -> int:
        """Return the expected size of the rest of the range, so that few bytes beyond its end are sent."""
        likely = 1.25 * (r.end - r.next) * self._knowledge.density.get(r.key, _GUESSED_RECORD)
        return int(min(max(likely, _LEAST_BYTES), self._settings.partition_bytes))

    def _list_offsets(self, ranges: list[_Range]) -> ListOffsetsRequest:
        topics: dict[str, list[ListOffsetsRequest.Topic.Partition]] = {}
        for r in ranges:
            topics.setdefault(r.topic, []).append(
                ListOffsetsRequest.Partition(
                    partition_index=r.partition, timestamp=_EARLIEST if r.low is None else _LATEST
                )
            )
        return ListOffsetsRequest(
            isolation_level=int(self._settings.is_committed),
            topics=[ListOffsetsRequest.Topic(name=topic, partitions=p) for topic, p in topics.items()],
        )

    def failed(self, broker: int, now: float) -> None:
        """Handle a connection to a broker that broke or could not be made."""
        self._busy.discard(broker)
        self._pauses[broker] = now + _LEAST_BACKOFF
        for r in self._open.values():
            if broker != ANY and self._home(r) == broker:
                self._forget(r, now)

    def _forget(self, r: _Range, now: float) -> None:
        """Forget the partition's replica or leader, so that it is looked up again."""
        if self._knowledge.replicas.pop(r.key, None) is None:
            self._knowledge.leaders.pop(r.key, None)
        r.delay(now)

    def answered(self, broker: int, request: Message, response: Message, now: float) -> Answer | None:
        """Handle a response; return its records. Raises FetchError."""
        self._busy.discard(broker)
        throttled: int = getattr(response, "throttle_time_ms", 0)
        if throttled > 0:
            self._pauses[broker] = now + throttled / 1000
        if isinstance(response, MetadataResponse):
            self._learn(response, now)
        elif isinstance(response, ListOffsetsResponse):
            assert isinstance(request, ListOffsetsRequest)  # its answer
            self._offsets_listed(request, response, now)
        elif isinstance(response, FetchResponse):
            return self._fetched(broker, response, now)
        return None

    def _learn(self, response: MetadataResponse, now: float) -> None:
        for node in response.brokers:
            self._knowledge.brokers[node.node_id] = Address(node.host, node.port)
        for topic in response.topics:
            name = topic.name or ""
            by_number = {p.partition_index: p for p in topic.partitions}
            for r in [r for r in self._open.values() if r.topic == name and self._home(r) is None]:
                partition = by_number.get(r.partition)
                if topic.error_code in _FATAL:
                    raise _refused(r, topic.error_code)
                if partition is None:
                    self._unknown(r, now)
                elif partition.leader_id < 0:
                    r.delay(now)
                else:
                    self._knowledge.leaders[r.key] = (partition.leader_id, partition.leader_epoch)
                    if self._home(r) is None:  # the leader or preferred replica is not among the brokers
                        self._forget(r, now)

    def _unknown(self, r: _Range, now: float) -> None:
        if r.unknown_since is None:
            r.unknown_since = now
        if now - r.unknown_since > _SPREADING:
            raise _refused(r, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._forget(r, now)

    def arrived(self, arrivals: Sequence[Arrival]) -> Answer | None:
        """Take records that another process has received, of ranges that begin with them, as a response."""
        pieces, data, end = list[_Piece](), memoryview(b"".join(arrival.records for arrival in arrivals)), 0
        reached: dict[int, tuple[int, int]] = {}
        for arrival in arrivals:
            begin, end = end, end + len(arrival.records)
            r = self._open.get((arrival.topic, arrival.partition))
            if r is None or arrival.is_committed != self._settings.is_committed:
                continue
            start, known = reached.get(r.source, (r.next, r.epoch))
            (epoch,) = _LEADER_EPOCH.unpack_from(arrival.records)
            # After a change of leader a Fetch with the epoch tells whether the log was truncated.
            if arrival.start <= start < arrival.next and known in (-1, epoch):
                reached[r.source] = arrival.next, epoch
                pieces.append(
                    _Piece(r, start, data[begin:end], [Aborted(*transaction) for transaction in arrival.aborted])
                )
        return self._scanned(pieces)

    def _fetched(self, broker: int, response: FetchResponse, now: float) -> Answer | None:
        if response.error_code != ErrorCode.NONE:
            self.failed(broker, now)
            return None
        pieces: dict[int, _Piece] = {}
        for topic in response.responses:
            for partition in topic.partitions:
                r = self._open.get((topic.topic, partition.partition_index))
                if r is None:
                    continue
                if partition.error_code != ErrorCode.NONE:
                    self._fetch_refused(r, partition.error_code, now)
                    continue
                if partition.preferred_read_replica >= 0 and self._settings.rack:
                    self._knowledge.replicas[r.key] = partition.preferred_read_replica
                if partition.diverging_epoch.end_offset >= 0:
                    self._diverged(r, partition.diverging_epoch)
                    continue
                if partition.records:
                    aborted = [Aborted(a.producer_id, a.first_offset) for a in partition.aborted_transactions or ()]
                    pieces[r.source] = _Piece(r, r.next, memoryview(partition.records), aborted)
        return self._scanned([*pieces.values()])

    def _scanned(self, pieces: Sequence[_Piece]) -> Answer | None:
        """Take records of one response, which are views into its frame."""
        if not pieces:
            return None
        frame = pa.py_buffer(pieces[0].records.obj)
        begins = [pa.py_buffer(piece.records).address - frame.address for piece in pieces]
        parts = [
            Part(begin, begin + len(records), start, r.end, r.source, aborted)
            for begin, (r, start, records, aborted) in zip(begins, pieces, strict=True)
        ]
        data = np.frombuffer(frame, np.uint8)
        try:
            table, nexts, epochs = scan(self._kernel, data, parts, committed=self._settings.is_committed)
        except ScanError as error:
            raise FetchError("{}-{}: {}".format(*self.partitions[error.source], error)) from error
        for (r, _, records, _), following, epoch in zip(pieces, nexts, epochs, strict=True):
            if following < 0:
                text = f"{len(records)} bytes at offset {r.next} hold no whole batch"
                raise FetchError(f"{r.topic}-{r.partition}: {text}")
            if following > r.next:
                self._knowledge.density[r.key] = len(records) / (following - r.next)
                r.next = following
                if epoch >= 0:
                    r.epoch = epoch
                    self._knowledge.epochs[r.key] = min(r.next, r.end), epoch
                r.failures, r.unknown_since = 0, None
                self.progress += 1
                self._open.pop(r.key, None)
                if r.next < r.end:
                    self._open[r.key] = r  # after those that are still waiting
        return Answer(data, table) if len(table) else None

    def _diverged(self, r: _Range, divergence: FetchResponse.Topic.Partition.EpochEndOffset) -> None:
        """Handle a log that lost records already read, in an unclean leader election (KIP-320)."""
        if self._knowledge.replicas.pop(r.key, None) is not None:  # a follower may be behind: ask the leader
            return
        problem = (
            f"{r.topic}-{r.partition}: the log was truncated: offset {r.next - 1} was read in leader epoch {r.epoch}, "
            f"the log now has epoch {divergence.epoch} up to offset {divergence.end_offset}"
        )
        self._knowledge.epochs.pop(r.key, None)
        if self._settings.fail_on_data_loss:
            raise FetchError(f"{problem}; fail_on_data_loss=False goes on where it was")
        log.warning("%s: records are lost", problem)
        r.epoch = -1
        self.progress += 1

    def _fetch_refused(self, r: _Range, code: int, now: float) -> None:
        if code in _FATAL:
            raise _refused(r, code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            r.epoch = -1  # a log without that epoch gives this error too
            if self._knowledge.replicas.pop(r.key, None) is None:  # a follower may be behind: ask the leader
                r.is_lost, r.low = True, None
        elif code in _UNKNOWN:
            self._unknown(r, now)
        else:
            log.info("%s-%d: %s", r.topic, r.partition, error_code(code).name)
            self._forget(r, now)

    def _offsets_listed(self, request: ListOffsetsRequest, response: ListOffsetsResponse, now: float) -> None:
        timestamps = {(t.name, p.partition_index): p.timestamp for t in request.topics for p in t.partitions}
        for topic in response.topics:
            for partition in topic.partitions:
                r = self._open.get((topic.name, partition.partition_index))
                if r is None or not r.is_lost:
                    continue
                if partition.error_code in _FATAL:
                    raise _refused(r, partition.error_code)
                if partition.error_code != ErrorCode.NONE:
                    self._forget(r, now)
                elif timestamps.get(r.key) == _EARLIEST:
                    r.low = partition.offset
                elif r.low is not None:
                    self._lost(r, r.low, partition.offset, now)

    def _lost(self, r: _Range, low: int, high: int, now: float) -> None:
        """Handle records of the range that are gone: fail, or continue with the rest of it."""
        r.is_lost = False
        if low <= r.next <= high:  # the broker that refused was behind
            r.delay(now)
            return
        problem = f"{r.topic}-{r.partition}: offsets {r.start} to {r.end} wanted, the log holds {low} to {high}"
        if self._settings.fail_on_data_loss:
            raise RecordsLostError(f"{problem}; fail_on_data_loss=False goes on with what is left")
        log.warning("%s: records are lost", problem)
        self.progress += 1
        if r.next < low < r.end:
            r.next = low
        else:
            del self._open[r.key]


def _refused(r: _Range, code: int) -> FetchError:
    fix = "; grant this client READ on the topic" if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else ""
    return FetchError(f"{r.topic}-{r.partition}: {error_code(code).name}{fix}")
