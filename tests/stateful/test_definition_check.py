"""What changelogs say at their ends, and two pipelines that begin at the same time, without Spark and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range, Split
from roster.pipeline.errors import PipelineError
from roster.pipeline.tasks.reader import ReaderConfig
from roster.state.aggregate import Aggregation, Update
from roster.state.deduplicate import Deduplication
from roster.state.definition import STATE_KEY, Noted, OtherDefinitionError
from roster.state.processor.variables import REGISTRY_KEY, Entry, encode_registry
from roster.state.store import StateError
from roster.state.windows import Window, WindowedAggregation
from roster.stateful import definition_check
from roster.stateful.changelogs import Changelog, Changelogs
from roster.stateful.definition_check import DefinitionCheck
from roster.stateful.stores import StoreTargets
from roster.stateful.tasks.processing import process_batch
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of
from tests.stateful.test_store_processing import Log

if TYPE_CHECKING:
    from roster.state.store import Snapshot

COLUMNS = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
HOUR = timedelta(hours=1)
COUNT = {"n": aggregate_of("count(*)")}
TOTALS = Aggregation(("k",), COUNT)
WINDOWS = WindowedAggregation(("k",), COUNT, Window("at", HOUR), final=False)
FIRST = Deduplication(("k",), "at", HOUR)


def plan(*nodes: tuple[str, Any], number: int = 0) -> SubtopologyPlan:
    names = tuple(name for name, _ in nodes)
    return SubtopologyPlan(
        Subtopology(number, ("t",), names), tuple(OperatorNode(each, COLUMNS, name) for name, each in nodes)
    )


class Cluster:
    """Changelogs of two partitions each, by the names of the stores."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.read: list[Split] = []

    def __getitem__(self, log: TopicPartition) -> Log:
        return self.logs.setdefault(log, Log())

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self[each].begin for each in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: len(self[each].records) for each in partitions}

    stable_offsets = end_offsets

    def read_splits(self, config: ReaderConfig, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        assert config.isolation_level == "read_committed"
        self.read += splits
        for split in splits:
            log = TopicPartition(split.topic, split.partition)
            for batch in self[log].fetch(log, split.start, split.end):
                for name, value, kind in (("topic", split.topic, pa.string()), ("partition", split.partition, None)):
                    batch = batch.append_column(name, pa.array([value] * batch.num_rows, kind))  # noqa: PLW2901
                yield batch

    def changelogs(self, *plans: SubtopologyPlan) -> Changelogs:
        return Changelogs(Changelog(node.store, "id", 2, each.subtopology) for each in plans for node in each.nodes)

    def written(self, *plans: SubtopologyPlan) -> DefinitionCheck:
        config = ReaderConfig(bootstrap="nowhere:1", group="g", isolation_level="read_uncommitted")
        return DefinitionCheck(config, self, plans, self.changelogs(*plans))

    def append(
        self, of: SubtopologyPlan, store: str, partition: int, keys: int = 1, *, registry: bytes | None = None
    ) -> None:
        """Append a batch's records as a task writes them: its list of variables comes where it was changed."""
        said = Noted(of.definitions[store], {"t": 5}).encode()
        entries = [] if registry is None else [(REGISTRY_KEY, registry)]
        entries += [(b"\x01%d" % number, b"v") for number in range(keys)]
        entries.append((STATE_KEY, said))
        columns = [pa.array(column, pa.binary()) for column in zip(*entries, strict=True)]
        self[TopicPartition(store, partition)].write(pa.table(columns, ["key", "value"]), committed=True)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(definition_check, "read_splits", made.read_splits)
    return made


def test_changelogs_without_committed_records_are_of_any_pipeline(cluster: Cluster) -> None:
    cluster.written(plan(("s", TOTALS))).check()
    cluster[TopicPartition("s", 0)].records += [None] * 3000
    cluster.written(plan(("s", TOTALS))).check()
    assert [split.start for split in cluster.read] == [2936, 1976, 0]


def test_every_partition_is_compared_however_far_its_last_records_are(cluster: Cluster) -> None:
    totals = plan(("s", TOTALS))
    cluster.append(totals, "s", 0)
    cluster.append(plan(("s", WINDOWS)), "s", 1, keys=90)
    cluster[TopicPartition("s", 1)].records += [None] * 5000
    with pytest.raises(PipelineError, match=r"^store: 's' of the group 'g', partition 1: .*window \(column at, "):
        cluster.written(totals).check()
    cluster.append(totals, "s", 1)
    cluster.written(totals).check()


def test_records_behind_which_nothing_is_said_are_refused(cluster: Cluster) -> None:
    table = pa.table({"key": [b"\x01k"], "value": [b"v"]})
    cluster[TopicPartition("s", 1)].write(table, committed=True)
    with pytest.raises(PipelineError, match="partition 1: its state does not say what it means"):
        cluster.written(plan(("s", TOTALS))).check()


def test_stores_of_one_kind_whose_names_were_swapped_are_refused(cluster: Cluster) -> None:
    one, two = plan(("one", FIRST), ("two", FIRST)), plan(("two", FIRST), ("one", FIRST))
    for store in ("one", "two"):
        cluster.append(one, store, 0)
    with pytest.raises(PipelineError, match=r"written with stores one, two, and this pipeline has stores two, one"):
        cluster.written(two).check()
    apart = plan(("one", FIRST)), plan(("two", FIRST), number=1)
    with pytest.raises(PipelineError, match=r"'two' .* subtopology 0, and this pipeline has subtopology 1"):
        cluster.written(*apart).check()
    cluster.written(one).check()
    cluster.written(plan(("two", FIRST))).check()


def test_a_release_is_the_first_one_until_a_partition_is_changed(cluster: Cluster) -> None:
    old = plan(("s", TOTALS), ("kept", FIRST))
    more = Aggregation(("k",), COUNT | {"last": aggregate_of("max(at)")})
    new = plan(("s", more), ("kept", FIRST))

    def is_first(to_change: set[int]) -> bool:
        checked = cluster.written(new)
        checked.check()
        assert {log.partition for log in checked.to_change} == to_change
        return checked.is_first

    assert not is_first(set()), "nothing is written"
    cluster.append(old, "kept", 0)
    assert not is_first(set()), "no store changes"
    for partition in (0, 1):
        cluster.append(old, "s", partition)
        assert is_first(set(range(partition + 1)))
    cluster.append(new, "s", 1)
    assert not is_first({0}), "another member of this release has begun"


class Counting:
    """Has a variable of this name."""

    result_keys = ("k",)
    has_variables = True
    kept = {"operator": "transform_with_state"}  # noqa: RUF012 - as operators have it

    def __init__(self, name: str) -> None:
        self._name = name

    def key_columns(self, columns: pa.Schema) -> pa.Schema:
        return pa.schema([columns.field("k")])

    def layout(self, columns: pa.Schema) -> None:
        """Values are of variables."""

    def declare(self, registry: bytes) -> None:
        if f'"{self._name}"'.encode() not in registry:
            raise StateError(f"state variable {self._name!r}: no")


def test_variables_are_compared_with_the_list_of_each_store(cluster: Cluster) -> None:
    registry = encode_registry({"count": Entry("value", 16, [])})
    counting = plan(("s", Counting("count")))
    cluster.append(counting, "s", 1, keys=2000, registry=registry)
    cluster.written(counting).check()
    assert [split.start for split in cluster.read] == [1939, 979, 0]
    with pytest.raises(PipelineError, match="'s' of the group 'g', partition 1: state variable 'total': no"):
        cluster.written(plan(("s", Counting("total")))).check()


class Watched:
    """An operator, and how often it was called."""

    def __init__(self, operator: Any) -> None:
        self.operator, self.calls = operator, 0

    def __call__(self, table: pa.Table, store: Snapshot) -> Update:
        self.calls += 1
        update: Update = self.operator(table, store)
        return update


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.booleans()), max_size=12))
@settings(max_examples=examples(40))
def test_of_two_pipelines_that_begin_at_once_a_partition_has_the_first_only(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[bool, int, bool]]
) -> None:
    disk, cluster = tmp_path_factory.mktemp("state"), Cluster()
    plans = [plan(("s", TOTALS)), plan(("s", WINDOWS))]
    applications = [
        (each, StoreTargets(cluster, cluster.changelogs(each), 1.0), Watched(each.nodes[0].operator)) for each in plans
    ]
    at, first = [0, 0], list[int | None]([None, None])
    rows = pa.table([["a", "b"], pa.array([0, 1], COLUMNS.field("at").type)], schema=COLUMNS)
    for is_second, partition, committed in script:
        (of, targets, operator), source = applications[is_second], TopicPartition("t", partition)
        log, calls = cluster[TopicPartition("s", partition)], operator.calls
        targets.forget([source])
        batch = Batch(0, Owner("g", 1, "m"), {source: Range(at[partition], at[partition] + 2)})
        target = targets.prepare(batch)[TaskId(0, partition)][0]
        place, inputs = Place(str(disk / str(is_second)), "s", "id"), {"t": at[partition] + 2}
        with place.open(str(partition)) as store:
            if first[partition] not in (None, is_second):
                before = list(log.records)
                with pytest.raises(OtherDefinitionError):
                    process_batch(store, target, operator, of.definitions["s"], rows, inputs, log.fetch)
                assert operator.calls == calls, "it has seen nothing"
                assert log.records == before
                continue
            update, _ = process_batch(store, target, operator, of.definitions["s"], rows, inputs, log.fetch)
        log.write(update.changes, committed=committed)
        if committed:
            first[partition], at[partition] = is_second, at[partition] + 2
            assert update.results["n"].to_pylist() == [at[partition] // 2] * 2
