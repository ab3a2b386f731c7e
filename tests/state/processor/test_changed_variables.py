"""Variables whose values a function makes anew: what was written before is there in the new schema, and stays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError
from roster.state.definition import Definition, Noted, OtherDefinitionError
from roster.state.evolution import check, evolution, registry_after
from roster.state.lmdb_store import LmdbStore
from roster.state.processor.batch import Plan, TimeMode
from roster.state.processor.variables import REGISTRY_KEY, decode_registry
from tests.examples_tried import examples
from tests.state.processor.test_batch import NUMBER, Recorder, process_batch

TEXT = pa.schema([("text", pa.string())])
PLAN = Plan(("key",), TimeMode.PROCESSING)
DOCUMENT = {"operator": "transform_with_state", "keys": {"key": "string"}, "variables": True}
VALUES = {"value": "value", "list": "list_element", "map": "user_map_value"}
BEFORE = Noted(Definition(DOCUMENT), {})


def as_text(rows: pa.Table) -> pa.Table:
    """A number as its text."""
    (name,) = set(VALUES.values()) & set(rows.column_names)
    text = pc.struct_field(rows[name].combine_chunks(), "n").cast(pa.string())
    return rows.set_column(rows.column_names.index(name), name, pc.make_struct(text, field_names=["text"]))


def declared(place: Any, ttl: int | None = None, schema: pa.Schema = TEXT) -> bytes:
    """What a release with this schema keeps."""
    process_batch(place, [], PLAN, 0, Recorder(ttl, schema))
    return registry_of(place)


def registry_of(place: Any) -> bytes:
    with LmdbStore(place) as store:
        (registry,) = store.multi_get([REGISTRY_KEY])
        assert registry is not None
        return registry


def release(registry: bytes, function: Any = as_text) -> Definition:
    return Definition(DOCUMENT, dict.fromkeys(VALUES, function), registry)


class Looks(Recorder):
    """Tells all that there is of a key."""

    def rows(self, key: Any, begin: Any, end: Any, now: Any, *, is_new: bool) -> None:
        timers = sorted(self.state.list_timers())
        self.say(key, (self.value.get(), list(self.list.get()), sorted(self.map.iterator()), timers))


def looked(place: Any, ttl: int | None, schema: pa.Schema) -> dict[str, str]:
    code = Looks(ttl, schema)
    process_batch(place, [(key, "look", 0) for key in "ab"], PLAN, 0, code)
    return dict(code.said)


OPERATIONS = ["update", "append", "append list", "set", "register", "clear list"]
ACTS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(OPERATIONS), st.integers(1, 9)), max_size=12)


@given(ACTS, st.sampled_from([None, 30]), st.sampled_from([None, 30]))
@settings(max_examples=examples(15))
def test_values_are_those_that_the_function_makes(
    tmp_path_factory: pytest.TempPathFactory, acts: Any, ttl: int | None, new_ttl: int | None
) -> None:
    place = tmp_path_factory.mktemp("s")
    process_batch(place / "s", acts, PLAN, 0, Recorder(ttl))
    seen = looked(place / "s", ttl, NUMBER)
    own = release(declared(place / "other", new_ttl))
    change(place / "s", own)
    # Texts of the same numbers; the keys of a map and the times of timers stay.
    for key, said in looked(place / "s", new_ttl, TEXT).items():
        value, of_list, of_map, timers = eval(seen[key])
        expected = (
            None if value is None else (str(value[0]),),
            [(str(n),) for (n,) in of_list],
            [(name, (str(n),)) for name, (n,) in of_map],
            timers,
        )
        assert said == str(expected)
    assert check(own, BEFORE, registry_of(place / "s")) == [], "a function counts once"
    with pytest.raises(StateError, match="a newer release has added its field 'text'"):
        process_batch(place / "s", [], PLAN, 0, Recorder(ttl))
    more = pa.schema([*TEXT, ("more", pa.int64())])
    assert looked(place / "s", new_ttl, more).keys() == {"a", "b"}, "the earlier type does not count any more"


def change(place: Any, own: Definition) -> None:
    """Write what a batch without rows would write."""
    registry = registry_of(place)
    with LmdbStore(place) as store:
        with store.snapshot() as snapshot:
            way = evolution(own, BEFORE, registry)
            assert way is not None
            seen = way.seen(snapshot)
            changed = seen.rewritten(())
            (after,) = seen.multi_get([REGISTRY_KEY])
        assert after == registry_after(own, registry)
        assert {key[0] for key in changed["key"].to_pylist()} <= {
            each.number for each in decode_registry(after).values()
        }
        store.commit([*changed["key"].to_pylist(), REGISTRY_KEY], [*changed["value"].to_pylist(), after], Position(9))


def test_only_variables_with_a_function_change(tmp_path: Any) -> None:
    process_batch(tmp_path / "s", [("a", "update", 5), ("a", "set", 6)], PLAN, 0, Recorder())
    registry = registry_of(tmp_path / "s")
    own = Definition(DOCUMENT, {"value": as_text}, declared(tmp_path / "other"))
    assert [str(each) for each in check(own, BEFORE, registry)] == [
        f"variable value: (n int64) -> (text string) (by {__name__}.as_text)"
    ]
    after = decode_registry(registry_after(own, registry))
    assert {name: (len(entry.written), entry.first) for name, entry in after.items()} == {
        "value": (2, 1), "list": (1, 0), "map": (1, 0),
    }  # fmt: skip
    assert check(Definition(DOCUMENT, {"value": as_text}, registry), BEFORE, registry) == []
    assert check(Definition(DOCUMENT, None, own.registry), BEFORE, registry) == [], "the operator refuses it"


def test_a_function_that_does_not_fit_is_refused(tmp_path: Any) -> None:
    process_batch(tmp_path / "s", [("a", "update", 5)], PLAN, 0, Recorder())
    own, registry = declared(tmp_path / "other"), registry_of(tmp_path / "s")
    for function, problem in [
        (lambda rows: rows, "its column 'value' has not the fields text"),
        (lambda rows: as_text(rows).drop_columns(["key"]), "it must leave the column 'key' as it is"),
        (lambda rows: rows.set_column(1, "value", rows["key"]), "its column 'value' has not the fields text"),
        (lambda rows: as_text(rows)["value"], "it must return a pyarrow.Table"),
    ]:
        with pytest.raises(OtherDefinitionError, match=f"lambda.* of migrate failed: {problem}"):
            check(release(own, function), BEFORE, registry)
