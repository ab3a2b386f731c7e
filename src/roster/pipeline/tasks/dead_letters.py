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
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from typing_extensions import override

from roster._json import JsonObject
from roster.pipeline.errors import FunctionError
from roster.pipeline.tasks.arrow_function import is_of_a_record
from roster.pipeline.tasks.value_columns import rows_at_fault
from roster.records.produce import KafkaOutput, KafkaWriter, WriteError
from roster.state.bad_rows import bad_rows
from roster.wire.columns.reader import Unreadable, UnreadableError

_PREFIX = "__connect.errors."
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_STACK_BYTES, _TOLD = 10_000, 300
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
        results: list[pa.RecordBatch] = []

        def attempt(begin: int, end: int) -> Exception | None:
            part = batch.slice(begin, end - begin)
            visible = self.seen(part)
            try:
                rows = list(self._function.results(visible))
            except Exception as error:
                if part.num_rows == 0 or not is_of_a_record(error):
                    failure = self._function.failure(error, visible, narrow=False)
                    raise failure from (None if failure is error else error)
                bad = rows_at_fault(error, visible) or ({0: error} if part.num_rows == 1 else {})
                for row, cause in bad.items():
                    self._reject(part.slice(row, 1), cause)
                if 0 < len(bad) < part.num_rows:
                    results.extend(self(part.filter(pa.array([row not in bad for row in range(part.num_rows)]))))
                return None if bad and part.num_rows > 1 else error
            if self._passed is not None:
                self._passed(part, sum(result.num_rows for result in rows))
            results.extend(rows)
            return None

        bad_rows(max(batch.num_rows, 1), attempt)
        yield from results

    def seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records as the function sees them."""
        return batch.drop_columns(self._hidden) if self._hidden else batch


class RefusedRowError(ValueError):
    """A sink has refused a row."""


class _Refusing:
    """Fails at records whose rows a sink has refused, by the rows' numbers in the task.

    Each of the `rounds` numbers the rows of the records that the rounds before have left.
    """

    def __init__(self, function: RecordFunction | None, rounds: Sequence[Mapping[int, str]]) -> None:
        self._function, self._rounds = function, [(sorted(refused), refused) for refused in rounds]
        self._at, self._counts = [0] * len(rounds), [0] * len(rounds)

    def results(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._counts = [0] * len(self._rounds)
        rows = [batch] if self._function is None else list(self._function.results(batch))
        count = sum(part.num_rows for part in rows)
        for number, (places, refused) in enumerate(self._rounds):
            self._counts[number], place = count, bisect_left(places, self._at[number])
            if place < len(places) and places[place] < self._at[number] + count:
                raise RefusedRowError(refused[places[place]])
        return iter(rows)

    def failure(self, error: Exception, batch: pa.RecordBatch, *, narrow: bool) -> Exception:
        return error if self._function is None else self._function.failure(error, batch, narrow=narrow)

    def go_on(self) -> None:
        """Go on behind the records of the last call."""
        self._at = [position + count for position, count in zip(self._at, self._counts, strict=True)]


def salvage_of(
    function: RecordFunction | None, letters: DeadLetters, rounds: Sequence[Mapping[int, str]], *, hide_headers: bool
) -> Salvage:
    """Return what makes dead letters of records at which the function fails, and of those whose rows are refused."""
    refusing = _Refusing(function, rounds)

    def reject(record: pa.RecordBatch, error: Exception) -> None:
        letters.reject(record, error, "write" if isinstance(error, RefusedRowError) else "map_arrow")
        refusing.go_on()

    return Salvage(refusing, reject, hide_headers=hide_headers, passed=lambda *_: refusing.go_on())


class DeadLetters:
    """The dead letters of one attempt of a task."""

    def __init__(self, writer: KafkaWriter, group: str, task: object) -> None:
        """`writer` is the topic's."""
        self._writer, self._group, self._task = writer, group, task
        self.sent = 0
        self.first = ""
        """What the first one failed at, and which it is."""

    def reject(self, record: pa.RecordBatch, error: Exception, by: str = "map_arrow") -> None:
        """Make a dead letter of a record batch of one row. `by`: what has failed."""
        (row,) = record.to_pylist()
        stage = "TASK_PUT" if isinstance(error, RefusedRowError) else "TRANSFORMATION"
        headers = [*_own_headers(row), *self._error_headers(row, error, stage, by)]
        self._letter(row["key"], row["value"], headers, record.column("timestamp"))

    def reject_row(self, place: tuple[str, int], row: tuple[Any, Any], error: Exception, by: str) -> None:
        """Make a dead letter of a row that does not come from one record: it has topic and partition, but no offset.

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
        self, row: Mapping[str, object], error: BaseException, stage: str, name: str
    ) -> list[tuple[str, bytes]]:
        """Return headers by their names in Kafka Connect; all values are text, including numbers."""
        if isinstance(error, FunctionError) and error.__cause__ is not None:
            error = error.__cause__
        kind = type(error)
        if not self.first:
            place = f"{row['topic']}-{row['partition']}" + (f" offset {row['offset']}" if "offset" in row else "")
            self.first = f"{place}: {name}: {kind.__qualname__}: {str(error).partition(chr(10))[0]}"[:_TOLD]
        stack = "".join(traceback.format_exception(error))
        values = {
            **{name: row[name] for name in ("topic", "partition", "offset") if name in row},
            "connector.name": self._group,
            "task.id": self._task,
            "stage": stage,
            "class.name": name,
            "exception.class.name": class_name(kind),
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
            f"bad records are not in the dead-letter topic {self._writer.topic!r}: {problem}", passing=True
        )


class LetterRows(DeadLetters):
    """Keeps dead letters as rows with a column `topic`, which are written with the batch's other records."""

    def __init__(self, writer: KafkaWriter, group: str, task: object) -> None:
        super().__init__(writer, group, task)
        self.rows: list[pa.RecordBatch] = []

    @override
    def _send(self, letter: pa.RecordBatch) -> None:
        self.rows.append(letter.append_column("topic", pa.array([self._writer.topic], pa.string())))


def _own_headers(row: JsonObject) -> list[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in row.get("headers") or ()]


def class_name(kind: type[BaseException]) -> str:
    """Return the name by which letters call an error: as ever, wherever its module lies now."""
    module = kind.__module__.replace("roster.pipeline.", "roster.spark.")
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
