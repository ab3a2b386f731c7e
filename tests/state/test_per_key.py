"""A function for each key, against a plain loop over all rows; what it returns and what it raises."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError
from roster.state.lmdb_store import LmdbStore
from roster.state.per_key import update_keys
from tests.examples_tried import examples

OUTPUT = pa.schema([("key", pa.string()), ("seen", pa.int64())])
rows = st.lists(st.tuples(st.none() | st.sampled_from(["", "a", "b"]), st.integers(0, 9)), max_size=8)


def table(of):
    return pa.table(
        {"key": pa.array([row[0] for row in of], pa.string()), "n": pa.array([row[1] for row in of], pa.int64())}
    )


def collect(key, of, state):
    """Keep the digits seen, forget them at 9, and tell after each row how many there are."""
    for _, digit in of:
        if digit == 9:
            state.clear()
        else:
            state.update((state.get() or b"") + b"%d" % digit)
        yield key[0], len(state.get() or b"")


@given(st.lists(rows, min_size=1, max_size=4))
@settings(max_examples=examples(40))
def test_over_batches_it_equals_a_plain_loop(tmp_path_factory, batches):
    plain: dict = {}
    with LmdbStore(tmp_path_factory.mktemp("per-key")) as store:
        for number, batch in enumerate(batches):
            update = update_keys(table(batch), store, ["key"], collect, OUTPUT)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            told = list(zip(*update.results.to_pydict().values(), strict=True))
            expected = []
            for key, digit in batch:
                plain[key] = b"" if digit == 9 else plain.get(key, b"") + b"%d" % digit
                expected.append((key, len(plain[key])))
            for key in {row[0] for row in batch}:
                assert [row for row in told if row[0] == key] == [row for row in expected if row[0] == key]
            assert len(told) == len(expected)
        assert sorted(value for _, value in store.scan()) == sorted(value for value in plain.values() if value)


def test_a_key_that_only_looks_is_no_change(tmp_path):
    with LmdbStore(tmp_path) as store:
        update = update_keys(
            table([("a", 1)]), store, ["key"], lambda key, of, state: [(key[0], int(state.exists()))], OUTPUT
        )
    assert update.changes.num_rows == 0
    assert update.results.to_pylist() == [{"key": "a", "seen": 0}]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (("a",), r"a row of 1 values, output has 2 columns: \('a',\)"),
        (("a", "many"), "a value that does not fit output"),
    ],
)
def test_rows_that_do_not_fit_the_output_are_named(tmp_path, returned, message):
    with LmdbStore(tmp_path) as store, pytest.raises(StateError, match=message):
        update_keys(table([("a", 1)]), store, ["key"], lambda *_: [returned], OUTPUT)


def test_what_the_function_raises_is_raised_as_it_is(tmp_path):
    def fail(*_):
        raise ZeroDivisionError

    with LmdbStore(tmp_path) as store, pytest.raises(ZeroDivisionError):
        update_keys(table([("a", 1)]), store, ["key"], fail, OUTPUT)
