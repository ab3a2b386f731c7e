"""Lists, sets and sketches of each key: equal to a plain computation whatever the batches, and within their errors."""

from __future__ import annotations

import math
import random
import sys
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError
from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.collected import sketch_size
from roster.state.definition import Definition, Noted
from roster.state.entries import Read
from roster.state.evolution import evolution
from roster.state.lmdb_store import LmdbStore
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.state.test_saved import records_of, saved

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("f", pa.bool_()),
    ]
)
VALUES = ("n", "x", "s", "d", "f")


def percentile(values: list[Any], share: float) -> Any:
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1] if values else None


def plain(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in VALUES:
        known = [row[name] for row in rows if row[name] is not None]
        found[f"list {name}"] = known[:5]
        found[f"set {name}"] = list(dict.fromkeys(known))[:3]
        found[f"about {name}"] = found[f"different {name}"] = len(set(known))
    for name in ("n", "x", "d"):
        known = [row[name] for row in rows if row[name] is not None]
        found[f"middle {name}"] = percentile(known, 0.5)
        found[f"ends {name}"] = [percentile(known, share) for share in (0.0, 0.9, 1.0)] if known else None
    pairs = {(row["n"], row["s"]) for row in rows if row["n"] is not None and row["s"] is not None}
    sums = [row["n"] for row in rows if row["n"] is not None]
    return found | {"pairs": len(pairs), "sum": sum(set(sums)) if sums else None}


WANTED = {
    **{f"list {name}": Aggregate(Kind.COLLECT_LIST, name, arguments=(5,)) for name in VALUES},
    **{f"set {name}": Aggregate(Kind.COLLECT_SET, name, arguments=(3,)) for name in VALUES},
    **{f"about {name}": Aggregate(Kind.APPROX_COUNT_DISTINCT, name, arguments=(12,)) for name in VALUES},
    **{f"different {name}": Aggregate(Kind.COUNT_DISTINCT, name) for name in VALUES},
    **{f"middle {name}": Aggregate(Kind.APPROX_PERCENTILE, name, arguments=(0.5, 100)) for name in "nxd"},
    **{f"ends {name}": Aggregate(Kind.APPROX_PERCENTILE, name, arguments=((0.0, 0.9, 1.0), 100)) for name in "nxd"},
    "pairs": Aggregate(Kind.COUNT_DISTINCT, "n", by=Aggregate(Kind.COUNT_DISTINCT, "s")),
    "sum": Aggregate(Kind.SUM_DISTINCT, "n"),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b"]),
            "n": st.none() | st.integers(-5, 5),
            "x": st.none() | st.integers(-3, 3).map(float),
            "s": st.none() | st.sampled_from(["", "a", "é\0", "b" * 300]),
            "d": st.none() | st.dates(date(1969, 12, 20), date(1970, 1, 5)),
            "f": st.none() | st.booleans(),
            "step": st.integers(0, 6),
        }
    ),
    max_size=25,
)
CUTS = st.lists(st.integers(0, 99), max_size=4)


def timed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    now, found = EPOCH, []
    for row in rows:
        now += row["step"] * SECOND
        found.append({name: row[name] for name in row if name != "step"} | {"t": now})
    return found


def batches(rows: list[Any], cuts: list[int]) -> list[pa.Table]:
    places = sorted(place % (len(rows) + 1) for place in cuts)
    parts = [rows[start:end] for start, end in zip([0, *places], [*places, len(rows)], strict=True)]
    return [pa.Table.from_pylist(part, SCHEMA) for part in parts]


def definition(operator: Any) -> Definition:
    return Definition.of(operator.kept, operator.key_columns(SCHEMA), operator.layout(SCHEMA))


@given(ROWS, CUTS)
@settings(max_examples=examples(40), deadline=None)
def test_values_of_every_type_are_kept_in_order_whatever_the_batches(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int]
) -> None:
    rows, operator, bytes_of = timed(rows), Aggregation(("k",), WANTED), []
    expected = {key: plain([row for row in rows if row["k"] == key]) for key in sorted({row["k"] for row in rows})}
    for tables in (batches(rows, cuts), batches(rows, [])):
        told: dict[str, Any] = {}
        with LmdbStore(tmp_path_factory.mktemp("collected")) as store:
            for number, table in enumerate(tables):
                update = operator(table, store)
                store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
                told |= {row.pop("k"): row for row in update.results.to_pylist()}
            entries = store.scan()
        assert told == expected
        asked = definition(operator).entries().table([Read(entries)])
        assert {row.pop("k"): row for row in asked.to_pylist()} == expected
        assert asked.schema.types == update.results.schema.types
        ordered = [name for name in WANTED if name.split()[0] in ("list", "set", "middle", "ends")]
        bytes_of.append(bytes_by_name(entries, ordered))
    assert bytes_of[0] == bytes_of[1], "batches leave no mark on the state"


def bytes_by_name(entries: list[tuple[bytes, bytes]], names: list[str]) -> list[Any]:
    layout = definition(Aggregation(("k",), WANTED)).layout
    rows = layout.decode([value for _, value in entries])
    return [(key, [rows[name][place] for name in names]) for place, (key, _) in enumerate(entries)]


@given(ROWS, CUTS)
@settings(max_examples=examples(30), deadline=None)
def test_windows_and_saved_entries_have_the_values(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int]
) -> None:
    rows = timed(rows)
    operator = WindowedAggregation(("k",), WANTED, Window("t", 10 * SECOND), final=True)
    tables = [*batches(rows, cuts), pa.Table.from_pylist([{"k": "end", "t": EPOCH + timedelta(days=1)}], SCHEMA)]
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault((EPOCH + (row["t"] - EPOCH) // (10 * SECOND) * (10 * SECOND), row["k"]), []).append(row)
    told: list[Any] = []
    with LmdbStore(tmp_path_factory.mktemp("collected")) as store:
        for number, table in enumerate(tables):
            update = operator(table, store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            told += update.results.to_pylist()
    assert {(row.pop("window_start"), row.pop("k")): row for row in told} == {
        key: plain(of) | {"window_end": key[0] + 10 * SECOND} for key, of in groups.items()
    }
    of_keys = Aggregation(("k",), WANTED)
    (found,) = saved(records_of(tmp_path_factory.mktemp("s") / "s", of_keys, tables)).values()
    for row in found:
        mine = plain([each for each in rows if each["k"] == row["k"]])
        assert {name: row[name] for name in mine} == mine


@given(ROWS, CUTS)
@example([{"k": "a", "n": 1, "x": None, "s": "a", "d": None, "f": None, "step": each} for each in (0, 6, 0)], [1, 2])
@settings(max_examples=examples(30), deadline=None)
def test_sessions_join_what_they_kept(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int]
) -> None:
    wanted = WANTED | {"least": Aggregate(Kind.MIN, "s")}
    rows = timed(rows)
    late = random.Random(len(rows))
    for row in rows:  # some rows come late, and join two sessions
        row["t"] -= late.choice([0, 0, 3, 6]) * SECOND
    window = Window.session("t", 4 * SECOND, grace=timedelta(hours=1))
    operator = SessionAggregation(("k",), wanted, window, final=False)
    path, tables = tmp_path_factory.mktemp("collected"), batches(rows, cuts)
    with LmdbStore(path) as store:
        for number, table in enumerate(tables):
            update = operator(table, store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
        asked = definition(operator).entries().rows([Read(store.scan(stop=b"\x02"))])
    found = {(row["k"], row["first"]): row for row in asked}
    expected: dict[Any, list[Any]] = {}
    for key in ("a", "b"):
        begin = last = None
        for row in sorted((row for row in rows if row["k"] == key), key=lambda row: row["t"]):
            begin = row["t"] if last is None or row["t"] > last + 4 * SECOND else begin
            last = row["t"]
            expected.setdefault((key, begin), []).append(row)
    assert found.keys() == expected.keys()
    for at, of in expected.items():
        row, mine = found[at], plain(of)
        for name in (name for name in mine if name.split()[0] not in ("list", "set")):
            assert row[name] == mine[name], name
        for name in VALUES:
            known = [each[name] for each in of if each[name] is not None]
            assert len(row[f"list {name}"]) == min(len(known), 5)
            assert set(row[f"list {name}"]) <= set(known)
            assert len(set(row[f"set {name}"])) == len(row[f"set {name}"]) == min(len(set(known)), 3)
        texts = [each["s"] for each in of if each["s"] is not None]
        assert row["least"] == min(texts, key=lambda text: text.encode(), default=None)
    if rows:
        again = saved(records_of(tmp_path_factory.mktemp("s") / "s", operator, tables))["entries"]
        assert {(row["k"], row["window_start"]) for row in again} == found.keys()


def test_sessions_go_on_with_what_they_kept_under_another_definition(tmp_path: Any) -> None:
    window = Window.session("t", 4 * SECOND, grace=timedelta(hours=1))
    was = SessionAggregation(("k",), {"items": WANTED["list s"]}, window, final=False)
    now = SessionAggregation(("k",), {"n": Aggregate(Kind.COUNT, "n"), "items": WANTED["list s"]}, window, final=False)
    rows = [
        {"k": k, "t": EPOCH + t * SECOND, "n": 1, "s": s} for k, t, s in (("a", 0, "é"), ("a", 9, ""), ("b", 1, "c"))
    ]
    with LmdbStore(tmp_path) as store:
        changes = was(pa.Table.from_pylist(rows, SCHEMA), store).changes
        store.commit(*(changes[name].to_pylist() for name in ("key", "value")), Position(1))
        way = evolution(definition(now), Noted(definition(was), {}))
        assert way is not None
        with store.snapshot() as snapshot:
            found = definition(now).entries().rows([Read(way.seen(snapshot).scan(stop=b"\x02"))])
    assert [(row["k"], row["n"], row["items"]) for row in found] == [("a", 0, ["é"]), ("a", 0, [""]), ("b", 0, ["c"])]


def test_a_layout_is_kept_by_the_schema() -> None:
    operator = Aggregation(("k",), WANTED)
    assert operator.layout(SCHEMA) is Aggregation(("k",), dict(WANTED)).layout(pa.schema(list(SCHEMA)))
    other = SCHEMA.set(2, pa.field("n", pa.float64()))
    assert operator.layout(other).kinds["list n"] == pa.list_(pa.float64())


@pytest.mark.parametrize("accuracy", [20, 100, 1000])
@pytest.mark.parametrize("shape", ["even", "skewed", "few", "rising", "falling"])
@pytest.mark.sampled(5)
def test_percentiles_of_many_values_are_within_their_error_and_the_state_is_bounded(
    tmp_path: Any, accuracy: int, shape: str
) -> None:
    chance, count = random.Random(f"{shape} {accuracy}"), 20_000
    values = {
        "even": [chance.random() for _ in range(count)],
        "skewed": [math.exp(chance.gauss(0, 4)) for _ in range(count)],
        "few": [float(chance.choice([0, 0, 0, 1, 7, 10**9])) for _ in range(count)],
        "rising": [float(number) for number in range(count)],
        "falling": [float(-number) for number in range(count)],
    }[shape]
    shares = (0.0, 0.01, 0.25, 0.5, 0.9, 0.999, 1.0)
    operator = Aggregation(("k",), {"p": Aggregate(Kind.APPROX_PERCENTILE, "x", arguments=(shares, accuracy))})
    outcomes = set()
    for pieces in (1, 7):
        with LmdbStore(tmp_path / str(pieces)) as store:
            step = -(-count // pieces)
            for number, begin in enumerate(range(0, count, step)):
                part = values[begin : begin + step]
                update = operator(pa.table({"k": ["a"] * len(part), "x": part}), store)
                store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            ((_, state),) = store.scan()
        outcomes.add((state, str(update.results.to_pylist())))
    ((state, _),) = outcomes
    assert len(state) < 24 * 3 * accuracy + 8 * max(accuracy, 128) + 100
    for share, found in zip(shares, update.results["p"][0].as_py(), strict=True):
        assert found in values, "one of the values, as Spark's"
        least, most = sum(value < found for value in values) + 1, sum(value <= found for value in values)
        wanted = share * count
        assert least - count / accuracy - 1 <= wanted <= most + count / accuracy + 1, (share, found)


@pytest.mark.parametrize("error", [0.2, 0.05, 0.01])
def test_counts_of_many_values_are_within_three_deviations_and_the_state_is_bounded(
    tmp_path: Any, error: float
) -> None:
    size, count = sketch_size(error), 30_000
    wanted = {"about": Aggregate(Kind.APPROX_COUNT_DISTINCT, "x", arguments=(size,))}
    operator, chance = Aggregation(("k",), wanted), random.Random(str(error))
    values = [[chance.getrandbits(60) for _ in range(count // 3)] for _ in range(3)]
    results = []
    for order in ([0, 1, 2], [2, 0, 1, 1, 0], [1, 2, 0]):
        with LmdbStore(tmp_path / str(order)) as store:
            for number, which in enumerate(order):
                table = pa.table({"k": ["a"] * len(values[which]), "x": values[which]})
                update = operator(table, store)
                store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            ((_, state),) = store.scan()
        assert len(state) < (1 << size) + 100
        results.append(update.results["about"][0].as_py())
    assert len(set(results)) == 1, "neither order nor repetition counts"
    assert abs(results[0] / count - 1) < 3 * error


def test_a_result_does_not_depend_on_the_order_in_which_a_small_sketch_grows() -> None:
    values = [random.Random(1).getrandbits(60) + number for number in range(200)]
    operator = Aggregation(("k",), {"about": Aggregate(Kind.APPROX_COUNT_DISTINCT, "x", arguments=(9,))})
    for count in (10, 30, 40, 48, 60, 100, 200):
        some = values[:count]
        found = {
            operator(pa.table({"k": ["a"] * count, "x": random.Random(seed).sample(some, count)}), NoState())
            .results["about"][0]
            .as_py()
            for seed in range(5)
        }
        assert len(found) == 1
        assert abs(found.pop() / count - 1) < 0.1


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("s", Kind.APPROX_PERCENTILE, "column 's' is string, no number, date or timestamp"),
        ("f", Kind.APPROX_PERCENTILE, "column 'f' is bool, no number, date or timestamp"),
        ("l", Kind.COLLECT_SET, "column 'l' is list<item: int64>, whose values are not compared"),
        ("s", Kind.SUM_DISTINCT, "column 's' is string, no number of up to 64 bits"),
    ],
)
def test_columns_of_other_types_are_named(column: str, kind: Kind, message: str) -> None:
    operator = Aggregation(("k",), {"r": Aggregate(kind, column, arguments=(0.5, 10))})
    with pytest.raises(StateError, match=message):
        operator(SCHEMA.append(pa.field("l", pa.list_(pa.int64()))).empty_table(), NoState())


def test_percentiles_of_the_largest_integers_are_sparks() -> None:
    operator = Aggregation(("k",), {"p": Aggregate(Kind.APPROX_PERCENTILE, "n", arguments=((0.0, 1.0), 10))})
    table = pa.table({"k": ["a", "a"], "n": [2**63 - 1, -(2**63)]})
    assert operator(table, NoState()).results["p"].to_pylist() == [[-(2**63), 2**63 - 1]]


def test_a_sketch_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from roster import MissingExtraError
    from roster.state import collected

    collected._library.cache_clear()
    monkeypatch.setitem(sys.modules, "datasketches", None)
    operator = Aggregation(("k",), {"r": Aggregate(Kind.APPROX_COUNT_DISTINCT, "n", arguments=(9,))})
    with pytest.raises(MissingExtraError, match=r"approx_count_distinct needs datasketches.*\[state\]"):
        operator(SCHEMA.empty_table(), NoState())
    collected._library.cache_clear()
