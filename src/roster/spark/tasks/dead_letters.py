"""Sends records that make the `map_arrow` function fail to a dead-letter topic, from inside the task.

`json_columns` names the records at fault, and they go to the topic. If a user's function raises, its batch is halved
until the first bad record is found; it goes to the topic, and the rest is processed. The records carry the headers of
Kafka Connect's dead letter queue (KIP-298), after their own.

A task ends only when all replicas have acknowledged its dead letters, so before its batch is committed: a record of a
committed batch either has its results or is in the topic. A retried batch sends its dead letters again: the topic is at
least once, whatever the sink is.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from roster.records.produce import KafkaOutput, KafkaWriter, WriteError
from roster.spark.errors import FunctionError
from roster.spark.tasks.arrow_function import ArrowFunction, is_of_a_record
from roster.spark.tasks.value_columns import rows_at_fault
from roster.wire.columns.reader import Unreadable, UnreadableError

_PREFIX = "__connect.errors."
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_STACK_BYTES = 10_000
DEAD_LETTER_SECONDS = 60.0
"""Seconds a task waits for the dead-letter topic's acknowledgement."""


class Salvage:
    """Calls the function without the records that make it fail, and passes each of these to `reject`.

    The function is called again with parts of a batch, so it must not depend on how records are batched.
    """

    def __init__(
        self,
        function: ArrowFunction,
        reject: Callable[[pa.RecordBatch, Exception], None],
        *,
        hide_headers: bool = False,
    ) -> None:
        """With `hide_headers` the function does not see the column `headers`, which `reject` does."""
        self._function, self._reject = function, reject
        self._hidden = ["headers"] if hide_headers else []

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the function's record batches.

        Raises FunctionError for errors that a retry may clear, and for results of the wrong type or columns.
        """
        seen = batch.drop_columns(self._hidden) if self._hidden else batch
        at, size = 0, batch.num_rows
        while True:
            part = seen.slice(at, size)
            error = yield from self._tried(part)
            if error is None:
                at, size = at + part.num_rows, 2 * size
            elif bad := rows_at_fault(error, part):
                yield from self._without(batch.slice(at, part.num_rows), bad)
                at += part.num_rows
            else:
                behind = yield from self._through_first_bad(batch, seen, at, at + part.num_rows, error)
                # Guess that the next bad row is as far away: the more bad rows, the fewer are tried together.
                at, size = behind, max(behind - at - 1, 1)
            if at >= batch.num_rows:
                return

    def _tried(self, part: pa.RecordBatch) -> Generator[pa.RecordBatch, None, Exception | None]:
        """Yield the results of some rows; return the error if a row may be its cause."""
        try:
            results = list(self._function.results(part))
        except Exception as error:
            if part.num_rows == 0 or not is_of_a_record(error):
                raise self._function.failure(error, part, narrow=False) from error
            return error
        yield from results
        return None

    def _through_first_bad(
        self, batch: pa.RecordBatch, seen: pa.RecordBatch, at: int, end: int, error: Exception | None
    ) -> Generator[pa.RecordBatch, None, int]:
        """Find by halving the first row of [at, end) that the function fails at, and reject it.

        Yields the results of the rows before it; returns the index after it.
        """
        is_alone = end - at == 1
        while end - at > 1:
            middle = (at + end) // 2
            found = yield from self._tried(seen.slice(at, middle - at))
            is_alone = found is not None and middle - at == 1
            if found is None:
                at = middle
            else:
                end, error = middle, found
        if not is_alone:
            error = yield from self._tried(seen.slice(at, 1))
        if error is not None:
            self._reject(batch.slice(at, 1), error)
        return at + 1

    def _without(self, batch: pa.RecordBatch, bad: Mapping[int, Exception]) -> Iterator[pa.RecordBatch]:
        for row, error in bad.items():
            self._reject(batch.slice(row, 1), error)
        if len(bad) < batch.num_rows:
            yield from self(batch.filter(pa.array([row not in bad for row in range(batch.num_rows)])))


class DeadLetterQueue:
    """The dead letters of one attempt of a task."""

    def __init__(self, writer: KafkaWriter, group: str, task: int) -> None:
        self._writer, self._group, self._task = writer, group, task
        self._output: KafkaOutput | None = None
        self.sent = 0

    def reject(self, record: pa.RecordBatch, error: Exception) -> None:
        """Send a record batch of one row. Raise FunctionError if the topic does not take it."""
        (row,) = record.to_pylist()
        headers = [*_own_headers(row), *self._error_headers(row, error, "TRANSFORMATION", "map_arrow")]
        self._send(row["key"], row["value"], headers, record.column("timestamp"))

    def reject_batch(self, batch: Unreadable) -> None:
        """Send a batch with unreadable records, with its bytes as in the log. Raise FunctionError as `reject` does.

        The bytes are left out if the topic may refuse so large a record.
        """
        place = {"topic": batch.topic, "partition": batch.partition, "offset": batch.first_offset}
        headers = self._error_headers(place, UnreadableError(batch), "KAFKA_CONSUME", "reader")
        value = batch.data if len(batch.data) <= self._writer.batch_bytes else None
        self._send(None, value, headers, pa.nulls(1, _TIMESTAMP))

    def _error_headers(
        self, row: Mapping[str, Any], error: Exception, stage: str, name: str
    ) -> list[tuple[str, bytes]]:
        """Return headers by their names in Kafka Connect; all values are text, including numbers."""
        kind = type(error)
        exception = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        stack = "".join(traceback.format_exception(error))
        values = {
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "connector.name": self._group,
            "task.id": self._task,
            "stage": stage,
            "class.name": name,
            "exception.class.name": exception,
            "exception.message": str(error),
            "exception.stacktrace": stack[-_STACK_BYTES:],
        }
        return [(f"{_PREFIX}{header}", str(value).encode(errors="replace")) for header, value in values.items()]

    def _send(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp: pa.Array
    ) -> None:
        letter = {
            "key": pa.array([key], pa.binary()),
            "value": pa.array([value], pa.binary()),
            "headers": pa.array([[{"key": name, "value": text} for name, text in headers]], _HEADERS),
            "timestamp": timestamp,
        }
        self.sent += 1
        if self._output is None:
            self._output = self._writer.open()
        try:
            self._output.write(pa.RecordBatch.from_pydict(letter))
        except WriteError as problem:
            raise self._unsent(problem) from problem

    def close(self) -> None:
        """Wait until all are acknowledged. Raises FunctionError if one is not."""
        if self._output is None:
            return
        try:
            self._output.close()
        except WriteError as problem:
            self._output.abort()
            raise self._unsent(problem) from problem

    def abort(self) -> None:
        """Drop unsent dead letters, as the task has failed."""
        if self._output is not None:
            self._output.abort()

    def _unsent(self, problem: WriteError) -> FunctionError:
        return FunctionError(
            f"bad records are not in the dead-letter topic {self._writer.topic!r}: {problem}",
            passing=True,
        )


def _own_headers(row: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in row.get("headers") or ()]
