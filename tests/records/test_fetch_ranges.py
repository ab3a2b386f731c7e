"""Decisions of a reading task against simulated brokers: whatever happens between, each record comes once, in order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model.offsets import Arrival
from roster.records.fetch_decisions import ANY, Answer, FetchError, Knowledge, Ranges, Settings
from roster.records.native import kernel
from roster.wire import ErrorCode, Message, WireError
from roster.wire.columns.reader import RecordColumns
from roster.wire.frames import decode_response, encode_response
from roster.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
)
from roster.wire.records import Record, build_batch, split_batches
from tests.examples_tried import examples

KERNEL = kernel()
Key = tuple[str, int]


@dataclass
class Log:
    """Sorted offsets cut into batches; what lies below `low` is gone."""

    offsets: list[int]
    end: int
    per_batch: int = 3
    low: int = 0
    leader: int = 0
    epoch: int = 5
    error: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(5, 0)])
    """Leader epochs that wrote records, each with its first offset."""

    def batches(self) -> list[tuple[int, bytes]]:
        """The offset behind each batch, and its bytes; the last reaches up to the end."""
        found = []
        kept = [o for o in self.offsets if o >= self.low]
        for at in range(0, len(kept), self.per_batch):
            run = kept[at : at + self.per_batch]
            last = self.end - 1 if at + self.per_batch >= len(kept) else run[-1]
            records = [Record(offset=o, value=b"%d" % o) for o in run]
            written = max(epoch for epoch, start in self.epochs if start <= run[0])
            batch = build_batch(records, base_offset=run[0], last_offset=last, leader_epoch=written)
            found.append((last + 1, batch))
        return found

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """As a broker answers: the largest epoch up to `epoch`, and where the next one starts."""
        own = max((known for known, _ in self.epochs if known <= epoch), default=-1)
        return own, min((start for known, start in self.epochs if known > own), default=self.end)

    def read(self, offset: int, most: int) -> bytes:
        data = b""
        for behind, batch in self.batches():
            if data and len(data) + len(batch) > most:
                break
            data += batch if behind > offset else b""
        return data


@dataclass
class Brokers:
    """Brokers 0-2; requests that name topics are encoded and decoded as on a connection."""

    logs: dict[Key, Log]
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    trouble: float = 0.0
    asked: list[tuple[int, Message]] = field(default_factory=list)
    throttle: int = 0

    def answer(self, broker: int, request: Message) -> Message:
        self.asked.append((broker, request))
        match request:
            case MetadataRequest():
                return self._as_sent(self._metadata(request), 12)
            case ListOffsetsRequest():
                return self._as_sent(self._list(request), 9)
        assert isinstance(request, FetchRequest)
        return self._as_sent(self._fetch(broker, request), 12)

    def _as_sent(self, message: Message, version: int) -> Message:
        return decode_response(type(message), version, encode_response(message, version, 1)[4:])[1]

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        brokers = [MetadataResponse.Broker(node_id=n, host="b", port=n + 1) for n in range(3)]
        topics = []
        for wanted in request.topics or ():
            found = [
                MetadataResponse.Partition(partition_index=n, leader_id=log.leader, leader_epoch=log.epoch)
                for (topic, n), log in self.logs.items()
                if topic == wanted.name
            ]
            code = 0 if found else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topics.append(MetadataResponse.Topic(name=wanted.name, partitions=found, error_code=code))
        return MetadataResponse(brokers=brokers, topics=topics)

    def _list(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            parts = []
            for p in topic.partitions:
                log = self.logs[topic.name, p.partition_index]
                offset = log.low if p.timestamp == -2 else log.end
                parts.append(ListOffsetsResponse.Partition(partition_index=p.partition_index, offset=offset))
            topics.append(ListOffsetsResponse.Topic(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    def _fetch(self, broker: int, request: FetchRequest) -> FetchResponse:
        topics = []
        for topic in request.topics:
            parts = [self._partition(broker, self.logs[topic.topic, p.partition], p) for p in topic.partitions]
            topics.append(FetchResponse.Topic(topic=topic.topic, partitions=parts))
        return FetchResponse(responses=topics, throttle_time_ms=self.throttle)

    def _partition(self, broker: int, log: Log, asked: FetchRequest.Topic.Partition) -> Any:
        answer = FetchResponse.Partition(partition_index=asked.partition, high_watermark=log.end)
        if self.chance.random() < self.trouble:
            log.leader, log.epoch = self.chance.randrange(3), log.epoch + 1
        if log.error:
            answer.error_code = log.error
        elif broker != log.leader:
            answer.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif asked.current_leader_epoch != log.epoch:
            answer.error_code = int(ErrorCode.FENCED_LEADER_EPOCH)
        elif not log.low <= asked.fetch_offset <= log.end:
            answer.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif asked.last_fetched_epoch >= 0 and self._diverges(log, asked):
            own, end = log.epoch_end(asked.last_fetched_epoch)
            answer.diverging_epoch = FetchResponse.Topic.Partition.EpochEndOffset(epoch=own, end_offset=end)
        else:
            most = self.chance.choice([1, 100, asked.partition_max_bytes])
            data = log.read(asked.fetch_offset, most)
            answer.records = data + data[: self.chance.choice([0, 0, 30])]  # the last one may be cut off
        return answer

    def _diverges(self, log: Log, asked: FetchRequest.Topic.Partition) -> bool:
        """Whether the broker's log left the epoch of the record before, before the offset asked for."""
        own, end = log.epoch_end(asked.last_fetched_epoch)
        return own < asked.last_fetched_epoch or end < asked.fetch_offset


def read(
    brokers: Brokers,
    wanted: list[tuple[str, int, int, int]],
    knowledge: Knowledge | None = None,
    seconds: float = 60.0,
    arrivals: Sequence[Arrival] = (),
    **options: Any,
) -> list[tuple[str, int, int]]:
    """Every row of the ranges, in the order they come in; time passes only while nothing can be done."""
    chance, now = brokers.chance, 0.0
    ranges = Ranges(KERNEL, wanted, Settings(**options), knowledge or Knowledge())
    columns = RecordColumns(KERNEL, ranges.partitions)
    under_way: list[tuple[int, Message]] = []
    rows: list[tuple[str, int, int]] = []

    def take(answer: Answer | None) -> None:
        for batch in columns.batches(answer.data, answer.table) if answer else ():
            rows.extend(zip(*(batch.column(c).to_pylist() for c in ("topic", "partition", "offset")), strict=True))
            assert batch.column("value").to_pylist() == [b"%d" % o for o in batch.column("offset").to_pylist()]

    take(ranges.arrived(arrivals))
    while not ranges.is_done:
        assert now < seconds, f"waiting for {ranges.waiting()}"
        sent = ranges.requests(now)
        assert not {broker for broker, _ in sent} & {broker for broker, _ in under_way}, "one request a broker"
        assert len({broker for broker, _ in sent}) == len(sent)
        under_way += sent
        if not under_way:
            wake = ranges.next_wake(now)
            assert wake is not None, "a task that waits for nothing"
            assert wake > 0
            now += wake
            continue
        broker, request = under_way.pop(chance.randrange(len(under_way)))
        now += 0.001
        if chance.random() < brokers.trouble:
            ranges.failed(broker, now)
            continue
        take(ranges.answered(broker, request, brokers.answer(broker, request), now))
    return rows


def by_partition(rows: list[tuple[str, int, int]]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    for topic, partition, offset in rows:
        found.setdefault((topic, partition), []).append(offset)
    return found


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[Key, Log], list[tuple[str, int, int, int]]]:
    logs, wanted = {}, []
    keys = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), min_size=1, max_size=5, unique=True)
    for key in draw(keys):
        end = draw(st.integers(1, 40))
        offsets = sorted(draw(st.sets(st.integers(0, end - 1), min_size=1)))
        logs[key] = Log(offsets, end, draw(st.integers(1, 9)), leader=draw(st.integers(0, 2)))
        start = draw(st.integers(0, end - 1))
        wanted.append((*key, start, draw(st.integers(start, end))))
    return logs, wanted


@given(worlds(), st.integers(0, 2**32), st.sampled_from([0.0, 0.05, 0.3]))
@settings(max_examples=examples(200))
def test_a_range_gives_the_same_rows_whatever_happens_to_brokers_and_leaders(
    world: tuple[dict[Key, Log], list[tuple[str, int, int, int]]], seed: int, trouble: float
) -> None:
    logs, wanted = world
    expected = {(t, p): [o for o in logs[t, p].offsets if start <= o < end] for t, p, start, end in wanted}
    knowledge = Knowledge()
    for round_ in range(2):  # the second with leaders that may be outdated
        brokers = Brokers(logs, random.Random(seed + round_), trouble)
        assert by_partition(read(brokers, wanted, knowledge)) == {key: o for key, o in expected.items() if o}


@given(worlds(), st.integers(0, 2**32), st.integers(1, 400))
@settings(max_examples=examples(100))
def test_records_that_another_process_has_received_are_those_that_are_read(
    world: tuple[dict[Key, Log], list[tuple[str, int, int, int]]], seed: int, most: int
) -> None:
    logs, wanted = world
    chance, found = random.Random(seed), list[Arrival]()
    for topic, partition, start, _ in wanted:
        at = start + chance.choice([0, 0, 0, -1, 1])  # of another place they say nothing of the range
        log = logs[topic, partition]
        for _ in range(chance.randrange(4)):
            data = log.read(max(at, 0), most)
            if not data:
                break
            behind = split_batches(data)[-1][0].last_offset + 1
            found.append(Arrival(topic, partition, at, behind, log.end, False, data))
            at = behind + chance.choice([0, 0, 0, 0, 1])
    brokers = Brokers(logs, random.Random(seed))
    expected = {(t, p): [o for o in logs[t, p].offsets if start <= o < end] for t, p, start, end in wanted}
    assert by_partition(read(brokers, wanted, arrivals=found)) == {key: o for key, o in expected.items() if o}


def test_nothing_is_asked_for_that_has_arrived_but_under_the_other_isolation_level() -> None:
    log = Log([*range(9)], 9)
    for is_committed in (False, True):
        brokers = Brokers({("t", 0): log})
        first = log.read(2, 1)
        behind = split_batches(first)[-1][0].last_offset + 1
        parts = [
            Arrival("t", 0, 1, behind, 5, False, first),
            Arrival("t", 0, behind, 9, 9, False, log.read(behind, 1000)),
        ]
        assert len(read(brokers, [("t", 0, 2, 7)], arrivals=parts, is_committed=is_committed)) == 5
        assert bool(brokers.asked) is is_committed


def test_a_broker_is_asked_for_all_its_partitions_at_once_and_others_meanwhile() -> None:
    logs = {("t", n): Log([*range(9)], 9, leader=n % 3) for n in range(6)}
    ranges = Ranges(KERNEL, [("t", n, 0, 9) for n in range(6)], Settings(), Knowledge())
    brokers = Brokers(logs)
    ((broker, request),) = ranges.requests(0.0)
    assert broker == ANY
    ranges.answered(broker, request, brokers.answer(broker, request), 0.0)
    sent = ranges.requests(0.0)
    assert sorted(broker for broker, _ in sent) == [0, 1, 2]
    assert all(isinstance(r, FetchRequest) and len(r.topics[0].partitions) == 2 for _, r in sent)
    assert ranges.requests(0.0) == []


def test_records_that_are_gone_fail_the_task_or_are_skipped_as_told() -> None:
    def brokers() -> Brokers:
        return Brokers({("t", 0): Log([*range(20)], 20, low=5)})

    with pytest.raises(FetchError, match="t-0: offsets 0 to 10 wanted, the log holds 5 to 20; fail_on_data_loss=False"):
        read(brokers(), [("t", 0, 0, 10)])
    assert [o for _, _, o in read(brokers(), [("t", 0, 0, 10)], fail_on_data_loss=False)] == [*range(5, 10)]
    assert read(brokers(), [("t", 0, 0, 3)], fail_on_data_loss=False) == []
    with pytest.raises(FetchError, match="offsets 25 to 30 wanted, the log holds 5 to 20"):
        read(brokers(), [("t", 0, 25, 30)])
    assert read(brokers(), [("t", 0, 25, 30)], fail_on_data_loss=False) == []


def test_an_offset_out_of_range_on_a_broker_that_lags_is_asked_for_again() -> None:
    log = Log([*range(9)], 9)
    brokers = Brokers({("t", 0): log})
    knowledge = Knowledge()
    ranges = Ranges(KERNEL, [("t", 0, 4, 9)], Settings(), knowledge)
    now, refusals = 0.0, 2
    while not ranges.is_done:
        for broker, request in ranges.requests(now):
            if isinstance(request, FetchRequest) and refusals:
                log.error, refusals = int(ErrorCode.OFFSET_OUT_OF_RANGE), refusals - 1
            response = brokers.answer(broker, request)
            log.error = 0
            ranges.answered(broker, request, response, now)
        now += 1
    assert refusals == 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0: TOPIC_AUTHORIZATION_FAILED"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-0: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_what_no_patience_mends_is_an_error(error: ErrorCode, text: str) -> None:
    with pytest.raises(FetchError, match=text):
        read(Brokers({("t", 0): Log([0], 1, error=int(error))}), [("t", 0, 0, 1)])


def test_a_topic_that_is_not_there_is_an_error_after_news_had_time_to_spread() -> None:
    brokers = Brokers({("t", 0): Log([0], 1)})
    with pytest.raises(FetchError, match="u-0: UNKNOWN_TOPIC_OR_PARTITION"):
        read(brokers, [("u", 0, 0, 1)])
    assert 5 < len(brokers.asked) < 40, "asked again, but not all the time"


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_what_passes_is_waited_for_with_growing_pauses(error: ErrorCode) -> None:
    brokers = Brokers({("t", 0): Log([0], 1, error=int(error))})
    with pytest.raises(AssertionError, match="waiting for"):
        read(brokers, [("t", 0, 0, 1)], seconds=20.0)
    assert 15 < len(brokers.asked) < 70


def test_a_throttled_broker_is_left_alone_as_long_as_it_says() -> None:
    brokers = Brokers({("t", 0): Log([*range(9)], 9, per_batch=1)}, throttle=700)
    brokers.chance = random.Random(1)
    ranges = Ranges(KERNEL, [("t", 0, 0, 9)], Settings(), Knowledge())
    (metadata,) = ranges.requests(0.0)
    ranges.answered(*metadata, brokers.answer(*metadata), 0.0)
    (fetch,) = ranges.requests(0.0)
    assert ranges.answered(*fetch, brokers.answer(*fetch), 0.0) is not None
    assert not ranges.is_done
    assert ranges.requests(0.6) == []
    assert ranges.next_wake(0.6) == pytest.approx(0.1)
    assert len(ranges.requests(0.71)) == 1


def test_damaged_records_are_an_error() -> None:
    log = Log([*range(9)], 9)
    brokers = Brokers({("t", 0): log})
    sound = log.read
    log.read = lambda offset, most: sound(offset, most)[:-1] + b"\xff"  # type: ignore[method-assign]
    with pytest.raises((WireError, FetchError)):
        read(brokers, [("t", 0, 0, 9)])


def test_a_follower_nearby_is_read_and_left_when_it_fails() -> None:
    log = Log([*range(9)], 9, per_batch=3)
    brokers = Brokers({("t", 0): log})
    plain = brokers._partition

    def with_replica(broker: int, held: Log, asked: Any) -> Any:
        answer = plain(log.leader if broker == 2 else broker, held, asked)
        if broker == log.leader and asked.fetch_offset == 0:
            answer.preferred_read_replica, answer.records = 2, None
        if broker == 2 and asked.fetch_offset >= 3:
            answer.error_code, answer.records = int(ErrorCode.OFFSET_OUT_OF_RANGE), None
        return answer

    brokers._partition = with_replica  # type: ignore[method-assign]
    brokers.chance = random.Random(3)
    rows = read(brokers, [("t", 0, 0, 9)], rack="r")
    assert [o for _, _, o in rows] == [*range(9)]
    fetched = [broker for broker, request in brokers.asked if isinstance(request, FetchRequest)]
    assert fetched[:2] == [0, 2]
    assert fetched[-1] == 0, "back with the leader"
    assert all(r.rack_id == "r" for _, r in brokers.asked if isinstance(r, FetchRequest))


def test_a_log_that_was_truncated_and_written_anew_is_an_error_or_gone_on_with_as_told() -> None:
    for fail in (True, False):
        log, knowledge = Log([*range(12)], 12), Knowledge()
        brokers = Brokers({("t", 0): log})
        read(brokers, [("t", 0, 0, 10)], knowledge)
        # An unclean election: the new leader had the records below 6, and wrote others behind them.
        log.epoch, log.offsets, log.end, log.epochs = 7, [*range(20)], 20, [(5, 0), (7, 6)]
        if fail:
            with pytest.raises(FetchError, match="t-0: the log was truncated: offset 9 was read in leader epoch 5"):
                read(brokers, [("t", 0, 10, 20)], knowledge)
        else:
            rows = read(brokers, [("t", 0, 10, 20)], knowledge, fail_on_data_loss=False)
            assert [offset for _, _, offset in rows] == [*range(10, 20)]


def test_a_log_that_was_truncated_is_noticed_where_records_have_arrived_too() -> None:
    log, knowledge = Log([*range(12)], 12), Knowledge()
    brokers = Brokers({("t", 0): log})
    read(brokers, [("t", 0, 0, 10)], knowledge)
    log.epoch, log.offsets, log.end, log.epochs = 7, [*range(20)], 20, [(5, 0), (7, 6)]
    arrived = [Arrival("t", 0, 10, 20, 20, False, log.read(10, 1000))]
    with pytest.raises(FetchError, match="t-0: the log was truncated: offset 9 was read in leader epoch 5"):
        read(brokers, [("t", 0, 10, 20)], knowledge, arrivals=arrived)
    log.epochs = [(5, 0), (7, 10)]
    rows = read(brokers, [("t", 0, 10, 20)], knowledge, arrivals=arrived)
    assert [offset for _, _, offset in rows] == [*range(10, 20)]


def test_another_leader_that_has_all_records_is_read_on_and_so_is_an_unknown_past() -> None:
    log, knowledge = Log([*range(12)], 12), Knowledge()
    brokers = Brokers({("t", 0): log})
    read(brokers, [("t", 0, 0, 10)], knowledge)
    log.epoch, log.offsets, log.end, log.epochs = 7, [*range(20)], 20, [(5, 0), (7, 12)]
    brokers.asked.clear()
    rows = read(brokers, [("t", 0, 10, 20)], knowledge) + read(brokers, [("t", 0, 4, 9)], knowledge)
    assert [offset for _, _, offset in rows] == [*range(10, 20), *range(4, 9)]
    asked = [p for _, r in brokers.asked if isinstance(r, FetchRequest) for t in r.topics for p in t.partitions]
    assert {p.last_fetched_epoch for p in asked if p.fetch_offset == 4} == {-1}, "another place of the log"
    assert {p.last_fetched_epoch for p in asked if p.fetch_offset == 10} == {5}


def test_a_broker_that_has_forgotten_the_epoch_is_asked_without_it() -> None:
    log, knowledge = Log([*range(20)], 20), Knowledge()
    brokers = Brokers({("t", 0): log})
    read(brokers, [("t", 0, 0, 10)], knowledge)
    plain = brokers._partition

    def without_epochs(broker: int, held: Log, asked: Any) -> Any:
        answer = plain(broker, held, asked)
        if asked.last_fetched_epoch >= 0:
            answer.error_code, answer.records = int(ErrorCode.OFFSET_OUT_OF_RANGE), None
        return answer

    brokers._partition = without_epochs  # type: ignore[method-assign]
    rows = read(brokers, [("t", 0, 10, 13)], knowledge)
    assert [offset for _, _, offset in rows] == [10, 11, 12]


def damaged(frame: bytes, chance: random.Random) -> bytes:
    """The frame with some bytes changed, cut off, or with others between."""
    found = bytearray(frame)
    kind = chance.randrange(4)
    at = chance.randrange(len(found))
    if kind == 0:
        del found[at:]
    elif kind == 1:
        found[at:at] = chance.randbytes(chance.randint(1, 8))
    else:
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(min(len(found), 80)) if kind == 2 else chance.randrange(len(found))
            found[place] = chance.randrange(256)
    return bytes(found)


def test_a_damaged_fetch_response_is_an_error_or_has_values_of_the_log() -> None:
    numbers = range(30)
    refused = 0
    for seed in range(600):
        chance = random.Random(seed)
        brokers = Brokers({("t", n): Log([*numbers], 30) for n in range(2)}, chance)
        ranges = Ranges(KERNEL, [("t", 0, 0, 30), ("t", 1, 0, 30)], Settings(is_committed=seed % 2 == 0), Knowledge())
        ((_, metadata),) = ranges.requests(0.0)
        ranges.answered(ANY, metadata, brokers.answer(0, metadata), 0.0)
        ((broker, fetch),) = ranges.requests(0.0)
        assert isinstance(fetch, FetchRequest)
        frame = damaged(encode_response(brokers._fetch(broker, fetch), 12, 1)[4:], chance)
        try:
            _, response = decode_response(FetchResponse, 12, frame)
            answer = ranges.answered(broker, fetch, response, 0.0)
            batches = [] if answer is None else RecordColumns(KERNEL, ranges.partitions).batches(*answer)
            values = [value for batch in batches for value in batch.column("value").to_pylist()]
        except (WireError, FetchError):
            refused += 1
            continue
        assert set(values) <= {b"%d" % n for n in numbers}
    assert 100 < refused < 600
