"""Where a key of state belongs, as its columns and partitions prove it."""

from __future__ import annotations

import zlib
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.spark.state.tasks.placement import NO_KEY, Placement, PlacementError, Proof, partitions_of, placements
from roster.wire.columns.murmur2 import murmur2

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


WAYS: dict[Placement, Any] = {
    Placement(("shop",), "text", "murmur2"): lambda row: java_hash(row["shop"].encode()),
    Placement(("shop",), "text", "crc32"): lambda row: zlib.crc32(row["shop"].encode()),
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


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("before", "after"), [*pairwise([6, 12, 5, 2, 7])])
def test_the_keys_prove_how_they_were_placed(way: Placement, before: int, after: int) -> None:
    hashed = WAYS[way]
    found = proof(ROWS, hashed, before, after).chosen(before, after, is_named=False)
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
