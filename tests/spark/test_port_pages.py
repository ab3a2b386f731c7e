"""The programs of the pages on moving to Roster: before and after give the same, also where one takes over."""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from pyspark.sql import functions as F

from benchmarks.connector import jars
from benchmarks.peers import MissingError, quix_streams, streams_jars
from roster.spark import read_stream, write_stream
from roster.testing import running_broker
from tests.librdkafka import idempotent_producer
from tests.real.realparts import jvm, require_real
from tests.spark.programs import run_in_session
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(?:python|java)\n(?:#|//) (\w+\.\w+).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
START = datetime(2026, 3, 1, 10, tzinfo=UTC)
pytestmark = [pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(600)]

Rows = list[dict[str, Any]]
T = TypeVar("T")


def reached(what: str, get: Callable[[], T]) -> T:
    """What had to be fetched, or the test ends with `require_real`."""
    try:
        return get()
    except MissingError as missing:
        require_real(f"{what}: {missing}")


class Programs:
    """The programs of a page in a folder, run in the tests' session."""

    def __init__(self, spark: SparkSession, page: str, folder: Path) -> None:
        self._spark, self.folder = spark, folder
        for name, text in BLOCK.findall((PAGES / page).read_text()):
            (folder / name).write_text(text)

    def run(self, name: str, *arguments: str) -> str:
        """Run one as `python NAME ARGUMENTS`; its output."""
        for other in self.folder.glob("*.py"):
            sys.modules.pop(other.stem, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(self.folder)
            return run_in_session(self._spark, self.folder, self.folder / name, *arguments)


@pytest.fixture(scope="module")
def connected(spark: SparkSession) -> SparkSession:
    """The session, with Spark's Kafka connector."""
    for jar in reached("Spark's Kafka connector", jars)[1]:
        spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Makes clusters of their own, with topics of fixed names in two partitions."""
    with ExitStack() as stack:

        def made(*names: str) -> Topics:
            topics = stack.enter_context(Topics(stack.enter_context(running_broker()).bootstrap))
            for name in names:
                topics.admin.create_topic(name, 2)
            return topics

        yield made


def produce(topics: Topics, topic: str, rows: Iterable[tuple[str, dict[str, Any], datetime]]) -> None:
    """Append JSON objects by key, placed as Java's producers do."""
    producer = idempotent_producer(topics.bootstrap, {"partitioner": "murmur2_random"})
    for key, row, at in rows:
        producer.produce(topic, json.dumps(row), key, timestamp=int(at.timestamp() * 1000))
    assert producer.flush(60) == 0


def objects(topics: Topics, topic: str) -> Rows:
    """Committed values of a topic, sorted."""
    return sorted((json.loads(value) for _, _, value in committed_records(topics, topic) if value), key=str)


def text(at: datetime) -> str:
    """A time as JSON of Spark and Roster has it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- Structured Streaming -----------------------------------------------------------------------------------------


def ordered(count: int) -> list[tuple[str, dict[str, Any], datetime]]:
    """Orders four seconds apart, up to five minutes out of order; every seventh comes again a little later."""
    chance, rows, again = random.Random(24), [], []
    for number in range(count):
        at = START + timedelta(seconds=4 * number + 400 - chance.randrange(300), milliseconds=number % 1000)
        row = {"order": str(number), "shop": f"shop {chance.randrange(6)}", "item": f"item {number % 5}"}
        row |= {"price": chance.randrange(400) / 4, "amount": chance.randrange(1, 4), "ordered": text(at)}
        rows.append((row["shop"], row, at))
        again = [*again, rows[-1]] if number % 7 == 3 else again
        if len(again) > 5:
            rows.append(again.pop(0))
    return rows


def totals(rows: Iterable[tuple[str, dict[str, Any], datetime]], until: datetime) -> Rows:
    """What the windows of shops are, in plain Python, of those that end by then."""
    hours: dict[tuple[str, datetime], list[dict[str, Any]]] = {}
    for shop, row, at in rows:
        hours.setdefault((shop, at.replace(minute=0, second=0, microsecond=0)), []).append(row)
    found = [
        {
            "window_start": text(hour),
            "window_end": text(hour + timedelta(hours=1)),
            "shop": shop,
            "orders": len(taken),
            "revenue": sum(row["price"] * row["amount"] for row in taken),
            "mean": sum(row["price"] for row in taken) / len(taken),
        }
        for (shop, hour), taken in hours.items()
        if hour + timedelta(hours=1) <= until
    ]
    return sorted(found, key=str)


class Results:
    """What the programs have written: windows, orders and prices."""

    def __init__(self, spark: SparkSession, topics: Topics, folder: Path) -> None:
        self.hours = objects(topics, "hours")
        files = [str(path) for path in (folder / "orders", folder / "orders-new") if path.exists()]
        self.orders = sorted(row["order"] for path in files for row in spark.read.parquet(path).collect())
        with sqlite3.connect(folder / "prices.db") as database:
            self.prices = sorted(database.execute("select * from prices"))


def test_from_structured_streaming(connected: SparkSession, cluster: Any, tmp_path: Path) -> None:
    rows = ordered(3_000)
    half, closed = 1_800, rows[-1][2] - timedelta(minutes=10)
    old, new, moved = (cluster("orders", "hours") for _ in range(3))
    for topics in (old, new):
        produce(topics, "orders", rows)
    produce(moved, "orders", rows[:half])
    folders = [tmp_path / name for name in ("old", "new", "moved")]
    for folder in folders:
        folder.mkdir()
    programs = Programs(connected, "from-structured-streaming.md", tmp_path)

    programs.run("before.py", old.bootstrap, str(folders[0]))
    before = Results(connected, old, folders[0])
    assert before.hours == totals(rows, closed)
    assert before.orders == sorted(str(number) for number in range(3_000))

    programs.run("after.py", new.bootstrap, str(folders[1]))
    after = Results(connected, new, folders[1])
    assert vars(after) == vars(before)

    programs.run("before.py", moved.bootstrap, str(folders[2]))
    assert 0 < len(objects(moved, "hours")) < len(before.hours)
    produce(moved, "orders", rows[half:])
    programs.run("move.py", moved.bootstrap, str(folders[2]))
    programs.run("after.py", moved.bootstrap, str(folders[2]))
    assert vars(Results(connected, moved, folders[2])) == vars(before)


# -- Kafka Streams ------------------------------------------------------------------------------------------------

CATEGORIES = {f"item {number}": f"category {number % 3}" for number in range(8)}
EPOCH = "1970-01-01T00:00+00:00"


def day(begin: datetime, count: int) -> list[tuple[str, dict[str, Any], datetime]]:
    """Orders of twenty hours from then on, keyed by item."""
    chance, rows = random.Random(begin.day), []
    for number in range(count):
        item = f"item {chance.randrange(9)}"  # the last is no item of the table
        at = begin + timedelta(hours=20) * number / count - timedelta(seconds=chance.randrange(300))
        rows.append((item, {"item": item, "price": chance.randrange(400) / 4, "amount": chance.randrange(1, 4)}, at))
    return rows


def last(day: int) -> list[tuple[str, dict[str, Any], datetime]]:
    """An order of each item and thus category at noon of that day, which closes the windows before."""
    at = START.replace(day=day, hour=12)
    return [(item, {"item": item, "price": 1.0, "amount": 1}, at) for item in CATEGORIES]


def hours_of(rows: Iterable[tuple[str, dict[str, Any], datetime]], since: datetime, until: datetime) -> Rows:
    """What the windows of categories are, of those that begin between the two times."""
    sums: dict[tuple[str, datetime], list[float]] = {}
    for item, row, at in rows:
        hour = at.replace(minute=0, second=0, microsecond=0)
        if item in CATEGORIES and since <= hour < until:
            sums.setdefault((CATEGORIES[item], hour), []).append(row["price"] * row["amount"])
    found = [
        {
            "window_start": text(hour),
            "window_end": text(hour + timedelta(hours=1)),
            "category": category,
            "orders": len(revenues),
            "revenue": sum(revenues),
        }
        for (category, hour), revenues in sums.items()
    ]
    return sorted(found, key=by_key)


def by_key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("window_start", "category", "item") if name in row)


def totals_of(rows: Iterable[tuple[str, dict[str, Any], datetime]]) -> dict[str, tuple[int, float]]:
    """Orders and revenue of each item."""
    sums: dict[str, tuple[int, float]] = {}
    for item, row, _ in rows:
        orders, revenue = sums.get(item, (0, 0.0))
        sums[item] = orders + 1, revenue + row["price"] * row["amount"]
    return sums


def written_hours(topics: Topics) -> Rows:
    return sorted((json.loads(value) for _, _, value in committed_records(topics, "hours") if value), key=by_key)


def newest_totals(topics: Topics) -> dict[str, tuple[int, float]]:
    rows = [json.loads(value) for _, _, value in committed_records(topics, "totals") if value]
    return {row["item"]: (row["orders"], row["revenue"]) for row in rows}


@contextmanager
def running(command: list[str], folder: Path, **variables: str) -> Iterator[None]:
    """A program, running; it ends in order."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | variables)
    try:
        yield
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def test_code_without_state_gives_what_structured_streaming_gives(
    connected: SparkSession, cluster: Any, tmp_path: Path
) -> None:
    """On a frame of Spark's own source, and on one of read_stream, in another zone of the session."""
    topics = cluster("orders")
    produce(topics, "orders", ordered(300))
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": "orders", "startingOffsets": "earliest"}
    items = connected.createDataFrame([(f"item {n}", n % 2 == 0) for n in range(4)], "item string, fresh boolean")

    def program(records: Any) -> Any:
        order = F.from_json(F.col("value").cast("string"), "shop string, item string, price double, ordered timestamp")
        rows = records.select("topic", "partition", "offset", order.alias("o"), F.col("key").cast("string"))
        rows = rows.select("*", "o.*").drop("o").withWatermark("ordered", "1 hour").join(items, "item", "left")
        rows = rows.withColumn("word", F.explode(F.split("shop", " "))).where("word <> '3' or fresh")
        day = F.date_format("ordered", "yyyy-MM-dd HH:mm")
        return rows.select(
            "*", day.alias("day"), F.round("price", 1).alias("rounded"), F.window("ordered", "7 minutes")
        )

    zone = connected.conf.get("spark.sql.session.timeZone")
    connected.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        theirs = connected.readStream.format("kafka").options(**options).load()
        query = program(theirs).writeStream.trigger(availableNow=True).option("checkpointLocation", f"{tmp_path}/check")
        query.start(f"{tmp_path}/expected").awaitTermination()
        expected = connected.read.parquet(f"{tmp_path}/expected")
        ours = read_stream(connected).options(**options).load()
        for name, frame in (("theirs", theirs), ("ours", ours)):
            assert frame.schema == theirs.schema
            query = write_stream(program(frame)).queryName(name).trigger(availableNow=True).start(f"{tmp_path}/{name}")
            query.awaitTermination()
            rows = connected.read.parquet(f"{tmp_path}/{name}")
            assert rows.dtypes == expected.dtypes
            assert sorted(map(repr, rows.collect())) == sorted(map(repr, expected.collect()))
            assert rows.count() > 300
    finally:
        connected.conf.set("spark.sql.session.timeZone", zone)


def test_from_kafka_streams(connected: SparkSession, cluster: Any, tmp_path: Path) -> None:
    first, second = day(START, 2_000), day(START.replace(day=5, hour=12), 2_000)
    closing, later = START.replace(day=5, hour=0), START.replace(day=9, hour=0)
    items = [(item, {"category": category}, START - timedelta(days=1)) for item, category in CATEGORIES.items()]
    programs = Programs(connected, "from-kafka-streams.md", tmp_path)
    old, new = (cluster("orders", "items", "hours", "totals") for _ in range(2))
    for topics in (old, new):
        produce(topics, "items", items)
        produce(topics, "orders", first)
    expected = hours_of(first, START - timedelta(days=1), closing)

    path = f"{reached('Kafka Streams', streams_jars)}/*"
    path = f"{jvm.compiled([tmp_path / 'Orders.java'], path)}:{path}"
    java = [jvm.tool("java"), *jvm.QUICK_START, "-Xmx300m", "-cp", path, "Orders"]
    with running([*java, old.bootstrap, str(tmp_path / "streams")], tmp_path):
        until(lambda: newest_totals(old) == totals_of(first), 90)
        between = "orders-streams-by-category-repartition"
        until(lambda: old.ends(between).items() <= old.committed("orders-streams").items(), 90)
        produce(old, "orders", last(5))
        until(lambda: len(written_hours(old)) >= len(expected), 90)
    assert written_hours(old) == expected

    programs.run("after.py", new.bootstrap, str(tmp_path / "new"), EPOCH)
    produce(new, "orders", last(5))
    programs.run("after.py", new.bootstrap, str(tmp_path / "new"), EPOCH)
    assert written_hours(new) == expected
    assert newest_totals(new) == newest_totals(old) == totals_of([*first, *last(5)])

    arguments = old.bootstrap, str(tmp_path / "moved"), closing.isoformat()
    programs.run("move.py", *arguments)
    produce(old, "orders", second)
    programs.run("after.py", *arguments)
    produce(old, "orders", last(9))
    programs.run("after.py", *arguments)
    everything = [*first, *last(5), *second, *last(9)]
    assert written_hours(old) == hours_of(everything, START - timedelta(days=1), later)
    assert newest_totals(old) == totals_of(everything)


# -- quix-streams -------------------------------------------------------------------------------------------------


def windows_closed(topics: Topics, rows: Iterable[tuple[str, dict[str, Any], datetime]]) -> Rows:
    """What the windows of items are, of those that their partition's time has passed by ten minutes."""
    partition = {key: number for number, key, _ in committed_records(topics, "orders")}
    sums: dict[tuple[str, datetime], list[float]] = {}
    times: dict[int, datetime] = {}
    for item, row, at in rows:
        number = partition[item.encode()]
        times[number] = max(at, times.get(number, at))
        hour = at.replace(minute=0, second=0, microsecond=0)
        sums.setdefault((item, hour), []).append(row["price"] * row["amount"])
    found = [
        {
            "window_start": text(hour),
            "window_end": text(hour + timedelta(hours=1)),
            "item": item,
            "orders": len(revenues),
            "revenue": sum(revenues),
        }
        for (item, hour), revenues in sums.items()
        if hour + timedelta(hours=1, minutes=10) <= times[partition[item.encode()]]
    ]
    return sorted(found, key=by_key)


def jumps_of(rows: Iterable[tuple[str, dict[str, Any], datetime]]) -> Rows:
    """Prices of more than twice the item's price before."""
    before, found = dict[str, float](), []
    for item, row, _ in rows:
        if item in before and row["price"] > 2 * before[item]:
            found.append({"item": item, "before": before[item], "price": row["price"]})
        before[item] = row["price"]
    return sorted(found, key=str)


def written_jumps(topics: Topics) -> Rows:
    return sorted(
        ({**row, "before": float(row["before"]), "price": float(row["price"])} for row in objects(topics, "jumps")),
        key=str,
    )


def test_from_quix_streams(connected: SparkSession, cluster: Any, tmp_path: Path) -> None:
    rows = day(START, 3_000)
    programs = Programs(connected, "from-quix-streams.md", tmp_path)
    old, new = (cluster("orders", "hours", "jumps") for _ in range(2))
    produce(old, "orders", rows[:1_700])
    produce(new, "orders", rows)

    library = reached("quix-streams", quix_streams)
    command = [sys.executable, str(tmp_path / "before.py"), old.bootstrap, str(tmp_path / "quix")]
    with running(command, tmp_path, PYTHONPATH=str(library)):
        until(lambda: old.committed("orders-quix") == old.ends("orders"), 90)
    assert written_hours(old) == windows_closed(old, rows[:1_700])
    assert written_jumps(old) == jumps_of(rows[:1_700])

    programs.run("after.py", new.bootstrap, str(tmp_path / "new"))
    assert written_hours(new) == windows_closed(new, rows)
    assert written_jumps(new) == jumps_of(rows)

    programs.run("move.py", old.bootstrap, str(tmp_path / "moved"))
    produce(old, "orders", rows[1_700:])
    programs.run("after.py", old.bootstrap, str(tmp_path / "moved"))
    assert written_hours(old) == written_hours(new)
    assert written_jumps(old) == written_jumps(new)
