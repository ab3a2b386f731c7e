"""Reads of a running application's state against a plain dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.model import TopicPartition
from roster.spark.batch import Batch, Owner, Range
from roster.spark.errors import PipelineError
from roster.spark.state.queries import StateView, view_of
from roster.spark.state.runner import definition_of
from roster.spark.state.turn import Place, take_turn
from roster.spark.state.turns import Turns
from roster.state.aggregate import Aggregate, Aggregation
from roster.state.definition import Definition
from tests.spark.test_state_turns import Log
from tests.spark.test_upkeep import CHANGELOG, Case

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = pa.schema([("day", pa.int64()), ("name", pa.string())])
COUNTS = Aggregation(("day", "name"), {"n": Aggregate.parse("count(*)")})


class Task:
    """A task that takes turns, and the view of its application."""

    def __init__(self, directory: Path) -> None:
        self.log, self.place, self.at = Log(), Place(str(directory), "c", "id"), 0
        self.turns = Turns(self.log, CHANGELOG, 1.0)
        self.case = Case(dict.fromkeys(range(4), 0))
        self.case.join({})
        self.case.member.become([0], [1])
        definition = Definition(COUNTS.key_columns(COLUMNS), COUNTS.layout(COLUMNS))
        assert definition.encode() == definition_of(COUNTS, COLUMNS)
        self.view = StateView(self.place, definition, self.case.upkeep, self.turns.token)

    def batch(self, rows: list[tuple[int, str]], *, committed: bool = True, partition: int = 0) -> None:
        source = TopicPartition("t", partition)
        batch = Batch(0, Owner("g", 1, "m"), {source: Range(self.at, self.at + 5)})
        days, names = zip(*rows, strict=True)
        with self.place.open(f"0_{partition}") as store:
            turn = self.turns.prepare(batch)[partition]
            table = pa.table([pa.array(days), pa.array(names)], schema=COLUMNS)
            update, report = take_turn(store, turn, COUNTS, table, {"t": self.at + 5}, self.log.fetch)
        self.log.write(update.changes, committed=committed)
        if committed:
            self.turns.committed({partition: report.token}, batch)
            self.at += 5
        else:
            self.turns.forget([source])


def row(day: int, name: str, n: int) -> dict[str, Any]:
    return {"day": day, "name": name, "n": n}


def test_a_committed_batch_is_seen_before_it_is_applied_and_an_aborted_one_never(tmp_path: Path) -> None:
    task = Task(tmp_path)
    assert task.view.get(1, "a") is None
    task.batch([(1, "a"), (1, "b"), (2, "a")])
    assert task.view.get(1, "a") == row(1, "a", 1)
    task.batch([(1, "a")])
    task.batch([(1, "a")], committed=False)
    assert task.view.get(1, "a") == row(1, "a", 2)
    task.batch([(3, "c")])
    assert task.view.prefix() == [row(1, "a", 2), row(1, "b", 1), row(2, "a", 1), row(3, "c", 1)]
    assert task.view.prefix(1) == [row(1, "a", 2), row(1, "b", 1)]
    assert task.view.range((1, "b"), (3,)) == [row(1, "b", 1), row(2, "a", 1)]
    assert task.view.range((2,)) == [row(2, "a", 1), row(3, "c", 1)]
    assert task.view.prefix(limit=2) == [row(1, "a", 2), row(1, "b", 1)]


def test_standby_copies_answer_when_they_are_asked_and_say_how_far_behind_they_are(tmp_path: Path) -> None:
    task = Task(tmp_path)
    task.batch([(1, "a")], partition=1)
    task.turns.forget([TopicPartition("t", 1)])
    with task.place.open("0_1") as store:
        pending = store.pending()
        assert pending is not None
        store.settle(pending.token)
    task.case.logs.ends[1] = 7
    task.case.upkeep.gaps()
    assert (task.view.tasks, task.view.behind) == ({"0_0"}, {"0_1": 7})
    assert (task.view.get(1, "a"), task.view.get(1, "a", stale=True)) == (None, row(1, "a", 1))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((1,), "1 values given. The columns are day, name"),
        (("x", "a"), "does not fit"),
        ((1, "a", 2), "3 values given"),
    ],
)
def test_a_key_that_does_not_fit_is_named(tmp_path: Path, key: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Task(tmp_path).view.get(*key)


def test_a_store_that_cannot_be_read_here_is_named(tmp_path: Path) -> None:
    view = Task(tmp_path).view
    assert view_of("totals", ("totals", view), "local[2]") is view
    for known, master, message in [
        (None, "local", "no stateful pipeline is running"),
        (("others", view), "local", "there is no store 'totals'. The pipeline has 'others'"),
        (("totals", view), "spark://h:7077", "the stores lie on the executors' hosts"),
    ]:
        with pytest.raises(PipelineError, match=message):
            view_of("totals", known, master)
