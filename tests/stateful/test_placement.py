"""Where a key of state belongs, as its columns and partitions prove it."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roster.cli import options
from roster.stateful.tasks.placement import (
    NO_KEY,
    PARTITIONERS,
    Placement,
    PlacementError,
    Proof,
    SeenKeys,
    partitions_of,
    placements,
)
from roster.wire.columns.murmur2 import murmur2
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics

SCHEMA = pa.schema([("shop", pa.string()), ("n", pa.int64()), ("day", pa.date32())])
ROWS = pa.table([[f"shop {n % 97}" for n in range(400)], list(range(400)), [n % 11 for n in range(400)]], schema=SCHEMA)


def java_hash(key: bytes) -> int:
    return int(murmur2(key, 0, len(key))) & 0x7FFFFFFF


@given(st.lists(st.binary(max_size=40)))
def test_columns_are_hashed_as_each_key_is(keys: list[bytes]) -> None:
    assert partitions_of(pa.array(keys, pa.binary()), "murmur2", 1 << 31).tolist() == [java_hash(key) for key in keys]


def test_hashes_are_those_of_the_java_client() -> None:
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"abc"]
    assert partitions_of(pa.array(keys), "murmur2", 1 << 31).tolist() == [
        each & 0x7FFFFFFF for each in (-973932308, -790332482, -985981536, 479470107)
    ]


# The hashes of FNV-1a of the first three texts are those that its authors publish.
FNV1A = {b"": 0x811C9DC5, b"a": 0xE40C292C, b"foobar": 0xBF9CF968}


def fnv1a(key: bytes) -> int:
    return reduce(lambda value, byte: (value ^ byte) * 16777619 & 0xFFFFFFFF, key, 2166136261)


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def go_partition(value: int, count: int) -> int:
    """Return what Sarama and kafka-go compute: the remainder has the sign of the hash, and is then made positive."""
    return abs(int(math.fmod(signed(value), count)))


def go_hash(key: bytes) -> int:
    return abs(signed(fnv1a(key)))


@given(st.lists(st.binary(max_size=9) | st.integers(0, 200).map(lambda n: bytes(range(n)))), st.integers(1, 50))
@example([*FNV1A], 7)
def test_fnv1a_is_what_clients_in_go_make_of_it(keys: list[bytes], count: int) -> None:
    assert tuple(PARTITIONERS) == options.PARTITIONERS, "the command takes all"
    assert {key: fnv1a(key) for key in FNV1A} == FNV1A
    column, hashes = pa.array(keys, pa.binary()), [fnv1a(key) for key in keys]
    assert partitions_of(column, "fnv1a", count).tolist() == [go_partition(value, count) for value in hashes]
    assert partitions_of(column, "fnv1a-masked", count).tolist() == [(value & 0x7FFFFFFF) % count for value in hashes]
    assert partitions_of(column, "fnv1a-unsigned", count).tolist() == [value % count for value in hashes]


@pytest.mark.parametrize(("partitioner", "name"), [("murmur2", "murmur2"), ("consistent", "crc32"), ("fnv1a", "fnv1a")])
def test_librdkafka_places_keys_so(topics: Topics, partitioner: str, name: str) -> None:
    topic = topics.create(7)
    keys = [b"key-%d" % number * (number % 30 + 1) for number in range(200)]
    placed: dict[bytes, int] = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None
        placed[message.key()] = message.partition()

    producer = idempotent_producer(topics.bootstrap, {"partitioner": partitioner})
    for key in keys:
        producer.produce(topic, key=key, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert [placed[key] for key in keys] == partitions_of(pa.array(keys), name, 7).tolist()


WAYS: dict[Placement, Any] = {
    Placement(("shop",), "text", "murmur2"): lambda row: java_hash(row["shop"].encode()),
    Placement(("shop",), "text", "crc32"): lambda row: zlib.crc32(row["shop"].encode()),
    Placement(("shop",), "text", "fnv1a"): lambda row: abs(
        fnv1a(row["shop"].encode()) - (fnv1a(row["shop"].encode()) >> 31 << 32)
    ),
    Placement(("n",), "text", "murmur2"): lambda row: java_hash(str(row["n"]).encode()),
    Placement(("n",), "int64", "crc32"): lambda row: zlib.crc32(row["n"].to_bytes(8, "big")),
    Placement(("n",), "int32", "murmur2"): lambda row: java_hash(row["n"].to_bytes(4, "big")),
    Placement(("n", "shop"), "json", "murmur2"): lambda row: java_hash(f'[{row["n"]},"{row["shop"]}"]'.encode()),
}


def proof(rows: pa.Table, hashed: Any, before: int, after: int, named: tuple[str, ...] = ()) -> Proof:
    parts = defaultdict[int, list[Any]](list)
    for row in rows.to_pylist():
        parts[hashed(row) % before].append(row)
    ways = placements(rows.schema, named)
    return Proof.all_of(
        [Proof.of(pa.Table.from_pylist(of, rows.schema), at, before, after, ways) for at, of in parts.items()]
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("before", "after"), [*pairwise([6, 12, 5, 2, 7])])
def test_the_keys_prove_how_they_were_placed(way: Placement, before: int, after: int) -> None:
    hashed = WAYS[way]
    proven = proof(ROWS, hashed, before, after)
    if way.partitioner == "fnv1a" and before == 2:
        with pytest.raises(PlacementError, match=r"by shop \(fnv1a\); shop \(fnv1a-masked\); shop \(fnv1a-unsigned\)$"):
            proven.chosen(before, after, is_named=False)
        return
    found = proven.chosen(before, after, is_named=False)
    assert found == way
    assert found.partitions(ROWS, after).tolist() == [hashed(row) % after for row in ROWS.to_pylist()]


def test_what_the_keys_do_not_prove_is_refused() -> None:
    hashed = WAYS[Placement(("shop",), "text", "murmur2")]
    few = ROWS.slice(0, 3)
    with pytest.raises(PlacementError, match=r"do not prove how they were placed in 6 partitions: by shop \(murmur2\)"):
        proof(few, hashed, 6, 12).chosen(6, 12, is_named=False)
    assert str(proof(few, hashed, 6, 12, ("shop",)).chosen(6, 12, is_named=True)) == "shop (murmur2)"
    with pytest.raises(PlacementError, match=r"do not prove .* in 1 partitions: by shop \(murmur2\); shop \(crc32\)"):
        proof(ROWS, hashed, 1, 4, ("shop",)).chosen(1, 4, is_named=True)
    other = r"not where shop \(murmur2\) places them: shop 'shop \d+' is in partition \d, and belongs to \d of 6, "
    with pytest.raises(PlacementError, match=other):
        proof(ROWS, lambda row: row["n"], 6, 12).chosen(6, 12, is_named=False)
    with pytest.raises(PlacementError, match="there is no key column 'x' among shop, n, day"):
        placements(SCHEMA, ["x"])


def test_rows_whose_record_had_no_key_have_no_place_but_their_own() -> None:
    rows = pa.table([["a", None]], ["shop"])
    way = Placement(("shop",), "text", "murmur2")
    at = int(way.partitions(rows, 6)[0])
    assert way.partitions(rows, 6).tolist() == [at, NO_KEY]
    found = Proof.of(rows, at, 6, at + 1, [way])
    assert found.chosen(6, at + 1, is_named=True) == way
    if at:
        with pytest.raises(PlacementError, match=f"partition {at} has rows without a value of shop, whose records"):
            found.chosen(6, at, is_named=True)


def test_keys_that_are_seen_in_parts_are_those_of_one_look() -> None:
    names = pa.array([b"key %d" % (n * n % 9_973) for n in range(20_000)], pa.binary())
    whole, parts = SeenKeys.none(1).with_records(names, 4), SeenKeys.none(1)
    for begin in range(0, len(names), 1_000):
        parts = parts.with_records(names.slice(begin, 1_000), 4)
    assert parts.hashes.tolist() == whole.hashes.tolist()
    assert {name: keys.tolist() for name, keys in parts.misplaced.items()} == {
        name: keys.tolist() for name, keys in whole.misplaced.items()
    }
    assert len(whole.hashes) == 2_000
