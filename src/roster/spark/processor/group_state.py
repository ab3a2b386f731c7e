"""A function written for PySpark's `applyInPandasWithState`: pandas DataFrames and a `GroupState`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from roster.spark.processor.code import Given, failure, results_of, taken
from roster.spark.processor.frames import FrameResults, Frames
from roster.spark.processor.handle import make_row
from roster.state.processor.batch import KeyedState, Now, TimeMode
from roster.state.processor.states import ValueState

MODES = {
    GroupStateTimeout.NoTimeout: TimeMode.NONE,
    GroupStateTimeout.ProcessingTimeTimeout: TimeMode.PROCESSING,
    GroupStateTimeout.EventTimeTimeout: TimeMode.EVENT,
}
_FIELD = "apply_in_pandas_with_state"
_STATE = "state"


class GroupStateCode:
    """The function during one batch; a key's timeout is its only timer."""

    def __init__(
        self, given: Given, schema: StructType, columns: pa.Schema, timeout: str, *, has_watermark: bool
    ) -> None:
        """`schema`: of the state, `columns` the same in Arrow."""
        self._given, self._schema, self._columns = given, schema, columns
        self._timeout, self._has_watermark = timeout, has_watermark
        self._function = given.load()
        self._names = schema.names
        self._results = FrameResults(given.output, given.zone, exact=True)
        self._frames: Frames
        self._state: KeyedState
        self._value: ValueState

    def open(self, state: KeyedState, table: pa.Table) -> None:
        """Declare the state."""
        self._state, self._value = state, state.value(ValueState, _STATE, self._columns)
        self._frames = Frames(table, self._given.zone, widen=False)

    def rows(self, key: tuple[Any, ...], begin: int, end: int, now: Now, *, is_new: bool) -> None:
        """Call the function with the rows of a key."""
        self._call(key, self._frames.part(begin, end), now, has_timed_out=False)

    def timer(self, key: tuple[object, ...], at: int, now: Now) -> None:
        """Call the function for a key that has timed out."""
        self._call(key, self._frames.empty, now, has_timed_out=True)

    @staticmethod
    def threshold(now: int) -> int:
        """Return the time up to which timeouts are due, inclusive; in Spark they must lie before the present."""
        return now - 1

    def close(self) -> pa.Table:
        """Return all rows."""
        return results_of(self._results, _FIELD)

    def taken(self, *, valid: bool) -> pa.Table | None:
        """Forget the rows that calls have returned so far; if they are `valid` return them first."""
        return taken(self._results, _FIELD, valid=valid)

    def _call(self, key: tuple[Any, ...], frame: Any, now: Now, *, has_timed_out: bool) -> None:
        value = self._value.get()
        state = GroupState(
            optionalValue=None if value is None else make_row(self._names, value),  # type: ignore[arg-type]
            batchProcessingTimeMs=now.processing,
            eventTimeWatermarkMs=now.watermark,
            timeoutConf=self._timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=self._has_watermark,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._schema,
        )
        try:
            self._results.extend(self._function(key, iter([frame]), state))
            self._keep(state)
        except (Exception, SystemExit) as error:
            raise failure(_FIELD, getattr(self._function, "__name__", "the function"), key, error) from error

    def _keep(self, state: GroupState) -> None:
        """Write the function's changes to the state: a timeout lasts until the state is written again."""
        timeout = int(state._timeout_timestamp)
        if state._updated:
            self._value.update(tuple(state._value))
        elif state._removed:
            self._value.clear()
        if state._updated or state._removed or timeout != GroupState.NO_TIMESTAMP:
            self._set_timeout(timeout)

    def _set_timeout(self, timeout: int) -> None:
        timers, key = self._state.timers, self._state.current.key
        if key is None:
            return
        for due_time in timers.of(key):
            if due_time != timeout:
                timers.delete(key, due_time)
        if timeout != GroupState.NO_TIMESTAMP:
            timers.register(key, timeout)
