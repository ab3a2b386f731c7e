"""Operators of a pipeline that call PySpark's stateful code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType, TimestampType
from typing_extensions import override

from roster._clock import wall_ms
from roster.spark.processor.code import Given
from roster.spark.processor.handle import SchemaReader, make_row
from roster.state.definition import Document
from roster.state.pending import WithChanges
from roster.state.processor.batch import Code, Key, KeyedState, Plan, TimeMode, plain_keys, take
from roster.state.processor.overlay import Overlay
from roster.state.processor.states import Current
from roster.state.processor.variables import REGISTRY_KEY
from roster.state.store import NoState

if TYPE_CHECKING:
    from roster.state.aggregate import Layout, Update
    from roster.state.store import Snapshot
from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import Row

from roster.spark.processor.code import ProcessorCode
from roster.state.processor.results import Rows


class RowCode(ProcessorCode):
    """Passes Rows of all columns; takes Rows of the output schema."""

    def __init__(self, given: Given, reader: SchemaReader | None = None) -> None:
        super().__init__(given, Rows(given.output), reader)
        self._names: list[str] = []
        self._values: list[tuple[Any, ...]] = []

    @override
    def give(self, table: pa.Table) -> None:
        local = in_zone(table, self._given.zone)
        self._names = list(local.column_names)
        self._values = list(zip(*(column.to_pylist() for column in local.columns), strict=True))

    @override
    def given(self, begin: int, end: int) -> Iterator[Row]:
        names = self._names
        return (make_row(names, values) for values in self._values[begin:end])

    @override
    def initial(self, table: pa.Table) -> Iterator[Row]:
        local = in_zone(table, self._given.zone)
        columns = [column.to_pylist() for column in local.columns]
        return (make_row(local.column_names, values) for values in zip(*columns, strict=True))


def in_zone(table: pa.Table, zone: str) -> pa.Table:
    """Return the table with zoned times converted to this zone, those inside nested values too."""
    schema = pa.schema([field.with_type(_in_zone(field.type, zone)) for field in table.schema])
    return table if schema.equals(table.schema) else table.cast(schema)


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, zone) if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_zone(field.type, zone)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(*(field.with_type(_in_zone(field.type, zone)) for field in (kind.key_field, kind.item_field)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_zone(kind.value_type, zone)))
    return kind


@dataclass(frozen=True)
class _Operator:
    """Common part of both operators; can be pickled. `clock`: wall-clock milliseconds."""

    name: ClassVar[str]
    """The method of `Pipeline` that declares the operator."""

    plan: Plan
    given: Given
    clock: Callable[[], int] = wall_ms
    registry: bytes = b""
    """The list of variables that the code declares in a store without any."""

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns that become the key of the records: the key's, if results have all of them."""
        return self.plan.keys if set(self.plan.keys).issubset(self.given.output.names) else ()

    @property
    def time_column(self) -> str | None:
        """The column of times, if any."""
        return self.plan.event_time

    @property
    def kept(self) -> Document:
        """Definition of the state besides its variables, by name."""
        return {"operator": self.name, "time_mode": self.plan.mode.value, "event_time": self.plan.event_time}

    def key_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the state's keys."""
        return pa.schema([columns.field(name) for name in self.plan.keys])

    @property
    def has_timers(self) -> bool:
        """True if keys may have processing-time timers, which become due without records."""
        return self.plan.mode is TimeMode.PROCESSING

    @property
    def has_variables(self) -> bool:
        """True: entries belong to variables, and the store has a list of them."""
        return True

    def layout(self, columns: pa.Schema) -> Layout | None:
        """Return None: each variable has a layout of its own."""
        return None

    def __call__(self, table: pa.Table, store: Snapshot) -> Update:
        """Return the results and changes of a batch's rows."""
        return self._take(table, store)

    def set_aside(self, table: pa.Table, store: Snapshot) -> Update:
        """Return the same, or the rows at which the code fails; timers that fail are removed and named."""
        return self._take(table, store, sets_aside=True)

    def _take(self, table: pa.Table, store: Snapshot, *, sets_aside: bool = False) -> Update:
        return take(
            table,
            store,
            self.plan,
            self.code(),
            clock=self.clock,
            make_struct=make_row,
            make_keys=partial(self.keys, of_timers=False),
            make_timer_keys=partial(self.keys, of_timers=True),
            has_initial_state=self.given.initial is not None,
            sets_aside=sets_aside,
        )

    def keys(self, columns: Sequence[pa.Array], *, of_timers: bool) -> list[Key]:
        """Return the keys as the code gets them, as in Spark: with rows, or of timers."""
        raise NotImplementedError

    def code(self) -> Code:
        """Return the user code for one batch."""
        raise NotImplementedError

    def declare(self, registry: bytes) -> None:
        """Declare the variables in a store with this list of them. Raises StateError or FunctionError."""
        self._declared(self.code(), WithChanges(NoState(), {REGISTRY_KEY: registry}))

    def _declared(self, code: Code, store: Snapshot) -> bytes:
        """Let the code declare its variables, as at the start of a batch, and close it; return the list of them."""
        overlay = Overlay(store)
        state = KeyedState(overlay, self.plan, make_row, Current())
        code.open(state, pa.table({}))
        state.declared()
        code.close()
        return overlay.get(REGISTRY_KEY) or b""


def _as_in_state(column: pa.Array, zone: str | None) -> list[object]:
    """Return values as state variables have them: times without a zone, in this one or in the process's."""
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return column.to_pylist()  # type: ignore[no-any-return]
    if zone is not None:
        return pc.local_timestamp(column.cast(pa.timestamp("us", zone))).to_pylist()  # type: ignore[no-any-return]
    numbers = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return list(map(TimestampType().fromInternal, numbers.to_pylist()))


@dataclass(frozen=True)
class ProcessorOperator(_Operator):
    """A `StatefulProcessor`: the operator of `transform_with_state`."""

    name = "transform_with_state"

    in_pandas: bool = False

    @override
    def keys(self, columns: Sequence[pa.Array], *, of_timers: bool) -> list[Key]:
        zone = self.given.zone
        if of_timers:
            names = list(self.plan.keys)
            values = [_as_in_state(column, zone if self.in_pandas else None) for column in columns]
            return [make_row(names, row_values) for row_values in zip(*values, strict=True)]
        if not self.in_pandas:
            return plain_keys(in_zone(pa.table(list(columns), self.plan.keys), zone).columns)
        from roster.spark.processor.frames import keys_in_pandas  # noqa: PLC0415 - rows do without pandas

        return keys_in_pandas(columns, zone, in_numpy=False)

    def code(self, reader: SchemaReader | None = None) -> Code:
        """Return the processor for one batch. `reader`: on the driver, one that may parse schemas."""
        if not self.in_pandas:
            return RowCode(self.given, reader)
        from roster.spark.processor.frames import FrameCode  # noqa: PLC0415 - rows do without pandas

        return FrameCode(self.given, reader)

    def prepared(self) -> ProcessorOperator:
        """Call `init` on the driver; return the operator with the schemas that `init` asked for."""
        reader = SchemaReader()
        registry = self._declared(self.code(reader), NoState())
        return replace(self, given=replace(self.given, schemas=reader.seen), registry=registry)


@dataclass(frozen=True)
class GroupStateOperator(_Operator):
    """A function with a `GroupState`: the operator of `apply_in_pandas_with_state`."""

    name = "apply_in_pandas_with_state"

    schema: StructType = StructType()  # noqa: RUF009 - none is ever changed
    columns: pa.Schema = pa.schema([])  # noqa: RUF009 - as above
    timeout: str = "NoTimeout"

    @override
    def keys(self, columns: Sequence[pa.Array], *, of_timers: bool) -> list[Key]:
        from roster.spark.processor.frames import keys_in_pandas  # noqa: PLC0415 - brings pandas

        return keys_in_pandas(columns, self.given.zone, in_numpy=True)

    def prepared(self) -> GroupStateOperator:
        """Return the operator with the list of its one variable."""
        return replace(self, registry=self._declared(self.code(), NoState()))

    def code(self) -> Code:
        """Return the function for one batch."""
        from roster.spark.processor.group_state import GroupStateCode  # noqa: PLC0415 - brings pandas

        has_watermark = self.plan.event_time is not None
        return GroupStateCode(self.given, self.schema, self.columns, self.timeout, has_watermark=has_watermark)
