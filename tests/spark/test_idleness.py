"""Partitions without records: when their tasks run, to what stream time, and what closes, against a computation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.spark.batch import Batch, Owner, Range, StoreProgress
from roster.spark.state.changelogs import Changelog, Changelogs
from roster.spark.state.idleness import Idleness
from roster.spark.state.tasks.catch_up import StoreTarget, catch_up
from roster.spark.state.tasks.processing import process_batch
from roster.spark.state.tasks.subtopology import definition_of
from roster.state.aggregate_functions import Aggregate
from roster.state.lmdb_store import LmdbStore
from roster.state.sessions import SessionAggregation
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.spark.test_store_processing import Log

if TYPE_CHECKING:
    from collections.abc import Mapping

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
T0, T1, T2 = (TaskId(0, number) for number in range(3))


class Case:
    """An application with the three partitions of a topic; a partition is idle after 60 seconds."""

    def __init__(self, *, closing: tuple[int, ...] = (0,)) -> None:
        self.at = 1000.0
        changelogs = Changelogs([Changelog("g-s-changelog", "id", 3, Subtopology(0, ("t",), ("s",)))])
        self.idleness = Idleness(changelogs, closing, 60.0, now=lambda: self.at)
        self.idleness.took([P0, P1, P2])

    def due(self, *behind: TopicPartition, once: bool = False, owned: Any = (P0, P1, P2)) -> set[TopicPartition]:
        return set(self.idleness.due(owned, behind, once=once))

    def ran(self, stores: Mapping[TaskId, int | None], records: int = 0, changed: int = 1) -> dict[TaskId, int | None]:
        """Run a batch of these tasks, each with a store of so much stream time; return what they were given."""
        ranges = {TopicPartition("t", task.partition): Range(5, 5 + records) for task in stores}
        batch = Batch(0, Owner("g", 1, "m"), ranges)
        until = {task: time for task, (time,) in self.idleness.until(batch).items()}
        self.idleness.worked(
            batch, {task: [StoreProgress(3, 9, changed, stream_time_ms=time)] for task, time in stores.items()}
        )
        return until


def test_a_partition_without_records_goes_on_by_the_least_stream_time_of_those_with_records() -> None:
    case = Case()
    case.ran({T0: 5_000, T1: 7_000, T2: 9_000}, records=1)
    case.at += 59.9
    assert case.due() == set()
    case.ran({T1: 20_000, T2: 30_000}, records=1)
    case.at += 0.1
    assert case.due() == {P0}
    assert case.due(P0) == set(), "it has records to read"
    assert case.due(once=True) == set(), "a run up to the log ends does not wait"
    assert case.ran({T0: 5_000}) == {}, "nor does it close anything in a turn for timers"
    assert case.due() == {P0}
    assert case.ran({T0: 20_000}) == {T0: 20_000}
    case.ran({T1: 40_000, T2: 30_000}, records=1)
    assert case.due() == set(), "the next turn is as long after this one"
    case.at += 59
    case.ran({T1: 50_000, T2: 45_000}, records=1)
    case.at += 1
    assert case.due() == {P0}
    assert case.ran({T0: 45_000}) == {T0: 45_000}


def test_one_that_is_ahead_of_those_with_records_waits_for_them() -> None:
    case = Case()
    case.ran({T0: 50_000}, records=1)
    case.at += 100
    case.ran({T1: 40_000}, records=1)
    assert case.due(owned=(P0, P1)) == set()
    case.ran({T1: 50_001}, records=1)
    assert case.due(owned=(P0, P1)) == {P0}


def test_a_partition_with_records_to_read_is_not_idle_however_long_ago_its_last_batch_was() -> None:
    case = Case()
    case.ran({T0: 5_000, T1: 7_000}, records=1)
    case.at += 100
    assert case.due(P1, owned=(P0, P1)) == {P0}
    assert case.ran({T0: 7_000}) == {T0: 7_000}


def test_without_records_anywhere_each_goes_on_by_the_clock_until_a_turn_changes_nothing() -> None:
    case = Case()
    case.ran({T0: 5_000, T1: 9_000}, records=1)
    case.at += 60
    assert case.due(owned=(P0, P1)) == {P0, P1}
    assert case.ran({T0: 65_000, T1: 69_000}) == {T0: 65_000, T1: 69_000}
    case.at += 61.5
    assert case.due(owned=(P0, P1)) == {P0, P1}
    assert case.ran({T0: 126_500, T1: 69_000}, changed=0) == {T0: 126_500, T1: 130_500}
    case.at += 600
    assert case.due(owned=(P0, P1)) == set(), "nothing was open"
    case.ran({T1: 70_000}, records=1)
    case.at += 60
    assert case.due(owned=(P0, P1)) == {P1}


def test_a_task_that_is_taken_over_counts_from_then_and_looks_its_stream_time_up() -> None:
    case = Case()
    case.at += 60
    assert case.due() == {P0, P1, P2}
    assert case.ran({T0: 5_000, T1: None, T2: 9_000}, changed=0) == {}
    assert case.due() == {P0, P2}, "without any rows there is no time to go on from"
    assert case.ran({T0: 65_000, T2: 69_000}) == {T0: 65_000, T2: 69_000}
    case.idleness.took([P0])
    case.at += 60
    assert case.due(owned=(P0, P2)) == {P0, P2}
    assert case.ran({T0: 65_000, T2: 129_000}) == {T2: 129_000}


def test_turns_go_on_while_one_of_several_stores_waits_for_others() -> None:
    case = Case()

    def store(at: int | None, changed: int = 0) -> StoreProgress:
        return StoreProgress(3, 9, changed, stream_time_ms=at)

    def ran(task: TaskId, *stores: StoreProgress, records: int = 0) -> Any:
        batch = Batch(0, Owner("g", 1, "m"), {TopicPartition("t", task.partition): Range(5, 5 + records)})
        until = case.idleness.until(batch)
        case.idleness.worked(batch, {task: stores})
        return until

    ran(T0, store(5_000), store(9_000), store(None), records=1)
    case.at += 60
    ran(T1, store(6_000), store(8_000), store(None), records=1)
    assert case.due(owned=(P0, P1)) == {P0}
    assert ran(T0, store(5_000), store(9_000), store(None)) == {T0: [6_000, 9_000, None]}
    case.at += 59
    ran(T1, store(6_000), store(9_500), store(None), records=1)
    case.at += 1
    assert case.due(owned=(P0, P1)) == {P0}
    assert ran(T0, store(5_000), store(9_000), store(None)) == {T0: [6_000, 9_500, None]}
    case.at += 90
    assert case.due(P1, owned=(P0, P1)) == set()


def test_a_sub_topology_in_which_nothing_closes_has_no_turns() -> None:
    case = Case(closing=())
    case.ran({T0: 5_000}, records=1)
    case.at += 1000
    assert case.due(owned=(P0,)) == set()


EPOCH, SECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
SUMS = {"sum": Aggregate.parse("sum(n)"), "count": Aggregate.parse("count(*)")}
SIZE, GRACE = 6, 2
WINDOWS = WindowedAggregation(("k",), SUMS, Window("t", SIZE * SECOND, grace=GRACE * SECOND), final=True)
SESSIONS = SessionAggregation(("k",), SUMS, Window.session("t", SIZE * SECOND, grace=GRACE * SECOND), final=True)
Event = tuple[str, int, int]
"""A row: its key, number and second. Or the stream time of a partition without records: "", 0 and its second."""
ROW = st.tuples(st.sampled_from("ab"), st.integers(-9, 9), st.integers(0, 60))
EVENTS = st.lists(ROW | st.tuples(st.just(""), st.just(0), st.integers(0, 90)), max_size=20)
STEPS = st.lists(st.sampled_from(["go on", "cut", "abort", "other disk"]), min_size=20, max_size=20)


def plain(events: list[Event], *, sessions: bool) -> tuple[list[tuple[str, int, int, int, int]], int]:
    """Closed windows with key, start, end, sum and count, and the number of late rows; event by event."""
    now, late, closed = -(10**9), 0, list[Any]()
    opened: list[tuple[str, int, int, int, int]] = []
    for key, n, t in events:
        if not key and not opened:
            continue
        now = max(now, t)
        closed += [each for each in opened if each[2] + GRACE <= now]
        opened = [each for each in opened if each[2] + GRACE > now]
        if not key:
            continue
        start = t if sessions else t // SIZE * SIZE
        mine = (key, start, start + SIZE, n, 1)
        if mine[2] + GRACE <= now:
            late += 1
            continue
        touched = [each for each in opened if each[0] == key and each[1] < mine[2] and mine[1] < each[2]]
        opened = [each for each in opened if each not in touched]
        _, starts, ends, sums, counts = zip(mine, *touched, strict=True)
        opened.append((key, min(starts), max(ends), sum(sums), sum(counts)))
    return sorted(closed), late


@pytest.mark.parametrize("operator", [WINDOWS, SESSIONS])
@given(EVENTS, STEPS)
@settings(max_examples=examples(30))
def test_what_idle_partitions_close_is_closed_wherever_batches_are_cut_and_stores_restored(
    tmp_path_factory: pytest.TempPathFactory, operator: Any, events: list[Event], steps: list[str]
) -> None:
    disk, log, token, late, at = tmp_path_factory.mktemp("state"), Log(), None, 0, 0
    results: list[dict[str, Any]] = []
    definition = definition_of(operator, COLUMNS)
    store = LmdbStore(disk / "0")
    waiting: list[Event] = []

    def run(rows: list[Event], until: int | None, *, commits: bool) -> None:
        nonlocal token, late, at
        given = [{"k": k, "n": n, "t": EPOCH + t * SECOND} for k, n, t in rows]
        target = StoreTarget(
            TopicPartition("c", 0),
            0,
            len(log.records),
            {"t": at},
            token,
            idle_until=None if until is None else until * 1000,
        )
        table, inputs = pa.Table.from_pylist(given, schema=COLUMNS), {"t": at + len(rows)}
        update, report = process_batch(store, target, operator, definition, table, inputs, log.fetch)
        log.write(update.changes, committed=commits)
        if commits:
            token, late, at = report.token, late + update.late, at + len(rows)
            results.extend(update.results.to_pylist())
        else:
            token = None

    for number, (event, step) in enumerate(zip(events, steps, strict=False)):
        if event[0]:
            waiting.append(event)
        if waiting and (step == "cut" or not event[0]):
            run(waiting, None, commits=True)
            waiting = []
        if not event[0]:
            if step == "abort":
                run([], event[2] + 7, commits=False)
            run([], event[2], commits=True)
        if step == "other disk":
            store.close()
            store, token = LmdbStore(disk / str(number + 1)), None
    if waiting:
        run(waiting, None, commits=True)
    catch_up(store, StoreTarget(TopicPartition("c", 0), 0, len(log.records), {"t": at}, token), log.fetch)
    store.close()
    found = [
        (
            row["k"],
            *((row[name] - EPOCH) // SECOND for name in ("window_start", "window_end")),
            row["sum"],
            row["count"],
        )
        for row in results
    ]
    assert (sorted(found), late) == plain(events, sessions=operator is SESSIONS)


def test_rows_of_the_same_batch_come_before_the_stream_time_of_an_idle_partition(tmp_path: Any) -> None:
    log, target = Log(), StoreTarget(TopicPartition("c", 0), 0, 0, {"t": 0}, None, idle_until=90_000)
    table = pa.Table.from_pylist([{"k": "a", "n": 1, "t": EPOCH}], schema=COLUMNS)
    with LmdbStore(tmp_path) as store:
        update, report = process_batch(
            store, target, WINDOWS, definition_of(WINDOWS, COLUMNS), table, {"t": 1}, log.fetch
        )
    assert (update.late, len(update.results), report.stores[0].stream_time_ms) == (0, 0, 0)
