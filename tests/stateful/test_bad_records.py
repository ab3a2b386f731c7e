"""Operators without the records at which they fail, against a plain computation over the others, record by record."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import LongType, Row, StringType, StructType

from roster.pipeline.batch import Split
from roster.pipeline.errors import FunctionError, SinkFencedError
from roster.pipeline.tasks.dead_letters import HEADERS, LetterRows
from roster.pipeline.tasks.reader import ReaderConfig
from roster.records.produce import KafkaWriter
from roster.spark.processor.code import Given
from roster.spark.processor.operator import GroupStateOperator, ProcessorOperator
from roster.spark.stateful_operators import with_steps
from roster.spark.steps import Mapped
from roster.state.aggregate import Aggregation
from roster.state.pending import WithChanges
from roster.state.processor.batch import Plan, TimeMode
from roster.state.store import NoState, ValueDamagedError
from roster.stateful.tasks import bad_records
from roster.stateful.tasks.bad_records import Aside, Steps
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roster.stateful.tasks.processing import Operator

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
OUTPUT = pa.schema([("k", pa.string()), ("total", pa.int64()), ("rows", pa.int64())])
LIMIT = 2**63 - 2**12
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

Script = list[list[tuple[str, int]]]
"""The rows of each record."""


def rows_of(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of records that say `a 1,b 2`; `!` fails here already."""
    made = []
    for value in records["value"].to_pylist():
        if value == b"!":
            raise ValueError("no rows")
        for number, text in enumerate(value.decode().split(",") if value else ()):
            key, amount = text.split()
            made.append({"k": key, "n": int(amount), "t": BEGIN + timedelta(seconds=number)})
    yield pa.RecordBatch.from_pylist(made, COLUMNS)


class Log:
    """A pipeline's one task: a log of records, a store, and what has become of them."""

    def __init__(self, operator: Operator, values: Sequence[bytes], patch: pytest.MonkeyPatch) -> None:
        self._operator, self._values = operator, values
        self.state: dict[bytes, bytes | None] = {}
        self.results: list[dict[str, Any]] = []
        self.letters: list[dict[str, str]] = []
        self.records = 0
        patch.setattr(bad_records, "read_splits", self._read)

    def _read(self, _: ReaderConfig, splits: Sequence[Split], **__: Any) -> Iterator[pa.RecordBatch]:
        """Read in batches of four records."""
        (split,) = splits
        for begin in range(split.start, split.end, 4):
            offsets = range(begin, min(begin + 4, split.end))
            yield pa.RecordBatch.from_pydict(
                {
                    "key": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
                    "value": pa.array([self._values[offset] for offset in offsets], pa.binary()),
                    "topic": ["t"] * len(offsets),
                    "partition": [3] * len(offsets),
                    "offset": list(offsets),
                    "timestamp": pa.array([BEGIN] * len(offsets), pa.timestamp("us", "UTC")),
                    "headers": pa.array([[("own", b"1")]] * len(offsets), HEADERS),
                }
            )

    def batch(self, start: int, end: int, *, mapped: Any = rows_of, is_first: bool = True) -> None:
        config, split = ReaderConfig("", "g"), Split("t", 3, start, end)
        aside = Aside(LetterRows(KafkaWriter((), "dead"), "g", "0_3"), split)
        rows = list(aside.rows(config, split, Steps(mapped, "records")))
        table = pa.Table.from_batches(rows, COLUMNS)
        operator = aside.operator(self._operator, "s", is_first=is_first)
        update = operator(table, WithChanges(NoState(), self.state))  # type: ignore[arg-type]
        aside.note(table)
        self.records += aside.records
        self.state.update(zip(*(update.changes[name].to_pylist() for name in ("key", "value")), strict=True))
        self.results += update.results.to_pylist()
        for letter in aside.letters.rows:  # type: ignore[attr-defined]
            (row,) = letter.to_pylist()
            found = {each["key"].removeprefix("__connect.errors."): each["value"].decode() for each in row["headers"]}
            self.letters.append(found | {"key": row["key"], "value": (row["value"] or b"").decode()})

    def rejected(self) -> list[int]:
        """Offsets of the dead letters' records."""
        return [int(letter["offset"]) for letter in self.letters if "offset" in letter]


def as_value(rows: list[tuple[str, int]]) -> bytes:
    return ",".join(f"{key} {amount}" for key, amount in rows).encode()


def run(operator: Operator, script: Script, cuts: Sequence[int]) -> Log:
    """All batches of a script, cut there."""
    with pytest.MonkeyPatch.context() as patch:
        log = Log(operator, [b"!" if rows == [("!", 0)] else as_value(rows) for rows in script], patch)
        ends = sorted({0, *(cut for cut in cuts if cut < len(script)), len(script)})
        for start, end in itertools.pairwise(ends):
            log.batch(start, end)
    return log


AMOUNTS = st.sampled_from([0, 1, 5, 13, 2**61, 2**62, 2**62 + 2**61])
RECORDS = st.one_of(st.just([("!", 0)]), st.lists(st.tuples(st.sampled_from("abc"), AMOUNTS), max_size=3))
SCRIPTS = st.lists(RECORDS, min_size=1, max_size=24)
CUTS = st.lists(st.integers(1, 23), max_size=5)


def totals(script: Script) -> tuple[dict[str, int], list[int]]:
    """Sums of each key, and the records at whose rows one leaves the range: these count nowhere."""
    sums, bad = dict[str, int](), list[int]()
    for offset, rows in enumerate(script):
        after = dict(sums)
        fails = rows == [("!", 0)]
        for key, amount in rows:
            after[key] = after.get(key, 0) + amount
            fails = fails or abs(float(after[key])) >= LIMIT
        if fails:
            bad.append(offset)
        else:
            sums = after
    return sums, bad


@settings(max_examples=examples(150))
@given(SCRIPTS, CUTS)
def test_a_sum_leaves_out_the_records_that_take_it_beyond_its_range(script: Script, cuts: list[int]) -> None:
    operator = Aggregation(("k",), {"total": aggregate_of("sum(n)")})
    log = run(operator, script, cuts)
    sums, bad = totals(script)
    assert sorted(log.rejected()) == bad
    assert log.records == len(script)
    assert {row["k"]: row["total"] for row in log.results} == sums
    whole = run(operator, script, [])
    assert (log.state, sorted(log.rejected())) == (whole.state, sorted(whole.rejected())), "as in any other batches"


STATE = StructType().add("total", LongType()).add("rows", LongType())


class Picky(StatefulProcessor):
    """Sums rows; raises at an amount of 13, at every fourth row of a key, and at results beyond 64 bits."""

    def init(self, handle: Any) -> None:
        self.handle, self.sums = handle, handle.getValueState("sums", STATE)
        self.seen = handle.getListState("seen", STATE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in self.plain(rows):
            total, count = self.sums.get() or (0, 0)
            self.seen.appendValue((row.n, 0))
            self.handle.registerTimer(row.n % 97)
            if row.n == 13:
                raise ValueError("thirteen")
            self.sums.update(((total + row.n) % 2**62, count + 1))
            if count == 3 and row.n == 5:
                raise KeyError("a fourth five")
            yield self.made(key[0], total + row.n, count + 1)

    def plain(self, rows: Any) -> Any:
        return rows

    def made(self, *values: Any) -> Any:
        return Row(**dict(zip(OUTPUT.names, values, strict=True)))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        pass


class PickyFrames(Picky):
    def plain(self, rows: Any) -> Any:
        return (row for frame in rows for row in frame.itertuples())

    def made(self, *values: Any) -> Any:
        return pd.DataFrame([values], columns=OUTPUT.names, dtype=object)


def picky_function(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """Write for `applyInPandasWithState` what `Picky` does."""
    for frame in frames:
        for row in frame.itertuples():
            total, count = state.get if state.exists else (0, 0)
            if row.n == 13:
                raise ValueError("thirteen")
            state.update(((total + int(row.n)) % 2**62, count + 1))
            if count == 3 and row.n == 5:
                raise KeyError("a fourth five")
            yield pd.DataFrame([(key[0], total + int(row.n), count + 1)], columns=OUTPUT.names, dtype=object)


def processors() -> dict[str, Operator]:
    plan = Plan(("k",), TimeMode.EVENT, "t", timedelta(days=1))

    def given_of(code: Any) -> Given:
        return Given(cloudpickle.dumps(code), OUTPUT, plan.mode, "UTC", {})  # type: ignore[no-untyped-call]

    columns = pa.schema([("total", pa.int64()), ("rows", pa.int64())])
    group = GroupStateOperator(
        *(plan, given_of(picky_function)),
        schema=STATE,
        columns=columns,
        timeout=GroupStateTimeout.EventTimeTimeout,
    )
    return {
        "rows": ProcessorOperator(plan, given_of(Picky())).prepared(),
        "pandas": ProcessorOperator(plan, given_of(PickyFrames()), in_pandas=True).prepared(),
        "applyInPandasWithState": group.prepared(),
    }


def picked(script: Script) -> tuple[list[tuple[str, int, int]], list[int]]:
    """What `Picky` makes of the records that do not fail, and those that do."""
    sums: dict[str, tuple[int, int]] = {}
    made, bad = list[tuple[str, int, int]](), list[int]()
    for offset, rows in enumerate(script):
        after, of_record = dict(sums), list[tuple[str, int, int]]()
        fails = rows == [("!", 0)]
        for key, amount in rows:
            total, count = after.get(key, (0, 0))
            fails = fails or amount == 13 or (count == 3 and amount == 5) or total + amount >= 2**63
            of_record.append((key, total + amount, count + 1))
            after[key] = (total + amount) % 2**62, count + 1
        if fails:
            bad.append(offset)
        else:
            sums, made = after, made + of_record
    return made, bad


@pytest.mark.parametrize("kind", ["rows", "pandas", "applyInPandasWithState"])
@settings(max_examples=examples(40))
@given(SCRIPTS, CUTS)
def test_a_processor_sees_no_record_at_which_it_fails(kind: str, script: Script, cuts: list[int]) -> None:
    operator = processors()[kind]
    log = run(operator, script, cuts)
    made, bad = picked(script)
    assert sorted(log.rejected()) == bad
    assert sorted((row["k"], row["total"], row["rows"]) for row in log.results) == sorted(made)
    # The state is that of a log in which these records never were: variables, timers and all.
    never = run(operator, [[] if offset in bad else rows for offset, rows in enumerate(script)], [])
    assert {key: value for key, value in log.state.items() if value is not None} == {
        key: value for key, value in never.state.items() if value is not None
    }


class Alarms(Picky):
    """Sums rows; every timer of the key `b` raises, after it has changed the state."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        self.seen.clear()
        if key == ("b",):
            raise ValueError("no alarm")
        return iter(())


def test_a_timer_that_raises_is_removed_and_the_state_is_as_before_it() -> None:
    plan = Plan(("k",), TimeMode.EVENT, "t", timedelta())
    operator = ProcessorOperator(plan, Given(cloudpickle.dumps(Alarms()), OUTPUT, plan.mode, "UTC", {})).prepared()  # type: ignore[no-untyped-call]
    log = run(operator, [[("a", 1), ("b", 2), ("b", 3)], [("b", 4)]], [1])
    assert [letter["exception.message"] for letter in log.letters] == ["no alarm"] * 2
    assert {letter["class.name"] for letter in log.letters} == {
        f"transform_with_state(store='s'), timer of {at} ms" for at in (2, 3)
    }
    (place,) = {(letter["topic"], letter["partition"], letter.get("offset"), letter["key"]) for letter in log.letters}
    assert place == ("t", "3", None, b"b")
    assert sorted(letter["value"] for letter in log.letters) == [f'{{"timer":{at},"k":"b"}}' for at in (2, 3)]
    kept = {key for key, value in log.state.items() if value is not None}
    assert any(key.endswith(b"b\x00\x00") for key in kept), "its list is there"
    assert not any(key[:1] == b"\x02" for key in kept), "no timer is left, so none raises again"


def picky_step(rows: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in rows["total"].to_pylist():
        raise ValueError("a seven")
    return rows


def test_a_step_that_fails_at_a_result_leaves_the_state_and_the_other_results() -> None:
    operator = Aggregation(("k",), {"total": aggregate_of("sum(n)")})
    stepped = with_steps(
        operator, COLUMNS, [Mapped(picky_step, StructType().add("k", StringType()).add("total", LongType()))]
    )
    log = run(stepped, [[("a", 5), ("b", 7)], [("c", 1)], [("b", 1)]], [2])
    assert [(row["k"], row["total"]) for row in log.results] == [("a", 5), ("c", 1), ("b", 8)]
    (letter,) = log.letters
    assert (letter["key"], letter["value"], "offset" in letter) == (b"b", '{"k":"b","total":7}', False)
    assert letter["class.name"] == "aggregate(store='s'), step at a result"


def test_a_row_of_an_operator_before_is_set_aside_alone() -> None:
    with pytest.MonkeyPatch.context() as patch:
        log = Log(
            Aggregation(("k",), {"total": aggregate_of("sum(n)")}),
            [b"a 1,b 4611686018427387904,b 4611686018427387904"],
            patch,
        )
        log.batch(0, 1, is_first=False)
    assert {row["k"]: row["total"] for row in log.results} == {"a": 1, "b": 2**62}
    (letter,) = log.letters
    assert json.loads(letter["value"])["n"] == 2**62
    assert letter["class.name"] == "aggregate(store='s'), row of the operator before"


@pytest.mark.parametrize(
    "error", [OSError("no disk"), MemoryError(), ValueDamagedError(), SinkFencedError("moved"), FunctionError("x")]
)
def test_what_is_of_no_record_ends_the_run(error: Exception) -> None:
    class Failing(Aggregation):
        def __call__(self, table: pa.Table, store: Any) -> Any:
            raise error

    def failing(_: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        log = Log(Failing(("k",), {"total": aggregate_of("sum(n)")}), [b"a 1", b"b 2"], patch)
        with pytest.raises(type(error)):
            log.batch(0, 2)
        with pytest.raises((type(error), FunctionError)):
            log.batch(0, 2, mapped=failing)
    assert not log.letters


def test_a_function_whose_rows_depend_on_the_batch_is_named() -> None:
    def at_once(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if records.num_rows > 1:
            yield from rows_of(records)

    with pytest.MonkeyPatch.context() as patch:
        log = Log(Aggregation(("k",), {"total": aggregate_of("sum(n)")}), [b"a 4611686018427387904"] * 4, patch)
        with pytest.raises(FunctionError, match="its rows depend on how records are grouped"):
            log.batch(0, 4, mapped=at_once)
