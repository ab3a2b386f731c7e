"""Joins of two streams against brute force over all rows, wherever batches are cut and however sides alternate."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError
from roster.state.lmdb_store import LmdbStore
from roster.state.rows import RowLayout
from roster.state.store import NoState
from roster.state.stream_join import StreamJoin, in_columns, joined_columns
from tests.examples_tried import examples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LEFT = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("n", pa.int64())])
RIGHT = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("said", pa.string())])
COLUMNS = joined_columns(LEFT, RIGHT)


def operator(within: int, grace: int, how: str, bounds: tuple[int, int] | None = None) -> StreamJoin:
    given = None if bounds is None else (bounds[0] * SECOND, bounds[1] * SECOND)
    right = () if how == "semi" else ("at", "said")
    return StreamJoin(("k",), ("t", "at"), right, within * SECOND, grace * SECOND, how, given)


def moment(t: int | None) -> Any:
    return None if t is None else EPOCH + t * SECOND


def left_row(k: Any, t: Any, n: Any) -> dict[str, Any]:
    return {"k": k, "t": moment(t), "n": n}


def right_row(k: Any, t: Any, n: Any) -> dict[str, Any]:
    return {"k": k, "at": moment(t), "said": None if n is None else "\u00e9" * n}


def table_of(rows: list[Any]) -> pa.Table:
    parts = []
    for is_other, schema, make in ((False, LEFT, left_row), (True, RIGHT, right_row)):
        batch = pa.RecordBatch.from_pylist([make(*row) for other, *row in rows if other == is_other], schema=schema)
        parts.append(in_columns(batch, COLUMNS, is_other=is_other))
    return pa.Table.from_batches(parts)


def on_time(rows: list[Any], grace: int) -> tuple[list[Any], int]:
    """The rows of one side that are not late, and the largest time."""
    now, taken = -(10**9), []
    for k, t, n in rows:
        now = max(now, t) if t is not None else now
        if t is not None and t + grace >= now:
            taken.append((k, t, n))
    return taken, now


def brute_force(
    rows: list[Any], within: int, grace: int, how: str, bounds: tuple[int, int] | None = None
) -> tuple[Counter[Any], int]:
    low, high = bounds or (-within, within)
    lefts, rights = ([row for other, *row in rows if other == side] for side in (False, True))
    (left, left_now), (right, now) = on_time(lefts, grace), on_time(rights, grace)
    found: Counter[Any] = Counter()
    for k, t, n in left:
        partners = [(at, m) for key, at, m in right if k is not None and key == k and low <= at - t <= high]
        for at, m in partners if how != "semi" else ():
            found[(k, t, n, at, None if m is None else "\u00e9" * m)] += 1
        if partners if how == "semi" else how != "inner" and not partners and t + high + grace < now:
            found[(k, t, n, None, None)] += 1
    for k, at, m in right if how == "full" else ():
        has_partner = any(k is not None and key == k and low <= at - t <= high for key, t, _ in left)
        if not has_partner and at - low + grace < left_now:
            found[(k, None, None, at, None if m is None else "\u00e9" * m)] += 1
    return found, len(rows) - len(left) - len(right)


def seconds(value: Any) -> Any:
    return None if value is None else (value - EPOCH) // SECOND


def case(seed: int) -> tuple[list[Any], list[int]]:
    """Rows of both sides, dense enough that many pair across batches, and where batches end."""
    chance = random.Random(seed)
    rows = [
        (
            chance.random() < 0.5,
            None if chance.random() < 0.05 else chance.choice(["a", "b"]),
            None if chance.random() < 0.05 else chance.randrange(-5, 41),
            chance.choice([None, *range(9)]),
        )
        for _ in range(chance.randrange(40))
    ]
    ends = [0]
    while ends[-1] < len(rows):
        ends.append(min(len(rows), ends[-1] + chance.randrange(1, 8)))
    return rows, ends


@given(
    st.integers(0, 1 << 32),
    st.sampled_from([(4, 0), (3, 5), (10, 10), (1, 50)]),
    st.sampled_from(["inner", "left", "full", "semi"]),
    st.sampled_from([None, (0, 1), (-1, 0), (1, 1), (-1, -1)]),
)
@example(4, (4, 0), "left", (0, 1))  # a partner comes when the other bound has passed
@settings(max_examples=examples(40), deadline=None)
def test_joins_equal_brute_force(
    tmp_path_factory: Any, seed: int, shape: tuple[int, int], how: str, ends_of: tuple[int, int] | None
) -> None:
    """ends_of: of the bounds, in parts of the time of the join."""
    bounds = None if ends_of is None else (ends_of[0] * shape[0] - (ends_of[0] > 0), ends_of[1] * shape[0])
    join = operator(*shape, how, bounds)
    rows, ends = case(seed)
    found: Counter[Any] = Counter()
    late = 0
    with LmdbStore(tmp_path_factory.mktemp("join") / "store") as store:
        for number in range(1, len(ends)):
            update = join(table_of(rows[ends[number - 1] : ends[number]]), store)
            keys = update.changes["key"].to_pylist()
            assert len(set(keys)) == len(keys), "one change for each key"
            store.commit(keys, update.changes["value"].to_pylist(), Position(number))
            late += sum(map(len, update.late_rows))
            assert update.late == sum(map(len, update.late_rows))
            for row in update.results.to_pylist():
                found[(row["k"], seconds(row["t"]), row["n"], seconds(row.get("at")), row.get("said"))] += 1
        assert (found, late) == brute_force(rows, *shape, how, bounds)
        # Rows leave the state as time passes on both sides.
        end = [(False, "z", 1000, 0), (True, "z", 1000, 0)]
        update = join(table_of(end), store)
        store.commit(update.changes["key"].to_pylist(), update.changes["value"].to_pylist(), Position(99))
        assert all(key[10:].startswith(b"\x01z") for key, _ in store.scan(stop=b"\xff"))


def test_stored_rows_are_read_as_they_were() -> None:
    table = pa.table(
        {
            "text": pa.array(["a", None, "", "\u00e9\u00e9"]),
            "bytes": pa.array([b"", b"\x00\xff", None, b"x" * 300]),
            "flag": pa.array([True, None, False, True]),
            "small": pa.array([-1, 2, None, 4], pa.int8()),
            "float": pa.array([0.5, None, float("inf"), -0.0]),
            "money": pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.00")], pa.decimal128(9, 2)),
            "day": pa.array([1, None, 3, 4], pa.date32()),
        }
    )
    layout = RowLayout.of(table.schema)
    times, places = pa.array([5, 6, 7, 8]).to_numpy(), pa.array([1, 0, 1, 1]).to_numpy()
    values = layout.appended([None, None], table, times, places).to_pylist()
    again = layout.appended(values, table.slice(1, 1), times[1:2], places[2:3]).to_pylist()
    stored = layout.decode([None, *again])
    assert stored.places.tolist() == [1, 2, 2, 2, 2]
    assert stored.times.tolist() == [6, 5, 7, 8, 6]
    assert stored.table.to_pylist() == table.take([1, 0, 2, 3, 1]).to_pylist()
    with pytest.raises(StateError, match="none that this operator writes"):
        RowLayout.of(table.select(["text"]).schema).decode(values)


def test_columns_that_cannot_be_kept_are_named() -> None:
    coded = joined_columns(pa.schema([*LEFT, ("list", pa.list_(pa.dictionary(pa.int8(), pa.string())))]), RIGHT)
    with pytest.raises(StateError, match=r"join: column 'list' is list<.*; make text of it, or leave it out"):
        operator(1, 0, "left")(coded.empty_table(), NoState())
    with pytest.raises(StateError, match=r"within=.* is not a positive timedelta"):
        operator(0, 0, "left")
    with pytest.raises(StateError, match=r"grace=.* is not a timedelta of 0 or more"):
        operator(1, -1, "left")
