"""Few rows of several tasks, processed together: the same records, reports and stores as one task after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Split
from roster.pipeline.errors import FunctionError, SinkFencedError
from roster.pipeline.tasks.reader import ReaderConfig
from roster.records.native import HASH, compiled
from roster.state.aggregate import Aggregation
from roster.state.definition import STATE_KEY
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.tasks import task as module
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan
from roster.stateful.tasks.task import StatefulTask, StoreKind, TopologyPlan
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us"))])
PARTS = {"n": aggregate_of("count(*)"), "most": aggregate_of("max(n)"), "first": aggregate_of("first(n)")}
TOTALS = Aggregation(("k",), PARTS | {"text": aggregate_of("min(k)")})
WINDOWS = WindowedAggregation(("k",), PARTS, Window("at", timedelta(hours=1)), final=False)
rows = st.tuples(st.none() | st.sampled_from("abc"), st.none() | st.integers(0, 9), st.integers(0, 10))
batches = st.lists(st.lists(st.lists(rows, max_size=5), min_size=3, max_size=3), min_size=1, max_size=4)


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    """Rows are as if they had been read ahead."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "read_together", lambda *_: contextlib.nullcontext())
        patched.setattr(module, "are_held", lambda _: True)
        yield


class Given(StatefulTask):
    """Has these rows of each partition."""

    def _own_rows(self, plan: Any, numbers: Sequence[int], look: Any, aside: Any) -> Iterator[pa.RecordBatch]:
        for number in numbers:
            values = [(k, n, at * 600_000_000) for k, n, at in self.rows[number]]  # type: ignore[attr-defined]
            columns = zip(*values, strict=True) if values else ([], [], [])
            yield pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)

    def _fetch(self, partition: Any, start: int, end: int) -> Iterator[pa.RecordBatch]:
        assert not partition, "a store that has its last batch reads nothing"
        return iter(())


class Collected(dict[Any, Any]):
    """In place of an accumulator."""

    def add(self, term: Mapping[Any, Any]) -> None:
        self.update(term)


class Application:
    """Three tasks of an operator whose batches are all committed."""

    def __init__(self, operator: Any, folder: Path) -> None:
        node = OperatorNode(operator, SCHEMA, "s")
        plan = SubtopologyPlan(Subtopology(0, ("t",), ("s",)), (node,))
        definition = plan.definitions["s"]
        self.place = Place(str(folder), "c", "id", definition.is_ordered)
        self.work = TopologyPlan((plan,), {"s": StoreKind(self.place, definition)}, "out", loops=compiled(HASH))
        self.ends, self.tokens = [0] * 3, [None] * 3
        self.at = 0
        self.reports = Collected()

    def batch(self, of_tasks: Sequence[Any], **how: Any) -> list[Any]:
        """Return the records of a batch with these rows of each task, those of a partition in their order."""
        splits = [Split("t", number, self.at, self.at + 9) for number in range(3)]
        targets = {
            TaskId(0, n): [StoreTarget(TopicPartition("c", n), 0, self.ends[n], {"t": self.at}, self.tokens[n])]
            for n in range(3)
        }
        for name, fields in how.items():
            number = int(name[-1])
            targets[TaskId(0, number)] = [targets[TaskId(0, number)][0]._replace(**fields)]
        self.reports.clear()
        task: Any = Given(ReaderConfig("b:1", "g"), [splits], self.work, targets, self.reports)  # type: ignore[arg-type]
        task.rows = of_tasks
        records = [record for part in task.read([0]) for record in part.to_pylist()]
        for number in range(3):
            self.tokens[number] = self.reports[TaskId(0, number)][0].token
            changes = [r for r in records if (r["topic"], r["partition"]) == ("c", number)]
            assert changes[-1]["key"] == STATE_KEY
            self.ends[number] += len(changes) + 1
        self.at += 9
        return sorted(records, key=lambda r: (r["topic"], r["partition"] or 0, r["key"] or b"", r["value"]))

    @property
    def stores(self) -> list[Any]:
        """The entries of each store, with those that are pending."""
        found = []
        for number in range(3):
            with self.place.open(f"0_{number}") as store:
                pending = store.pending()
                assert pending is not None
                found.append((store.scan(), pending.changes(), store.position()))
        return found

    @property
    def told(self) -> dict[Any, Any]:
        """The reports without their tokens."""
        return {name: report._replace(token="") for name, (report,) in self.reports.items()}


@pytest.mark.parametrize("operator", [TOTALS, WINDOWS], ids=["totals", "windows"])
@given(batches)
@settings(max_examples=examples(15))
def test_tasks_together_do_what_each_does_alone(
    operator: Any, tmp_path_factory: pytest.TempPathFactory, of_batches: Any
) -> None:
    together, alone = (Application(operator, tmp_path_factory.mktemp(name)) for name in ("together", "alone"))
    for of_tasks in of_batches:
        records = together.batch(of_tasks)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "process_batches", None)
            patched.setattr(module, "_MOST_TOGETHER", -1)
            assert alone.batch(of_tasks) == records
        assert together.told == alone.told
        assert together.stores == alone.stores


ROWS = [[("a", 1, 0)], [("a", 2, 0), ("b", 1, 0)], []]


def test_no_more_than_a_few_are_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, process = list[int](), module.process_batches

    def counted(batches: Any, *given: Any) -> Any:
        at_once.append(len(batches))
        return process(batches, *given)

    monkeypatch.setattr(module, "process_batches", counted)
    application = Application(TOTALS, tmp_path)
    application.batch(ROWS)
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 2)
    application.batch(ROWS)
    for name, most in (("_MOST_BYTES", 8), ("_MOST_TOGETHER", 2 * 9 - 1)):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, most)
            records = application.batch(ROWS)
        assert [r["key"] for r in records if r["topic"] == "out"] == [b"a", b"a", b"b"]
    monkeypatch.setattr(module, "are_held", lambda _: False)
    application.batch(ROWS)
    assert at_once == [3, 2]


def test_a_task_that_replays_or_is_paused_sends_no_results(tmp_path: Path) -> None:
    records = Application(TOTALS, tmp_path).batch(ROWS, task_0={"is_replay": True}, task_2={"is_paused": True})
    assert [r["key"] for r in records if r["topic"] == "out"] == [b"a", b"b"]
    assert {r["partition"] for r in records if r["topic"] == "c"} == {0, 1, 2}


def test_a_damaged_store_is_made_anew_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    application = Application(TOTALS, tmp_path)
    for _ in range(3):
        records = application.batch(ROWS)
    heap = application.place.path("0_1") / "data" / "heap"
    heap.write_bytes(bytes(byte ^ (4 if number > 8 else 0) for number, byte in enumerate(heap.read_bytes())))
    monkeypatch.setattr(Given, "_fetch", lambda *_: iter(()))
    after = application.batch(ROWS)
    results = {(r["topic"], r["key"]): r["value"] for r in after}
    assert b'"n":1' in results["out", b"b"], "its log had no records here"
    assert len(after) == len(records)


def test_a_batch_that_begins_elsewhere_than_one_of_the_states_ends_is_fenced(tmp_path: Path) -> None:
    application = Application(TOTALS, tmp_path)
    application.batch(ROWS)
    with pytest.raises(SinkFencedError, match="the state up to offset"):
        application.batch(ROWS, task_1={"inputs": {"t": 1}})


def test_a_store_with_another_definition_is_named(tmp_path: Path) -> None:
    first, other = (
        Application(Aggregation(("k",), {"n": aggregate_of(text)}), tmp_path) for text in ("count(n)", "sum(n)")
    )
    first.batch(ROWS)
    other.ends, other.tokens, other.at = first.ends, first.tokens, first.at
    with pytest.raises(FunctionError, match="'s' of the group 'g', partition 0"):
        other.batch(ROWS)
