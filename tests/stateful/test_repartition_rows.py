"""Rows that pass through a repartition topic, the topic's records that are deleted, and where the driver reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from roster.client import AuthorizationError
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range, Split
from roster.pipeline.driver.offset_ranges import regrouped_by_task, spread
from roster.pipeline.errors import PipelineError
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.state.source_times import DELAY, NOTICE, SOURCE, UNLABELLED, Notice, SourceClock
from roster.state.store import StateError
from roster.stateful.repartition import Purge
from roster.stateful.tasks.repartition import RepartitionTopic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COLUMNS = pa.schema(
    [("carrier", pa.string()), ("day", pa.date32()), ("delay", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INPUT = Subtopology(0, ("flights",))


def repartition(*keys: str, columns: pa.Schema = COLUMNS, **more: Any) -> RepartitionTopic:
    return RepartitionTopic(INPUT, "g-by-carrier-repartition", keys or ("carrier",), columns, **more)


def arrived(passing: RepartitionTopic, records: pa.Table) -> pa.Table:
    batches = [rows for batch in records.to_batches() for rows in passing.to_rows(batch)]
    return pa.Table.from_batches(batches) if batches else passing.columns.empty_table()


def read(records: pa.Table) -> pa.Table:
    """Return records as they are read from the offset 50 on."""
    return records.append_column("offset", pa.array(range(50, 50 + len(records)), pa.int64()))


rows = st.fixed_dictionaries(
    {
        "carrier": st.none() | st.text(max_size=5),
        "day": st.none() | st.dates(),
        "delay": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "timestamp": st.none() | st.integers(0, 1 << 52).map(lambda at: EPOCH + timedelta(microseconds=at)),
    }
)


@given(st.lists(rows, max_size=20))
def test_rows_arrive_as_they_left(given_rows: list[dict[str, Any]]) -> None:
    table, passing = pa.Table.from_pylist(given_rows, COLUMNS), repartition()
    records = passing.to_records(table)
    assert arrived(passing, records).to_pylist() == given_rows
    assert records["timestamp"].to_pylist() == [row["timestamp"] for row in given_rows]
    keys = [None if row["carrier"] is None else row["carrier"].encode() for row in given_rows]
    assert records["key"].to_pylist() == keys
    assert records["partition"].to_pylist() == [0 if key is None else None for key in keys]


@given(st.lists(rows, max_size=20), st.integers(1, 12))
def test_keys_are_placed_among_the_partitions_that_the_topic_has(
    given_rows: list[dict[str, Any]], partitions: int
) -> None:
    records = repartition(partitions=partitions).to_records(pa.Table.from_pylist(given_rows, COLUMNS))
    keys = [None if row["carrier"] is None else row["carrier"].encode() for row in given_rows]
    assert records["partition"].to_pylist() == [
        0 if key is None else (kafka_python_murmur2(key) & 0x7FFFFFFF) % partitions for key in keys
    ]


def test_several_columns_make_one_key_and_rows_without_a_time_have_that_of_writing() -> None:
    passing = repartition("carrier", "delay", columns=COLUMNS.remove(3))
    records = passing.to_records(
        pa.table({"carrier": ["AA", None], "day": [None, None], "delay": [7, None]}).cast(passing.columns)
    )
    assert records["key"].to_pylist() == [b'["AA",7]', b"[null,null]"]
    assert records["partition"].to_pylist() == records["timestamp"].to_pylist() == [None, None]


@given(st.lists(rows, max_size=20), st.integers(0, 20))
def test_releases_with_and_without_labels_read_each_others_rows(given_rows: list[dict[str, Any]], cut: int) -> None:
    table, earlier = pa.Table.from_pylist(given_rows, COLUMNS), repartition()
    now = repartition(is_labelled=True, time="timestamp")
    notice = Notice(7, (1,), (5,), {5: None}, (), log_end=40)
    clock = SourceClock(5, "timestamp")
    parts = [
        now.to_records(table.slice(0, cut), clock),
        now.notices(notice, [3], {3: 40}),
        now.to_records(table.slice(cut), clock),
    ]
    assert arrived(earlier, pa.concat_tables(parts)).to_pylist() == given_rows
    found = arrived(now, read(earlier.to_records(table))).to_pylist()
    assert found == [{**row, SOURCE: UNLABELLED, DELAY: 0, NOTICE: None} for row in given_rows]
    labelled = arrived(now, read(pa.concat_tables(parts).combine_chunks())).to_pylist()
    place = min(cut, len(given_rows))
    told = labelled.pop(place)
    assert (Notice.decode(told[NOTICE]), told[DELAY]) == (notice, 50 + place)
    largest = None
    for row, given_row in zip(labelled, given_rows, strict=True):
        at = given_row["timestamp"]
        largest = at if largest is None or (at is not None and at > largest) else largest
        delay = timedelta() if at is None else largest - at
        assert row == {
            **given_row,
            SOURCE: 5,
            DELAY: min(delay // timedelta(microseconds=1), (1 << 43) - 2),
            NOTICE: None,
        }


def test_notices_of_the_releases_before_are_read() -> None:
    notice = Notice(7, (1,), (5,), {5: 3}, (5,))
    assert Notice.decode(b"[7,[1],[5],[[5,3]],[5]]") == notice
    assert Notice.decode(notice.encode()) == notice
    of_tasks = notice._replace(waiting={6: 0}, holds={5: None, 6: 2}, tasks=(5, 4))
    assert Notice.decode(b"[7,[1],[5],[[5,3]],[5],[[6,0]],[[5,null],[6,2]],[5,4],null]") == of_tasks
    logs = [None, 0, 70]
    assert [*map(Notice.decode, of_tasks.encode_each(logs))] == [of_tasks._replace(log_end=end) for end in logs]


def test_what_follows_is_done_with_rows_that_have_arrived() -> None:
    def late(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.filter(pc.field("delay") > 15)

    passing = repartition(then=ArrowFunction(late, COLUMNS))
    records = passing.to_records(pa.Table.from_pylist([{"carrier": "AA", "delay": n} for n in (5, 20, None)], COLUMNS))
    assert arrived(passing, records)["delay"].to_pylist() == [20]


def test_records_of_other_columns_are_refused() -> None:
    records = repartition().to_records(pa.Table.from_pylist([{"carrier": "AA"}], COLUMNS))
    with pytest.raises(StateError, match="the records in g-by-carrier-repartition have not the columns carrier, day"):
        arrived(repartition(columns=COLUMNS.remove(3)), records)


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        (("gate",), pa.int64(), "repartition: no column 'gate'. Name one of carrier, x"),
        (("x",), pa.float64(), "repartition: column 'x' is double; a key is of integers"),
        (("carrier",), pa.dictionary(pa.int8(), pa.string()), "repartition: column 'x' is dictionary.*make text of it"),
    ],
)
def test_columns_that_cannot_pass_are_named(keys: tuple[str, ...], kind: pa.DataType, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        repartition(*keys, columns=pa.schema([("carrier", pa.string()), ("x", kind)]))


def test_splits_of_one_task_are_together_and_of_two_sub_topologies_apart() -> None:
    numbers = {"flights": 0, "between": 1, "carriers": 1}
    splits = [Split(topic, partition, 0, 9) for topic in numbers for partition in (0, 1)]
    dealt = regrouped_by_task([splits[:3], splits[3:]], lambda split: TaskId(numbers[split.topic], split.partition))
    assert [[(split.topic, split.partition) for split in each] for each in dealt] == [
        [("flights", 0), ("flights", 1), ("between", 0), ("carriers", 0)],
        [("between", 1), ("carriers", 1)],
    ]


def test_splits_are_spread_over_all_cores_whatever_their_sizes() -> None:
    splits = [Split("t", partition, 0, size) for partition, size in enumerate([9, 0, 1])]
    assert spread([splits], 2) == [[splits[0], splits[2]], [splits[1]]]
    assert spread([splits[:1], splits[1:]], 8) == [[each] for each in splits]


class Deletions:
    def __init__(self) -> None:
        self.asked: list[Mapping[TopicPartition, int]] = []
        self.at = 0.0
        self.error: Exception | None = None

    def __call__(self, before: Mapping[TopicPartition, int]) -> None:
        self.asked.append(before)
        if self.error is not None:
            raise self.error


def read_up_to(offsets: Mapping[TopicPartition, int]) -> Batch:
    """A batch of the records before these offsets."""
    return Batch(0, Owner("g", 1, "m"), {partition: Range(0, offset) for partition, offset in offsets.items()})


def test_records_are_deleted_up_to_committed_offsets_and_not_at_every_batch() -> None:
    deletions = Deletions()
    purge = Purge(["b"], deletions, 30.0, lambda: deletions.at)
    first, second, source = TopicPartition("b", 0), TopicPartition("b", 1), TopicPartition("t", 0)
    purge.committed(read_up_to({source: 7}))
    assert deletions.asked == []
    purge.committed(read_up_to({first: 5, source: 9}))
    purge.committed(read_up_to({first: 8}))
    purge.committed(read_up_to({first: 9, second: 4}))
    assert deletions.asked == [{first: 5}]
    deletions.at = 30.0
    purge.committed(read_up_to({source: 12}))
    assert deletions.asked[1:] == [{first: 9, second: 4}]
    deletions.at = 60.0
    purge.committed(read_up_to({source: 13}))
    assert len(deletions.asked) == 2, "nothing has been committed since"


def test_records_that_cannot_be_deleted_stay_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    deletions = Deletions()
    deletions.error = AuthorizationError("grant it DELETE")
    purge = Purge(["b"], deletions, 30.0, lambda: deletions.at)
    for at in (0.0, 30.0, 60.0):
        deletions.at = at
        purge.committed(read_up_to({TopicPartition("b", 0): 5}))
    assert len(deletions.asked) == 3
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["records of b that are processed stay: grant it DELETE"]
