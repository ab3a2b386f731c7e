"""Makes dead letters of records that make a pipeline's functions and operators fail, inside the task.

`json_columns` names the records at fault. If a user's function raises, its batch is halved until the first bad record
is found; it is rejected, and the rest is processed. Dead letters carry the headers of Kafka Connect's dead letter queue
(KIP-298), after the record's own.

`LetterRows` are records of the batch's transaction, so exactly once. Pipelines without state have a `DeadLetterQueue`,
which sends from the task: the task ends only when all replicas have acknowledged its dead letters, so before its batch
is committed, and a retried batch sends them again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from typing_extensions import override

from roster.records.produce import KafkaOutput, KafkaWriter, WriteError
from roster.spark.errors import FunctionError
from roster.spark.tasks.arrow_function import is_of_a_record
from roster.spark.tasks.value_columns import rows_at_fault
from roster.wire.columns.reader import Unreadable, UnreadableError

_Tried: TypeAlias = tuple[Exception | None, Mapping[int, Exception]]
_PREFIX = "__connect.errors."
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_STACK_BYTES = 10_000
DEAD_LETTER_SECONDS = 60.0
"""Seconds a task waits for the dead-letter topic's acknowledgement."""


class RecordFunction(Protocol):
    """Maps records."""

    def results(self, batch: pa.RecordBatch, /) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records; errors pass through."""

    def failure(self, error: Exception, batch: pa.RecordBatch, /, *, narrow: bool) -> Exception:
        """Return the exception for an error that is not of a record."""


class Salvage:
    """Calls the function without the records that make it fail, and passes each of these to `reject`.

    The function is called again with parts of a batch, so it must not depend on how records are batched. `passed` is
    called with records that have passed, and the number of their rows, in the order of rows.
    """

    def __init__(
        self,
        function: RecordFunction,
        reject: Callable[[pa.RecordBatch, Exception], None],
        *,
        hide_headers: bool = False,
        passed: Callable[[pa.RecordBatch, int], None] | None = None,
    ) -> None:
        """With `hide_headers` the function does not see the column `headers`, which `reject` and `passed` do."""
        self._function, self._reject, self._passed = function, reject, passed
        self._hidden = ["headers"] if hide_headers else []

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the function's record batches.

        Raises FunctionError for errors that a retry may clear, and for results of the wrong type or columns.
        """
        at, size = 0, batch.num_rows
        while True:
            part = batch.slice(at, size)
            error, bad = yield from self._tried(part)
            if error is None:
                at, size = at + part.num_rows, 2 * size
            elif bad:
                yield from self._without(part, bad)
                at += part.num_rows
            else:
                behind = yield from self._through_first_bad(batch, at, at + part.num_rows, error)
                # Guess that the next bad row is as far away: the more bad rows, the fewer are tried together.
                at, size = behind, max(behind - at - 1, 1)
            if at >= batch.num_rows:
                return

    def seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records as the function sees them."""
        return batch.drop_columns(self._hidden) if self._hidden else batch

    def _tried(self, part: pa.RecordBatch) -> Generator[pa.RecordBatch, None, _Tried]:
        """Yield the results of some rows; return the error if a row may be its cause, and the rows if it names them."""
        seen = self.seen(part)
        try:
            results = list(self._function.results(seen))
        except Exception as error:
            if part.num_rows == 0 or not is_of_a_record(error):
                failure = self._function.failure(error, seen, narrow=False)
                raise failure from (None if failure is error else error)
            return error, rows_at_fault(error, seen)
        if self._passed is not None:
            self._passed(part, sum(result.num_rows for result in results))
        yield from results
        return None, {}

    def _through_first_bad(
        self, batch: pa.RecordBatch, at: int, end: int, error: Exception | None
    ) -> Generator[pa.RecordBatch, None, int]:
        """Find by halving the first row of [at, end) that the function fails at, and reject it.

        Yields the results of the rows before it; returns the index after it.
        """
        is_alone = end - at == 1
        while end - at > 1:
            middle = (at + end) // 2
            found, _ = yield from self._tried(batch.slice(at, middle - at))
            is_alone = found is not None and middle - at == 1
            if found is None:
                at = middle
            else:
                end, error = middle, found
        if not is_alone:
            error, _ = yield from self._tried(batch.slice(at, 1))
        if error is not None:
            self._reject(batch.slice(at, 1), error)
        return at + 1

    def _without(self, batch: pa.RecordBatch, bad: Mapping[int, Exception]) -> Iterator[pa.RecordBatch]:
        for row, error in bad.items():
            self._reject(batch.slice(row, 1), error)
        if len(bad) < batch.num_rows:
            yield from self(batch.filter(pa.array([row not in bad for row in range(batch.num_rows)])))


class DeadLetters:
    """The dead letters of one attempt of a task."""

    def __init__(self, writer: KafkaWriter, group: str, task: object) -> None:
        """`writer` is the topic's."""
        self._writer, self._group, self._task = writer, group, task
        self.sent = 0

    def reject(self, record: pa.RecordBatch, error: Exception, by: str = "map_arrow") -> None:
        """Make a dead letter of a record batch of one row. `by`: what has failed."""
        (row,) = record.to_pylist()
        headers = [*_own_headers(row), *self._error_headers(row, error, "TRANSFORMATION", by)]
        self._letter(row["key"], row["value"], headers, record.column("timestamp"))

    def reject_row(self, place: tuple[str, int], row: tuple[Any, Any], error: Exception, by: str) -> None:
        """Make a dead letter of a row that comes of no single record: it has topic and partition and no offset.

        row: the letter's key and value.
        """
        headers = self._error_headers(
            dict(zip(("topic", "partition"), place, strict=True)), error, "TRANSFORMATION", by
        )
        self._letter(*row, headers, pa.nulls(1, _TIMESTAMP))

    def reject_batch(self, batch: Unreadable) -> None:
        """Make a dead letter of a batch with unreadable records, with its bytes as in the log.

        The bytes are left out if the topic may refuse so large a record.
        """
        place = {"topic": batch.topic, "partition": batch.partition, "offset": batch.first_offset}
        headers = self._error_headers(place, UnreadableError(batch), "KAFKA_CONSUME", "reader")
        value = batch.data if len(batch.data) <= self._writer.batch_bytes else None
        self._letter(None, value, headers, pa.nulls(1, _TIMESTAMP))

    def _error_headers(
        self, row: Mapping[str, Any], error: BaseException, stage: str, name: str
    ) -> list[tuple[str, bytes]]:
        """Return headers by their names in Kafka Connect; all values are text, including numbers."""
        if isinstance(error, FunctionError) and error.__cause__ is not None:
            error = error.__cause__
        kind = type(error)
        exception = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        stack = "".join(traceback.format_exception(error))
        values = {
            **{name: row[name] for name in ("topic", "partition", "offset") if name in row},
            "connector.name": self._group,
            "task.id": self._task,
            "stage": stage,
            "class.name": name,
            "exception.class.name": exception,
            "exception.message": str(error),
            "exception.stacktrace": stack[-_STACK_BYTES:],
        }
        return [(f"{_PREFIX}{header}", str(value).encode(errors="replace")) for header, value in values.items()]

    def _letter(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp: pa.Array
    ) -> None:
        letter = {
            "key": pa.array([key], pa.binary()),
            "value": pa.array([value], pa.binary()),
            "headers": pa.array([[{"key": name, "value": text} for name, text in headers]], HEADERS),
            "timestamp": timestamp.cast(_TIMESTAMP),
        }
        self.sent += 1
        self._send(pa.RecordBatch.from_pydict(letter))

    def _send(self, letter: pa.RecordBatch) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Wait until all are acknowledged. Raises FunctionError if one is not."""

    def abort(self) -> None:
        """Drop unsent dead letters, as the task has failed."""


class DeadLetterQueue(DeadLetters):
    """Sends dead letters at once; its methods raise FunctionError if the topic does not take one."""

    def __init__(self, writer: KafkaWriter, group: str, task: object) -> None:
        super().__init__(writer, group, task)
        self._output: KafkaOutput | None = None

    @override
    def _send(self, letter: pa.RecordBatch) -> None:
        if self._output is None:
            self._output = self._writer.open()
        try:
            self._output.write(letter)
        except WriteError as problem:
            raise self._unsent(problem) from problem

    @override
    def close(self) -> None:
        if self._output is None:
            return
        try:
            self._output.close()
        except WriteError as problem:
            self._output.abort()
            raise self._unsent(problem) from problem

    @override
    def abort(self) -> None:
        if self._output is not None:
            self._output.abort()

    def _unsent(self, problem: WriteError) -> FunctionError:
        return FunctionError(
            f"bad records are not in the dead-letter topic {self._writer.topic!r}: {problem}",
            passing=True,
        )


class LetterRows(DeadLetters):
    """Keeps dead letters as rows with a column `topic`, which are written with the batch's other records."""

    def __init__(self, writer: KafkaWriter, group: str, task: object) -> None:
        super().__init__(writer, group, task)
        self.rows: list[pa.RecordBatch] = []

    @override
    def _send(self, letter: pa.RecordBatch) -> None:
        self.rows.append(letter.append_column("topic", pa.array([self._writer.topic], pa.string())))


def _own_headers(row: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in row.get("headers") or ()]
