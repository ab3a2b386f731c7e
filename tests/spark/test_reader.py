"""The reader against a scripted consumer: any interleaving of partitions, gaps, ends and chunks gives the same rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from roster.spark import reader
from roster.spark.batch import Split
from roster.spark.reader import ReaderConfig, ReadError, consumed_splits


class FakeMessage:
    def __init__(self, key: tuple[str, int], offset: int, error: Any = None) -> None:
        self._key, self._offset, self._error = key, offset, error

    def error(self) -> Any:
        return KafkaError(self._error) if self._error is not None else None

    def topic(self) -> str:
        return self._key[0]

    def partition(self) -> int:
        return self._key[1]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, 1000 + self._offset)


@dataclass
class FakeConsumer:
    """Logs are sorted offsets with gaps and an end; `choices` decide which partition speaks next and for how long."""

    logs: dict[tuple[str, int], tuple[list[int], int]]
    choices: list[int] = field(default_factory=list)
    lows: dict[tuple[str, int], int] = field(default_factory=dict)
    at: dict[tuple[str, int], int] = field(default_factory=dict)
    done: set[tuple[str, int]] = field(default_factory=set)
    paused: set[tuple[str, int]] = field(default_factory=set)
    closed: bool = False

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert not self.paused, "a pause outlives the assignment"
        self.at = {(p.topic, p.partition): p.offset for p in partitions}
        self.done.clear()

    def unassign(self) -> None:
        self.at.clear()

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {(p.topic, p.partition) for p in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {(p.topic, p.partition) for p in partitions}

    def close(self) -> None:
        self.closed = True

    def get_watermark_offsets(self, partition: TopicPartition, **_: Any) -> tuple[int, int]:
        key = (partition.topic, partition.partition)
        return self.lows.get(key, 0), self.logs[key][1]

    def consume(self, most: int, timeout: float) -> list[FakeMessage]:
        messages: list[FakeMessage] = []
        while len(messages) < most:
            ready = sorted(self.at.keys() - self.done - self.paused)
            if not ready:
                break
            choice = self.choices.pop() if self.choices else 7
            key = ready[choice % len(ready)]
            offsets, end = self.logs[key]
            if self.at[key] < self.lows.get(key, 0) or self.at[key] > end:
                messages.append(FakeMessage(key, -1001, KafkaError._AUTO_OFFSET_RESET))
                self.done.add(key)  # it stands still until it is told where to go
                continue
            run = [offset for offset in offsets if offset >= self.at[key]][: choice + 1][: most - len(messages)]
            messages += [FakeMessage(key, offset) for offset in run]
            if run:
                self.at[key] = run[-1] + 1
            elif len(messages) < most:
                messages.append(FakeMessage(key, end, KafkaError._PARTITION_EOF))
                self.done.add(key)
            if choice % 5 == 4:
                break
        return messages


@pytest.fixture
def consuming(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(consumer: FakeConsumer) -> None:
        monkeypatch.setattr(reader, "_consumer", lambda config: (consumer, ("fake",)))
        monkeypatch.setattr(reader, "_consumers", {("fake",): consumer})

    return use


def rows(splits: list[Split], **options: Any) -> list[tuple[str, int, int]]:
    config = ReaderConfig("b:1", "g", **{"read_timeout_ms": 0, **options})
    got = []
    for batch in consumed_splits(config, splits):
        assert batch.num_rows > 0
        columns = batch.to_pydict()
        assert columns["value"] == [b"%d" % offset for offset in columns["offset"]]
        got += zip(columns["topic"], columns["partition"], columns["offset"], strict=True)
    return got


@st.composite
def worlds(draw: st.DrawFn) -> tuple[FakeConsumer, list[Split]]:
    keys = draw(
        st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), min_size=1, max_size=5, unique=True)
    )
    logs, splits = {}, []
    for key in keys:
        end = draw(st.integers(1, 40))
        logs[key] = (sorted(draw(st.sets(st.integers(0, end - 1)))), end)
        start = draw(st.integers(0, end - 1))
        splits.append(Split(*key, start, draw(st.integers(start + 1, end))))
    return FakeConsumer(logs, draw(st.lists(st.integers(0, 30), max_size=60))), splits


@given(worlds())
def test_a_range_gives_the_same_rows_however_the_consumer_delivers_them(
    world: tuple[FakeConsumer, list[Split]],
) -> None:
    consumer, splits = world
    expected = {(s.topic, s.partition): [o for o in consumer.logs[s[:2]][0] if s.start <= o < s.end] for s in splits}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_consumer", lambda config: (consumer, ("fake",)))
        patch.setattr(reader, "_consumers", {("fake",): consumer})
        for _ in range(2):
            got: dict[tuple[str, int], list[int]] = {key: [] for key in expected}
            for topic, partition, offset in rows(splits):
                got[topic, partition].append(offset)
            assert got == expected


def test_a_partitions_end_in_the_chunk_of_its_last_records_drops_none_of_them(consuming: Any) -> None:
    consuming(FakeConsumer({("t", 0): ([*range(5)], 5), ("t", 1): ([*range(5)], 5)}, [4, 4, 4, 4]))
    assert len(rows([Split("t", 0, 0, 5), Split("t", 1, 0, 5)])) == 10


def test_large_ranges_come_in_several_batches(consuming: Any) -> None:
    consuming(FakeConsumer({("t", 0): ([*range(40_000)], 40_000)}, [10_000] * 20))
    config = ReaderConfig("b:1", "g", read_timeout_ms=0)
    sizes = [batch.num_rows for batch in consumed_splits(config, [Split("t", 0, 100, 39_000)])]
    assert sum(sizes) == 38_900
    assert len(sizes) > 1


def test_records_that_are_gone_fail_the_task_or_are_skipped_as_told(consuming: Any) -> None:
    logs = {("t", 0): ([*range(5, 20)], 20)}
    consuming(FakeConsumer(logs, lows={("t", 0): 5}))
    with pytest.raises(ReadError, match="offsets 0 to 10 wanted, the log holds 5 to 20"):
        rows([Split("t", 0, 0, 10)])
    consuming(FakeConsumer(logs, lows={("t", 0): 5}))
    assert [offset for _, _, offset in rows([Split("t", 0, 0, 10)], fail_on_data_loss=False)] == [*range(5, 10)]
    consuming(FakeConsumer(logs, lows={("t", 0): 5}))
    assert rows([Split("t", 0, 0, 3)], fail_on_data_loss=False) == []
    both = {("t", 0): ([*range(5, 20)], 20), ("t", 1): ([*range(20)], 20), ("t", 2): ([*range(20)], 20)}
    consuming(FakeConsumer(both, [1, 9, 10, 0], lows={("t", 0): 5}))
    wanted = [Split("t", 0, 0, 10), Split("t", 1, 0, 20), Split("t", 2, 0, 5)]
    expected = [
        *(("t", 0, o) for o in range(5, 10)),
        *(("t", 1, o) for o in range(20)),
        *(("t", 2, o) for o in range(5)),
    ]
    assert sorted(rows(wanted, fail_on_data_loss=False)) == expected


def test_silence_ends_in_an_error_that_names_what_was_awaited(consuming: Any) -> None:
    consuming(FakeConsumer({("t", 0): ([0, 1], 2)}))
    with pytest.raises(ReadError, match=r"read_timeout_ms.*t-0 up to 9"):
        rows([Split("t", 0, 0, 9)])


def test_consumers_check_crcs_and_take_the_options_given(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(reader, "_consumers", {})
    monkeypatch.setattr(reader, "Consumer", made.append)
    reader._consumer(ReaderConfig("b:1", "g", options={"fetch.wait.max.ms": 3}))
    assert [(settings["check.crcs"], settings["fetch.wait.max.ms"]) for settings in made] == [(True, 3)]
