"""The handle and the state variables that a `StatefulProcessor` gets: PySpark's classes on Roster's state."""

# ruff: noqa: N802, N803
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import stateful_processor as spark
from pyspark.sql.types import Row, StructType

from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema
from roster.state.processor import states
from roster.state.processor.batch import KeyedState
from roster.state.store import StateError

T = TypeVar("T")


class _ValueState(states.ValueState, spark.ValueState):
    pass


class _ListState(states.ListState, spark.ListState):
    pass


class _MapState(states.MapState, spark.MapState):
    pass


_DOING = {
    _ValueState: {
        "exists": "checking value state exists",
        "get": "getting value state",
        "update": "updating value state",
        "clear": "clearing value state",
    },
    _ListState: {
        "exists": "checking value state exists",
        "get": "getting list state",
        **dict.fromkeys(("put", "appendValue", "appendList"), "updating value state"),
        "clear": "clearing value state",
    },
    _MapState: {
        "exists": "checking map state exists",
        "getValue": "getting value",
        "containsKey": "checking if map state contains key",
        "updateValue": "updating map state value",
        **dict.fromkeys(("iterator", "keys", "values"), "getting map state"),
        "removeKey": "removing key from map state",
        "clear": "clearing map state",
    },
}
"""PySpark's words for what a method does, in the errors that it raises of a variable that is gone."""


def _was_removed(doing: str) -> Callable[..., Any]:
    def refuse(variable: Any, *_: Any) -> Any:
        kind, name = variable._variable.kind.capitalize(), variable._variable.name
        raise PySparkRuntimeError(f"Error {doing}: {kind} state {name} is not initialized.")

    return refuse


_REMOVED = {
    kind: type(kind.__name__, (kind,), {name: _was_removed(doing) for name, doing in methods.items()})
    for kind, methods in _DOING.items()
}
"""Classes of variables that `deleteIfExists` has removed: each method raises PySpark's error."""


class Handle(spark.StatefulProcessorHandle):
    """Declares variables and timers in the state of a batch. `schema_of` gives the columns of a schema."""

    def __init__(self, state: KeyedState, schema_of: Callable[[StructType | str], pa.Schema]) -> None:
        self._state, self._schema_of = state, schema_of
        self._variables: dict[str, Any] = {}

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> spark.ValueState:
        """Return the value of this name."""
        columns = self._columns(stateName, schema)
        return self._got(stateName, self._state.value(_ValueState, stateName, columns, ttlDurationMs))

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> spark.ListState:
        """Return the list of this name."""
        columns = self._columns(stateName, schema)
        return self._got(stateName, self._state.list(_ListState, stateName, columns, ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> spark.MapState:
        """Return the map of this name."""
        key, value = self._columns(stateName, userKeySchema), self._columns(stateName, valueSchema)
        return self._got(stateName, self._state.map(_MapState, stateName, key, value, ttlDurationMs))

    def _columns(self, name: str, schema: StructType | str) -> pa.Schema:
        self._state.check_open(name)
        try:
            return self._schema_of(schema)
        except PipelineError as error:
            raise StateError(f"state variable {name!r}: {error.problem}") from None

    def _got(self, name: str, variable: T) -> T:
        self._variables[name] = variable
        return variable

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer of the current key."""
        self._state.register_timer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Remove a timer of the current key."""
        self._state.delete_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key, ascending."""
        return iter(self._state.list_timers())

    def deleteIfExists(self, stateName: str) -> None:
        """Remove a state variable with its values, if it exists; its earlier handles become unusable."""
        self._state.remove(stateName)
        if (variable := self._variables.pop(stateName, None)) is not None:
            variable.__class__ = _REMOVED[type(variable)]


class SchemaReader:
    """Gives the Arrow columns of schemas: on the driver of any schema, in tasks of schemas that the driver has seen."""

    def __init__(self, known: Mapping[str, pa.Schema] | None = None) -> None:
        self.seen: dict[str, pa.Schema] = dict(known or {})
        self._may_parse = known is None

    def __call__(self, schema: StructType | str) -> pa.Schema:
        """Return the columns. Raises StateError for text that the driver has not seen."""
        text = schema if isinstance(schema, str) else schema.json()
        columns = self.seen.get(text)
        if columns is None:
            if isinstance(schema, str) and not self._may_parse:
                raise StateError(f"the schema {schema!r} was not there on the driver; give a StructType")
            columns = self.seen[text] = arrow_schema(schema)
        return columns


def make_row(names: Sequence[str], values: Sequence[Any]) -> Row:
    """Return a Row of these fields."""
    row: Row = tuple.__new__(Row, values)
    row.__dict__["__fields__"] = names
    return row
