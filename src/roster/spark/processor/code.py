"""Calls of user code: its errors and wrong results become one error that names the call and the key."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from roster.pipeline.errors import FunctionError
from roster.pipeline.tasks.arrow_function import place_of
from roster.spark.processor.handle import Handle, SchemaReader
from roster.state.keys import encode_keys
from roster.state.processor.batch import KeyedState, Now, TimeMode
from roster.state.store import StateError


class InitialState:
    """Rows that each key begins with. Raises StateError if the key's columns are missing or cannot be keys."""

    def __init__(self, table: pa.Table, keys: Sequence[str]) -> None:
        if missing := [name for name in keys if name not in table.column_names]:
            raise StateError(f"initial_state: no column {missing[0]!r} among {', '.join(table.column_names)}")
        encoded = encode_keys(table, keys).combine_chunks()
        order = pc.sort_indices(encoded)
        self._table = table.take(order).combine_chunks()
        self._spans: dict[bytes, tuple[int, int]] = {}
        for place, key in enumerate(encoded.take(order).to_pylist()):
            begin, _ = self._spans.get(key, (place, place))
            self._spans[key] = begin, place + 1

    def of(self, key: bytes | None) -> pa.Table:
        """Return the rows of a key."""
        begin, end = self._spans.get(key or b"", (0, 0))
        return self._table.slice(begin, end - begin)


@dataclass(frozen=True)
class Given:
    """What the driver passes to each batch's call; can be pickled.

    code: the processor or the function, pickled. zone: the session's time zone. schemas: the ones that `init` asks for.
    initial: None, or a broadcast InitialState.
    """

    code: bytes
    output: pa.Schema
    mode: TimeMode
    zone: str
    schemas: dict[str, pa.Schema]
    initial: Any = None

    def load(self) -> Any:
        """Unpickle a fresh processor or function."""
        return pickle.loads(self.code)  # noqa: S301 - the driver's own


class Results(Protocol):
    """Collects the results of user code."""

    def extend(self, returned: Any, /) -> None:
        """Add a call's results. Raises StateError for results that do not fit."""

    def table(self) -> pa.Table:
        """Return all rows. Raises StateError for values that do not fit."""

    def clear(self) -> None:
        """Forget all rows."""


class ProcessorCode:
    """A `StatefulProcessor` during one batch; subclasses differ in how they pass and take rows."""

    def __init__(self, given: Given, results: Results, reader: SchemaReader | None = None) -> None:
        """`results` collects what is returned. `reader`: on the driver, one that may parse schemas."""
        self._given, self._results = given, results
        self._reader = reader or SchemaReader(given.schemas)
        self._processor: StatefulProcessor = given.load()
        self._initial: InitialState | None = None if given.initial is None else given.initial.value
        self._times: tuple[Now, TimerValues] | None = None
        self._state: KeyedState

    def open(self, state: KeyedState, table: pa.Table) -> None:
        """Call `init`."""
        self._state = state
        self._guard("init", None, self._processor.init, Handle(state, self._reader))
        self.give(table)

    def rows(self, key: tuple[Any, ...], begin: int, end: int, now: Now, *, is_new: bool) -> None:
        """Call `handleInitialState` for a new key, and `handleInputRows`."""
        times = self._timer_values(now)
        if is_new and self._initial is not None:
            for initial_row in self.initial(self._initial.of(self._state.current.key)):
                self._guard("handleInitialState", key, self._processor.handleInitialState, key, initial_row, times)
        try:
            self._results.extend(self._processor.handleInputRows(key, self.given(begin, end), times))
        except (Exception, SystemExit) as error:
            self.fail("handleInputRows", key, error)

    def timer(self, key: tuple[object, ...], at: int, now: Now) -> None:
        """Call `handleExpiredTimer`; the timer is removed afterwards."""
        times, info = self._timer_values(now), ExpiredTimerInfo(at)
        try:
            self._results.extend(self._processor.handleExpiredTimer(key=key, timerValues=times, expiredTimerInfo=info))
        except (Exception, SystemExit) as error:
            self.fail("handleExpiredTimer", key, error)
        self._state.delete_timer(at)

    @staticmethod
    def threshold(now: int) -> int:
        """Return the time up to which timers are due, inclusive."""
        return now

    def close(self) -> pa.Table:
        """Call `close`; return all rows."""
        self._guard("close", None, self._processor.close)
        return results_of(self._results, "transform_with_state")

    def taken(self, *, valid: bool) -> pa.Table | None:
        """Forget the rows that calls have returned so far; if they are `valid` return them first."""
        return taken(self._results, "transform_with_state", valid=valid)

    def give(self, table: pa.Table) -> None:
        """Prepare the batch's rows."""
        raise NotImplementedError

    def given(self, begin: int, end: int) -> Any:
        """Return an iterator over the rows of a key."""
        raise NotImplementedError

    def initial(self, table: pa.Table) -> Iterator[Any]:
        """Return an iterator over the initial state of a key, in the processor's form."""
        raise NotImplementedError

    def _timer_values(self, now: Now) -> TimerValues:
        if self._times is None or self._times[0] is not now:
            has_none = self._given.mode is TimeMode.NONE
            self._times = now, TimerValues(-1, -1) if has_none else TimerValues(*now)
        return self._times[1]

    def _guard(
        self, method: str, key: tuple[object, ...] | None, call: Callable[..., object], *arguments: object
    ) -> None:
        try:
            call(*arguments)
        except (Exception, SystemExit) as error:
            self.fail(method, key, error)

    def fail(self, method: str, key: tuple[object, ...] | None, error: BaseException) -> NoReturn:
        """Raise the FunctionError for what a method raised."""
        raise failure("transform_with_state", method, key, error) from error


def results_of(results: Results, field: str) -> pa.Table:
    """Return all rows. Raises FunctionError for values that do not fit."""
    try:
        return results.table()
    except StateError as error:
        raise FunctionError(str(error), field=field) from error


def taken(results: Results, field: str, *, valid: bool) -> pa.Table | None:
    """Forget all rows; return them if they are `valid`. Raises FunctionError for values that do not fit."""
    try:
        return results_of(results, field) if valid else None
    finally:
        results.clear()


def failure(field: str, name: str, key: tuple[object, ...] | None, error: BaseException) -> FunctionError:
    """Return the error for user code that raised or returned wrong results: it names the call, the line and the key."""
    text = " ".join(str(error).split())
    if not isinstance(error, StateError):
        text = f"{type(error).__name__}: {text}"
    where = "" if key is None else f", key {tuple(v.item() if hasattr(v, 'item') else v for v in key)!r}"
    passing = isinstance(error, (OSError, MemoryError))
    details = "".join(traceback.format_exception(error))
    return FunctionError(f"{name}: {text} ({place_of(error)}){where}", field=field, passing=passing, details=details)
