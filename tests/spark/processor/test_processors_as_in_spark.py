"""What Spark's own tests of stateful Python code ask of it, asked of Roster's operators: no JVM is needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as spark
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

from roster.pipeline.errors import FunctionError
from roster.pipeline.spark_schemas import arrow_schema
from roster.spark.processor.code import Given, InitialState
from roster.spark.processor.group_state import MODES
from roster.spark.processor.operator import GroupStateOperator, ProcessorOperator
from roster.spark.steps import pickled
from roster.state import Position, StateError
from roster.state.lmdb_store import LmdbStore
from roster.state.processor.batch import Plan, TimeMode
from roster.stateful.tasks.store_location import open_store
from roster.stateful.tasks.subtopology import definition_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

YEAR = 365 * 24 * 3_600_000
INT, LONG, TEXT = spark.IntegerType(), spark.LongType(), spark.StringType()


def struct(**fields: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


class Processor(StatefulProcessor):
    """A processor that is written once for rows and for pandas."""

    def __init__(self, in_pandas: bool) -> None:
        self.in_pandas = in_pandas

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.declare(handle)

    def declare(self, handle: Any) -> None:
        raise NotImplementedError

    def each(self, rows: Any) -> list[Any]:
        """The rows, as they may be read in both forms."""
        if not self.in_pandas:
            return list(rows)
        return [row for frame in rows for row in frame.itertuples(index=False)]

    def made(self, *rows: dict[str, Any]) -> Any:
        if self.in_pandas:
            return iter([pd.DataFrame(list(rows))])
        return iter([Row(**row) for row in rows])

    def close(self) -> None:
        pass


class Run:
    """An operator whose store is opened anew for each batch, as after a restart. `now`: processing time in ms."""

    def __init__(self, place: Path, operator: Any) -> None:
        self._place = place
        self.now = 1_800_000_000_000
        columns = pa.schema([(name, pa.string()) for name in operator.plan.keys])
        self._is_ordered = definition_of(operator, columns).is_ordered
        self.change(operator)

    def change(self, operator: Any) -> None:
        self.operator = replace(operator, clock=lambda: self.now)

    def batch(self, table: pa.Table) -> list[dict[str, Any]]:
        with open_store(self._place, is_ordered=self._is_ordered) as store:
            with store.snapshot() as snapshot:
                update = self.operator(table, snapshot)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position())
        rows: list[dict[str, Any]] = update.results.to_pylist()
        return rows

    def texts(self, table: pa.Table) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in self.batch(table))


def processing(
    code: Any,
    output: spark.StructType,
    *,
    keys: tuple[str, ...] = ("id",),
    mode: TimeMode = TimeMode.NONE,
    initial: pa.Table | None = None,
    **plan: Any,
) -> ProcessorOperator:
    state = None if initial is None else SimpleNamespace(value=InitialState(initial, keys))
    given = Given(pickled(code, "processor"), arrow_schema(output), mode, "UTC", {}, state)
    return ProcessorOperator(Plan(keys, mode, **plan), given, in_pandas=code.in_pandas).prepared()


def readings(*rows: tuple[Any, int | None]) -> pa.Table:
    ids, temperatures = zip(*rows, strict=True)
    return pa.table({"id": pa.array(ids), "temperature": pa.array(temperatures, pa.int32())})


FIRST = readings(("0", 123), ("0", 46), ("1", 146), ("1", 346))
SECOND = readings(("0", 123), ("0", 223), ("0", 323), ("1", 246), ("1", 6))
COUNTS = struct(id=TEXT, count=TEXT)
in_both = pytest.mark.parametrize("in_pandas", [False, True])


class Violations(Processor):
    """Counts rows, keeps how many were too hot, and asks a variable that it has removed."""

    ttl: int | None = None

    def declare(self, handle):
        self.hot = handle.getValueState("hot", struct(value=INT), self.ttl)
        self.removed = handle.getValueState("removed", struct(value=INT))
        handle.deleteIfExists("removed")

    def handleInputRows(self, key, rows, timerValues):
        with pytest.raises(PySparkRuntimeError, match="Error checking value state exists"):
            self.removed.exists()
        (before,) = self.hot.get() if self.hot.exists() else (0,)
        temperatures = [row.temperature for row in self.each(rows)]
        hot = before + sum(temperature > 100 for temperature in temperatures)
        self.hot.update((hot,))
        return self.made({"id": key[0], "count": f"{len(temperatures)} {hot}"})


class ExpiringViolations(Violations):
    ttl = 30_000


@in_both
@pytest.mark.parametrize("code", [Violations, ExpiringViolations])
def test_state_is_kept_over_restarts(tmp_path: Path, code: Any, *, in_pandas: bool) -> None:
    mode = TimeMode.NONE if code.ttl is None else TimeMode.PROCESSING
    run = Run(tmp_path, processing(code(in_pandas), COUNTS, mode=mode))
    assert run.texts(FIRST) == Counter([("0", "2 1"), ("1", "2 2")])
    assert run.texts(SECOND) == Counter([("0", "3 4"), ("1", "2 3")])


class Nothing(Processor):
    def declare(self, handle):
        self.value = handle.getValueState("value", struct(value=INT))

    def handleInputRows(self, key, rows, timerValues):
        assert (self.value.exists(), self.value.get()) == (False, None)
        self.value.clear()
        return self.made({"id": key[0], "count": "0"})


@in_both
def test_a_value_that_was_never_set_is_none_and_may_be_cleared(tmp_path: Path, *, in_pandas: bool) -> None:
    run = Run(tmp_path, processing(Nothing(in_pandas), COUNTS))
    assert run.texts(FIRST) == Counter([("0", "0"), ("1", "0")])


class Lists(Processor):
    ttl: int | None = None

    def declare(self, handle):
        self.one, self.two = (handle.getListState(name, struct(t=INT), self.ttl) for name in ("one", "two"))
        self.times = handle.getListState("times", struct(time=spark.TimestampType()))

    def handleInputRows(self, key, rows, timerValues):
        temperatures = [int(row.temperature) for row in self.each(rows)]
        assert not self.one.exists()
        assert list(self.one.get()) == []
        for temperature in temperatures:
            self.one.appendValue((temperature,))
        self.two.put([(120,), (20,)])
        self.two.appendList([(30,), (40,)])
        first, second = self.two.get(), self.two.get()
        pairs = [(next(first), next(second)) for _ in range(4)]
        assert pairs == [((n,), (n,)) for n in (120, 20, 30, 40)]
        assert next(first, None) is None
        assert list(self.one.get()) == [(n,) for n in temperatures]
        moments = [datetime(2024, 1, 1, 10), datetime(2024, 1, 2, 10)]  # noqa: DTZ001 - as PySpark gives them
        self.times.put([(moment,) for moment in moments])
        self.times.appendValue((pd.Timestamp(moments[0]),))
        assert list(self.times.get()) == [(moment,) for moment in [*moments, moments[0]]]
        for variable in (self.one, self.two, self.times):
            variable.clear()
            assert not variable.exists()
        return self.made({"id": key[0], "count": str(len(temperatures))})


class LongLists(Lists):
    ttl = YEAR


@in_both
@pytest.mark.parametrize("code", [Lists, LongLists])
def test_lists_are_appended_to_replaced_and_read_twice_at_once(tmp_path: Path, code: Any, *, in_pandas: bool) -> None:
    mode = TimeMode.NONE if code.ttl is None else TimeMode.PROCESSING
    run = Run(tmp_path, processing(code(in_pandas), COUNTS, mode=mode))
    for _ in range(2):
        assert run.texts(FIRST) == Counter([("0", "2"), ("1", "2")])


class LongerList(Processor):
    def declare(self, handle):
        self.list = handle.getListState("list", struct(value=INT))

    def handleInputRows(self, key, rows, timerValues):
        held = [n for (n,) in self.list.get()]
        assert held == list(range(len(held)))
        self.list.appendList([(n,) for n in range(len(held), len(held) + 300)])
        return self.made({"id": key[0], "count": str(len(list(self.list.get())))})


@in_both
def test_a_list_of_hundreds_keeps_its_order(tmp_path: Path, *, in_pandas: bool) -> None:
    run = Run(tmp_path, processing(LongerList(in_pandas), COUNTS))
    assert run.texts(FIRST) == Counter([("0", "300"), ("1", "300")])
    assert run.texts(FIRST) == Counter([("0", "600"), ("1", "600")])


class Maps(Processor):
    ttl: int | None = None

    def declare(self, handle):
        self.map = handle.getMapState("map", struct(name=TEXT), struct(count=INT), self.ttl)

    def handleInputRows(self, key, rows, timerValues):
        count = len(self.each(rows))
        assert not self.map.exists()
        for name in ("key1", "key2"):
            assert self.map.getValue((name,)) is None
            self.map.updateValue((name,), (count,))
        assert [next(iter(entry)) for entry in (self.map.keys(), self.map.values())] == [("key1",), (count,)]
        assert list(self.map.iterator()) == [(("key1",), (count,)), (("key2",), (count,))]
        self.map.removeKey(("key1",))
        assert not self.map.containsKey(("key1",))
        assert self.map.exists()
        self.map.clear()
        assert not self.map.exists()
        return self.made({"id": key[0], "count": str(count)})


class LongMaps(Maps):
    ttl = YEAR


@in_both
@pytest.mark.parametrize("code", [Maps, LongMaps])
def test_maps_are_read_changed_and_cleared(tmp_path: Path, code: Any, *, in_pandas: bool) -> None:
    mode = TimeMode.NONE if code.ttl is None else TimeMode.PROCESSING
    run = Run(tmp_path, processing(code(in_pandas), COUNTS, mode=mode))
    for _ in range(2):
        assert run.texts(FIRST) == Counter([("0", "2"), ("1", "2")])


class Brief(Processor):
    """Counts in variables that live for 10 s and in one that lives on; key 0 is not written in the second batch."""

    def declare(self, handle):
        self.kept = handle.getValueState("kept", struct(value=INT))
        self.value = handle.getValueState("value", struct(value=INT), 10_000)
        self.list = handle.getListState("list", struct(value=INT), 10_000)
        self.map = handle.getMapState("map", struct(id=TEXT), struct(value=INT), 10_000)

    def handleInputRows(self, key, rows, timerValues):
        count = len(self.each(rows))
        kept = count + (self.kept.get() or (0,))[0]
        value = count + (self.value.get() or (0,))[0]
        in_list = count + sum(n for (n,) in self.list.get())
        in_map = count + (self.map.getValue(key) or (0,))[0]
        self.kept.update((kept,))
        if not (value == 2 and key[0] == "0"):
            self.value.update((value,))
            self.list.put([(in_list,), (in_list,)])
            self.map.updateValue(key, (in_map,))
        return self.made({"id": key[0], "count": f"{value} {kept} {in_list} {in_map}"})


@in_both
def test_what_was_not_written_again_expires(tmp_path: Path, *, in_pandas: bool) -> None:
    run = Run(tmp_path, processing(Brief(in_pandas), COUNTS, mode=TimeMode.PROCESSING))
    table = readings(("1", 0), ("0", 0))
    assert run.texts(table) == Counter([("0", "1 1 1 1"), ("1", "1 1 1 1")])
    run.now += 6_000
    assert run.texts(table) == Counter([("0", "2 2 3 2"), ("1", "2 2 3 2")])
    run.now += 6_000
    assert run.texts(table) == Counter([("0", "1 3 1 1"), ("1", "3 3 7 3")])


class Resetting(Processor):
    """Counts rows; key 0 sets a timer that is due in the next batch and starts its count anew."""

    def declare(self, handle):
        self.count = handle.getValueState("count", struct(value=TEXT))

    def handleInputRows(self, key, rows, timerValues):
        count = int((self.count.get() or ("0",))[0]) + len(self.each(rows))
        if key == ("0",):
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        self.count.update((str(count),))
        return self.made({"id": key[0], "count": str(count)})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        assert isinstance(key, Row)
        assert key.id == "0"
        timers = list(self.handle.listTimers())
        assert timers == list(self.handle.listTimers())
        assert len(timers) == 2
        assert expiredTimerInfo.getExpiryTimeInMs() < timerValues.getCurrentProcessingTimeInMs()
        self.count.clear()
        self.handle.deleteTimer(expiredTimerInfo.getExpiryTimeInMs())
        return self.made({"id": key[0], "count": "-1"})


@in_both
def test_timers_of_processing_time_come_behind_the_rows_of_their_batch(tmp_path: Path, *, in_pandas: bool) -> None:
    run = Run(tmp_path, processing(Resetting(in_pandas), COUNTS, mode=TimeMode.PROCESSING))
    wanted = [[("0", "1"), ("1", "1")], [("0", "3"), ("0", "-1"), ("1", "3")], [("0", "3"), ("0", "-1"), ("1", "5")]]
    for table, rows in zip([readings(("0", 123), ("1", 6)), FIRST, SECOND], wanted, strict=True):
        assert run.texts(table) == Counter(rows)
        run.now += 2_000


class Latest(Processor):
    """The latest time of each key, forgotten at a timer for the watermark at which it last had rows."""

    def declare(self, handle):
        self.latest = handle.getValueState("latest", struct(value=TEXT))

    def handleInputRows(self, key, rows, timerValues):
        seconds = [int(pd.Timestamp(row.time).timestamp()) for row in self.each(rows)]
        latest = max([int((self.latest.get() or ("0",))[0]), *seconds])
        self.latest.update((str(latest),))
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs())
        return self.made({"id": key[0], "count": str(latest)})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self.latest.clear()
        self.handle.deleteTimer(expiredTimerInfo.getExpiryTimeInMs())
        return self.made({"id": f"{key[0]}-expired", "count": str(expiredTimerInfo.getExpiryTimeInMs())})


def seconds(*rows: tuple[str, int]) -> pa.Table:
    ids, times = zip(*rows, strict=True)
    return pa.table({"id": ids, "time": pa.array([n * 1_000_000 for n in times], pa.timestamp("us", "UTC"))})


@in_both
def test_timers_of_event_time_as_in_spark_with_batches_without_data(tmp_path: Path, *, in_pandas: bool) -> None:
    timed = {"mode": TimeMode.EVENT, "event_time": "time", "delay": timedelta(seconds=10)}
    run = Run(tmp_path, processing(Latest(in_pandas), COUNTS, **timed))
    assert run.texts(seconds(("a", 20))) == Counter([("a", "20"), ("a-expired", "0")])
    assert run.texts(seconds(("a", 4))) == Counter(), "late"
    later = run.texts(seconds(("a", 2), ("a", 11), ("a", 13), ("a", 15)))
    assert later == Counter([("a", "15"), ("a-expired", "10000")])


class Sums(Processor):
    """Sums behind what a key begins with."""

    def declare(self, handle):
        self.sum = handle.getValueState("sum", struct(value=INT))
        self.list = handle.getListState("list", struct(value=INT))

    def handleInitialState(self, key, initialState, timerValues):
        values = initialState["begin"].tolist() if self.in_pandas else [initialState.begin]
        for value in values:
            self.list.appendValue((value,))
        self.sum.update((sum(n for (n,) in self.list.get()),))

    def handleInputRows(self, key, rows, timerValues):
        total = (self.sum.get() or (0,))[0] + sum(row.temperature for row in self.each(rows))
        self.sum.update((total,))
        return self.made({"id": key[0], "count": str(total)})


@in_both
def test_a_key_begins_with_all_rows_of_its_initial_state_once(tmp_path: Path, *, in_pandas: bool) -> None:
    initial = pa.table({"id": ["0", "3", "0"], "begin": pa.array([700, 987, 89], pa.int32())})
    run = Run(tmp_path, processing(Sums(in_pandas), COUNTS, initial=initial))
    assert run.texts(FIRST) == Counter([("0", str(789 + 123 + 46)), ("1", "492")])
    second = run.texts(readings(("3", 12), ("0", 46)))
    assert second == Counter([("3", "999"), ("0", str(789 + 123 + 46 + 46))])


class Remembering(Sums):
    def handleInitialState(self, key, initialState, timerValues):
        super().handleInitialState(key, initialState, timerValues)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return self.made({"id": f"{key[0]}-expired", "count": str(expiredTimerInfo.getExpiryTimeInMs())})


@in_both
def test_initial_state_may_set_timers(tmp_path: Path, *, in_pandas: bool) -> None:
    """Those of a key without rows wait for its first rows, as processors.md says."""
    initial = pa.table({"id": ["0", "3"], "begin": pa.array([789, 987], pa.int32())})
    run = Run(tmp_path, processing(Remembering(in_pandas), COUNTS, initial=initial, mode=TimeMode.PROCESSING))
    expired = str(run.now - 1)
    assert run.texts(FIRST) == Counter([("0", "958"), ("1", "492"), ("0-expired", expired)])
    assert run.texts(readings(("3", 12))) == Counter([("3", "999"), ("3-expired", expired)])


class TwoKeys(Sums):
    def handleInputRows(self, key, rows, timerValues):
        rows = self.each(rows)
        assert {(row.id1, row.id2) for row in rows} == {tuple(key)}
        return self.made({"id1": key[0], "id2": key[1], "value": str(sum(row.temperature for row in rows))})


@in_both
def test_columns_of_the_key_need_not_be_beside_each_other(tmp_path: Path, *, in_pandas: bool) -> None:
    table = pa.table({"id1": ["0", "0", "1"], "temperature": [123, 46, 146], "id2": ["a", "a", "b"]})
    output = struct(id1=TEXT, id2=TEXT, value=TEXT)
    run = Run(tmp_path, processing(TwoKeys(in_pandas), output, keys=("id1", "id2")))
    assert run.texts(table) == Counter([("0", "a", "169"), ("1", "b", "146")])


TAGS = spark.MapType(TEXT, spark.ArrayType(INT))
NESTED = struct(
    id=TEXT,
    attributes=spark.ArrayType(TAGS),
    confs=spark.MapType(TEXT, struct(n=INT, parts=spark.ArrayType(LONG))),
)


class Nested(Processor):
    """Values with nested types go into variables of all kinds, come back and are results."""

    def declare(self, handle):
        self.value = handle.getValueState("value", struct(**{f.name: f.dataType for f in NESTED.fields[1:]}))
        self.list = handle.getListState("list", struct(of=spark.ArrayType(spark.ArrayType(INT))))
        self.map = handle.getMapState("map", struct(name=TEXT), struct(tags=TAGS))

    def handleInputRows(self, key, rows, timerValues):
        count = len(self.each(rows))
        attributes, confs = [{"a": [count, None]}, {}], {"c": {"n": count, "parts": [2**53 + 1, None]}}
        if self.value.exists():
            attributes, confs = self.value.get()
            assert isinstance(confs["c"], Row)
            attributes[0]["a"].append(count)
        self.value.update((attributes, confs))
        self.list.appendValue(([[count], []],))
        assert list(self.list.get())[-1] == ([[count], []],)
        self.map.updateValue("x", ({"t": [1]},))
        assert self.map.containsKey("x"), "a text of one character is a row of one field, as in PySpark"
        assert self.map.getValue(("x",)) == ({"t": [1]},)
        return self.made({"id": key[0], "attributes": attributes, "confs": confs})


@in_both
def test_nested_values_in_variables_and_results(tmp_path: Path, *, in_pandas: bool) -> None:
    run = Run(tmp_path, processing(Nested(in_pandas), NESTED))
    confs = [("c", {"n": 2, "parts": [2**53 + 1, None]})]
    for counts in ([2, None], [2, None, 1]):
        rows = run.batch(FIRST if len(counts) == 2 else readings(("0", 1), ("1", 1)))
        wanted = [{"id": key, "attributes": [[("a", counts)], []], "confs": confs} for key in "01"]
        assert sorted(rows, key=lambda row: row["id"]) == wanted


class Named(Processor):
    """Keeps fields by name; `fields` are those of a release of it."""

    def __init__(self, in_pandas: bool, **fields: spark.DataType) -> None:
        super().__init__(in_pandas)
        self.fields = fields

    def declare(self, handle):
        self.state = handle.getValueState("state", struct(**self.fields))

    def handleInputRows(self, key, rows, timerValues):
        before = self.state.get()
        fresh = {"id": int(key[0]), "name": f"name-{key[0]}", "count": 100, "active": True, "score": 99.5}
        self.state.update(tuple(fresh[name] for name in self.fields))
        return self.made({"id": key[0], "count": str(before)})


@in_both
def test_schemas_of_variables_change_as_in_spark(tmp_path: Path, *, in_pandas: bool) -> None:
    more = {"count": INT, "active": spark.BooleanType(), "score": spark.FloatType()}
    steps: list[tuple[dict[str, spark.DataType], str]] = [
        ({"id": INT, "name": TEXT}, "None"),
        ({"id": INT, "name": TEXT, **more}, "(0, 'name-0', None, None, None)"),
        ({"name": TEXT, "score": spark.FloatType(), "id": INT}, "('name-0', 99.5, 0)"),
        ({"name": TEXT, "id": LONG, "score": spark.DoubleType()}, "('name-0', 0, 99.5)"),
    ]
    run = None
    for fields, before in steps:
        operator = processing(Named(in_pandas, **fields), COUNTS)
        run = run or Run(tmp_path, operator)
        run.change(operator)
        assert run.texts(readings(("0", 1))) == Counter([("0", before)])
    run.change(processing(Named(in_pandas, name=TEXT, id=INT, score=spark.DoubleType()), COUNTS))
    with pytest.raises((FunctionError, StateError), match="its field 'id' was written as int64 and is int32"):
        run.batch(readings(("0", 1)))


class Deep(Processor):
    """Writes its value once and tells what it has."""

    def __init__(self, value: Any, **fields: spark.DataType) -> None:
        super().__init__(False)
        self.fields, self.value = fields, value

    def declare(self, handle):
        self.state = handle.getValueState("state", struct(**self.fields))

    def handleInputRows(self, key, rows, timerValues):
        before = self.state.get()
        if self.value is not None:
            self.state.update(self.value)
        return self.made({"id": key[0], "count": str(before)})


def test_nested_types_of_variables_become_wider(tmp_path: Path) -> None:
    def deep(number: spark.DataType, **more: spark.DataType) -> dict[str, spark.DataType]:
        inner = struct(**{"n": number, **more})
        return {
            "of": inner,
            "list": spark.ArrayType(spark.ArrayType(number)),
            "map": spark.MapType(TEXT, struct(parts=spark.ArrayType(inner))),
        }

    value = ({"n": 2}, [[1, None], None, []], {"a": {"parts": [{"n": 3}, None]}, "b": None})
    run = Run(tmp_path, processing(Deep(value, **deep(INT)), COUNTS))
    assert run.texts(readings(("0", 1))) == Counter([("0", "None")])
    releases: list[tuple[dict[str, spark.DataType], str]] = [
        (deep(LONG), "(Row(n=2), [[1, None], None, []], {'a': Row(parts=[Row(n=3), None]), 'b': None})"),
        (
            deep(spark.DoubleType(), s=TEXT),
            "(Row(n=2.0, s=None), [[1.0, None], None, []], {'a': Row(parts=[Row(n=3.0, s=None), None]), 'b': None})",
        ),
    ]
    for fields, before in releases:
        run.change(processing(Deep(None, **fields), COUNTS))
        assert run.texts(readings(("0", 1))) == Counter([("0", before)])
    for fields in (deep(LONG, s=TEXT), deep(spark.DoubleType())):
        run.change(processing(Deep(None, **fields), COUNTS))
        with pytest.raises((FunctionError, StateError), match="its field 'of' was written as struct"):
            run.batch(readings(("0", 1)))


class Coerced(Processor):
    def declare(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        return iter([pd.DataFrame({"id": key, "value": [12]})])


def test_whole_numbers_are_decimals(tmp_path: Path) -> None:
    run = Run(tmp_path, processing(Coerced(True), struct(id=TEXT, value=spark.DecimalType(10, 2))))
    assert run.batch(readings(("0", 1))) == [{"id": "0", "value": Decimal(12)}]


class Chunks(Processor):
    def declare(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        frames = list(rows)
        return self.made({"id": key[0], "count": f"{len(frames)} {sum(map(len, frames))}"})


def test_a_key_has_one_frame_however_many_rows_it_has(tmp_path: Path) -> None:
    run = Run(tmp_path, processing(Chunks(True), COUNTS))
    assert run.texts(readings(*[("0", n) for n in range(20_000)])) == Counter([("0", "1 20000")])


class Large(Processor):
    def declare(self, handle):
        self.value = handle.getValueState("value", struct(value=TEXT))
        self.list = handle.getListState("list", struct(value=TEXT))
        self.map = handle.getMapState("map", struct(key=TEXT), struct(value=TEXT))

    def handleInputRows(self, key, rows, timerValues):
        long = "a" * 512 * 1024
        self.value.update((long,))
        self.list.put([(long,), (long,), (long + "b",)])
        self.map.updateValue((long,), (long,))
        read = [self.value.get(), *self.list.get(), *self.map.keys(), self.map.getValue((long,))]
        return self.made({"id": key[0], "count": "".join(text for (text,) in read)})


@in_both
def test_values_of_half_a_mebibyte(tmp_path: Path, *, in_pandas: bool) -> None:
    run = Run(tmp_path, processing(Large(in_pandas), COUNTS))
    (row,) = run.batch(readings(("0", 1)))
    assert row["count"] == "a" * (4 * 512 * 1024) + "b" + "a" * (2 * 512 * 1024)


class Exits(Processor):
    def declare(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        raise SystemExit(1)


@in_both
def test_an_exit_in_a_processor_is_named_with_its_key(tmp_path: Path, *, in_pandas: bool) -> None:
    run = Run(tmp_path, processing(Exits(in_pandas), COUNTS))
    with pytest.raises(FunctionError, match=r"handleInputRows: SystemExit: 1 .*, key \('0',\)"):
        run.batch(readings(("0", 1)))


class Late(Processor):
    """Declares a variable where it may not."""

    def declare(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        self.handle.getValueState("n", "n int")
        return self.made()


@in_both
def test_a_variable_behind_init_is_refused_before_its_schema_is_read(tmp_path: Path, *, in_pandas: bool) -> None:
    run = Run(tmp_path, processing(Late(in_pandas), COUNTS))
    with pytest.raises(FunctionError, match=r"state variable 'n': declare and remove it in init\(\)"):
        run.batch(readings(("0", 1)))


class Variant(Late):
    def declare(self, handle):
        handle.getValueState("n", struct(v=spark.VariantType()))


def test_a_variant_is_no_state() -> None:
    with pytest.raises(FunctionError, match="init: field 'v': a state variable cannot have the type"):
        processing(Variant(False), COUNTS)


def grouped(function: Any, output: spark.StructType, state: spark.StructType, timeout: str) -> GroupStateOperator:
    plan = Plan(("id",), MODES[timeout])
    given = Given(pickled(function, "function"), arrow_schema(output), plan.mode, "UTC", {})
    operator = GroupStateOperator(plan, given, schema=state, columns=arrow_schema(state), timeout=timeout)
    return operator.prepared()


def counted(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    (count,) = state.getOption or (0,)
    count += sum(map(len, frames))
    state.update((count,))
    assert state.get[0] == count
    yield pd.DataFrame({"id": [key[0]], "count": [str(count)]})


def test_a_function_with_group_state_counts_over_restarts(tmp_path: Path) -> None:
    run = Run(tmp_path, grouped(counted, COUNTS, struct(n=LONG), GroupStateTimeout.NoTimeout))
    assert run.texts(readings(("hello", 1), ("this", 1))) == Counter([("hello", "1"), ("this", "1")])
    assert run.texts(readings(("hello", 1), ("hello", 1))) == Counter([("hello", "3")])


def told_keys(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """Tells its key, also when it has timed out."""
    if not state.hasTimedOut:
        state.update((1,))
        state.setTimeoutDuration(1)
    yield pd.DataFrame({"id": [key[0]], "count": [f"{type(key[0]).__name__} {state.hasTimedOut}"]})


def test_keys_of_functions_with_group_state_are_numpys(tmp_path: Path) -> None:
    output = struct(id=LONG, count=TEXT)
    run = Run(tmp_path, grouped(told_keys, output, struct(n=LONG), GroupStateTimeout.ProcessingTimeTimeout))
    table = pa.table({"id": pa.array([2**53 + 1, None], pa.int64())})
    assert run.texts(table) == Counter([(2**53 + 1, "int64 False"), (None, "float64 False")])
    run.now += 1_000
    assert run.texts(table.slice(0, 0)) == Counter([(2**53 + 1, "int64 True"), (None, "float64 True")])


class Moments(Processor):
    """Tells what it sees of a key that is a time, and of times in rows."""

    def declare(self, handle):
        self.variable = handle.getMapState("map", struct(t=spark.TimestampType()), struct(n=INT))

    def handleInputRows(self, key, rows, timerValues):
        times = [(row.t, row.of["t"]) for row in self.each(rows)]
        assert {each for pair in times for each in pair} == {key[0]}
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        return self.made({"text": str(key[0])})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return self.made({"text": f"{key.t} {key.t.tzinfo}"})


@in_both
def test_keys_and_nested_times_are_in_the_sessions_zone(tmp_path: Path, *, in_pandas: bool) -> None:
    made = processing(Moments(in_pandas), struct(text=TEXT), keys=("t",), mode=TimeMode.PROCESSING)
    run = Run(tmp_path, replace(made, given=replace(made.given, zone="Asia/Kolkata")))
    moment = datetime(2020, 2, 29, 13, tzinfo=UTC)
    of = pa.timestamp("us", "UTC")
    table = pa.table({"t": pa.array([moment], of), "of": pa.array([{"t": moment}], pa.struct([("t", of)]))})
    assert run.texts(table) == Counter([("2020-02-29 18:30:00" + ("" if in_pandas else "+05:30"),)])
    run.now += 1_000
    by_process = datetime.fromtimestamp(moment.timestamp())  # noqa: DTZ006 - as in a state variable
    local = "2020-02-29 18:30:00" if in_pandas else by_process
    assert run.texts(table.slice(0, 0)) == Counter([(f"{local} None",)])


@pytest.mark.parametrize("fails", [False, True])
def test_a_timer_whose_key_is_a_time_is_set_aside_by_its_key(tmp_path: Path, *, fails: bool) -> None:
    class Failing(Moments):
        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            if fails:
                raise ValueError("no")
            return self.made()

    run = Run(tmp_path, processing(Failing(True), struct(text=TEXT), keys=("t",), mode=TimeMode.PROCESSING))
    moment = datetime(2020, 2, 29, 13, tzinfo=UTC)
    of = pa.timestamp("us", "UTC")
    run.batch(pa.table({"t": pa.array([moment], of), "of": pa.array([{"t": moment}], pa.struct([("t", of)]))}))
    run.now += 1_000
    with LmdbStore(tmp_path) as store:
        empty = pa.schema([("t", of), ("of", pa.struct([("t", of)]))]).empty_table()
        failures = run.operator.set_aside(empty, store).failures
    assert [failure.row["t"].to_pylist() for failure in failures] == ([[moment]] if fails else [])
