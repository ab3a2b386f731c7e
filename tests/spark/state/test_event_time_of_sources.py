"""Event time behind a repartition topic against a plain computation, for any cuts, order, moves and deaths."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.topology import Subtopology
from roster.spark.batch import Batch, Owner, Range
from roster.spark.state.input_backlog import InputBacklog
from roster.spark.state.tasks.outgoing import Outgoing, Sent
from roster.spark.state.tasks.repartition import RepartitionTopic
from roster.spark.state.tasks.subtopology import OperatorNode, SubtopologyPlan, labelled
from roster.spark.tasks.arrow_function import ArrowFunction
from roster.spark.tasks.missing_values import Look
from roster.state import source_times
from roster.state.aggregate_functions import Aggregate
from roster.state.lmdb_store import LmdbStore
from roster.state.sessions import SessionAggregation
from roster.state.source_times import labelled as with_labels
from roster.state.store import Position
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

EPOCH, SECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)
COLUMNS = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC"))])
COUNTS = {"n": Aggregate.parse("count(*)")}
SIZE, GRACE, END, PARTITIONS = 6, 3, 10_000, 2
WINDOWS = WindowedAggregation(("k",), COUNTS, Window("t", SIZE * SECOND, grace=GRACE * SECOND), final=True)
SESSIONS = SessionAggregation(("k",), COUNTS, Window.session("t", SIZE * SECOND, grace=GRACE * SECOND), final=True)
Row = tuple[str, int]


class World:
    """Sources with rows, applications that send them through a topic in transactions, and tasks behind it."""

    def __init__(self, rng: random.Random, logs: list[list[Row]], operator: Any, path: Any, then: Any = None) -> None:
        self.rng, self.logs, self.clock = rng, logs, 0.0
        self.committed = dict.fromkeys(range(len(logs)), 0)
        sink = RepartitionTopic(Subtopology(0, ("in",)), "g-by-k-repartition", ("k",), COLUMNS, then, PARTITIONS)
        node = OperatorNode(operator, COLUMNS, "s")
        behind = SubtopologyPlan(Subtopology(1, (sink.topic,), ("s",)), (node,), repartition_source=sink)
        self.sender, self.receiver = labelled(
            [SubtopologyPlan(Subtopology(0, ("in",)), (), repartition_sink=sink), behind]
        )
        self.apps = [self.backlog() for _ in range(2)]
        self.topic: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self.read = dict.fromkeys(range(PARTITIONS), 0)
        self.stores = [LmdbStore(path / str(number)) for number in range(PARTITIONS)]
        self.results: list[dict[str, Any]] = []
        self.late, self.numbers = 0, count()

    def backlog(self) -> InputBacklog:
        admin: Any = SimpleNamespace(
            describe_topic=lambda _: SimpleNamespace(partitions=[SimpleNamespace(partition=n) for n in self.committed]),
            end_offsets=lambda of: {at: len(self.logs[at.partition]) for at in of},
            group_offsets=lambda _, of, stable: {at: SimpleNamespace(offset=self.committed[at.partition]) for at in of},
        )
        return InputBacklog(admin, "g", ("in",), lambda: self.clock)

    def plan(self, sources: Collection[int], most: int, app: InputBacklog) -> tuple[InputBacklog, Batch, Any]:
        """Plan a batch of these sources, whose ranges begin where the group stands."""
        ranges = {}
        for source in sources:
            begin = self.committed[source]
            ranges[source] = Range(begin, min(len(self.logs[source]), begin + self.rng.randint(1, most)))
        batch = Batch(0, Owner("g", 1, "m"), {TopicPartition("in", of): span for of, span in ranges.items()})
        return app, batch, app.before(batch)

    def send(self, app: InputBacklog, batch: Batch, backlog: Any) -> None:
        """Write a planned batch's records and commit it."""
        of_tasks: list[dict[int, list[bytes]]] = []
        ranges = {at.partition: span for at, span in batch.ranges.items()}
        for sources in self._dealt(list(ranges)):
            sink = self.sender.repartition_sink
            assert sink is not None
            sent, records = Sent(sink, backlog), list[Any]()
            for source in sources:
                rows = self.logs[source][slice(*ranges[source])]
                look, number = Look(()), source_times.source_of("in", source)
                given = pa.RecordBatch.from_pylist([{"k": k, "t": EPOCH + t * SECOND} for k, t in rows], COLUMNS)
                cut = self.rng.randint(0, len(rows))
                batches = [each for each in (given.slice(0, cut), given.slice(cut)) if each.num_rows]
                records += Outgoing(None, None).rows(iter(batches), self.sender, look, sent, number)  # type: ignore[arg-type]
            by_partition = defaultdict(list)
            for part in [*records, *sent.notices()]:
                for record in part.to_pylist():
                    by_partition[record["partition"]].append(record["value"])
            of_tasks.append(by_partition)
        for partition, log in self.topic.items():
            for task in self.rng.sample(of_tasks, len(of_tasks)):
                log.extend(task[partition])
        for source, span in ranges.items():
            self.committed[source] = span.end
        app.committed(batch)

    def _dealt(self, sources: list[int]) -> list[list[int]]:
        self.rng.shuffle(sources)
        cut = self.rng.randint(0, len(sources))
        return [each for each in (sources[:cut], sources[cut:]) if each]

    def receive(self, partition: int, most: int) -> None:
        """Run a batch of a task behind the topic."""
        begin = self.read[partition]
        values = self.topic[partition][begin : begin + most]
        if not values:
            return
        self.read[partition] += len(values)
        operator, columns = self.receiver.at(self.receiver.nodes[0])
        source = self.receiver.repartition_source
        assert source is not None
        cut = self.rng.randint(0, len(values))
        records = [pa.record_batch([pa.array(part, pa.binary())], ["value"]) for part in (values[:cut], values[cut:])]
        rows = [batch for part in records for batch in source.to_rows(part)]
        store = self.stores[partition]
        update = operator(pa.Table.from_batches(rows, columns), store)
        assert set(update.results.column_names).isdisjoint(with_labels(pa.schema([])).names)
        store.commit(
            update.changes["key"].to_pylist(), update.changes["value"].to_pylist(), Position(next(self.numbers))
        )
        self.results += update.results.to_pylist()
        self.late += update.late
        assert sum(map(len, update.late_rows)) == update.late
        assert all(rows.column_names == COLUMNS.names for rows in update.late_rows)

    def run(self) -> None:
        """Take steps in any order until all is read; in the end everything closes."""
        rng, flying = self.rng, list[Any]()
        while any(self.committed[of] < len(log) for of, log in enumerate(self.logs)) or flying:
            self.clock += rng.choice([0, 0.4, 2])
            step = rng.random()
            busy = {at.partition for _, batch, _ in flying for at in batch.ranges}
            apps = [app for app in self.apps if app not in [planned[0] for planned in flying]]
            free = [source for source in self.committed if source not in busy]
            if step < 0.35 and free and apps:
                sources = rng.sample(free, rng.randint(1, len(free)))
                flying.append(self.plan(sources, rng.choice([1, 3, 100]), rng.choice(apps)))
            elif step < 0.7 and flying:
                planned = flying.pop(rng.randrange(len(flying)))
                if rng.random() < 0.8:  # else it is aborted, as by a death
                    self.send(*planned)
            elif step < 0.75:
                self.apps[rng.randrange(2)] = self.backlog()
            elif step < 0.8:
                rng.choice(self.apps).took()
            else:
                self.receive(rng.randrange(PARTITIONS), rng.choice([1, 2, 5, 100]))
        self._end()

    def _end(self) -> None:
        """Close everything by a last row of each source, and read the rest."""
        for log in self.logs:
            log.append(("end", END))
        owned = [[of for of in self.committed if of % 2 == number] for number in range(2)]
        planned = [self.plan(of, 1, app) for of, app in zip(owned, self.apps, strict=True) if of]
        for each in planned:
            self.send(*each)
        # Each application saw the other's partitions behind. Whoever looks again tells that all is read.
        for of, app in zip(owned, self.apps, strict=True):
            due = app.due([TopicPartition("in", number) for number in of], once=True)
            if due:
                self.send(*self.plan([at.partition for at in due], 1, app))
        for partition in self.topic:
            while self.read[partition] < len(self.topic[partition]):
                self.receive(partition, self.rng.choice([1, 5, 100]))
        for store in self.stores:
            store.close()


def logs_of(rng: random.Random, delay: int) -> list[list[Row]]:
    """Sources with rows that are in order but for so many seconds; one is hours ahead of another, some are empty."""
    logs = []
    for _ in range(rng.randint(1, 3)):
        at, rows = rng.choice([0, 5, 500]), []
        for _ in range(rng.choice([0, 3, 15])):
            at += rng.choice([0, 1, 4, 20])
            rows.append((rng.choice("abc"), max(at - rng.randint(0, delay), 0)))
        logs.append(rows)
    return logs


def plain_windows(logs: list[list[Row]]) -> tuple[dict[tuple[str, int], int], int]:
    """Counts by key and window, and the number of rows that are later than the grace within their source."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    late = 0
    for log in logs:
        largest = -1
        for key, time in log:
            largest = max(largest, time)
            start = time // SIZE * SIZE
            if start + SIZE + GRACE <= largest:
                late += 1
            else:
                counts[key, start] += 1
    return dict(counts), late


def seconds(at: datetime) -> int:
    return (at - EPOCH) // SECOND


def window_problem(rng: random.Random, path: Any, delay: int = GRACE, then: Any = None) -> str:
    """How a run's windows differ from the plain ones, "" if they do not."""
    logs = logs_of(rng, delay)
    wanted, late = plain_windows(logs)
    world = World(rng, logs, WINDOWS, path, then)
    world.run()
    found = [((each["k"], seconds(each["window_start"])), each["n"]) for each in world.results if each["k"] != "end"]
    twice = len(found) != len(dict(found))
    return "" if (dict(found), world.late, twice) == (wanted, late, False) else f"{found} {wanted} {world.late} {late}"


@given(seed=st.integers(0, 1 << 32), delay=st.sampled_from([0, GRACE, 30]))
@settings(max_examples=examples(60))
def test_rows_are_late_only_within_their_partition_and_windows_are_those_of_a_plain_computation(
    tmp_path_factory: Any, seed: int, delay: int
) -> None:
    assert window_problem(random.Random(seed), tmp_path_factory.mktemp("s"), delay) == ""


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(20))
def test_steps_behind_the_repartition_do_not_make_rows_late(tmp_path_factory: Any, seed: int) -> None:
    then = ArrowFunction(lambda batch: batch, COLUMNS)
    assert window_problem(random.Random(seed), tmp_path_factory.mktemp("s"), GRACE, then) == ""


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(30))
def test_sessions_are_those_of_a_plain_computation(tmp_path_factory: Any, seed: int) -> None:
    rng = random.Random(seed)
    logs = logs_of(rng, GRACE)
    by_key = defaultdict(list)
    for key, time in sorted(row for log in logs for row in log):
        by_key[key].append(time)
    wanted = []
    for key, times in by_key.items():
        start = last = times[0]
        number = 0
        for time in times:
            if time - last > SIZE:
                wanted.append((key, start, number))
                start, number = time, 0
            last, number = time, number + 1
        wanted.append((key, start, number))
    world = World(rng, logs, SESSIONS, tmp_path_factory.mktemp("s"))
    world.run()
    found = [(each["k"], seconds(each["window_start"]), each["n"]) for each in world.results if each["k"] != "end"]
    assert sorted(found) == sorted(wanted)
    assert world.late == 0


@pytest.mark.gate
@pytest.mark.parametrize("fault", ["the fastest source", "a source that moved is forgotten", "ended before its rows"])
def test_planted_faults_are_found(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if fault == "the fastest source":
        monkeypatch.setattr(source_times, "_least", lambda _notice, _ended, times: max(times.values()))
    elif fault == "a source that moved is forgotten":
        look = InputBacklog._look
        monkeypatch.setattr(InputBacklog, "_look", lambda self: (look(self), self._behind.clear()))
    else:
        least = source_times._least
        monkeypatch.setattr(source_times, "_least", lambda n, _, times: least(n._replace(reading=()), {}, times))
    seeds = (random.Random(seed) for seed in range(60))
    assert any(window_problem(rng, tmp_path_factory.mktemp("s")) for rng in seeds)


def test_rows_of_a_release_without_labels_go_by_their_largest_time(tmp_path: Path) -> None:
    world = World(random.Random(1), [[]], WINDOWS, tmp_path)
    sink = world.sender.repartition_sink
    assert sink is not None
    rows = [("a", 1), ("a", 30), ("a", 2)]
    given = pa.Table.from_pylist([{"k": k, "t": EPOCH + t * SECOND} for k, t in rows], COLUMNS)
    world.topic[0] += sink.to_records(given)["value"].to_pylist()
    world.receive(0, 9)
    assert [each["n"] for each in world.results] == [1]
    assert world.late == 1
    world.logs[0] += [("a", 3), ("a", 40), ("a", 60)]
    world.run()
    assert world.late == 2, "what they have closed stays closed"
