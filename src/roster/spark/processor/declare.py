"""Declarations of PySpark's stateful code: checked arguments become an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from roster._errors import RosterError
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.spark.processor.code import Given, InitialState
from roster.spark.processor.group_state import MODES
from roster.spark.processor.operator import GroupStateOperator, ProcessorOperator
from roster.spark.stateful_operators import Stateful, check_extra, check_functions
from roster.spark.steps import pickled
from roster.state.definition import Migrate
from roster.state.durations import Duration, as_timedelta
from roster.state.processor.batch import Plan, TimeMode
from roster.state.processor.codec import RowCodec
from roster.state.processor.variables import decode_registry

_METHODS = ("init", "handleInputRows", "handleExpiredTimer", "handleInitialState", "close")


def processing(
    spark: SparkSession,
    processor: object,
    keys: tuple[str, ...],
    output_schema: str | StructType,
    *,
    time_mode: str,
    in_pandas: bool,
    event_time: str | None,
    delay: Duration,
    initial_state: DataFrame | pa.Table | None,
    store: str,
    migrate: Migrate,
) -> Stateful:
    """Return the operator of `Pipeline.transform_with_state`. Raises PipelineError for wrong arguments."""
    field = "transform_with_state"
    if missing := [name for name in _METHODS if not callable(getattr(processor, name, None))]:
        raise PipelineError(
            f"{processor!r} has no method {missing[0]}",
            field="processor",
            fix="Pass an instance of a StatefulProcessor",
        )
    modes = {mode.value.lower(): mode for mode in TimeMode}
    mode = modes.get(str(time_mode).lower())
    if mode is None:
        raise PipelineError(
            f"{time_mode!r} is not possible", field="time_mode", fix="Use 'None', 'ProcessingTime' or 'EventTime'"
        )
    plan = _plan(field, keys, mode, event_time, delay)
    initial = None if initial_state is None else _initial(spark, initial_state, keys, in_pandas)
    code = _given(spark, processor, output_schema, mode, field, initial)
    operator = ProcessorOperator(plan, code, in_pandas=in_pandas).prepared()
    return _stateful(operator, store, migrate)


def group_state(
    spark: SparkSession,
    function: Callable[..., Any],
    keys: tuple[str, ...],
    output_schema: str | StructType,
    state_schema: str | StructType,
    *,
    timeout: str,
    event_time: str | None,
    delay: Duration,
    store: str,
    migrate: Migrate,
) -> Stateful:
    """Return the operator of `Pipeline.apply_in_pandas_with_state`. Raises PipelineError for wrong arguments."""
    field = "apply_in_pandas_with_state"
    if not callable(function):
        raise PipelineError(f"{function!r} is not a function", field="function", fix="Pass a function")
    if timeout not in MODES:
        raise PipelineError(f"{timeout!r} is not possible", field="timeout", fix=f"Use one of {', '.join(MODES)}")
    plan = _plan(field, keys, MODES[timeout], event_time, delay)
    struct = as_struct(state_schema, "state_schema")
    columns = arrow_schema(struct)
    try:
        RowCodec(columns)
    except RosterError as error:
        raise PipelineError(str(error), field="state_schema") from None
    code = _given(spark, function, output_schema, plan.mode, field)
    operator = GroupStateOperator(plan, code, schema=struct, columns=columns, timeout=timeout).prepared()
    return _stateful(operator, store, migrate)


def _stateful(operator: ProcessorOperator | GroupStateOperator, store: str, migrate: Migrate) -> Stateful:
    check_functions(migrate, list(decode_registry(operator.registry)))
    return Stateful(operator, store, takes_updates=True, is_by_key=True, migrate=migrate)


def _plan(field: str, keys: Sequence[str], mode: TimeMode, event_time: str | None, delay: Duration) -> Plan:
    check_extra(field)
    try:
        return Plan(tuple(keys), mode, event_time, as_timedelta("delay", delay))
    except RosterError as error:
        raise PipelineError(str(error), field=field) from None


def _given(
    spark: SparkSession, code: Any, output: str | StructType, mode: TimeMode, field: str, initial: Any = None
) -> Given:
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    return Given(pickled(code, field), arrow_schema(as_struct(output, "output_schema")), mode, zone, {}, initial)


def _initial(spark: SparkSession, state: DataFrame | pa.Table, keys: Sequence[str], in_pandas: bool) -> Any:
    """Return the initial state as a broadcast variable."""
    table = state if isinstance(state, pa.Table) else None
    if table is None:
        if not isinstance(state, DataFrame):
            raise PipelineError(f"{state!r} is neither a DataFrame nor a pyarrow.Table", field="initial_state")
        table = state.toArrow()
    try:
        if in_pandas:
            from_arrow_schema(table.schema)
        return spark.sparkContext.broadcast(InitialState(table, keys))
    except (RosterError, PySparkTypeError) as error:
        raise PipelineError(str(error), field="initial_state") from None
