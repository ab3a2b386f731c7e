"""The function given to `map_arrow`, its results checked against the declared schema."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from roster.pipeline.errors import FunctionError, MissingSchemasError
from roster.pipeline.tasks.missing_values import Seen
from roster.pipeline.tasks.value_columns import rows_at_fault
from roster.state.bad_rows import is_of_a_row

_NARROWING = 5.0  # seconds spent on finding the record that makes a function fail

_ROSTER = str(Path(__file__).parents[2])


class ArrowFunction:
    """Calls the function and checks its results: Spark takes columns by position and reads their bytes as declared."""

    def __init__(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> None:
        self._function, self._schema = function, schema
        self._wanted = _shape(pa.struct(list(schema)))

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the function's record batches. Raise FunctionError if it fails or returns undeclared columns."""
        try:
            yield from self.results(batch)
        except Exception as error:
            raise self.failure(error, batch) from (None if isinstance(error, _UnfitError) else error)

    @property
    def columns(self) -> pa.Schema:
        """Columns of its results."""
        return self._schema

    def values_seen(self) -> Seen:
        """Return which columns of `json_columns` had a value so far."""
        values_seen: Callable[[], Seen] | None = getattr(self._function, "values_seen", None)
        return {} if values_seen is None else values_seen()

    def failure(self, error: Exception, batch: pa.RecordBatch, *, narrow: bool = True) -> FunctionError:
        """Make a FunctionError of what `results` raised; with `narrow` call it with parts to find the record."""
        if isinstance(error, MissingSchemasError):
            return error
        if isinstance(error, _UnfitError):
            return FunctionError(f"{error}, given {_records(batch)}", unfit=True)
        passing = not is_of_a_record(error)
        narrowed = self._narrow(batch, error) if narrow and not passing else batch
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        details = "".join(traceback.format_exception(error))
        problem = f"{problem} ({place_of(error)}), given {_records(narrowed)}"
        return FunctionError(problem, passing=passing, details=details)

    def results(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the function's record batches; its errors pass through."""
        mapped = self._function(batch)
        if isinstance(mapped, pa.RecordBatch):
            mapped = iter((mapped,))
        # Tables and DataFrames are iterators of columns or of their names.
        elif not hasattr(mapped, "__iter__") or isinstance(mapped, (str, bytes, dict)) or hasattr(mapped, "columns"):
            raise _UnfitError(
                f"the function returned a {type(mapped).__name__}, not a pyarrow.RecordBatch or an iterator of them"
            )
        known = self._schema
        for result in mapped:
            if not isinstance(result, pa.RecordBatch):
                raise _UnfitError(f"the function gave a {type(result).__name__}, not a pyarrow.RecordBatch")
            ordered = self._ordered(result)
            if not ordered.schema.equals(known):
                self._check(ordered.schema)
                known = ordered.schema
            yield ordered

    def _ordered(self, result: pa.RecordBatch) -> pa.RecordBatch:
        """Put columns into the schema's order if they have its names."""
        names, wanted = result.schema.names, self._schema.names
        if names == wanted or len(set(wanted)) < len(wanted) or sorted(names) != sorted(wanted):
            return result
        return result.select(wanted)

    def _check(self, schema: pa.Schema) -> None:
        if not _fits(_shape(pa.struct(list(schema))), self._wanted):
            raise _UnfitError(
                f"the function returned the columns ({_text(schema)}), its schema names ({_text(self._schema)})"
            )

    def _narrow(self, batch: pa.RecordBatch, error: Exception) -> pa.RecordBatch:
        """Return the first row at fault, or the smallest part, found by halving, that raises the same kind of error."""
        if bad := rows_at_fault(error, batch):
            return batch.slice(min(bad), 1)
        kind, until = type(error), time.monotonic() + _NARROWING
        while batch.num_rows > 1 and time.monotonic() < until:
            half = batch.num_rows // 2
            part = next((p for p in (batch.slice(0, half), batch.slice(half)) if self._raises(p, kind)), None)
            if part is None:
                break
            batch = part
        return batch

    def _raises(self, batch: pa.RecordBatch, kind: type[Exception]) -> bool:
        try:
            for _ in self.results(batch):
                pass
        except Exception as error:
            return type(error) is kind
        return False


class _UnfitError(Exception):
    """The function did not return the declared columns."""


def is_of_a_record(error: Exception) -> bool:
    """Return True for an error that a record may cause, False for one of the machine or of the returned columns."""
    return is_of_a_row(error) and not isinstance(error, (_UnfitError, MissingSchemasError))


def _records(batch: pa.RecordBatch) -> str:
    """Format partitions and offsets of rows as `orders-1 offsets 0 to 3`."""
    spans: dict[str, tuple[int, int]] = {}
    columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    for topic, partition, offset in zip(*columns, strict=True):
        name = f"{topic}-{partition}"
        first, last = spans.get(name, (offset, offset))
        spans[name] = min(first, offset), max(last, offset)
    texts = [
        f"{name} offset {first}" if first == last else f"{name} offsets {first} to {last}"
        for name, (first, last) in sorted(spans.items())
    ]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} other partitions" if len(texts) > 5 else "")


def place_of(error: BaseException) -> str:
    """Return where an error was raised: preferably the line in the function, not in a library it called."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_ROSTER)]
    own = [f for f in frames if "site-packages" not in f.filename and "/lib/python" not in f.filename] or frames
    if not own:
        return "in the function"
    return f"{own[-1].filename.rpartition('/')[2]}, line {own[-1].lineno}, in {own[-1].name}"


def _shape(kind: pa.DataType) -> object:
    """Reduce a type to what Spark distinguishes: not the width of offsets, a time's zone, names inside lists."""
    if pa.types.is_struct(kind):
        return ("struct", tuple((kind.field(n).name, _shape(kind.field(n).type)) for n in range(kind.num_fields)))
    if pa.types.is_list(kind):
        return ("list", _shape(kind.value_type))
    if pa.types.is_map(kind):
        return ("map", _shape(kind.key_type), _shape(kind.item_type))
    if pa.types.is_timestamp(kind):
        return ("timestamp", kind.unit)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def _fits(given: object, wanted: object) -> bool:
    """Return True for equal types, and for a column of nulls in place of any type."""
    if given == pa.null():
        return True
    if isinstance(given, tuple) and isinstance(wanted, tuple) and len(given) == len(wanted):
        return all(_fits(one, other) for one, other in zip(given, wanted, strict=True))
    return bool(given == wanted)


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
