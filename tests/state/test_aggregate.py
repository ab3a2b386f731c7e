"""Aggregates in a store against a plain computation over all batches, and keys as bytes against the order of values."""

from __future__ import annotations

import datetime
import math
import statistics

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError
from roster.state.aggregate import Aggregation, aggregate
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.changelog import latest
from roster.state.definition import Definition
from roster.state.entries import Read
from roster.state.keys import encode_keys
from roster.state.lmdb_store import LmdbStore
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

SCHEMA = pa.schema([("tail", pa.string()), ("hour", pa.int64()), ("delay", pa.int32()), ("miles", pa.float64())])
AGGREGATES = {
    "flights": Aggregate(Kind.COUNT, "tail"),
    "known": Aggregate(Kind.COUNT, "delay"),
    "total": Aggregate(Kind.SUM, "delay"),
    "worst": Aggregate(Kind.MAX, "delay"),
    "best": Aggregate(Kind.MIN, "delay"),
    "miles": Aggregate(Kind.SUM, "miles"),
    "mean": Aggregate(Kind.AVG, "delay"),
    "mean miles": Aggregate(Kind.AVG, "miles"),
}
int32s = st.integers(-(2**31), 2**31 - 1)
rows = st.tuples(
    st.none() | st.sampled_from(["", "N1", "N\0", "N2"]),
    st.none() | st.integers(-2, 2),
    st.none() | int32s,
    st.none() | st.integers(-9, 9).map(float),
)


def table(of):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in of], schema=SCHEMA)


def plain(of):
    """{(tail, hour): the aggregates}, row by row."""
    groups = {}
    for row in of:
        groups.setdefault(row[:2], []).append(row)
    found = {}
    for key, group in groups.items():
        delays, miles = ([row[at] for row in group if row[at] is not None] for at in (2, 3))
        found[key] = (
            sum(row[0] is not None for row in group),
            len(delays),
            *((f(delays) if delays else None) for f in (sum, max, min)),
            sum(miles) if miles else None,
            *(sum(of) / len(of) if of else None for of in (delays, miles)),
        )
    return found


@given(st.lists(st.lists(rows, max_size=8), min_size=1, max_size=4))
@settings(max_examples=examples(50))
def test_aggregates_over_batches_equal_a_plain_computation(tmp_path_factory, batches):
    seen, results = [], {}
    with LmdbStore(tmp_path_factory.mktemp("aggregate")) as store:
        for number, batch in enumerate(batches):
            update = aggregate(table(batch), store, ["tail", "hour"], AGGREGATES)
            assert sorted(update.changes["key"].to_pylist()) == sorted(latest(update.changes)["key"].to_pylist()), (
                "a change for each key"
            )
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            seen += batch
            told = {tuple(row[:2]): tuple(row[2:]) for row in zip(*update.results.to_pydict().values(), strict=True)}
            assert told == {key: value for key, value in plain(seen).items() if key in {row[:2] for row in batch}}
            results |= told
        assert len(store.scan()) == len(results)
    assert results == plain(seen)


ORDERED = {
    "text": pa.string(),
    "large": pa.large_string(),
    "data": pa.binary(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("ms"),
}
days = st.dates(datetime.date(1900, 1, 1))
texts = st.sampled_from(["", "a", "ab", "\0", "\uffff", "\U0001f600"])
moments = st.integers(-(2**31), 2**33).map(
    lambda seconds: (
        datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=seconds)
    )
)
ordered_rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from([1, 2]),
        "text": st.none() | texts,
        "large": st.none() | texts,
        "data": st.none() | st.binary(max_size=2),
        "day": st.none() | days,
        "at": st.none() | moments.map(lambda at: at.replace(tzinfo=datetime.UTC)),
        "local": st.none() | moments,
    }
)


def extremes(of):
    """Least, largest and number of each column's values, by key; text by its bytes."""
    found = {}
    for key in {row["k"] for row in of}:
        found[key] = {}
        for name in ORDERED:
            known = [row[name] for row in of if row["k"] == key and row[name] is not None]
            in_order = sorted(known, key=lambda value: value.encode() if isinstance(value, str) else value)
            first, last = (in_order[0], in_order[-1]) if in_order else (None, None)
            found[key] |= {f"min {name}": first, f"max {name}": last, f"n {name}": len(known)}
    return found


@given(st.lists(st.lists(ordered_rows, max_size=6), min_size=1, max_size=4))
@settings(max_examples=examples(40))
def test_extremes_of_text_bytes_dates_and_timestamps_keep_their_type(tmp_path_factory, batches):
    schema = pa.schema([("k", pa.int64()), *ORDERED.items()])
    wanted = {f"{kind.value} {name}": Aggregate(kind, name) for name in ORDERED for kind in (Kind.MIN, Kind.MAX)}
    wanted |= {f"n {name}": Aggregate(Kind.COUNT, name) for name in ORDERED}
    operator, seen = Aggregation(("k",), wanted), []
    entries = Definition.of(operator.kept, operator.key_columns(schema), operator.layout(schema)).entries()
    with LmdbStore(tmp_path_factory.mktemp("extremes")) as store:
        for number, batch in enumerate(batches):
            update = operator(pa.Table.from_pylist(batch, schema), store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            seen += batch
            told = {row.pop("k"): row for row in update.results.to_pylist()}
            assert told == {key: row for key, row in extremes(seen).items() if key in {row["k"] for row in batch}}
        asked = entries.table([Read(store.scan())])
    assert {row.pop("k"): row for row in asked.to_pylist()} == extremes(seen)
    for name, kind in ORDERED.items():
        assert asked.schema.field(f"min {name}").type == update.results.schema.field(f"max {name}").type == kind


CHOICES = {
    "first": (Kind.FIRST, None),
    "last": (Kind.LAST, None),
    "first known": (Kind.FIRST_VALID, None),
    "last known": (Kind.LAST_VALID, None),
    "at least": (Kind.MIN_BY, "n"),
    "at most": (Kind.MAX_BY, "n"),
    "by text": (Kind.MAX_BY, "text"),
    "different": (Kind.COUNT_DISTINCT, None),
}
choice_rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from([1, 2]),
        "n": st.none() | st.integers(-3, 3),
        "x": st.none() | st.integers(-2, 2).map(float) | st.just(-0.0),
        "text": st.none() | texts,
        "flag": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | texts, max_size=2),
        "place": st.none() | st.fixed_dictionaries({"x": st.none() | st.floats(-1, 1), "by": st.none() | st.just([])}),
    }
)
NESTED = pa.schema(
    [("tags", pa.list_(pa.string())), ("place", pa.struct([("x", pa.float64()), ("by", pa.list_(pa.int8()))]))]
)


def chosen(of, column):
    """What each function of CHOICES says of a column of these rows, and variances of n, row by row."""
    known = [row[column] for row in of if row[column] is not None]

    def best(by, wanted):
        ordered = [row for row in of if row[by] is not None]
        rank = [row[by].encode() if by == "text" else row[by] for row in ordered]
        return ordered[rank.index(wanted(rank))][column] if ordered else None

    return {
        "first": of[0][column],
        "last": of[-1][column],
        "first known": known[0] if known else None,
        "last known": known[-1] if known else None,
        "at least": best("n", min),
        "at most": best("n", max),
        "by text": best("text", max),
        **({"all": known} if column in NESTED.names else {"different": len(set(known))}),
    }


def variances(values):
    values = [value for value in values if value is not None]
    return {
        Kind.VAR_POP: statistics.pvariance(values) if values else None,
        Kind.STDDEV_POP: statistics.pstdev(values) if values else None,
        Kind.VAR_SAMP: statistics.variance(values) if len(values) > 1 else None,
        Kind.STDDEV_SAMP: statistics.stdev(values) if len(values) > 1 else None,
    }


@given(st.lists(st.lists(choice_rows, max_size=6), min_size=1, max_size=4))
@settings(max_examples=examples(50))
def test_chosen_rows_and_variances_over_batches_equal_a_plain_computation(tmp_path_factory, batches):
    schema = pa.schema([("k", pa.int64()), ("n", pa.int32()), ("x", pa.float64()), ("text", pa.string())])
    schema = pa.schema([*schema, ("flag", pa.bool_()), *NESTED])
    wanted = {
        f"{name} of {column}": Aggregate(kind, column, by=None if by is None else Aggregate(Kind.MIN, by))
        for column in ("n", "x", "text", "flag")
        for name, (kind, by) in CHOICES.items()
    }
    for column in NESTED.names:
        wanted |= {
            f"{name} of {column}": Aggregate(kind, column, by=None if by is None else Aggregate(Kind.MIN, by))
            for name, (kind, by) in CHOICES.items()
            if kind is not Kind.COUNT_DISTINCT
        }
        wanted[f"all of {column}"] = Aggregate(Kind.COLLECT_LIST, column, arguments=(1000,))
    wanted |= {f"{kind.value} of {column}": Aggregate(kind, column) for kind in variances([]) for column in "nx"}
    operator, seen = Aggregation(("k",), wanted), []
    entries = Definition.of(operator.kept, operator.key_columns(schema), operator.layout(schema)).entries()
    with LmdbStore(tmp_path_factory.mktemp("chosen")) as store:
        for number, batch in enumerate(batches):
            update = operator(pa.Table.from_pylist(batch, schema), store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            seen += batch
        asked = entries.table([Read(store.scan())]).to_pylist()
    expected = []
    for key in sorted({row["k"] for row in seen}):
        mine = [row for row in seen if row["k"] == key]
        found = {
            f"{name} of {column}": value for column in schema.names[1:] for name, value in chosen(mine, column).items()
        }
        for column in "nx":
            of = variances([row[column] for row in mine]).items()
            found |= {f"{kind.value} of {column}": value and pytest.approx(value) for kind, value in of}
        expected.append({"k": key} | found)
    assert sorted(asked, key=lambda row: row["k"]) == expected


def test_distinct_values_of_every_type_are_counted_as_spark_does(tmp_path):
    day, nan = datetime.date(1969, 12, 30), float("nan")
    columns = {
        "x": [nan, -nan, 0.0, -0.0, 1.5],
        "day": [day, None, day, datetime.date(2026, 1, 1), day],
        "at": pa.array([0, 1, 1, None, 2**40], pa.timestamp("us")),
        "data": [b"", b"\0" * 16, b"\0" * 17, b"", None],
        "flag": [True, False, None, True, True],
    }
    operator = Aggregation(("k",), {name: Aggregate(Kind.COUNT_DISTINCT, name) for name in columns})
    table = pa.table({"k": [1] * 5} | columns)
    with LmdbStore(tmp_path) as store:
        for number in range(2):
            update = operator(table, store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            assert update.results.to_pylist() == [{"k": 1, "x": 3, "day": 2, "at": 3, "data": 3, "flag": 2}]


ZEROS = [pytest.param(values, id=str(values)) for values in ([0.0, -0.0], [-0.0, 0.0])]


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("values", ZEROS)
def test_zeros_are_equal_and_of_equal_values_the_first_is_chosen(tmp_path, values, cut):
    assert least_and_largest(tmp_path, values, cut) == str([values[0], values[0], 0, 0])


@given(st.permutations([1.5, -0.0, float("inf"), float("nan"), float("-inf")]), st.integers(1, 5), st.integers(0, 5))
@settings(max_examples=examples(40))
def test_nan_is_the_largest_number_wherever_batches_are_cut(tmp_path_factory, values, count, cut):
    values = values[:count]
    ranked = sorted(range(count), key=lambda at: (values[at] != values[at], values[at]))
    expected = [values[ranked[0]], values[ranked[-1]], ranked[0], ranked[-1]]
    assert least_and_largest(tmp_path_factory.mktemp("state"), values, min(cut, count)) == str(expected)


def least_and_largest(folder, values, cut):
    """Return as text least and largest value, and their places; the values come in two batches."""
    kinds = Kind.MIN, Kind.MAX, Kind.MIN_BY, Kind.MAX_BY
    by = Aggregate(Kind.MIN, "x")
    operator = Aggregation(
        ("k",),
        {each.value: Aggregate(each, "x") if each in kinds[:2] else Aggregate(each, "n", by=by) for each in kinds},
    )
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("n", pa.int64())])
    with LmdbStore(folder) as store:
        for number, (begin, end) in enumerate([(0, cut), (cut, len(values))]):
            rows = pa.table({"k": [1] * (end - begin), "x": values[begin:end], "n": list(range(begin, end))})
            if begin < end:
                update = operator(rows.cast(schema), store)
                store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
    return str([*update.results.to_pylist()[0].values()][1:])


def test_a_variance_of_large_values_that_are_near_each_other_is_exact(tmp_path):
    operator = Aggregation(("k",), {"spread": Aggregate(Kind.VAR_POP, "x")})
    with LmdbStore(tmp_path) as store:
        for number, values in enumerate([[1e9 + 4, 1e9 + 7], [1e9 + 13], [1e9 + 16]]):
            update = operator(pa.table({"k": [1] * len(values), "x": values}), store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
    assert update.results["spread"].to_pylist() == [22.5]


def test_a_value_whose_text_is_cut_off_is_damaged(tmp_path):
    operator = Aggregation(("tail",), {"first": Aggregate(Kind.MIN, "tail")})
    with LmdbStore(tmp_path) as store:
        changes = operator(table([("N1", 1, 1, 1.0)]), store).changes
        store.commit(changes["key"].to_pylist(), [value[:-1] for value in changes["value"].to_pylist()], Position(1))
        with pytest.raises(StateError, match="none that this operator writes"):
            operator(table([("N1", 1, 1, 1.0)]), store)


@pytest.mark.parametrize(
    ("keys", "aggregates", "message"),
    [
        (["gate"], {"n": Aggregate(Kind.COUNT, "tail")}, "keys: there is no column 'gate' among tail, hour"),
        (["miles"], {"n": Aggregate(Kind.COUNT, "tail")}, "column 'miles' is double; a key is of integers"),
        ([], {"n": Aggregate(Kind.COUNT, "tail")}, "keys: name at least one column"),
        (["tail"], {}, "aggregates: name at least one"),
        (["tail"], {"n": Aggregate(Kind.SUM, "gate")}, "aggregate 'n': no column 'gate'"),
        (["tail"], {"n": Aggregate(Kind.SUM, "tail")}, "aggregate 'n': column 'tail' is string, no number"),
        (
            ["tail"],
            {"n": Aggregate(Kind.MAX, "legs")},
            "aggregate 'n': column 'legs' is list.*whose values are not compared",
        ),
        (["tail"], {"n": Aggregate(Kind.MIN_BY, "hour", by=Aggregate(Kind.MIN, "legs"))}, "column 'legs' is list"),
        (["tail"], {"n": Aggregate(Kind.COUNT_DISTINCT, "legs")}, "column 'legs' is list"),
        (["tail"], {"tail": Aggregate(Kind.COUNT, "tail")}, "aggregate 'tail': a key column has this name too"),
    ],
)
def test_what_cannot_be_aggregated_is_named(tmp_path, keys, aggregates, message):
    rows = table([("N1", 1, 1, 1.0)]).append_column("legs", pa.array([[1]]))
    with LmdbStore(tmp_path) as store, pytest.raises(StateError, match=message):
        aggregate(rows, store, keys, aggregates)


def test_a_value_that_is_no_whole_row_is_named(tmp_path):
    count = {"n": Aggregate(Kind.COUNT, "tail")}
    with LmdbStore(tmp_path) as store:
        (key,) = aggregate(table([("N1", 1, 1, 1.0)]), store, ["tail"], count).changes["key"].to_pylist()
        for value in (b"", b"\x01", b"\x01" * 30):
            store.commit([key], [value], Position(1))
            with pytest.raises(StateError, match="none that this operator writes"):
                aggregate(table([("N1", 1, 1, 1.0)]), store, ["tail"], count)


def test_an_average_is_of_exact_sums_null_without_values_and_read_as_such_from_the_store(tmp_path):
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    operator = Aggregation(("k",), {"mean": aggregate_of("avg(n)")})
    entries = Definition.of(operator.kept, operator.key_columns(schema), operator.layout(schema)).entries()
    batches = [[("a", 2**60), ("b", None)], [("a", 1), ("a", None)], [("a", -(2**60)), ("a", 1), ("b", None)]]
    with LmdbStore(tmp_path) as store:
        for number, batch in enumerate(batches):
            rows = [dict(zip(schema.names, row, strict=True)) for row in batch]
            update = operator(pa.Table.from_pylist(rows, schema), store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
        read = entries.table([Read(store.scan())])
    wanted = [{"k": "a", "mean": 2 / 4}, {"k": "b", "mean": None}]
    assert sorted(update.results.to_pylist(), key=str) == wanted
    assert read.to_pylist() == wanted
    assert read.schema.field("mean").type == update.results.schema.field("mean").type == pa.float64()


@pytest.mark.parametrize("names", [("a", "has a"), ("count of a", "a")])
def test_aggregates_that_take_a_name_of_the_state_are_refused(tmp_path, names):
    wanted = {name: Aggregate(Kind.AVG, "delay") for name in names}
    with LmdbStore(tmp_path) as store, pytest.raises(StateError, match="the state has a column of this name"):
        aggregate(table([]), store, ["tail"], wanted)


@pytest.mark.parametrize(("before", "batch"), [([0], [2**62, 2**62]), ([2**62], [2**62]), ([-(2**62)], [-(2**62)])])
def test_a_sum_beyond_int64_is_an_error_and_not_another_number(tmp_path, before, batch):
    total = {"total": Aggregate(Kind.SUM, "delay")}

    def of(delays):
        return pa.table({"tail": pa.array(["N1"] * len(delays)), "delay": pa.array(delays, pa.int64())})

    with LmdbStore(tmp_path) as store:
        update = aggregate(of(before), store, ["tail"], total)
        store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(1))
        with pytest.raises(StateError, match="aggregate 'total': a sum is beyond int64"):
            aggregate(of(batch), store, ["tail"], total)


values = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
}


@given(st.data())
def test_keys_are_distinct_sort_as_their_values_and_have_their_first_columns_in_front(data):
    kinds = data.draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=3))
    of = data.draw(st.lists(st.tuples(*(st.none() | values[kind] for kind in kinds)), max_size=6, unique=True))
    columns = {str(at): pa.array([row[at] for row in of], kind) for at, kind in enumerate(kinds)}
    keys = encode_keys(pa.table(columns), list(columns)).to_pylist()
    assert len(set(keys)) == len(of)

    def ordered(row):
        return [(value is not None, value.encode() if isinstance(value, str) else value) for value in row]

    places = sorted(range(len(of)), key=keys.__getitem__)
    by_value = sorted(range(len(of)), key=lambda at: [(has, value if has else 0) for has, value in ordered(of[at])])
    assert places == by_value
    first = encode_keys(pa.table(columns), ["0"]).to_pylist()
    assert all(key.startswith(prefix) for key, prefix in zip(keys, first, strict=True))


def test_the_bytes_of_a_key():
    of = pa.table({"tail": ["N\0", None], "hour": pa.array([-1, 2], pa.int32())})
    assert encode_keys(of, ["tail", "hour"]).to_pylist() == [
        bytes.fromhex("01 4e 00ff 0000" + "01 7fffffffffffffff"),
        bytes.fromhex("00" + "01 8000000000000002"),
    ]


STRUCTS = pa.struct(
    [("x", pa.float64()), ("d", pa.decimal128(6, 2)), ("inner", pa.struct([("text", pa.string()), ("n", pa.int16())]))]
)
structs = st.fixed_dictionaries(
    {
        "x": st.none() | st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("nan"), float("-inf")]),
        "d": st.none() | st.decimals(-2, 2, places=2),
        "inner": st.none() | st.fixed_dictionaries({"text": st.none() | texts, "n": st.none() | st.integers(-2, 2)}),
    }
)


def as_spark_compares(value):
    if isinstance(value, dict):
        return [(item is not None, as_spark_compares(item)) for item in value.values()]
    if isinstance(value, float):
        return (math.isnan(value), 0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value if value is not None else 0


@given(st.lists(st.lists(st.none() | structs, min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=examples(60))
def test_structs_are_compared_field_by_field_as_spark_does(tmp_path_factory, batches):
    by = Aggregate(Kind.MIN, "s")
    operator = Aggregation(
        ("k",), {"least": Aggregate(Kind.MIN_BY, "s", by=by), "most": Aggregate(Kind.MAX_BY, "s", by=by)}
    )
    with LmdbStore(tmp_path_factory.mktemp("structs")) as store:
        for number, batch in enumerate(batches):
            rows = pa.table([pa.array([1] * len(batch)), pa.array(batch, STRUCTS)], ["k", "s"])
            update = operator(rows, store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
    (result,) = update.results.to_pylist()
    known = [value for batch in batches for value in pa.array(batch, STRUCTS).to_pylist() if value is not None]
    wanted = {
        "least": min(known, key=as_spark_compares, default=None),
        "most": max(known, key=as_spark_compares, default=None),
    }
    assert repr({name: result[name] for name in wanted}) == repr(wanted)
