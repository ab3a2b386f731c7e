"""PySpark's stateful code under Spark's own operators and under Roster's: the same rows from the same random input."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupStateTimeout

from roster.spark.processor import declare
from roster.state import Position
from roster.state.lmdb_store import LmdbStore
from tests.spark.processor import processors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROUNDS = int(os.environ.get("ROSTER_PROCESSOR_ROUNDS", "0"))
SEED = int(os.environ.get("ROSTER_PROCESSOR_SEED", "11"))
BATCHES = 3
NAMES = ["tally", "sessions", "expiring", "grouped"]
SCHEMA = "k string, kind int, v int, t timestamp"
COLUMNS = pa.schema([("k", pa.string()), ("kind", pa.int32()), ("v", pa.int32()), ("t", pa.timestamp("us", "UTC"))])
DELAY = timedelta(seconds=5)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def batches(chance: random.Random, count: int = BATCHES) -> list[pa.Table]:
    """Rows whose times go on by ten seconds a batch, some of them late, some keys silent for long."""
    made = []
    for number in range(count):
        rows = []
        for _ in range(chance.randrange(1, 40)):
            seconds = (
                10 * number + chance.choice([0, 1, 2, 9]) + chance.randrange(1000) / 1000 - chance.choice([0, 0, 0, 20])
            )
            amount = chance.choice([-1, *range(40)])
            kind = chance.choice([1, 2, 3, 9])
            rows.append(
                {
                    "k": chance.choice("abcde"),
                    "kind": kind,
                    "v": amount,
                    "t": BEGIN + timedelta(milliseconds=round(1000 * seconds)),
                }
            )
        made.append(pa.Table.from_pylist(rows, schema=COLUMNS))
    return made


class UnderRoster:
    """An operator and its store, which is opened anew for each batch; an hour is never over."""

    def __init__(self, spark: SparkSession, place: Path, name: str) -> None:
        self.now = 1_800_000_000_000
        """Processing time in ms."""
        self._operator: Any = replace(operator(spark, name), clock=lambda: self.now)
        self._place = place
        self.columns: list[str] = self._operator.given.output.names
        self.rows: Counter[str] = Counter()

    def work(self, table: pa.Table) -> None:
        self.now += 1_000
        with LmdbStore(self._place) as store:
            with store.snapshot() as snapshot:
                update = self._operator(table, snapshot)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position())
        self.rows.update(map(str, map(dict.values, update.results.to_pylist())))


def operator(spark: SparkSession, name: str) -> Any:
    given: dict[str, Any] = {"event_time": None, "delay": timedelta(), "store": "s", "migrate": None}
    if name == "grouped":
        late = given | {"event_time": "t", "delay": DELAY}
        timeout = GroupStateTimeout.EventTimeTimeout
        return declare.group_state(
            spark, processors.grouped, ("k",), processors.GROUPS, "n long", timeout=timeout, **late
        ).operator
    timed: dict[str, Any] = {"time_mode": "EventTime", "event_time": "t", "delay": DELAY}
    kinds: dict[str, tuple[Any, str, dict[str, Any]]] = {
        "reminders": (processors.Reminders(), processors.REMINDERS, {"time_mode": "ProcessingTime"}),
        "reminders in pandas": (
            processors.FrameReminders(),
            processors.REMINDERS,
            {"time_mode": "ProcessingTime", "in_pandas": True},
        ),
        "sessions in pandas": (processors.FrameSessions(), processors.SESSIONS, {**timed, "in_pandas": True}),
        "tally": (processors.Tally(), processors.TALLY, {"time_mode": "None"}),
        "sessions": (processors.Sessions(), processors.SESSIONS, timed),
        "expiring": (processors.Expiring(), processors.EXPIRING, {"time_mode": "ProcessingTime", "in_pandas": True}),
    }
    processor, output, own = kinds[name]
    options = given | {"in_pandas": False, "initial_state": None} | own
    return declare.processing(spark, processor, ("k",), output, **options).operator


class UnderSpark:
    """A streaming query with Spark's operator; its rows by batch, so that a batch that is done again counts once."""

    def __init__(self, spark: SparkSession, place: Path, source: Path, name: str) -> None:
        frame = spark.readStream.schema(SCHEMA).parquet(str(source))
        late = frame.withWatermark("t", "5 seconds")
        made: Any
        if name == "tally":
            made = frame.groupBy("k").transformWithState(processors.Tally(), processors.TALLY, "Append", "None")
        elif name == "sessions":
            made = late.groupBy("k").transformWithState(
                processors.Sessions(), processors.SESSIONS, "Append", "EventTime"
            )
        elif name == "expiring":
            made = frame.groupBy("k").transformWithStateInPandas(
                processors.Expiring(), processors.EXPIRING, "Append", "ProcessingTime"
            )
        else:
            made = late.groupBy("k").applyInPandasWithState(
                processors.grouped, processors.GROUPS, "n long", "append", GroupStateTimeout.EventTimeTimeout
            )
        self._start_with(spark, place, name, made)

    @classmethod
    def of(cls, spark: SparkSession, place: Path, name: str, made: DataFrame) -> UnderSpark:
        """Start the query of a frame."""
        own = cls.__new__(cls)
        own._start_with(spark, place, name, made)
        return own

    def _start_with(self, spark: SparkSession, place: Path, name: str, made: Any) -> None:
        self._batches: dict[int, list[dict[str, Any]]] = {}
        writer = made.writeStream.foreachBatch(self._keep).outputMode("append")
        self._writer = writer.option("checkpointLocation", str(place / name))
        self._spark, self._name = spark, name
        self.query = self._start()

    def _start(self) -> Any:
        """Start the query. With processing time Spark would run batches without input for ever, one after the other."""
        name = "spark.sql.streaming.noDataMicroBatches.enabled"
        self._spark.conf.set(name, "false" if self._name == "expiring" else "true")
        try:
            return self._writer.start()
        finally:
            self._spark.conf.unset(name)

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self._batches[batch] = [row.asDict() for row in frame.collect()]

    def work(self) -> None:
        """Do all files that are there. Spark gives a Python process ten seconds to start, too few on a busy machine."""
        for _ in range(20):
            try:
                self.query.processAllAvailable()
                return
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
                self.query = self._start()
        raise AssertionError("Spark's Python processes do not start")

    @property
    def rows(self) -> Counter[str]:
        return Counter(str(row.values()) for row in self.written)

    @property
    def written(self) -> list[dict[str, Any]]:
        """All rows as dictionaries."""
        return [row for rows in self._batches.values() for row in rows]


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own, with the store that Spark wants for these operators."""
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    own.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    return own


class InTester:
    """PySpark's `TwsTester`, which does in memory what Spark's operator does with a key, but for time to live."""

    def __init__(self, tester: Any, columns: list[str], *, in_pandas: bool) -> None:
        self.tester, self._columns, self._in_pandas = tester, columns, in_pandas
        self.rows: Counter[str] = Counter()

    def work(self, table: pa.Table) -> None:
        """Hand over the rows of each key."""
        for key in sorted(set(table["k"].to_pylist())):
            given = table.filter(pc.equal(table["k"], key))
            if self._in_pandas:
                self.took(self.tester.testInPandas(key, given.to_pandas().assign(t=naive)))
            else:
                self.took(self.tester.test(key, [Row(**row) for row in given.to_pylist()]))

    def took(self, made: Any) -> None:
        """Count rows."""
        rows = made.to_dict("records") if isinstance(made, pd.DataFrame) else [row.asDict() for row in made]
        self.rows.update(str(dict.values({name: plain(row[name]) for name in self._columns})) for row in rows)


def naive(frame: pd.DataFrame) -> Any:
    """Times as Spark gives them to pandas: in the session's zone, which is UTC, and without it."""
    return frame["t"].dt.tz_localize(None)


def plain(value: Any) -> Any:
    """A value of Row or DataFrame as Arrow gives it."""
    return None if pd.isna(value) else value.item() if hasattr(value, "item") else int(value) if value == 0 else value


@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(1)
def test_timers_of_processing_time_are_due_as_in_pysparks_tester(
    spark: SparkSession, tmp_path: Path, seed: int, *, in_pandas: bool
) -> None:
    """Also in batches without rows, which keys are silent in."""
    tester_of = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 brought it").TwsTester
    here = UnderRoster(spark, tmp_path, "reminders in pandas" if in_pandas else "reminders")
    processor = processors.FrameReminders() if in_pandas else processors.Reminders()
    there = InTester(tester_of(processor, timeMode="ProcessingTime"), here.columns, in_pandas=in_pandas)
    chance = random.Random(SEED + seed)
    reminded = 0
    for number, table in enumerate(batches(chance, 12)):
        here.now += chance.choice([1, 500, 3_000])
        here.work(COLUMNS.empty_table())
        before = there.rows.total()
        there.took(there.tester.setProcessingTime(here.now))
        reminded += there.rows.total() - before
        assert here.rows == there.rows, f"timers of batch {number}"
        here.now -= 1_000  # `work` moves the clock on; the timers of these rows are later
        here.work(table)
        there.work(table)
        assert here.rows == there.rows, f"rows of batch {number}"
    assert reminded > 5


@pytest.mark.parametrize("name", ["tally", "sessions", "sessions in pandas"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(3)
def test_the_same_rows_as_in_pysparks_tester(spark: SparkSession, tmp_path: Path, name: str, seed: int) -> None:
    tester_of = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 brought it").TwsTester
    here = UnderRoster(spark, tmp_path, name)
    in_pandas, is_timed = name.endswith("pandas"), name != "tally"
    processor = processors.FrameSessions() if in_pandas else processors.Sessions() if is_timed else processors.Tally()
    timed: dict[str, Any] = {"timeMode": "EventTime", "eventTimeExtractor": lambda row: millis_of(row.t)}
    there = InTester(tester_of(processor, **(timed if is_timed else {})), here.columns, in_pandas=in_pandas)
    newest = 0
    for number, table in enumerate(batches(random.Random(SEED + seed), 8)):
        here.work(table)
        is_fresh = [not is_timed or millis_of(at) > newest for at in table["t"].to_pylist()]
        there.work(table.filter(pa.array(is_fresh)))
        latest = max(map(millis_of, table["t"].to_pylist())) - round(DELAY.total_seconds() * 1000)
        if is_timed and latest > newest:
            newest = latest
            there.took(there.tester.setWatermark(newest))
        assert here.rows == there.rows, number
    assert len(there.rows) > 5


def millis_of(moment: Any) -> int:
    """A time as ms; one without a zone is UTC."""
    return processors.millis(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


@pytest.mark.parametrize("name", NAMES if ROUNDS else ["grouped"])
@pytest.mark.parametrize("seed", range(max(ROUNDS, 1)))
def test_the_same_rows_as_under_spark(session: SparkSession, tmp_path: Path, seed: int, name: str) -> None:
    """All operators in as many rounds as asked for; by default the one that does not start a process for each batch."""
    source = tmp_path / "source"
    source.mkdir()
    here, there = UnderRoster(session, tmp_path / "store", name), None
    try:
        for number, table in enumerate(batches(random.Random(SEED + seed))):
            pq.write_table(table, tmp_path / "part")
            (tmp_path / "part").rename(source / f"{number}.parquet")
            there = there or UnderSpark(session, tmp_path, source, name)
            there.work()
            here.work(table)
            assert here.rows == there.rows, number
        assert here.rows
    finally:
        if there is not None:
            there.query.stop()


INNER = pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
TOLD = pa.schema(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("k", pa.string()),
        ("b", pa.binary()),
        ("d", pa.date32()),
        ("v", pa.int32()),
        ("of", INNER),
        ("m", pa.map_(pa.string(), INNER)),
        ("l", pa.list_(pa.int64())),
        ("x", pa.list_(INNER)),
        ("flag", pa.bool_()),
    ]
)
TOLD_DDL = (
    "t timestamp, k string, b binary, d date, v int, of struct<at: timestamp, n: bigint>,"
    " m map<string, struct<at: timestamp, n: bigint>>, l array<bigint>, x array<struct<at: timestamp, n: bigint>>,"
    " flag boolean"
)


def told_rows() -> pa.Table:
    """Rows of three keys, with nulls at every depth."""
    of = {"at": BEGIN, "n": 2**53 + 1}
    full = {"of": of, "m": {"a": of, "b": None}, "l": [2**53 + 1, 1], "x": [of, {"at": None, "n": None}], "flag": True}
    keys = [{"t": BEGIN + timedelta(hours=n), "k": "abc"[n], "b": b"\x00b", "d": BEGIN.date()} for n in range(3)]
    rows = [
        keys[0] | full | {"v": 1},
        keys[0] | full | {"v": 2, "l": [None], "flag": False},
        keys[1] | {"v": 3, "of": {"at": None, "n": 5}, "m": {}, "l": [], "x": [None]},
        keys[2] | full | {"v": 4},
    ]
    return pa.Table.from_pylist([row | {"m": list(row["m"].items())} for row in rows], schema=TOLD)


@pytest.mark.gate
@pytest.mark.parametrize("name", ["rows", "pandas", "group state"])
def test_keys_rows_and_frames_are_those_of_spark(session: SparkSession, tmp_path: Path, name: str) -> None:
    """In a zone that is neither the process's nor UTC, with all their types."""
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    keys = ("t", "k", "b", "d")
    late: dict[str, Any] = {"event_time": "t", "delay": DELAY, "store": "s", "migrate": None}
    source = tmp_path / "source"
    source.mkdir()
    pq.write_table(told_rows(), source / "0.parquet")
    groups: Any = (
        session.readStream.schema(TOLD_DDL).parquet(str(source)).withWatermark("t", "5 seconds").groupBy(*keys)
    )
    timeout = GroupStateTimeout.EventTimeTimeout
    output = processors.TELLING
    if name == "group state":
        made = groups.applyInPandasWithState(processors.telling, output, "n long", "append", timeout)
        own = declare.group_state(session, processors.telling, keys, output, "n long", timeout=timeout, **late)
    else:
        in_pandas = name == "pandas"
        code = processors.FrameTelling() if in_pandas else processors.Telling()
        transform = groups.transformWithStateInPandas if in_pandas else groups.transformWithState
        made = transform(code, output, "Append", "EventTime")
        late |= {"time_mode": "EventTime", "in_pandas": in_pandas, "initial_state": None}
        own = declare.processing(session, code, keys, output, **late)
    there = UnderSpark.of(session, tmp_path, name, made)
    try:
        there.work()
        with LmdbStore(tmp_path / "store") as store:
            here = own.operator(told_rows(), store).results["text"].to_pylist()
        assert sorted(here) == sorted(row["text"] for row in there.written)
        assert len(here) == 6
    finally:
        there.query.stop()
