"""Reads of processors' and joins' state against plain dictionaries: in two applications, over HTTP, from copies."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.errors import PipelineError
from roster.spark.queries import view as view_module
from roster.spark.queries.client import decoded, encoded
from roster.spark.queries.pages import answer
from roster.spark.queries.store_reads import Found
from roster.spark.queries.view import StateUnavailableError
from roster.state.definition import json_text
from roster.state.entries import Read
from roster.state.processor.batch import Plan, take
from roster.state.processor.states import ListState, MapState, ValueState
from tests.examples_tried import some
from tests.spark.queries.test_queries import Application, Group, settled
from tests.state.test_stream_join import COLUMNS, left_row, operator, right_row, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from roster.state.aggregate import Update

NOTES = pa.schema([("name", pa.string()), ("n", pa.int64())])
NUMBER, TAG = pa.schema([("n", pa.int64())]), pa.schema([("tag", pa.string())])
NAMES = ("count", "last", "tags")


DESCRIBED = {
    "count": {"value": {"n": "int64"}},
    "last": {"list_element": {"n": "int64"}},
    "tags": {"user_map_key": {"tag": "string"}, "user_map_value": {"n": "int64"}},
}


@dataclass(frozen=True)
class Notes:
    """Counts numbers by name, lists the last of them, tags them; a name starts anew with a negative number."""

    order: tuple[str, ...] = NAMES
    result_keys: tuple[str, ...] = ("name",)
    has_variables: bool = True

    kept: ClassVar[Mapping[str, Any]] = {"operator": "notes"}

    @staticmethod
    def key_columns(columns: pa.Schema) -> pa.Schema:
        return pa.schema([columns.field("name")])

    @staticmethod
    def layout(_: pa.Schema) -> None:
        return None

    def __call__(self, table: pa.Table, store: Any) -> Update:
        return take(table, store, Plan(("name",)), _Code(self.order), clock=lambda: 0)


class _Code:
    def __init__(self, order: tuple[str, ...]) -> None:
        self._order = order
        self._of: dict[str, Any] = {}

    def open(self, state: Any, table: pa.Table) -> None:
        self._table = table
        declare = {
            "count": lambda: state.value(ValueState, "count", NUMBER),
            "last": lambda: state.list(ListState, "last", NUMBER),
            "tags": lambda: state.map(MapState, "tags", TAG, NUMBER),
        }
        self._of = {name: declare[name]() for name in self._order}

    def rows(self, key: Any, begin: int, end: int, now: Any, *, is_new: bool) -> None:
        count, last, tags = (self._of[name] for name in NAMES)
        for n in self._table["n"].slice(begin, end - begin).to_pylist():
            if n < 0:
                for state in (count, last, tags):
                    state.clear()
            else:
                count.update((count.get()[0] + 1 if count.exists() else 1,))
                last.put([*list(last.get())[-2:], (n,)])
                tags.updateValue((f"t{n % 3}",), (n,))
                if n == 5 and tags.containsKey(("t0",)):
                    tags.removeKey(("t0",))

    def timer(self, key: Any, at: int, now: Any) -> None:
        raise AssertionError

    @staticmethod
    def threshold(now: int) -> int:
        return now

    def close(self) -> pa.Table:
        return NOTES.empty_table()


class Plain:
    """The same in dictionaries, with the rows that are to be found."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.last: dict[str, list[int]] = {}
        self.tags: dict[str, dict[str, int]] = {}
        self.order: dict[str, tuple[str, ...]] = {}

    def take(self, rows: list[tuple[str, int]], order: tuple[str, ...]) -> None:
        for name, n in rows:
            self.order[name] = order
            if n < 0:
                for each in (self.counts, self.last, self.tags):
                    each.pop(name, None)  # type: ignore[attr-defined]
                continue
            self.counts[name] = self.counts.get(name, 0) + 1
            self.last[name] = [*self.last.get(name, []), n][-3:]
            tags = self.tags.setdefault(name, {})
            tags[f"t{n % 3}"] = n
            if n == 5:
                tags.pop("t0", None)

    def rows(self, names: Any = None, variable: str | None = None) -> list[dict[str, Any]]:
        found = []
        for name in sorted(self.counts if names is None else names):
            for each in self.order.get(name, ()):
                of = {"variable": each, "key": {"name": name}}
                if variable in (None, each) and name in self.counts:
                    found += {
                        "count": [of | {"value": {"n": self.counts[name]}}],
                        "last": [of | {"list_element": {"n": n}} for n in self.last[name]],
                        "tags": [
                            of | {"user_map_key": {"tag": tag}, "user_map_value": {"n": n}}
                            for tag, n in sorted(self.tags[name].items())
                        ],
                    }[each]
        return found


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "PATIENCE", 0.0)


def notes(rows: list[tuple[str, int]]) -> pa.Table:
    names, numbers = zip(*rows, strict=True)
    return pa.table([pa.array(names), pa.array(numbers)], schema=NOTES)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Two applications, of which the second has declared the variables in another order."""
    with contextlib.ExitStack() as opened:
        made = Group(tmp_path, opened, Notes(), NOTES)
        made.two.operator = Notes(NAMES[::-1])
        yield made


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", some(range(6), quick=2))
def test_each_application_has_the_variables_of_all_tasks_as_of_their_last_committed_batch(
    group: Group, seed: int
) -> None:
    chance, plain = random.Random(seed), Plain()
    assert group.one.view.prefix() == group.one.view.prefix(variable="sum") == [], "no variable is known yet"
    assert group.one.view.get("a") is None
    for number in range(4):
        for application, partition, names in ((group.one, 0, "ac"), (group.two, 2, "bd")):
            rows = [(chance.choice(names), chance.randrange(-1, 12)) for _ in range(chance.randrange(1, 9))]
            committed = number == 0 or chance.random() < 0.7
            application.turn(notes(rows), committed=committed, partition=partition)
            if committed:
                plain.take(rows, application.operator.order)  # type: ignore[attr-defined]
        for host, view in enumerate((group.one.view, group.two.view)):
            assert view.prefix() == view.range() == plain.rows()
            assert view.range(("b",), ("d",)) == plain.rows("bc")
            assert view.prefix("c", variable="last") == plain.rows("c", "last")
            for name in "abcdx":
                found = group.ask(f"/stores/totals/prefix?key={name}", host)
                assert found == (200, {"rows": plain.rows(name), "behind": {}})
                row = view.get(name, variable="count")
                assert [row] == (plain.rows(name, "count") or [None])
                status, document = group.ask(f"/stores/totals/get?key={name}&variable=count", host)
                assert (status, document.get("row")) == (404 if row is None else 200, row)
            (described,) = group.ask("/stores", host)[1]["stores"]
            assert described["variables"] == DESCRIBED
            of_tags = plain.rows(variable="tags")
            for limit in (1, 2, 5):
                assert view.prefix(variable="tags", limit=limit) == of_tags[:limit]
                found = group.ask(f"/stores/totals/range?variable=tags&limit={limit}&start=b", host)
                assert found[1]["rows"] == plain.rows("bcd", "tags")[:limit]


def test_an_entry_counts_once_for_a_limit_however_many_rows_it_has(group: Group) -> None:
    group.one.turn(notes([("a", 1), ("a", 2), ("a", 4), ("c", 1)]))
    rows = group.two.view.prefix(limit=2)
    assert [(row["key"]["name"], row["variable"]) for row in rows] == [("a", "count")] + 3 * [("a", "last")]
    assert group.two.view.prefix(limit=4)[:4] == rows
    assert len(group.two.view.prefix(limit=5)) == 4 + 2 + 1


def test_copies_of_a_task_answer_with_their_own_list_of_variables(group: Group) -> None:
    group.two.turn(notes([("a", 1), ("a", 2)]), partition=1)
    group.two.targets.forget([TopicPartition("t", 1)])
    settled(group.two, 1)
    group.two.case.logs.ends[1] = 9
    group.two.case.copies.gaps()
    group.one.case.member.become([0])
    group.placed()
    with pytest.raises(StateUnavailableError, match="task 0_1: it is moving"):
        group.one.view.get("a", variable="count")
    row = {"variable": "count", "key": {"name": "a"}, "value": {"n": 2}}
    for number in (0, 1):
        target = "/stores/totals/get?key=a&variable=count&stale=true"
        assert group.ask(target, number) == (200, {"row": row, "behind": {"0_1": 9}})


def test_of_two_copies_the_one_that_is_less_behind_is_read() -> None:
    task, registry = TaskId(0, 1), b"{}"
    far = Found({task: Read([(b"a", b"1"), (b"b", b"1")], registry)}, {task: 9})
    near = Found({task: Read([(b"a", b"2")], registry), TaskId(0, 0): Read([])}, {task: 2}, {TaskId(0, 2): "gone"})
    for first, second in ((far, near), (near, far)):
        found = Found()
        for each in (first, second):
            found.add(decoded(encoded(each)))
        assert (found.reads, found.behind, found.problems) == (near.reads, near.behind, near.problems)


@pytest.mark.parametrize(
    ("target", "field", "problem"),
    [
        ("get?key=a", "variable", "a key has rows of each variable. Name one of count, last, tags, or use prefix"),
        ("get?key=a&variable=tags", "variable", "'tags' is a map, of several rows. Use prefix"),
        ("get?key=a&variable=last", "variable", "'last' is a list, of several rows. Use prefix"),
        ("get?key=x&variable=sum", "variable", "there is no variable 'sum'. The store has count, last, tags"),
        ("prefix?variable=sum", "variable", "there is no variable 'sum'. The store has count, last, tags"),
        ("range?variable=", "variable", "there is no variable ''. The store has count, last, tags"),
        ("prefix?variable=count&variable=last", "variable", "it is given 2 times. Give it once"),
        ("prefix?side=left", "side", "the store has no sides. Use variable"),
        ("prefix?key=a&key=b", "key", "2 values given. The columns are name"),
        ("get?variable=count", "key", "0 values given. The columns are name"),
    ],
)
def test_a_query_that_does_not_fit_a_processor_says_what_does(
    tmp_path: Path, target: str, field: str, problem: str
) -> None:
    one = Application(tmp_path, operator=Notes(), columns=NOTES)
    one.turn(notes([("a", 1)]))
    status, document = answer(f"/stores/totals/{target}", {"totals": one.served})
    error = document["error"]
    assert (status, error["field"], f"{error['problem']}. {error['fix']}") == (400, field, problem)


def test_parts_are_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"variable: the store has no variables\. Leave it out"):
        Application(tmp_path).view.get(1, "a", variable="count")


def test_a_key_in_two_tasks_is_not_taken_for_one(tmp_path: Path) -> None:
    one = Application(tmp_path)
    one.batch([(1, "a")])
    settled(one, 0)
    one.log.records.clear()
    one.at = 0
    one.batch([(1, "a"), (1, "a")], partition=1)
    rows = [{"day": 1, "name": "a", "n": n} for n in (1, 2)]
    assert one.view.prefix(1, "a", stale=True) == rows
    with pytest.raises(PipelineError, match=r"partition: the key is in the tasks 0_0, 0_1\. Name one of them"):
        one.view.get(1, "a", stale=True)
    assert one.view.get(1, "a", stale=True, partition=1) == rows[1]


def test_rows_that_wait_for_partners_are_asked_for_by_key_and_side(tmp_path: Path) -> None:
    sent = [(False, "a", 1, 1), (True, "b", 9, 2), (False, "b", 3, 3), (True, "a", 30, 1), (False, "a", 31, 2)]
    with contextlib.ExitStack() as opened:
        group = Group(tmp_path, opened, operator(4, 99, "left"), COLUMNS)
        for each in sent:
            application, partition = (group.one, 0) if each[1] == "a" else (group.two, 2)
            application.turn(table_of([each]), partition=partition)

        def rows(key: str, side: str) -> list[dict[str, Any]]:
            make = left_row if side == "left" else right_row
            found = [make(*each[1:]) for each in sent if each[1] == key and each[0] == (side == "right")]
            return [{"side": side, "key": {"k": key}, "value": value} for value in found]

        everything = [row for key in "ab" for side in ("left", "right") for row in rows(key, side)]
        for number, view in enumerate((group.one.view, group.two.view)):
            assert view.prefix() == everything
            assert view.prefix("a", side="left") == rows("a", "left")
            assert view.range(("b",), side="right") == rows("b", "right")
            assert view.prefix(limit=3) == everything[:3]
            assert [view.get("b", side="left"), view.get("c")] == [rows("b", "left")[0], None]
            with pytest.raises(PipelineError, match=r"get: the key has 2 rows\. Use prefix"):
                view.get("b")
            with pytest.raises(PipelineError, match=r"side: 'top' is not possible\. Use 'left' or 'right'"):
                view.prefix(side="top")
            with pytest.raises(PipelineError, match=r"variable: the store has no variables\. Use side"):
                view.prefix(variable="count")
            (described,) = group.ask("/stores", number)[1]["stores"]
            assert described["sides"]["left"] == {"value": {"k": "string", "t": "timestamp[us, tz=UTC]", "n": "int64"}}
            status, document = group.ask("/stores/totals/prefix?key=a&side=right", number)
            assert (status, json_text(document["rows"])) == (200, json_text(rows("a", "right")))
