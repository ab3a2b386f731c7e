"""What `map_arrow` returns is held against its schema: Spark would read other bytes as if they were what it expects."""

from __future__ import annotations

import re
from typing import Any

import pandas
import pyarrow as pa
import pytest

from roster.pipeline.errors import FunctionError
from roster.pipeline.tasks import reader
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.reader import ReaderConfig

NUMBERS = pa.array([1, 2], pa.int64())
TIMES = pa.array([1, 2], pa.timestamp("us", "UTC"))
READ = pa.RecordBatch.from_pydict({"topic": ["t", "t"], "partition": [0, 1], "offset": NUMBERS})


def columns(**arrays: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(arrays)


def mapped(result: Any, *wanted: tuple[str, pa.DataType]) -> list[pa.RecordBatch]:
    return list(ArrowFunction(lambda _: result, pa.schema(list(wanted)))(READ))


@pytest.mark.parametrize(
    ("result", "wanted", "message"),
    [
        (
            columns(b=NUMBERS, a=TIMES),
            [("a", pa.int64()), ("b", pa.int64())],
            "(a timestamp[us, tz=UTC], b int64), its",
        ),
        (columns(b=NUMBERS, c=NUMBERS), [("a", pa.int64()), ("b", pa.int64())], "(b int64, c int64), its schema names"),
        (
            pandas.DataFrame({"a": [1]}),
            [("a", pa.int64())],
            "returned a DataFrame, not a pyarrow.RecordBatch or an iter",
        ),
        ({"a": [1]}, [("a", pa.int64())], "returned a dict, not a pyarrow.RecordBatch or an iterator of them"),
        (columns(a=TIMES), [("a", pa.int64())], "(a timestamp[us, tz=UTC]), its schema names (a int64)"),
        (columns(a=NUMBERS), [("a", pa.int32())], "(a int64), its schema names (a int32)"),
        (columns(a=TIMES.cast(pa.timestamp("ns", "UTC"))), [("a", TIMES.type)], "(a timestamp[ns, tz=UTC])"),
        (columns(a=NUMBERS), [("a", pa.int64()), ("b", pa.int64())], "(a int64), its schema names (a int64, b int64)"),
        (columns(a=NUMBERS, b=NUMBERS), [("a", pa.int64())], "(a int64, b int64), its schema names (a int64)"),
        (columns(a=pa.array(["x"]).dictionary_encode()), [("a", pa.string())], "dictionary<"),
        (None, [("a", pa.int64())], "returned a NoneType, not a pyarrow.RecordBatch or an iterator of them"),
        ("rows", [("a", pa.int64())], "returned a str, not a pyarrow.RecordBatch"),
        (pa.table({"a": NUMBERS}), [("a", pa.int64())], "returned a Table, not a pyarrow.RecordBatch"),
        ([columns(a=NUMBERS), {"a": [1]}], [("a", pa.int64())], "gave a dict, not a pyarrow.RecordBatch"),
        ([columns(a=NUMBERS), columns(a=TIMES)], [("a", pa.int64())], "(a timestamp[us, tz=UTC])"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_other_columns_than_declared_are_named(result: Any, wanted: Any, message: str) -> None:
    with pytest.raises(FunctionError, match=re.escape(message)) as caught:
        mapped(result, *wanted)
    assert str(caught.value).startswith("map_arrow: ")
    assert str(caught.value).endswith(", given t-0 offset 1, t-1 offset 2")


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array(["x"], pa.large_string()), pa.string()),
        (pa.array([b"x"], pa.large_binary()), pa.binary()),
        (pa.array([1], pa.timestamp("us")), TIMES.type),
        (pa.nulls(2), pa.int32()),
        (pa.array([[1]], pa.list_(pa.int64())), pa.list_(pa.field("element", pa.int64(), nullable=False))),
        (pa.array([{"k": None}]), pa.struct([("k", pa.string())])),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_what_spark_reads_alike_passes(column: pa.Array, wanted: pa.DataType) -> None:
    batch = columns(a=column)
    assert mapped(batch, ("a", wanted)) == [batch]
    assert mapped(iter([batch, batch]), ("a", wanted)) == [batch, batch]
    assert mapped([], ("a", wanted)) == []


def test_columns_of_the_right_names_in_another_order_are_put_in_order() -> None:
    wanted = [("a", pa.int64()), ("b", TIMES.type)]
    (result,) = mapped(columns(b=TIMES, a=NUMBERS), *wanted)
    assert result == columns(a=NUMBERS, b=TIMES)


def rows(count: int) -> pa.RecordBatch:
    """Offsets 100 and on of orders-1, and a record of orders-0 at the end."""
    partitions = [1] * (count - 1) + [0]
    return columns(topic=["orders"] * count, partition=partitions, offset=[*range(100, 100 + count)])


@pytest.mark.parametrize("streaming", [False, True])
def test_the_record_a_function_fails_at_is_named(streaming: bool) -> None:
    def fail(batch: pa.RecordBatch) -> Any:
        if 137 in batch.column("offset").to_pylist():
            raise ValueError("a bad\nrecord")
        return batch.select(["offset"])

    def stream(batch: pa.RecordBatch) -> Any:
        yield batch.select(["offset"])
        fail(batch)

    run = ArrowFunction(stream if streaming else fail, pa.schema([("offset", pa.int64())]))
    assert len(list(run(rows(30)))) == 1
    with pytest.raises(FunctionError) as caught:
        list(run(rows(1000)))
    assert re.fullmatch(
        r"map_arrow: ValueError: a bad record \(test_arrow_function\.py, line \d+, in fail\), "
        r"given orders-1 offset 137",
        str(caught.value),
    )
    assert not caught.value.passing


def test_what_only_the_whole_fails_at_is_named_as_a_range_and_passing_trouble_is_not_narrowed() -> None:
    def refuse(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        if batch.num_rows == 1000:
            raise kind("no")
        return batch.select(["offset"])

    for kind, often in [(KeyError, 3), (ConnectionError, 1)]:
        calls: list[int] = []
        with pytest.raises(FunctionError, match=r"given orders-0 offset 1099, orders-1 offsets 100 to 1098$") as caught:
            list(ArrowFunction(refuse, pa.schema([("offset", pa.int64())]))(rows(1000)))
        assert len(calls) == often
        assert caught.value.passing == (kind is ConnectionError)


def test_a_read_task_keeps_a_lasting_error_for_the_driver_and_raises_one_that_may_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "read_splits", lambda config, splits, _: iter([rows(4)] * splits[0]))
    config, kept = ReaderConfig("b:1", "g"), Kept()

    def task(error: Exception, failed: Any) -> list[Any]:
        def fail(batch: pa.RecordBatch) -> Any:
            raise error

        function = ArrowFunction(fail, pa.schema([("a", pa.int64())]))
        read = reader.ReadTask(config, [[1], [2]], function, None, failed)  # type: ignore[list-item]
        return list(read(iter([columns(id=pa.array([0, 1]))])))

    assert task(ValueError("x"), kept) == []
    ((number, (text, details)),) = kept.items()
    assert number == 0
    assert text.startswith("map_arrow: ValueError: x (test_arrow_function.py, line ")
    assert "raise error" in details
    for error, failed in [(TimeoutError("x"), kept), (ValueError("x"), None)]:
        with pytest.raises(FunctionError, match=": x "):
            task(error, failed)


class Kept(dict[int, tuple[str, str]]):
    """An accumulator."""

    def add(self, found: dict[int, tuple[str, str]]) -> None:
        self.update(found)
