"""Delta tables: each offset once, whoever writes, dies or comes back; on a local path and on an S3 server."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import (
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from roster.model import TopicPartition
from roster.spark import Batch, DeltaSink, Owner, PipelineError, Range, SinkFencedError
from tests.spark.table_worker import GROUP, SCHEMA, staged, work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from roster.spark.sinks.table import TableSink

pytestmark = [pytest.mark.timeout(600), pytest.mark.process]

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Place:
    """Where tables lie: a folder, or a bucket of an S3 server."""

    def __init__(self, root: str, options: dict[str, str]) -> None:
        self.root, self.options = root, options

    def sink(self, **more: Any) -> DeltaSink:
        return DeltaSink(f"{self.root}/table", storage_options=self.options, **more)

    def table(self) -> DeltaTable:
        return DeltaTable(f"{self.root}/table", storage_options=self.options)

    def rows(self) -> list[tuple[int, int, int]]:
        found = self.table().to_pyarrow_table().to_pylist()
        return sorted((row["partition"], row["offset"], row["shop"]) for row in found)


SERVER = """
import sys, boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
secrets = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **secrets)
client.create_bucket(Bucket="tables")
print(port, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    """An S3 server in a process of its own: deltalake waits for it with the interpreter's lock held."""
    command = [sys.executable, "-c", SERVER]
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **quiet) as server:  # type: ignore[call-overload]
        while not (line := server.stdout.readline()).strip().isdecimal():
            assert line
        options = {"aws_endpoint_url": f"http://127.0.0.1:{line.strip()}", "allow_http": "true"}
        secrets = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}
        yield "s3://tables", {**options, **secrets}
        server.kill()


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(str(tmp_path), {})
    root, options = request.getfixturevalue("s3")
    return Place(f"{root}/{tmp_path.name}", options)


def opened(sink: TableSink, *partitions: TopicPartition, member: str = "m") -> TableSink:
    sink.open(None, GROUP)  # type: ignore[arg-type]
    sink.claim(partitions, Owner(GROUP, 1, member), {})
    return sink


def batch(ranges: dict[TopicPartition, tuple[int, int]], member: str = "m") -> Batch:
    return Batch(0, Owner(GROUP, 1, member), {p: Range(*span) for p, span in ranges.items()})


def plain(ends: dict[int, int]) -> list[tuple[int, int, int]]:
    return [(partition, offset, offset % 3) for partition, end in sorted(ends.items()) for offset in range(end)]


@pytest.mark.parametrize("partition_by", [[], ["shop"]])
def test_batches_are_rows_and_positions_in_one_commit(place: Place, partition_by: list[str]) -> None:
    sink = opened(place.sink(partition_by=partition_by), T0, T1)
    for ranges in ({T0: (0, 10)}, {T0: (10, 12), T1: (0, 7)}):
        each = batch(ranges)
        sink.commit(staged(sink, each), each)
    assert place.rows() == plain({0: 12, 1: 7})
    assert sink.positions(GROUP, [T0, T1]) == {T0: 12, T1: 7}
    assert sink.positions("another", [T0]) == {}
    assert place.table().version() == 2
    assert place.table().metadata().partition_columns == partition_by
    assert place.table().transaction_version("roster/g/t/0") == 12
    assert place.table().history(1)[0]["roster"]["member"] == "m"


def test_of_two_owners_one_wins_and_the_other_reads_again(place: Place) -> None:
    old, new = (opened(place.sink(), T0, member=name) for name in ("old", "new"))
    slow, quick = batch({T0: (0, 10)}, "old"), batch({T0: (0, 4)}, "new")
    late = staged(old, slow)
    new.commit(staged(new, quick), quick)
    with pytest.raises(SinkFencedError, match="t-0 stands at 4, not at 0"):
        old.commit(late, slow)
    assert old.claim([T0], slow.owner, {}) == {T0: 4}
    assert place.rows() == plain({0: 4})
    names = {uri.rpartition("/")[2] for uri in place.table().file_uris()}
    assert not {file.name for file in late.files} & names
    with pytest.raises(OSError):  # noqa: PT011 - of whichever file system
        late.writer.files.open_input_file(late.writer.path(late.files[0].name))


def test_owners_of_other_partitions_do_not_disturb_each_other(place: Place) -> None:
    one, two = opened(place.sink(), T0), opened(place.sink(), T1)
    for start in range(0, 30, 10):
        first, second = batch({T0: (start, start + 10)}), batch({T1: (start, start + 10)})
        both = staged(one, first), staged(two, second)
        one.commit(both[0], first)
        two.commit(both[1], second)
    assert place.rows() == plain({0: 30, 1: 30})


def test_a_position_that_another_sink_has_passed_moves_up(place: Place) -> None:
    sink = opened(place.sink(), T0)
    first = batch({T0: (0, 5)})
    sink.commit(staged(sink, first), first)
    assert sink.claim([T0, T1], first.owner, {T0: 8, T1: 3}) == {T0: 8}
    second = batch({T0: (8, 9)})
    sink.commit(staged(sink, second), second)
    assert sink.positions(GROUP, [T0]) == {T0: 9}
    gap = batch({T0: (12, 13)})
    with pytest.raises(SinkFencedError, match="stands at 9, not at 12"):
        sink.commit(staged(sink, gap), gap)


@pytest.mark.parametrize("seed", range(5))
def test_random_histories_of_two_owners(tmp_path: Path, seed: int) -> None:
    """Each owner writes, commits late, dies and claims again at random moments."""
    chance = random.Random(seed)
    place = Place(str(tmp_path), {})
    owners = [opened(place.sink(), T0, T1, member=name) for name in "ab"]
    at: list[dict[TopicPartition, int]] = [{}, {}]
    held: list[Any] = [None, None]
    for _ in range(60):
        me = chance.randrange(2)
        if chance.random() < 0.2:
            owners[me] = opened(place.sink(), member=f"n{chance.random()}")
            at[me] = {T0: 0, T1: 0, **owners[me].claim([T0, T1], Owner(GROUP, 1, "x"), {})}
            held[me] = None
        elif held[me] is None:
            at[me] = at[me] or {T0: 0, T1: 0, **owners[me].claim([T0, T1], Owner(GROUP, 1, "x"), {})}
            chosen = chance.sample([T0, T1], chance.randint(1, 2))
            each = batch({p: (at[me][p], at[me][p] + chance.randint(1, 5)) for p in chosen})
            held[me] = each, staged(owners[me], each)
        else:
            each, files = held[me]
            try:
                owners[me].commit(files, each)
                at[me].update(each.next_offsets)
            except SinkFencedError:
                at[me] = {}
            held[me] = None
    ends = owners[0].positions(GROUP, [T0, T1])
    assert place.rows() == plain({p.partition: end for p, end in ends.items()})


def test_a_commit_whose_answer_is_lost_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(str(tmp_path), {})
    sink = opened(place.sink(), T0)
    commit = DeltaTable.create_write_transaction
    calls = []

    def lossy(self: DeltaTable, *arguments: Any, **more: Any) -> None:
        calls.append(commit(self, *arguments, **more))
        raise DeltaError("the connection broke")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lossy)
    only = batch({T0: (0, 10)})
    sink.commit(staged(sink, only), only)
    assert len(calls) == 1
    assert place.rows() == plain({0: 10})
    second = batch({T0: (10, 11)})
    sink.commit(staged(sink, second), second)
    assert place.rows() == plain({0: 11})


def test_a_storage_that_goes_on_failing_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(Place(str(tmp_path), {}).sink(), T0)

    def broken(*_: Any, **__: Any) -> None:
        raise DeltaError("the disk is full")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", broken)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    only = batch({T0: (0, 10)})
    with pytest.raises(PipelineError, match=r"DeltaSink: 100 commits in a row failed .* with the disk is full"):
        sink.commit(staged(sink, only), only)


def _work(root: str, options: dict[str, str], member: str, end: int) -> None:
    place = Place(root, options)
    work(place.sink, member, 2, end, 7)


def test_twenty_kills_and_take_overs(place: Place) -> None:
    """Two applications at a time on the same partitions; one of them is killed at a random moment, twenty times."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["deltalake", "tests.spark.test_delta_sink"])
    chance = random.Random(3)
    end = 140 if place.options else 700  # a request to the S3 server takes its time

    def start(number: int) -> Any:
        process = context.Process(target=_work, args=(place.root, place.options, f"m{number}", end))
        process.start()
        return process

    running = [start(0), start(1)]
    for number in range(2, 22):
        victim = chance.choice(running)
        victim.join(chance.uniform(0.0, 0.6))
        victim.kill()
        victim.join()
        running.remove(victim)
        running.append(start(number))
    for process in running:
        process.join()
        assert process.exitcode == 0
    assert place.rows() == plain({0: end, 1: end})


def test_what_a_commit_says_of_its_files(tmp_path: Path) -> None:
    schema = StructType(
        [
            StructField("n", LongType()),
            StructField("text", StringType()),
            StructField("day", DateType()),
            StructField("at", TimestampType()),
            StructField("flag", BooleanType()),
            StructField("long", StringType()),
        ]
    )
    day = datetime.date(2024, 2, 29)
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 456_789, tzinfo=datetime.UTC)
    place = Place(str(tmp_path), {})
    sink = opened(place.sink(partition_by=["day", "flag"]), T0)
    only = batch({T0: (0, 3)})
    writer = sink.task_writer(only, schema)
    output = writer.open()
    output.write(
        pa.table(
            {
                "n": [1, None, 3],
                "text": ["a", "c", "b"],
                "day": [day, day, None],
                "at": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
                "flag": [True, True, False],
                "long": ["x" * 50] * 3,
            }
        ).to_batches()[0]
    )
    sink.commit(sink.collect(writer, [output.close()], only), only)
    lines = (tmp_path / "table" / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    added = [json.loads(line)["add"] for line in lines if '"add"' in line]
    assert [add["partitionValues"] for add in added] == [
        {"day": "2024-02-29", "flag": "true"},
        {"day": None, "flag": "false"},
    ] or [add["partitionValues"] for add in added] == [
        {"day": None, "flag": "false"},
        {"day": "2024-02-29", "flag": "true"},
    ]
    found = {add["partitionValues"]["flag"]: json.loads(add["stats"]) for add in added}
    assert found["true"] == {
        "numRecords": 2,
        "minValues": {"n": 1, "text": "a"},
        "maxValues": {"n": 1, "text": "c"},
        "nullCount": {"n": 1, "text": 0, "at": 1, "long": 0},
    }
    read = place.table().to_pyarrow_table().sort_by("text").to_pylist()
    assert [row["at"] for row in read] == [moment, moment, None]
    assert [(row["day"], row["flag"]) for row in read] == [(day, True), (None, False), (day, True)]


@pytest.mark.parametrize(
    ("fields", "options", "problem"),
    [
        ({"partition": IntegerType(), "offset": LongType()}, {}, "the rows and the table differ in shop"),
        ({"partition": LongType(), "offset": LongType(), "shop": IntegerType()}, {}, "differ in partition"),
        ({"n": LongType()}, {"partition_by": ["day"]}, "partition_by: the rows have no column `day` .they have n."),
        ({"n": LongType(), "at": TimestampType()}, {"partition_by": ["at"]}, "column `at` is timestamp: only text"),
        ({"n": LongType()}, {"partition_by": ["n"]}, "all columns partition the table"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    place = Place(str(tmp_path), {})
    opened(place.sink(), T0).task_writer(batch({T0: (0, 1)}), SCHEMA)
    sink = opened(place.sink(**options), T0)
    with pytest.raises(PipelineError, match=problem):
        sink.task_writer(batch({T0: (0, 1)}), StructType([StructField(*field) for field in fields.items()]))


def test_a_table_is_not_partitioned_anew(tmp_path: Path) -> None:
    place = Place(str(tmp_path), {})
    opened(place.sink(), T0).task_writer(batch({T0: (0, 1)}), SCHEMA)
    with pytest.raises(PipelineError, match="partition_by: the table is partitioned by nothing"):
        opened(place.sink(partition_by=["shop"]), T0).task_writer(batch({T0: (0, 1)}), SCHEMA)


def test_a_place_that_cannot_be_reached_is_one_error() -> None:
    options = {"aws_endpoint_url": "http://127.0.0.1:1", "allow_http": "true", "aws_region": "x", "max_retries": "0"}
    with pytest.raises(PipelineError, match=r"DeltaSink: s3://none/table cannot be read: .* Check table and"):
        DeltaSink(
            "s3://none/table", storage_options={**options, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
        ).open(None, "g")  # type: ignore[arg-type]


def test_warming_up_creates_nothing(tmp_path: Path) -> None:
    sink = opened(Place(str(tmp_path), {}).sink(), T0)
    output = sink.task_writer(None, SCHEMA).open()
    assert output.close() == []
    assert not (tmp_path / "table").exists()
