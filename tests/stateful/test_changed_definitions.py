"""Releases whose results change, at a store: whatever befalls batches, each sees the state of all committed ones."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.model.topology import Subtopology
from roster.spark.stateful_batches import tokens_of
from roster.state.aggregate import Aggregation
from roster.state.definition import STATE_KEY, Noted, OtherDefinitionError, entries_of
from roster.state.entries import Span
from roster.state.plain_entries import HexEntries
from roster.state.processor.batch import Plan, take
from roster.state.processor.states import ValueState
from roster.state.processor.variables import REGISTRY_KEY
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState, StateError
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.changelogs import Changelog, Changelogs
from roster.stateful.stores import StoreTargets
from roster.stateful.tasks.catch_up import StoreTarget, catch_up
from roster.stateful.tasks.processing import process_batch
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.subtopology import definition_of
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of
from tests.stateful.test_store_processing import SOURCE, TASK, Log, batch_of

if TYPE_CHECKING:
    from pathlib import Path

AT = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", AT)])
LOG = "g-s-changelog"
HOUR = timedelta(hours=1)
CHANGELOGS = Changelogs([Changelog(LOG, "id", 1, Subtopology(0, ("t",), ("s",)))])
KINDS = {"count(*)": len, "sum(n)": sum, "max(n)": max, "avg(n)": lambda values: sum(values) / len(values)}


def operator(texts: Mapping[str, str], kind: str = "totals") -> Any:
    parsed = {name: aggregate_of(text) for name, text in texts.items()}
    if kind == "windows":
        return WindowedAggregation(("k",), parsed, Window("at", HOUR), final=False)
    if kind == "sessions":
        return SessionAggregation(("k",), parsed, Window.session("at", HOUR), final=False)
    return Aggregation(("k",), parsed)


def result(text: str, values: list[int]) -> Any:
    if not values:
        return 0 if text == "count(*)" else None
    return KINDS[text](values)


class Application:
    """One process of the group: its disk, and what it knows of commits."""

    def __init__(self, log: Log, disk: Path) -> None:
        self.log, self.targets, self.disk = log, StoreTargets(log, CHANGELOGS, 1.0), disk
        self.place = self.with_disk()

    def with_disk(self) -> Place:
        self.place = Place(str(self.disk / uuid.uuid4().hex), LOG, "id")
        return self.place

    def batch(self, of: Any, definition: Any, rows: list[tuple[str, int]], at: int) -> Any:
        table = pa.table([*map(list, zip(*rows, strict=True)), pa.array([0] * len(rows), AT)], schema=COLUMNS)
        target = self.targets.prepare(batch_of(at, 5))[TASK][0]
        with self.place.open("0_0") as store:
            return process_batch(store, target, of, definition, table, {"t": at + 5}, self.log.fetch)

    def release(self, event: str, of: Any, word: str, rows: list[tuple[str, int]], at: int) -> dict[str, Any]:
        """Return the results of a batch by key. What changed its meaning begins anew; each release has its word."""
        definition = definition_of(of, COLUMNS, dict.fromkeys([*of.aggregates, word])).among(0, ["s"])
        update, report = self.batch(of, definition, rows, at)
        found = {row["k"]: row for row in update.results.to_pylist()}
        if event == "killed":
            return found  # nothing was sent
        reports = {TASK: (report,)}
        if event == "second attempt":
            reports = {TASK: (report, self.batch(of, definition, rows, at)[1])}
        self.log.write(update.changes, committed=event != "abort")
        if event in ("abort", "lost answer"):
            self.targets.forget([SOURCE])
        else:
            self.targets.committed(tokens_of(reports), batch_of(at, 5))
        return found


Model = dict[str, tuple[str, dict[str, list[int]]]]
"""The aggregate of each result, and the numbers that it has of each key."""


def gone_on(model: Model, texts: Mapping[str, str], rows: list[tuple[str, int]]) -> Model:
    """Return the model after a batch: what keeps its name and meaning goes on, the rest begins anew."""
    after: Model = {}
    for name, text in texts.items():
        values = model[name][1] if model.get(name, ("",))[0] == text else {}
        after[name] = text, {key: [*own] for key, own in values.items()}
        for key, n in rows:
            after[name][1].setdefault(key, []).append(n)
    return after


EVENTS = ["commit"] * 4 + ["abort", "lost answer", "killed", "second attempt", "other owner", "new disk"]
RELEASES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(list(KINDS)), min_size=1)
ROWS = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(-9, 9)), min_size=1, max_size=4)
STEPS = st.tuples(st.sampled_from(EVENTS), st.none() | RELEASES, ROWS)
ONE = [("x", 1), ("y", 2)]
ADDED = {"a": "count(*)", "b": "avg(n)"}


@given(st.sampled_from(["totals", "windows", "sessions"]), RELEASES, st.lists(STEPS, max_size=8))
@example("totals", {"a": "count(*)"}, [("commit", None, ONE), ("killed", ADDED, ONE), ("commit", None, ONE)])
@settings(max_examples=examples(25, "ROSTER_STATE_SCRIPTS"))
def test_results_that_changed_go_on_from_what_was_committed(
    tmp_path_factory: pytest.TempPathFactory, kind: str, texts: dict[str, str], script: Any
) -> None:
    disk, log = tmp_path_factory.mktemp("state"), Log()
    applications = [Application(log, disk), Application(log, disk)]
    at, model, keys, word = 0, Model(), set[str](), ""
    for number, (event, release, rows) in enumerate(script):
        if release is not None:
            texts, word = release, f"release {number}"
        if event == "other owner":
            applications.reverse()
            applications[0].targets.forget([SOURCE])
        if event == "new disk":
            applications[0].with_disk()
        after = gone_on(model, texts, rows)
        found = applications[0].release(event, operator(texts, kind), word, rows, at)
        assert found.keys() == {key for key, _ in rows}
        for key, row in found.items():
            assert {name: row[name] for name in texts} == {n: result(t, v[key]) for n, (t, v) in after.items()}, event
        if event not in ("abort", "killed"):
            model, at, keys = after, at + 5, keys | {key for key, _ in rows}
    for application in (*applications, Application(log, disk)):  # the last one has the changelog alone
        application.targets.forget([SOURCE])
        target = application.targets.prepare(batch_of(at, 5))[TASK][0]
        with application.place.open("0_0") as store:
            catch_up(store, target, log.fetch)
            entries = entries_of(store)
            found = {row["k"]: row for row in entries.rows([entries.read(store, Span())])} if keys else {}
        assert found.keys() == keys
        for name, (text, values) in model.items():
            assert {key: row[name] for key, row in found.items()} == {k: result(text, values.get(k, [])) for k in keys}


def test_a_function_changes_the_store_in_the_transaction_of_a_batch(tmp_path: Path) -> None:
    log, seen = Log(), list[int]()
    application = Application(log, tmp_path)
    of = operator({"c": "count(*)", "s": "sum(n)"})
    update, _ = application.batch(of, definition_of(of, COLUMNS), [("x", 1), ("x", 4), ("y", 2)], 0)
    log.write(update.changes, committed=True)

    def averaged(rows: pa.Table) -> pa.Table:
        seen.append(len(rows))
        return rows.rename_columns({"c": "count of a", "s": "sum of a"})

    of = operator({"a": "avg(n)"})
    for committed in (False, True):  # the first one is dropped, and done again
        update, _ = application.batch(of, definition_of(of, COLUMNS, averaged), [("x", 1), ("z", 7)], 5)
        log.write(update.changes, committed=committed)
        assert {row["k"]: row["a"] for row in update.results.to_pylist()} == {"x": 2.0, "z": 7.0}
        application.targets.forget([SOURCE])
    assert max(seen) == 2
    seen.clear()
    update, _ = application.batch(of, definition_of(of, COLUMNS, averaged), [("y", 4)], 10)
    assert (update.results.to_pylist(), seen) == ([{"k": "y", "a": 3.0}], []), "it is called once"


@dataclass(frozen=True)
class Sums:
    """The sum of each key as a variable, a number or its text."""

    schema: pa.Schema
    has_variables = True
    kept: Any = field(default_factory=lambda: {"operator": "transform_with_state"})

    @property
    def registry(self) -> bytes:
        changes = self(COLUMNS.empty_table(), NoState()).changes
        return bytes(dict(zip(changes["key"].to_pylist(), changes["value"].to_pylist(), strict=True))[REGISTRY_KEY])

    def key_columns(self, columns: pa.Schema) -> pa.Schema:
        return pa.schema([columns.field("k")])

    def layout(self, _: pa.Schema) -> None:
        return None

    def __call__(self, table: pa.Table, store: Any) -> Any:
        return take(table, store, Plan(("k",)), SumCode(self.schema), clock=lambda: 0)


class SumCode:
    def __init__(self, schema: pa.Schema) -> None:
        self.schema, self.said = schema, list[tuple[str, str]]()

    def open(self, state: Any, table: pa.Table) -> None:
        self.table, self.value = table, state.value(ValueState, "sum", self.schema)

    def rows(self, key: Any, begin: int, end: int, now: Any, *, is_new: bool) -> None:
        (before,) = self.value.get() or (0,)
        total = int(before) + sum(self.table["n"][begin:end].to_pylist())
        self.value.update((str(total) if pa.types.is_string(self.schema.field(0).type) else total,))
        self.said.append((key[0], str(total)))

    def close(self) -> pa.Table:
        return pa.table(list(zip(*self.said, strict=True)) or [[], []], ["k", "said"])


def test_a_function_changes_a_variable_in_the_transaction_of_a_batch(tmp_path: Path) -> None:
    log, seen = Log(), list[int]()
    application = Application(log, tmp_path)
    number, text = Sums(pa.schema([("n", pa.int64())])), Sums(pa.schema([("text", pa.string())]))

    def as_text(rows: pa.Table) -> pa.Table:
        seen.append(len(rows))
        texts = pc.struct_field(rows["value"].combine_chunks(), "n").cast(pa.string())
        return rows.set_column(1, "value", pc.make_struct(texts, field_names=["text"]))

    old, new = definition_of(number, COLUMNS), definition_of(text, COLUMNS, {"sum": as_text})
    update, _ = application.batch(number, old, [("x", 1), ("x", 4), ("y", 2)], 0)
    log.write(update.changes, committed=True)
    for committed in (False, True):  # the first one is dropped, and done again
        update, _ = application.batch(text, new, [("x", 1), ("z", 7)], 5)
        log.write(update.changes, committed=committed)
        assert update.results.to_pylist() == [{"k": "x", "said": "6"}, {"k": "z", "said": "7"}]
        assert update.changes["key"].to_pylist()[-2:] == [REGISTRY_KEY, STATE_KEY]
        application.targets.forget([SOURCE])
    assert max(seen) == 2
    seen.clear()
    with pytest.raises(StateError, match="'sum': a newer release has added its field 'text'"):
        application.batch(number, old, [("y", 1)], 10)
    application.with_disk()  # which has the changelog alone
    application.targets.forget([SOURCE])
    update, _ = application.batch(text, new, [("y", 4)], 10)
    assert (update.results.to_pylist(), seen) == ([{"k": "y", "said": "6"}], []), "it is called once"


def test_a_copy_that_has_a_part_of_the_change_says_nothing_of_its_entries(tmp_path: Path) -> None:
    log = Log()
    application = Application(log, tmp_path)
    of = operator({"a": "count(*)", "b": "sum(n)"})
    update, _ = application.batch(of, definition_of(of, COLUMNS), [("x", 1), ("y", 2)], 0)
    log.write(update.changes, committed=True)
    of = operator({"b": "sum(n)", "a": "count(*)"})
    update, _ = application.batch(of, definition_of(of, COLUMNS), [("z", 3)], 5)
    before = len(log.records)
    log.write(update.changes, committed=True)
    said = []
    for end in range(before, len(log.records) + 1):
        place = Place(str(tmp_path / f"copy {end}"), LOG, "id")
        with place.open("0_0") as store:
            catch_up(store, StoreTarget(SOURCE, 0, end, {}, None), log.fetch)
            said.append(type(entries_of(store)) is not HexEntries)
            if said[-1]:
                entries = entries_of(store)
                rows = {row["k"]: (row["a"], row["b"]) for row in entries.rows([entries.read(store, Span())])}
                whole = {"x": (1, 1), "y": (1, 2)}
                assert rows == (whole if end == before else whole | {"z": (1, 3)})
    assert said == [True, *[False] * (len(said) - 3), True, True], "the marker of the transaction ends it"


@pytest.mark.parametrize("is_aborted_last", [False, True])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_copy_far_behind_shows_no_entry_under_another_meaning(
    tmp_path: Path, is_compacted: bool, is_aborted_last: bool
) -> None:
    log = Log()
    application, place = Application(log, tmp_path), Place(str(tmp_path / "copy"), LOG, "id")
    first, second = operator({"a": "count(*)", "b": "sum(n)"}), operator({"b": "sum(n)", "a": "count(*)"})
    releases = [first, first, second, second]
    for batch, rows in enumerate([[("v", 7), ("x", 1), ("y", 2)], [("y", 5)], [("z", 3)], ONE]):
        of = releases[batch]
        update, _ = application.batch(of, definition_of(of, COLUMNS), rows, 5 * batch)
        log.write(update.changes, committed=True)
        application.targets.forget([SOURCE])
        if batch == 0:
            with place.open("0_0") as store:
                catch_up(store, StoreTarget(SOURCE, 0, len(log.records), {}, None), log.fetch)
    if is_aborted_last:
        log.write(update.changes, committed=False)
    if is_compacted:
        last = {entry[0]: at for at, entry in enumerate(log.records) if entry is not None}
        log.records = [entry if entry and last[entry[0]] == at else None for at, entry in enumerate(log.records)]
    seen, end = [], len(log.records)
    with place.open("0_0") as store:
        while store.position().changelog < end:
            catch_up(store, StoreTarget(SOURCE, 0, end, {}, None), log.fetch, until=0.0)  # two records at a time
            entries = entries_of(store)
            if not isinstance(entries, HexEntries):
                seen.append({row["k"]: (row["a"], row["b"]) for row in entries.rows([entries.read(store, Span())])})
    assert seen[-1] == {"v": (1, 7), "x": (2, 2), "y": (3, 9), "z": (1, 3)}
    possible = {"v": {(1, 7)}, "x": {(1, 1), (2, 2)}, "y": {(1, 2), (2, 7), (3, 9)}, "z": {(1, 3)}}
    assert all(row in possible[key] for rows in seen for key, row in rows.items()), seen


def test_a_release_that_was_left_stops_at_its_next_batch_and_writes_nothing(tmp_path: Path) -> None:
    log = Log()
    old, new = Application(log, tmp_path), Application(log, tmp_path)
    first, second = operator({"c": "count(*)"}), operator({"c": "count(*)", "s": "sum(n)"})
    at = 0
    for application, of in ((old, first), (new, second)):
        update, _ = application.batch(of, definition_of(of, COLUMNS), [("x", 1)], at)
        log.write(update.changes, committed=True)
        at += 5
    before = list(log.records)
    old.targets.forget([SOURCE])
    with pytest.raises(OtherDefinitionError, match="a newer release has changed its state"):
        old.batch(first, definition_of(first, COLUMNS), [("x", 1)], at)
    assert log.records == before
    update, _ = old.batch(first, definition_of(first, COLUMNS, {}), [("x", 1)], at)
    assert update.results.to_pylist() == [{"k": "x", "c": 3}], "it may be taken back"
    noted = dict(zip(*(update.changes[name].to_pylist() for name in ("key", "value")), strict=True))[STATE_KEY]
    assert Noted.decode(noted).definition.document == definition_of(first, COLUMNS).document
