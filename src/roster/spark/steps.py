"""Steps of a pipeline as they are declared: functions on record batches, resolved once their columns are known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from roster.pipeline.errors import PipelineError
from roster.pipeline.registry_schemas import (
    Source,
    check_registry,
    check_text,
    latest_of,
    unanswered,
)
from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.avro_values import BARE, ONLY, AvroColumns, Known, Writer
from roster.pipeline.tasks.json_values import JsonColumns, unsupported
from roster.pipeline.tasks.steps import BatchFunction, Chain, Filter
from roster.pipeline.tasks.value_columns import FAILFAST, PERMISSIVE
from roster.records.native import AVRO, compiled
from roster.schemas import Registered, Registry, RegistryError
from roster.wire.avro.columns import layout, of_arrow
from roster.wire.avro.program import with_aliases
from roster.wire.avro.schema import SchemaError, Type, parse


class Step(Protocol):
    """A declared function on record batches, resolved once their columns are known."""

    def resolved(self, given: StructType, /) -> tuple[BatchFunction | None, StructType]:
        """Return the function, None for what Spark does, and the columns of its results. Raises PipelineError."""


@dataclass(frozen=True)
class BySpark:
    """What Spark makes of the rows of a stage, so that they have these columns.

    delay: how far times of rows to come may be behind the time of the operator in front, None if by any time.
    """

    columns: StructType
    delay: timedelta | None = None

    def resolved(self, _: StructType, /) -> tuple[None, StructType]:
        """Return the columns."""
        return None, self.columns


@dataclass(frozen=True)
class Mapped:
    """The step of `map_arrow`."""

    function: BatchFunction
    schema: str | StructType

    def resolved(self, _: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        pickled(self.function, "map_arrow")
        return self.function, as_struct(self.schema)


@dataclass(frozen=True)
class Parsed:
    """The step of `json_columns`."""

    schema: str | StructType
    column: str
    mode: str
    keep: tuple[str, ...]

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        names = "json_columns"
        struct = as_struct(self.schema, names)
        columns = with_kept(struct, given, self.column, self.keep, names)
        return JsonColumns(checked_fields(struct), self.column, self.mode, self.keep), columns


def checked_fields(struct: StructType) -> pa.Schema:
    """Return the fields of JSON objects. Raises PipelineError for one that is not parsed."""
    fields = arrow_schema(struct)
    if (wrong := unsupported(fields)) is not None:
        kind = struct[wrong].dataType.simpleString()
        problem = f"field {wrong!r} has the type {kind}, which is not parsed"
        raise PipelineError(problem, field="json_columns", fix="Parse it in map_arrow")
    return fields


def check_mode(mode: str) -> None:
    """Raise PipelineError for an unknown mode."""
    if mode not in (PERMISSIVE, FAILFAST):
        raise PipelineError(f"{mode!r} is not a mode", field="mode", fix="Use 'PERMISSIVE' or 'FAILFAST'")


def with_kept(struct: StructType, given: StructType, column: str, keep: Sequence[str], names: str) -> StructType:
    """Return the fields of values, which may all be null, with the columns kept beside them.

    Raises PipelineError if they do not fit.
    """
    if missing := [name for name in (column, *keep) if name not in given.names]:
        raise PipelineError(f"no column {missing[0]!r}", field=names, fix=f"Name one of {', '.join(given.names)}")
    if twice := [name for name in keep if name in struct.names]:
        raise PipelineError(
            f"the schema has a field {twice[0]!r} too", field=names, fix="Leave it out of keep, or of the schema"
        )
    if given[column].dataType.typeName() not in ("binary", "string"):
        raise PipelineError(f"column {column!r} is not text", field=names, fix="Name one of text or bytes")
    fields = (StructField(child.name, child.dataType, metadata=child.metadata) for child in struct)
    return StructType([*fields, *(given[name] for name in keep)])


@dataclass(frozen=True)
class Filtered:
    """The step of `filter`."""

    condition: pc.Expression

    def __post_init__(self) -> None:
        if not isinstance(self.condition, pc.Expression):
            raise PipelineError(
                f"{self.condition!r} is not an expression of Arrow", field="filter", fix="For example pc.field('n') > 0"
            )

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        try:
            arrow_schema(given).empty_table().filter(self.condition)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = str(error).splitlines()[0]
            raise PipelineError(
                f"{self.condition} does not fit: {problem}", field="filter", fix=f"Columns are {given.simpleString()}"
            ) from None
        return Filter(self.condition), given


def chained(steps: Sequence[Step], columns: StructType) -> tuple[ArrowFunction | None, StructType]:
    """Return the steps as one function, None without steps, and its result columns; needs a Spark session.

    columns: of the first step's input. Raises PipelineError for steps that do not fit.
    """
    functions = []
    for step in steps:
        function, columns = step.resolved(columns)
        if function is not None:
            functions.append(ArrowFunction(function, arrow_schema(columns)))
    if len(functions) < 2:
        return (functions[0] if functions else None), columns
    return ArrowFunction(Chain(functions), arrow_schema(columns)), columns


def pickled(code: Any, field: str) -> bytes:
    """Pickle a function or an object for tasks. Raises PipelineError that says where it was defined."""
    pickle: Any = cloudpickle  # it has no type hints
    try:
        data: bytes = pickle.dumps(code)
    except Exception as error:
        where = getattr(code, "__code__", None)
        name = getattr(code, "__qualname__", type(code).__qualname__)
        place = f" ({Path(where.co_filename).name}, line {where.co_firstlineno})" if where is not None else ""
        raise PipelineError(
            f"{name}{place} cannot be sent to the tasks: {' '.join(str(error).split()).rstrip('.')}",
            field=field,
            fix="It must not refer to the session, open files or other state of the driver",
        ) from None
    return data


@dataclass(frozen=True)
class AvroParsed:
    """The step of `avro_columns`."""

    registry: Registry | None
    columns: str | StructType | None
    schema: str | None
    subject: str | None
    column: str
    mode: str
    keep: tuple[str, ...]
    kept: list[Source] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_mode(self.mode)
        check_registry(self.registry)
        check_text(self.schema or "")
        if self.registry is None and not self.schema:
            fix = "Name registry=Registry(url) for Confluent's frame, schema= for values without one"
            raise PipelineError("the writers' schemas are not known", field="avro_columns", fix=fix)

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        try:
            known = self._known()
            schema = self._reader(known)
            fields = pa.schema(list(layout(schema).schema))
        except SchemaError as error:
            fix = "Correct the schema, or name the fields that you need in columns="
            raise PipelineError(str(error), field="avro_columns", fix=fix) from None
        struct = self.columns or from_arrow_schema(fields, prefer_timestamp_ntz=True)
        columns = with_kept(as_struct(struct, "avro_columns"), given, self.column, self.keep, "avro_columns")
        return AvroColumns(schema, fields, known, compiled(AVRO), self.column, self.mode, self.keep), columns

    def _known(self) -> Known:
        if self.registry is not None:
            self.kept.append(Source(self.registry, self.column))
            return self.kept[-1].known
        return Known("", BARE, self.column, {ONLY: Writer("AVRO", self.schema or "")})

    def _reader(self, known: Known) -> Type:
        """Return the reader's schema: that of the columns, the one given, or the latest of the subject."""
        if self.columns is None and self.schema:
            return parse(self.schema)
        if self.columns is None:
            latest = latest_of(self.registry, self.subject, "avro_columns")
            self.kept[-1].add(latest)
            return known.avro(latest.id)
        named = of_arrow(pa.struct(list(arrow_schema(as_struct(self.columns, "avro_columns")))), "columns")
        if not self.kept:
            return with_aliases(named, parse(self.schema or ""))
        if self.subject is not None and (version := self._latest_if_any()) is not None:
            self.kept[-1].add(version)
            with suppress(SchemaError):  # this schema may not be a record
                named = with_aliases(named, known.avro(version.id))
        self.kept[-1].named = named
        for key in known.writers:
            self.kept[-1].tell(key)
        return named

    def _latest_if_any(self) -> Registered | None:
        """Return the latest schema of the subject; None if it has none, or one of another kind."""
        assert self.registry is not None and self.subject is not None  # noqa: PT018 - as in `_reader`
        try:
            latest = self.registry.latest(self.subject)
        except RegistryError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise unanswered(error) from None
        return latest if latest.kind == "AVRO" else None
