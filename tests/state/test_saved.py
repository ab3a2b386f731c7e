"""Entries of every kind of store as tables: equal to a plain computation, and the same entries again from Parquet."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.changelog import latest
from roster.state.deduplicate import Deduplication
from roster.state.definition import STATE_KEY, Definition, Noted, OtherDefinitionError, json_text
from roster.state.entries import Read
from roster.state.lmdb_store import LmdbStore
from roster.state.processor.batch import Plan, TimeMode
from roster.state.saved.parts import StoreEntries
from roster.state.sessions import SessionAggregation
from roster.state.store import Position, ValueDamagedError
from roster.state.stream_join import in_columns, joined_columns
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.state import test_aggregate, test_sessions, test_stream_join
from tests.state.aggregate_texts import aggregate_of
from tests.state.processor.test_batch import Recorder, process_batch
from tests.state.test_windows import AGGREGATES, COLUMNS, EPOCH, ROW, SECOND, batches_of

CUTS = st.lists(st.integers(0, 99), max_size=4)


def definition_of(operator: Any, columns: pa.Schema) -> Definition:
    sides = operator.sides(columns) if hasattr(operator, "sides") else None
    return Definition.of(operator.kept, operator.key_columns(columns), operator.layout(columns), sides=sides)


def records_of(path: Any, operator: Any, tables: list[pa.Table]) -> pa.Table:
    """The changelog of these batches, with the definition behind each."""
    said = Noted(definition_of(operator, tables[0].schema), {"t": 1}).encode()
    records: list[tuple[bytes, bytes | None]] = []
    with LmdbStore(path) as store:
        for number, table in enumerate(tables):
            changes = operator(table, store).changes
            keys, values = changes["key"].to_pylist(), changes["value"].to_pylist()
            store.commit(keys, values, Position(number))
            records += [*zip(keys, values, strict=True), (STATE_KEY, said)]
    return changelog(records)


def changelog(records: list[tuple[bytes, bytes | None]]) -> pa.Table:
    columns = [pa.array(column, pa.binary()) for column in zip(*records, strict=True)]
    return pa.table(columns, ["key", "value"])


def unordered(rows: Any) -> list[str]:
    """Rows to compare as a set with repetitions; times of any zone object are equal."""
    return sorted(json_text({"row": row}) for row in rows)


def through_parquet(table: pa.Table) -> pa.Table:
    file = io.BytesIO()
    pq.write_table(table, file)
    return pq.read_table(io.BytesIO(file.getvalue()))


def saved(records: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """The rows of each part, once they have become the same entries again."""
    entries = StoreEntries.of(latest(records))
    tables = {part: through_parquet(table) for part, table in entries.tables()}
    again = StoreEntries.join(entries.marks, tables).table()
    found = dict(zip(again["key"].to_pylist(), again["value"].to_pylist(), strict=True))
    assert len(found) == len(again)
    plain = dict(zip(records["key"].to_pylist(), records["value"].to_pylist(), strict=True))
    assert found == {key: value for key, value in plain.items() if value is not None}
    return {part: table.to_pylist() for part, table in tables.items()}


@given(st.lists(test_aggregate.rows, max_size=20), CUTS)
@settings(max_examples=examples(60), deadline=None)
def test_aggregates_are_rows_of_key_and_results(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int]
) -> None:
    cut = sorted(place % (len(rows) + 1) for place in cuts)
    parts = [rows[start:end] for start, end in zip([0, *cut], [*cut, len(rows)], strict=True)]
    operator = Aggregation(("tail", "hour"), test_aggregate.AGGREGATES)
    records = records_of(tmp_path_factory.mktemp("s") / "s", operator, [test_aggregate.table(part) for part in parts])
    found = {
        (row["tail"], row["hour"]): tuple(row[name] for name in test_aggregate.AGGREGATES)
        for row in saved(records).get("entries", [])
    }
    assert found == test_aggregate.plain(rows)


def test_results_of_every_type_come_back(tmp_path: Any) -> None:
    day, at = date(1969, 12, 30), datetime(2026, 3, 1, 12, 0, 0, 7, tzinfo=UTC)
    columns = {
        "key": pa.array([b"\0", b"\0\0\xff", b"", None], pa.binary()),
        "number": pa.array([2**64 - 1, 0, None, 5], pa.uint64()),
        "flag": [True, False, None, True],
        "day": pa.array([day, None, day, day]),
        "at": pa.array([at, at, None, at], pa.timestamp("us", "UTC")),
        "text": ["é\0", "", None, "x" * 300],
        "bytes": pa.array([b"\xff\0", None, b"", b"\0"], pa.binary()),
        "x": pa.array([0.5, float("inf"), None, -0.0]),
        "amount": pa.array([Decimal("-0.07"), Decimal(0), None, Decimal("9" * 36)], pa.decimal128(38, 2)),
    }
    table = pa.table(columns)
    keys = ("key", "number", "flag", "day")
    values = {
        f"{kind} {name}": aggregate_of(f"{kind}({name})")
        for name in ("at", "text", "bytes", "x", "amount")
        for kind in ("min", "max")
    }
    values["min day"] = aggregate_of("min(day)")
    kinds = ("first", "last")
    values |= {
        f"{kind} {name}": aggregate_of(f"{kind}({name})") for kind in kinds for name in ("flag", "at", "text", "amount")
    }
    values |= {"different": Aggregate(Kind.COUNT_DISTINCT, "x")}
    values = {"by x": Aggregate(Kind.MAX_BY, "x", by=Aggregate(Kind.MIN, "text"))} | values
    rows = saved(records_of(tmp_path / "s", Aggregation(keys, values), [table]))["entries"]
    rows = [{name: value for name, value in row.items() if " of " not in name} for row in rows]
    expected = [
        {name: row[name] for name in keys}
        | {name: row[name.partition(" ")[2]] for name in values if name != "different"}
        | {"different": int(row["x"] is not None)}
        for row in table.to_pylist()
    ]
    assert unordered(rows) == unordered(expected)


def test_sums_and_averages_of_decimals_come_back(tmp_path: Any) -> None:
    amounts = pa.array([Decimal("-0.07"), Decimal("99.99"), None], pa.decimal128(4, 2))
    values = {name: aggregate_of(f"{name}(amount)") for name in ("sum", "avg")}
    table = pa.table({"key": [1, 1, 2], "amount": amounts})
    rows = saved(records_of(tmp_path / "s", Aggregation(("key",), values), [table, table]))["entries"]
    total = Decimal("199.84")
    assert sorted(rows, key=lambda row: row["key"]) == [
        {"key": 1, "sum": total, "avg": Decimal("49.960000"), "sum of avg": total, "count of avg": 4},
        {"key": 2, "sum": None, "avg": None, "sum of avg": None, "count of avg": 0},
    ]


def test_columns_that_a_key_has_already_get_another_name(tmp_path: Any) -> None:
    rows = [{"first": "a", "t": EPOCH, "sum of m": "b", "n": 3}]
    schema = pa.schema(
        [("first", pa.string()), ("t", pa.timestamp("us", "UTC")), ("sum of m", pa.string()), ("n", pa.int64())]
    )
    table = pa.Table.from_pylist(rows, schema=schema)
    first = saved(records_of(tmp_path / "one", Deduplication(("first",), "t", SECOND), [table]))["entries"]
    assert first == [{"first": "a", "first_": EPOCH}]
    mean = Aggregation(("sum of m",), {"m": aggregate_of("avg(n)")})
    assert saved(records_of(tmp_path / "two", mean, [table]))["entries"] == [
        {"sum of m": "b", "m": 3.0, "sum of m_": 3, "count of m": 1}
    ]


@given(st.lists(ROW, min_size=1, max_size=25), CUTS, st.sampled_from([(4, None, 0), (6, 2, 3), (86400 * 40, None, 5)]))
@settings(max_examples=examples(40), deadline=None)
def test_windows_that_are_open_are_rows_with_start_and_end(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int], shape: Any
) -> None:
    size, every, grace = shape
    window = Window("t", size * SECOND, every and every * SECOND, grace * SECOND)
    operator = WindowedAggregation(("k",), AGGREGATES, window, final=True)
    found = saved(records_of(tmp_path_factory.mktemp("s") / "s", operator, batches_of(rows, cuts)))
    hop, now = every or size, -(10**9)
    windows: dict[Any, list[int]] = {}
    for k, n, t in rows:
        now = now if t is None else max(now, t)
        for back in range(0 if t is None else size // hop):
            start = t // hop * hop - back * hop
            if start + size + grace > now:
                windows.setdefault((start, k), []).append(n)
    expected = [
        {
            "window_start": EPOCH + start * SECOND,
            "window_end": EPOCH + (start + size) * SECOND,
            "k": k,
            "count": len(values),
            "sum": sum(values),
            "avg": sum(values) / len(values),
        }
        for (start, k), values in windows.items()
        if start + size + grace > now
    ]
    given_rows = [{name: row[name] for name in expected[0]} for row in found.get("entries", [])] if expected else []
    assert unordered(given_rows) == unordered(expected)


@given(test_sessions.ROWS.filter(bool), CUTS, st.sampled_from([(3, 0), (4, 6)]))
@example([("a", None, 0), ("b", None, 3)], [], (3, 0))  # a row at 3 would go on with the first session
@settings(max_examples=examples(60), deadline=None)
def test_open_sessions_are_rows_with_start_and_end(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int], shape: tuple[int, int]
) -> None:
    gap, grace = shape
    window = Window.session("t", gap * SECOND, grace=grace * SECOND)
    operator = SessionAggregation(("k",), test_sessions.ALL, window, final=True)
    found = saved(records_of(tmp_path_factory.mktemp("s") / "s", operator, batches_of(rows, cuts)))
    plain = test_sessions.RowByRow(gap, grace)
    for k, n, t in rows:
        plain.add(k, n, t)
    still = [each for each in plain.open if max(each[1])[0] + gap + grace >= plain.now]
    expected = [(EPOCH + min(of)[0] * SECOND, EPOCH + (max(of)[0] + gap) * SECOND, key, len(of)) for key, of in still]
    rows_found = [(row["window_start"], row["window_end"], row["k"], row["count"]) for row in found.get("entries", [])]
    assert unordered(rows_found) == unordered(expected)


@given(st.lists(ROW, min_size=1, max_size=25), CUTS)
@settings(max_examples=examples(30), deadline=None)
def test_first_rows_are_their_keys_and_times(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int]
) -> None:
    operator = Deduplication(("k",), "t", timedelta(days=1))
    found = saved(records_of(tmp_path_factory.mktemp("s") / "s", operator, batches_of(rows, cuts)))
    first: dict[Any, Any] = {}
    for k, _, t in rows:
        if t is not None:
            first.setdefault(k, EPOCH + t * SECOND)
    assert {row["k"]: row["first"] for row in found.get("entries", [])} == first


SIDES = st.tuples(st.booleans(), st.sampled_from(["", "a", "a\0", "b", None]), st.integers(-30, 30), st.integers(0, 3))
BOUNDS = st.none() | st.sampled_from([(0, 1), (-1, 0), (0, 0)])
KINDS = ["left", "inner", "full", "semi"]


@given(st.lists(SIDES, min_size=1, max_size=14), CUTS, st.integers(1, 9), st.sampled_from(KINDS), BOUNDS)
@settings(max_examples=examples(60), deadline=None)
def test_rows_of_a_join_keep_their_columns_their_order_and_whether_they_wait(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int], within: int, how: str, bounds: Any
) -> None:
    join = test_stream_join.operator(within, 99, how, bounds)
    low, high = bounds or (-within, within)

    def has_partner(is_other: bool, key: str | None, at: int) -> bool:
        apart = [(t - at) if o else (at - t) for o, k, t, _ in rows if o != is_other and k == key and key is not None]
        return any(low <= time <= high for time in apart)

    cut = sorted(place % (len(rows) + 1) for place in cuts)
    parts = [rows[start:end] for start, end in zip([0, *cut], [*cut, len(rows)], strict=True)]
    tables = [test_stream_join.table_of(part) for part in parts]
    found = saved(records_of(tmp_path_factory.mktemp("s") / "s", join, tables))
    for is_other, side, make in (
        (False, "left", test_stream_join.left_row),
        (True, "right", test_stream_join.right_row),
    ):
        is_marked = how == "full" or (side == "left" and how != "inner")
        stays = how == "full" or (side, how) == ("left", "left")
        own = [row for row in rows if row[0] == is_other and (stays or row[1] is not None)]
        expected = list[dict[str, Any]]()
        for _, key, at, n in own:
            waits = {"waits": not has_partner(is_other, key, at)} if is_marked else {}
            expected.append(make(key, at, n) | waits)
        assert unordered(found.get(side, [])) == unordered(expected)


OPERATIONS = st.sampled_from(
    ["update", "clear value", "append", "append list", "clear list", "set", "set", "remove", "register", "delete"]
)
ACTS = st.lists(
    st.tuples(st.sampled_from(["", "a", "a\0", "b"]), OPERATIONS, st.integers(0, 3)), min_size=1, max_size=14
)


def changelog_of(path: Any) -> pa.Table:
    keys = Definition.of(
        {"operator": "transform_with_state"}, pa.schema([("k", pa.string())]), None, has_variables=True
    )
    with LmdbStore(path) as store:
        return changelog([*store.scan(), (STATE_KEY, Noted(keys, {"t": 1}).encode())])


@given(ACTS, st.sampled_from([None, 30]))
@settings(max_examples=examples(60), deadline=None)
def test_a_processors_variables_and_timers_come_back(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Any], ttl: int | None
) -> None:
    place = tmp_path_factory.mktemp("s")
    plan = Plan(("key",), TimeMode.PROCESSING)
    process_batch(place, acts, plan, 1000, Recorder(ttl))
    more = pa.schema([("n", pa.int64()), ("more", pa.map_(pa.string(), pa.list_(pa.timestamp("us", "UTC"))))])
    found = saved(changelog_of(place))
    process_batch(place, [("b", "look", 0)], plan, 1001, Recorder(ttl, more))
    assert {row["value"]["more"] for row in saved(changelog_of(place)).get("variables/value", [])} <= {None}
    values: dict[str, Any] = {}
    lists: dict[str, list[int]] = {}
    maps: dict[tuple[str, int], int] = {}
    timers: set[tuple[str, int]] = set()
    for key, op, n in acts:
        if op == "update":
            values[key] = n
        elif op == "clear value":
            values.pop(key, None)
        elif op.startswith("append"):
            lists.setdefault(key, []).extend([n] if op == "append" else [n, n + 1])
        elif op == "clear list":
            lists.pop(key, None)
        elif op == "set":
            maps[key, n] = 2 * n
        elif op == "remove":
            maps.pop((key, n), None)
        elif op == "register":
            timers.add((key, 1000 + 10 * n))
        else:
            timers.discard((key, 1000 + 10 * n))
    timers = {(key, at) for key, at in timers if at > 1000}
    rows = {part: [dict(row) for row in of] for part, of in found.items()}
    assert {row["key"]["k"]: row["value"]["n"] for row in rows.get("variables/value", [])} == values
    listed: dict[str, list[int]] = {}
    for row in rows.get("variables/list", []):
        listed.setdefault(row["key"]["k"], []).append(row["list_element"]["n"])
    assert listed == lists
    mapped = rows.get("variables/map", [])
    assert {(row["key"]["k"], row["user_map_key"]["n"]): row["user_map_value"]["n"] for row in mapped} == maps
    assert {(row["key"]["k"], row["expiration_timestamp_ms"]) for row in rows.get("timers", [])} == timers
    ends = {row.get("expiration_timestamp") for part in rows if part.startswith("variables") for row in rows[part]}
    assert ends <= ({None} if ttl is None else {1000 + ttl})


def test_values_of_many_types_and_schemas_come_back(tmp_path: Any) -> None:
    at = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    schema = pa.schema(
        [
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("cost", pa.decimal128(20, 3)),
            ("took", pa.duration("us")),
            ("inner", pa.struct([("names", pa.list_(pa.string())), ("by", pa.map_(pa.string(), pa.float32()))])),
        ]
    )

    class Writes(Recorder):
        def rows(self, key: Any, begin: Any, end: Any, now: Any, *, is_new: bool) -> None:
            inner = {"names": ["é", None], "by": {"x": 0.5, "y": None}}
            local = datetime(2026, 1, 1)  # noqa: DTZ001 - without a zone
            row = (date(1969, 1, 1), at, local, -7, timedelta(microseconds=-3), inner)
            self.value.update(row)
            self.list.appendList([row, (None,) * 6])
            self.map.updateValue((1,), row)

    process_batch(tmp_path, [("a", "look", 0)], Plan(("key",)), 0, Writes(schema=schema))
    found = saved(changelog_of(tmp_path))
    (value,) = found["variables/value"]
    assert value["value"]["at"] == at
    assert value["value"]["inner"] == {"names": ["é", None], "by": [("x", 0.5), ("y", None)]}
    assert [row["list_element"]["day"] for row in found["variables/list"]] == [date(1969, 1, 1), None]


def test_values_with_fields_that_are_left_out_or_wider_now_are_written_with_the_present_ones(tmp_path: Any) -> None:
    before = pa.schema([("n", pa.int32()), ("gone", pa.string())])
    present = pa.schema([("more", pa.string()), ("n", pa.float64())])

    class Writes(Recorder):
        def rows(self, key: Any, begin: Any, end: Any, now: Any, *, is_new: bool) -> None:
            self.value.update((7, "x"))
            self.list.appendList([(1, "x"), (None, "y")])

    process_batch(tmp_path, [("a", "look", 0)], Plan(("key",)), 0, Writes(schema=before))
    process_batch(tmp_path, [("b", "look", 0)], Plan(("key",), TimeMode.PROCESSING), 0, Recorder(30, schema=present))
    entries = StoreEntries.of(changelog_of(tmp_path))
    tables = {part: through_parquet(table) for part, table in entries.tables()}
    again = StoreEntries.join(entries.marks, tables)
    found = {part: table.drop_columns("schema").to_pylist() for part, table in again.tables()}
    key: dict[str, Any] = {"key": {"k": "a"}}
    assert found["variables/value"] == [
        {**key, "value": {"more": None, "n": 7.0}, "expiration_timestamp": (1 << 63) - 1}
    ]
    assert [row["list_element"] for row in found["variables/list"]] == [
        {"more": None, "n": 1.0},
        {"more": None, "n": None},
    ]


def test_a_store_says_what_it_cannot_be() -> None:
    with pytest.raises(OtherDefinitionError, match="does not say what it means"):
        list(StoreEntries.of(changelog([(b"\x01a", b"v")])).tables())
    said = Noted(definition_of(Aggregation(("k",), AGGREGATES), COLUMNS), {}).encode()
    damaged = StoreEntries.of(changelog([(b"\x01a\0\0", b"v"), (STATE_KEY, said)]))
    with pytest.raises(ValueDamagedError):
        list(damaged.tables())
    none = StoreEntries.of(changelog([(b"\x01a", None)]))
    assert none.definition_record() is None
    assert not list(none.tables())
    assert not len(StoreEntries.join({}, {}).table())


NESTED = pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string())), ("by", pa.map_(pa.string(), pa.int8()))])
PLACES = [{"x": 0.5, "tags": ["a", None], "by": [("k", 1)]}, None, {"x": None, "tags": None, "by": []}]


def test_nested_columns_are_kept_by_joins_and_aggregates(tmp_path: Path) -> None:
    left = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("place", NESTED)])
    columns = joined_columns(left, test_stream_join.RIGHT)
    rows = [{"k": "a", "t": EPOCH, "place": place} for place in PLACES]
    batch = in_columns(pa.RecordBatch.from_pylist(rows, schema=left), columns, is_other=False)
    join = test_stream_join.operator(1, 99, "inner")
    found = saved(records_of(tmp_path / "join", join, [pa.Table.from_batches([batch])]))
    assert unordered(found["left"]) == unordered(rows)

    table = pa.Table.from_pylist(rows, left)
    totals = Aggregation(("k",), {"all": Aggregate(Kind.COLLECT_LIST, "place", arguments=(9,))})
    saved(records_of(tmp_path / "totals", totals, [table]))
    described = json.loads(json.dumps(definition_of(totals, left).described()))
    with LmdbStore(tmp_path / "totals") as store:
        asked = Definition.from_described(described).entries().table([Read(store.scan())])
    assert asked.to_pylist() == [{"k": "a", "all": [PLACES[0], PLACES[2]]}]
