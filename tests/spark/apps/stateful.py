"""The driver of a stateful pipeline as a process that starts in a second: its tasks run in the process.

    stateful.py BOOTSTRAP GROUP TOPIC OUT SESSION_MS OPEN_SECONDS STATE_DIR [STANDBYS [PARTITIONS [MORE]]]

With STANDBYS each process has a disk of its own in STATE_DIR, and writes what it has done to its standard output: a
JSON object for each batch and for each piece of work on copies. With PARTITIONS the rows go through a topic of so many
partitions between two sub-topologies. MORE may be `several`: the tasks before it have two stores of their own, each of
which numbers the rows of a key, and the numbers go by another key, modulo GROUPS. Or it is a table of so many
partitions, and nothing has state: rows get the name that it has for their key.
Counts, sums and largest values of the records' numbers by number modulo KEYS. Each transaction stays open for up to
OPEN_SECONDS, and each turn may end with the changes aside and no report, as a killed worker does. SIGTERM ends it in
order.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import signal
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from roster.model.topology import Subtopology, repartition_topic
from roster.pipeline.batch_sink import Source
from roster.pipeline.driver.loop import DriverLoop
from roster.pipeline.driver.runner_protocol import Outcome, Refused
from roster.pipeline.driver.switching import Switching
from roster.pipeline.errors import SinkFencedError
from roster.pipeline.options import Options, Tuning
from roster.pipeline.tasks.json_values import JsonReader
from roster.pipeline.tasks.reader import ReaderConfig
from roster.pipeline.tasks.writer import written
from roster.records.native import compiled
from roster.saved import grown_input
from roster.saved.tasks.moving import PlacedTask
from roster.spark import KafkaSink, State
from roster.spark.joined_batches import TableJoins
from roster.spark.stateful_batches import summed, tokens_of
from roster.state.aggregate import Aggregation, Update
from roster.state.keys import encode_keys
from roster.stateful.due_tasks import TaskRun
from roster.stateful.restore_schedule import deal
from roster.stateful.stores import Stores
from roster.stateful.tasks.host_stores import Restored, process_id, stores_found
from roster.stateful.tasks.repartition import RepartitionTopic
from roster.stateful.tasks.store_location import Place, keep_open
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan
from roster.stateful.tasks.table_join import Lookup, Rows
from roster.stateful.tasks.task import RestoreJobs, StatefulTask, StoreKind, TopologyPlan
from tests.state.aggregate_texts import aggregate_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from roster.pipeline.batch import Batch, Split
    from roster.pipeline.batch_sink import BatchSink

KEYS, GROUPS = 30, 7
COLUMNS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
AGGREGATES = {"count": "count(*)", "sum": "sum(n)", "most": "max(n)"}
_TYPES = {"topic": StringType(), "partition": IntegerType(), "key": BinaryType(), "value": BinaryType()}
_ROWS = StructType([StructField(name, kind) for name, kind in _TYPES.items()])


def numbers(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    n = batch["value"].cast(pa.string()).cast(pa.int64())
    k = pc.subtract(n, pc.multiply(pc.divide(n, KEYS), KEYS))
    yield pa.RecordBatch.from_arrays([k, n], schema=COLUMNS)


class Collected:
    """In place of an accumulator."""

    def __init__(self) -> None:
        self.value: dict[int, Any] = {}

    def add(self, term: dict[int, Any]) -> None:
        for task, reports in term.items():
            is_one = isinstance(reports, Restored | int)
            self.value[task] = reports if is_one else self.value.get(task, ()) + reports


def _print_copies(copies: Sequence[Restored]) -> None:
    if copies:
        print(json.dumps({"copies": {each.changelog.partition: each.position for each in copies}}), flush=True)


class InProcess:
    """Runs the tasks that Spark would run, one after the other."""

    whole_partitions = True
    takes_arrivals = True
    most_offsets: int | None = None

    cores = 2

    def __init__(
        self,
        config: ReaderConfig,
        work: TopologyPlan,
        stores: Stores,
        open_seconds: float,
        function: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]],
        joins: Sequence[TableJoins],
        switching: Switching | None = None,
    ) -> None:
        self._config, self._work, self._targets, self._open_seconds = config, work, stores.targets, open_seconds
        self._function, self._joins, self._switching = function, joins, switching
        self._copies, self._stores = stores.copies, stores

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: BatchSink, refused: Refused = ()) -> Outcome:
        targets, reports, copies, sent = self._targets.prepare(batch), Collected(), Collected(), Collected()
        if self._switching is not None:
            paused = self._stores.changelogs.tasks_of(self._switching.paused(batch.ranges))
            targets = {task: tuple(t._replace(is_paused=task in paused) for t in of) for task, of in targets.items()}
        for joins in self._joins:
            joins.begin(batch)
        tables = {joins.number: joins.sides() for joins in self._joins}
        writer: Any = sink.task_writer(batch, _ROWS)
        wanted, seconds = self._copies.with_batch(targets.keys())
        lanes, began = deal(wanted, len(tasks), self.cores), time.monotonic()
        tasks = [*tasks, *[()] * (len(lanes) - len(tasks))]
        jobs: Any = RestoreJobs(lanes, seconds, copies)  # type: ignore[arg-type]
        more: dict[str, Any] = {"reports": reports, "sent": sent, "tables": tables, "function": self._function}
        looked = {number: backlog.left_behind(batch) for number, backlog in self._stores.input_backlogs.items()}
        more["backlogs"] = {number: backlog for number, backlog in looked.items() if backlog is not None}
        reading: Any = StatefulTask(self._config, tasks, self._work, targets, jobs=jobs, **more)
        results = [pickle.loads(pickle.dumps(written(writer, reading.read([task])))) for task in range(len(lanes))]
        if random.random() < 0.05:
            raise SinkFencedError("as if a worker had been killed")
        if random.random() < 0.05:  # a second attempt
            written(writer, reading.read([0]))
        kept = sink.collect(writer, results, batch)
        time.sleep(random.uniform(0, self._open_seconds))
        assert kept is None
        ends = {target.changelog: target.end for each in targets.values() for target in each}
        beside = lanes, time.monotonic() - began
        now = self._copies.after_batch(ends, copies.value.values(), beside)
        _print_copies([*copies.value.values()])
        runs: Any = {task: TaskRun(each[-1].stores, each[-1].timer) for task, each in reports.value.items()}  # type: ignore[misc]
        self._stores.ran(batch, runs, sent.value)
        last = {task: each[-1].stores for task, each in reports.value.items()}
        outcome = Outcome(None, rows=batch.offsets, tokens=tokens_of(reports.value))  # type: ignore[arg-type]
        return summed(outcome, last, now)  # type: ignore[arg-type]

    def find_stores(self) -> None:
        pass

    def settle(self) -> None:
        """What is aside stays so: applications of these tests are killed."""

    def restore(self, seconds: float) -> bool:
        jobs, seconds = self._copies.between_batches(seconds)
        if not jobs:
            return False
        work: Any = StatefulTask(self._config, [], self._work, {}, jobs=RestoreJobs((), seconds))
        copies = list(work.restore(jobs))
        self._copies.record_restored(copies)
        _print_copies(copies)
        return True

    def cancel(self) -> None:
        """Tasks are short."""

    def check(self) -> None:
        pass

    def activity(self) -> object:
        return time.monotonic()


TOTALS = Aggregation(("k",), {name: aggregate_of(text) for name, text in AGGREGATES.items()})


def grouped_numbers(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for part in numbers(batch):
        n = part["n"]
        g = pc.subtract(n, pc.multiply(pc.divide(n, GROUPS), GROUPS))
        yield part.append_column("g", g)


@dataclass(frozen=True)
class Numbering:
    """Passes rows on with their number among those of their key, from 1 on, in a column of this name."""

    name: str
    result_keys = ("k",)

    @property
    def kept(self) -> Mapping[str, Any]:
        return {"operator": self.name}

    def key_columns(self, columns: pa.Schema) -> pa.Schema:
        return pa.schema([columns.field("k")])

    def layout(self, columns: pa.Schema) -> None:
        """A value is a number in text."""

    def __call__(self, table: pa.Table, store: Any) -> Update:
        keys = encode_keys(table, ["k"]).to_pylist()
        counts = {key: int(value or b"0") for key, value in zip(keys, store.multi_get(keys), strict=True)}
        given = []
        for key in keys:
            counts[key] += 1
            given.append(counts[key])
        changes = pa.table(
            [pa.array(counts, pa.binary()), pa.array([b"%d" % n for n in counts.values()], pa.binary())],
            ["key", "value"],
        )
        return Update(table.append_column(self.name, pa.array(given, pa.int64())), changes)


NAME = pa.schema([("name", pa.string())])
_GIVEN = COLUMNS.append(pa.field("g", pa.int64()))
NUMBERED = pa.schema([*_GIVEN, ("first", pa.int64()), ("second", pa.int64())])
BOTH = (
    OperatorNode(Numbering("first"), _GIVEN, "first"),
    OperatorNode(Numbering("second"), pa.schema(list(NUMBERED)[:4]), "second"),
)
SUMS = Aggregation(
    ("g",),
    {
        name: aggregate_of(text)
        for name, text in (AGGREGATES | {"first": "sum(first)", "second": "sum(second)"}).items()
    },
)


def looked(
    _: object, config: ReaderConfig, unread: Sequence[tuple[Split, int, int]], partitioners: Sequence[str]
) -> list[Any]:
    """A look at unread records, without Spark."""
    return list(PlacedTask(config, unread, partitioners, mock.Mock())(range(len(unread))))


def main(
    operator: Any = TOTALS,
    columns: pa.Schema = COLUMNS,
    function: Any = numbers,
    migrate: Mapping[str, str | None] | None = None,
    paused: bool | None = None,
    plans_of: Callable[[str, str], list[SubtopologyPlan]] | None = None,
) -> None:
    """`function` makes rows of `columns` of records, for the operator or the plans of a topic and a group.

    paused: whether it begins so, None: never.
    """
    bootstrap, group, topic, out, session_timeout_ms, open_seconds, state_dir, *more = sys.argv[1:]
    standbys, node = more[:1], OperatorNode(operator, columns, "totals", migrate=migrate)
    has_several, tables = more[2:] == ["several"], [name for name in more[2:] if name != "several"]
    if has_several:
        function, node = grouped_numbers, OperatorNode(SUMS, NUMBERED, "totals")
    plans = [SubtopologyPlan(Subtopology(0, (topic,), ("totals",)), (node,))]
    if len(more) > 1:
        passed, first = repartition_topic(group, "by-k"), Subtopology(0, (topic,))
        repartition, nodes = RepartitionTopic(first, passed, ("k",), columns, partitions=int(more[1])), ()
        if has_several:
            repartition, nodes = replace(repartition, keys=("g",), columns=NUMBERED), BOTH
            first = replace(first, stores=("first", "second"))
        tasks = Subtopology(1, (passed,), ("totals",))
        plans = [
            SubtopologyPlan(first, nodes, repartition_sink=repartition),
            SubtopologyPlan(tasks, (node,), repartition_source=repartition),
        ]
        if tables:
            named = Lookup("k", JsonReader(NAME), pa.schema([*columns, *NAME]), keeps_all=False)
            rows = (Rows(tables[0], named, None, named.columns),)
            plans[1] = SubtopologyPlan(Subtopology(1, (passed,)), (), repartition_source=repartition, tables=rows)
    if plans_of is not None:
        plans = plans_of(topic, group)
    if standbys:
        state_dir = f"{state_dir}/{os.getpid()}"
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    options = Options(
        spark=None,
        bootstrap=bootstrap,
        group=group,
        topics=(topic,),
        max_offsets_per_batch=3000 if len(plans) > 1 else 300,
        consumer={
            "session.timeout.ms": int(session_timeout_ms),
            "heartbeat.interval.ms": 200,
            "request.timeout.ms": 10_000,
            "max.poll.interval.ms": 20_000,
        },
        trigger_interval_ms=0,
        state=State(standbys=int(standbys[0]) if standbys else 0),
        tuning=Tuning(acceptable_lag=20, max_warmups=6),
    )
    sink = KafkaSink(bootstrap, out, options={"transaction.timeout.ms": 60_000})
    sink.open(None, group)  # type: ignore[arg-type]
    config = ReaderConfig(bootstrap=bootstrap, group=group, compiled=compiled())
    grown_input.places_of_unread = looked  # type: ignore[assignment]
    stores = Stores.open(options, plans, grown_input.GrownInput(None, config), sink, out)  # type: ignore[arg-type]
    stores.purge.interval = 0.5
    if stores.refusal is not None:
        options = replace(options, max_offsets_per_batch=80)
    switching = None if paused is None else Switching(group, stores.admin, paused=paused)
    source = Source(bootstrap=bootstrap, group=group, request_timeout_ms=10_000)
    bound = sink.bind(source)
    definitions = {name: each for plan in plans for name, each in plan.definitions.items()}
    kinds, found = {}, {}
    for each, changelog in zip((node for plan in plans for node in plan.nodes), stores.changelogs, strict=True):
        place = Place(state_dir, changelog.topic, changelog.topic_id, definitions[each.store].is_ordered)
        kinds[each.store] = StoreKind(place, definitions[each.store])
        found |= {changelog[task]: offset for task, offset in stores_found(place).items()}
    work = TopologyPlan(stores.plans, kinds, out)
    if work.places:
        stores.copies.record_stores({process_id(work.places[0]): found})
    own = replace(options, state=State(dir=state_dir))
    joins = [
        TableJoins.open(own, each.tables, each.own_sources, each.subtopology.number) for each in plans if each.tables
    ]
    keep_open()  # as the worker that stays does
    runner = InProcess(config, work, stores, float(open_seconds), function, joins, switching)
    member = stores.member(options)
    loop = DriverLoop(
        *(member, runner, bound, options),
        [lambda done: print(done.to_json(), flush=True)] if standbys else (),
        between_batches=stores,
        switching=switching,
    )
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    member.start(60)
    try:
        loop.run(available_now=stores.refusal is not None)
        if stores.refusal is not None:
            raise stores.refusal
    finally:
        stores.close()
        sink.close()
        member.close()


if __name__ == "__main__":
    main()
