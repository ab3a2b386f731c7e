"""Partitions without records: when their tasks run, to what stream time, and what closes, against a computation."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range, StoreProgress
from roster.spark.processor.code import Given
from roster.spark.processor.operator import ProcessorOperator
from roster.state.deduplicate import Deduplication
from roster.state.event_time import STREAM_TIME_KEY
from roster.state.lmdb_store import LmdbStore
from roster.state.processor.batch import Plan, TimeMode
from roster.state.sessions import SessionAggregation
from roster.state.source_times import DELAY, NOTICE, SOURCE, Notice
from roster.state.source_times import labelled as with_labels
from roster.state.stream_join import StreamJoin, in_columns, joined_columns
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.changelogs import Changelog, Changelogs
from roster.stateful.due_tasks import Idleness, TaskRun
from roster.stateful.tasks.by_source import by_source
from roster.stateful.tasks.catch_up import StoreTarget, catch_up
from roster.stateful.tasks.processing import process_batch
from roster.stateful.tasks.subtopology import definition_of
from tests.examples_tried import examples
from tests.spark.apps.timers import COLUMNS as TIMED
from tests.spark.apps.timers import OUTPUT, Reminder
from tests.state.aggregate_texts import aggregate_of
from tests.stateful.test_store_processing import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
U0, U1 = (TopicPartition("u", number) for number in range(2))
T0, T1, T2 = (TaskId(0, number) for number in range(3))


class Case:
    """An application with the three partitions of a topic; a partition is idle after 60 seconds."""

    def __init__(self, joined: Mapping[int, Sequence[str | None]] = {0: [None]}) -> None:
        self.at = 1000.0
        sources = ("t", *(topic for topic in {*joined.get(0, ())} if topic is not None))
        changelogs = Changelogs([Changelog("g-s-changelog", "id", 3, Subtopology(0, sources, ("s",)))])
        self.behind = set[int]()
        """Sub-topologies in front of which something is left to read."""
        self.idleness = Idleness(changelogs, joined, 60.0, self.behind.intersection, now=lambda: self.at)
        self.idleness.assigned([P0, P1, P2])

    def due(self, *behind: TopicPartition, once: bool = False, owned: Any = (P0, P1, P2)) -> set[TopicPartition]:
        return set(self.idleness.due(owned, behind, once=once))

    def ran(
        self,
        stores: Mapping[TaskId, int | None],
        records: int = 0,
        changed: int = 1,
        told: Collection[TaskId] = (),
        held_by: str | None = None,
    ) -> dict[TaskId, int | None]:
        """Run a batch of these tasks, each with a store of so much stream time; return what they were given."""
        ranges = {TopicPartition("t", task.partition): Range(5, 5 + records) for task in stores}
        batch = Batch(0, Owner("g", 1, "m"), ranges)
        until = {task: time for task, ((time,),) in self.idleness.times_to_give(batch).items()}
        progress = {
            task: [StoreProgress(3, 9, changed, stream_time_ms=time, held_by=held_by)] for task, time in stores.items()
        }
        self.idleness.ran(batch, {task: TaskRun(of, None, task in told) for task, of in progress.items()})
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


def test_notices_of_other_tasks_are_no_records() -> None:
    case = Case()
    case.ran({T0: 5_000, T1: 7_000}, records=1)
    for second in range(1, 60):
        case.at += 1
        case.ran({T0: 5_000 + 10 * second}, records=1, told={T0})
    case.at += 1
    assert case.due(owned=(P0, P1)) == {P0, P1}
    assert case.ran({T0: 6_590, T1: 67_000}) == {T0: 5_590 + 1_000, T1: 67_000}, "by the clock since it was told"


def test_a_task_is_not_idle_while_a_source_behind_a_repartition_holds_it_back() -> None:
    case = Case()
    case.ran({T0: 5_000}, records=1, held_by="17")
    case.ran({T1: 4_000}, records=1, held_by="")
    case.at += 60
    assert case.due(owned=(P0, P1)) == {P1}
    assert case.ran({T1: 5_000}, held_by="") == {T1: 5_000}, "the time of the one that is held back"
    case.at += 60
    assert case.due(owned=(P0, P1)) == set()
    case.ran({T0: 6_000}, records=1, told={T0}, held_by="")
    case.at += 60
    assert case.due(owned=(P0, P1)) == {P0, P1}
    assert case.ran({T0: 66_000, T1: 125_000}, held_by="") == {T0: 66_000, T1: 125_000}


def test_a_task_is_not_idle_while_anything_is_left_to_read_in_front_of_its_repartition() -> None:
    case = Case()
    case.ran({T0: 5_000, T1: 7_000}, records=1)
    case.at += 60
    case.behind.add(0)
    assert case.due(owned=(P0, P1)) == set(), "its application has died"
    case.behind.clear()
    case.at += 59
    assert case.due(owned=(P0, P1)) == set()
    case.at += 1
    assert case.due(owned=(P0, P1)) == {P0, P1}
    assert case.ran({T0: 65_000, T1: 67_000}) == {T0: 65_000, T1: 67_000}, "by the clock since nothing is left"


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
    case.idleness.assigned([P0])
    case.at += 60
    assert case.due(owned=(P0, P2)) == {P0, P2}
    assert case.ran({T0: 65_000, T2: 129_000}) == {T2: 129_000}


def test_turns_go_on_while_one_of_several_stores_waits_for_others() -> None:
    case = Case({0: [None, None, None]})

    def store(at: int | None, changed: int = 0) -> StoreProgress:
        return StoreProgress(3, 9, changed, stream_time_ms=at)

    def ran(task: TaskId, *stores: StoreProgress, records: int = 0) -> Any:
        batch = Batch(0, Owner("g", 1, "m"), {TopicPartition("t", task.partition): Range(5, 5 + records)})
        until = case.idleness.times_to_give(batch)
        case.idleness.ran(batch, {task: TaskRun(stores)})
        return until

    ran(T0, store(5_000), store(9_000), store(None), records=1)
    case.at += 60
    ran(T1, store(6_000), store(8_000), store(None), records=1)
    assert case.due(owned=(P0, P1)) == {P0}
    assert ran(T0, store(5_000), store(9_000), store(None)) == {T0: [(6_000,), (9_000,), (None,)]}
    case.at += 59
    ran(T1, store(6_000), store(9_500), store(None), records=1)
    case.at += 1
    assert case.due(owned=(P0, P1)) == {P0}
    assert ran(T0, store(5_000), store(9_000), store(None)) == {T0: [(6_000,), (9_500,), (None,)]}
    case.at += 90
    assert case.due(P1, owned=(P0, P1)) == set()


def test_a_sub_topology_in_which_nothing_closes_has_no_turns() -> None:
    case = Case({})
    case.ran({T0: 5_000}, records=1)
    case.at += 1000
    assert case.due(owned=(P0,)) == set()


class Joined(Case):
    """Likewise, with a join of the topic `u`, of which the application owns the first two partitions."""

    def __init__(self) -> None:
        super().__init__({0: ["u"]})

    def due(self, *behind: TopicPartition, once: bool = False, owned: Any = (P0, U0, P1, U1)) -> set[TopicPartition]:
        return super().due(*behind, once=once, owned=owned)

    def ran(
        self, stores: Mapping[TaskId, tuple[int | None, int | None]], read: str = "", changed: int = 1
    ) -> dict[TaskId, Any]:  # type: ignore[override]
        """Run a batch of these tasks that reads the topics in `read`; return what both sides were given."""
        ranges = {TopicPartition(topic, task.partition): Range(5, 6) for task in stores for topic in read}
        batch = Batch(0, Owner("g", 1, "m"), ranges)
        until = {task: times for task, (times,) in self.idleness.times_to_give(batch).items()}
        done = {
            task: [StoreProgress(3, 9, changed, stream_time_ms=left, other_time_ms=right)]
            for task, (left, right) in stores.items()
        }
        self.idleness.ran(batch, {task: TaskRun(of) for task, of in done.items()})
        return until


def test_a_side_of_a_join_that_never_has_a_record_goes_by_the_other_side() -> None:
    case = Joined()
    case.at += 30
    assert case.ran({T0: (5_000, None), T1: (3_000, None)}, "t") == {}
    case.at += 30
    assert case.due(P0) == {U0, U1}
    assert case.ran({T0: (6_000, 3_000), T1: (3_000, 3_000)}, "t") == {T0: (None, 3_000), T1: (None, 3_000)}, (
        "records of the one side and the stream time of the other are in one batch"
    )
    case.at += 59
    case.ran({T0: (9_000, 3_000), T1: (8_000, 3_000)}, "t")
    case.at += 1
    assert case.due() == {U0, U1}
    assert case.due(U0) == set(), "it has records to read, and holds back the others"


def test_without_records_anywhere_both_sides_of_a_join_go_on_from_the_later_one() -> None:
    case = Joined()
    case.ran({T0: (5_000, None), T1: (500, 3_000)}, "tu")
    case.at += 60
    assert case.due() == {P0, U0, P1, U1}
    assert case.ran({T0: (65_000, 65_000), T1: (63_000, 63_000)}) == {T0: (65_000, 65_000), T1: (63_000, 63_000)}
    case.at += 60
    assert case.due() == {P0, U0, P1, U1}
    assert case.ran({T0: (65_000, 65_000), T1: (123_000, 123_000)}, changed=0)[T0] == (125_000, 125_000)
    case.at += 1000
    assert case.due() == set(), "nothing was kept any more"
    case.ran({T0: (66_000, 65_000)}, "t")
    case.at += 59
    assert case.due() == set()
    case.at += 1
    assert case.due() == {P0, U0}, "a record of either side makes both wait again"
    assert case.ran({T0: (126_000, 126_000)}) == {T0: (126_000, 126_000)}


def test_a_batch_that_is_not_committed_says_nothing_of_either_side() -> None:
    case = Joined()
    case.ran({T0: (5_000, 4_000)}, "tu")
    case.ran({T0: (9_000, 4_000)}, "t")
    case.idleness.aborted(Batch(0, Owner("g", 1, "m"), {P0: Range(5, 6)}))
    case.at += 60
    assert case.due(owned=(P0, U0)) == {P0, U0}
    assert case.ran({T0: (5_000, 4_000)}) == {}, "it looks both up"
    assert case.due(owned=(P0, U0)) == {P0, U0}
    assert case.ran({T0: (65_000, 65_000)}) == {T0: (65_000, 65_000)}


EPOCH, SECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
SUMS = {"sum": aggregate_of("sum(n)"), "count": aggregate_of("count(*)")}
SIZE, GRACE = 6, 2
WINDOWS = WindowedAggregation(("k",), SUMS, Window("t", SIZE * SECOND, grace=GRACE * SECOND), final=True)
SESSIONS = SessionAggregation(("k",), SUMS, Window.session("t", SIZE * SECOND, grace=GRACE * SECOND), final=True)
ROW = st.tuples(st.sampled_from("ab"), st.integers(-9, 9), st.integers(0, 60))
STEPS = st.lists(st.sampled_from(["go on", "cut", "beside", "abort", "other disk"]), min_size=20, max_size=20)


class Idle(NamedTuple):
    """Seconds of the stream time that each side of a store gets."""

    until: tuple[int | None, ...]


def idle(sides: int = 1) -> st.SearchStrategy[Idle]:
    times = st.tuples(*[st.integers(0, 90) if sides == 1 else st.none() | st.integers(0, 90)] * sides)
    return times.filter(any).map(Idle)


class Replay:
    """A task with its store, and what may befall its batches."""

    def __init__(self, disk: Path, operator: Any, columns: pa.Schema, table: Callable[[list[Any]], pa.Table]) -> None:
        self._disk, self._operator, self._table, self.left = disk, operator, table, list[Any]()
        self._definition = definition_of(operator, columns)
        self._log, self._token, self._at = Log(), None, 0
        self.late, self.results, self.times = 0, list[dict[str, Any]](), list[tuple[int | None, int | None]]()
        """Late rows, results, and the stream times behind each batch with idle sides; `left` is kept at the end."""

    def run(self, events: list[Any], steps: list[str], *, beside: Callable[[Idle, list[Any]], bool]) -> None:
        """Run batches of these rows and idle times. beside: whether an idle time may come with rows in one batch."""
        store, waiting = LmdbStore(self._disk / "0"), list[Any]()
        for number, (event, step) in enumerate(zip(events, steps, strict=False)):
            if not isinstance(event, Idle):
                waiting.append(event)
                if step == "cut":
                    self._batch(store, waiting)
                    waiting = []
            else:
                if waiting and not (step == "beside" and beside(event, waiting)):
                    self._batch(store, waiting)
                    waiting = []
                if step == "abort":
                    later = tuple(None if at is None else at + 7 for at in event.until)
                    self._batch(store, waiting, later, commits=False)
                self._batch(store, waiting, event.until)
                waiting = []
            if step == "other disk":
                store.close()
                store, self._token = LmdbStore(self._disk / str(number + 1)), None
        self._batch(store, waiting)
        catch_up(store, self._target(()), self._log.fetch)
        with store.snapshot() as snapshot:
            self.left = snapshot.scan(stop=STREAM_TIME_KEY[:1])
        store.close()

    def _target(self, until: tuple[int | None, ...]) -> StoreTarget:
        changelog, end = TopicPartition("c", 0), len(self._log.records)
        return StoreTarget(changelog, 0, end, {"t": self._at}, self._token, idle_until=until)

    def _batch(
        self, store: LmdbStore, rows: list[Any], until: tuple[int | None, ...] = (), *, commits: bool = True
    ) -> None:
        target = self._target(tuple(None if at is None else at * 1000 for at in until))
        inputs = {"t": self._at + len(rows)}
        given = store, target, self._operator, self._definition, self._table(rows), inputs, self._log.fetch
        update, report = process_batch(*given)
        self._log.write(update.changes, committed=commits)
        self._token = report.token if commits else None
        if commits:
            self.late, self._at = self.late + update.late, self._at + len(rows)
            self.results += update.results.to_pylist()
            if until:
                self.times.append((report.stores[0].stream_time_ms, report.stores[0].other_time_ms))


def of_one_side(rows: list[tuple[str, int, int]]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "n": n, "t": EPOCH + t * SECOND} for k, n, t in rows], schema=COLUMNS)


def plain(events: list[Any], *, sessions: bool) -> tuple[list[tuple[str, int, int, int, int]], int]:
    """Closed windows with key, start, end, sum and count, and the number of late rows; event by event."""
    now, late, closed = -(10**9), 0, list[Any]()
    opened: list[tuple[str, int, int, int, int]] = []
    grace, touch = GRACE + sessions, int(sessions)  # two rows exactly a gap apart are one session
    for event in events:
        if isinstance(event, Idle) and not opened:
            continue
        now = max(now, event.until[0] if isinstance(event, Idle) else event[2])
        closed += [each for each in opened if each[2] + grace <= now]
        opened = [each for each in opened if each[2] + grace > now]
        if isinstance(event, Idle):
            continue
        key, n, t = event
        start = t if sessions else t // SIZE * SIZE
        mine = (key, start, start + SIZE, n, 1)
        if mine[2] + grace <= now:
            late += 1
            continue
        own = [each for each in opened if each[0] == key]
        touched = [each for each in own if each[1] < mine[2] + touch and mine[1] < each[2] + touch]
        opened = [each for each in opened if each not in touched]
        _, starts, ends, sums, counts = zip(mine, *touched, strict=True)
        opened.append((key, min(starts), max(ends), sum(sums), sum(counts)))
    return sorted(closed), late


@pytest.mark.parametrize("operator", [WINDOWS, SESSIONS])
@given(st.lists(ROW | idle(), max_size=20), STEPS)
@settings(max_examples=examples(30))
def test_what_idle_partitions_close_is_closed_wherever_batches_are_cut_and_stores_restored(
    tmp_path_factory: pytest.TempPathFactory, operator: Any, events: list[Any], steps: list[str]
) -> None:
    task = Replay(tmp_path_factory.mktemp("state"), operator, COLUMNS, of_one_side)
    task.run(events, steps, beside=lambda _, rows: False)
    found = [
        (
            row["k"],
            *((row[name] - EPOCH) // SECOND for name in ("window_start", "window_end")),
            row["sum"],
            row["count"],
        )
        for row in task.results
    ]
    assert (sorted(found), task.late) == plain(events, sessions=operator is SESSIONS)


FIRST = Deduplication(("k",), "t", SIZE * SECOND)


@given(st.lists(ROW | idle(), max_size=19), STEPS)
@settings(max_examples=examples(30))
def test_first_rows_are_those_since_the_time_of_an_idle_partition_which_then_forgets_all_keys(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], steps: list[str]
) -> None:
    task = Replay(tmp_path_factory.mktemp("state"), FIRST, COLUMNS, of_one_side)
    events = [*events, Idle((200,))]
    task.run(events, steps, beside=lambda _, rows: False)
    now, late, first, expected = -(10**9), 0, dict[str, int](), list[Any]()
    given_to = iter(task.times)
    for event in events:
        if isinstance(event, Idle):
            at, _ = next(given_to)
            told = now if at is None else at // 1000
            if told != max(now, event.until[0]):
                assert told == now
                assert all(t + SIZE < now for t in first.values()), "it goes on while a key counts"
            now = told
            continue
        key, n, t = event
        now = max(now, t)
        if t + SIZE < now:
            late += 1
        elif first.get(key, -(10**9)) + SIZE < now:
            first[key] = t
            expected.append((key, n, t))
    found = [(row["k"], row["n"], (row["t"] - EPOCH) // SECOND) for row in task.results]
    assert (found, task.late) == (expected, late)
    assert task.left == []


WITHIN, SLACK = 3, 2
JOIN = StreamJoin(("k",), ("t", "t"), ("m",), WITHIN * SECOND, SLACK * SECOND, "left")
OTHERS = COLUMNS.remove(1).insert(1, pa.field("m", pa.int64()))
SIDED = st.tuples(st.sampled_from([False, True]), st.sampled_from("ab"), st.integers(0, 60))


def of_both_sides(rows: list[tuple[bool, str, int]]) -> pa.Table:
    batches = []
    for is_other, columns in enumerate((COLUMNS, OTHERS)):
        given = [{"k": k, "m": t, "t": EPOCH + t * SECOND} for side, k, t in rows if side == is_other]
        batch = pa.RecordBatch.from_pylist(given, schema=columns)
        batches.append(in_columns(batch, joined_columns(COLUMNS, OTHERS), is_other=bool(is_other)))
    return pa.Table.from_batches(batches)


@given(st.lists(SIDED | idle(2), max_size=20), STEPS)
@example([(True, "a", 0), Idle((1, None))], ["go on", "beside", *["go on"] * 18])
@settings(max_examples=examples(60))
def test_rows_without_a_partner_come_when_the_other_side_is_idle_wherever_batches_are_cut(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], steps: list[str]
) -> None:
    task = Replay(tmp_path_factory.mktemp("state"), JOIN, joined_columns(COLUMNS, OTHERS), of_both_sides)
    task.run(events, steps, beside=lambda at, rows: all(at.until[side] is None for side, _, _ in rows))
    nows, late, taken = [-(10**9)] * 2, 0, ([], [])  # type: ignore[var-annotated]
    given_to = iter(task.times)
    for event in events:
        if isinstance(event, Idle):
            after = [now if at is None else max(now, at) for now, at in zip(nows, event.until, strict=True)]
            told = [-(10**9) if at is None else at // 1000 for at in next(given_to)]
            if told != after:
                assert told == nows
                for side in (0, 1):
                    kept = [t for _, t in taken[side] if t + WITHIN + SLACK >= nows[1 - side]]
                    assert not kept, "it goes on while something is kept"
            nows = told
            continue
        side, key, t = event
        nows[side] = max(nows[side], t)
        if t + SLACK >= nows[side]:
            taken[side].append((key, t))
        else:
            late += 1
    expected = []
    for key, t in taken[0]:
        paired = [(key, t, at) for other, at in taken[1] if other == key and abs(at - t) <= WITHIN]
        expected += paired or ([(key, t, None)] if t + WITHIN + SLACK < nows[1] else [])
    found = [(row["k"], (row["t"] - EPOCH) // SECOND, row["m"]) for row in task.results]
    assert (sorted(found, key=str), task.late) == (sorted(expected, key=str), late)


def timed(rows: list[int]) -> pa.Table:
    return pa.Table.from_pylist([{"k": n % 2, "n": n, "at": EPOCH + (n + 1) * SECOND} for n in rows], schema=TIMED)


@given(st.lists(st.none() | idle(), max_size=20), STEPS)
@settings(max_examples=examples(30))
def test_timers_of_event_time_are_due_without_records_wherever_batches_are_cut(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], steps: list[str]
) -> None:
    # Rows come in the order of time, so that only an idle time makes one late.
    numbers = count(0, 3)
    events = [each or next(numbers) for each in events]
    mode = TimeMode.EVENT
    given = Given(pickle.dumps(Reminder(mode)), OUTPUT, mode, "UTC", {})
    operator = ProcessorOperator(Plan(("k",), mode, "at"), given).prepared()
    task = Replay(tmp_path_factory.mktemp("state"), operator, TIMED, timed)
    task.run(events, steps, beside=lambda _, rows: False)
    now, late, pending, expected = 0, 0, list[int](), list[int]()
    for event in events:
        if not isinstance(event, Idle):
            late += event + 1 <= now
            pending += [event] if event + 1 > now else []
            now = max(now, event + 1)
        elif pending:
            now = max(now, event.until[0])
        expected += [n for n in pending if 2 * (n + 1) <= now]
        pending = [n for n in pending if 2 * (n + 1) > now]
    assert (sorted(row["n"] for row in task.results), task.late) == (sorted(expected), late)


def test_a_task_that_gets_a_notice_alone_has_its_turn(tmp_path: Any) -> None:
    log, results, operator = Log(), list[Any](), by_source(WINDOWS)
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    notice = {SOURCE: 0, DELAY: 0, NOTICE: Notice(1, (), (5,), {5: 1_000_000}, (5,)).encode()}
    row = {**of_one_side([("a", 1, 0)]).to_pylist()[0], "at": at, SOURCE: 5, DELAY: 0}
    with LmdbStore(tmp_path) as store:
        for number, rows in enumerate([[row, notice], [notice]]):
            until = (90_000,) if number else ()
            target = StoreTarget(TopicPartition("c", 0), 0, len(log.records), {"t": number}, None, idle_until=until)
            table, definition = pa.Table.from_pylist(rows, with_labels(COLUMNS)), definition_of(WINDOWS, COLUMNS)
            update, report = process_batch(store, target, operator, definition, table, {"t": number + 1}, log.fetch)
            log.write(update.changes, committed=True)
            results += update.results.to_pylist()
            assert report.is_notice == bool(number)
    assert len(results) == 1


def test_rows_of_the_same_batch_come_before_the_stream_time_of_an_idle_partition(tmp_path: Any) -> None:
    log, target = Log(), StoreTarget(TopicPartition("c", 0), 0, 0, {"t": 0}, None, idle_until=(90_000,))
    table = of_one_side([("a", 1, 0)])
    with LmdbStore(tmp_path) as store:
        update, report = process_batch(
            store, target, WINDOWS, definition_of(WINDOWS, COLUMNS), table, {"t": 1}, log.fetch
        )
    assert (update.late, len(update.results), report.stores[0].stream_time_ms) == (0, 0, 0)
