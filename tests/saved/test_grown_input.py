"""How far a topic that has grown is read by the earlier number of partitions: exactly its records, or nothing."""

from __future__ import annotations

import random
import zlib
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from roster.client import OffsetAndMetadata
from roster.model import TopicPartition
from roster.model.topology import Subtopology
from roster.pipeline.tasks.reader import ReaderConfig
from roster.saved import grown_input
from roster.saved.tasks import moving
from roster.spark import PipelineError
from roster.stateful.changelogs import Changelog
from tests.spark.apps.stateful import looked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from roster.pipeline.batch import Split

REFUSAL = PipelineError("the topic has grown")
HASHES: dict[str, Callable[[bytes], int]] = {
    "murmur2": lambda key: murmur2(key) & 0x7FFFFFFF,
    "crc32": zlib.crc32,
    "fnv1a": lambda key: abs(signed_fnv1a(key)),
    "fnv1a-masked": lambda key: signed_fnv1a(key) & 0x7FFFFFFF,
    "fnv1a-unsigned": lambda key: signed_fnv1a(key) % 2**32,
}


def signed_fnv1a(key: bytes) -> int:
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 % 2**32
    return value - 2**32 if value >= 2**31 else value


KEYS = [b"k%d" % n for n in range(60)]


class Log:
    """A topic whose records have been written by an earlier and a present number of partitions."""

    def __init__(self, before: int, after: int, name: str = "murmur2") -> None:
        self.before, self.after, self._hash = before, after, HASHES[name]
        self.records: list[list[bytes | None]] = [[] for _ in range(after)]
        self.committed: dict[TopicPartition, int] = {}

    def write(self, key: bytes | None, count: int) -> None:
        self.records[0 if key is None else self.place(key, count)].append(key)

    def place(self, key: bytes, count: int) -> int:
        return self._hash(key) % count

    def commit(self) -> None:
        self.committed = {TopicPartition("in", n): len(self.records[n]) for n in range(self.before)}

    def ends(self) -> dict[TopicPartition, int]:
        def read(_: object, splits: list[Split]) -> Iterator[pa.RecordBatch]:
            for split in splits:
                for at in range(split.start, split.end, 7):
                    keys = self.records[split.partition][at : min(at + 7, split.end)]
                    offsets = pa.array(range(at, at + len(keys)), pa.int64())
                    yield pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), offsets], ["key", "offset"])

        admin: Any = SimpleNamespace(
            describe_topic=lambda _: SimpleNamespace(partitions=range(self.after)),
            group_offsets=lambda _, of: {p: OffsetAndMetadata(at) for p, at in self.committed.items() if p in of},
            beginning_offsets=lambda of: dict.fromkeys(of, 0),
            stable_offsets=lambda of: {p: len(self.records[p.partition]) for p in of},
        )
        changelog = Changelog("g-s-changelog", "", self.before, Subtopology(0, ("in",), ("s",)), REFUSAL)
        spark: Any = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grown_input, "places_of_unread", looked)
            patch.setattr(moving, "read_splits", read)
            return grown_input.GrownInput(spark, ReaderConfig("h:1", "g")).ends(admin, [changelog])


def check(log: Log, ends: dict[TopicPartition, int]) -> None:
    """Each record is read where its key's state is: by the earlier number up to its end, by the present one behind."""
    assert ends.keys() == {TopicPartition("in", n) for n in range(log.after)}
    for at, end in ends.items():
        first = log.committed.get(at, 0)
        unread = list(enumerate(log.records[at.partition]))[first:]
        earlier = [key for offset, key in unread if offset < end and key is not None]
        assert all(log.place(key, log.before) == at.partition for key in earlier)
        behind = [key for offset, key in unread if offset >= end and key is not None]
        assert all(log.place(key, log.after) == at.partition for key in behind)
        assert not earlier or log.place(earlier[-1], log.after) != at.partition, "no more than that"


numbers = st.lists(st.sampled_from([*KEYS, None]), max_size=20)


@given(
    st.sampled_from([(4, 8), (4, 6), (3, 12), (1, 5)]),
    st.sampled_from([*HASHES]),
    numbers,
    numbers,
    numbers,
    st.randoms(use_true_random=False),
)
def test_records_of_the_earlier_number_are_read_and_no_others(
    counts: tuple[int, int],
    partitioner: str,
    read: list[bytes | None],
    early: list[bytes | None],
    late: list[bytes | None],
    chance: random.Random,
) -> None:
    log = Log(*counts, partitioner)
    for key in read:
        log.write(key, log.before)
    log.commit()
    for key in [*early, *KEYS[:30]]:
        log.write(key, log.before)
    # With a multiple of the earlier number, a producer may go on with it while another knows the present one.
    is_multiple = log.after % log.before == 0
    for key in [*late, *KEYS]:
        log.write(key, chance.choice(counts) if is_multiple else log.after)
    check(log, log.ends())


def test_where_no_number_is_right_for_all_nothing_is_read() -> None:
    log = Log(4, 6)
    for count in (4, 6, 4):
        for key in KEYS:
            log.write(key, count)
    with pytest.raises(PipelineError, match=r"6 partitions place the key of the record at offset \d+, and only 4 that"):
        log.ends()


def test_nothing_is_read_if_all_was_or_records_are_placed_in_another_way() -> None:
    log = Log(4, 6)
    for key in KEYS:
        log.write(key, 4)
    log.commit()
    for key in KEYS:
        log.write(key, 6)
    with pytest.raises(PipelineError) as refused:
        log.ends()
    assert refused.value is REFUSAL
    for key in KEYS:
        log.records[len(key) % 4].append(key)
    with pytest.raises(PipelineError) as refused:
        log.ends()
    assert refused.value is REFUSAL


def test_records_that_both_hashes_place_are_too_few_to_tell() -> None:
    log = Log(2, 4)
    key = next(
        key for key in KEYS if log.place(key, 2) == zlib.crc32(key) % 2 and log.place(key, 4) != zlib.crc32(key) % 4
    )
    log.write(key, 2)
    with pytest.raises(PipelineError, match="has too few unread records to determine the producers' partitioner"):
        log.ends()


# -- a new group -------------------------------------------------------------------------------------------------------


class Cluster:
    """Topics of a new group, with the keys of each partition's records in order."""

    def __init__(self, **topics: list[list[bytes | None]]) -> None:
        self.topics = topics
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.reads: list[Split] = []

    def check(self, start: Any = "earliest", repartitioned: str = "") -> list[str]:
        """Raise what a new group is refused with; return its warnings."""
        warnings: list[str] = []

        def describe(topic: str) -> Any:
            return SimpleNamespace(partitions=[SimpleNamespace(partition=n) for n in range(len(self.topics[topic]))])

        def read(_: object, splits: list[Split]) -> Iterator[pa.RecordBatch]:
            self.reads += splits
            for split in splits:
                for at in range(split.start, split.end, 50):
                    keys = self.topics[split.topic][split.partition][at : min(at + 50, split.end)]
                    yield pa.RecordBatch.from_arrays([pa.array(keys, pa.binary())], ["key"])

        admin: Any = SimpleNamespace(
            describe_topic=describe,
            group_offsets=lambda _, of, *, stable: {p: at for p, at in self.committed.items() if p in of},
            beginning_offsets=lambda of: dict.fromkeys(of, 0),
            stable_offsets=lambda of: {p: len(self.topics[p.topic][p.partition]) for p in of},
        )
        spark: Any = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving, "read_splits", read)
            patch.setattr(grown_input.log, "warning", lambda text, *values: warnings.append(text % values))
            group = grown_input.GrownInput(spark, ReaderConfig("h:1", "g"))
            sources = [*filter(None, [repartitioned]), *self.topics]
            group.check_new(admin, sources, ["shop"], start, repartitioned)
        return warnings


def placed_by(count: int, *writers: tuple[str, int, list[bytes]]) -> list[list[bytes | None]]:
    """Records in so many partitions, written one after the other by a hash and the number that it knew."""
    records: list[list[bytes | None]] = [[] for _ in range(count)]
    for name, known, keys in writers:
        for key in keys:
            records[HASHES[name](key) % known].append(key)
    return records


SHOPS = [b"shop%d" % n for n in range(200)]


@given(st.integers(2, 12), st.sampled_from([*HASHES]), st.lists(st.sampled_from(SHOPS)), st.integers(0, 9))
def test_a_new_group_begins_where_one_number_places_all_keys(
    count: int, name: str, keys: list[bytes], nulls: int
) -> None:
    records = placed_by(count, (name, count, keys))
    records[0] += [None] * nulls
    assert not Cluster(t=records).check()


@given(
    st.integers(1, 11).flatmap(lambda before: st.tuples(st.just(before), st.integers(before + 1, 12))),
    st.sampled_from([*HASHES]),
    st.integers(0, 200),
)
def test_a_new_group_does_not_begin_on_a_topic_that_has_grown(counts: tuple[int, int], name: str, after: int) -> None:
    """Records behind the growth may be none, some or all keys again."""
    records = placed_by(counts[1], (name, counts[0], SHOPS), (name, counts[1], SHOPS[:after]))
    with pytest.raises(PipelineError, match=r"only some keys of 't' are where .* partitions place") as refused:
        Cluster(t=records).check()
    assert "repartition('shop')" in str(refused.value)
    assert f"it had {counts[0]} when others were written" in str(refused.value)
    Cluster(t=records).check("latest")
    of_a_group = Cluster(t=records)
    of_a_group.committed = {TopicPartition("t", 0): OffsetAndMetadata(3)}
    of_a_group.check()
    assert not of_a_group.reads, "what a group has begun with costs nothing"


@pytest.mark.parametrize("count", [2, 3, 9, 50])
def test_a_new_group_does_not_begin_where_producers_differ(count: int) -> None:
    for pair in combinations(["murmur2", "crc32", "fnv1a"], 2):
        with pytest.raises(PipelineError, match="partitions place them"):
            Cluster(t=placed_by(count, *((name, count, SHOPS) for name in pair))).check()
    two = [(name, count, SHOPS) for name in ("murmur2", "crc32")]
    other_side = "Write the other side of the join to a new topic, by the partitioner murmur2"
    with pytest.raises(PipelineError, match=rf"'l' by murmur2, 'r' by crc32.*{other_side}"):
        Cluster(l=placed_by(count, two[0]), r=placed_by(count, two[1])).check()
    with pytest.raises(PipelineError, match=rf"'g-by-shop' by murmur2, 'r' by crc32.*{other_side}"):
        Cluster(r=placed_by(count, two[1])).check(repartitioned="g-by-shop")
    Cluster(r=placed_by(count, two[0])).check(repartitioned="g-by-shop")
    with pytest.raises(PipelineError, match=rf"only some keys of 'r'.*{other_side}"):
        Cluster(r=placed_by(count, *two)).check(repartitioned="g-by-shop")
    thrice = [("murmur2", known, SHOPS) for known in (4, 6, 9)]
    with pytest.raises(PipelineError, match="grown more than once"):
        Cluster(t=placed_by(9, *thrice)).check()


@given(st.integers(2, 12), st.integers(0, 1 << 32), st.booleans())
def test_keys_that_producers_place_in_a_way_of_their_own_are_no_growth(count: int, seed: int, is_one: bool) -> None:
    chance = random.Random(seed)
    places = {key: chance.randrange(count) for key in SHOPS}
    records: list[list[bytes | None]] = [[] for _ in range(count)]
    for key in SHOPS * 2:
        records[places[key] if is_one else chance.randrange(count)].append(key)
    warnings = Cluster(t=records).check()
    apart = sum(sum(key in of for of in records) > 1 for key in SHOPS)
    assert len(warnings) == (apart > 0)
    for warning in warnings:
        assert f"at least {apart} keys of 't' are in two partitions" in warning
        assert "repartition('shop')" in warning


def test_one_partition_few_keys_and_no_topic_are_no_obstacle() -> None:
    Cluster(t=[[b"a", b"b"]]).check()
    Cluster(t=[[b"a"], [b"b"], [b"c"], []]).check()
    Cluster(t=[[], []]).check()
